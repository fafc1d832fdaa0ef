"""Exit codes of ``python -m lllaunch``, as docs/reference/exit-codes.md lists them."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the launcher's exit status means; 128+N stands for 'ended by signal N' beside these."""

    SUCCESS = 0
    """Every worker of the last attempt succeeded."""

    ERROR = 1
    """Hydra could not compose the config, or lllaunch itself failed."""

    CONFIG = 2
    """The ``launch`` config is wrong; nothing was started."""

    WORKERS_FAILED = 3
    """Workers failed and no attempt is left."""

    WATCHDOG = 4
    """The watchdog ended the run: a hang, a time limit or a memory limit."""

    REFUSED = 5
    """The plan is not the reviewed one, or not allowed; nothing was started."""

    SWEEP = 6
    """A sweep finished, and not all of its jobs succeeded."""

    NO_PROGRESS = 7
    """Several attempts in a row failed and got no further: trying again is no use."""


def for_signal(signum: int) -> int:
    """Returns the exit code of a run that signal ``signum`` ended: 128 + ``signum``."""
    return 128 + signum
