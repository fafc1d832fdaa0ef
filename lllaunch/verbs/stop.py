"""``python -m lllaunch stop RUN``: ends a run of another terminal, as Ctrl-C there would."""

from __future__ import annotations

import argparse
import os
import signal
from typing import TYPE_CHECKING

from lllaunch.console.wording import shown_path
from lllaunch.linux.process import send_signal, wait_readable
from lllaunch.results.store import LATEST, NoSuchRun, entry_of, holder, is_held, locate, lock_of
from lllaunch.run.lock import open_launcher
from lllaunch.verbs.printing import Parser, perform, print_lines
from lllaunch.verbs.wait import entry_now, outcome_text, until_released

if TYPE_CHECKING:
    from collections.abc import Sequence

_DESCRIPTION = """\
Ends a run or a sweep: its launcher gets SIGTERM, and does what it does at Ctrl-C. The workers get
the signal, and launch.grace_period to save what they have. Returns when it is over.

RUN is the directory of a run, of a job of a sweep, or of a sweep; the end of its path; or 'latest',
the default: what was started last from here."""
# Between two signals with --now, seconds: those that come at once are one.
_PAUSE = 0.2


def main(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code.

    Args:
        argv: what follows it on the command line.
    """
    return perform(_parser(), argv, _stop)


def _parser() -> argparse.ArgumentParser:
    parser = Parser("stop", _DESCRIPTION)
    parser.add_argument(
        "run", metavar="RUN", nargs="?", default=LATEST, help="what is ended; default: latest"
    )
    parser.add_argument(
        "--now", action="store_true", help="kill the workers, without the grace period"
    )
    return parser


def _stop(given: argparse.Namespace) -> None:
    found = locate(given.run)
    lock = lock_of(found.kind, found.path)
    where = shown_path(os.path.abspath(found.path), os.getcwd())
    held = is_held(lock)
    if held is False:
        print_lines([f"{where}: is over: {outcome_text(entry_of(found))}"])
        return
    pidfd = open_launcher(lock)
    if pidfd is None and held is None:
        raise NoSuchRun(where, "may be running or not: its lock cannot be looked at")
    if pidfd is None:
        known = holder(lock)
        reason = f"is held by {known}" if known else "is held by an unknown process"
        raise NoSuchRun(where, reason, "that is none of this machine; stop it there")
    try:
        send_signal(pidfd, signal.SIGTERM)
        # The second one says that it is meant. When the end is written one would end the launcher.
        while given.now and not wait_readable(pidfd, _PAUSE):
            if entry_now(found).exit_code is None:
                send_signal(pidfd, signal.SIGTERM)
    finally:
        os.close(pidfd)
    until_released(lock)
    print_lines([f"{where}: {outcome_text(entry_now(found))}"])
