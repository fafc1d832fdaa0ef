from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from lllaunch import errors
from lllaunch.errors import Code, Diagnostic, ExitCode, for_signal

DOCS = Path(__file__).parents[2] / "docs" / "reference"


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


def test_the_code_stands_in_the_line_that_says_what_is_wrong() -> None:
    found = Diagnostic("changed", "a", "job 1", "has changed", "put it back:\n  x: 1 -> 2")
    assert str(found) == "a: job 1 has changed; put it back [changed]:\n  x: 1 -> 2"


def test_every_exit_code_is_on_the_page_about_them() -> None:
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "exit-codes.md").read_text(), re.MULTILINE)
    assert [int(code) for code in rows] == sorted(ExitCode)
    # those of signals are not those of anything else
    assert for_signal(15) == 143
    assert max(ExitCode) < for_signal(1)
