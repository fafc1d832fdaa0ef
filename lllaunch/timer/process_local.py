"""What belongs to this process alone, and is another's after a fork."""

from __future__ import annotations

import os
from _thread import RLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging


class ProcessLocal:
    """This process, as the clients of timers need it.

    ``pid``: process id. Asking the kernel for it takes a third of the time of a request. ``lock``:
    guards what the threads share. Re-entrant, as a signal handler may use timers too. A fork has
    its own, since the thread that held it there does not exist here.
    """

    __slots__ = ("lock", "pid")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin anew; called in each fork."""
        self.pid = os.getpid()
        self.lock = RLock()


this_process = ProcessLocal()
os.register_at_fork(after_in_child=this_process.renew)


def logger(name: str) -> logging.Logger:
    """Returns the logger of that name."""
    import logging  # noqa: PLC0415 - 10 ms that a worker need not pay

    return logging.getLogger(name)
