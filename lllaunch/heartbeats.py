"""``lllaunch.heartbeat`` and ``lllaunch.progress``: how a worker says that it gets on, and how far.

Either is a store into memory that the worker shares with its launcher: no system call, so that it
may stand in the innermost loop. There is one file per attempt, with `_SIZE` bytes for each local
rank: the moment of its last heartbeat (nanoseconds of the monotonic clock; 0 before the
first), then what it said last of its progress.

Threads and processes of one rank may write at the same moment, and the launcher reads whenever it
likes. Nobody takes a lock, which one that is killed would never give back. A record begins and ends
with the moment at which it was made: `struct` fills its bytes with zeros, then writes them from the
first to the last, so one whose ends differ, or that changes while it is read, is being written.
"""

from __future__ import annotations

import contextlib
import io
import math
import mmap
import os
import struct
import sys
import time
from typing import Any, NamedTuple

HEARTBEAT = "LLLAUNCH_HEARTBEAT"
"""Environment variable ``OFFSET:PATH``, the worker's place in the file; set by the launcher."""

_SIZE = 1024
_MOMENT = struct.Struct("q")
# The record: moment, step, total; number of metrics, bytes of their names, these; their values; the
# moment again.
_RECORD = struct.Struct("qddHH")
_START = _MOMENT.size
_ROOM = _SIZE - _START - _RECORD.size - 2 * _MOMENT.size
_SEPARATOR = "\0"
_NO_TOTAL = float("nan")
_READS = 4

# looked up once: each look-up is a part of what a call costs
_now, _put_moment = time.monotonic_ns, _MOMENT.pack_into


class _Layout:
    """How a record with metrics of certain names looks in memory."""

    __slots__ = ("names", "put")

    def __init__(self, names: tuple[str, ...]) -> None:
        text = _SEPARATOR.join(names).encode("utf-8", "replace")
        self.names = struct.pack("HH", len(names), len(text)) + text
        # writes moment, step, total, ``names``, the metrics, and the moment, at an offset
        self.put = struct.Struct(f"qdd{len(self.names)}s{len(names)}dq").pack_into


class _Place:
    """Where this process writes; without a launcher that watches, nowhere."""

    __slots__ = ("layouts", "memory", "offset", "start")

    def __init__(self) -> None:
        self.memory: mmap.mmap | None = None  # shared with the launcher, or None
        self.offset = 0
        # by the names of metrics. They are the same in every call of a training, so a few are
        # enough
        self.layouts: dict[tuple[str, ...], _Layout] = {}
        offset, _, path = os.environ.get(HEARTBEAT, "").partition(":")
        # Where the file is gone the launcher watches no more.
        with contextlib.suppress(OSError, ValueError), open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
            self.offset = int(offset)
        self.start = self.offset + _START

    def layout(self, names: tuple[str, ...]) -> _Layout:
        """Return the layout of names that were not seen before."""
        if len(self.layouts) >= _MOST_LAYOUTS:
            self.layouts.clear()
        # what has no room is put as if it were no number: see `progress`
        self.layouts[names] = layout = _Layout(names if _have_room(names) else ())
        return layout


_MOST_LAYOUTS = 64
_places: list[_Place] = []
# A fork of the spawner is a worker with a place of its own.
os.register_at_fork(after_in_child=_places.clear)


def heartbeat() -> None:
    """Report that this worker is alive and makes progress.

    With ``launch.watchdog.heartbeat`` a worker that has called this once must keep calling it. With
    ``launch.watchdog.stall`` each call counts as a sign of life. Call it once a step, not from its
    own thread, which would continue while the work hangs. Outside of lllaunch it does nothing.
    """
    if not _places:
        _places.append(_Place())
    place = _places[0]
    if place.memory is not None:
        _put_moment(place.memory, place.offset, _now())


def progress(step: float, total: float | None = None, **metrics: Any) -> None:
    """Report how far this worker is; also a `heartbeat`.

    ``ls``, ``top``, a sweep's table, result.json and failure reports show it, and
    ``launch.watchdog.progress`` uses it. The last call counts. Outside of lllaunch it does nothing.

    ``step``: steps that are done, counted over the whole training, also after a restart. ``total``:
    steps in all; None or infinity if unknown. ``metrics``: further numbers, about thirty at most
    (980 bytes in a call; the last ones are omitted). Anything that `float` accepts is a number; a
    tensor on a GPU is waited for. Non-numbers are ignored. NaN and infinity are reported once.

    Raises:
        TypeError: ``step`` or ``total`` is not a number.
    """
    if not _places:
        _places.append(_Place())
    place = _places[0]
    memory = place.memory
    if memory is None:
        _expect_numbers(step, total)
        return
    names = tuple(metrics)
    layout = place.layouts.get(names) or place.layout(names)
    moment, at = _now(), place.start
    if total is None:
        total = _NO_TOTAL
    try:
        layout.put(memory, at, moment, step, total, layout.names, *metrics.values(), moment)
    except Exception:  # noqa: BLE001 - whatever the conversion of a user's object raises
        _expect_numbers(step, total)
        numbers = _with_room(metrics)
        layout, step, total = _Layout(tuple(numbers)), _within_floats(step), _within_floats(total)
        layout.put(memory, at, moment, step, total, layout.names, *numbers.values(), moment)


