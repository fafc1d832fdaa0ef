"""Verbs that look at configs, called in the test's own process as their user calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pytest


class Ended(NamedTuple):
    """What a verb has left."""

    code: int
    out: str
    err: str


def call(
    verb: Callable[[Sequence[str]], int], argv: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> Ended:
    capsys.readouterr()
    code = verb(argv)
    return Ended(code, *capsys.readouterr())


def listing(root: Path) -> dict[str, bytes | None]:
    """Everything below a directory: files with what is in them."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }
