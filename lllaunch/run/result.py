"""result.json: what became of a run. What is judged is what is written, read and shown.

docs/reference/files.md has the file. A reader meets files of older and newer versions, and broken
ones: a cause that it does not know keeps its text (`UnknownCause`), and what is wrong is one
message.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Raw, field
from msgspec.structs import force_setattr, replace

from lllaunch.documents import (
    JsonText,
    Number,
    Plain,
    Record,
    RunPath,
    Said,
    SignalNumber,
    Text,
    Time,
    as_record,
    isoformat,
    load_json,
    signal_name,
)
from lllaunch.events import Orphan
from lllaunch.run.directory import RESULT
from lllaunch.run.repository import Build, Host
from lllaunch.spec import Detected
from lllaunch.supervisor.machine import NoProgress
from lllaunch.text import duration, spans
from lllaunch.watchdog.evidence import Disagreement, Frame, RankStack
from lllaunch.watchdog.findings import Finding, TimedOut, suspects

_BELOW = re.compile(r"\bCaught \w+ in (DataLoader worker process \d+)\.$")
# torch's message of an error in NCCL, which says what happened in its last line.
_NCCL = re.compile(r"NCCL error in: \S+:\d+, ([^(,\n]*\w).*\nLast error:\n(.+)", re.DOTALL)


class Raised(Said, frozen=True):
    """The worker's code raised an exception, and said so in its error.json."""

    message: str  # ``ValueError: what was wrong``
    exitcode: int  # the exit status that followed

    def __str__(self) -> str:
        if not self.message:
            return "raised an exception"
        first = _NCCL.sub(r"NCCL \1: \2", self.message).splitlines()[0]
        # torch says first that a process below has raised, and at last what
        below = _BELOW.search(first)
        last = self.message.rstrip().rpartition("\n")[2]
        return f"raised {first}" if below is None else f"raised {last} (in {below[1]})"


class DeviceOutOfMemory(Raised, frozen=True):
    """The worker's code found no memory on a GPU or another device; attributes as of `Raised`."""

    def __str__(self) -> str:
        # torch goes on with who uses how much, and with advice: a line of 600 characters
        said = self.message.splitlines()[0].partition(": ")[2]
        free = said.find(" is free.")
        return f"ran out of device memory: {said if free < 0 else said[:free] + ' is free'}"


class ExitedNonZero(Said, frozen=True):
    """The worker ended by itself with an exit status other than 0."""

    exitcode: int

    def __str__(self) -> str:
        return f"exited with status {self.exitcode}"


class CalledExit(Said, frozen=True):
    """The worker's code called ``sys.exit``."""

    exitcode: int  # the exit status that followed
    argument: str  # what it was called with, as Python writes it; its beginning if that is long
    file: str  # source file of the line that called it, of the user's
    line: int  # line in that file
    function: str  # the function that it is in, ``<module>`` outside of any

    def __str__(self) -> str:
        return f"called sys.exit({self.argument})"


class LeftEarly(Said, frozen=True):
    """The worker ended with success while others were still in a collective operation with it."""

    ran_seconds: float  # how long it had run
    # how long before the first of the others failed it ended, nanoseconds; less than 0 if its end
    # became known later
    before_ns: int
    others: tuple[int, ...]  # ranks whose connections broke
    call: str = ""  # the operation that they were in, or an empty string
    file: str = ""  # source file of the user's that had called it, or an empty string
    line: int = 0  # line in that file
    # ``all_reduce #4 of default_pg (float32 [4])``, where torch has recorded that
    operation: str = ""
    left_file: str = ""  # where it had called ``sys.exit``, or an empty string
    left_line: int = 0  # line in that file

    def __str__(self) -> str:
        return "ended with success while others were still in a collective operation with it"


class Differed(Said, frozen=True):
    """The worker called a collective operation with another shape or type than the others."""

    def __str__(self) -> str:
        return "called a collective operation in another way than the others"


class DiskFull(Said, frozen=True):
    """The worker failed, and could not say why: the file system of its logs is full."""

    exitcode: int  # its exit status
    directory: str  # where its logs are
    total: int  # size of that file system, bytes
    free: int  # what is free of it, bytes

    def __str__(self) -> str:
        return f"exited with status {self.exitcode}: [Errno 28] No space left on device"


