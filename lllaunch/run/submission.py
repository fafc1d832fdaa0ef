"""A run that was submitted to a cluster: what its directory tells of its way through the queue.

``submission.jsonl`` has one JSON object a line: what was submitted, and again when its id is known,
then each start and end of the batch job, each signal that announced an end, and each decision to
take the run back into the queue, which stands there before anything is done about it.
docs/design/slurm.md says what Slurm does by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from signal import Signals
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Self

from lllaunch.clock import now_ns
from lllaunch.documents import (
    Plain,
    Record,
    Text,
    as_record,
    decode_record,
    isoformat,
)
from lllaunch.errors import ExitCode, OutputError
from lllaunch.files import LineFile, naming, read_text
from lllaunch.run.directory import SUBMISSION
from lllaunch.run.repository import Snapshot
from lllaunch.spec import Requeue
from lllaunch.text import times

if TYPE_CHECKING:
    from lllaunch.run.result import RunResult
    from lllaunch.spec import Cluster

_FORMER = "submission.json"
LOG = "launcher.log"
"""What the run's launcher says in the batch job, in the run's directory."""
SCRIPT = "submission.sh"
"""The batch file, in the run's directory."""
FUNCTION = "function.pkl"
"""What workers call in a user's own app, in the run's directory."""

RequeueCause = Literal["preempted", "timeout", "node_failure", "failed"]

# A notice that comes so long before the time limit, at most, is about it; beside the delay that
# was asked for. Slurm sends it up to a minute early.
_EARLY = 75.0


class Submission(Record, frozen=True, tag=True):
    """What was submitted."""

    DERIVED = ("time",)

    # the batch job's id, ``123``, or ``123_4`` of an array; empty as long as it is not written down
    job: Text = ""
    # the working directory of the batch job, absolute, by which Slurm knows it, too
    directory: str = ""
    cwd: str = ""  # where the command was given
    # whether its plan is all that a run needs, and Hydra has no part in it
    plain: bool = False
    time_ns: int = 0
    host: str = ""
    # how often it goes back into the queue after the cluster has ended it
    requeue: Requeue = Requeue()
    signal_delay: float = 0.0  # how long before its time limit it is told to end, seconds
    retries: Mapping[str, int] = {}  # how often it goes back after it has failed, by cause
    snapshot: Snapshot | None = None
    holder: str = ""  # how this job holds the snapshot, if that is temporary; else empty
    refused: Text = ""  # what the cluster said if it did not take the job; else empty

    @classmethod
    def of(cls, cluster: Cluster, directory: str, **fields: Any) -> Self:
        """Return what is about to be submitted from this machine, with other fields."""
        return cls(
            directory=directory,
            time_ns=now_ns(),
            host=socket.gethostname(),
            requeue=cluster.requeue,
            signal_delay=cluster.signal_delay_s,
            **fields,
        )

    @property
    def time(self) -> str:
        """When it was submitted."""
        return isoformat(self.time_ns)

    def write(self, directory: str) -> None:
        """Write it into the directory of a run, in place of what it says so far."""
        append(directory, self)


def read_submission(directory: str) -> Submission | None:
    """Return what was submitted from a directory; None if nothing was."""
    # where the version before has it
    former = (read_text(os.path.join(directory, _FORMER)) or "").encode()
    for line in (*reversed(_lines(directory)), former):
        with contextlib.suppress(ValueError, RecursionError):
            # names of files need not be Unicode
            return as_record(json.loads(line), Submission)
    return None


def forget_submission(directory: str) -> None:
    """Take away what a directory tells of a submission: another run begins there."""
    for name in (SUBMISSION, _FORMER, FUNCTION):
        path = os.path.join(directory, name)
        with naming(path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)


class BatchStarted(Record, frozen=True, tag=True):
    """The batch job has started."""

    job: str
    nodes: tuple[str, ...] = ()


