"""The error of a run that is not the reviewed one, or not an allowed one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lllaunch.difference import Change, text_lines
from lllaunch.errors import Diagnostic, LaunchError
from lllaunch.exit_codes import ExitCode

_MOST = 50  # lines of each kind


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
    exit_code: ClassVar[int] = ExitCode.REFUSED

    def __str__(self) -> str:
        lines = []
        if self.changes:
            lines.append(f"the plan is not the reviewed one, {self.lock}:")
            lines += [f"  {line}" for line in text_lines(self.changes, _MOST)]
        if self.problems:
            lines.append("this may not run:")
            lines += [f"  {problem}" for problem in self.problems[:_MOST]]
            more = len(self.problems) - _MOST
            lines += [f"  ... and {more} more"] if more > 0 else []
        if self.renew:
            lines.append(f"if this is what shall run, have the lock reviewed anew: {self.renew}")
        return "\n".join(lines) or "the plan is refused"
