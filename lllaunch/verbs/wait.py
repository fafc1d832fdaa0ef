"""``python -m lllaunch wait RUN``: waits for a run of another terminal, and exits as it does."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from lllaunch.errors import ExitCode, OutputError
from lllaunch.files import open_file
from lllaunch.locks import is_held
from lllaunch.results.locate import entry_now, jobs_of, locate
from lllaunch.results.store import BatchQueue, ListEntry, lock_of
from lllaunch.run.submission import BatchEnded, account_of
from lllaunch.text import duration
from lllaunch.verbs.printing import Parser, complain, perform, print_lines
from lllaunch.words import MEANINGS, shown_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lllaunch.results.store import FoundDirectory

_DESCRIPTION = """\
Wait until a run or a sweep has finished, print its result in one line, and exit with its code."""

# Between two questions to a cluster, seconds: at first, and at most.
_PAUSE, _LONGEST_PAUSE = 1.0, 10.0
# A batch job that is gone from the queue without a word is so at so many looks.
_LOOKS = 3


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code: that of the run."""
    parser = Parser("wait", _DESCRIPTION)
    parser.add_run()
    return perform(parser, argv, _wait)


def _wait(given: argparse.Namespace) -> int:
    found = locate(given.run)
    entry = until_over(found)
    where = shown_path(os.path.abspath(found.path), os.getcwd())
    print_lines([f"{where}: {outcome_text(entry)}"])
    return ExitCode.ERROR if entry.exit_code is None else entry.exit_code


def until_over(
    found: FoundDirectory, look: Callable[[ListEntry, BatchQueue], object] | None = None
) -> ListEntry:
    """Wait until a run or a sweep is over, here or on a cluster; return what became of it.

    `look` is called with what is known of it and the queue, each time that a cluster was asked.

    Raises:
        OutputError: as `until_released` has it.
    """
    queue, pause = BatchQueue(), _PAUSE
    lock = lock_of(found.kind, found.path)
    gone, silent = 0, False
    while True:
        queue.forget()
        entry = entry_now(found, queue)
        if entry.queue:
            gone = 0
            if look is not None:
                look(entry, queue)
            if not queue.answers and not silent:
                silent = True
                complain("Slurm cannot be asked; waiting until the files of the run say its end")
        elif look is not None and entry.kind == "sweep" and is_held(lock):
            # its launcher may submit more, which is to be looked at
            gone = 0
        else:
            if not entry.batch_job:
                until_released(lock)
                entry = entry_now(found, queue)
            if not entry.queue:
                gone += 1
                if gone >= _LOOKS or not _may_come_back(entry, queue):
                    return entry
        # nobody tells of a change there, and its scheduler is not to be asked too often
        time.sleep(pause)
        pause = min(1.2 * pause, _LONGEST_PAUSE)


def _may_come_back(entry: ListEntry, queue: BatchQueue) -> bool:
    """Return whether a batch job is gone without a word: one that is put back is for a moment."""
    jobs = jobs_of(entry, queue) if entry.kind == "sweep" else [entry]
    return any(
        job.batch_job and not isinstance(account_of(job.path).last, BatchEnded) for job in jobs
    )


def until_released(lock: str) -> None:
    """Wait until nobody holds a lock, which launcher, spawner and jobs do while they live.

    The kernel wakes this up; to share a lock that is free for a moment keeps no launcher out.

    Raises:
        OutputError: the file system knows no locks, so that nobody can tell.
    """
    try:
        fd = open_file(lock)
    except FileNotFoundError:
        return  # it never began, or it is long over
    except OSError as error:
        raise OutputError(lock, error.strerror or str(error)) from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
        except OSError as error:
            reason = f"nobody can tell when it is released: {error.strerror}"
            raise OutputError(lock, reason) from error


def outcome_text(entry: ListEntry) -> str:
    """Return what became of a run or a sweep, after how long and why."""
    took = "" if entry.seconds is None else f" after {duration(entry.seconds)}"
    starts = "" if entry.batch is None else entry.batch.text
    again = f"; starts: {starts}" if starts else ""
    if entry.exit_code is None:
        return f"{entry.state}{took}: {entry.root_cause or MEANINGS[entry.state]}{again}"
    text = entry.state if not entry.exit_code else f"{entry.state}, exit code {entry.exit_code}"
    cause = f": {entry.root_cause}" if entry.root_cause else ""
    return f"{text}{took}{cause}{again}"
