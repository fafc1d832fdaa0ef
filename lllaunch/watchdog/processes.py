"""One process at a time: what the kernel tells of it, and where its threads of Python stand.

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
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from lllaunch.linux import proc
from lllaunch.linux.process import open_pidfd, send_signal
from lllaunch.spawner.evidence import SIGNUM, open_memory
from lllaunch.watchdog.frames import MAIN_THREAD, main_frames, threads_of

if TYPE_CHECKING:
    from lllaunch.watchdog.evidence import Frame, Source, Thread

# Lines of /proc/PID/status that are told.
_TOLD = ("State", "Threads", "VmRSS", "SigBlk", "SigCgt")
_SPAWNER = "lllaunch.spawner.server"
_COMMAND_WIDTH = 200
# A dump that has not grown for so long is whole, if the handler does not run; seconds.
_SETTLED = 0.03
# A handler that has not written anything by then has nowhere to write; seconds.
_SILENT = 0.2
# More than a hundred threads of a hundred frames, which is all that faulthandler writes.
_MAX_BYTES = 4 << 20


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
        done = subprocess.run(command, capture_output=True, check=False, timeout=1.0)
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
        self._memory = -1
        self._offset = self._size = 0
        self._changed = 0.0

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
        self._lines = [
            f"process {pid} (parent {self.facts.ppid}): {self._command()}",
            *(f"  {name}: {fields[name]}" for name in _TOLD if name in fields),
            f"  waits in the kernel in: {self.wchan or '-'}",
        ]

    def _command(self) -> str:
        pid = self.facts.pid
        if self.state == "D":
            return f"({proc.read_text(f'/proc/{pid}/comm').strip() or '?'})"
        command = proc.command(pid, _COMMAND_WIDTH)
        # A fork of the spawner's has its command line, which says nothing of what it runs.
        return "forked by the launcher's spawner" if _SPAWNER in command else command

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Frames of its main thread."""
        return main_frames(self.threads)

    def section(self, role: str) -> str:
        """Its part of stacks.txt."""
        if not self._lines:
            return f"\n{role}: process {self.facts.pid}: it was gone, or no time was left for it\n"
        lines = [f"\n{role}: {self._lines[0]}", *self._lines[1:]]
        if self.stacks.strip():
            # As it was written, so that other programs can read it.
            lines.append(f"\n{self.stacks.strip()}")
        return "\n".join(lines) + "\n"

    def tell(self, source: Source, text: str, why_not: str = "") -> None:
        """Take note of its stacks as they were written, or why they were not."""
        how = "read by py-spy" if source == "py-spy" else "written by itself"
        if not text:
            self._lines.append(f"  Python stacks, {how}: none, {why_not}")
            return
        self.stacks, self.source, self.threads = text, source, threads_of(text)
        by = " (faulthandler)" if source == "faulthandler" else ""
        self._lines.append(f"  Python stacks, {how}{by}:")

    def ask(self, now: float) -> None:
        """Ask it for its stacks; they are there when it has `answered`.

        ``now``: monotonic clock, seconds.
        """
        self._changed = now
        pidfd, why_not = None, "it is gone"
        try:
            pidfd = open_pidfd(self.facts.pid)
            # From here on the number cannot come to mean another process for this pidfd.
            if pidfd is not None and proc.same_process(self.facts):
                self._memory = open_memory(self.facts.pid)
                why_not = "it is not prepared for that"
                if self._memory >= 0:
                    self._offset = self._size = os.fstat(self._memory).st_size
                    why_not = objection(status(self.facts.pid))
                if not why_not and not send_signal(pidfd, SIGNUM):
                    why_not = "it is gone"
        except OSError as error:
            why_not = error.strerror or str(error)
        finally:
            if pidfd is not None:
                os.close(pidfd)
        if why_not:
            self._answer("", why_not)

    def answered(self, now: float, last: bool = False) -> bool:
        """Whether there is nothing more to wait for, or this is the ``last`` look.

        ``now``: monotonic clock, seconds.
        """
        if self._memory < 0:
            return True
        size, fields = os.fstat(self._memory).st_size, status(self.facts.pid)
        pending = has_signal(fields, "SigPnd", "ShdPnd")
        if size != self._size or pending or has_signal(fields, "SigBlk"):
            self._size, self._changed = size, now
        quiet, empty = now - self._changed, size == self._offset
        if not last and quiet < (_SILENT if empty else _SETTLED) and fields:
            return False
        data = os.pread(self._memory, min(size - self._offset, _MAX_BYTES), self._offset)
        why_not = "it did not answer in time" if pending else "it wrote nothing"
        self._answer(data.decode(errors="replace"), why_not)
        return True

    def _answer(self, text: str, why_not: str) -> None:
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1
        if text or self.python:
            self.tell("faulthandler", text, why_not)


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
# A second look may succeed where the process ran on during the first.
_TRIES = 2


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
        for _ in range(_TRIES):
            seconds = min(_SPY_SECONDS, deadline - time.monotonic())
            if seconds <= 0 or unwanted():
                break
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=seconds,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return "", f"it did not end within {seconds:.1f} s"
            except OSError as error:
                return "", f"{program}: {error.strerror}"
            with contextlib.suppress(ValueError):
                if done.returncode == 0:
                    return as_dump(done.stdout), ""
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
