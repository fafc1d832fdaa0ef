"""Takes the stacks of all ranks before anything is signalled, and writes them down.

In a thread of its own, since a file system or a process may be what hangs. First the kernel is
asked about the workers, whose handlers interrupt what they wait in; then all armed workers are
signalled at once, so that the picture is of one moment, and all are asked for their collectives
(`lllaunch.spawner.evidence` says who answers). They are written down before what runs below them is
looked at: they matter most, and there may be no time for more.

Nothing here touches the memory of a process in uninterruptible sleep: its command line is read
under the lock of its memory map, which it may be holding, and whoever reads it would hang too.

The signal that asks for stacks ends a process that does not catch it. So it is sent to one process
at a time, through a pidfd, to a process that was seen below us, and right after the kernel said
that it catches it, does not block it and is not stopped. A signal that is blocked or waits for a
stopped process would still be pending when that executes another program, and end it.

py-spy, where it is installed, reads the stacks out of a process's memory. It is run with
``--nonblocking``, which does not stop the process: one that hangs does not change while it is read,
and one that a signal has stopped cannot be stopped again (py-spy fails).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from lllaunch.linux import proc
from lllaunch.linux.proc import ProcessFacts
from lllaunch.linux.process import open_pidfd, send_signal, short_address
from lllaunch.spawner.evidence import GROUPS, SIGNUM, TRACE_FILE, open_memory
from lllaunch.watchdog.collectives import read_trace
from lllaunch.watchdog.evidence import RankStack, RankTrace
from lllaunch.watchdog.frames import (
    MAIN_THREAD,
    TREE,
    lock_waits,
    main_frames,
    started_at,
    threads_of,
    whole_text,
    with_code,
)
from lllaunch.watchdog.sampling import trees

if TYPE_CHECKING:
    from lllaunch.watchdog.evidence import Frame, Source, Thread

# Lines of /proc/PID/status that are told.
_TOLD = ("State", "Threads", "VmRSS", "SigBlk", "SigCgt")
_SPAWNER = "lllaunch.spawner.server"
# A dump that has not grown for so long is whole, if the handler does not run; seconds.
_SETTLED = 0.03
# A handler that has not written anything by then has nowhere to write; seconds.
_SILENT = 0.2
# More than a hundred threads of a hundred frames, which is all that faulthandler writes.
_MAX_BYTES = 4 << 20
_QUIET: Any = {"stdin": subprocess.DEVNULL, "capture_output": True}


def status(pid: int) -> dict[str, str]:
    """What /proc/PID/status says, by name; nothing if the process is gone."""
    lines = proc.read_text(f"/proc/{pid}/status").splitlines()
    fields = (line.partition(":") for line in lines)
    return {name: " ".join(value.split()) for name, _, value in fields}


def has_signal(fields: Mapping[str, str], *masks: str, signum: int = SIGNUM) -> bool:
    """Whether a signal, that which asks for stacks, is in one of the masks, such as ``SigCgt``."""
    return any(int(fields.get(mask, "0"), 16) >> (signum - 1) & 1 for mask in masks)


def received(pids: Collection[int]) -> int:
    """Count the bytes that processes have received over TCP; 0 where no ``ss`` (iproute2) tells."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["ss", "-tinpHO"]
        done = subprocess.run(command, check=False, timeout=1.0, **_QUIET)
        return sum(
            int(count[1])
            for line in done.stdout.splitlines()
            if any(int(pid) in pids for pid in re.findall(rb"pid=(\d+)", line))
            and (count := re.search(rb"bytes_received:(\d+)", line))
        )
    return 0


