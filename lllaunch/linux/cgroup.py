"""Control groups: what limits this process, and a group for the workers of a spawner.

Whatever a process does with its session, environment or parents, it stays in its cgroup, and
``cgroup.kill`` ends all of them at once. So this is the surest way of ending a tree; where cgroups
are not delegated, everything works without it.

Sources: ``/proc/self/cgroup`` (cgroups(7)); sched_getaffinity(2), which covers cpusets; the
kernel's admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1, and scheduler/sched-bwc.rst for quotas
of version 1. Every part may be missing (containers hide some); what is missing is None.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from typing import NamedTuple

from lllaunch.files import too_many_open
from lllaunch.linux.proc import read_text


def hierarchies(controller: str, root: str = "/") -> list[tuple[int, list[str]]]:
    """Finds the cgroups that may limit this process, where systems mount them; never raises.

    ``controller``: ``memory``, ``cpu``, ... ``root``: where ``proc`` and ``sys`` are. Returns
    versions, each with the directories of this process's own cgroup and of all above it.
    """
    found = []
    for line in read_text(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        top = os.path.join(root, "sys/fs/cgroup")
        # where there are both versions, each has directories of its own
        inside = os.path.join(top, controller if controllers else "unified")
        if controllers or os.path.isdir(inside):
            top = inside
        directories, directory = [], os.path.normpath(top + path)
        while len(directory) > len(top):
            directories.append(directory)
            directory = os.path.dirname(directory)
        # A container sees its own cgroup at the top, and may be told its path on the host.
        seen = [directory for directory in directories if os.path.isdir(directory)]
        found.append((1 if controllers else 2, [*seen, top]))
    return found


# The first part of a cgroup's name; a mark and the maker's process id follow.
_NAME = "lllaunch"


def _remove_left_behind(parent: str) -> None:
    """Remove the cgroups below ``parent`` that are empty, and whose makers have ended."""
    for name in os.listdir(parent):
        kind, _, rest = name.partition("-")
        maker = rest.rpartition("-")[2]
        if kind == _NAME and maker.isdecimal() and not os.path.exists(f"/proc/{maker}"):
            with contextlib.suppress(OSError):  # something lives in it, or it is another user's
                os.rmdir(os.path.join(parent, name))


class Cgroup:
    """A child cgroup of this process's own."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # the file that a process writes ``0`` to in order to join
        self.procs = os.path.join(directory, "cgroup.procs")

    @classmethod
    def create(cls, mark: str) -> Cgroup | None:
        """Make one, and remove those that launchers have left behind that were killed.

        Returns None where it is not allowed, or could not be killed as a whole.
        """
        try:
            own = [directories[0] for version, directories in hierarchies("") if version == 2]
            if not own:
                return None
            _remove_left_behind(own[0])
            directory = os.path.join(own[0], f"{_NAME}-{mark}-{os.getpid()}")
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
        path = os.path.join(self._directory, "cgroup.kill")
        with contextlib.suppress(OSError), open(path, "w") as file:
            file.write("1")

    def empty(self) -> bool:
        """Return whether nothing lives in it, or it is gone."""
        return "populated 1" not in read_text(os.path.join(self._directory, "cgroup.events"))

    def remove(self) -> None:
        """Remove it, if nothing is in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self._directory)


class Cores(NamedTuple):
    """What there is to compute with."""

    numbers: tuple[int, ...]  # the cores that this process may run on, ascending
    # how many cores' worth of time its cgroups get, None if they do not limit it
    quota: float | None = None


def find_cores(root: str = "/") -> Cores:
    """Looks now; never raises."""
    quotas = []
    for version, directories in hierarchies("cpu", root):
        files = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        for directory in directories:
            words = " ".join(read_text(f"{directory}/{name}") for name in files).split()
            # 'max' in version 2 and '-1' in version 1 are no limit
            if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
                quotas.append(int(words[0]) / int(words[1]))
    return Cores(tuple(sorted(os.sched_getaffinity(0))), min(quotas, default=None))


# cgroup v1 has no word for 'no limit': it shows the largest multiple of the page size
_V1_UNLIMITED = 1 << 60


class Memory(NamedTuple):
    """Memory of this machine and of this process's cgroup at one moment."""

    # how often the OOM killer struck in this process's cgroup or below it
    cgroup_kills: int | None = None
    machine_kills: int | None = None  # how often it struck on this machine since boot
    # smallest memory limit of this process's cgroup and those above it, bytes
    limit: int | None = None
    total: int | None = None  # memory of the machine, bytes
    shm_total: int | None = None  # size of /dev/shm, bytes
    shm_free: int | None = None  # what is free of it, bytes


UNKNOWN = Memory()
"""Nothing could be read."""


def read_memory(root: str = "/") -> Memory:
    """Reads the counters now; never raises."""
    kills: int | None = None
    limits = []
    for version, directories in hierarchies("memory", root):
        events = "memory.events" if version == 2 else "memory.oom_control"
        counted = _field(read_text(f"{directories[0]}/{events}"), "oom_kill")
        kills = counted if counted is not None else kills
        most = "memory.max" if version == 2 else "memory.limit_in_bytes"
        texts = [read_text(f"{directory}/{most}").strip() for directory in directories]
        # it may not be there, or be 'max'
        limits += [int(text) for text in texts if text.isdigit() and int(text) < _V1_UNLIMITED]
    shm_total = shm_free = None
    with contextlib.suppress(OSError):
        found = os.statvfs(os.path.join(root, "dev/shm"))
        shm_total, shm_free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    total = _field(read_text(os.path.join(root, "proc/meminfo")), "MemTotal:")
    return Memory(
        cgroup_kills=kills,
        machine_kills=_field(read_text(os.path.join(root, "proc/vmstat")), "oom_kill"),
        limit=min(limits, default=None),
        total=None if total is None else total * 1024,  # meminfo counts in KiB
        shm_total=shm_total,
        shm_free=shm_free,
    )


def _field(text: str, name: str) -> int | None:
    """Returns the number after ``name`` in lines of 'name number'."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def shortage(error: BaseException | None) -> str:
    """Return what an exception says is used up, and what limits it.

    Returns a line for people; empty if nothing is short.
    """
    seen: set[int] = set()  # under a debugger, OmegaConf's exceptions lead back to themselves
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        number = error.errno if isinstance(error, OSError) else None
        if isinstance(error, OSError) and (text := too_many_open(error)):
            return text
        if number == errno.EAGAIN or str(error) == "can't start new thread":
            return f"no process or thread can be started; limits: {_limits_of_processes()}"
        if number == errno.ENOMEM or isinstance(error, MemoryError):
            return "no memory is left"
        error = error.__cause__ or error.__context__
    return ""


def _limits_of_processes() -> str:
    """Return the limits on processes and threads, with where they are set."""
    found = []
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit != resource.RLIM_INFINITY:
        found.append(f"{limit} of this user (ulimit -u)")
    for _, directories in hierarchies("pids"):
        for directory in directories:
            text = read_text(f"{directory}/pids.max").strip()
            if text.isdigit():
                found.append(f"{text} in {directory} (pids.max)")
    system = read_text("/proc/sys/kernel/threads-max").strip()
    return ", ".join([*found, f"{system} of this system (kernel.threads-max)"])