class KilledBySignal(Said, frozen=True):
    """A signal ended the worker."""

    signum: int  # the signal's number
    core_dumped: bool = False  # whether the kernel wrote a core file

    def __str__(self) -> str:
        return f"died of {signal_name(self.signum)}" + (", core dumped" if self.core_dumped else "")


class OutOfMemory(Said, frozen=True):
    """The kernel's OOM killer ended the worker, or a process below it, as far as can be known."""

    max_rss: int  # peak resident memory of the worker, bytes
    limit: int | None = None  # the memory limit that it ran under, bytes, or None
    # what the worker raised when a process below it was killed; else an empty string
    message: str = ""

    def __str__(self) -> str:
        if self.message:
            return f"raised {self.message.splitlines()[0]} (out of memory)"
        return "died of SIGKILL: out of memory"


class StartFailure(Said, frozen=True):
    """The worker could not be started."""

    path: str  # the program or file concerned, or an empty string
    reason: str  # what the system said
    errno: int = 0  # the system's error number, 0 where there is none

    def __str__(self) -> str:
        what = f"{self.path!r}: " if self.path else ""
        return f"could not be started: {what}{self.reason}"


class SpawnerLost(Said, frozen=True):
    """The process that starts all workers died, and the worker with it."""

    pid: int  # process id of the spawner
    status: int | None  # its exit status, negative for a signal, None where it is not known
    detail: str = ""  # what it wrote last, or an empty string

    def __str__(self) -> str:
        if self.status is None:
            how = "its connection closed"
        elif self.status < 0:
            how = signal_name(-self.status)
        else:
            how = f"exit status {self.status}"
        return f"was lost: the process that forks workers (pid {self.pid}) died, {how}"


class PreloadFailure(Said, frozen=True):
    """A module listed under ``preload`` could not be imported; no worker could be started."""

    module: str
    reason: str

    def __str__(self) -> str:
        return f"could not be started: preload of {self.module!r} failed: {self.reason}"


class PreflightFailure(Said, frozen=True):
    """The preflight failed; no worker was started."""

    command: str  # its command line
    # its exit status, or the negative number of the signal that ended it; None if it could not be
    # started, or did not end in time
    exitcode: int | None = None
    timeout: float | None = None  # how long it may take, seconds, if it took longer; else None
    reason: str = ""  # what the system said, if it could not be started; else an empty string

    def __str__(self) -> str:
        if self.timeout is not None:
            how = f"took longer than {duration(self.timeout)}"
        elif self.exitcode is None:
            how = f"could not be started: {self.reason}"
        elif self.exitcode < 0:
            how = f"died of {signal_name(-self.exitcode)}"
        else:
            how = f"exited with status {self.exitcode}"
        return f"could not be started: preflight failed: {self.command} {how}"


class NotPicklableReturn(Said, frozen=True):
    """The worker did its work, but what its function returned cannot leave the process."""

    reason: str

    def __str__(self) -> str:
        return f"returned a value that cannot be pickled: {self.reason}"


class HungInKernel(Said, frozen=True):
    """Workers were in uninterruptible sleep for longer than is allowed."""

    def __str__(self) -> str:
        return "hung in the kernel (uninterruptible sleep)"


class OnAnotherNode(Said, frozen=True):
    """A worker of another node failed, or the watchdog of another node found something."""

    node: str  # what the node is called
    what: str  # what happened there, as the predicate of a sentence about the worker

    def __str__(self) -> str:
        return f"{self.what or 'failed'}, on {self.node}"


class NodeGone(Said, frozen=True):
    """A node of the run was lost, or left."""

    subject: str  # what the node is called
    what: str  # what happened to it, as the predicate of a sentence about it

    def __str__(self) -> str:
        return self.what


class NodesJoined(Said, frozen=True):
    """Other nodes came, and the group was formed anew with them; nothing failed."""

    subject: str = "other nodes"

    def __str__(self) -> str:
        return "came to join"


class UnknownCause(Record, frozen=True, tag=True):
    """A cause in the result.json of another version, which this one has no type for."""

    name: str  # of its type, as the file has it
    text: str  # its one line

    def __str__(self) -> str:
        return self.text or "failed"


def alike(one: Cause, other: Cause) -> bool:
    """Whether two workers failed in the same way.

    Messages that differ in numbers only (ports, addresses, ranks) count as the same.
    """
    if isinstance(one, Raised) and isinstance(other, Raised):
        return letters(one.message) == letters(other.message)
    return type(one) is type(other) and str(one) == str(other)


