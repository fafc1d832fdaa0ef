"""After the end of who started workers: ending the orphans that the kernel gave to this process.

The launcher is a child subreaper, so what the spawner's death orphans becomes its child. It ends
those that descend from the spawner, and no others: the launcher may be somebody's own program with
children of its own. They are known by the mark of their lineage, or, where a process cannot have
that, by the mark in their environment. Numbers tell nothing: those of workers that have ended are
given to others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from typing import ClassVar

from lllaunch.linux import proc
from lllaunch.linux.process import descends_from
from lllaunch.spawner.sweep import Sweep

# Set in the spawner's own environment, and so in all that descends from it.
MARK = "LLLAUNCH_RUN"
# Orphans appear while their parents die; this many rounds without one mean that none is left.
_QUIET_ROUNDS = 2
_QUIET_PAUSE = 0.01
# What does not end although it was killed (uninterruptible sleep, another user's) is left then.
GIVE_UP_SECONDS = 10.0


class Inherited:
    """What each spawner gets that this process starts or adopts; set in the job of a sweep.

    Attributes:
        lineage: 16 hexadecimal digits that the marks of all of them end in, so that their lineage
            is one; empty for one of its own.
        held: descriptors that a spawner keeps open until all that it started has ended: locks of
            what its workers use.
    """

    lineage: ClassVar[str] = ""
    held: ClassVar[tuple[int, ...]] = ()


def new_mark() -> str:
    """Return a mark for a spawner."""
    return os.urandom(8).hex() + (Inherited.lineage or os.urandom(8).hex())


def adopted(mark: str, besides: Collection[int] = ()) -> list[int]:
    """Return the children of this process that somebody with ``mark`` started, and reap the dead.

    Args:
        mark: what distinguishes them.
        besides: process ids of children that are left alone.
    """
    found = [pid for pid in proc.children(os.getpid()) if pid not in besides and is_of(pid, mark)]
    for pid in found:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return found


def is_of(pid: int, mark: str) -> bool:
    """Whether somebody with a mark started a process, or what that descends from."""
    return descends_from(pid, mark) or proc.environment_holds(pid, f"{MARK}={mark}".encode())


def end_adopted(mark: str) -> Iterator[float]:
    """Kill and reap the adopted processes of one spawner, repeatedly until none is left.

    Args:
        mark: what distinguishes them.

    Yields:
        How long to wait before the next step, seconds.
    """
    sweep, quiet = Sweep(settle=0.0), 0
    while quiet < _QUIET_ROUNDS and sweep.stuck_for() < GIVE_UP_SECONDS:
        if sweep.go_on(adopted(mark)):
            quiet += 1
            yield _QUIET_PAUSE
        else:
            quiet = 0
            yield sweep.next_in()
