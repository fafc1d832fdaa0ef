"""Before Hydra is imported: the spawner's interpreter is started, if there will be a run."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from lllaunch.interrupts import remember_interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.spawner.client import Spawner

# Hydra's flags that show something and run nothing.
_ASKING = {
    *("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--version"),
    *("--shell-completion", "-sc"),
}


def only_asks(argv: Sequence[str]) -> bool:
    """Whether a command line of Hydra's asks for information instead of a run."""
    return any(argument.partition("=")[0] in _ASKING for argument in argv)


def prestarted(argv: Sequence[str]) -> Spawner | None:
    """A spawner whose interpreter is starting.

    None if ``argv`` asks for no run, or if there is no room for another process; what is in the way
    is reported when the run needs it.
    """
    remember_interrupts()
    if only_asks(argv):
        return None
    from lllaunch.spawner.client import Spawner  # noqa: PLC0415 - not needed by --cfg and the like

    with contextlib.suppress(OSError):
        return Spawner.prestart()
    return None