def letters(message: str) -> str:
    """Returns a message without its numbers, which differ from rank to rank."""
    return "".join(each for each in message if not each.isdigit())


Cause: TypeAlias = (
    Raised
    | DeviceOutOfMemory
    | ExitedNonZero
    | CalledExit
    | KilledBySignal
    | OutOfMemory
    | LeftEarly
    | Differed
    | DiskFull
    | StartFailure
    | SpawnerLost
    | PreloadFailure
    | PreflightFailure
    | NotPicklableReturn
    | HungInKernel
    | OnAnotherNode
    | NodeGone
    | NodesJoined
    | UnknownCause
    | Finding
)


VERSION = 1
"""Version of result.json's schema; grows when a field changes its meaning."""

RunState = Literal["succeeded", "failed", "signalled", "error"]
AttemptState = Literal["succeeded", "failed", "stopped"]
Sure = Literal["certain", "likely", "possible"]
Suspect = Literal["launcher", "oom", "outside", "itself"]
Moment: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
"""Nanoseconds since the epoch, as they are."""


class Explanation(Record, frozen=True):
    """What probably happened to a worker."""

    # who ended it: ``launcher``, ``oom`` (the kernel's OOM killer), ``outside`` (another process)
    # or ``itself``
    suspect: Suspect
    sure: Sure  # how sure that is
    text: str  # one sentence, or two, for the user


class Hang(Record, frozen=True, dict=True):
    """What the watchdog found, and where the workers stood then.

    All ranks but those within ``finding`` are ranks among all workers.
    """

    finding: Finding  # what it found; its ranks are local
    time_ns: Time = field(default=0, name="time")
    # when that had begun, where the finding tells
    since_ns: Time | None = field(default=None, name="since")
    named: tuple[int, ...] = ()  # ranks that the finding names; none if it is about all
    hung: tuple[int, ...] = ()  # those that hang by themselves, as far as can be told
    waiting: tuple[int, ...] = ()  # those that only wait for them
    asleep: tuple[int, ...] = ()  # those in uninterruptible sleep
    stopped: tuple[int, ...] = ()  # those that a signal stopped
    # those that had ended with success, with the seconds that they had run; none unless all others
    # surely wait
    left: Mapping[int, float] = {}
    # where each stood, as far as that is known
    standing: tuple[RankStack, ...] = field(default=(), name="stacks")
    nodes: Mapping[int, str] = {}  # of several, the one that each of those who hang is on
    collectives: Disagreement | None = None  # the operation that they do not agree on, or None

    def __post_init__(self) -> None:
        # older files do not say: of one node ranks are local ones
        if not self.named:
            force_setattr(self, "named", suspects(self.finding))

    @cached_property
    def stacks(self) -> Mapping[int, RankStack]:
        """Where they stood, by rank."""
        return {stack.rank: stack for stack in self.standing}

    @property
    def blamed(self) -> tuple[int, ...]:
        """Ranks that the attempt failed because of; none if all did, or nobody can tell.

        When time is over, all have taken it: who happens not to wait at that moment need not hang.
        """
        return () if isinstance(self.finding, TimedOut) else self.hung or tuple(self.left)


class RootCause(Record, frozen=True):
    """The first failure of an attempt."""

    DERIVED = ("time",)
    BESIDE = frozenset({"shown"})

    attempt: int = 0  # number of the attempt
    # the worker, among all; None if all failed at once (the spawner died), or if the watchdog found
    # something that is not one worker's
    rank: int | None = None
    local_rank: int | None = None  # the same on its node
    cause: Cause = UnknownCause("", "")  # why
    time_ns: Moment = 0  # when
    explanation: Explanation | None = None  # what can be said beyond that, or None
    traceback: Text = ""  # the traceback where there is one, or an empty string
    stderr: RunPath = ""  # where its standard error went, or that of the preflight; else empty
    # what the watchdog found, if the attempt ended for that; it is the cause unless a worker had
    # failed before
    hang: Hang | None = None
    # where it stood when a fatal signal ended it, innermost first; none if nobody knows
    frames: tuple[Frame, ...] = ()
    shown: bool = False  # whether its standard error is on the console already
    # of several, the one that the worker was on, where that is not node 0; else empty
    node: Text = ""
    # the operation that ranks did not agree on when workers failed, or None
    collectives: Disagreement | None = None

    @property
    def time(self) -> str | None:
        """When, for people."""
        return isoformat(self.time_ns) if self.time_ns else None

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

    def in_short(self) -> RootCause:
        """Return the same without what is long."""
        hang = self.hang and replace(self.hang, standing=(), collectives=None)
        return replace(self, traceback="", explanation=None, frames=(), collectives=None, hang=hang)