class BatchSignalled(Record, frozen=True, tag=True):
    """A signal announced the end of the batch job."""

    signal: str


class BatchEnded(Record, frozen=True, tag=True):
    """The run ended in the batch job, and is over; the reason is why it does not go back."""

    exit_code: int
    reason: str = ""


class Requeued(Record, frozen=True, tag=True):
    """The run is taken back into the queue."""

    cause: RequeueCause
    # ``lllaunch``, which asks for it after this; or ``slurm``, which has done it
    by: Literal["lllaunch", "slurm"]
    detail: str = ""  # of a failure, its cause as ``retries`` calls it


QueueEvent = BatchStarted | BatchSignalled | BatchEnded | Requeued


class EndFacts(NamedTuple):
    """What is known when a run has ended in a batch job."""

    exit_code: int
    # whether a signal announced the end of the batch job, and it ended then
    signalled: bool = False
    cause: RequeueCause | None = None  # what that was about, as far as the cluster says
    # how long before its time limit the signal came; None if unknown
    seconds_left: float | None = None
    # what it failed of, as ``retries`` calls it; None if another try would be in vain
    failure: str | None = None
    cancelled: bool = False
    taken_back: bool = False  # whether Slurm takes it back into the queue itself
    # whether the run has lost one of its nodes. It often notices before Slurm does
    lost_node: bool = False
    # whether it was SIGTERM and nobody says why. It may have been cancelled: to put it back would
    # undo that
    unexplained: bool = False


# What goes wrong each time: the plan is wrong, is not the reviewed one, or gets no further.
_IN_VAIN = frozenset(map(int, (ExitCode.CONFIG, ExitCode.REFUSED, ExitCode.NO_PROGRESS)))


class Account:
    """What the history of a submitted run comes to; made of its events in order."""

    def __init__(self, events: Sequence[QueueEvent] = ()) -> None:
        self.starts = 0
        self.job = ""
        self.nodes: tuple[str, ...] = ()
        self.last: QueueEvent | None = None
        self.counts: Counter[str] = Counter()
        self._signalled = False
        self._open = False
        for event in events:
            self.add(event)

    def add(self, event: QueueEvent) -> None:
        """Take note of the next event."""
        self.last = event
        if isinstance(event, BatchStarted):
            self.starts += 1
            self.job, self.nodes = event.job, event.nodes
            self._signalled, self._open = False, True
        elif isinstance(event, BatchSignalled):
            self._signalled = True
        else:
            self._open = False
        if isinstance(event, Requeued):
            self.counts[event.detail or event.cause] += 1

    @property
    def requeues(self) -> int:
        """How often it went back into the queue."""
        return sum(self.counts.values())

    def lost(self) -> Requeued | None:
        """Return how the last start ended, if that was without a word; None if it was not.

        Called at the next one: Slurm has taken the run back. A node that fails says nothing, a
        preemption signals first.
        """
        if not self._open:
            return None
        return Requeued("preempted" if self._signalled else "node_failure", "slurm")

    def refusal(self, cause: RequeueCause, requeue: Requeue) -> str:
        """Return why a run must not start again after a cause; empty if it may."""
        most, count = getattr(requeue, cause), self.counts[cause]
        if count <= most:
            return ""
        return f"{_ENDED[cause]} {times(count)}; cluster.requeue.{cause} is {most}"


_ENDED = {
    "preempted": "was preempted",
    "timeout": "reached its time limit",
    "node_failure": "lost a node",
}


