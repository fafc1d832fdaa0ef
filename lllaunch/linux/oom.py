"""What the kernel says about memory: limits, and how often it killed for want of it.

Sources: cgroup v2 ``memory.max`` and ``memory.events`` (kernel, admin-guide/cgroup-v2.rst), cgroup
v1 ``memory.limit_in_bytes`` and ``memory.oom_control`` (admin-guide/cgroup-v1/memory.rst),
``oom_kill`` in ``/proc/vmstat`` and ``MemTotal`` in ``/proc/meminfo``. Every part may be missing
(containers hide some); what is missing is None.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

# cgroup v1 has no word for 'no limit': it shows the largest multiple of the page size
_V1_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class Memory:
    """Memory of this machine and of this process's cgroup at one moment.

    Attributes:
        cgroup_kills: how often the OOM killer struck in this process's cgroup or below it.
        machine_kills: how often it struck on this machine since boot.
        limit: smallest memory limit of this process's cgroup and those above it, bytes.
        total: memory of the machine, bytes.
        shm_total: size of /dev/shm, bytes.
        shm_free: what is free of it, bytes.
    """

    cgroup_kills: int | None = None
    machine_kills: int | None = None
    limit: int | None = None
    total: int | None = None
    shm_total: int | None = None
    shm_free: int | None = None


UNKNOWN = Memory()
"""Nothing could be read."""


def read_memory(proc: str = "/proc", shm: str = "/dev/shm") -> Memory:  # noqa: S108 - the mount itself, nothing is written there
    """Reads the counters now; never raises.

    Args:
        proc: where procfs is mounted.
        shm: where the shared memory's file system is mounted.
    """
    kills, limit = _cgroup(proc)
    shm_total, shm_free = _space(shm)
    total = _field(_read(f"{proc}/meminfo"), "MemTotal:")
    return Memory(
        cgroup_kills=kills,
        machine_kills=_field(_read(f"{proc}/vmstat"), "oom_kill"),
        limit=limit,
        total=None if total is None else total * 1024,  # meminfo counts in KiB
        shm_total=shm_total,
        shm_free=shm_free,
    )


def _cgroup(proc: str) -> tuple[int | None, int | None]:
    """Returns OOM kills in, and the smallest limit of, this process's memory cgroup."""
    mounts = _mounts(_read(f"{proc}/self/mountinfo"))
    kills: int | None = None
    limits: list[int] = []
    for line in _read(f"{proc}/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        version = 1 if controllers else 2
        mount = mounts.get(version)
        if mount is None:
            continue
        directories = _upwards(*mount, path)
        counted = _kills(version, directories[0])
        kills = counted if counted is not None else kills
        limits += [limit for each in directories if (limit := _limit(version, each)) is not None]
    return kills, min(limits, default=None)


def _kills(version: int, directory: str) -> int | None:
    name = "memory.events" if version == 2 else "memory.oom_control"
    return _field(_read(f"{directory}/{name}"), "oom_kill")


def _limit(version: int, directory: str) -> int | None:
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    text = _read(f"{directory}/{name}").strip()
    if not text.isdigit():  # not there, or 'max'
        return None
    limit = int(text)
    return None if limit >= _V1_UNLIMITED else limit


def _mounts(mountinfo: str) -> dict[int, tuple[str, str]]:
    """Returns by cgroup version the root and mount point of the hierarchy that counts memory."""
    found: dict[int, tuple[str, str]] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or not kind:
            continue
        if kind[0] == "cgroup2":
            found.setdefault(2, (_unescaped(fields[3]), _unescaped(fields[4])))
        elif kind[0] == "cgroup" and "memory" in kind[-1].split(","):
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


def _space(path: str) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(path)
    except OSError:
        return None, None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _field(text: str, name: str) -> int | None:
    """Returns the number after ``name`` in lines of 'name number'."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
