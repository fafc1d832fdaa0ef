"""How a sweep that cannot begin, or fails itself, ends the app."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from lllaunch.app.ci import tell_ci_error
from lllaunch.app.ending import AppEnded
from lllaunch.app.variables import without_variables
from lllaunch.errors import LaunchError


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Says what is wrong and ends the app with its exit code when the block raises a `LaunchError`.

    Hydra would end every app with 1 and put its own advice below the message; it lets SystemExit
    pass.

    Raises:
        AppEnded: as said.
    """
    try:
        yield
    except LaunchError as error:
        from lllaunch.console.console import Console  # noqa: PLC0415 - only if something is wrong

        console = Console()
        console.hide(without_variables)
        console.error(error)
        tell_ci_error(error, without_variables)
        raise AppEnded(int(error.exit_code)) from error
