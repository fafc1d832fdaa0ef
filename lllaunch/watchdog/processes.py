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
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from lllaunch.linux import proc
from lllaunch.linux.process import open_pidfd, send_signal
from lllaunch.spawner.evidence import SIGNUM, open_memory
from lllaunch.watchdog.frames import MAIN_THREAD

# Threads that are looked at one by one.
_MAX_THREADS = 256
# Lines of /proc/PID/status that are told.
_TOLD = ("State", "Threads", "VmRSS", "SigBlk", "SigCgt")
_ASLEEP = "D"
_SPAWNER = "lllaunch.spawner.server"
_COMMAND_WIDTH = 200


class ProcStatus(NamedTuple):
    """What /proc/PID/status says of a process and its main thread."""

    lines: tuple[str, ...]  # those worth telling, as ``Name: value``
    state: str
    threads: int
    pending: int  # signals that wait for the process or its main thread, as a bit mask
    blocked: int
    caught: int


class ProcessLook(NamedTuple):
    """One process at one moment."""

    state: str
    wchan: str  # kernel function that its main thread waits in, or an empty string
    python: bool
    lines: tuple[str, ...]  # all that the kernel tells of it, for people


def bit(signum: int) -> int:
    """A signal in the masks of `ProcStatus`."""
    return 1 << (signum - 1)


def parse_status(text: str) -> ProcStatus:
    """Read the text of /proc/PID/status; what is missing counts as zero."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.strip()

    def mask(name: str) -> int:
        try:
            return int(fields.get(name, "0"), 16)
        except ValueError:
            return 0

    threads = fields.get("Threads", "")
    return ProcStatus(
        lines=tuple(
            f"{name}: {' '.join(fields[name].split())}" for name in _TOLD if name in fields
        ),
        state=fields.get("State", "")[:1],
        threads=int(threads[:9]) if threads.isdecimal() else 0,
        pending=mask("SigPnd") | mask("ShdPnd"),
        blocked=mask("SigBlk"),
        caught=mask("SigCgt"),
    )


def status(pid: int) -> ProcStatus | None:
    """What /proc/PID/status says, or None if the process is gone."""
    text = proc.read_text(f"/proc/{pid}/status")
    return parse_status(text) if text else None


def look(process: proc.ProcessFacts) -> ProcessLook | None:
    """Look at a process.

    Returns None if it is gone.
    """
    pid = process.pid
    now = status(pid)
    if now is None:
        return None
    wchan = _wchan(f"/proc/{pid}/wchan")
    lines = [
        f"process {pid} (parent {process.ppid}): {_command(pid, now.state)}",
        *(f"  {line}" for line in now.lines),
        f"  waits in the kernel in: {wchan or '-'}",
        *_kernel_stack(pid),
    ]
    if now.threads > 1 and (threads := _threads(pid)):
        lines.append("  its other threads (count, state, kernel function, name):")
        lines += [f"    {line}" for line in threads]
    return ProcessLook(now.state, wchan, runs_python(pid), tuple(lines))


def runs_python(pid: int) -> bool:
    """Whether a process runs Python's interpreter, by the name of its program."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def _command(pid: int, state: str) -> str:
    if state == _ASLEEP:
        return f"({proc.read_text(f'/proc/{pid}/comm').strip() or '?'})"
    command = proc.command(pid, _COMMAND_WIDTH)
    # A fork of the spawner's has its command line, which says nothing of what it runs.
    return "forked by the launcher's spawner" if _SPAWNER in command else command


def _wchan(path: str) -> str:
    name = proc.read_text(path).strip()
    # The kernel writes 0 for a process that does not wait.
    return "" if name == "0" else name