class Process:
    """One process, as it is at one moment."""

    def __init__(self, facts: proc.ProcessFacts) -> None:
        self.facts = facts
        # what the kernel tells of it; nothing before `examine`, or when it is gone
        self.state = ""
        self.wchan = ""  # kernel function that its main thread waits in
        self.python = False
        self.stacks = ""
        self.source: Source = ""
        self.threads: tuple[Thread, ...] = ()
        self._lines: list[str] = []

    def examine(self) -> None:
        """Ask the kernel."""
        pid, fields = self.facts.pid, status(self.facts.pid)
        if not fields:
            return
        self.state = fields["State"][:1]
        # the kernel writes 0 for a process that does not wait
        self.wchan = proc.read_text(f"/proc/{pid}/wchan").strip().removeprefix("0")
        with contextlib.suppress(OSError):
            self.python = os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
        if self.state == "D":
            command = f"({proc.read_text(f'/proc/{pid}/comm').strip() or '?'})"
        elif _SPAWNER in (command := proc.command(pid, 200)):
            # A fork of the spawner's has its command line, which says nothing of what it runs.
            command = "forked by the launcher's spawner"
        self._lines = [
            f"process {pid} (parent {self.facts.ppid}): {command}",
            *(f"  {name}: {fields[name]}" for name in _TOLD if name in fields),
            f"  waits in the kernel in: {self.wchan or '-'}",
        ]

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Frames of its main thread."""
        return main_frames(self.threads)

    def section(self, role: str) -> str:
        """Its part of stacks.txt."""
        gone = f"process {self.facts.pid}: it was gone, or no time was left for it"
        # As they were written, so that other programs can read them.
        stacks = f"\n{self.stacks.strip()}\n" if self.stacks.strip() else ""
        return f"\n{role}: " + "\n".join(self._lines or [gone]) + f"\n{stacks}"

    def tell(self, source: Source, text: str, why_not: str = "") -> None:
        """Take note of its stacks as they were written, or why they were not."""
        how = {"py-spy": "read by py-spy"}.get(source, "written by itself")
        if not text:
            self._lines.append(f"  Python stacks, {how}: none, {why_not}")
            return
        self.stacks, self.source, self.threads = text, source, threads_of(text)
        by = " (faulthandler)" if source == "faulthandler" else ""
        self._lines.append(f"  Python stacks, {how}{by}:")

    def ask(self, over: Callable[[], bool]) -> Iterator[None]:
        """Ask it for its stacks; go on until they are written, or it is ``over``."""
        pid, why_not = self.facts.pid, "it is gone"
        memory, pidfd, text = -1, None, b""
        try:
            pidfd = open_pidfd(pid)
            # From here on the number cannot come to mean another process for this pidfd.
            if pidfd is not None and proc.same_process(self.facts):
                memory = open_memory(pid)
                begin = os.fstat(memory).st_size if memory >= 0 else 0
                why_not = objection(status(pid)) if memory >= 0 else "it is not prepared for that"
                if not why_not and not send_signal(pidfd, SIGNUM):
                    why_not = "it is gone"
            if not why_not:
                size, changed, done = begin, time.monotonic(), False
                while not done:
                    yield
                    now, last = time.monotonic(), over()
                    before, size, fields = size, os.fstat(memory).st_size, status(pid)
                    pending = has_signal(fields, "SigPnd", "ShdPnd")
                    if size != before or pending or has_signal(fields, "SigBlk"):
                        changed = now
                    settled = now - changed >= (_SETTLED if size > begin else _SILENT)
                    done = last or settled or not fields
                text = os.pread(memory, min(size - begin, _MAX_BYTES), begin)
                why_not = "it did not answer in time" if pending else "it wrote nothing"
        except OSError as error:
            why_not = error.strerror or str(error)
        finally:
            for fd in (pidfd, memory):
                if fd is not None and fd >= 0:
                    os.close(fd)
        if text or self.python:
            self.tell("faulthandler", text.decode(errors="replace"), why_not)


def objection(fields: Mapping[str, str]) -> str:
    """Why a process must not be sent the signal now, by its status; empty if it may."""
    state = fields.get("State", "Z")[:1]
    if state in "ZX":
        return "it is gone"
    if state in "Tt":
        return "it is stopped"
    if state == "D":
        return "it sleeps uninterruptibly"
    if not has_signal(fields, "SigCgt"):
        return "it does not catch the signal for that"
    return "it blocks the signal for that" if has_signal(fields, "SigBlk") else ""


# Reading one process takes 10 ms, a large one 0.5 s.
_SPY_SECONDS = 3.0


class _SpiedFrame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0


class _SpiedThread(msgspec.Struct):
    pid: int
    os_thread_id: int | None = None
    thread_name: str | None = None
    frames: list[_SpiedFrame] = []


def as_dump(data: bytes) -> str:
    """What py-spy tells as JSON, in the words of faulthandler, the main thread last.

    The main thread is the one that bears the process's number, or else that name. Of Python 3.10
    py-spy knows neither: then it is the only one, or more are said to follow than are listed.

    Raises:
        ValueError: it is something else.
    """
    threads = msgspec.json.decode(data, type=list[_SpiedThread])
    known = [each for each in threads if each.frames]
    by_number = [each for each in known if each.os_thread_id == each.pid]
    by_name = [each for each in known if each.thread_name == MAIN_THREAD]
    main = (by_number or by_name or (known if len(threads) == 1 else []))[:1]
    lines = []
    for thread in [*(each for each in known[::-1] if each not in main), *main]:
        name = f" [{thread.thread_name}]" if thread.thread_name else ""
        lines.append(f"Thread 0x{thread.os_thread_id or 0:x}{name} (most recent call first):")
        lines += [f'  File "{f.filename}", line {f.line} in {f.name}' for f in thread.frames]
        lines.append("")
    return "\n".join([*lines, *([] if main else ["..."])])


def find_spy() -> str:
    """The path of py-spy: beside the interpreter, or on PATH; empty if it is not installed."""
    directories = [os.path.dirname(sys.executable), *os.get_exec_path()]
    return shutil.which("py-spy", path=os.pathsep.join(directories)) or ""


def spy(
    program: str, pids: Collection[int], deadline: float, unwanted: Callable[[], bool]
) -> dict[int, tuple[str, str]]:
    """Read the stacks of several processes, one a core at a time.

    Returns by process id its dump, or an empty text and one line on why there is none.

    None may be in uninterruptible sleep, for py-spy could hang as well.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - where one must be read

    def one(pid: int) -> tuple[str, str]:
        why_not = "there was no time left for it"
        command = [program, "dump", "--pid", str(pid), "--nonblocking", "--json"]
        # a second look may succeed where the process ran on during the first
        for _ in range(2):
            seconds = min(_SPY_SECONDS, deadline - time.monotonic())
            if seconds <= 0 or unwanted():
                break
            try:
                done = subprocess.run(command, check=False, timeout=seconds, **_QUIET)
                if done.returncode == 0:
                    return as_dump(done.stdout), ""
            except subprocess.TimeoutExpired:
                return "", f"it did not end within {seconds:.1f} s"
            except OSError as error:
                return "", f"{program}: {error.strerror}"
            except ValueError:
                pass
            why_not = complaint(done.stderr.decode(errors="replace"), done.returncode)
        return "", why_not

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(pids, pool.map(one, pids), strict=True))


