"""Takes the stacks of all ranks before anything is signalled, and writes them down.

In a thread of its own, since a file system or a process may be what hangs. First the kernel is
asked about the workers, whose handlers interrupt what they wait in; then all armed workers are
signalled at once, so that the picture is of one moment, and asked for their collectives; then the
rest, and what runs below them.
Workers are written down before that: they matter most, and there may be no time for more.

For its collectives torch's server in each worker (`lllaunch.spawner.evidence`) is asked over its
socket, all of them at once. It answers from a thread in C++, so also if the worker waits in a
collective, sleeps, or holds the interpreter's lock; only which ranks are in which group needs that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import TypeAlias

from msgspec.structs import replace

from lllaunch.linux import proc
from lllaunch.linux.proc import ProcessFacts
from lllaunch.linux.process import short_address
from lllaunch.spawner.evidence import GROUPS, TRACE_FILE
from lllaunch.watchdog import processes
from lllaunch.watchdog.collectives import read_trace
from lllaunch.watchdog.evidence import Frame, RankStack, RankTrace, Source, Thread
from lllaunch.watchdog.frames import (
    TREE,
    Sources,
    lock_waits,
    main_frames,
    started_at,
    threads_of,
    whole_text,
    with_code,
)
from lllaunch.watchdog.processes import Dump, ProcessLook, look
from lllaunch.watchdog.sampling import trees

# What keeps the last 2000 collectives writes 1 MiB.
_MOST_TRACES = 16 << 20
_LAST_SECONDS = 0.01
# Of backends on the CPU, and of NCCL where torch has it.
_TRACES = ("fr_trace_json", "dump_nccl_trace_json")
_ONCE = {"Connection": "close"}

TraceSource: TypeAlias = tuple[int, str]
"""How a worker can be asked: its rank among all, and the path of the socket that it serves."""


def ask(
    recorders: Mapping[int, TraceSource], deadline: float, unwanted: Callable[[], bool]
) -> dict[int, bytes]:
    """Ask workers for their collectives.

    ``recorders``: of each worker that can be asked, by local rank. Returns JSON, as
    `lllaunch.watchdog.collectives.read_trace` reads it, of those that have told all: who keeps one
    of two traces to itself may have called in that what is missing in the other.
    """
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - seldom

    asked = {}
    found: dict[int, dict[str, bytes]] = {}
    silent = set()
    with contextlib.ExitStack() as stack:
        for rank, (_, path) in recorders.items():
            for handler in (*_TRACES, GROUPS):
                with contextlib.suppress(OSError):  # nobody serves it
                    connection = HTTPConnection("worker")
                    connection.sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                    connection.sock.setblocking(False)
                    with short_address(path) as address:
                        connection.sock.connect(address)
                    connection.request("POST", f"/handler/{handler}", headers=_ONCE)
                    asked[rank, handler] = connection
        for (rank, handler), connection in asked.items():
            whole = False
            # one that has answered is heard also where another has taken all the time
            connection.sock.settimeout(max(_LAST_SECONDS, deadline - time.monotonic()))
            with contextlib.suppress(OSError, HTTPException):
                if not unwanted() and (answer := connection.getresponse()):
                    body = answer.read(_MOST_TRACES)
                    whole = answer.length == 0
                    if whole and answer.status == HTTPStatus.OK:
                        found.setdefault(rank, {})[handler] = body
            if not whole and handler in _TRACES:
                silent.add(rank)
    known = {rank for rank, parts in found.items() if not parts.keys() <= {GROUPS}}
    documents = {}
    for rank in sorted(known - silent):
        parts = found[rank]
        # as one object, each answer as it came
        traces = b", ".join(parts[name] for name in _TRACES if name in parts)
        documents[rank] = b'{"groups": %b, "traces": [%b]}\n' % (parts.get(GROUPS, b"{}"), traces)
    return documents


_RULE = "=" * 72
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class Written:
    """What is written of stacks, and where.

    ``heading``: why and when they are taken. ``paths``: the stacks.txt of each, by local rank;
    empty or missing for none. ``directory``: where the tree of all ranks is; empty for nowhere.
    What an earlier finding of the same attempt left in a file stays; the first error is kept, and
    no more is written to that file.
    """

    def __init__(
        self,
        heading: str = "",
        paths: Mapping[int, str] = MappingProxyType({}),
        directory: str = "",
        base_rank: int = 0,
        hide: Callable[[str], str] = str,
    ) -> None:
        self.problem = ""  # the first error, as ``path: reason``; empty if there was none
        self.heading = f"{_RULE}\n{heading.rstrip()}\n{_RULE}\n"
        self.paths, self.directory, self.base_rank = paths, directory, base_rank
        self._hide = hide
        self._bad: set[str] = set()

    def append(self, path: str, text: str, flags: int = _FLAGS) -> bool:
        """Append to a file at once; False if not all of it could be written."""
        if not path or not text or path in self._bad:
            return False
        data = memoryview(self._hide(text).encode(errors="replace"))
        try:
            fd = os.open(path, flags, 0o666)
            try:
                while data:
                    data = data[os.write(fd, data) :]
            finally:
                os.close(fd)
        except OSError as error:
            self._bad.add(path)
            self.problem = self.problem or f"{path}: {error.strerror or error}"
            return False
        return True


# Processes of one rank that are looked at; the rest is counted.
MAX_PROCESSES = 32


class ProcessCase:
    """One process."""

    def __init__(self, facts: ProcessFacts) -> None:
        self.facts = facts
        # what the kernel tells of it; None before `examine`, or when it is gone
        self.seen: ProcessLook | None = None
        self.stacks = ""
        self.source: Source = ""
        self.threads: tuple[Thread, ...] = ()
        self._notes: list[str] = []

    def examine(self) -> None:
        """Ask the kernel."""
        self.seen = look(self.facts)

    def tell(self, source: Source, text: str, why_not: str = "") -> None:
        """Take note of its stacks as they were written, or why they were not."""
        how = "read by py-spy" if source == "py-spy" else "written by itself"
        if not text:
            self._notes.append(f"Python stacks, {how}: none, {why_not}")
            return
        self.stacks, self.source, self.threads = text, source, threads_of(text)
        by = " (faulthandler)" if source == "faulthandler" else ""
        self._notes.append(f"Python stacks, {how}{by}:")

    @property
    def python(self) -> bool:
        """Whether it runs Python."""
        return self.seen is not None and self.seen.python

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Frames of its main thread."""
        return main_frames(self.threads)

    def section(self, role: str) -> str:
        """Its part of stacks.txt."""
        seen = self.seen
        if seen is None:
            return f"\n{role}: process {self.facts.pid}: it was gone, or no time was left for it\n"
        first, *others = seen.lines
        lines = [f"\n{role}: {first}", *others, *(f"  {note}" for note in self._notes)]
        if self.stacks.strip():
            # As it was written, so that other programs can read it.
            lines.append(f"\n{self.stacks.strip()}")
        return "\n".join(lines) + "\n"


