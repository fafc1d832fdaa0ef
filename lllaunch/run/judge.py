"""Judges one attempt: which failure came first, and what became of every worker. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lllaunch.run.causes import (
    CalledExit,
    Cause,
    DiskFull,
    HungInKernel,
    LeftEarly,
    PreloadFailure,
    Raised,
    SpawnerLost,
    alike,
)
from lllaunch.run.failures import (
    LOST_PEER_WINDOW_NS,
    cause_of,
    failure_of,
    first_of,
    lost_peer,
    was_asked,
)
from lllaunch.run.fates import Ended, Failed, Fate, Lost, NotStarted, Succeeded, Victim
from lllaunch.run.outcome import AttemptOutcome, AttemptState, RootCause, WorkerOutcome
from lllaunch.run.postmortem import Evidence, explain
from lllaunch.run.records import NOWHERE
from lllaunch.run.tracebacks import called, users_call
from lllaunch.watchdog.stacks.parse import crash_frames

if TYPE_CHECKING:
    from lllaunch.run.hang import Hang
    from lllaunch.run.records import AttemptRecord, WorkerRecord


# What tracebacks have in common that come out of collective operations.
_OF_COLLECTIVES = re.compile(r"/torch/distributed/|/torch/nn/parallel/|/horovod/|/mpi4py/")


def judge_attempt(record: AttemptRecord, *, interrupted: bool = False) -> AttemptOutcome:
    """Decides what became of an attempt and each of its workers.

    Args:
        record: what was seen of it.
        interrupted: whether a signal to the launcher ended it.
    """
    failures = {
        worker.local_rank: failure
        for worker in record.workers
        if (failure := failure_of(worker, record)) is not None
    }
    hang = _hang(record)
    root = _root(record, failures, hang)
    workers = tuple(
        _outcome(worker, _fate(worker, record, failures.get(worker.local_rank), root))
        for worker in record.workers
    )
    return AttemptOutcome(
        number=record.number,
        restart_count=record.restart_count,
        path=record.path,
        state=_state(workers, root, interrupted),
        started_ns=record.started_ns,
        ended_ns=record.ended_ns,
        workers=workers,
        root_cause=root,
        leftovers=record.leftovers,
    )


def _state(
    workers: tuple[WorkerOutcome, ...], root: RootCause | None, interrupted: bool
) -> AttemptState:
    if root is not None:
        return "failed"
    if workers and all(isinstance(worker.fate, Succeeded) for worker in workers):
        return "succeeded"
    return "stopped" if interrupted else "failed"


def _hang(record: AttemptRecord) -> Hang | None:
    """Returns what the watchdog found, None if the attempt did not end for it."""
    if record.finding is None or all(_succeeded(worker) for worker in record.workers):
        return None
    from lllaunch.run.hang import hang_of  # noqa: PLC0415 - only where something was found

    return hang_of(record)


def _succeeded(worker: WorkerRecord) -> bool:
    return worker.exited is not None and worker.exited.exitcode == 0 and not was_asked(worker)


def _root(
    record: AttemptRecord, failures: dict[int, Failed], hang: Hang | None
) -> RootCause | None:
    """Returns what came first: a failure, a finding of the watchdog, or the end of all at once."""
    own = {
        rank: failure
        for rank, failure in failures.items()
        if hang is None or failure.time_ns < hang.time_ns
    }
    first = first_of(own)
    if first is not None:
        left = _left_early(record, own, first)
        return left or _root_of_worker(record, _worker(record, first), own[first], hang)
    return _root_of_group(record) if hang is None else _root_of_hang(record, hang)


def _worker(record: AttemptRecord, local_rank: int) -> WorkerRecord:
    return next(worker for worker in record.workers if worker.local_rank == local_rank)


def _root_of_worker(
    record: AttemptRecord, worker: WorkerRecord, failure: Failed, hang: Hang | None
) -> RootCause:
    return RootCause(
        attempt=record.number,
        rank=worker.rank,
        local_rank=worker.local_rank,
        cause=failure.cause,
        time_ns=failure.time_ns,
        explanation=failure.explanation,
        traceback=worker.error.traceback if worker.error else "",
        files=worker.files,
        hang=hang,
        frames=crash_frames(worker.crash),
        shown=worker.shown,
    )


def _left_early(record: AttemptRecord, failures: dict[int, Failed], first: int) -> RootCause | None:
    """Returns as the cause who ended with success while others were in a collective operation.

    All that those say is that their connections broke. Where most have ended with success, it is
    rather who goes on that does one operation too many.
    """
    failure, worker = failures[first], _worker(record, first)
    said = worker.error
    if said is None or not lost_peer(failure.cause) or not _OF_COLLECTIVES.search(said.traceback):
        return None
    left = [
        each
        for each in record.workers
        # the kernel lets a parent know of an end last
        if each.exited and _succeeded(each)
        if each.exited.time_ns <= failure.time_ns + LOST_PEER_WINDOW_NS
    ]
    if not left or 2 * len(left) > len(record.workers):
        return None
    last = max(left, key=lambda each: each.exited.time_ns if each.exited else 0)
    assert last.exited is not None
    call = users_call(said.traceback)
    begun = last.started.time_ns if last.started else record.started_ns
    others = tuple(each.rank for each in record.workers if each not in left)
    cause = LeftEarly(
        ran_seconds=max(0, last.exited.time_ns - begun) / 1e9,
        before_ns=failure.time_ns - last.exited.time_ns,
        others=others,
        call=called(said.traceback),
        file=call.file if call else "",
        line=call.line if call else 0,
    )
    return RootCause(record.number, last.rank, last.local_rank, cause, last.exited.time_ns)


def _root_of_hang(record: AttemptRecord, hang: Hang) -> RootCause:
    """Returns what the watchdog found as the failure of the one that hangs, or of all."""
    worker = None
    if len(hang.blamed) == 1:
        worker = next((each for each in record.workers if each.rank == hang.blamed[0]), None)
    return RootCause(
        attempt=record.number,
        rank=worker.rank if worker else None,
        local_rank=worker.local_rank if worker else None,
        cause=hang.finding,
        time_ns=hang.time_ns,
        files=worker.files if worker else NOWHERE,
        hang=hang,
    )


def _root_of_group(record: AttemptRecord) -> RootCause | None:
    """Returns the failure that struck all at once, None if there was none."""
    if record.broken is not None:
        fact = record.broken
        cause: Cause = PreloadFailure(fact.module, fact.reason)
        return RootCause(record.number, None, None, cause, record.ended_ns, None, fact.traceback)
    if record.stuck:
        return RootCause(record.number, None, None, HungInKernel(), record.ended_ns)
    if all(_succeeded(worker) for worker in record.workers):
        # what the spawner had left to do was to end what they left behind
        return None
    died = record.died
    if died is None:
        return None
    if died.killed and not any(worker.started for worker in record.workers):
        # nobody waits for imports when a run ends, and why it ends is told
        return None
    cause = SpawnerLost(died.pid, died.status, died.detail)
    explanation = None
    if died.status:
        explanation = explain(
            Evidence(died.status, died.sent, before=record.memory, after=record.died_memory)
        )
    return RootCause(record.number, None, None, cause, record.died_ns, explanation, died.detail)


def _fate(
    worker: WorkerRecord, record: AttemptRecord, failure: Failed | None, root: RootCause | None
) -> Fate:
    hang = root.hang if root is not None and root.of_watchdog else None
    if hang is not None and worker.rank in hang.blamed and _was_seen_failing(worker):
        return Failed(hang.finding, hang.time_ns)
    if failure is not None:
        if root is None or root.local_rank == worker.local_rank:
            return failure
        after = max(0, failure.time_ns - root.time_ns)
        return Victim(failure.cause, failure.time_ns, after, failure.explanation)
    if worker.exited is None:
        return _unseen(worker, record)
    if not was_asked(worker):
        return Succeeded()
    return _failed_alike(worker, root) or _ended(worker, hang)


def _failed_alike(worker: WorkerRecord, root: RootCause | None) -> Victim | None:
    """Returns the failure of one that failed as the first did, before it noticed what it was sent.

    An exit status alone does not tell that: it may be the answer to the signal.
    """
    if root is None or not worker.exited or not worker.exited.exitcode:
        return None
    cause = cause_of(worker)
    # a handler of the signal may have called sys.exit elsewhere
    same = cause == root.cause if isinstance(cause, CalledExit) else alike(cause, root.cause)
    if not isinstance(cause, Raised | CalledExit | DiskFull) or not same:
        return None
    said = worker.error.time_ns if worker.error else None
    at = said or worker.exited.time_ns
    return Victim(cause, at, max(0, at - root.time_ns))


def _ended(worker: WorkerRecord, hang: Hang | None) -> Ended:
    assert worker.exited is not None
    exited, sent = worker.exited, tuple(each.signum for each in worker.sent)
    signum = -exited.exitcode if -exited.exitcode in sent else sent[-1]
    waited = hang is not None and worker.rank in hang.waiting
    return Ended(signum, exited.exitcode, sent, hang.blamed if hang and waited else ())


def _was_seen_failing(worker: WorkerRecord) -> bool:
    """Whether it is known how a worker ended, and that it was not a success."""
    return worker.exited is not None and not _succeeded(worker)


def _unseen(worker: WorkerRecord, record: AttemptRecord) -> Fate:
    """What became of a worker whose end was not seen."""
    died = record.died
    if worker.started is None and (died is None or died.killed):
        return NotStarted()
    if died is not None:  # it may have been started without our hearing of it
        return Lost("spawner")
    return Lost("kernel" if worker.abandoned else "error")


def _outcome(worker: WorkerRecord, fate: Fate) -> WorkerOutcome:
    started, exited = worker.started, worker.exited
    return WorkerOutcome(
        local_rank=worker.local_rank,
        rank=worker.rank,
        fate=fate,
        files=worker.files,
        pid=started.pid if started else exited.pid if exited else None,
        exitcode=exited.exitcode if exited else None,
        started_ns=started.time_ns if started else None,
        ended_ns=exited.time_ns if exited else None,
        max_rss=exited.max_rss if exited else 0,
        cpu_seconds=exited.cpu_seconds if exited else 0.0,
        traceback=worker.error.traceback if worker.error else "",
    )
