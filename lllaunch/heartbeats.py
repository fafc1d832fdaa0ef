"""``lllaunch.heartbeat``: how a worker says that it makes progress.

A heartbeat is a store into memory that the worker shares with its launcher: no system call, so
that it may stand in the innermost loop. The launcher maps one file per attempt, with eight bytes
for each local rank, in which stands the moment of the last heartbeat (nanoseconds of the monotonic
clock, little-endian; 0 before the first).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time

HEARTBEAT = "LLLAUNCH_HEARTBEAT"
"""Environment variable ``OFFSET:PATH``, the worker's place in the file; set by the launcher."""

_SIZE = 8
_MOMENT = struct.Struct("<q")


class _Place:
    """Where this process beats; without a launcher that watches, nowhere."""

    def __init__(self) -> None:
        self.memory: mmap.mmap | None = None
        self.offset = 0
        offset, _, path = os.environ.get(HEARTBEAT, "").partition(":")
        # Where the file is gone the launcher watches no more.
        with contextlib.suppress(OSError, ValueError), open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
            self.offset = int(offset)


_places: list[_Place] = []
# A fork of the spawner is a worker with a place of its own.
os.register_at_fork(after_in_child=_places.clear)


def heartbeat() -> None:
    """Tells the launcher that this worker makes progress.

    With ``launch.watchdog.heartbeat`` a worker that has called this once must go on calling it;
    with ``launch.watchdog.stall`` each call counts as a sign of life. Call it where progress is
    made, once a step, and not from a thread of its own, which would beat on while the work hangs.
    Outside of lllaunch, or where nothing is watched, it does nothing.
    """
    if not _places:
        _places.append(_Place())
    place = _places[0]
    if place.memory is not None:
        _MOMENT.pack_into(place.memory, place.offset, time.monotonic_ns())


def read_heartbeats(memory: mmap.mmap, ranks: int) -> list[int]:
    """Returns the moments of the last heartbeats, by local rank; 0 where there was none."""
    return [_MOMENT.unpack_from(memory, rank * _SIZE)[0] for rank in range(ranks)]


def place_of(path: str, rank: int) -> str:
    """Returns the value of `HEARTBEAT` for a local rank."""
    return f"{rank * _SIZE}:{path}"


def make_places(path: str, ranks: int) -> mmap.mmap:
    """Makes the file for the heartbeats of an attempt.

    Args:
        path: where; nothing may be there.
        ranks: number of local ranks.

    Raises:
        OSError: it cannot be made.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Not a hole: a store into one would end the process if the disk is full by then.
        os.posix_fallocate(fd, 0, ranks * _SIZE)
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)
