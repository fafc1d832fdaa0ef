"""Several jobs of a sweep in one batch job: the scheduler of a machine, in an allocation."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

import lllaunch.sweep.schedule as v
from lllaunch.app.batch import begin, end_of, enter_code, perform, redirect, spec_of
from lllaunch.config.plan import complete, read_plan
from lllaunch.console.sweep import Board, SweepConsole
from lllaunch.errors import ExitCode, LaunchError, for_signal
from lllaunch.results.store import read_overrides
from lllaunch.run.directory import PLAN
from lllaunch.run.execute import spawner_environment
from lllaunch.run.submission import (
    LOG,
    BatchEnded,
    BatchJob,
    Requeued,
    Submission,
    account_of,
    append,
)
from lllaunch.signal_source import QUIET, SignalSource
from lllaunch.spawner.forks import NOTICE
from lllaunch.spec import THREADS
from lllaunch.sweep.arrays import ArrayJob, need_in_task
from lllaunch.sweep.journal import Journal
from lllaunch.sweep.local import LocalExecutor
from lllaunch.sweep.loop import Onlooker, Sweep
from lllaunch.sweep.machine import Leases, SweepMachine, find_machine
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.processes import SpawnerPool, Work
from lllaunch.sweep.protocol import Prepared, SpawnerKey
from lllaunch.sweep.schedule import Retries, SweepPolicy
from lllaunch.text import first_line

if TYPE_CHECKING:
    from lllaunch.spawner.client import Spawner

# What an allocation may compute on, which the affinity of its processes need not say.
_CORES = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")


def run_pack(task: Sequence[ArrayJob], batch: BatchJob, submission: Submission) -> int:
    """Run jobs side by side on what the allocation has, or raise `LaunchError`."""
    # those that were over before the task was taken back are not run again
    left = [job for job in task if end_of(job.directory, account_of(job.directory)) is None]
    if left:
        enter_code(submission, left[0].directory)
        machine = find_machine(os.environ, None, _cores())
        _run(left, machine, batch, submission)
    batch.ran = True
    ends = [end_of(job.directory, account_of(job.directory)) for job in task]
    if None in ends:
        # a signal, which has ended what ran
        return for_signal(signal.SIGTERM)
    failed = any(end.exit_code for end in ends if end is not None)
    return int(ExitCode.SWEEP if failed else ExitCode.SUCCESS)


def _cores() -> int | None:
    """Return how many cores the allocation has here; None if it does not say."""
    texts = (os.environ.get(name, "") for name in _CORES)
    allowed = len(os.sched_getaffinity(0))
    return next((min(allowed, int(text)) for text in texts if text.isdecimal()), None)


def _run(
    task: Sequence[ArrayJob], machine: SweepMachine, batch: BatchJob, submission: Submission
) -> None:
    """Run all of them, or until a signal comes."""
    jobs = {job.number: job for job in task}

    def label(number: int) -> Sequence[str]:
        return read_overrides(jobs[number].directory)

    def prepare(number: int) -> Prepared:
        """In the process of a job: read what it is."""
        directory, outer = jobs[number].directory, dict(os.environ)
        launch = complete(read_plan(os.path.join(directory, PLAN)))["launch"]
        need = need_in_task(launch, len(machine.gpus), len(machine.cpus))
        if need.cpus and isinstance(launch["nproc"], int):
            # each worker has as many threads as are there for it
            os.environ.setdefault(THREADS, str(max(1, need.cpus // launch["nproc"])))
        spec, warm = None, None
        # a spawner that is not what the run asks for after all costs time only, and so does none
        with contextlib.suppress(LaunchError):
            spec = spec_of(directory)
            place = spec.spawner_cwd or spec.cwd
            warm = SpawnerKey.of(spec.imports, place, spawner_environment(spec), outer)
        return Prepared(number, need, tuple(label(number)), directory, payload=spec, warm=warm)

    def execute(prepared: Prepared, _: Lease, spawner: Spawner | None) -> int:
        """In the process of a job: run it; return its exit code."""
        directory = prepared.directory
        redirect(os.path.join(directory, LOG))
        account = account_of(directory)
        own = BatchJob(
            directory,
            account,
            continues=account.starts > 0,
            snapshot=batch.snapshot,
        )
        begin(own, submission.job, None)
        code = perform(own, submission, spawner, prepared.payload)
        if code == 0:
            own.note(BatchEnded(code))
        return code

    def observe(event: object) -> None:
        """Write down of a job that it has failed, and whether it is tried again."""
        if isinstance(event, v.Retry) and event.cause is not None:
            append(jobs[event.number].directory, Requeued("failed", "lllaunch", event.cause))
        elif isinstance(event, v.Settle) and event.state is v.JobState.FAILED:
            code = event.exit_code or int(ExitCode.ERROR)
            append(jobs[event.number].directory, BatchEnded(code, first_line(event.why)))
        console.observe(event)

    none = dict.fromkeys(Retries._fields, 0)
    policy = SweepPolicy(retries=Retries(**{**none, **submission.retries}))
    leases, spawners = Leases(machine), SpawnerPool(dict(os.environ))
    console = SweepConsole(live=False, machine=str(machine))
    try:
        with SignalSource(
            quiet=QUIET, notice=NOTICE, noticed=batch.signalled, stops=True
        ) as signals:
            if batch.early is not None:
                signal.raise_signal(batch.early)
            console.began(Board(batch.directory, len(jobs), label, policy=policy))
            executor = LocalExecutor(Work(prepare, execute, machine, spawners), leases)
            onlooker = Onlooker(observe, console.tick_in, console.awaited)
            Sweep(executor, policy, Journal(), onlooker, [*jobs], signals).run()
    finally:
        console.close()
        leases.close()
        spawners.close()