class RankCase:
    """One rank: its worker and the processes below it.

    ``path``: its stacks.txt, empty for none.
    """

    def __init__(self, rank: int, path: str, processes: tuple[ProcessFacts, ...]) -> None:
        self.rank = rank
        self.path = path
        self.written = False
        self.worker = ProcessCase(processes[0])
        self.trace: RankTrace | None = None
        self.below = [ProcessCase(facts) for facts in processes[1:MAX_PROCESSES]]
        self.unseen = len(processes) - 1 - len(self.below)

    @property
    def chosen(self) -> ProcessCase:
        """The process that says where the rank stands.

        A worker that is no Python program (a shell script) stands where the first process below it
        stands that is one.
        """
        if self.worker.seen is None or self.worker.python:
            return self.worker
        return next((process for process in self.below if process.frames), self.worker)

    def stack(self) -> RankStack:
        """What is known by now."""
        seen, chosen = self.worker.seen, self.chosen
        return RankStack(
            self.rank,
            self.path if self.written else "",
            chosen.frames,
            state=seen.state if seen else "",
            wchan=seen.wchan if seen else "",
            source=chosen.source if chosen.frames or not seen else "kernel",
            trace=self.trace,
            threads=chosen.threads,
            process=chosen.facts.pid,
        )


# How long asked processes may take to answer, seconds.
_WORKERS_ANSWER = 1.0
_BELOW_ANSWER = 0.5
# The same for what they have recorded of collectives.
_RECORDERS_ANSWER = 1.0
# A handler cannot tell that it is done: its file is looked at so often, seconds.
_GLANCE = 0.01
# The thread ends within this when it is told to, seconds.
_JOIN = 1.0