def decide(account: Account, facts: EndFacts, limits: Submission) -> Requeued | BatchEnded:
    """Decide whether a run that has ended in its batch job goes back into the queue. Pure."""
    code, left = facts.exit_code, facts.seconds_left
    near = left is not None and left <= limits.signal_delay + _EARLY
    if code in _IN_VAIN:
        return BatchEnded(code)
    if facts.cancelled:
        return BatchEnded(code, "it was cancelled")
    if facts.unexplained and not near:
        return BatchEnded(code, "it was ended by SIGTERM, and Slurm does not say why")
    if not (facts.signalled or facts.lost_node):
        kind = facts.failure
        most = 0 if kind is None else limits.retries.get(kind, 0)
        if kind is None or not most:
            return BatchEnded(code)
        if account.counts[kind] >= most:
            return BatchEnded(code, f"it was tried again {times(most)}, as retries.{kind} says")
        return Requeued("failed", "lllaunch", kind)
    # of nodes that are signalled one after the other, the last takes the others for lost
    otherwise: RequeueCause = "preempted" if facts.signalled else "node_failure"
    if facts.taken_back:
        return Requeued(facts.cause or otherwise, "slurm")
    cause = facts.cause or ("timeout" if near else otherwise)
    most = getattr(limits.requeue, cause)
    count = account.counts[cause]
    if count >= most:
        text = f"it {_ENDED[cause]} {times(count + 1)}, and cluster.requeue.{cause} is {most}"
        return BatchEnded(code, text)
    return Requeued(cause, "lllaunch")


class _Moment(Record, frozen=True):
    time_ns: int = 0


def read_history(directory: str) -> list[tuple[int, QueueEvent]]:
    """Return the events of a submitted run in order, each with its nanoseconds since the epoch.

    What cannot be read is passed over.
    """
    found = []
    for line in _lines(directory):
        with contextlib.suppress(ValueError, RecursionError):
            at = decode_record(line, _Moment).time_ns
            found.append((at, decode_record(line, QueueEvent)))
    return found


def _lines(directory: str) -> list[bytes]:
    return (read_text(os.path.join(directory, SUBMISSION)) or "").encode().split(b"\n")[:-1]


def account_of(directory: str) -> Account:
    """Return what the history of a submitted run comes to."""
    return Account([event for _, event in read_history(directory)])


def append(directory: str, record: QueueEvent | Submission) -> None:
    """Write an event, or what is submitted, down; it is on the disk when this returns."""
    time_ns = now_ns()
    line = {"time": isoformat(time_ns), "time_ns": time_ns, **Plain()(record)}
    with contextlib.closing(LineFile(os.path.join(directory, SUBMISSION), _raise)) as file:
        # who submits writes down an id, and the batch job its start: on NFS, what two machines
        # append at once would be lost without a lock
        file.lock()
        file.append(json.dumps(line).encode() + b"\n", sync=True)


def _raise(error: OutputError) -> NoReturn:
    raise error


@dataclass
class BatchJob:
    """The batch job that a launcher runs in."""

    directory: str
    account: Account = field(default_factory=Account)
    leads: bool = True  # whether this is the job's first node, whose launcher writes and decides
    continues: bool = False  # whether the run has started before
    announced: bool = False  # whether a signal has announced the job's end
    signal: int | None = None
    early: int | None = None  # such a signal, if it came before the run could act on it
    signalled_ns: int = 0  # when it came, nanoseconds since the epoch; 0 if none did
    ran: bool = False  # whether what was to run has run, to whatever end
    outcome: RunResult | None = None
    snapshot: Snapshot | None = None
    # of a job of a sweep, redacted; None of a run of its own
    overrides: tuple[str, ...] | None = None

    def remember(self, signum: int, _: object = None) -> None:
        """Take note, as a handler, of a signal that comes before the run or after it."""
        if not self.ran:
            self.early = self.early or signum

    def note(self, event: QueueEvent) -> None:
        """Write an event of the run down."""
        append(self.directory, event)
        self.account.add(event)

    def signalled(self, signum: int) -> None:
        """Write down, at once, that the end of the job was announced."""
        self.announced, self.signal, self.signalled_ns = True, signum, now_ns()
        if self.leads:
            event = BatchSignalled(Signals(signum).name)
            self.account.add(event)
            # whatever it is that cannot be written, the run is to end in time
            with contextlib.suppress(Exception):
                append(self.directory, event)
