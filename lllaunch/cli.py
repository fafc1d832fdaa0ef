"""The command line: ``python -m lllaunch`` and ``lllaunch``."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from lllaunch.app.early import prestarted
from lllaunch.exit_codes import for_signal

if TYPE_CHECKING:
    from lllaunch.spawner.client import Spawner

_SIGINT = 2


def main() -> int:
    """Runs ``python -m lllaunch`` on ``sys.argv`` and returns its exit code."""
    spawner: Spawner | None = None
    # imports and composing make next to no garbage, and looking for it takes a twentieth of their
    # time; the app enables collection again before it runs anything
    gc.disable()
    try:
        spawner = prestarted(sys.argv[1:])
        # imports Hydra, while the spawner's interpreter starts
        from lllaunch.app.command import run  # noqa: PLC0415

        return run(spawner)
    except KeyboardInterrupt:
        return for_signal(_SIGINT)
    finally:
        if spawner is not None:
            spawner.close()