class StackCollector:
    """Takes the stacks of several workers once.

    ``workers``: process ids of live workers, by local rank. Those that are not below this process
    nor below ``parent``, or lead no session, are not ours and left alone. ``written``: None for a
    glance, in which a worker of Python stands for all below it. ``parent``: process id of the
    workers' parent, where that need not be below this process (a spawner that was handed over); 0
    for none. ``recorders``: how each can be asked for its collectives, by local rank.
    """

    def __init__(
        self,
        workers: Mapping[int, int],
        written: Written | None = None,
        *,
        seconds: float = 5.0,
        parent: int = 0,
        recorders: Mapping[int, TraceSource] = MappingProxyType({}),
    ) -> None:
        self.problem = ""  # what went wrong, in one line; empty if nothing did
        self._recorders = recorders
        self._workers = dict(workers)
        self._glance = written is None
        self._written = written or Written()
        self._seconds = seconds
        self._parent = parent
        self._deadline = 0.0
        self._known = {rank: RankStack(rank) for rank in self._workers}
        self._lock = threading.Lock()
        self._unwanted = threading.Event()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; `fileno` tells the end."""
        self._deadline = time.monotonic() + self._seconds
        self._thread = threading.Thread(target=self._run, name="stacks", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """A descriptor that is readable when all is done."""
        return self._event

    def result(self) -> tuple[RankStack, ...]:
        """What is known by now, in order of rank; a rank of which nothing is known has no state."""
        with self._lock:
            return tuple(self._known[rank] for rank in sorted(self._known))

    def close(self) -> None:
        """Give up what is not done, and close the descriptor; idempotent.

        Waits a second at most for the thread; one that hangs in the kernel is left to itself.
        """
        self._unwanted.set()
        if self._thread is not None:
            self._thread.join(_JOIN)
            self._thread = None
        with self._lock:
            if self._event >= 0:
                os.close(self._event)
                self._event = -1

    def _run(self) -> None:
        # the main thread is to stop for it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
        try:
            self._collect(survey(self._workers, self._written.paths, parent=self._parent))
        except Exception as error:  # noqa: BLE001 - an attempt must end also without its stacks
            self.problem = self.problem or f"{type(error).__name__}: {error}"
        with self._lock:
            if self._event >= 0:
                os.eventfd_write(self._event, 1)

    def _collect(self, cases: list[RankCase]) -> None:
        writer = self._written
        for case in cases:
            case.worker.examine()
        self._publish(cases)
        self._ask([[case.worker] for case in cases], _WORKERS_ANSWER)
        self._publish(cases)
        self._ask_recorders(cases)
        self._publish(cases)
        self._spy([case.worker for case in cases])
        for case in cases:
            text = case.worker.section(f"worker of local rank {case.rank}")
            case.written = writer.append(case.path, writer.heading + text)
        self._publish(cases)
        below = [case.below for case in cases if not (self._glance and case.worker.python)]
        for process in (each for line in below for each in line):
            if not self._over():
                process.examine()
        self._ask(below, _BELOW_ANSWER)
        self._spy([process for line in below for process in line])
        for case in cases:
            text = "".join(process.section("below it") for process in case.below)
            more = f"\nand {case.unseen} more processes below it\n" if case.unseen else ""
            writer.append(case.path, text + more)
        self._publish(cases)
        if writer.directory:
            stacks = [replace(each, rank=writer.base_rank + each.rank) for each in self.result()]
            writer.append(f"{writer.directory}/{TREE}", writer.heading + whole_text(stacks))
        self.problem = writer.problem
        self._quote(cases)

    def _publish(self, cases: Iterable[RankCase]) -> None:
        found = {case.rank: case.stack() for case in cases}
        if not self._glance:
            # they are in the files
            found = {rank: replace(stack, threads=()) for rank, stack in found.items()}
        with self._lock:
            self._known.update(found)

    def _quote(self, cases: list[RankCase]) -> None:
        """Read the lines that the workers are at, last: the files may be where a worker hangs."""
        known = self.result()
        if not cases or self._over() or any(stack.state == "D" for stack in known):
            return
        oldest = min(case.worker.facts.start for case in cases)
        sources = Sources(started_at(oldest))
        locks = {
            case.rank: lock_waits(case.worker.threads, sources)
            for case in cases
            if case.worker.source == "faulthandler"
        }
        known = tuple(replace(stack, locks=locks.get(stack.rank, ())) for stack in known)
        quoted = with_code(known, sources)
        with self._lock:
            self._known.update({stack.rank: stack for stack in quoted})

    def _over(self) -> bool:
        return self._unwanted.is_set() or time.monotonic() >= self._deadline

    def _ask(self, lines: list[list[ProcessCase]], seconds: float) -> None:
        """Ask armed processes for their stacks: the first of each line at once, then the next.

        Those of one line write to the same file: a process and those that it forked.
        """
        queues = [list(reversed(line)) for line in lines]
        while any(queues) and not self._over():
            asked = [queue.pop() for queue in queues if queue]
            dumps = {process: Dump(process.facts, time.monotonic()) for process in asked}
            try:
                self._wait(list(dumps.values()), min(self._deadline, time.monotonic() + seconds))
            finally:
                for process, dump in dumps.items():
                    dump.close()
                    if dump.text or process.python:
                        process.tell("faulthandler", dump.text, dump.why_not)

    def _ask_recorders(self, cases: Iterable[RankCase]) -> None:
        """Ask workers that run for their collectives, and write down what they say."""
        asked = {
            case.rank: self._recorders[case.rank]
            for case in cases
            # one that is stopped, or asleep in the kernel, cannot answer
            if case.rank in self._recorders
            and case.worker.seen is not None
            and case.worker.seen.state not in ("D", "T", "t", "Z", "X")
        }
        until = min(self._deadline, time.monotonic() + _RECORDERS_ANSWER)
        answers = ask(asked, until, self._unwanted.is_set)
        for case in cases:
            answer = answers.get(case.rank, b"")
            if answer:
                case.trace = read_trace(answer, asked[case.rank][0])
            if case.path:
                # what is no JSON is worth a look, too
                path = os.path.join(os.path.dirname(case.path), TRACE_FILE)
                self._written.append(path, answer.decode(errors="replace"), _FLAGS | os.O_TRUNC)

    def _wait(self, dumps: list[Dump], until: float) -> None:
        while dumps:
            now = time.monotonic()
            last = now >= until or self._unwanted.is_set()
            dumps = [dump for dump in dumps if not dump.look(now, last)]
            if dumps:
                self._unwanted.wait(_GLANCE)

    def _spy(self, cases: Iterable[ProcessCase]) -> None:
        # py-spy would hang with one that sleeps in the kernel
        wanted = {
            process.facts.pid: process
            for process in cases
            if process.seen and process.python and not process.stacks and process.seen.state != "D"
        }
        if not wanted:
            return
        program = processes.find_spy()
        found = dict.fromkeys(wanted, ("", "it is not installed (pip install 'lllaunch[stacks]')"))
        if program:
            found = processes.spy(program, wanted, self._deadline, self._unwanted.is_set)
        for pid, (text, why_not) in found.items():
            wanted[pid].tell("py-spy", text, why_not)


def survey(
    workers: Mapping[int, int],
    paths: Mapping[int, str],
    processes: Callable[[], list[proc.ProcessFacts]] = proc.processes,
    parent: int = 0,
) -> list[RankCase]:
    """Find the processes of all ranks; those of workers that are gone, or not ours, are left out.

    ``workers``: process ids by local rank. ``paths``: files to write to, by local rank.
    """
    everything = processes()
    known = {process.pid: process for process in everything}
    roots = [os.getpid(), parent] if parent else [os.getpid()]
    ours = {process.pid for root in roots for process in proc.descendants(root, everything)}
    below = trees(workers.values(), everything)
    cases = []
    for rank, pid in sorted(workers.items()):
        if pid not in ours or known[pid].session != pid:
            continue
        pids = [each for each in below[pid] if each in known]
        cases.append(RankCase(rank, paths.get(rank, ""), tuple(known[each] for each in pids)))
    return cases
