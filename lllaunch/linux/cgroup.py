"""A cgroup (version 2) for the workers of one spawner, where the system lets us make one.

Whatever a process does with its session, environment or parents, it stays in its cgroup, and
``cgroup.kill`` ends all of them at once. So this is the surest way of ending a tree; where cgroups
are not delegated, everything works without it. Files: the kernel's cgroup-v2 documentation.
"""

from __future__ import annotations

import contextlib
import os

_MOUNTS = "/proc/self/mounts"
_OWN = "/proc/self/cgroup"
# The first part of a cgroup's name; a mark and the maker's process id follow.
_NAME = "lllaunch"


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


def _remove_left_behind(parent: str) -> None:
    """Remove the cgroups below ``parent`` that are empty, and whose makers have ended."""
    for name in os.listdir(parent):
        kind, _, rest = name.partition("-")
        maker = rest.rpartition("-")[2]
        if kind == _NAME and maker.isdecimal() and not os.path.exists(f"/proc/{maker}"):
            with contextlib.suppress(OSError):  # something lives in it, or it is another user's
                os.rmdir(os.path.join(parent, name))


class Cgroup:
    """A child cgroup of this process's own.

    Attributes:
        procs: the file that a process writes ``0`` to in order to join.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.procs = os.path.join(directory, "cgroup.procs")

    @classmethod
    def create(cls, mark: str) -> Cgroup | None:
        """Make one, and remove those that launchers have left behind that were killed.

        Args:
            mark: distinguishes those of one process.

        Returns:
            None where it is not allowed, or could not be killed as a whole.
        """
        try:
            with open(_MOUNTS) as mounts, open(_OWN) as own:
                parent = own_directory(mounts.read(), own.read())
            if parent is None:
                return None
            _remove_left_behind(parent)
            directory = os.path.join(parent, f"{_NAME}-{mark}-{os.getpid()}")
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

    def empty(self) -> bool:
        """Return whether nothing lives in it, or it is gone."""
        try:
            with open(os.path.join(self._directory, "cgroup.events"), "rb") as events:
                return b"populated 1" not in events.read()
        except OSError:
            return True

    def remove(self) -> None:
        """Remove it, if nothing is in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)
