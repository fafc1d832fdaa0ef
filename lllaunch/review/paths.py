"""Where a project keeps what was reviewed, and the refusal of what was not. Every run looks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lllaunch.errors import ConfigError, Diagnostic, ExitCode, LaunchError

if TYPE_CHECKING:
    from lllaunch.documents import Change

POLICY_FILE = "conf/lllaunch.yaml"
"""Relative to the top of the working tree."""

LOCKS = "locks"
"""Where locks are, relative to the directory of configs."""

POLICY_VARIABLE = "LLLAUNCH_POLICY"
"""Names another file; a relative path counts from where a process was started."""

LOCKED_VARIABLE = "LLLAUNCH_LOCKED"
"""Locks every run."""

if os.environ.get(POLICY_VARIABLE):
    # for as long as this process lives, and for those that it starts, wherever they work
    os.environ[POLICY_VARIABLE] = os.path.abspath(os.environ[POLICY_VARIABLE])

_NO = frozenset({"", "0", "false", "no", "off"})


def tree_top(directory: str) -> str:
    """Returns the top of the git working tree that a directory is in; without git, itself."""
    above = directory
    while not os.path.lexists(os.path.join(above, ".git")):
        parent = os.path.dirname(above)
        if parent == above:
            return directory
        above = parent
    return above


def policy_path(top: str, environ: Mapping[str, str]) -> str | None:
    """Returns the policy file that counts, None if there is none.

    A file that the environment names counts, whether it exists or not. A link out of the tree is a
    `ConfigError`.
    """
    named = environ.get(POLICY_VARIABLE)
    if named:
        return os.path.abspath(named)
    path = os.path.join(top, POLICY_FILE)
    if not os.path.lexists(path):
        return None
    expect_within(
        path, top, f"an allowlist is a file of the project; {POLICY_VARIABLE} names another"
    )
    return path


def expect_within(path: str, top: str, hint: str) -> None:
    """Raise `ConfigError` if a symbolic link leads out of a directory: that was not reviewed."""
    tree, real = os.path.realpath(top), os.path.realpath(path)
    if os.path.commonpath((tree, real)) != tree:
        message = f"leads out of {top!r}, to {real!r}"
        raise ConfigError((Diagnostic("outside", path, "", message, hint),))


def locks_all(environ: Mapping[str, str]) -> bool:
    """Whether the environment of the launcher locks every run."""
    return environ.get(LOCKED_VARIABLE, "").strip().lower() not in _NO


_MOST_LINES = 50  # lines of each kind


@dataclass(eq=False)
class PlanRefused(LaunchError):
    """What would run was not reviewed, or is not allowed; nothing was started.

    ``changes`` are from the lock's plan to the run's. ``renew`` is the command that writes the lock
    anew, or empty.
    """

    lock: str = ""
    changes: tuple[Change, ...] = ()
    problems: tuple[Diagnostic, ...] = ()
    renew: str = ""
    exit_code = ExitCode.REFUSED

    def __str__(self) -> str:
        from lllaunch.documents import text_lines  # noqa: PLC0415 - if something is wrong

        lines = []
        if self.changes:
            lines.append(f"the plan is not the reviewed one, {self.lock}:")
            lines += [f"  {line}" for line in text_lines(self.changes, _MOST_LINES)]
        if self.problems:
            lines.append("this may not run:")
            lines += [f"  {problem}" for problem in self.problems[:_MOST_LINES]]
            more = len(self.problems) - _MOST_LINES
            lines += [f"  ... and {more} more"] if more > 0 else []
        if self.renew:
            lines.append(f"if this is what shall run, have the lock reviewed anew: {self.renew}")
        return "\n".join(lines) or "the plan is refused"
