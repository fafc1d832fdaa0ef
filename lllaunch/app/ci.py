"""Continuous integration is told what became of a run or a sweep, where there is any."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from lllaunch.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.errors import LaunchError, Problem


def tell_ci(directory: str) -> None:
    """Annotates and summarises the step of GitHub Actions that this process runs in, if any.

    Args:
        directory: of the run or sweep.
    """
    if _in_ci():
        from lllaunch.reports.announce import announce  # noqa: PLC0415 - in CI only

        announce(directory, os.environ)


def tell_ci_error(error: LaunchError | str, hide: Callable[[str], str]) -> None:
    """The same with why nothing was run: what stands in a file is annotated there.

    Args:
        error: what is wrong, or a message that says it.
        hide: takes secrets out of texts.
    """
    if _in_ci():
        from lllaunch.reports.announce import announce_error  # noqa: PLC0415 - in CI only

        found: tuple[Problem, ...] = getattr(error, "problems", ())
        placed = [problem for problem in found if problem.file and "://" not in problem.file]
        lines = [(p.file, p.line, hide(str(replace(p, file="", line=0)))) for p in placed]
        rest = _rest(error, placed) if placed else str(error)
        announce_error(hide(rest), os.environ, lines)


def _rest(error: LaunchError | str, placed: list[Problem]) -> str:
    """Return what an error says beside some of its problems."""
    from lllaunch.review.refused import PlanRefused  # noqa: PLC0415 - in CI only

    if not isinstance(error, (ConfigError, PlanRefused)):
        return str(error)  # says, too, what the problems are of
    left = replace(error, problems=tuple(each for each in error.problems if each not in placed))
    return str(left) if left.problems or getattr(left, "changes", ()) else ""


def _in_ci() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"
