"""Judges an attempt: how workers failed, which failure came first, what became of each. Pure.

The result of a run is made from those of its attempts.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from lllaunch.documents import signal_name
from lllaunch.errors import ExitCode, for_signal
from lllaunch.events import Exited, StartFailed
from lllaunch.run.excerpts import blocks, called, users_call
from lllaunch.run.observer import SentSignal, WorkerRecord
from lllaunch.run.result import (
    AttemptResult,
    AttemptState,
    CalledExit,
    Cause,
    DeviceOutOfMemory,
    Differed,
    DiskFull,
    Ended,
    ExitedNonZero,
    Explanation,
    Failed,
    Hang,
    HungInKernel,
    KilledBySignal,
    LeftEarly,
    Lost,
    NodeGone,
    NodesJoined,
    NotPicklableReturn,
    NotStarted,
    OnAnotherNode,
    OutOfMemory,
    PreflightFailure,
    PreloadFailure,
    Raised,
    RootCause,
    RunResult,
    RunState,
    SpawnerLost,
    StartFailure,
    Succeeded,
    Sure,
    Suspect,
    Victim,
    alike,
)
from lllaunch.text import duration, size, spans, times
from lllaunch.watchdog.evidence import NOBODY, RankStack, Waits, is_own
from lllaunch.watchdog.findings import Stalled, gave_up, is_of_all, lasted, suspects

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lllaunch.linux.cgroup import Memory
    from lllaunch.run.observer import AttemptRecord
    from lllaunch.run.result import AnyWorker, Cause
    from lllaunch.supervisor.machine import GroupStacks, NoProgress, Reason
    from lllaunch.watchdog.evidence import Blame, Disagreement, RankTrace
    from lllaunch.watchdog.findings import Finding


# What a worker says whose peer is gone (gloo, NCCL, TCPStore, plain sockets). Such a failure can
# be written down before the spawner reaps the peer: the kernel closes a dying process's sockets
# first and lets its parent know last.
_LOST_PEER = re.compile(
    r"connection (was )?(reset|closed|aborted|refused)|broken pipe|socket (was )?closed"
    r"|remote (process|peer) (has )?(exited|closed)"
    r"|DistNetworkError|ncclRemoteError|recvValue failed",
    re.IGNORECASE,
)
# It says so of a peer if it comes out of a collective operation or the store: where it was raised,
# or in its message, where that was native code.
_OF_PEERS = re.compile(
    r"/torch/distributed/|/torch/nn/parallel/|/horovod/|/mpi4py/"
    r"|gloo/transport|nccl|ProcessGroup|TCPStore|DistNetworkError|recvValue",
    re.IGNORECASE,
)
# What torch (CUDA, HIP, XPU, MPS), CuPy and JAX say when an allocation on a device fails.
_NO_DEVICE_MEMORY = re.compile(
    r"[\w.]+: (CUDA|HIP|XPU|MPS backend) (error: )?out of memory"
    r"|[\w.]*OutOfMemoryError: (Allocation on device|Out of memory allocating)"
    r"|[\w.]+: RESOURCE_EXHAUSTED: Out of memory"
)
LOST_PEER_WINDOW_NS = 5_000_000_000


def failure_of(worker: WorkerRecord, record: AttemptRecord) -> RootCause | None:
    """Return how a worker failed by itself, None if it did not."""
    if worker.start_failed is not None:
        at = worker.start_failed.time_ns
    elif worker.exited is None or worker.exited.exitcode == 0:
        return None
    else:
        at = worker.exited.time_ns
        said = worker.error.time_ns if worker.error else None
        # A clock that was set, a file that was copied: nobody fails before the attempt begins. They
        # may before their own start is noted, which the spawner does when it has forked.
        if said is not None and said >= record.started_ns:
            at = min(at, said)
        if worker.sent and at >= worker.sent[0].time_ns:
            return None
    # One that raised and was ended by us later needs no other explanation.
    explanation = None if worker.was_asked else explain(worker, record)
    return RootCause(
        attempt=record.number,
        rank=worker.rank,
        local_rank=worker.local_rank,
        cause=cause_of(worker, explanation),
        time_ns=at,
        explanation=explanation,
        traceback=worker.error.traceback if worker.error else "",
        stderr=worker.files.stderr,
        frames=worker.crash,
        shown=worker.shown,
    )


def cause_of(worker: WorkerRecord, explanation: Explanation | None = None) -> Cause:
    """Return how a worker failed that did, or that could not be started."""
    if worker.start_failed is not None:
        fact = worker.start_failed
        return StartFailure(fact.path, fact.reason, fact.errno)
    assert worker.exited is not None
    exited, message = worker.exited, worker.error.message if worker.error else ""
    if explanation is not None and explanation.suspect == "oom" and explanation.sure != "possible":
        return OutOfMemory(exited.max_rss, worker.memory.limit, message)
    if worker.error is not None:
        kind, _, rest = message.partition(": ")
        if kind.rpartition(".")[2] == "NotPicklable" and rest.startswith("the return value"):
            return NotPicklableReturn(rest.partition("cannot be pickled: ")[2] or rest)
        raised = DeviceOutOfMemory if _NO_DEVICE_MEMORY.match(message) else Raised
        return raised(message, exited.exitcode)
    if exited.exitcode < 0:
        return KilledBySignal(-exited.exitcode, exited.core_dumped)
    return worker.disk or worker.exit_call or ExitedNonZero(exited.exitcode)


def was_out_of_memory(worker: WorkerRecord, record: AttemptRecord) -> bool:
    """Whether a lack of memory ended a worker, certainly or likely."""
    if worker.was_asked:
        return False
    cause = cause_of(worker, explain(worker, record))
    return isinstance(cause, OutOfMemory | DeviceOutOfMemory)


def _first_of(failures: Mapping[int, RootCause], lost: Collection[int]) -> RootCause | None:
    """Return the first failure in time, None if there is none.

    One exception: a worker that says it lost its peer is not first if a peer failed for a reason
    of its own at about the same time.
    """
    by_time = sorted(failures.values(), key=lambda each: (each.time_ns, each.rank or 0))
    if not by_time or by_time[0].local_rank not in lost:
        return by_time[0] if by_time else None
    latest = by_time[0].time_ns + LOST_PEER_WINDOW_NS
    own = (each for each in by_time if each.local_rank not in lost and each.time_ns <= latest)
    return next(own, by_time[0])


def _lost_peer(failure: RootCause) -> bool:
    """Whether all that a worker says is that its connection to another one broke."""
    cause = failure.cause
    if not isinstance(cause, Raised) or not _LOST_PEER.search(cause.message):
        return False
    return _OF_PEERS.search(f"{failure.traceback}\n{cause.message}") is not None


def judge_attempt(record: AttemptRecord, *, interrupted: bool = False) -> AttemptResult:
    """Decide what became of an attempt, which a signal to the launcher may have interrupted."""
    failures = {
        worker.local_rank: failure
        for worker in record.workers
        if (failure := failure_of(worker, record)) is not None
    }
    hang = None if all(worker.succeeded for worker in record.workers) else record.hang
    root = next(filter(None, _roots(record, failures, hang)), None)
    workers = tuple(
        _judged(worker, record, failures.get(worker.local_rank), root) for worker in record.workers
    )
    state: AttemptState = "stopped" if interrupted else "failed"
    if root is not None:
        state = "stopped" if isinstance(root.cause, NodesJoined) else "failed"
    elif workers and all(isinstance(worker, Succeeded) for worker in workers):
        state = "succeeded"
    return AttemptResult(
        number=record.number,
        restart_count=record.restart_count,
        path=record.path,
        state=state,
        started_ns=record.started_ns,
        ended_ns=record.ended_ns,
        workers=workers,
        root_cause=root,
        leftovers=record.leftovers,
    )


def summarize(
    attempts: Sequence[AttemptResult],
    *,
    signum: int | None = None,
    reason: Reason | None = None,
    limit: Finding | None = None,
    no_progress: NoProgress | None = None,
    **more: Any,
) -> RunResult:
    """Make the result of a run from its attempts; the last one decides.

    ``signum`` ended the run, if not None. The rest is as in `RunObserver`.
    """
    last = attempts[-1] if attempts else None
    root = last.root_cause if last else None
    hang = None if root is None else root.hang
    state: RunState = "failed"
    exit_code: int = ExitCode.WORKERS_FAILED
    # the kernel may have ended it for want of memory
    if reason in ("hang", "timeout") or (reason == "oom" and hang is not None):
        exit_code = ExitCode.WATCHDOG
    if no_progress is not None:
        exit_code = ExitCode.NO_PROGRESS
    if signum is not None:
        state, exit_code = "signalled", for_signal(signum)
    elif last is not None and last.state == "succeeded":
        state, exit_code = "succeeded", ExitCode.SUCCESS
    ended_for_limit = hang is not None and hang.finding == limit
    return RunResult(
        state=state,
        exit_code=int(exit_code),
        attempts=tuple(attempts),
        root_cause=root,
        signum=signum,
        limit=limit if reason == "timeout" and not ended_for_limit else None,
        no_progress=no_progress,
        **more,
    )


def _roots(
    record: AttemptRecord, failures: dict[int, RootCause], hang: Hang | None
) -> Iterator[RootCause | None]:
    """Yield what may have come first, as far as it did: the first of these that is known counts."""
    own = {
        rank: failure
        for rank, failure in failures.items()
        if hang is None or failure.time_ns < hang.time_ns
    }
    lost = {rank for rank, failure in own.items() if _lost_peer(failure)}
    first = _first_of(own, lost)
    by_peer = first is not None and first.local_rank in lost
    gone, end = record.group_lost, record.group_end
    if gone is not None and (first is None or by_peer or isinstance(first.cause, KilledBySignal)):
        # Workers notice that they have lost others before it is known that a node is gone.
        times = (first.time_ns if first is not None else 0, end.time_ns if end is not None else 0)
        at = min(filter(None, times), default=record.ended_ns)
        yield _of_attempt(record, NodeGone(gone.node, gone.text), at)
    # what the watchdog of another node found is known as a finding here as well
    if hang is None:
        elsewhere, preflight = _root_of_nodes(record), _root_of_preflight(record)
        if preflight is not None:
            both = (preflight,) if elsewhere is None else (elsewhere, preflight)
            yield min(both, key=lambda each: each.time_ns)
        # Clocks differ by some milliseconds, and who lost a peer did not fail first.
        leeway = LOST_PEER_WINDOW_NS if by_peer else 0
        if elsewhere is not None and (
            first is None
            or isinstance(elsewhere.cause, NodesJoined)
            or elsewhere.time_ns <= first.time_ns + leeway
        ):
            yield elsewhere
    if first is not None:
        yield _waited_for(record, first)
        worker = next(each for each in record.workers if each.local_rank == first.local_rank)
        if by_peer:
            yield _left_early(record, first, worker.trace)
        collectives, explanation = _disagreement(record), first.explanation
        if collectives is not None and worker.misfit is not None:
            text = misfit_text(worker.misfit, f"rank {worker.rank}")
            explanation = Explanation("itself", "likely", text)
        odd = None if collectives is None else _odd_one(record, collectives)
        if odd is not None:
            first = replace(
                first,
                rank=odd.rank,
                local_rank=odd.local_rank,
                cause=Differed(),
                stderr=odd.files.stderr,
                traceback="",
                frames=(),
            )
        yield replace(first, hang=hang, collectives=collectives, explanation=explanation)
    yield _root_of_group(record) if hang is None else _root_of_hang(record, hang)


def _of_attempt(record: AttemptRecord, cause: Cause, time_ns: int, **more: Any) -> RootCause:
    """Return a cause that is not of one worker."""
    return RootCause(attempt=record.number, cause=cause, time_ns=time_ns, **more)


def _root_of_preflight(record: AttemptRecord) -> RootCause | None:
    """Return the failure of the preflight, None if it succeeded or something else ended it."""
    preflight = record.preflight
    end = None if preflight is None else preflight.exited or preflight.start_failed
    if preflight is None or end is None:
        return None
    command, at = preflight.command, end.time_ns
    if preflight.timed_out:
        cause = PreflightFailure(command, timeout=preflight.timeout)
        at = min([at, *(each.time_ns for each in preflight.sent)])
    elif isinstance(end, StartFailed):
        cause = PreflightFailure(command, reason=end.reason)
    elif end.exitcode == 0 or preflight.was_asked:
        return None
    else:
        cause = PreflightFailure(command, end.exitcode)
    return _of_attempt(record, cause, at, stderr=preflight.files.stderr)


def _root_of_nodes(record: AttemptRecord) -> RootCause | None:
    """Return what came from other nodes, None if nothing did."""
    end = record.group_end
    if end is None or (end.how in ("failed", "left") and end.here):
        return None
    cause: Cause
    if end.how == "joined":
        cause = NodesJoined()
    elif end.how == "failed":
        cause = OnAnotherNode(end.node, end.text)
    else:
        cause = NodeGone(end.node, end.text)
    return _of_attempt(record, cause, end.time_ns or record.ended_ns, rank=end.rank)


def _disagreement(record: AttemptRecord) -> Disagreement | None:
    """Return which collective the workers that failed had called in different ways, or None.

    Who only came to another one may have raised before it could come to the same.
    """
    traces = {each.rank: each.trace for each in record.workers if each.trace is not None}
    if not traces:
        return None
    from lllaunch.watchdog.collectives import compare, with_aborted  # noqa: PLC0415 - seldom

    places = {}
    for each in record.workers:
        if each.misfit is not None and each.rank not in traces:
            traces = with_aborted(traces, each.rank)
        call = users_call(each.error.traceback) if each.error is not None else None
        crashed = (frame for frame in each.crash if is_own(frame))
        at = call or next(crashed, None)
        if at is not None:
            places[each.rank] = f"{at.file}:{at.line}"
    found = compare(traces, places=places)
    return found if found is not None and found.kind in ("arguments", "operations") else None


def _odd_one(record: AttemptRecord, collectives: Disagreement) -> WorkerRecord | None:
    """Return the only worker that has called an operation in another way than all others."""
    odd, *others = collectives.parties
    alone = len(odd.ranks) == 1 < sum(len(party.ranks) for party in others)
    if collectives.kind != "arguments" or len(others) != 1 or not alone:
        return None
    return next((each for each in record.workers if each.rank == odd.ranks[0]), None)


def _left_early(
    record: AttemptRecord, failure: RootCause, trace: RankTrace | None
) -> RootCause | None:
    """Return as the cause who ended with success while others were in a collective operation.

    All that those say is that their connections broke. Where most have ended with success, it is
    rather who goes on that does one operation too many.
    """
    left = [
        (each.exited.time_ns, each)
        for each in record.workers
        # the kernel lets a parent know of an end last
        if each.exited and each.succeeded
        if each.exited.time_ns <= failure.time_ns + LOST_PEER_WINDOW_NS
    ]
    if not left:
        return None
    at, last = max(left, key=lambda each: each[0])
    call, operation = users_call(failure.traceback), ""
    if trace is not None:
        from lllaunch.watchdog.collectives import last_operation  # noqa: PLC0415 - seldom

        operation = last_operation(trace)
    early = {each.rank for _, each in left}
    if 2 * len(left) > len(record.workers):
        if not operation:
            return None
        text = f"It called {operation}, when ranks {spans(early)} had ended with success."
        return replace(failure, explanation=Explanation("itself", "likely", text))
    cause = LeftEarly(
        ran_seconds=record.ran_seconds(last),
        before_ns=failure.time_ns - at,
        others=tuple(each.rank for each in record.workers if each.rank not in early),
        call=called(failure.traceback),
        file=call.file if call else "",
        line=call.line if call else 0,
        operation=operation,
        left_file=last.exit_call.file if last.exit_call else "",
        left_line=last.exit_call.line if last.exit_call else 0,
    )
    return _of_attempt(record, cause, at, rank=last.rank, local_rank=last.local_rank)


def _waited_for(record: AttemptRecord, first: RootCause) -> RootCause | None:
    """Return who kept others waiting in a collective operation until they gave up, if that is so.

    Of those it is known where they raised, of the one where it stood then.
    """
    finding = gave_up(first.cause.message) if isinstance(first.cause, Raised) else None
    if finding is None or not record.looks:
        return None
    from lllaunch.watchdog.blame import blame  # noqa: PLC0415 - seldom

    stacks = {stack.rank: stack for stack in record.looks}
    for each in record.workers:
        if each.error is not None:
            calls = [call for block in blocks(each.error.traceback)[-1:] for call in block.calls]
            frames = tuple(reversed(calls))
            stacks[each.local_rank] = RankStack(each.local_rank, frames=frames, trace=each.trace)
    judged = blame([*stacks.values()], finding)
    if not judged.hung:
        return None
    hang = hang_of(record, finding, first.time_ns, [*stacks.values()], judged)
    return _root_of_hang(record, replace(hang, named=hang.hung))


def _root_of_hang(record: AttemptRecord, hang: Hang) -> RootCause:
    """Return what the watchdog found as the failure of the one that hangs, or of all."""
    worker = None
    if len(hang.blamed) == 1:
        worker = next((each for each in record.workers if each.rank == hang.blamed[0]), None)
    root = _of_attempt(record, hang.finding, hang.time_ns, hang=hang)
    if worker is None:
        return root
    whose: dict[str, Any] = {"rank": worker.rank, "local_rank": worker.local_rank}
    return replace(root, **whose, stderr=worker.files.stderr)


def _root_of_group(record: AttemptRecord) -> RootCause | None:
    """Return the failure that struck all at once, None if there was none."""
    if record.broken is not None:
        fact = record.broken
        cause = PreloadFailure(fact.module, fact.reason)
        return _of_attempt(record, cause, record.ended_ns, traceback=fact.traceback)
    if record.stuck:
        return _of_attempt(record, HungInKernel(), record.ended_ns)
    died = record.died
    if died is None or all(worker.succeeded for worker in record.workers):
        # what the spawner had left to do was to end what they left behind
        return None
    if died.killed and not any(worker.started for worker in record.workers):
        # nobody waits for imports when a run ends, and why it ends is told
        return None
    explanation = None
    if died.status:
        exited = Exited(-1, died.pid, died.status, record.died_ns)
        sent = tuple(SentSignal(signum, 0) for signum in died.sent)
        spawner = WorkerRecord(-1, -1, exited=exited, sent=sent, memory=record.died_memory)
        explanation = explain(spawner, record)
    return _of_attempt(
        record,
        SpawnerLost(died.pid, died.status, died.detail),
        record.died_ns,
        explanation=explanation,
        traceback=died.detail,
    )


def _judged(
    worker: WorkerRecord,
    record: AttemptRecord,
    failure: RootCause | None,
    root: RootCause | None,
) -> AnyWorker:
    """Return what became of a worker."""
    started, exited = worker.started, worker.exited
    seen: dict[str, Any] = {
        "local_rank": worker.local_rank,
        "rank": worker.rank,
        "pid": started.pid if started else exited.pid if exited else None,
        "exitcode": exited.exitcode if exited else None,
        "started_ns": started.time_ns if started else None,
        "ended_ns": exited.time_ns if exited else None,
        "max_rss": exited.max_rss if exited else 0,
        "cpu_seconds": exited.cpu_seconds if exited else 0.0,
        "stdout": worker.files.stdout,
        "stderr": worker.files.stderr,
        "error_file": worker.files.error if worker.error and worker.error.traceback else "",
        "stacks": worker.files.stacks,
        "progress": worker.progress,
    }
    hang = root.hang if root is not None and root.of_watchdog else None
    if hang is not None and worker.rank in hang.blamed and exited and not worker.succeeded:
        return Failed(**seen, cause=hang.finding)
    if failure is not None:
        why: dict[str, Any] = {"cause": failure.cause, "explanation": failure.explanation}
        if root is None or root.local_rank == worker.local_rank:
            return Failed(**seen, **why)
        after = max(0, failure.time_ns - root.time_ns) / 1e9
        return Victim(**seen, **why, seconds_after_root_cause=after)
    if exited is None:
        died = record.died
        if started is None and (died is None or died.killed):
            return NotStarted(**seen)
        if died is not None:  # it may have been started without our hearing of it
            return Lost(**seen, why="spawner")
        return Lost(**seen, why="kernel" if worker.abandoned else "error")
    if worker.succeeded:
        return Succeeded(**seen)
    if root is not None and _failed_alike(worker, root):
        said = worker.error.time_ns if worker.error else None
        after = max(0, (said or exited.time_ns) - root.time_ns) / 1e9
        return Victim(**seen, cause=cause_of(worker), seconds_after_root_cause=after)
    return Ended(
        **seen,
        sent=tuple(signal_name(each.signum) for each in worker.sent),
        waited_for=hang.blamed if hang is not None and worker.rank in hang.waiting else (),
    )


def _failed_alike(worker: WorkerRecord, root: RootCause) -> bool:
    """Whether a worker failed as the first did, before it noticed what it was sent.

    An exit status alone does not tell that: it may be the answer to the signal.
    """
    if not worker.exited or not worker.exited.exitcode:
        return False
    cause = cause_of(worker)
    if isinstance(cause, CalledExit):
        # a handler of the signal may have called sys.exit elsewhere
        return cause == root.cause
    return isinstance(cause, Raised | DiskFull) and alike(cause, root.cause)


# What the watchdog found, in terms of ranks among all workers


def hang_of(
    record: AttemptRecord,
    finding: Finding,
    time_ns: int,
    looks: Sequence[RankStack] = (),
    blame: Blame = NOBODY,
) -> Hang:
    """Return what the watchdog has found in an attempt.

    ``looks``: where the workers stand, as far as that could be found out. ``blame``: who hangs and
    who waits.
    """
    numbers = {worker.local_rank: worker.rank for worker in record.workers}

    def among_all(local_ranks: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(numbers.get(rank, rank) for rank in local_ranks))

    moved = (replace(each, rank=numbers.get(each.rank, each.rank)) for each in looks)
    stacks = {stack.rank: stack for stack in moved}
    asleep = {rank for rank, stack in stacks.items() if stack.state == "D"}
    stopped = {rank for rank, stack in stacks.items() if stack.state in ("T", "t")}
    if isinstance(finding, Stalled):
        asleep.update(among_all(finding.asleep))
        stopped.update(among_all(finding.stopped))
    seconds = lasted(finding)
    hung, left = blame.hung, {} if blame.hung else _left(record, looks)
    if not hung and not left and not (is_of_all(finding) and len(suspects(finding)) > 1):
        # Where all had to get nowhere, one may hang and the others wait for it.
        hung = suspects(finding)
    return Hang(
        finding=finding,
        time_ns=time_ns,
        since_ns=None if seconds is None else time_ns - int(seconds * 1e9),
        named=among_all(suspects(finding)),
        hung=among_all(hung),
        waiting=tuple(stacks) if left else among_all(blame.waiting),
        asleep=tuple(sorted(asleep)),
        stopped=tuple(sorted(stopped)),
        left=left,
        standing=tuple(stack for _, stack in sorted(stacks.items())),
        collectives=blame.collectives,
    )


def of_all_nodes(hang: Hang, group: GroupStacks) -> Hang:
    """Return the same with what is known of the workers of other nodes."""
    blame = group.blame
    if blame is None:
        return hang
    stacks = {**{stack.rank: stack for stack in group.stacks}, **hang.stacks}
    return replace(
        hang,
        hung=blame.hung,
        waiting=blame.waiting,
        standing=tuple(stack for _, stack in sorted(stacks.items())),
        nodes=dict(group.nodes),
        collectives=blame.collectives,
    )


def _left(record: AttemptRecord, looks: Sequence[RankStack]) -> dict[int, float]:
    """Return who had ended with success while all others wait for somebody, and after how long."""
    from lllaunch.watchdog.blame import waits  # noqa: PLC0415 - only where something was found

    if not looks or any(waits(stack.frames) is not Waits.SURELY for stack in looks):
        return {}
    return {
        worker.rank: record.ran_seconds(worker)
        for worker in record.workers
        if worker.exited is not None and worker.exited.exitcode == 0 and not worker.sent
    }


# What can be said about a worker's death beyond its status, and how sure that is. The memory
# counters in a record are read when the attempt starts and when the worker's end becomes known.
# Beside each rule stands the failure of benchmarks/diagnosis.py that shows it, by number or name;
# the others are shown by tests/unit/test_postmortem.py.

# Below this share of the limit a process is an unlikely choice of the OOM killer, which prefers
# the largest; above the second, a process that died of SIGKILL makes one think of memory.
_NOTABLE = 0.25
_NEAR_LIMIT = 0.8

# What is said of a process below that was killed: torch's DataLoader, subprocess, a shell.
_SAYS_KILLED = re.compile(r"killed by signal: Killed|SIGKILL|exit (?:code|status) (?:137|-9)\b")

_PORT_TAKEN = re.compile(
    r"(?=.*(?:EADDRINUSE|address already in use)).*?\bport:? (\d{1,5})\b", re.IGNORECASE | re.DOTALL
)
# What torch.save says, which tells nothing of a disk.
_CUT_SHORT = re.compile(r"unexpected pos \d+ vs \d+|PytorchStreamWriter failed writing file")
_NO_CUDA = re.compile(
    r"Torch not compiled with CUDA|'torch\._C' has no attribute '_cuda|torch\._C\._cuda"
)

# /dev/shm with less free than this is full: one tensor handed between processes needs more.
_SHM_FULL = 16 << 20

_BY_SIGNAL: dict[int, str] = {
    signal.SIGSEGV: "It touched memory that is not its own: usually a bug in native code "
    "(an extension, a driver) or a C stack that overflowed.",
    signal.SIGABRT: "It aborted itself: os.abort(), a failed assertion in native code, an uncaught "
    "C++ exception, or heap corruption.",
    signal.SIGILL: "It ran an instruction that this processor does not have: a library built for "
    "another machine.",
    signal.SIGFPE: "An integer division by zero, or an overflow of one, in native code.",
    signal.SIGSYS: "It made a system call that a seccomp filter (of its container) forbids.",
    signal.SIGPIPE: "It wrote to a pipe or socket whose other end was closed.",
    signal.SIGXCPU: "It used up the CPU time that a limit allows (ulimit -t).",
    signal.SIGXFSZ: "It wrote a file beyond the size that a limit allows (ulimit -f).",
    signal.SIGTRAP: "It ran into a breakpoint or a failed check in native code.",
    signal.SIGALRM: "An alarm that it had set for itself ran out, and it did not handle it.",
}

_ASKED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1}

_BY_STATUS: dict[int, str] = {
    126: "By a shell's convention 126 is 'found, but not executable': look at the file's mode and "
    "its #! line.",
    127: "By a shell's convention 127 is 'command not found'.",
}
_STRUCK = "The kernel's OOM killer struck {} during the attempt ({})"

_Rule: TypeAlias = tuple[object, Suspect, Sure, str]
"""Whether the evidence is so, and what follows then."""


def explain(worker: WorkerRecord, record: AttemptRecord) -> Explanation | None:
    """Return what probably ended a worker, or None where its status says all.

    The first rule that holds says it.
    """
    exitcode = worker.exited.exitcode if worker.exited else 0
    if exitcode >= 0:
        rules = _of_exit(exitcode, worker, record)
    elif exitcode == -signal.SIGKILL and not worker.was_asked:
        rules = _of_sigkill(worker, record)
    else:
        rules = _of_signal(-exitcode, worker)
    for holds, suspect, sure, text in rules:
        if holds:
            return Explanation(suspect, sure, text)
    return None


def _of_exit(status: int, worker: WorkerRecord, record: AttemptRecord) -> Iterator[_Rule]:
    """A worker that ended by itself, with what it raised."""
    said = worker.error.message if worker.error else ""
    killed = _grown(record.memory.cgroup_kills, worker.memory.cgroup_kills)
    bound, name = _bound(worker.memory)
    limit = f" ({name} is {size(bound)})" if bound else ""
    struck = _STRUCK.format("in this cgroup", times(killed or 0))
    # a DataLoader worker, a subprocess, that the kernel killed
    below = killed and _SAYS_KILLED.search(said) and killed > _unexplained(record)
    yield below, "oom", "certain", f"{struck}: it was a process that the worker had{limit}."
    yield killed, "oom", "possible", f"{struck}: perhaps a process that the worker had{limit}."
    text = "It could not write down why: the file system of its logs is full."
    yield worker.disk, "itself", "likely", text  # 12
    # MASTER_PORT is in use, the one that was given or one that the script has set
    taken, given = _PORT_TAKEN.search(said), record.master_port
    port = taken[1] if taken else ""
    own = f"; the launcher had given it MASTER_PORT={given}."
    whose = ", the MASTER_PORT that the launcher gave it." if port == given else own
    text = f"Somebody else listens on port {port}{whose}"
    yield port and given, "itself", "certain", text  # 16
    text = "The file could not be written whole: probably the disk that it is on is full."
    yield _CUT_SHORT.search(said), "itself", "likely", text  # full_disk
    text = "The torch that is installed is built without CUDA: it computes on the CPU only."
    yield _NO_CUDA.search(said), "itself", "likely", text  # no_cuda
    text = (
        "There is no GPU with the number that it asked for; launch.nproc=gpu starts one worker for "
        "each that is there."
    )
    yield "invalid device ordinal" in said, "itself", "certain", text
    failed = f"A check in a CUDA kernel failed, often of an index: {worker.kernel_check}."
    text = (
        f"{failed if worker.kernel_check else 'A CUDA kernel failed.'} Kernels run after their "
        "calls, so the place may be too late; launch.env.CUDA_LAUNCH_BLOCKING='1' makes it exact."
    )
    late = "kernel errors might be asynchronously reported" in said and "of memory" not in said
    yield late, "itself", "likely", text
    text = f"The gradient that is wrong is of the call at {worker.forward}."
    yield worker.forward, "itself", "certain", text  # anomaly
    if said:
        return
    yield status in _BY_STATUS, "itself", "possible", _BY_STATUS.get(status, "")
    signum = status - 128
    text = f"By a shell's convention {status} is 128 + {signum}: a child of it died of "
    hint = " That alone is no proof of a lack of memory." if signum == signal.SIGKILL else ""
    of_signal = signum in set(signal.Signals)
    yield of_signal, "itself", "possible", f"{text}{signal_name(signum)}.{hint}"


def _of_signal(signum: int, worker: WorkerRecord) -> Iterator[_Rule]:
    """A signal other than a SIGKILL from who knows where."""
    sent = worker.was_asked and any(each.signum == signum for each in worker.sent)
    yield sent, "launcher", "certain", f"The launcher sent it {signal_name(signum)}."
    text = (
        "A page of mapped memory could not be had: shared memory (/dev/shm) or a disk was full, "
        "or a mapped file was cut short."
    )
    free, total = worker.memory.shm_free, worker.memory.shm_total
    if signum == signal.SIGBUS and free is not None and total is not None:
        space = f"/dev/shm has {size(free)} of {size(total)} free"  # noqa: S108 - a message
        more = "Give it more (docker: --shm-size), or use fewer data loader workers."
        yield free < _SHM_FULL, "itself", "likely", f"Shared memory is full: {space}. {more}"
        text += f" Now {space}."
    yield signum == signal.SIGBUS, "itself", "possible", text  # truncated
    text = (
        "The launcher did not send it: another process did (a user's kill, a job scheduler) or "
        "the worker itself."
    )
    yield signum in _ASKED, "outside", "likely", text  # terminated
    if worker.misfit is not None:
        yield True, "itself", "likely", misfit_text(worker.misfit)  # 17
    # 4, 22, abort, cpu_signal, file_size
    yield signum in _BY_SIGNAL, "itself", "likely", _BY_SIGNAL.get(signum, "")


def misfit_text(misfit: tuple[int, int], who: str = "") -> str:
    """Return why gloo aborted a worker; ``who`` it was, if it is said which rank differs."""
    received, fitting = misfit
    text = (
        f"The ranks do not agree on the size of a collective operation: {who or 'it'} received "
        f"{received} bytes where its own call has {fitting}."
    )
    either = (
        " Either it or the rank that sent them has another shape or type, or is in another "
        "operation."
    )
    return text if who else text + either


def _of_sigkill(worker: WorkerRecord, record: AttemptRecord) -> Iterator[_Rule]:
    """SIGKILL that the launcher did not send: the kernel's OOM killer, or another process?"""
    before, after, exited = record.memory, worker.memory, worker.exited
    in_cgroup = _grown(before.cgroup_kills, after.cgroup_kills)
    on_machine = _grown(before.machine_kills, after.machine_kills)
    bound, name = _bound(after)
    peak, share = "", 0.0
    if exited is not None and exited.max_rss:  # the spawner's is not known
        of = f"; {name} is {size(bound)}" if bound else ""
        peak = f" Its peak memory was {size(exited.max_rss)}{of}."
        share = exited.max_rss / bound if bound else 0.0
    text = f"{_STRUCK.format('in this cgroup', times(in_cgroup or 0))}.{peak}"
    all_told = in_cgroup is not None and in_cgroup >= _unexplained(record)
    yield in_cgroup, "oom", "certain" if all_told else "likely", text  # 6
    # only the size of the worker speaks
    dark = in_cgroup is None and on_machine is None
    unread = f"the kernel's OOM killer, whose counters cannot be read here.{peak}"
    yield dark and share >= _NEAR_LIMIT, "oom", "possible", f"Probably {unread}"
    text = f"The launcher did not send it: another process did, or {unread}"
    yield dark, "outside", "possible", text
    text = f"{_STRUCK.format('on this machine', times(on_machine or 0))}.{peak}"
    sure: Sure = "likely" if share >= _NOTABLE else "possible"
    yield in_cgroup is None and on_machine, "oom", sure, text
    limit = None if exited is None else exited.cpu_limit
    if exited is not None and limit is not None:
        text = f"It used up the {duration(limit)} of CPU time that a limit allows (ulimit -t)."
        yield exited.cpu_seconds >= limit - 1, "itself", "likely", text  # cpu_limit
    # neither the launcher nor, by its own counters, the kernel
    but = f" in this cgroup (but {on_machine} on this machine)" if on_machine else ""
    text = (
        f"The launcher did not send it, and the kernel counts no OOM kill{but}: another process "
        "did (kill -9, a job scheduler, a memory watchdog such as systemd-oomd), or the worker "
        f"itself.{peak if share >= _NOTABLE else ''}"
    )
    surely = in_cgroup is not None and not on_machine and limit is None
    yield True, "outside", "certain" if surely else "likely", text  # 5, 11


def _grown(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def _bound(memory: Memory) -> tuple[int, str]:
    """The memory that a worker could have had at most, and what to call it."""
    limit, total = memory.limit, memory.total
    if limit is not None and (total is None or limit < total):
        return limit, "the cgroup's limit"
    return (total, "the machine's memory") if total is not None else (0, "")


def _unexplained(record: AttemptRecord) -> int:
    """How many workers died of a SIGKILL that the launcher did not send."""
    return sum(
        each.exited is not None and each.exited.exitcode == -signal.SIGKILL and not each.was_asked
        for each in record.workers
    )