def complaint(text: str, status: int) -> str:
    """One line out of what py-spy writes when it fails."""
    words = text.partition("Stack backtrace:")[0].split()
    line = " ".join(words) or (
        f"it ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    )
    if "ermission" in line:
        # What it goes on to say is about sudo.
        scope = proc.read_text("/proc/sys/kernel/yama/ptrace_scope").strip()
        yama = f" (kernel.yama.ptrace_scope is {scope})" if scope not in ("", "0") else ""
        line = f"permission denied{yama}"
    return line[:300]


# What keeps the last 2000 collectives writes 1 MiB.
_MOST_TRACES = 16 << 20
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
    found: dict[tuple[int, str], bytes] = {}
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
        for key, connection in asked.items():
            # one that has answered is heard also where another has taken all the time
            connection.sock.settimeout(max(0.01, deadline - time.monotonic()))
            with contextlib.suppress(OSError, HTTPException):
                if not unwanted() and (answer := connection.getresponse()):
                    body = answer.read(_MOST_TRACES)
                    if answer.length == 0:
                        found[key] = body if answer.status == HTTPStatus.OK else b""
    documents = {}
    for rank in recorders:
        traces = [found.get((rank, name)) for name in _TRACES]
        if any(traces) and None not in traces:
            # as one object, each answer as it came
            own = (found.get((rank, GROUPS)) or b'{"groups": {}}').strip()[:-1]
            documents[rank] = b'%b, "traces": [%b]}\n' % (own, b", ".join(filter(None, traces)))
    return documents


_RULE = "=" * 72
# Processes of one rank that are looked at; the rest is counted.
MAX_PROCESSES = 32
# How long workers may take to answer, and processes below them, seconds.
_WORKERS_ANSWER, _BELOW_ANSWER = 1.0, 0.5


class Written(NamedTuple):
    """What is written of stacks, and where."""

    heading: str  # why and when they are taken
    paths: Mapping[int, str]  # the stacks.txt of each, by local rank; empty or missing for none
    directory: str = ""  # where the tree of all ranks is; empty for nowhere
    base_rank: int = 0
    hide: Callable[[str], str] = str


class RankCase:
    """One rank: its worker and the processes below it."""

    def __init__(self, rank: int, processes: list[ProcessFacts]) -> None:
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
        self._glance, self._written = written is None, written or Written("", {})
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
        if not self._glance:
            known = {rank: replace(stack, threads=()) for rank, stack in known.items()}
        return tuple(known.get(rank, RankStack(rank)) for rank in sorted(self._workers))

    def stop(self) -> None:
        """Give up what is not done.

        Waits a second at most for the thread; one that hangs in the kernel is left to itself.
        """
        self.unwanted.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

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
        heading = f"{_RULE}\n{written.heading.rstrip()}\n{_RULE}\n"
        workers = [case.worker for case in cases]
        for worker in workers:
            worker.examine()
        self._ask([[worker] for worker in workers], _WORKERS_ANSWER)
        self._ask_recorders(cases)
        self._spy(workers)
        for case in cases:
            path = written.paths.get(case.rank, "")
            if self._append(
                path, heading + case.worker.section(f"worker of local rank {case.rank}")
            ):
                case.path = path
        below = [case.below for case in cases if not self._glance or not case.worker.python]
        processes = [process for line in below for process in line]
        for process in processes:
            if not self._over():
                process.examine()
        self._ask(below, _BELOW_ANSWER)
        self._spy(processes)
        for case in cases:
            text = "".join(process.section("below it") for process in case.below)
            more = f"\nand {case.unseen} more processes below it\n" if case.unseen else ""
            self._append(written.paths.get(case.rank, ""), text + more)
        if written.directory:
            stacks = [replace(each, rank=written.base_rank + each.rank) for each in self.result()]
            self._append(f"{written.directory}/{TREE}", heading + whole_text(stacks))
        self._quote(cases)

    def _append(self, path: str, text: str, mode: str = "ab") -> bool:
        """Append to a file; False if not all of it could be written."""
        if not path or not text or path in self._bad:
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
        before = started_at(min(case.worker.facts.start for case in cases))
        known = {stack.rank: stack for stack in with_code(map(RankCase.stack, cases), before)}
        for case in cases:
            if case.worker.source == "faulthandler":
                locks = lock_waits(case.worker.threads, before)
                known[case.rank] = replace(known[case.rank], locks=locks)
        self._quoted = known

    def _over(self, until: float = math.inf) -> bool:
        return self.unwanted.is_set() or time.monotonic() >= min(until, self._deadline)

    def _ask(self, lines: list[list[Process]], seconds: float) -> None:
        """Ask armed processes for their stacks: the first of each line at once, then the next.

        Those of one line write to the same file: a process and those that it forked.
        """
        for asked in itertools.zip_longest(*lines):
            if self._over():
                break
            over = functools.partial(self._over, time.monotonic() + seconds)
            waiting = [process.ask(over) for process in asked if process is not None]
            while waiting := [each for each in waiting if next(each, each) is None]:
                # a handler cannot tell that it is done
                self.unwanted.wait(0.01)

    def _ask_recorders(self, cases: Collection[RankCase]) -> None:
        """Ask workers that run for their collectives, and write down what they say."""
        asked = {
            case.rank: self._recorders[case.rank]
            for case in cases
            # one that is stopped, or asleep in the kernel, cannot answer
            if case.rank in self._recorders and case.worker.state in ("R", "S")
        }
        until = min(self._deadline, time.monotonic() + _WORKERS_ANSWER)
        answers = ask(asked, until, self.unwanted.is_set)
        for case in cases:
            if answer := answers.get(case.rank):
                case.trace = trace = read_trace(answer, asked[case.rank][0])
                if trace is not None and trace.handled:
                    # the rest of it is torch's; a text of the user's may hold a secret
                    case.trace = replace(trace, handled=self._written.hide(trace.handled))
                # what is no JSON is worth a look, too
                if path := self._written.paths.get(case.rank):
                    path = os.path.join(os.path.dirname(path), TRACE_FILE)
                    self._append(path, answer.decode(errors="replace"), "wb")

    def _spy(self, processes: Collection[Process]) -> None:
        # py-spy would hang with one that sleeps in the kernel
        wanted = {
            process.facts.pid: process
            for process in processes
            if process.python and not process.stacks and process.state != "D"
        }
        if not wanted:
            return
        program = find_spy()
        found = dict.fromkeys(wanted, ("", "it is not installed (pip install 'lllaunch[stacks]')"))
        if program:
            found = spy(program, wanted, self._deadline, self.unwanted.is_set)
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
    return [
        RankCase(rank, [known[each] for each in below[pid] if each in known])
        for rank, pid in sorted(workers.items())
        if pid in ours and known[pid].session == pid
    ]
