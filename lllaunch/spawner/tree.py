"""Ending everything that descends from a spawner, and nothing else.

A process is only signalled through a pidfd, and only after the process behind the pidfd has been
seen to descend from us: numbers are reused, pidfds are not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection

from lllaunch.linux import proc
from lllaunch.linux.process import open_pidfd, send_signal


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


def kill_below(roots: Collection[int]) -> list[proc.ProcessFacts]:
    """Send SIGKILL to all live descendants of ``roots`` (not to the roots); what was there."""
    return _kill(roots, itself=False)


def kill_with_below(roots: Collection[int]) -> list[proc.ProcessFacts]:
    """Send SIGKILL to live ``roots`` and all their live descendants; what was there.

    Args:
        roots: children of this process. What another user owns is left as it is.
    """
    return _kill(roots, itself=True)


def _kill(roots: Collection[int], *, itself: bool) -> list[proc.ProcessFacts]:
    if not roots:
        return []
    everything = proc.processes()
    found = {
        process.pid: process for root in roots for process in proc.descendants(root, everything)
    }
    if itself:
        found |= {process.pid: process for process in everything if process.pid in roots}
    for process in found.values():
        signal_process(process, signal.SIGKILL)
    return list(found.values())
