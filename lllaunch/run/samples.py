"""samples.jsonl: what the workers of a run do, every few seconds; bounded in size.

One JSON object a line (docs/reference/files.md): the newest is the last, so that whoever shows a
live run reads the end of the file. When the file has grown beyond its bound the older half of it is
thinned out where its lines are closest: so that a run of days is seen from its first hour on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lllaunch.clock import now_ns
from lllaunch.documents import last_record
from lllaunch.run.directory import SAMPLES
from lllaunch.run.files import LineFile

if TYPE_CHECKING:
    from lllaunch.errors import OutputError
    from lllaunch.watchdog.progress import Progress
    from lllaunch.watchdog.sampling import Sample

MOST_BYTES = 1 << 20
"""How long the file may grow before it is thinned out, to four fifths of that."""

# A line has two hundred bytes a rank, and there are hundreds of ranks at most.
_TAIL = 256 << 10
# Distances beyond which nothing is thinned out any more: a line in 2**40 intervals.
_LEVELS = 40


def last_sample(directory: str) -> dict[str, Any] | None:
    """Return the newest sample of a run as docs/reference/files.md has it, None if there is none.

    Args:
        directory: of the run. Of several nodes the newest of each are made one, with the names of
            the nodes before those of GPUs. ``gpus`` is there in any case.
    """
    newest = _newest(directory)
    if newest is not None:
        return newest
    try:
        names = sorted(name for name in os.listdir(directory) if name.startswith("node_"))
    except OSError:
        return None
    found = ((name, _newest(os.path.join(directory, name))) for name in names)
    return _together({name: record for name, record in found if record is not None})


def _newest(directory: str) -> dict[str, Any] | None:
    record = last_record(os.path.join(directory, SAMPLES), _TAIL)
    if record is None or not isinstance(record.get("attempt"), int) or _time_of(record) is None:
        return None
    ranks = record.get("ranks")
    whole = isinstance(ranks, dict) and all(isinstance(each, dict) for each in ranks.values())
    return record if whole and isinstance(record.setdefault("gpus", {}), dict) else None


def _together(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Make one of the samples of nodes; those of nodes that are not in the last attempt are old."""
    if not nodes:
        return None
    attempt = max(record["attempt"] for record in nodes.values())
    latest = {name: record for name, record in nodes.items() if record["attempt"] == attempt}
    ranks: dict[str, Any] = {}
    gpus: dict[str, Any] = {}
    for name, record in latest.items():
        for rank, worker in record["ranks"].items():
            seen = {"gpus": [f"{name}/{gpu}" for gpu in worker["gpus"]]} if "gpus" in worker else {}
            ranks[rank] = {**worker, **seen}
        gpus |= {f"{name}/{gpu}": use for gpu, use in record["gpus"].items()}
    moment = max(record["time"] for record in latest.values())
    return {"time": moment, "attempt": attempt, "ranks": ranks, "gpus": gpus}


def encode(sample: Sample, time_ns: int, attempt: int, rank_of: Callable[[int], int]) -> bytes:
    """Return a sample as one line of JSON, newline included.

    Args:
        sample: what was seen.
        time_ns: when, nanoseconds since the epoch.
        attempt: its number.
        rank_of: tells the rank of a local rank.
    """
    ranks: dict[str, Any] = {}
    for local_rank, worker in sorted(sample.workers.items()):
        fields: dict[str, Any] = {
            "cpu": round(worker.cpu, 3),
            "rss": worker.rss,
            "read": round(worker.read),
            "written": round(worker.written),
            "output": worker.output,
            "gpus": worker.gpus or None,
        }
        if local_rank in sample.progress:
            fields |= _progress(sample.progress[local_rank])
        ranks[str(rank_of(local_rank))] = _without_none(fields)
    record: dict[str, Any] = {"time": round(time_ns / 1e9, 3), "attempt": attempt, "ranks": ranks}
    if sample.gpus:
        record["gpus"] = {name: _without_none(use._asdict()) for name, use in sample.gpus.items()}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _progress(progress: Progress) -> dict[str, Any]:
    metrics = {name: _number(value) for name, value in progress.metrics.items()}
    return {
        "step": _number(progress.step),
        "total": _number(progress.total),
        "rate": _number(progress.rate, ".4g"),
        "eta": _number(progress.eta, ".0f"),
        "idle": _number(progress.idle, ".0f"),
        "metrics": metrics or None,
    }


