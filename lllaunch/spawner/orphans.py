"""What is left of a worker's descendants: found, ended and waited for.

A process is only signalled through a pidfd, and only after the process behind the pidfd has been
seen to descend from us: numbers are reused, pidfds are not.

The launcher is a child subreaper, so what the spawner's death orphans becomes its child. It ends
those that descend from the spawner, and no others: the launcher may be somebody's own program with
children of its own. They are known by the mark of their lineage, or, where a process cannot have
that, by the mark in their environment. Numbers tell nothing: those of workers that have ended are
given to others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from typing import ClassVar

from lllaunch.events import Orphan
from lllaunch.linux import proc
from lllaunch.linux.process import descends_from, open_pidfd, send_signal


def signal_process(known: proc.ProcessFacts, signum: int) -> bool:
    """Signal a process that was seen in /proc, if it is still that one; False if that cannot be."""
    try:
        pidfd = open_pidfd(known.pid)
    except OSError:  # no descriptor is left
        return False
    if pidfd is None:
        return False
    try:
        # From here on the number cannot come to mean another process for this pidfd.
        return proc.same_process(known) and send_signal(pidfd, signum)
    except PermissionError:
        return False
    finally:
        os.close(pidfd)


def kill_below(roots: Collection[int], *, itself: bool = False) -> list[proc.ProcessFacts]:
    """Send SIGKILL to all live descendants of ``roots``, or to them as well; what was there."""
    found = _family(roots, itself=itself)
    for process in found:
        signal_process(process, signal.SIGKILL)
    return found


def _family(roots: Collection[int], *, itself: bool) -> list[proc.ProcessFacts]:
    everything = proc.processes() if roots else []
    heads = [each for each in everything if itself and each.pid in roots and each.state not in "ZX"]
    below = proc.descendants(roots, everything)
    return list({process.pid: process for process in (*heads, *below)}.values())


# Some processes that a worker leaves behind (multiprocessing's resource tracker, torch's shared
# memory manager) end by themselves when they see that it is gone, and clean up. They get this long.
SETTLE_SECONDS = 0.5
# Between two rounds of killing: the first when new processes keep appearing; up to the last while
# those that are there do not end (uninterruptible sleep, another user's).
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0


class OrphanCleanup:
    """Wait a moment for orphans to end, then kill them in rounds until none is left.

    ``settle``: seconds that orphans get to end by themselves.
    """

    def __init__(self, settle: float = SETTLE_SECONDS) -> None:
        self._changed = time.monotonic()  # when a process was last seen that no round had seen
        self._deadline = self._changed + settle
        self._pause = _SHORTEST_PAUSE
        self._seen: dict[int, str] = {}
        self._killed: set[int] = set()

    def next_in(self) -> float:
        """Return in how many seconds the next step is due, if no child ends before."""
        return max(self._deadline - time.monotonic(), self._pause)

    def stuck_for(self) -> float:
        """Return for how many seconds nothing new has appeared."""
        return time.monotonic() - self._changed

    def go_on(self, orphans: Collection[int]) -> bool:
        """Take one step; True when nothing is left."""
        if not orphans:
            return True
        late = time.monotonic() >= self._deadline
        # what was below one that has just ended is an orphan only the next time
        alive = kill_below(orphans, itself=True) if late else _family(orphans, itself=True)
        for process in alive:
            self._seen.setdefault(process.pid, proc.command(process.pid))
        if late and alive:
            pids = {process.pid for process in alive}
            if pids <= self._killed:
                self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            else:
                self._killed |= pids
                self._pause, self._changed = _SHORTEST_PAUSE, time.monotonic()
        return False

    def orphans(self) -> tuple[Orphan, ...]:
        """What was found."""
        return tuple(Orphan(pid, text, pid in self._killed) for pid, text in self._seen.items())


# Set in the spawner's own environment, and so in all that descends from it.
MARK = "LLLAUNCH_RUN"
# Orphans appear while their parents die; this many rounds without one mean that none is left.
_QUIET_ROUNDS = 2
_QUIET_PAUSE = 0.01
# What does not end although it was killed (uninterruptible sleep, another user's) is left then.
GIVE_UP_SECONDS = 10.0


class Inherited:
    """What each spawner gets that this process starts or adopts; set in the job of a cleanup."""

    # 16 hexadecimal digits that the marks of all of them end in, so that their lineage is one;
    # empty for one of its own
    lineage: ClassVar[str] = ""
    # descriptors that a spawner keeps open until all that it started has ended: locks of what its
    # workers use
    held: ClassVar[tuple[int, ...]] = ()


def new_mark() -> str:
    """Return a mark for a spawner."""
    return os.urandom(8).hex() + (Inherited.lineage or os.urandom(8).hex())


def is_of(pid: int, mark: str) -> bool:
    """Whether somebody with a mark started a process, or what that descends from."""
    return descends_from(pid, mark) or proc.environment_holds(pid, f"{MARK}={mark}".encode())


def end_adopted(mark: str) -> None:
    """Kill and reap the adopted processes of one spawner, repeatedly until none is left."""
    cleanup, quiet = OrphanCleanup(settle=0.0), 0
    while quiet < _QUIET_ROUNDS and cleanup.stuck_for() < GIVE_UP_SECONDS:
        nothing_is_left = False
        with contextlib.suppress(OSError):  # nobody knows what is: no descriptor is left
            found = [pid for pid in proc.children(os.getpid()) if is_of(pid, mark)]
            for pid in found:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            nothing_is_left = cleanup.go_on(found)
        quiet = quiet + 1 if nothing_is_left else 0
        time.sleep(_QUIET_PAUSE if nothing_is_left else cleanup.next_in())
