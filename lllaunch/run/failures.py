"""How one worker failed by itself, and which failure of several came first. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lllaunch.run.causes import (
    Cause,
    ExitedNonZero,
    KilledBySignal,
    NotPicklableReturn,
    OutOfMemory,
    Raised,
    StartFailure,
)
from lllaunch.run.fates import Failed
from lllaunch.run.postmortem import Evidence, Explanation, explain

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def failure_of(worker: WorkerRecord, record: AttemptRecord) -> Failed | None:
    """Returns how and when a worker failed by itself, None if it did not.

    Args:
        worker: what was seen of it.
        record: what was seen of its attempt.
    """
    at = _failed_at(worker)
    if at is None:
        return None
    # One that raised and was ended by us later needs no other explanation.
    explanation = None if was_asked(worker) else explain(_evidence(worker, record))
    return Failed(_cause(worker, explanation), at, explanation)


def was_asked(worker: WorkerRecord) -> bool:
    """Whether a worker ended after the launcher had sent it a signal."""
    if worker.exited is None or not worker.sent:
        return False
    return worker.exited.time_ns >= worker.sent[0].time_ns


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


def _evidence(worker: WorkerRecord, record: AttemptRecord) -> Evidence:
    exited = worker.exited
    unexplained = sum(
        1
        for each in record.workers
        if each.exited is not None and each.exited.exitcode == -_SIGKILL and not was_asked(each)
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
    if _out_of_memory(explanation):
        return OutOfMemory(exited.max_rss, worker.memory.limit)
    return KilledBySignal(-exited.exitcode, exited.core_dumped)


def _cause_of_error(message: str, exitcode: int) -> Cause:
    kind, _, rest = message.partition(": ")
    if kind.rpartition(".")[2] == "NotPicklable" and rest.startswith("the return value"):
        return NotPicklableReturn(rest.partition("cannot be pickled: ")[2] or rest)
    return Raised(message, exitcode)


def _out_of_memory(explanation: Explanation | None) -> bool:
    if explanation is None or explanation.suspect != "oom":
        return False
    return explanation.sure != "possible"


def was_out_of_memory(worker: WorkerRecord, record: AttemptRecord) -> bool:
    """Tells whether a lack of memory ended a worker, certainly or likely.

    Args:
        worker: what was seen of it.
        record: what was seen of its attempt.
    """
    return not was_asked(worker) and _out_of_memory(explain(_evidence(worker, record)))


def first_of(failures: Mapping[int, Failed]) -> int | None:
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
