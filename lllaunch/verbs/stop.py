"""The end of a run of another terminal: ``stop RUN`` is as Ctrl-C there, ``wait RUN`` waits."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import time
from typing import TYPE_CHECKING

from lllaunch.errors import ExitCode, OutputError
from lllaunch.files import open_file
from lllaunch.linux.process import send_signal, wait_readable
from lllaunch.locks import holder, is_held, open_launcher
from lllaunch.results.locate import NoSuchRun, entry_now, jobs_of, locate
from lllaunch.results.store import NO_ANSWER, BatchQueue, ListEntry, cancelled, lock_of
from lllaunch.run.submission import BatchEnded, account_of, append, read_history
from lllaunch.sweep.journal import ARRAYS
from lllaunch.text import duration
from lllaunch.verbs.printing import Parser, complain, perform, print_lines
from lllaunch.words import MEANINGS, counted, shown_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lllaunch.results.store import FoundDirectory, ListEntry


_STOP = """\
Stop a run or a sweep as Ctrl-C would: workers get SIGTERM and have launch.grace_period to save
their state. The command returns when the run is over.

For a run on a cluster, the batch job is cancelled. Slurm kills what still runs after its
KillWait."""
# Between two signals with --now, seconds: those that come at once are one.
_PAUSE = 0.2


def stop(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("stop", _STOP)
    parser.add_run()
    parser.add_flags(now="kill the workers without a grace period")
    return perform(parser, argv, _stop)


def _stop(given: argparse.Namespace) -> None:
    found, now = locate(given.run), given.now
    lock = lock_of(found.kind, found.path)
    where = shown_path(os.path.abspath(found.path), os.getcwd())
    queue = BatchQueue()
    entry, held = entry_now(found, queue), is_held(lock)
    arrays = found.kind == "sweep" and os.path.isdir(os.path.join(found.path, ARRAYS))
    submits = held and arrays
    if not entry.queue and not submits and (entry.batch_job or held is False):
        print_lines([f"{where}: is over: {outcome_text(entry_now(found, queue))}"])
        return
    if submits:
        # it would submit more; one of another machine is followed while it does
        with contextlib.suppress(NoSuchRun):
            _end_launcher(found, lock, where, now=False)
    elif not entry.queue:
        _end_launcher(found, lock, where, now=now)
    if not entry.queue or submits:
        # it may have been submitted meanwhile
        queue.forget()
        entry = entry_now(found, queue)
    if entry.queue:
        _cancel(found, where, queue, now=now)
        entry = until_over(found)
    print_lines([f"{where}: {outcome_text(entry)}"])


def _end_launcher(found: FoundDirectory, lock: str, where: str, *, now: bool) -> None:
    """End the launcher of a run or a sweep, and wait until it is gone; `now` without grace."""
    pidfd = open_launcher(lock)
    if pidfd is None:
        if is_held(lock) is None:
            raise NoSuchRun(where, "may be running or not: its lock cannot be looked at")
        reason = f"is held by {holder(lock) or 'an unknown process'}"
        raise NoSuchRun(where, reason, "that is none of this machine; stop it there")
    try:
        send_signal(pidfd, signal.SIGTERM)
        # The second one says that it is meant. When the end is written one would end the launcher.
        while now and not wait_readable(pidfd, _PAUSE):
            if entry_now(found).exit_code is None:
                send_signal(pidfd, signal.SIGTERM)
    finally:
        os.close(pidfd)
    until_released(lock)


def _cancel(found: FoundDirectory, where: str, queue: BatchQueue, *, now: bool) -> None:
    """Cancel the batch jobs of a run or a sweep, and wait until they are over."""
    from lllaunch.cluster import slurm  # noqa: PLC0415 - most runs are of this machine

    entry = entry_now(found, queue)
    if NO_ANSWER in entry.queue:
        raise NoSuchRun(where, "is on a cluster, and Slurm cannot be asked", "stop it from there")
    others = _others_of(entry, queue) if entry.kind == "run" else 0
    if others:
        reason = f"shares its batch job with {counted(others, 'other')}"
        hint = f"stop the sweep, or end all of these with 'scancel {entry.batch_job}'"
        raise NoSuchRun(where, reason, hint)
    cancelled_at: dict[str, int] = {}
    paths: dict[str, None] = {}

    def cancel(entry: ListEntry, queue: BatchQueue) -> None:
        """Cancel what goes on, once for each time that it came into the queue."""
        every = [*jobs_of(entry, queue)] if entry.kind == "sweep" else [entry]
        jobs = [job for job in every if job.queue and job.batch_job]
        paths.update((job.path, None) for job in jobs)
        times = {job.batch_job: account_of(job.path).requeues for job in jobs}
        due = [job for job in jobs if cancelled_at.get(job.batch_job) != times[job.batch_job]]
        running = {job.batch_job for job in due if job.state == "running"}
        if running and now:
            # Their workers do not get the grace period. It is sent to the step that lllaunch runs
            # in: of a whole job Slurm makes SIGTERM of it, and kills after KillWait.
            slurm.cancel({f"{job}.0" for job in running}, signal="KILL")
        if due:
            slurm.cancel({job.batch_job for job in due})
        cancelled_at.update(times)

    until_over(found, cancel)
    for path in paths:
        # what had not started, or was killed at once, has not said how it ended
        history = read_history(path)
        if not history or not isinstance(history[-1][1], BatchEnded):
            append(path, cancelled(history))


def _others_of(entry: ListEntry, queue: BatchQueue) -> int:
    """Return how many other runs that are not over a run's batch job has."""
    from lllaunch.sweep.arrays import read_tasks  # noqa: PLC0415 - few are of an array

    _, separator, index = entry.batch_job.rpartition("_")
    if not separator:
        return 0
    job = queue.with_id(entry.batch_job)
    tasks = read_tasks(job.directory) if job is not None else ()
    task = tasks[int(index)] if int(index) < len(tasks) else ()
    own = os.path.realpath(entry.path)
    others = (job.directory for job in task if os.path.realpath(job.directory) != own)
    return sum(not isinstance(account_of(path).last, BatchEnded) for path in others)


_WAIT = """\
Wait until a run or a sweep has finished, print its result in one line, and exit with its code."""

# Between two questions to a cluster, seconds: at first, and at most.
_BETWEEN, _MOST_BETWEEN = 1.0, 10.0
# A batch job that is gone from the queue without a word is so at so many looks.
_LOOKS = 3


def wait(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code: that of the run."""
    parser = Parser("wait", _WAIT)
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
    """
    queue, pause = BatchQueue(), _BETWEEN
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
        pause = min(1.2 * pause, _MOST_BETWEEN)


def _may_come_back(entry: ListEntry, queue: BatchQueue) -> bool:
    """Return whether a batch job is gone without a word: one that is put back is for a moment."""
    jobs = jobs_of(entry, queue) if entry.kind == "sweep" else [entry]
    return any(
        job.batch_job and not isinstance(account_of(job.path).last, BatchEnded) for job in jobs
    )


def until_released(lock: str) -> None:
    """Wait until nobody holds a lock, which launcher, spawner and jobs do while they live.

    The kernel wakes this up; to share a lock that is free for a moment keeps no launcher out. An
    `OutputError` is of a file system that knows no locks.
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
