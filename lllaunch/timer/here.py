"""What belongs to this process alone, and is another's after a fork."""

from __future__ import annotations

import os

# threading's, without the 8 ms that importing threading takes in a bare interpreter.
from _thread import RLock


class Here:
    """This process, as the clients of timers need it.

    Attributes:
        pid: process id. Asking the kernel for it takes a third of the time of a request.
        lock: guards what the threads share. Re-entrant, as a signal handler may use timers too. A
            fork has its own, since the thread that held it there does not exist here.
    """

    __slots__ = ("lock", "pid")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew; called in each fork."""
        self.pid = os.getpid()
        self.lock = RLock()


here = Here()
os.register_at_fork(after_in_child=here.renew)
