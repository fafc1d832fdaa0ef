"""Judges one attempt: which failure came first, and what became of every worker. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lllaunch.run.causes import (
    Cause,
    ExitedNonZero,
    HungInKernel,
    KilledBySignal,
    NotPicklableReturn,
    OutOfMemory,
    PreloadFailure,
    Raised,
    SpawnerLost,
    StartFailure,
)
from lllaunch.run.fates import Ended, Failed, Fate, Lost, NotStarted, Succeeded, Victim
from lllaunch.run.outcome import AttemptOutcome, AttemptState, RootCause, WorkerOutcome
from lllaunch.run.postmortem import Evidence, Explanation, explain

if TYPE_CHECKING:
    from lllaunch.run.records import AttemptRecord, WorkerRecord

_SIGKILL = 9

# What a worker says whose peer is gone (gloo, NCCL, TCPStore, plain sockets). Such a failure can
# be written down before the spawner reaps the peer: the kernel closes a dying process's sockets
# first and lets its parent know last.
_LOST_PEER = re.compile(
    r"connection (was )?(reset|closed|aborted|refused)|broken pipe|socket (was )?closed"
    r"|remote (process|peer) (has )?(exited|closed)"
    r"|DistNetworkError|ncclRemoteError|recvValue failed",
    re.IGNORECASE,
)
_LOST_PEER_WINDOW_NS = 5_000_000_000


def judge_attempt(record: AttemptRecord, *, interrupted: bool = False) -> AttemptOutcome:
    """Decides what became of an attempt and each of its workers.

    Args:
        record: what was seen of it.
        interrupted: whether a signal to the launcher ended it.
    """
    failures = {
        worker.local_rank: failure
        for worker in record.workers
        if (failure := _failure_of(worker, record)) is not None
    }
    root = _root_of_group(record) if not failures else None
    first = _first(failures)
    if first is not None:
        root = _root_of_worker(record, record.workers[_index(record, first)], failures[first])
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


def _index(record: AttemptRecord, local_rank: int) -> int:
    return next(i for i, worker in enumerate(record.workers) if worker.local_rank == local_rank)


def _first(failures: dict[int, Failed]) -> int | None:
    """Returns the local rank of the first failure in time, None if there is none.

    One exception: a worker that says it lost its peer is not first if a peer failed for a reason
    of its own at about the same time.
    """
    if not failures:
        return None

    def by_time(rank: int) -> tuple[int, int]:
        return failures[rank].time_ns, rank

    first = min(failures, key=by_time)
    if not _lost_peer(failures[first].cause):
        return first
    latest = failures[first].time_ns + _LOST_PEER_WINDOW_NS
    own = [
        rank
        for rank, failure in failures.items()
        if not _lost_peer(failure.cause) and failure.time_ns <= latest
    ]
    return min(own, key=by_time, default=first)


def _lost_peer(cause: Cause) -> bool:
    return isinstance(cause, Raised) and _LOST_PEER.search(cause.message) is not None


def _failed_at(worker: WorkerRecord) -> int | None:
    """Returns when a worker failed by itself, None if it did not."""
    if worker.start_failed is not None:
        return worker.start_failed.time_ns
    if worker.exited is None or worker.exited.exitcode == 0:
        return None
    at = worker.exited.time_ns
    said = worker.error.time_ns if worker.error else None
    # a clock that was set, a file that was copied: nobody fails before they start
    if said is not None and (worker.started is None or said >= worker.started.time_ns):
        at = min(at, said)
    if worker.sent and at >= worker.sent[0].time_ns:
        return None
    return at


def _failure_of(worker: WorkerRecord, record: AttemptRecord) -> Failed | None:
    at = _failed_at(worker)
    if at is None:
        return None
    explanation = explain(_evidence(worker, record))
    return Failed(_cause(worker, explanation), at, explanation)


def _evidence(worker: WorkerRecord, record: AttemptRecord) -> Evidence:
    exited = worker.exited
    unexplained = sum(
        1
        for each in record.workers
        if each.exited is not None
        and each.exited.exitcode == -_SIGKILL
        and _failed_at(each) is not None
    )
    return Evidence(
        exitcode=exited.exitcode if exited else 0,
        # a worker that failed by itself did so before anything was sent to it
        sent=(),
        max_rss=exited.max_rss if exited else 0,
        before=record.memory,
        after=worker.memory,
        unexplained=max(1, unexplained),
    )


def _cause(worker: WorkerRecord, explanation: Explanation | None) -> Cause:
    if worker.start_failed is not None:
        fact = worker.start_failed
        return StartFailure(fact.path, fact.reason, fact.errno)
    assert worker.exited is not None
    exited = worker.exited
    if worker.error is not None:
        return _cause_of_error(worker.error.message, exited.exitcode)
    if exited.exitcode > 0:
        return ExitedNonZero(exited.exitcode)
    if explanation and explanation.suspect == "oom" and explanation.sure != "possible":
        return OutOfMemory(exited.max_rss, worker.memory.limit)
    return KilledBySignal(-exited.exitcode, exited.core_dumped)


def _cause_of_error(message: str, exitcode: int) -> Cause:
    kind, _, rest = message.partition(": ")
    if kind.rpartition(".")[2] == "NotPicklable" and rest.startswith("the return value"):
        return NotPicklableReturn(rest.partition("cannot be pickled: ")[2] or rest)
    return Raised(message, exitcode)


def _root_of_worker(record: AttemptRecord, worker: WorkerRecord, failure: Failed) -> RootCause:
    return RootCause(
        attempt=record.number,
        rank=worker.rank,
        local_rank=worker.local_rank,
        cause=failure.cause,
        time_ns=failure.time_ns,
        explanation=failure.explanation,
        traceback=worker.error.traceback if worker.error else "",
        files=worker.files,
    )


def _root_of_group(record: AttemptRecord) -> RootCause | None:
    """Returns the failure that struck all at once, None if there was none."""
    if record.broken is not None:
        fact = record.broken
        cause: Cause = PreloadFailure(fact.module, fact.reason)
        return RootCause(record.number, None, None, cause, record.ended_ns, None, fact.traceback)
    if record.stuck:
        return RootCause(record.number, None, None, HungInKernel(), record.ended_ns)
    if record.died is None:
        return None
    died = record.died
    cause = SpawnerLost(died.pid, died.status, died.detail)
    explanation = None
    if died.status:
        explanation = explain(Evidence(died.status, before=record.memory, after=record.died_memory))
    return RootCause(record.number, None, None, cause, record.died_ns, explanation, died.detail)


def _fate(
    worker: WorkerRecord, record: AttemptRecord, failure: Failed | None, root: RootCause | None
) -> Fate:
    if failure is not None:
        if root is None or root.local_rank == worker.local_rank:
            return failure
        after = max(0, failure.time_ns - root.time_ns)
        return Victim(failure.cause, failure.time_ns, after, failure.explanation)
    if worker.exited is None:
        return _unseen(worker, record)
    exited = worker.exited
    if worker.sent and exited.time_ns >= worker.sent[0].time_ns:
        sent = tuple(each.signum for each in worker.sent)
        signum = -exited.exitcode if -exited.exitcode in sent else sent[-1]
        return Ended(signum, exited.exitcode, sent)
    return Succeeded()


def _unseen(worker: WorkerRecord, record: AttemptRecord) -> Fate:
    """What became of a worker whose end was not seen."""
    if record.died is not None:  # it may have been started without our hearing of it
        return Lost("spawner")
    if worker.started is None:
        return NotStarted()
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
