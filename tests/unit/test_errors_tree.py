from __future__ import annotations

import ast
import pickle
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import get_args

import pytest

from lllaunch import errors
from lllaunch.errors import Code, Diagnostic, ExitCode, LaunchError, Unfit, for_signal

DOCS = Path(__file__).parents[2] / "docs" / "reference"
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LaunchError) and kind is not LaunchError
]


@pytest.mark.parametrize("kind", KINDS)
def test_errors_survive_pickling_with_all_they_know(kind: type[LaunchError]) -> None:
    values = [
        (Diagnostic("type", "a.b", "1", "is wrong", "write 2"),)
        if each.name == "problems"
        else each.name
        for each in (fields(kind) if is_dataclass(kind) else ())
    ] or ["a", "b"]
    error = kind(*values)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (vars(again), str(again)) == (vars(error), str(error))
    assert again.exit_code == error.exit_code


@pytest.mark.slow
def test_each_kind_of_diagnostic_is_explained_and_made_somewhere() -> None:
    root = Path(errors.__file__).parent
    page = (DOCS / "diagnostics.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE)
    assert rows == sorted(get_args(Code))
    sources = (path for path in root.rglob("*.py") if path != Path(errors.__file__))
    nodes = (node for path in sources for node in ast.walk(ast.parse(path.read_text())))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert texts >= {*rows}


def test_a_diagnostic_reads_like_a_compilers() -> None:
    unfit = Unfit("a mask (none, all)", "did you mean 'all'?", code="mask")
    found = unfit.at("launch.tee", "'al'")
    assert str(found) == (
        "launch.tee: expected a mask (none, all), got 'al'; did you mean 'all'? [mask]"
    )
    placed = replace(found, file="conf/exp/a.yaml", line=9)
    assert str(placed) == f"conf/exp/a.yaml:9: {found}"
    assert placed.said == str(found)
    secret = unfit.at("launch.tee", "'${oc.env:X}'", secret=True)
    assert str(secret) == "launch.tee: expected a mask (none, all), got '${oc.env:X}' [mask]"


def test_the_code_stands_in_the_line_that_says_what_is_wrong() -> None:
    found = Diagnostic("changed", "a", "job 1", "has changed", "put it back:\n  x: 1 -> 2")
    assert str(found) == "a: job 1 has changed; put it back [changed]:\n  x: 1 -> 2"


def test_every_exit_code_is_on_the_page_about_them() -> None:
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "exit-codes.md").read_text(), re.MULTILINE)
    assert [int(code) for code in rows] == sorted(ExitCode)
    # those of signals are not those of anything else
    assert for_signal(15) == 143
    assert max(ExitCode) < for_signal(1)
