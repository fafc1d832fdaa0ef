"""What the kernel says about memory: limits, and how often it killed for want of it.

Sources: cgroup v2 ``memory.max`` and ``memory.events`` (kernel, admin-guide/cgroup-v2.rst), cgroup
v1 ``memory.limit_in_bytes`` and ``memory.oom_control`` (admin-guide/cgroup-v1/memory.rst),
``oom_kill`` in ``/proc/vmstat`` and ``MemTotal`` in ``/proc/meminfo``. Every part may be missing
(containers hide some); what is missing is None.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from lllaunch.linux.cgroup_paths import hierarchies
from lllaunch.linux.proc import read_text

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
    total = _field(read_text(f"{proc}/meminfo"), "MemTotal:")
    return Memory(
        cgroup_kills=kills,
        machine_kills=_field(read_text(f"{proc}/vmstat"), "oom_kill"),
        limit=limit,
        total=None if total is None else total * 1024,  # meminfo counts in KiB
        shm_total=shm_total,
        shm_free=shm_free,
    )


def _cgroup(proc: str) -> tuple[int | None, int | None]:
    """Returns OOM kills in, and the smallest limit of, this process's memory cgroup."""
    kills: int | None = None
    limits: list[int] = []
    for version, directories in hierarchies("memory", proc):
        counted = _kills(version, directories[0])
        kills = counted if counted is not None else kills
        limits += [limit for each in directories if (limit := _limit(version, each)) is not None]
    return kills, min(limits, default=None)


def _kills(version: int, directory: str) -> int | None:
    name = "memory.events" if version == 2 else "memory.oom_control"
    return _field(read_text(f"{directory}/{name}"), "oom_kill")


def _limit(version: int, directory: str) -> int | None:
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    text = read_text(f"{directory}/{name}").strip()
    if not text.isdigit():  # not there, or 'max'
        return None
    limit = int(text)
    return None if limit >= _V1_UNLIMITED else limit


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
