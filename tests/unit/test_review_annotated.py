from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lllaunch.config.nodes import HostContext
from lllaunch.config.origins import (
    KeyOrigin,
    Link,
    Origin,
    Origins,
    annotated,
    chain_of,
    comment_rows,
    origin_text,
)
from lllaunch.config.resolve import resolve
from lllaunch.config.tree import leaf_items

texts = st.text("ab#:'\" \\\n\r\t\x85\u2028\x1b[é🐘-{}.~?&*!|>%@`", max_size=8)
# a number as a key, and its text beside it, could not be told apart
keys = texts | st.integers(-3, 3) | st.just("k" * 200)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
data = st.dictionaries(
    keys,
    st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)


@given(data)
def test_comments_change_nothing_and_stand_where_their_value_stands(plan: dict[Any, Any]) -> None:
    paths = [path for path, _ in leaf_items(plan)]
    numbers = {repr(path): number for number, path in enumerate(paths)}
    text = written(plan, lambda path: f"comment {numbers[repr(path)]} of it")
    bare = written(plan, lambda path: "")
    assert yaml.safe_load(text) == yaml.safe_load(bare) == plan
    lines, bare_lines = text.split("\n"), bare.split("\n")
    assert len(lines) == len(bare_lines)
    found = []
    for line, without in zip(lines, bare_lines, strict=True):
        assert line.startswith(without)
        rest = line.removeprefix(without).strip()
        if rest:
            found.append(int(rest.removeprefix("# comment ").removesuffix(" of it")))
    assert found == [*range(len(paths))]


def written(plan: dict[Any, Any], comment: Callable[[Any], str]) -> str:
    return text_of(annotated(plan, comment))


def text_of(rows: list[Any]) -> str:
    return "\n".join("".join(span.text for span in row) for row in rows)


def test_a_comment_is_one_line_and_moves_no_cursor() -> None:
    hostile = "a\nb: 1\r\x1b[2Jc\u2028d\x9b"
    text = written({"a": 1}, lambda path: hostile + "x" * 500)
    assert text.count("\n") == 0
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert yaml.safe_load(text) == {"a": 1}
    assert len(text) < 260
    block = text_of(comment_rows("Here:", [("name", hostile), ("longer", "b"), ("empty", "")]))
    assert [line[:2] for line in block.splitlines()] == ["# "] * 3
    assert "\x1b" not in block
    assert "empty" not in block
    assert yaml.safe_load(block) is None
    assert len(comment_rows("Here:", [])) == 1


SCHEMA = Origin("schema", "structured://_lllaunch_schema")


Chain = Callable[[tuple[Any, ...]], tuple[Link, ...]]


def told(args: Any = None, *, sweeps: bool = False, **entries: Origin) -> Chain:
    """The origins of keys whose dots are written as two underscores."""
    found = {key.replace("__", "."): KeyOrigin(origin) for key, origin in entries.items()}
    cfg = OmegaConf.create({"launch": {"entrypoint": "env", "args": args}})
    spec = resolve(cfg, HostContext(runtime_cwd="/", output_dir="/o"))
    return partial(chain_of, Origins(found), spec, sweeps=sweeps)


def where(number: int) -> Origin:
    return Origin("file", "f.yaml", number)


def test_a_word_of_a_command_line_has_the_origin_of_its_argument() -> None:
    # a value that looks like an option is none
    args = {"lr": 1, "tags": ["--lr", "-1"], "-v": True, "x-y": "-v"}
    names = ["lr", "tags", "-v", "x-y"]
    entries = {f"launch__args__{name}": where(number) for number, name in enumerate(names)}
    found = told(args, launch__args=where(9), **entries)
    lines = [found(("launch", "args", place))[0].origin.line for place in range(8)]
    assert lines == [0, 0, 1, 1, 1, 2, 3, 3]


def test_a_limit_has_its_own_origin_or_that_of_its_preset() -> None:
    entries = {"launch__watchdog": where(1), "launch__watchdog__preset": where(2)}
    found = told(**entries, launch__watchdog__stall=where(3))
    assert origin_text(found(("launch", "watchdog", "stall"))) == "f.yaml:3"
    assert origin_text(found(("launch", "watchdog", "timeout"))) == "f.yaml:2"
    found = told(launch__watchdog=where(1), launch__watchdog__preset=SCHEMA)
    assert origin_text(found(("launch", "watchdog", "timeout"))) == "f.yaml:1"


def test_the_launchers_defaults_win_over_the_schemas_and_nothing_else() -> None:
    entries = {"launch__role": SCHEMA, "launch__nproc": where(1), "launch__tee": SCHEMA}
    weaker = {
        "hydra__launcher__role": where(2),
        "hydra__launcher__nproc": where(3),
        "hydra__launcher__tee": SCHEMA,
    }
    found = told(sweeps=True, **entries, **weaker)
    told_of = {name: origin_text(found(("launch", name))) for name in ("role", "nproc", "tee")}
    assert told_of == {"role": "f.yaml:2", "nproc": "f.yaml:1", "tee": "default"}
    alone = told(**entries, **weaker)
    assert origin_text(alone(("launch", "role"))) == "default"
    assert origin_text(alone(("launch", "gone"))) == ""
