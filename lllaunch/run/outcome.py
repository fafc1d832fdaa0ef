"""From what was seen of a run to what became of it: pure functions and their frozen results.

`lllaunch.run.judge` decides for every worker of an attempt whether it succeeded, failed, was a
victim of another's failure or was ended by the launcher, and which failure came first.
`summarize` makes the outcome of the run from its attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from lllaunch.exit_codes import ExitCode, for_signal
from lllaunch.run.records import NOWHERE, WorkerFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lllaunch.events import NoProgress, Orphan
    from lllaunch.run.causes import Cause
    from lllaunch.run.hang import Hang
    from lllaunch.run.postmortem import Explanation
    from lllaunch.spec import Detected
    from lllaunch.supervisor.machine import Reason
    from lllaunch.watchdog.collectives import Disagreement
    from lllaunch.watchdog.findings import Finding
    from lllaunch.watchdog.progress import Progress
    from lllaunch.watchdog.stacks.frames import Frame


RunState = Literal["succeeded", "failed", "signalled", "error"]
AttemptState = Literal["succeeded", "failed", "stopped"]


@dataclass(frozen=True)
class WorkerOutcome:
    """What became of one worker of one attempt.

    Attributes:
        local_rank: its number on this node.
        rank: its number among all workers.
        fate: what became of it.
        files: where it wrote.
        pid: its process id, None if it was not started.
        exitcode: exit status, or the negative number of the signal that ended it; None if unknown.
        started_ns: when it was started, nanoseconds since the epoch, or None.
        ended_ns: when it ended, nanoseconds since the epoch, or None.
        max_rss: its peak resident memory, bytes.
        cpu_seconds: user and system time of it and the children it waited for.
        traceback: the traceback in its error.json, or an empty string.
        progress: how far it was in the end, or None where it never showed that.
        progress_ns: when it got there, nanoseconds since the epoch.
    """

    local_rank: int
    rank: int
    fate: Fate
    files: WorkerFiles = NOWHERE
    pid: int | None = None
    exitcode: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    max_rss: int = 0
    cpu_seconds: float = 0.0
    traceback: str = ""
    progress: Progress | None = None
    progress_ns: int = 0


@dataclass(frozen=True)
class RootCause:
    """The first failure of an attempt.

    Attributes:
        attempt: number of the attempt.
        rank: the worker, among all; None if all failed at once (the spawner died), or if the
            watchdog found something that is not one worker's.
        local_rank: the same on this node.
        cause: why.
        time_ns: when, nanoseconds since the epoch.
        explanation: what can be said beyond that, or None.
        traceback: the traceback where there is one, or an empty string.
        files: where the worker wrote.
        hang: what the watchdog found, if the attempt ended for that; it is the cause unless a
            worker had failed before.
        frames: where it stood when a fatal signal ended it, innermost first; none if nobody knows.
        shown: whether its standard error is on the console already.
        node: of several, the one that the worker was on, where that is not this one; else empty.
        collectives: the operation that ranks did not agree on when workers failed, or None.
    """

    attempt: int
    rank: int | None
    local_rank: int | None
    cause: Cause
    time_ns: int
    explanation: Explanation | None = None
    traceback: str = ""
    files: WorkerFiles = NOWHERE
    hang: Hang | None = None
    frames: tuple[Frame, ...] = ()
    shown: bool = False
    node: str = ""
    collectives: Disagreement | None = None

    @property
    def of_watchdog(self) -> bool:
        """Whether the watchdog found it."""
        return self.hang is not None and self.hang.finding == self.cause

    @property
    def subject(self) -> str:
        """What it is about if that is no worker: a node; else an empty string."""
        return str(getattr(self.cause, "subject", ""))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The workers that it is about; none if it is about all, or if nobody can tell."""
        if self.rank is not None:
            return (self.rank,)
        return self.hang.blamed if self.hang is not None and self.of_watchdog else ()


@dataclass(frozen=True)
class AttemptOutcome:
    """What became of one attempt.

    Attributes:
        number: index of its directory.
        restart_count: what its workers saw as TORCHELASTIC_RESTART_COUNT.
        path: its directory.
        state: ``succeeded``, ``failed`` or ``stopped`` (by a signal to the launcher).
        started_ns: when it was begun, nanoseconds since the epoch.
        ended_ns: when its last worker was gone, nanoseconds since the epoch.
        workers: in order of local rank.
        root_cause: its first failure, or None.
        leftovers: processes that its workers left behind and that were ended.
    """

    number: int
    restart_count: int
    path: str
    state: AttemptState
    started_ns: int
    ended_ns: int
    workers: tuple[WorkerOutcome, ...] = ()
    root_cause: RootCause | None = None
    leftovers: tuple[Orphan, ...] = ()

    @property
    def furthest(self) -> WorkerOutcome | None:
        """The worker whose progress tells how far the attempt was; None if none has shown any.

        That is the one that it failed for, where that has shown some.
        """
        known = [worker for worker in self.workers if worker.progress is not None]
        named = () if self.root_cause is None else self.root_cause.ranks
        return max(
            known,
            key=lambda worker: (worker.rank in named, worker.progress and worker.progress.step),
            default=None,
        )