def _kernel_stack(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stack", encoding="ascii", errors="replace") as file:
            lines = [f"    {line.removeprefix('[<0>] ')}" for line in file.read().splitlines()]
    except PermissionError:
        return ["  kernel stack: only root may read it"]
    except OSError as error:
        return [f"  kernel stack: {error.strerror or error}"]
    return ["  kernel stack:" + ("" if lines else " it is empty: the process runs"), *lines]


def _threads(pid: int) -> tuple[str, ...]:
    """Where the threads but the main one are; those in the same place share a line."""
    try:
        tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return ()
    places: Counter[str] = Counter()
    others = sorted(tid for tid in tids if tid != pid)
    for tid in others[:_MAX_THREADS]:
        name, state = parse_task(proc.read_text(f"/proc/{pid}/task/{tid}/stat"))
        if state:
            wchan = _wchan(f"/proc/{pid}/task/{tid}/wchan") or "-"
            places[f"{state} {wchan} ({name})"] += 1
    lines = [f"{count} x {place}" for place, count in places.most_common()]
    if len(others) > _MAX_THREADS:
        lines.append(f"and {len(others) - _MAX_THREADS} more")
    return tuple(lines)


def parse_task(text: str) -> tuple[str, str]:
    """The name and the state letter in the text of a stat file; empty if it is not one."""
    # The name, in parentheses, may hold anything, parentheses too.
    start, end = text.find("("), text.rfind(")")
    if not 0 <= start < end:
        return "", ""
    return text[start + 1 : end], text[end + 1 :].strip()[:1]


# A dump that has not grown for so long is whole, if the handler does not run; seconds.
_SETTLED = 0.03
# A handler that has not written anything by then has nowhere to write; seconds.
_SILENT = 0.2
# More than a hundred threads of a hundred frames, which is all that faulthandler writes.
_MAX_BYTES = 4 << 20


class Dump:
    """What one process writes when it is asked for its stacks.

    ``now``: monotonic clock, seconds.
    """

    def __init__(self, process: proc.ProcessFacts, now: float) -> None:
        self.why_not = ""  # why it was not asked, or has not answered; empty if it has
        self.text = ""  # what it wrote, once `look` says that it is done
        self._pid = process.pid
        self._memory = -1
        self._offset = self._size = 0
        self._changed = now
        pidfd = None
        try:
            pidfd = open_pidfd(process.pid)
            # From here on the number cannot come to mean another process for this pidfd.
            if pidfd is None or not proc.same_process(process):
                self.why_not = "it is gone"
            else:
                self._ask(pidfd)
        except OSError as error:
            self.why_not = error.strerror or str(error)
        finally:
            if pidfd is not None:
                os.close(pidfd)
        if self.why_not:
            self.close()

    def _ask(self, pidfd: int) -> None:
        self._memory = open_memory(self._pid)
        if self._memory < 0:
            self.why_not = "it is not prepared for that"
            return
        self._offset = self._size = os.fstat(self._memory).st_size
        self.why_not = objection(status(self._pid))
        if not self.why_not and not send_signal(pidfd, SIGNUM):
            self.why_not = "it is gone"

    def look(self, now: float, last: bool = False) -> bool:
        """Whether there is nothing more to wait for.

        ``now``: monotonic clock, seconds.
        """
        if self._memory < 0:
            return True
        size = os.fstat(self._memory).st_size
        current = status(self._pid)
        busy = current is not None and bool((current.pending | current.blocked) & bit(SIGNUM))
        if size != self._size or busy:
            self._size, self._changed = size, now
        quiet = now - self._changed
        empty = size == self._offset
        if not last and quiet < (_SILENT if empty else _SETTLED) and current is not None:
            return False
        if empty:
            pending = current is not None and current.pending & bit(SIGNUM)
            self.why_not = "it did not answer in time" if pending else "it wrote nothing"
        else:
            data = os.pread(self._memory, min(size - self._offset, _MAX_BYTES), self._offset)
            self.text = data.decode(errors="replace")
        self.close()
        return True

    def close(self) -> None:
        """Close what is open; idempotent."""
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1


def objection(current: ProcStatus | None) -> str:
    """Why a process must not be sent the signal now; empty if it may."""
    if current is None or current.state in "ZX":
        return "it is gone"
    if current.state in "Tt":
        return "it is stopped"
    if current.state == "D":
        return "it sleeps uninterruptibly"
    if not current.caught & bit(SIGNUM):
        return "it does not catch the signal for that"
    if current.blocked & bit(SIGNUM):
        return "it blocks the signal for that"
    return ""


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
