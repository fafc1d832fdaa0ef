"""A job's whole config as a journal may keep it."""

from __future__ import annotations

from typing import Any

import pytest
from hydra.core.utils import setup_globals
from omegaconf import DictConfig, OmegaConf

from lllaunch.config.read import PublicReader

SECRET = "hf_hunter2hunter2hunter2"


@pytest.fixture(autouse=True)
def resolvers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's resolvers, and those that Hydra has."""
    monkeypatch.setenv("PLACE", SECRET)
    setup_globals()

    def broken(*_: object) -> None:
        raise ZeroDivisionError(SECRET)

    OmegaConf.register_new_resolver("broken", broken)
    OmegaConf.register_new_resolver("vault", lambda *_: SECRET)
    OmegaConf.register_new_resolver("object", lambda *_: object())
    OmegaConf.register_new_resolver("both", lambda *values: list(values))
    OmegaConf.register_new_resolver("double", lambda number: 2 * int(number))


def public(text: str) -> dict[str, Any]:
    cfg = OmegaConf.create(text)
    assert isinstance(cfg, DictConfig)
    return PublicReader(cfg).config()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{n: 3, a: '${n}', b: 'x${n}', c: [1, '${n}']}", {"n": 3, "a": 3, "b": "x3", "c": [1, 3]}),
        ("{a: '${double:2}'}", {"a": 4}),
        ("{a: '${both:1,2}'}", {"a": [1, 2]}),
        ("{m: {x: '${n}'}, a: '${m}', n: 1}", {"m": {"x": 1}, "a": {"x": 1}, "n": 1}),
        ("{a: '${worker:rank}'}", {"a": "${worker:rank}"}),
        ("{a: '\\${n}'}", {"a": "${n}"}),
        # Hydra's node and ours are left out, but may be referred to
        ("{hydra: {a: 1}, launch: {nproc: 3}, n: '${launch.nproc}'}", {"n": 3}),
    ],
)
def test_it_is_resolved(text: str, expected: dict[str, Any]) -> None:
    assert public(text) == expected


@pytest.mark.parametrize(
    "leaf",
    [
        *("${oc.env:PLACE}", "x-${oc.env:PLACE}", "${oc.env:UNSET}", "${oc.env:PLACE,here}"),
        *("${now:%H}", "${hydra:job.num}", "${hydra.a}", "x-${now:%S}"),
        *("${direct}", "${chain}", "${table.${which}}", "${oc.select:direct}", "${table.inner}"),
        *("${moment}", "${moments}", "${place.${word}}"),
        *("${broken:}", "${nowhere}", "${object:}", "${.${broken:}}"),
        *("${api_key}", "${key_again}", "${oc.select:api_key}", "${list_of_key.0.token}"),
    ],
)
def test_what_may_not_be_written_stays_as_the_config_has_it(leaf: str) -> None:
    root = {
        "hydra": {"a": 1},
        "direct": "${oc.env:PLACE}",
        "chain": "${direct}",
        "which": "inner",
        "word": "${oc.env:WORD,one}",
        "place": {"one": 1},
        "table": {"inner": "${direct}"},
        "moment": "${now:%H}",
        "moments": "${moment} ${moment}",
        "api_key": "${vault:}",
        "key_again": "${api_key}",
        "list_of_key": [{"token": "${vault:}"}],
        "leaf": leaf,
        "within": [{"leaf": leaf}],
    }
    found = PublicReader(OmegaConf.create(root)).config()
    assert (found["leaf"], found["within"]) == (leaf, [{"leaf": leaf}])
    assert SECRET not in repr(found)


def test_literal_secrets_are_hidden_and_counts_are_not() -> None:
    text = f"""
        m: {{HF_TOKEN: {SECRET}, again: "${{.HF_TOKEN}}", nested: "x${{m.HF_TOKEN}}"}}
        host: "${{oc.env:DB_PASSWORD,{SECRET}}}"
        part: "${{double:2}} ${{shown}}"
        shown: {SECRET}
        pad_token: <pad>
        token: ["${{vault:}}"]
        max_token: 512
        """
    found = public(text)
    assert found["m"]["HF_TOKEN"] == "${oc.env:HF_TOKEN}"
    assert found["m"]["again"] == "${.HF_TOKEN}"
    assert found["host"] == "${oc.env:DB_PASSWORD}"
    assert found["part"] == "${double:2} ${shown}"
    assert (found["pad_token"], found["max_token"]) == ("<pad>", 512)
    assert found["token"] == ["${vault:}"]


def test_a_config_that_contains_itself_has_an_end() -> None:
    assert public("a: {b: {c: '${a}'}}") == {"a": {"b": {"c": "${a}"}}}
    first = "{x: '${b}'}"
    assert public(f"{{a: {first}, b: {{y: '${{a}}'}}}}")["a"] == {"x": {"y": "${a}"}}


def test_aliases_that_expand_without_measure_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lllaunch.config.read.MOST_VALUES", 2_000)
    levels = {f"l{n}": [f"${{l{n + 1}}}"] * 10 for n in range(9)}
    found = PublicReader(OmegaConf.create({**levels, "l9": 1})).config()
    assert "${l" in repr(found["l0"])
    assert len(repr(found)) < 1_000_000


def test_after_what_is_too_much_nothing_more_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lllaunch.config.read.MOST_REFERENCES", 50)
    doubling = {f"a{n}": f"${{a{n - 1}}}${{a{n - 1}}}" for n in range(1, 30)}
    found = PublicReader(OmegaConf.create({"a0": "x", **doubling, "b": "${a0}"})).config()
    assert found["a3"] == "x" * 8
    assert {name: found[name] for name in ("a9", "a29", "b")} == {
        "a9": "${a8}${a8}",
        "a29": "${a28}${a28}",
        "b": "${a0}",
    }


def test_a_plan_says_where_what_changes_comes_from() -> None:
    cfg = OmegaConf.create(
        {
            "stamp": "${now:%f}",
            "lr": 1,
            "hydra": {"launcher": {"env": {"A": "${now:%f}", "B": "x"}, "tee": None}},
            "launch": {
                "args": {"name": "run-${stamp}", "lr": "${lr}", "rank": "${worker:rank}"},
                "preload": ["${stamp}"],
                "nproc": 2,
            },
        }
    )
    decided = {
        "args": {"name": "run-123", "lr": 1, "rank": "${worker:rank}"},
        "env": {"A": "456", "B": "x"},
        "preload": ["789"],
        "tee": "all",
        "nproc": 2,
    }
    assert PublicReader(cfg).with_sources(decided, "hydra.launcher", "launch", "missing") == {
        "args": {"name": "run-${stamp}", "lr": 1, "rank": "${worker:rank}"},
        "env": {"A": "${now:%f}", "B": "x"},
        "preload": ["${stamp}"],
        "tee": "all",
        "nproc": 2,
    }