@dataclass(frozen=True)
class ReturnValue:
    """What one worker returned or reported, as a file; nothing has been unpickled.

    Attributes:
        path: absolute path of its return.pkl or return.json.
        size: bytes.
        type_name: name of the value's type, such as ``torch.Tensor``; ``json`` for a report.
        json: the value as JSON text where it is JSON of at most 64 KiB, else None.
    """

    path: str
    size: int
    type_name: str
    json: str | None = None


@dataclass(frozen=True)
class Excerpt:
    """The end of a worker's log.

    Attributes:
        path: the file.
        lines: its last lines, oldest first.
        cut: whether there is more before them.
    """

    path: str
    lines: tuple[str, ...]
    cut: bool = False


@dataclass(frozen=True)
class NodeOutcome:
    """What became of one node's part of a run.

    Attributes:
        name: what it is called: ``node 1 (host1)``.
        hostname: its name.
        node_rank: its number, or None.
        group_rank: its rank in the last attempt.
        nproc: how many workers it has; 0 if that is not known.
        directory: where it wrote, as it is called there, absolute; empty if that is not known.
        shared: whether that can be seen from here.
        state: as `RunOutcome.state`; ``lost`` if it is not known what became of it.
        exit_code: of its launcher, or None.
        said: what happened to it that ended its part, or an empty string.
        clock_offset: seconds that its clock is ahead of node 0's, or None.
    """

    name: str
    hostname: str = ""
    node_rank: int | None = None
    group_rank: int = -1
    nproc: int = 0
    directory: str = ""
    shared: bool = False
    state: RunState | Literal["lost"] = "lost"
    exit_code: int | None = None
    said: str = ""
    clock_offset: float | None = None


@dataclass(frozen=True)
class RunOutcome:
    """What became of a run: what `execute` returns, result.json holds and the report shows.

    Attributes:
        state: ``succeeded``, ``failed`` (workers did), ``signalled`` or ``error`` (lllaunch could
            not do its part).
        exit_code: of ``python -m lllaunch`` (docs/reference/exit-codes.md).
        directory: the run's directory, absolute.
        run_id: TORCHELASTIC_RUN_ID of its workers.
        started_ns: when it was begun, nanoseconds since the epoch.
        ended_ns: when it was over.
        attempts: in order.
        root_cause: the first failure of the last attempt, or None.
        excerpt: the end of the root cause's stderr where that is redirected and there is no
            traceback, else None.
        signum: the signal that ended the run, or None.
        limit: the limit of the run's time, if that was over before the next attempt; else None.
        no_progress: the attempts in a row that got no further, if it ended for those; else None.
        error: what went wrong in lllaunch itself, or an empty string.
        return_values: by rank; those of the last attempt, if it succeeded.
        plan_hash: identifies the plan (plan.yaml).
        importing: modules that were being imported for the workers when a signal ended the run
            before any of them had started.
        look: where the workers stood when a signal came to a run that showed no sign of life.
        preflight: command line and log of the one that was running when a signal ended the run; not
            in result.json.
        nodes: of several, what became of each; none if there was one.
        detected: what ``nnodes: auto`` took from the environment.
    """

    state: RunState
    exit_code: int
    directory: str
    run_id: str = ""
    started_ns: int = 0
    ended_ns: int = 0
    attempts: tuple[AttemptOutcome, ...] = ()
    root_cause: RootCause | None = None
    excerpt: Excerpt | None = None
    signum: int | None = None
    limit: Finding | None = None
    no_progress: NoProgress | None = None
    error: str = ""
    return_values: Mapping[int, ReturnValue] = field(default_factory=dict)
    plan_hash: str = ""
    importing: tuple[str, ...] = ()
    look: Hang | None = None
    preflight: tuple[str, str] | None = None
    nodes: tuple[NodeOutcome, ...] = ()
    detected: tuple[Detected, ...] = ()

    @property
    def seconds(self) -> float:
        """How long the run took, seconds."""
        return max(0, self.ended_ns - self.started_ns) / 1e9

    @property
    def restarts(self) -> int:
        """How many attempts followed the first, but for those that other nodes came or left for."""
        pairs = zip(self.attempts, self.attempts[1:], strict=False)
        return sum(not _of_membership(before, after) for before, after in pairs)

    def with_error(self, text: str, exit_code: int) -> RunOutcome:
        """Returns the outcome of the same run when lllaunch failed in it."""
        return replace(self, state="error", error=text, exit_code=exit_code)


