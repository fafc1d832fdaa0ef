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
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from lllaunch.linux import proc
from lllaunch.linux.proc import ProcessFacts
from lllaunch.linux.process import short_address
from lllaunch.spawner.evidence import GROUPS, TRACE_FILE
from lllaunch.watchdog import processes
from lllaunch.watchdog.collectives import read_trace
from lllaunch.watchdog.evidence import RankStack, RankTrace
from lllaunch.watchdog.frames import TREE, Sources, lock_waits, started_at, whole_text, with_code
from lllaunch.watchdog.processes import Process
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
        own = parts.get(GROUPS, b'{"groups": {}}').strip()[:-1]
        traces = b", ".join(parts[name] for name in _TRACES if name in parts)
        documents[rank] = b'%b, "traces": [%b]}\n' % (own, traces)
    return documents


_RULE = "=" * 72
# Processes of one rank that are looked at; the rest is counted.
MAX_PROCESSES = 32
# How long asked processes may take to answer, seconds.
_WORKERS_ANSWER = 1.0
_BELOW_ANSWER = 0.5
# The same for what they have recorded of collectives.
_RECORDERS_ANSWER = 1.0
# A handler cannot tell that it is done: its file is looked at so often, seconds.
_GLANCE = 0.01
# The thread ends within this when it is told to, seconds.
_JOIN = 1.0


class Written(NamedTuple):
    """What is written of stacks, and where."""

    heading: str  # why and when they are taken
    paths: Mapping[int, str]  # the stacks.txt of each, by local rank; empty or missing for none
    directory: str = ""  # where the tree of all ranks is; empty for nowhere
    base_rank: int = 0
    hide: Callable[[str], str] = str


class RankCase:
    """One rank: its worker and the processes below it."""

    def __init__(self, rank: int, processes: tuple[ProcessFacts, ...]) -> None:
        self.rank = rank
        self.path = ""  # its stacks.txt, once something is written there
        self.worker = Process(processes[0])
        self.trace: RankTrace | None = None
        self.below = [Process(facts) for facts in processes[1:MAX_PROCESSES]]
        self.unseen = len(processes) - 1 - len(self.below)

    def stack(self) -> RankStack:
        """What is known by now.

        A worker that is no Python program (a shell script) stands where the first process below it
        stands that is one.
        """
        worker = chosen = self.worker
        if worker.state and not worker.python:
            chosen = next((process for process in self.below if process.frames), worker)
        return RankStack(
            self.rank,
            self.path,
            chosen.frames,
            state=worker.state,
            wchan=worker.wchan,
            source=chosen.source if chosen.frames or not worker.state else "kernel",
            trace=self.trace,
            handled="" if self.trace is None else self.trace.handled,
            threads=chosen.threads,
            process=chosen.facts.pid,
        )