class Reached(Record, frozen=True):
    """How far a worker was in the end."""

    step: float  # how many steps were done
    total: float | None = None  # how many there are, or None
    time_ns: Time = field(default=0, name="time")  # when it got there
    metrics: Mapping[str, Number] = {}  # numbers that it told beside it, by name


class WorkerResult(Record, frozen=True, tag_field="fate"):
    """What became of one worker of one attempt; each way to end is a type of its own."""

    DERIVED = ("signal",)

    local_rank: int = 0
    rank: int = 0  # its number among all workers
    pid: int | None = None  # its process id, None if it was not started
    # exit status, or the negative number of the signal that ended it; None if unknown
    exitcode: int | None = None
    started_ns: Time | None = field(default=None, name="started")
    ended_ns: Time | None = field(default=None, name="ended")
    max_rss: int = 0  # its peak resident memory, bytes
    cpu_seconds: float = 0.0  # user and system time of it and the children it waited for
    stdout: RunPath = ""
    stderr: RunPath = ""
    error_file: RunPath = ""  # where it said what it raised; empty if it did not
    stacks: RunPath = ""  # where it stood when somebody looked; empty if nobody did
    progress: Reached | None = None  # how far it was in the end, or None where it never showed that

    @property
    def fate(self) -> str:
        """What result.json calls what became of it."""
        return str(type(self).__struct_config__.tag)

    @property
    def signal(self) -> str | None:
        """Name of the signal that ended it, None if none did."""
        code = self.exitcode
        return signal_name(-code) if code is not None and code < 0 else None


class Succeeded(WorkerResult, frozen=True, tag="succeeded"):
    """The worker ended with status 0, and by itself."""


class Failed(WorkerResult, frozen=True, tag="failed", kw_only=True):
    """The worker failed: it is the root cause of its attempt, or failed at the same moment.

    One that hung until the launcher ended it failed, too, with what the watchdog found as cause.
    """

    cause: Cause
    explanation: Explanation | None = None


class Victim(WorkerResult, frozen=True, tag="victim", kw_only=True):
    """The worker failed after the root cause, so probably because of it."""

    cause: Cause
    explanation: Explanation | None = None
    seconds_after_root_cause: float = 0.0


class Ended(WorkerResult, frozen=True, tag="ended", kw_only=True):
    """The launcher ended the worker."""

    exitcode: int
    # all signals that the launcher had sent it, in order
    sent: tuple[str, ...] = field(default=(), name="signals_sent")
    # ranks that hung while this worker only waited for them; empty if it did not
    waited_for: tuple[int, ...] = ()


class Lost(WorkerResult, frozen=True, tag="lost", kw_only=True):
    """How the worker ended is not known."""

    # ``spawner``: it went with the spawner; ``kernel``: it hangs in the kernel and SIGKILL does not
    # end it; ``error``: the run ended by an error of lllaunch's own; ``unknown``: another version
    # wrote so, in words that this one does not know
    why: Literal["spawner", "kernel", "error", "unknown"] = "spawner"


class NotStarted(WorkerResult, frozen=True, tag="not_started"):
    """The worker was never started."""


AnyWorker: TypeAlias = Succeeded | Failed | Victim | Ended | Lost | NotStarted


class AttemptResult(Record, frozen=True):
    """What became of one attempt."""

    number: int = field(default=0, name="attempt")  # index of its directory
    restart_count: int = 0  # what its workers saw as TORCHELASTIC_RESTART_COUNT
    path: RunPath = field(default="", name="directory")  # its directory
    state: AttemptState = "failed"  # ``stopped``: by a signal to the launcher
    started_ns: Time = field(default=0, name="started")
    ended_ns: Time = field(default=0, name="ended")  # when its last worker was gone
    workers: tuple[AnyWorker, ...] = ()  # in order of local rank
    # its first failure, or None; written in short, since that of the last attempt is the run's
    root_cause: RootCause | None = None
    leftovers: tuple[Orphan, ...] = ()  # processes that its workers left behind and that were ended

    @property
    def furthest(self) -> WorkerResult | None:
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


