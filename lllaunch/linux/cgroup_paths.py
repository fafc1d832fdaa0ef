"""Where the cgroups are that limit this process: version 1, version 2, or both at once.

Sources: ``/proc/self/cgroup`` (cgroups(7)) and ``/proc/self/mountinfo`` (proc(5)). Every part may
be missing (containers hide some).
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from lllaunch.linux.proc import read_text


class Hierarchy(NamedTuple):
    """A cgroup of this process and all above it.

    Attributes:
        version: 1 or 2; their files have different names.
        directories: its own first, then upwards to the mount point.
    """

    version: int
    directories: list[str]


def hierarchies(controller: str, proc: str = "/proc") -> list[Hierarchy]:
    """Finds the cgroups that may limit this process; never raises.

    Args:
        controller: ``memory``, ``cpu``, ...
        proc: where procfs is mounted.
    """
    mounts = _mounts(read_text(f"{proc}/self/mountinfo"), controller)
    found = []
    for line in read_text(f"{proc}/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        version = 1 if controllers else 2
        if version in mounts:
            found.append(Hierarchy(version, _upwards(*mounts[version], path)))
    return found


def _mounts(mountinfo: str, controller: str) -> dict[int, tuple[str, str]]:
    """Returns by cgroup version the root and mount point of the controller's hierarchy."""
    found: dict[int, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind:
            continue
        if kind[0] == "cgroup2":
            found.setdefault(2, (_unescaped(fields[3]), _unescaped(fields[4])))
        elif kind[0] == "cgroup" and controller in kind[-1].split(","):
            found.setdefault(1, (_unescaped(fields[3]), _unescaped(fields[4])))
    return found


def _unescaped(path: str) -> str:
    """Undoes the octal escapes that mountinfo writes for blanks and backslashes (proc(5))."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)


def _upwards(root: str, mount: str, path: str) -> list[str]:
    """Returns the directory of cgroup ``path`` and all above it, within the mount.

    A container sees its own cgroup as the root of the mount while /proc/self/cgroup may show the
    path from the host's root: what lies outside the mount stands for the mount itself.
    """
    inside = os.path.relpath(path, root) if path.startswith(root) else "."
    directory = os.path.normpath(os.path.join(mount, inside))
    if not os.path.isdir(directory):
        directory = mount
    directories = [directory]
    while directory != mount and directory.startswith(mount):
        directory = os.path.dirname(directory)
        directories.append(directory)
    return directories
