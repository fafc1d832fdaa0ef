"""Starting one worker, in the spawner: its files, the report pipe, the fork."""

from __future__ import annotations

import os
from collections.abc import Iterable

from lllaunch.spawner.child import Surroundings, become_worker
from lllaunch.spawner.order import Order

# Appended to, so that `echo x > /dev/stdout` in a worker does not truncate what came before.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


def start(order: Order, around: Surroundings, others: Iterable[int]) -> tuple[int, int]:
    """Fork a worker.

    Args:
        order: what to start.
        around: what all workers of this spawner have in common.
        others: descriptors of other workers' (their report pipes, what was sent along for them);
            the child closes them, since whoever waits for their end would wait for it too.

    Returns:
        Its process id, and the read end of its report pipe. That closes when the worker runs; what
        is in it says why it does not.

    Raises:
        OSError: a file cannot be opened (its name is in the error), or there is no room for another
            process.
    """
    streams = open_streams(order.stdout, order.stderr)
    try:
        read, write = os.pipe2(os.O_CLOEXEC)
    except OSError:
        for fd in streams:
            close_above_2(fd)
        raise
    try:
        pid = os.fork()
    except OSError:
        os.close(read)
        raise
    else:
        if pid == 0:
            try:
                become_worker(order, around, streams, write, (read, *others))
            finally:
                os._exit(127)
        return pid, read
    finally:
        for fd in (write, *streams):
            close_above_2(fd)


def open_streams(stdout: str, stderr: str) -> tuple[int, int]:
    """Open a worker's files for standard output and error; 1 or 2 where the path is empty.

    Raises:
        OSError: one cannot be opened; the other is closed again.
    """
    opened: list[int] = []
    for number, path in ((1, stdout), (2, stderr)):
        try:
            opened.append(os.open(path, _FLAGS, 0o666) if path else number)
        except OSError:
            for fd in opened:
                close_above_2(fd)
            raise
    return opened[0], opened[1]


def close_above_2(fd: int) -> None:
    """Close a descriptor of `open_streams`, if it is not this process's own output."""
    if fd > 2:
        os.close(fd)