class Excerpt(Record, frozen=True):
    """The end of a worker's log; cut if there is more before it."""

    path: str
    lines: tuple[str, ...]
    cut: bool = False


class ReturnValue(Record, frozen=True):
    """What one worker returned or reported, as a file; nothing has been unpickled."""

    path: RunPath = ""  # its return.pkl or return.json
    size: int = 0  # bytes
    # name of the value's type, such as ``torch.Tensor``; ``json`` where there is only return.json
    type_name: str = field(default="", name="type")
    # the value as JSON text where it is JSON of at most 64 KiB, else None
    json: JsonText = field(default=None, name="value")


class NodeResult(Record, frozen=True):
    """What became of one node's part of a run."""

    name: str  # what it is called: ``node 1 (host1)``
    hostname: str = ""
    node_rank: int | None = None  # its number, or None
    group_rank: int = -1  # its rank in the last attempt
    nproc: int = 0  # how many workers it has; 0 if that is not known
    # where it wrote, as it is called there, absolute; empty if that is not known
    directory: str = ""
    shared: bool = False  # whether that can be seen from here
    state: RunState | Literal["lost"] = "lost"  # ``lost`` if it is not known what became of it
    exit_code: int | None = None  # of its launcher, or None
    said: str = ""  # what happened to it that ended its part, or an empty string
    clock_offset: float | None = None  # seconds that its clock is ahead of node 0's, or None


class RunResult(Record, frozen=True):
    """What became of a run: what `execute` returns, result.json holds and the report shows."""

    DERIVED = ("seconds", "restarts")
    BESIDE = frozenset({"directory", "excerpt"})

    state: RunState  # ``failed``: workers did; ``error``: lllaunch could not do its part
    exit_code: int  # of ``python -m lllaunch`` (docs/reference/exit-codes.md)
    directory: str = ""  # the run's directory, absolute
    run_id: str = ""  # TORCHELASTIC_RUN_ID of its workers
    started_ns: Time = field(default=0, name="started")
    ended_ns: Time = field(default=0, name="ended")
    attempts: tuple[AttemptResult, ...] = ()  # in order
    root_cause: RootCause | None = None  # the first failure of the last attempt, or None
    # the end of the root cause's stderr where that is redirected and there is no traceback, else
    # None
    excerpt: Excerpt | None = None
    # the signal that ended the run, or None
    signum: SignalNumber | None = field(default=None, name="signal")
    # the limit of the run's time, if that was over before the next attempt; else None
    limit: Finding | None = None
    # the attempts in a row that got no further, if it ended for those; else None
    no_progress: NoProgress | None = None
    error: Text = ""  # what went wrong in lllaunch itself, or an empty string
    # by rank; those of the last attempt, if it succeeded
    return_values: Mapping[int, ReturnValue] = {}
    plan_hash: str = ""  # identifies the plan (plan.yaml)
    # modules that were being imported for the workers when a signal ended the run before any of
    # them had started
    importing: tuple[str, ...] = ()
    # where the workers stood when a signal came to a run that showed no sign of life
    look: Hang | None = None
    nodes: tuple[NodeResult, ...] = ()  # of several, what became of each; none if there was one
    detected: tuple[Detected, ...] = ()  # what ``nnodes: auto`` took from the environment
    host: Host | None = None
    build: Build | None = None  # what the code is that ran
    version: int = VERSION

    @property
    def seconds(self) -> float:
        """How long the run took; 0 if that is not known."""
        # as its times are written: so that what is read says the same
        took = self.ended_ns // 1000 - self.started_ns // 1000
        return max(0, took) / 1e6 if self.started_ns else 0.0

    @property
    def restarts(self) -> int:
        """How many attempts followed the first, but for those that other nodes came or left for."""
        return sum(
            not (
                before.root_cause is not None
                and before.root_cause.subject
                and before.restart_count == after.restart_count
            )
            for before, after in zip(self.attempts, self.attempts[1:], strict=False)
        )

    @property
    def cause_type(self) -> str:
        """Name of the type of what ended the run: a limit, else its root cause; else empty."""
        root = None if self.root_cause is None else self.root_cause.cause
        cause = self.limit or self.no_progress or root
        return "" if cause is None else getattr(cause, "name", "") or type(cause).__name__

    @property
    def failure(self) -> str:
        """What ended the run, in words; empty if it succeeded."""
        root = self.root_cause
        if root is None:
            signal = "" if self.signum is None else signal_name(self.signum)
            first = str(self.limit or "") or self.error or signal
        elif root.ranks:
            node = f" on {root.node}" if root.node else ""
            who = f"rank{'s' * (len(root.ranks) > 1)} {spans(root.ranks)}"
            first = f"{who}{node}: {root.cause}"
        else:
            first = f"{root.subject} {root.cause}".strip()
        return "; ".join(filter(None, (str(self.no_progress or ""), first)))

    def with_error(self, text: str, exit_code: int) -> RunResult:
        """Return the result of the same run when lllaunch failed in it."""
        return replace(self, state="error", error=text, exit_code=exit_code)


