"""Why a worker failed: one type for each way, each with its one-line explanation.

What the watchdog finds (`lllaunch.watchdog.findings`) is a cause as it is.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from lllaunch.documents import Record, Said, signal_name
from lllaunch.text import duration
from lllaunch.watchdog.findings import Finding

_BELOW = re.compile(r"\bCaught \w+ in (DataLoader worker process \d+)\.$")


class Raised(Said, frozen=True):
    """The worker's code raised an exception, and said so in its error.json."""

    message: str  # ``ValueError: what was wrong``
    exitcode: int  # the exit status that followed

    def __str__(self) -> str:
        if not self.message:
            return "raised an exception"
        first = self.message.splitlines()[0]
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

    def __str__(self) -> str:
        return "ended with success while others were still in a collective operation with it"


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