def _number(value: float | None, precision: str = "") -> float | int | str | None:
    """Return a number as JSON has it, one that is not finite as text."""
    if value is None or not math.isfinite(value):
        return None if value is None else str(float(value))
    rounded = float(format(value, precision)) if precision else value
    return int(rounded) if rounded == int(rounded) else rounded


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def thinned(times: Sequence[float], sizes: Sequence[int], limit: int) -> list[int]:
    """Choose which lines of a file that has grown too long are kept. Pure.

    The newer half is kept as it is. Of the older half those go that are closest to the one before:
    the first time every second, later those that have not been thinned out yet. If all of the older
    half was halved each time, a run of days would lose its first ones.

    Args:
        times: of the lines, oldest first, seconds.
        sizes: of the lines, bytes.
        limit: what the file may have, bytes.

    Returns:
        Their places, in order: the newest in any case, and else no more than four fifths of the
        limit.
    """
    if not times:
        return []
    ends = list(itertools.accumulate(reversed(sizes)))
    newer = max(1, sum(end <= limit / 2 for end in ends))
    first = len(times) - newer
    room = min(0.3 * limit, 0.8 * limit - ends[newer - 1])
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times[first:]))
    interval = gaps[len(gaps) // 2] if gaps else 0.0
    for level in range(1, _LEVELS):
        # half an interval less than 2, 4, 8, ...: lines come a little early or late
        kept = _spaced(times[:first], (2**level - 0.5) * interval)
        if sum(sizes[place] for place in kept) <= room:
            return [*kept, *range(first, len(times))]
    return [*range(first, len(times))]


def _spaced(times: Sequence[float], least: float) -> list[int]:
    """Places of those that have a distance from the one before; the first is one of them."""
    kept: list[int] = []
    for place, time in enumerate(times):
        # clocks may be set between two runs in one directory
        if not kept or abs(time - times[kept[-1]]) >= least:
            kept.append(place)
    return kept


class SampleLog:
    """Writes samples to a file that it keeps short, for as long as the disk lets it.

    Args:
        path: the file; what is there is kept, and thinned out with the rest.
        on_error: told once of the first failure.
        limit: how long it may grow, bytes.
    """

    def __init__(
        self, path: str, on_error: Callable[[OutputError], object], limit: int = MOST_BYTES
    ) -> None:
        self._file = LineFile(path, on_error)
        self._limit = self._thin_beyond = limit

    def write(self, sample: Sample, attempt: int, rank_of: Callable[[int], int]) -> None:
        """Append a sample; never raises for the disk's sake. Arguments as for `encode`."""
        line = encode(sample, now_ns(), attempt, rank_of)
        if self._file.size + len(line) > self._thin_beyond:
            self._file.rewrite(self._thinned)
            # where nothing can be replaced it is not tried again each time
            self._thin_beyond = max(self._limit, self._file.size + self._limit // 8)
        if self._file.size + len(line) <= 2 * self._limit:
            self._file.append(line)

    def _thinned(self, data: bytes) -> bytes:
        lines = []
        for line in data.splitlines(keepends=True):
            with contextlib.suppress(ValueError, RecursionError):
                time = _time_of(json.loads(line))
                lines += [] if time is None else [(time, line)]
        kept = thinned([time for time, _ in lines], [len(line) for _, line in lines], self._limit)
        return b"".join(lines[place][1] for place in kept)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()


def _time_of(record: object) -> float | None:
    """Return the time of a line, None if it has none."""
    time = record.get("time") if isinstance(record, dict) else None
    return float(time) if isinstance(time, (int, float)) and math.isfinite(time) else None
