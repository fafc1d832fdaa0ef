"""``hydra.launcher.resume=DIR`` on a command line: its sweep directory is that one."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lllaunch.errors import ConfigError, Problem

KEY = "hydra.launcher.resume"
DIRECTORY = "hydra.sweep.dir"


def with_directory(argv: Sequence[str]) -> list[str]:
    """Returns a command line that says where its sweep is, if it resumes one.

    The directory of a sweep holds the moment of its start in general, so it must be known before
    Hydra composes anything.
    """
    found = [text.partition("=")[2] for text in argv if _key(text) == KEY]
    stated = any(_key(text) == DIRECTORY for text in argv)
    if not found or found[-1] in {"", "null"} or stated:
        return list(argv)
    return [*argv, f"{DIRECTORY}={found[-1]}"]


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+")


def check(resume: str | None, sweep_dir: str, cwd: str) -> None:
    """Checks that the sweep that is resumed is the one that Hydra works on.

    Args:
        resume: what the config says; None for a new sweep.
        sweep_dir: ``hydra.sweep.dir``.
        cwd: where relative paths start.

    Raises:
        ConfigError: they differ.
    """
    if resume is None:
        return
    theirs, ours = (os.path.realpath(os.path.join(cwd, path)) for path in (sweep_dir, resume))
    if theirs != ours:
        expected = f"is not the sweep's directory ({sweep_dir})"
        problem = Problem(KEY, repr(resume), expected, f"add {DIRECTORY}={resume}")
        raise ConfigError((problem,))
