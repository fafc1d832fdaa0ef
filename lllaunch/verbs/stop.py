"""``python -m lllaunch stop RUN``: ends a run of another terminal, as Ctrl-C there would."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from typing import TYPE_CHECKING

from lllaunch.linux.process import send_signal, wait_readable
from lllaunch.locks import holder, is_held, open_launcher
from lllaunch.results.locate import NoSuchRun, entry_now, jobs_of, locate
from lllaunch.results.store import NO_ANSWER, BatchQueue, cancelled, lock_of
from lllaunch.run.submission import BatchEnded, account_of, append, read_history
from lllaunch.sweep.journal import ARRAYS
from lllaunch.verbs.printing import Parser, perform, print_lines
from lllaunch.verbs.wait import outcome_text, until_over, until_released
from lllaunch.words import counted, shown_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.results.store import FoundDirectory, ListEntry

_DESCRIPTION = """\
Stop a run or a sweep as Ctrl-C would: workers get SIGTERM and have launch.grace_period to save
their state. The command returns when the run is over.

For a run on a cluster, the batch job is cancelled. Slurm kills what still runs after its
KillWait."""
# Between two signals with --now, seconds: those that come at once are one.
_PAUSE = 0.2


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("stop", _DESCRIPTION)
    parser.add_run()
    parser.add_argument(
        "--now", action="store_true", help="kill the workers without a grace period"
    )
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
