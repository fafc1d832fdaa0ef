"""Names of locks, and where they lead: to a file of the project and nowhere else."""

from __future__ import annotations

import os
import re

from lllaunch.config.tree import shorten, show
from lllaunch.errors import ConfigError, Problem
from lllaunch.review.places import LOCKS

DIRECTORY = f"conf/{LOCKS}"
"""Where locks are, relative to the project."""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", re.ASCII)
_LONGEST_NAME = 200


def lock_path(root: str, name: str) -> str:
    """Returns where the lock of an experiment is, or would be.

    Args:
        root: top directory of the project.
        name: of the experiment; one with slashes is in a directory below.

    Raises:
        ConfigError: the name is none that a lock can have, or a symbolic link leads out of the
            project: what is there was not reviewed with it.
    """
    problem = name_problem(name)
    path = os.path.join(root, DIRECTORY, f"{name}.yaml")
    if problem is None:
        top, real = os.path.realpath(root), os.path.realpath(path)
        if os.path.commonpath((top, real)) != top:
            message = f"leads out of {root!r}, to {shorten(repr(real))}"
            problem = Problem(path, "", message, "a lock is a file of the project")
    if problem is not None:
        raise ConfigError((problem,))
    return path


def name_problem(name: str) -> Problem | None:
    """Tells what is wrong with the name of a lock, None if nothing is."""
    expected, hint = "", ""
    if len(name) > _LONGEST_NAME:
        expected = f"{_LONGEST_NAME} characters at most"
    elif name.endswith((".yaml", ".yml")):
        expected, hint = "a name without a suffix", f"did you mean {name.rpartition('.')[0]!r}?"
    elif not all(_PART.fullmatch(part) for part in name.split("/")):
        expected = (
            "words of letters, digits, _ . + and -, each beginning with one of the first three"
        )
        hint = "separate them by /"
    if not expected:
        return None
    return Problem("the lock's name", show(name), "", hint, expected=expected)
