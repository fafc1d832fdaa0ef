"""``lllaunch.heartbeat``, ``progress`` and ``report``: what a worker says to its launcher.

A result goes to a file. That a worker gets on, and how far, is a store into memory that it shares
with its launcher: no system call, so that it may stand in the innermost loop. There is one file per
attempt, with `_SIZE` bytes for each local rank: the moment of its last heartbeat (nanoseconds of
the monotonic clock; 0 before the first), then what it said last of its progress.

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
from typing import Any, NamedTuple, NoReturn

HEARTBEAT = "LLLAUNCH_HEARTBEAT"
"""Environment variable ``OFFSET:PATH``, the worker's place in the file; set by the launcher."""
RESULT_FILE = "LLLAUNCH_RESULT_FILE"
"""Environment variable that names the file for a worker's value; set by the launcher."""

_SIZE = 1024
_MOMENT = struct.Struct("q")
# The record: moment, step, total, the first step with a metric that was NaN; number of metrics,
# bytes of their names, these; their values; the moment again.
_RECORD = struct.Struct("qdddHH")
_START = _MOMENT.size
_ROOM = _SIZE - _START - _RECORD.size - 2 * _MOMENT.size
_SEPARATOR = "\0"
_NOT_KNOWN = float("nan")
_READS = 4

# looked up once: each look-up is a part of what a call costs
_now, _put_moment = time.monotonic_ns, _MOMENT.pack_into


class _Place:
    """Where this process writes; without a launcher that watches, nowhere."""

    __slots__ = ("memory", "offset", "wrong")

    def __init__(self) -> None:
        self.memory: mmap.mmap | None = None  # shared with the launcher, or None
        self.offset = 0
        self.wrong = _NOT_KNOWN  # the first step with a metric that was NaN
        offset, _, path = os.environ.get(HEARTBEAT, "").partition(":")
        # Where the file is gone the launcher watches no more.
        with contextlib.suppress(OSError, ValueError), open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
            self.offset = int(offset)


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
    (970 bytes in a call; the last ones are omitted). Anything that `float` accepts is a number; a
    tensor on a GPU is waited for. Non-numbers are ignored. NaN and infinity are reported once.

    Raises:
        TypeError: ``step`` or ``total`` is not a number.
    """
    if not _places:
        _places.append(_Place())
    place, moment = _places[0], _now()
    done = _expect_number("step", step)
    goal = _NOT_KNOWN if total is None else _expect_number("total", total)
    if place.memory is None:
        return
    found = {name.replace(_SEPARATOR, " "): _as_number(value) for name, value in metrics.items()}
    numbers = {name: number for name, number in found.items() if number is not None}
    names = _SEPARATOR.join(numbers).encode("utf-8", "replace")
    while len(names) + 8 * len(numbers) > _ROOM:
        numbers.popitem()
        names = _SEPARATOR.join(numbers).encode("utf-8", "replace")
    if math.isnan(place.wrong) and any(map(math.isnan, numbers.values())):
        place.wrong = done
    count, length = len(numbers), len(names)
    record = (moment, done, goal, place.wrong, count, length, names, *numbers.values(), moment)
    at = place.offset + _START
    struct.pack_into(f"{_RECORD.format}{length}s{count}dq", place.memory, at, *record)


def _as_number(value: Any) -> float | None:
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - a training does not end for what is only shown
        return None


def _expect_number(name: str, value: Any) -> float:
    """Return a number as a float, the largest or smallest one where it is beyond all of them."""
    number = _as_number(value)
    if number is not None:
        return number
    if isinstance(value, int):
        # not infinity, which files in JSON cannot hold
        return math.copysign(sys.float_info.max, 1 if value > 0 else -1)
    raise TypeError(f"progress: {name}: expected a number, got {value!r:.100}")


class ProgressRecord(NamedTuple):
    """What the last call of `progress` said."""

    moment: int  # when, nanoseconds of the monotonic clock
    step: float
    total: float | None  # how many there are, None if that is not known
    metrics: dict[str, float]
    wrong: float | None = None  # the first step with a metric that was NaN, None if there is none


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
    moment, step, total, wrong, count, length = _RECORD.unpack_from(data)
    at = _RECORD.size + length
    layout = struct.Struct(f"={-at % 8}x{count}dq")
    if not moment or at + layout.size > len(data):
        return None
    *values, again = layout.unpack_from(data, at)
    names = data[_RECORD.size : at].decode("utf-8", "replace").split(_SEPARATOR) if count else []
    # a step that is no finite number says nothing
    if again != moment or len(names) != count or not math.isfinite(step):
        return None
    goal, first = (number if math.isfinite(number) else None for number in (total, wrong))
    return ProgressRecord(moment, step, goal, dict(zip(names, values, strict=True)), first)


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


def report(value: Any) -> bool:
    """Report a worker's result to the launcher, which writes it to result.json.

    A later call replaces an earlier one. Outside of lllaunch it does nothing.

    ``value``: anything that JSON can hold: None, bool, int, float, str, lists, tuples, and mappings
    with keys of these. ``nan`` and infinities are written as Python does. Returns whether the value
    was written; False outside of lllaunch.

    Raises:
        TypeError: the value cannot be JSON; the message names the type of the part that cannot.
        ValueError: the value contains itself.
        OutputError: the file cannot be written.
    """
    import json  # noqa: PLC0415 - most workers never report

    from lllaunch.files import write_atomic  # noqa: PLC0415 - as above

    def refuse(part: object) -> NoReturn:
        kind = f"{type(part).__module__}.{type(part).__qualname__}".removeprefix("builtins.")
        raise TypeError(
            f"lllaunch.report: JSON cannot hold a {kind}; "
            "convert it first (a tensor or array: .item() or .tolist())"
        )

    path = os.environ.get(RESULT_FILE, "")
    if not path:
        return False
    write_atomic(path, json.dumps(value, default=refuse).encode())
    return True
