"""Facts about the machine that a run ran on, as result.json holds them."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lllaunch.linux.cgroup import Memory


def host_facts(memory: Memory) -> dict[str, Any]:
    """Returns name, kernel, CPUs, memory and the Python version.

    Args:
        memory: of this machine, as read when the run began.
    """
    system = os.uname()
    return {
        "hostname": socket.gethostname(),
        "kernel": f"{system.sysname} {system.release} {system.machine}",
        # the CPUs this process may use, not those of the machine
        "cpus": len(os.sched_getaffinity(0)),
        "memory": memory.total,
        "memory_limit": memory.limit,
        "python": sys.version.split()[0],
    }