# Writing


def plain_result(result: RunResult, redact: Callable[[str], str] = str) -> dict[str, Any]:
    """Return what result.json has, with every text in it redacted."""
    attempts = tuple(
        replace(each, root_cause=each.root_cause and each.root_cause.in_short())
        for each in result.attempts
    )
    found: dict[str, Any] = Plain(redact, result.directory)(replace(result, attempts=attempts))
    return found


def encode_result(result: RunResult, redact: Callable[[str], str] = str) -> bytes:
    """Return the text of result.json."""
    text = json.dumps(plain_result(result, redact), indent=2, ensure_ascii=False)
    return text.encode("utf-8", errors="backslashreplace") + b"\n"


# Reading


def as_result(document: object, directory: str) -> RunResult | None:
    """Return what a document says, None if it is no result.json of ours.

    ``directory``: of the run; paths in the file count from it.

    Raises:
        ValueError: it is of another version, or something in it is wrong; says what.
    """
    if not isinstance(document, dict):
        return None
    version = document.get("version", VERSION)
    if version != VERSION:
        raise ValueError(f"is of version {version!r}; this lllaunch reads version {VERSION}")
    if not document.keys() >= {"state", "exit_code", "attempts"}:
        return None
    written = {name: value for name, value in document.items() if name not in RunResult.BESIDE}
    try:
        result = as_record(written, RunResult, directory)
    except ValueError:
        result = as_record(_as_known(written), RunResult, directory)
    return replace(result, directory=directory)


def read_result(path: str, directory: str) -> RunResult | None:
    """Return what a result.json says, None if there is none, or it is another program's.

    Raises:
        OSError: it cannot be read.
        ValueError: as for `as_result`; names the file.
    """
    try:
        return as_result(load_json(path), directory)
    except ValueError as error:
        raise ValueError(f"{os.path.basename(path)}: {error}") from None


def known_result(directory: str) -> RunResult | None:
    """Return what the result.json in a directory says, None if that is nothing or not known."""
    try:
        return read_result(os.path.join(directory, RESULT), directory)
    except (OSError, ValueError):
        return None


def cause_in(written: Raw) -> Cause | None:
    """Return a cause, or a finding of the watchdog, that a record has; None if it has none."""
    value = msgspec.json.decode(written)
    if not isinstance(value, dict):
        return None
    known: Cause = as_record(_as_known({"text": "", **value}, "cause"), Cause)
    return known


# What another version may have in other forms, by name; the second is one of several.
_KNOWN = {"cause": Cause, "worker": AnyWorker, "finding": Finding, "limit": Finding}
_OF_WORKERS = ("rank", "local_rank", "pid", "exitcode")


def _as_known(value: Any, name: str = "") -> Any:
    """Return a document in which causes, and ends of workers, of other versions are known ones."""
    if isinstance(value, list):
        return [_as_known(each, name.removesuffix("s")) for each in value]
    if not isinstance(value, dict) or name in ("return_values", "host", "build"):
        return value
    known = {key: _as_known(each, key) for key, each in value.items()}
    try:
        as_record(known, _KNOWN.get(name, Any))
    except ValueError:
        if name == "worker":
            kept = {key: known[key] for key in _OF_WORKERS if key in known}
            return {**kept, "fate": "lost", "why": "unknown"}
        texts = {"name": known.get("type"), "text": known.get("text")}
        return {"type": "UnknownCause", **texts} if name == "cause" else None
    # of a hang that is not understood nothing is
    return None if known.get("finding", known) is None else known
