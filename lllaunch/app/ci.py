"""Continuous integration is told what became of a run or a sweep, where there is any."""

from __future__ import annotations

import os


def tell_ci(directory: str) -> None:
    """Annotates and summarises the step of GitHub Actions that this process runs in, if any.

    Args:
        directory: of the run or sweep.
    """
    if _in_ci():
        from lllaunch.reports.announce import announce  # noqa: PLC0415 - in CI only

        announce(directory, os.environ)


def tell_ci_error(message: str) -> None:
    """The same with why nothing was run."""
    if _in_ci():
        from lllaunch.reports.announce import announce_error  # noqa: PLC0415 - in CI only

        announce_error(message, os.environ)


def _in_ci() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"
