"""A cgroup (version 2) for the workers of one spawner, where the system lets us make one.

Whatever a process does with its session, environment or parents, it stays in its cgroup, and
``cgroup.kill`` ends all of them at once. So this is the surest way of ending a tree; where cgroups
are not delegated, everything works without it. Files: the kernel's cgroup-v2 documentation.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

_MOUNTS = "/proc/self/mounts"
_OWN = "/proc/self/cgroup"


def own_directory(mounts: str, own: str) -> str | None:
    """The directory of this process's cgroup, from the texts of /proc/self/{mounts,cgroup}.

    Returns:
        None if no version 2 hierarchy is mounted.
    """
    roots = [line.split()[1] for line in mounts.splitlines() if line.split()[2:3] == ["cgroup2"]]
    paths = [line[3:] for line in own.splitlines() if line.startswith("0::")]
    if not roots or not paths:
        return None
    # The mounts file writes blanks as octal escapes.
    root = roots[0].encode().decode("unicode_escape")
    return os.path.join(root, paths[0].lstrip("/"))


class Cgroup:
    """A child cgroup of this process's own.

    Attributes:
        procs: the file that a process writes ``0`` to in order to join.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.procs = os.path.join(directory, "cgroup.procs")

    @classmethod
    def create(cls, name: str) -> Cgroup | None:
        """Make one; None where that is not allowed or it could not be killed as a whole."""
        try:
            with open(_MOUNTS) as mounts, open(_OWN) as own:
                parent = own_directory(mounts.read(), own.read())
            if parent is None:
                return None
            directory = os.path.join(parent, name)
            os.mkdir(directory)
        except OSError:
            return None
        group = cls(directory)
        if not os.path.exists(os.path.join(directory, "cgroup.kill")):
            # Linux before 5.14.
            group.remove()
            return None
        return group

    def kill(self) -> None:
        """SIGKILL everything in it."""
        with (
            contextlib.suppress(OSError),
            open(os.path.join(self._directory, "cgroup.kill"), "w") as f,
        ):
            f.write("1")

    def wait_empty(self, seconds: float) -> bool:
        """Wait until nothing lives in it; False if something does after ``seconds``."""
        deadline = time.monotonic() + seconds
        try:
            with open(os.path.join(self._directory, "cgroup.events"), "rb", buffering=0) as events:
                poll = select.poll()
                poll.register(events, select.POLLPRI)
                while b"populated 1" in os.pread(events.fileno(), 4096, 0):
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return False
                    poll.poll(left * 1000)
        except OSError:
            return True
        return True

    def remove(self) -> None:
        """Remove it, if nothing is in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)
