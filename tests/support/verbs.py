"""The app, and verbs that look at configs, called in the test's own process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.app import app

if TYPE_CHECKING:
    import pytest


class Ended(NamedTuple):
    """What a verb has left."""

    code: int
    out: str
    err: str


# takes the words of a command line
Called = Callable[..., Ended]


def call_app(
    argv: Sequence[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Ended:
    """Run ``lllaunch ARGV``, for what starts nothing."""
    # what measures this process is no debugger
    monkeypatch.setattr("hydra._internal.utils.is_under_debugger", lambda: False)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(sys, "argv", ["lllaunch", *argv])
    capfd.readouterr()
    code = app.run(app.Jobs(None))
    return Ended(code, *capfd.readouterr())


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
