"""py-spy, where it is installed: reads a Python process's stacks out of its memory, from outside.

It is run with ``--nonblocking``, which does not stop the process: a process that hangs does not
change while it is read, and one that a signal has stopped cannot be stopped again (py-spy fails).
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from lllaunch.linux.process import wait

# Reading one process takes 10 ms, a large one 0.5 s.
_SECONDS = 3.0
_KILLED_WITHIN = 0.5
# A second look may succeed where the process ran on during the first.
_TRIES = 2
_MAX_BYTES = 4 << 20
# How often it is seen whether all of this is still wanted.
_GLANCE_SECONDS = 0.1


class Spied(NamedTuple):
    """What py-spy told of a process."""

    text: str  # its dump, or an empty string
    why_not: str = ""  # one line on why there is none, or an empty string


def find() -> str:
    """The path of py-spy: beside the interpreter, or on PATH; empty if it is not installed."""
    directories = [os.path.dirname(sys.executable), *os.get_exec_path()]
    paths = (os.path.join(directory, "py-spy") for directory in directories)
    return next((path for path in paths if os.access(path, os.X_OK)), "")


class _Spy:
    """One py-spy that runs."""

    def __init__(self, program: str, pid: int, tries: int) -> None:
        # Only where a process is really read: it takes the launcher 5 ms.

        self.pid = pid
        self.tries = tries
        self.started = time.monotonic()
        self._files = [os.memfd_create("py-spy", os.MFD_CLOEXEC) for _ in range(2)]
        self.pidfd = -1
        try:
            self._process = subprocess.Popen(
                [
                    *_dying_with_us(),
                    program,
                    "dump",
                    "--pid",
                    str(pid),
                    "--nonblocking",
                    "--full-filenames",
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._files[0],
                stderr=self._files[1],
            )
        except OSError:
            self._close()
            raise
        try:
            self.pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            self.end()
            raise

    def _close(self) -> None:
        for fd in (*self._files, self.pidfd):
            if fd >= 0:
                os.close(fd)

    def end(self) -> Spied:
        """What it told; it is killed if it runs still. To be called once."""
        status = self._process.poll()
        if status is None:
            self._process.kill()
            # If it hangs in the kernel itself, it is left to that.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILLED_WITHIN)
        out, err = (os.pread(fd, _MAX_BYTES, 0).decode(errors="replace") for fd in self._files)
        self._close()
        if status is None:
            return Spied("", f"it did not end within {time.monotonic() - self.started:.1f} s")
        return Spied(out) if status == 0 and out.strip() else Spied("", complaint(err, status))


@functools.cache
def _dying_with_us() -> tuple[str, ...]:
    """What to put before a command so that it ends with the thread that started it.

    A function to be called in the child could deadlock here, since other threads run.
    """
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "KILL", "--") if setpriv else ()


def complaint(text: str, status: int) -> str:
    """One line out of what py-spy writes when it fails."""
    words = text.partition("Stack backtrace:")[0].split()
    line = " ".join(words) or (
        f"it ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    )
    if "ermission" in line:
        # What it goes on to say is about sudo.
        line = f"permission denied{_yama()}"
    return line[:300]


def _yama() -> str:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            scope = file.read().strip()
    except OSError:
        return ""
    return f" (kernel.yama.ptrace_scope is {scope})" if scope != "0" else ""


def spy(
    program: str, pids: Iterable[int], deadline: float, unwanted: Callable[[], bool]
) -> dict[int, Spied]:
    """Read the stacks of several processes, some at a time.

    ``pids``: the processes; none may be in uninterruptible sleep, for py-spy could hang as well.
    Returns what it told, by process id.
    """
    waiting = [(pid, 1) for pid in reversed(list(pids))]
    running: dict[int, _Spy] = {}
    found: dict[int, Spied] = {}
    try:
        while (waiting or running) and time.monotonic() < deadline and not unwanted():
            while waiting and len(running) < (os.cpu_count() or 1):
                pid, tries = waiting.pop()
                try:
                    started = _Spy(program, pid, tries)
                except OSError as error:
                    found[pid] = Spied("", f"{program}: {error.strerror}")
                    continue
                running[started.pidfd] = started
            ended = {*wait(running, seconds=_GLANCE_SECONDS)}
            now = time.monotonic()
            ended |= {fd for fd, each in running.items() if now - each.started > _SECONDS}
            for fd in ended:
                done = running.pop(fd)
                found[done.pid] = told = done.end()
                if told.why_not and done.tries < _TRIES and now - done.started < _SECONDS:
                    waiting.append((done.pid, done.tries + 1))
    finally:
        for each in running.values():
            with contextlib.suppress(OSError):
                found.setdefault(each.pid, each.end())
    for pid, _ in waiting:
        found.setdefault(pid, Spied("", "there was no time left for it"))
    return found