class StackCollector:
    """Takes the stacks of several workers once.

    ``workers``: process ids of live workers, by local rank. Those that are not below this process
    nor below ``parent``, or lead no session, are not ours and left alone. ``written``: None for a
    glance, in which a worker of Python stands for all below it. ``parent``: process id of the
    workers' parent, where that need not be below this process (a spawner that was handed over); 0
    for none. ``recorders``: how each can be asked for its collectives, by local rank.

    What an earlier finding of the same attempt left in a file stays. After an error no more is
    written to that file.
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
        self.problem = ""  # what went wrong first, in one line; empty if nothing did
        self._recorders = recorders
        self._workers = dict(workers)
        self._written = written
        self._seconds = seconds
        self._parent = parent
        self._deadline = 0.0
        self._cases: list[RankCase] = []
        # with the lines of the code, once they are read
        self._quoted: dict[int, RankStack] = {}
        self._bad: set[str] = set()
        self.unwanted = threading.Event()  # set when it is given up
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="stacks", daemon=True)

    def start(self) -> None:
        """Begin; `fileno` tells the end."""
        self._deadline = time.monotonic() + self._seconds
        self._thread.start()

    def fileno(self) -> int:
        """A descriptor that is readable when all is done."""
        return self._event

    def result(self) -> tuple[RankStack, ...]:
        """What is known by now, in order of rank; a rank of which nothing is known has no state.

        At a glance with the threads; else they are in the files.
        """
        known = {case.rank: case.stack() for case in self._cases} | self._quoted
        if self._written is not None:
            known = {rank: replace(stack, threads=()) for rank, stack in known.items()}
        return tuple(known.get(rank, RankStack(rank)) for rank in sorted(self._workers))

    def stop(self) -> None:
        """Give up what is not done.

        Waits a second at most for the thread; one that hangs in the kernel is left to itself.
        """
        self.unwanted.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN)

    def close(self) -> None:
        """Stop, and close the descriptor, unless the thread still has it; idempotent."""
        self.stop()
        if self._event >= 0 and not self._thread.is_alive():
            os.close(self._event)
        self._event = -1

    def _run(self) -> None:
        # the main thread is to stop for it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
        done = self._event
        try:
            self._cases = survey(self._workers, parent=self._parent)
            self._collect(self._cases)
        except Exception as error:  # noqa: BLE001 - an attempt must end also without its stacks
            self.problem = self.problem or f"{type(error).__name__}: {error}"
        os.eventfd_write(done, 1)

    def _collect(self, cases: list[RankCase]) -> None:
        written = self._written
        heading = "" if written is None else f"{_RULE}\n{written.heading.rstrip()}\n{_RULE}\n"
        paths = {} if written is None else written.paths
        for case in cases:
            case.worker.examine()
        self._ask([[case.worker] for case in cases], _WORKERS_ANSWER)
        self._ask_recorders(cases, paths)
        self._spy([case.worker for case in cases])
        for case in cases:
            text = heading + case.worker.section(f"worker of local rank {case.rank}")
            if self._append(paths.get(case.rank, ""), text):
                case.path = paths[case.rank]
        below = [case.below for case in cases if written is not None or not case.worker.python]
        for process in (each for line in below for each in line):
            if not self._over():
                process.examine()
        self._ask(below, _BELOW_ANSWER)
        self._spy([process for line in below for process in line])
        for case in cases:
            text = "".join(process.section("below it") for process in case.below)
            more = f"\nand {case.unseen} more processes below it\n" if case.unseen else ""
            self._append(paths.get(case.rank, ""), text + more)
        if written is not None and written.directory:
            stacks = [replace(each, rank=written.base_rank + each.rank) for each in self.result()]
            self._append(f"{written.directory}/{TREE}", heading + whole_text(stacks))
        self._quote(cases)

    def _append(self, path: str, text: str, mode: str = "ab") -> bool:
        """Append to a file; False if not all of it could be written."""
        if self._written is None or not path or not text or path in self._bad:
            return False
        try:
            with open(path, mode) as file:
                file.write(self._written.hide(text).encode(errors="replace"))
        except OSError as error:
            self._bad.add(path)
            self.problem = self.problem or f"{path}: {error.strerror or error}"
            return False
        return True

    def _quote(self, cases: list[RankCase]) -> None:
        """Read the lines that the workers are at, last: the files may be where a worker hangs."""
        if not cases or self._over() or any(case.worker.state == "D" for case in cases):
            return
        sources = Sources(started_at(min(case.worker.facts.start for case in cases)))
        stacks = []
        for case in cases:
            worker = case.worker
            locks = lock_waits(worker.threads, sources) if worker.source == "faulthandler" else ()
            stacks.append(replace(case.stack(), locks=locks))
        self._quoted = {stack.rank: stack for stack in with_code(stacks, sources)}

    def _over(self) -> bool:
        return self.unwanted.is_set() or time.monotonic() >= self._deadline

    def _ask(self, lines: list[list[Process]], seconds: float) -> None:
        """Ask armed processes for their stacks: the first of each line at once, then the next.

        Those of one line write to the same file: a process and those that it forked.
        """
        queues = [list(reversed(line)) for line in lines]
        while any(queues) and not self._over():
            asked = [queue.pop() for queue in queues if queue]
            for process in asked:
                process.ask(time.monotonic())
            until, waiting = min(self._deadline, time.monotonic() + seconds), asked
            while waiting:
                now = time.monotonic()
                last = now >= until or self.unwanted.is_set()
                waiting = [process for process in waiting if not process.answered(now, last)]
                if waiting:
                    self.unwanted.wait(_GLANCE)

    def _ask_recorders(self, cases: Collection[RankCase], paths: Mapping[int, str]) -> None:
        """Ask workers that run for their collectives, and write down what they say."""
        asked = {
            case.rank: self._recorders[case.rank]
            for case in cases
            # one that is stopped, or asleep in the kernel, cannot answer
            if case.rank in self._recorders and case.worker.state in ("R", "S")
        }
        until = min(self._deadline, time.monotonic() + _RECORDERS_ANSWER)
        answers = ask(asked, until, self.unwanted.is_set)
        for case in cases:
            answer, path = answers.get(case.rank, b""), paths.get(case.rank, "")
            if answer:
                case.trace = trace = read_trace(answer, asked[case.rank][0])
                if trace is not None and trace.handled and self._written is not None:
                    # the rest of it is torch's; a text of the user's may hold a secret
                    case.trace = replace(trace, handled=self._written.hide(trace.handled))
            if path:
                # what is no JSON is worth a look, too
                path = os.path.join(os.path.dirname(path), TRACE_FILE)
                self._append(path, answer.decode(errors="replace"), "wb")

    def _spy(self, cases: Collection[Process]) -> None:
        # py-spy would hang with one that sleeps in the kernel
        wanted = {
            process.facts.pid: process
            for process in cases
            if process.python and not process.stacks and process.state != "D"
        }
        if not wanted:
            return
        program = processes.find_spy()
        found = dict.fromkeys(wanted, ("", "it is not installed (pip install 'lllaunch[stacks]')"))
        if program:
            found = processes.spy(program, wanted, self._deadline, self.unwanted.is_set)
        for pid, (text, why_not) in found.items():
            wanted[pid].tell("py-spy", text, why_not)


def survey(
    workers: Mapping[int, int],
    processes: Callable[[], list[proc.ProcessFacts]] = proc.processes,
    parent: int = 0,
) -> list[RankCase]:
    """Find the processes of all ranks; those of workers that are gone, or not ours, are left out.

    ``workers``: process ids by local rank.
    """
    everything = processes()
    known = {process.pid: process for process in everything}
    roots = [os.getpid(), parent] if parent else [os.getpid()]
    ours = {process.pid for process in proc.descendants(roots, everything)}
    below = trees(workers.values(), everything)
    cases = []
    for rank, pid in sorted(workers.items()):
        if pid not in ours or known[pid].session != pid:
            continue
        pids = [each for each in below[pid] if each in known]
        cases.append(RankCase(rank, tuple(known[each] for each in pids)))
    return cases
