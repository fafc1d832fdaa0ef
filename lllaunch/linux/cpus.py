"""Which cores this process may use, and how much of them.

Sources: sched_getaffinity(2), which covers cpusets; cgroup v2 ``cpu.max`` (kernel,
admin-guide/cgroup-v2.rst); cgroup v1 ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us`` (kernel,
scheduler/sched-bwc.rst).
"""

from __future__ import annotations

import os
from typing import NamedTuple

from lllaunch.linux.cgroup_paths import hierarchies
from lllaunch.linux.proc import read_text


class Cores(NamedTuple):
    """What there is to compute with.

    Attributes:
        numbers: the cores that this process may run on, ascending.
        quota: how many cores' worth of time its cgroups get, None if they do not limit it.
    """

    numbers: tuple[int, ...]
    quota: float | None = None


def find_cores(proc: str = "/proc") -> Cores:
    """Looks now; never raises.

    Args:
        proc: where procfs is mounted.
    """
    quotas = [
        quota
        for version, directories in hierarchies("cpu", proc)
        for directory in directories
        if (quota := _quota(version, directory)) is not None
    ]
    return Cores(tuple(sorted(os.sched_getaffinity(0))), min(quotas, default=None))


def _quota(version: int, directory: str) -> float | None:
    if version == 2:
        words = read_text(f"{directory}/cpu.max").split()
    else:
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [read_text(f"{directory}/{name}").strip() for name in files]
    # 'max' in version 2 and '-1' in version 1 are no limit.
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])
