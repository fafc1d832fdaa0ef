"""Asking armed workers for their stacks: the signal, and the wait for what they write.

The signal ends a process that does not catch it. So it is sent to one process at a time, through a
pidfd, to a process that was seen below us, and right after the kernel said that it catches it, does
not block it and is not stopped. A signal that is blocked or waits for a stopped process would still
be pending when that executes another program, and end it.
"""

from __future__ import annotations

import contextlib
import os

from lllaunch.linux import proc
from lllaunch.linux.process import open_pidfd, send_signal
from lllaunch.spawner.dump import MEMFD_LINK, SIGNUM
from lllaunch.watchdog.stacks.kernel import ProcStatus, bit, status

# A dump that has not grown for so long is whole, if the handler does not run; seconds.
_SETTLED = 0.03
# A handler that has not written anything by then has nowhere to write; seconds.
_SILENT = 0.2
# More than a hundred threads of a hundred frames, which is all that faulthandler writes.
_MAX_BYTES = 4 << 20


class Dump:
    """What one process writes when it is asked for its stacks.

    Attributes:
        why_not: why it was not asked, or has not answered; empty if it has.
        text: what it wrote, once `look` says that it is done.

    Args:
        process: it, as it was seen below us.
        now: monotonic clock, seconds.
    """

    def __init__(self, process: proc.ProcessFacts, now: float) -> None:
        self.why_not = ""
        self.text = ""
        self._pid = process.pid
        self._memory = -1
        self._offset = self._size = 0
        self._asked = self._changed = now
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

    @property
    def requested(self) -> bool:
        """Whether the signal was sent."""
        return self._memory >= 0

    def look(self, now: float, last: bool = False) -> bool:
        """Whether there is nothing more to wait for.

        Args:
            now: monotonic clock, seconds.
            last: there is no more time; what was written by now is all.
        """
        if not self.requested:
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


def open_memory(pid: int) -> int:
    """Open the memory file that a worker writes its stacks to; -1 if it has none."""
    directory = f"/proc/{pid}/fd"
    try:
        # Ours has one of the highest numbers.
        names = sorted(os.listdir(directory), key=int, reverse=True)
    except OSError:
        return -1
    for name in names:
        with contextlib.suppress(OSError):
            if os.readlink(f"{directory}/{name}") == MEMFD_LINK:
                return os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    return -1
