"""How one worker failed by itself, and which failure of several came first. Pure."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from lllaunch.run.causes import (
    CalledExit,
    Cause,
    DiskFull,
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

    from lllaunch.run.records import AttemptRecord, ExitCall, WorkerRecord

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
LOST_PEER_WINDOW_NS = 5_000_000_000


def failure_of(worker: WorkerRecord, record: AttemptRecord) -> Failed | None:
    """Returns how and when a worker failed by itself, None if it did not.

    Args:
        worker: what was seen of it.
        record: what was seen of its attempt.
    """
    at = _failed_at(worker, record)
    if at is None:
        return None
    # One that raised and was ended by us later needs no other explanation.
    explanation = None if was_asked(worker) else explain(_evidence(worker, record))
    return Failed(cause_of(worker, explanation), at, explanation)


def was_asked(worker: WorkerRecord) -> bool:
    """Whether a worker ended after the launcher had sent it a signal."""
    if worker.exited is None or not worker.sent:
        return False
    return worker.exited.time_ns >= worker.sent[0].time_ns


def _failed_at(worker: WorkerRecord, record: AttemptRecord) -> int | None:
    """Returns when a worker failed by itself, None if it did not."""
    if worker.start_failed is not None:
        return worker.start_failed.time_ns
    if worker.exited is None or worker.exited.exitcode == 0:
        return None
    at = worker.exited.time_ns
    said = worker.error.time_ns if worker.error else None
    # A clock that was set, a file that was copied: nobody fails before the attempt begins. They may
    # before their own start is noted, which the spawner does when it has forked.
    if said is not None and said >= record.started_ns:
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
        unexplained=unexplained,
        said=worker.error.message if worker.error else "",
        disk=worker.disk,
        master_port=record.master_port,
    )


def cause_of(worker: WorkerRecord, explanation: Explanation | None = None) -> Cause:
    """Returns how a worker failed that did, or that could not be started.

    Args:
        worker: what was seen of it.
        explanation: what can be said beyond its status, or None.
    """
    if worker.start_failed is not None:
        fact = worker.start_failed
        return StartFailure(fact.path, fact.reason, fact.errno)
    assert worker.exited is not None
    exited, message = worker.exited, worker.error.message if worker.error else ""
    if _out_of_memory(explanation):
        return OutOfMemory(exited.max_rss, worker.memory.limit, message)
    if worker.error is not None:
        return _cause_of_error(message, exited.exitcode)
    if exited.exitcode < 0:
        return KilledBySignal(-exited.exitcode, exited.core_dumped)
    disk = worker.disk
    if disk is not None and disk.full:
        return DiskFull(exited.exitcode, disk.directory, disk.total, disk.free)
    return _cause_of_status(exited.exitcode, worker.exit_call)


def _cause_of_error(message: str, exitcode: int) -> Cause:
    kind, _, rest = message.partition(": ")
    if kind.rpartition(".")[2] == "NotPicklable" and rest.startswith("the return value"):
        return NotPicklableReturn(rest.partition("cannot be pickled: ")[2] or rest)
    return Raised(message, exitcode)


def _cause_of_status(exitcode: int, call: ExitCall | None) -> Cause:
    # a thread, or a function called at the end, may have ended it with another status
    if call is None or (isinstance(call.code, int) and call.code & 0xFF != exitcode):
        return ExitedNonZero(exitcode)
    argument = str(call.code)
    if isinstance(call.code, str):
        argument = repr(textwrap.shorten(call.code.partition("\n")[0], 60, placeholder="..."))
    return CalledExit(exitcode, argument, call.file, call.line, call.function)


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
    if not lost_peer(failures[first].cause):
        return first
    latest = failures[first].time_ns + LOST_PEER_WINDOW_NS
    own = [
        rank
        for rank, failure in failures.items()
        if not lost_peer(failure.cause) and failure.time_ns <= latest
    ]
    return min(own, key=by_time, default=first)


def lost_peer(cause: Cause) -> bool:
    """Whether all that a worker says is that its connection to another one broke."""
    return isinstance(cause, Raised) and _LOST_PEER.search(cause.message) is not None
