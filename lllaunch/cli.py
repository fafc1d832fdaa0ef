"""The command line: ``python -m lllaunch`` and ``lllaunch``."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from lllaunch.app.early import prestarted
from lllaunch.exit_codes import for_signal

if TYPE_CHECKING:
    from lllaunch.spawner.client import Spawner

_SIGINT = 2
# Beside to run: what the command line may begin with. No override is a word alone.
VERBS = ("check", "ls", "plan", "report", "rerun", "show")


def main() -> int:
    """Runs ``python -m lllaunch`` on ``sys.argv`` and returns its exit code."""
    if sys.argv[1:] and sys.argv[1] in VERBS:
        return _perform(sys.argv[1], sys.argv[2:])
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


def _perform(verb: str, argv: list[str]) -> int:
    try:
        return int(import_module(f"lllaunch.verbs.{verb}").main(argv))
    except KeyboardInterrupt:
        return for_signal(_SIGINT)
