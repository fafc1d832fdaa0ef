"""Several jobs of a sweep in one batch job: the scheduler of a machine, in an allocation."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import lllaunch.sweep.schedule as v
from lllaunch.app.batch_job import begin, enter_code, note, perform, read_run, redirect
from lllaunch.config.plan import complete
from lllaunch.console.sweep import SweepConsole
from lllaunch.console.wording import counted
from lllaunch.exit_codes import ExitCode
from lllaunch.results.store import read_overrides
from lllaunch.run.submission import (
    LOG,
    BatchEnded,
    BatchJob,
    Requeued,
    Submission,
    account_of,
    append,
)
from lllaunch.signal_source import STACKS_ON, SignalSource
from lllaunch.spawner.forks import NOTICE
from lllaunch.sweep.arrays import ArrayJob, need_in_task
from lllaunch.sweep.leases import Leases
from lllaunch.sweep.loop import Sweep
from lllaunch.sweep.machine import SweepMachine, find_machine
from lllaunch.sweep.policy import Retries, SweepPolicy
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.protocol import Prepared
from lllaunch.sweep.spawner_pool import SpawnerPool
from lllaunch.text import first_line

if TYPE_CHECKING:
    from lllaunch.spawner.client import Spawner

# What an allocation may compute on, which the affinity of its processes need not say.
_CORES = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")
_THREADS = "OMP_NUM_THREADS"


def run_pack(task: Sequence[ArrayJob], batch: BatchJob, submission: Submission) -> int:
    """Run jobs side by side on what the allocation has.

    Args:
        task: the jobs.
        batch: the batch job.
        submission: of the task.

    Returns:
        0 if all have succeeded.

    Raises:
        LaunchError: they could not be run.
    """
    # those that were over before the task was taken back are not run again
    left = [job for job in task if not _is_over(job.directory)]
    if left:
        enter_code(read_run(left[0].directory)[0].cwd, batch.snapshot)
        machine = find_machine(os.environ, None, _cores())
        _Pack(left, machine, batch, submission).run()
    batch.ran = True
    codes = [_code_of(job.directory) for job in task]
    if None in codes:
        # a signal, which has ended what ran
        return 128 + 15
    return int(ExitCode.SWEEP if any(codes) else ExitCode.SUCCESS)


def _is_over(directory: str) -> bool:
    return isinstance(account_of(directory).last, BatchEnded)


def _code_of(directory: str) -> int | None:
    """Return the exit code of a job that is over, else None."""
    last = account_of(directory).last
    return last.exit_code if isinstance(last, BatchEnded) else None


def _cores() -> int | None:
    """Return how many cores the allocation has here; None if it does not say."""
    texts = (os.environ.get(name, "") for name in _CORES)
    allowed = len(os.sched_getaffinity(0))
    return next((min(allowed, int(text)) for text in texts if text.isdecimal()), None)


class _Pack:
    def __init__(
        self,
        jobs: Sequence[ArrayJob],
        machine: SweepMachine,
        batch: BatchJob,
        submission: Submission,
    ) -> None:
        self._jobs = {job.number: job for job in jobs}
        self._machine = machine
        self._batch = batch
        self._submission = submission

    def run(self) -> None:
        """Run all of them, or until a signal comes."""
        retries = dict.fromkeys(Retries._fields, 0) | dict(self._submission.limits.retries)
        policy = SweepPolicy(retries=Retries(**retries))
        leases, spawners = Leases(self._machine), SpawnerPool(dict(os.environ))
        console = SweepConsole(live=False, machine=_text(self._machine))
        source = SignalSource(
            quiet=STACKS_ON, notice=NOTICE, noticed=self._batch.signalled, stops=True
        )

        def observe(event: object) -> None:
            self._note(event)
            console.observe(event)

        try:
            with source as signals:
                if self._batch.early is not None:
                    signal.raise_signal(self._batch.early)
                console.began(self._batch.directory, len(self._jobs), self._label, policy=policy)
                Sweep(
                    self._machine,
                    policy,
                    leases,
                    None,
                    self._prepare,
                    self._execute,
                    observe,
                    [*self._jobs],
                    warm=spawners,
                    label=self._label,
                    full=console.awaited,
                    signals=signals,
                ).run()
        finally:
            console.close()
            leases.close()
            spawners.close()

    def _note(self, event: object) -> None:
        """Write down of a job that it has failed, and whether it is tried again."""
        if isinstance(event, v.Retry) and event.cause is not None:
            append(self._jobs[event.number].directory, Requeued("failed", "lllaunch", event.cause))
        elif isinstance(event, v.Settle) and event.state is v.JobState.FAILED:
            code = event.exit_code or int(ExitCode.ERROR)
            append(self._jobs[event.number].directory, BatchEnded(code, first_line(event.why)))

    def _label(self, number: int) -> Sequence[str]:
        return read_overrides(self._jobs[number].directory)

    def _prepare(self, number: int) -> Prepared:
        """In the process of a job: read what it is."""
        job = self._jobs[number]
        again, function = read_run(job.directory)
        launch = complete(again.plan)["launch"]
        gpus, cpus = len(self._machine.gpus), len(self._machine.cpus)
        snapshot, warm = self._batch.snapshot, job.warm
        if snapshot is not None and warm is not None:
            warm = warm._replace(cwd=snapshot.place(warm.cwd))
        return Prepared(
            need=need_in_task(launch, gpus, cpus),
            overrides=tuple(self._label(number)),
            directory=job.directory,
            payload=(again, function),
            warm=warm,
        )

    def _execute(self, prepared: Prepared, lease: Lease, spawner: Spawner | None) -> int:
        """In the process of a job: run it; return its exit code."""
        directory, payload = prepared.directory, cast("Any", prepared.payload)
        again, function = payload
        redirect(os.path.join(directory, LOG))
        nproc = complete(again.plan)["launch"]["nproc"]
        if lease.cpus and isinstance(nproc, int) and _THREADS not in os.environ:
            os.environ[_THREADS] = str(max(1, len(lease.cpus) // nproc))
        batch = BatchJob(
            directory,
            account_of(directory),
            self._batch.end_time,
            continues=account_of(directory).starts > 0,
            snapshot=self._batch.snapshot,
            overrides=read_overrides(directory),
        )
        begin(batch, self._submission.job, None)
        code = perform(batch, again, function, spawner)
        if code == 0:
            note(batch, BatchEnded(code))
        sys.stdout.flush()
        return code


def _text(machine: SweepMachine) -> str:
    parts = [counted(len(machine.gpus), "GPU")] if machine.gpus else []
    return ", ".join([*parts, counted(len(machine.cpus), "core")])
