"""What is short when the system has no room for one more file or process."""

from __future__ import annotations

import errno
import resource

from lllaunch.linux.cgroup_paths import hierarchies
from lllaunch.linux.proc import read_text


def shortage(error: BaseException | None) -> str:
    """Return what an exception says is used up, and what limits it.

    Args:
        error: an exception; those that it came of are looked at, too.

    Returns:
        A line for people; empty if nothing is short.
    """
    seen: set[int] = set()  # under a debugger, OmegaConf's exceptions lead back to themselves
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.EMFILE:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return f"no file can be opened: this process may have {limit} open (ulimit -n)"
        if number == errno.ENFILE:
            limits = read_text("/proc/sys/fs/file-max").strip()
            return f"no file can be opened: this system may have {limits} open (fs.file-max)"
        if number == errno.EAGAIN or str(error) == "can't start new thread":
            return f"no process or thread can be started; limits: {', '.join(_of_processes())}"
        if number == errno.ENOMEM or isinstance(error, MemoryError):
            return "no memory is left"
        error = error.__cause__ or error.__context__
    return ""


def _of_processes() -> list[str]:
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
    return [*found, f"{system} of this system (kernel.threads-max)"]