def _have_room(names: tuple[str, ...]) -> bool:
    text = _SEPARATOR.join(names)
    size = 8 * len(names) + len(text.encode("utf-8", "replace"))
    return size <= _ROOM and text.count(_SEPARATOR) == max(0, len(names) - 1)


def _with_room(metrics: dict[str, Any]) -> dict[str, float]:
    """Return those metrics that are numbers, as many as have room."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        number, plain = _as_number(value), name.replace(_SEPARATOR, " ")
        if number is None:
            continue
        if not _have_room((*numbers, plain)):
            break
        numbers[plain] = number
    return numbers


def _as_number(value: Any) -> float | None:
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - a training does not end for what is only shown
        return None


def _within_floats(number: float) -> float:
    """Return a number as a float, the largest or smallest one where it is beyond all of them."""
    try:
        return float(number)
    except OverflowError:
        # not infinity, which files in JSON cannot hold
        return sys.float_info.max if number > 0 else -sys.float_info.max


def _expect_numbers(step: object, total: object) -> None:
    for name, value in (("step", step), ("total", total)):
        plain = isinstance(value, (int, float)) or (value is None and name == "total")
        if not plain and _as_number(value) is None:
            raise TypeError(f"progress: {name}: expected a number, got {value!r:.100}")


class ProgressRecord(NamedTuple):
    """What the last call of `progress` said."""

    moment: int  # when, nanoseconds of the monotonic clock
    step: float
    total: float | None  # how many there are, None if that is not known
    metrics: dict[str, float]


def read_progress(places: io.FileIO, rank: int) -> ProgressRecord | None:
    """Return what a local rank said last of its progress.

    Returns None if it has said nothing, and while it is being written: then it is to be asked
    again.
    """
    start, end = rank * _SIZE + _START, (rank + 1) * _SIZE
    for _ in range(_READS):
        data = _read(places, start, end)
        record = _parsed(data)
        if record is not None and _read(places, start, end) == data:
            return record
    return None


def _read(places: io.FileIO, start: int, end: int) -> bytes:
    """Return bytes of the file, zeros for what a worker has cut off.

    It is not mapped here: in a map, SIGBUS would end the launcher where the file is too short.
    """
    return os.pread(places.fileno(), end - start, start).ljust(end - start, b"\0")


def _parsed(data: bytes) -> ProgressRecord | None:
    """Return what stands in the bytes of a record; None if it is not a whole one."""
    moment, step, total, count, length = _RECORD.unpack_from(data)
    at = _RECORD.size + length
    layout = struct.Struct(f"={-at % 8}x{count}dq")
    if not moment or at + layout.size > len(data):
        return None
    *values, again = layout.unpack_from(data, at)
    names = data[_RECORD.size : at].decode("utf-8", "replace").split(_SEPARATOR) if count else []
    # a step that is no finite number says nothing
    if again != moment or len(names) != count or not math.isfinite(step):
        return None
    known = total if math.isfinite(total) else None
    return ProgressRecord(moment, step, known, dict(zip(names, values, strict=True)))


def read_heartbeats(places: io.FileIO, ranks: int) -> list[int]:
    """Returns the moments of the last heartbeats, by local rank; 0 where there was none.

    What says how far a worker is counts as a heartbeat.
    """
    data = _read(places, 0, ranks * _SIZE)
    moments = (struct.unpack_from("2q", data, rank * _SIZE) for rank in range(ranks))
    return [max(pair) for pair in moments]


def place_of(path: str, rank: int) -> str:
    """Returns the value of `HEARTBEAT` for a local rank."""
    return f"{rank * _SIZE}:{path}"


def make_places(path: str, ranks: int) -> io.FileIO:
    """Makes the file for the heartbeats and the progress of an attempt.

    Raises:
        OSError: it cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    places = io.FileIO(os.open(path, flags, 0o600), "r+")
    try:
        # Not a hole: a store into one would end the process if the disk is full by then.
        os.posix_fallocate(places.fileno(), 0, ranks * _SIZE)
    except OSError:
        places.close()
        raise
    return places