def _of_membership(before: AttemptOutcome, after: AttemptOutcome) -> bool:
    cause = before.root_cause
    free = cause is not None and bool(cause.subject)
    return free and before.restart_count == after.restart_count


def summarize(
    attempts: Sequence[AttemptOutcome],
    *,
    directory: str,
    run_id: str,
    plan_hash: str,
    started_ns: int,
    ended_ns: int,
    signum: int | None = None,
    reason: Reason | None = None,
    limit: Finding | None = None,
    no_progress: NoProgress | None = None,
    importing: tuple[str, ...] = (),
) -> RunOutcome:
    """Makes the outcome of a run from its attempts; the last one decides.

    Args:
        attempts: in order.
        directory: the run's directory.
        run_id: TORCHELASTIC_RUN_ID of its workers.
        plan_hash: identifies the plan.
        started_ns: when the run began, nanoseconds since the epoch.
        ended_ns: when it was over.
        signum: the signal that ended it, or None.
        reason: why it did not succeed, as the agent decided; or None.
        limit: the limit of the run's time that was found to be over, or None.
        no_progress: the attempts in a row that got no further, if it ended for those; or None.
        importing: modules that were being imported when it ended, before any worker had started.
    """
    last = attempts[-1] if attempts else None
    root = last.root_cause if last else None
    state: RunState = "failed"
    exit_code: int = ExitCode.WATCHDOG if _by_watchdog(reason, root) else ExitCode.WORKERS_FAILED
    if no_progress is not None:
        exit_code = ExitCode.NO_PROGRESS
    if signum is not None:
        state, exit_code = "signalled", for_signal(signum)
    elif last is not None and last.state == "succeeded":
        state, exit_code = "succeeded", ExitCode.SUCCESS
    return RunOutcome(
        state=state,
        exit_code=int(exit_code),
        directory=directory,
        run_id=run_id,
        started_ns=started_ns,
        ended_ns=ended_ns,
        attempts=tuple(attempts),
        root_cause=root,
        signum=signum,
        limit=limit if reason == "timeout" and not _ended_for(limit, root) else None,
        no_progress=no_progress,
        plan_hash=plan_hash,
        importing=importing if signum is not None else (),
    )


def _by_watchdog(reason: Reason | None, root: RootCause | None) -> bool:
    """Whether the watchdog ended the run, and not the kernel for want of memory."""
    if reason == "oom":
        return root is not None and root.hang is not None
    return reason in ("hang", "timeout")


def _ended_for(limit: Finding | None, root: RootCause | None) -> bool:
    return root is not None and root.hang is not None and root.hang.finding == limit


@dataclass(frozen=True)
class Succeeded:
    """The worker ended with status 0, and by itself."""


@dataclass(frozen=True)
class Failed:
    """The worker failed: it is the root cause of its attempt, or failed at the same moment.

    One that hung until the launcher ended it failed, too, with what the watchdog found as cause.

    Attributes:
        cause: why.
        time_ns: when, nanoseconds since the epoch.
        explanation: what can be said beyond that, or None.
    """

    cause: Cause
    time_ns: int
    explanation: Explanation | None = None


@dataclass(frozen=True)
class Victim:
    """The worker failed after the root cause, so probably because of it.

    Attributes:
        cause: how it failed itself.
        time_ns: when, nanoseconds since the epoch.
        after_ns: how long after the root cause, nanoseconds.
        explanation: what can be said beyond that, or None.
    """

    cause: Cause
    time_ns: int
    after_ns: int
    explanation: Explanation | None = None


@dataclass(frozen=True)
class Ended:
    """The launcher ended the worker.

    Attributes:
        signum: the signal that did it.
        exitcode: exit status, or the negative number of the signal.
        sent: all signals that the launcher had sent it, in order.
        waited_for: ranks that hung while this worker only waited for them; empty if it did not.
    """

    signum: int
    exitcode: int
    sent: tuple[int, ...] = ()
    waited_for: tuple[int, ...] = ()


@dataclass(frozen=True)
class Lost:
    """How the worker ended is not known.

    Attributes:
        why: ``spawner``: it went with the spawner; ``kernel``: it hangs in the kernel and SIGKILL
            does not end it; ``error``: the run ended by an error of lllaunch's own; ``unknown``:
            another version wrote so, in words that this one does not know.
    """

    why: Literal["spawner", "kernel", "error", "unknown"] = "spawner"


@dataclass(frozen=True)
class NotStarted:
    """The worker was never started."""


Fate: TypeAlias = Succeeded | Failed | Victim | Ended | Lost | NotStarted
