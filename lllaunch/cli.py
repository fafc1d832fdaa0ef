"""The command line: ``python -m lllaunch`` and ``lllaunch``."""

from __future__ import annotations

import gc
import os
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
    first = sys.argv[1] if sys.argv[1:] else ""
    if first in VERBS:
        return _perform(first, sys.argv[2:])
    if first.isalpha():
        return _misspelt(first)
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
    except BrokenPipeError:
        # of what Hydra shows nobody reads on; nothing is running
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
        return 0
    finally:
        if spawner is not None:
            spawner.close()


def _misspelt(word: str) -> int:
    from lllaunch.config.suggest import did_you_mean, one_of  # noqa: PLC0415 - only if one is

    hint = did_you_mean(word, VERBS)
    text = f"lllaunch: {word!r} is no verb ({one_of(VERBS)}) and no override"
    print(f"{text}; {hint}" if hint else text, file=sys.stderr)
    return 2


def _perform(verb: str, argv: list[str]) -> int:
    try:
        return int(import_module(f"lllaunch.verbs.{verb}").main(argv))
    except KeyboardInterrupt:
        return for_signal(_SIGINT)
