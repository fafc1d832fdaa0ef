"""How much a config comes to when its references are followed."""

from __future__ import annotations

from typing import Any

import pytest

from lllaunch.config.resolve import endless


def doubling(depth: int, last: str = "x") -> dict[str, Any]:
    first = {"a0": last}
    return first | {f"a{i}": f"${{a{i - 1}}}${{a{i - 1}}}" for i in range(1, depth)}


def test_references_that_double_are_told_and_only_those() -> None:
    assert list(endless(doubling(10))) == []
    found = list(endless(doubling(40)))
    assert "a39" in found
    assert "a5" not in found


def test_what_refers_to_it_is_told_wherever_it_stands() -> None:
    config = doubling(40) | {"launch": {"args": ["fine", {"x": "see ${a39}"}]}, "b": "${a3}"}
    found = list(endless(config))
    assert "launch.args.1.x" in found
    assert "b" not in found


@pytest.mark.parametrize(
    "config",
    [
        {"a": "${b}", "b": "${a}"},
        {"a": "${a}"},
        {"a": {"b": "${.c}", "c": "${..d}"}, "d": "${a.b}"},
        {"a": "${nowhere}${a.b.c}", "l": ["${l.0}", "${l.7}"]},
        {"a": "${oc.env:X} ${b:${c}}", 3: "${a}", True: ["${3}"]},
    ],
)
def test_circles_and_what_is_not_there_come_to_little(config: dict[Any, Any]) -> None:
    assert list(endless(config)) == []


def test_a_long_chain_is_no_problem() -> None:
    chain = {"a0": "x"} | {f"a{i}": f"${{a{i - 1}}}" for i in range(1, 5000)}
    assert list(endless(chain)) == []


def test_relative_references_and_selections_count() -> None:
    relative = {"n": {"a0": "x"} | {f"a{i}": f"${{.a{i - 1}}}" * 2 for i in range(1, 40)}}
    assert "n.a39" in list(endless(relative))
    select = {"a0": "x"} | {f"a{i}": f"${{oc.select:a{i - 1},0}}" * 2 for i in range(1, 40)}
    assert "a39" in list(endless(select))
