"""The directory of a run, and the files that grow in it: events.jsonl and samples.jsonl.

It is claimed by one launcher at a time and grows attempt by attempt (docs/reference/files.md)::

    plan.yaml  events.jsonl  samples.jsonl  result.json  latest -> attempt_1
    attempt_0/0/  attempt_0/1/  attempt_1/0/ ...

Only the launcher makes directories; an attempt's directory is never deleted or used twice.

Each line of events.jsonl holds ``time`` (ISO 8601, UTC), ``time_ns`` (nanoseconds since the
epoch), ``type`` (the name of the event or action) and its fields. Values of environment variables
and arguments of workers are left out: they may be secret, and plan.yaml has what may be shown.

Samples are taken every few seconds: the newest is the last, so that whoever shows a live run reads
the end of the file. When it has grown beyond its bound the older half of it is thinned out where
its lines are closest: so that a run of days is seen from its first hour on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lllaunch.clock import now_ns
from lllaunch.documents import Number, Plain, Record, decode_record, isoformat
from lllaunch.errors import ConfigError, OutputError
from lllaunch.files import LineFile, link_atomic, naming
from lllaunch.locks import HeldDirectory, lock_directory
from lllaunch.workers.log_files import make_attempt_dir

if TYPE_CHECKING:
    from lllaunch.watchdog.sampling import Sample

LOCK_NAME = ".lllaunch.lock"
PLAN = "plan.yaml"
EVENTS = "events.jsonl"
SAMPLES = "samples.jsonl"
RESULT = "result.json"
SUBMISSION = "submission.jsonl"
"""What was submitted to a cluster (`lllaunch.run.submission`)."""
ATTEMPT = re.compile(r"attempt_(\d+)")
"""The name of an attempt's directory."""

_TRIES = 10


class RunDirectory(HeldDirectory):
    """A run's directory, held by this launcher until `release`.

    Two runs can never mix their attempts; a later run in the same directory goes on with the next
    attempt number.
    """

    made: tuple[str, ...] = ()
    """Directories that were made for it, the outermost first; its own is the last one."""

    @classmethod
    def claim(
        cls,
        path: str,
        patience: float = 0.0,
        say: Callable[[str], object] | None = None,
        *,
        alone: bool = False,
    ) -> RunDirectory:
        """Makes the directory if need be and takes it for this launcher.

        Arguments are as for `lock_directory`, which says what is raised, too; a
        relative path counts from the working directory.
        """
        path = os.path.abspath(path)
        made = _missing(path)
        with naming(path):
            lock = lock_directory(
                path, LOCK_NAME, "launch.log_dir", "run", patience, say, alone=alone
            )
        held = cls(path, lock)
        held.made = made
        return held

    @classmethod
    def claim_new(cls, path: str) -> RunDirectory:
        """Make a directory that is not there yet and take it for this launcher.

        If there is something of its name it gets ``-1``, ``-2``, ... appended.

        Raises:
            OutputError: it cannot be made or written to.
        """
        path = os.path.abspath(path)
        for number in itertools.count():
            candidate = f"{path}-{number}" if number else path
            made = _missing(candidate)
            if not _make(candidate):
                continue
            # refused if somebody who named it was faster
            with contextlib.suppress(ConfigError):
                held = cls.claim(candidate)
                held.made = made
                return held
        raise AssertionError("unreachable")

    def is_at(self, path: str) -> bool:
        """Return whether a path leads to this directory."""
        try:
            return os.path.samefile(self.path, path)
        except OSError:
            return False

    def discard(self) -> None:
        """Take away what was made to claim the directory, as far as nothing else is in it.

        For a run that is refused; idempotent, as `release` is, which it does, too.
        """
        if self.made:
            with contextlib.suppress(OSError):
                os.unlink(self.file(LOCK_NAME))
                for path in reversed(self.made):
                    os.rmdir(path)
        self.release()

    def next_attempt(self) -> int:
        """Returns the number above all attempts that are there, 0 if there are none."""
        with naming(self.path):
            names = os.listdir(self.path)
        numbers = [int(match[1]) for name in names if (match := ATTEMPT.fullmatch(name))]
        return max(numbers, default=-1) + 1

    def make_attempt(self, nproc: int, at_least: int = 0) -> tuple[int, str]:
        """Makes the next attempt's directory with one directory for each local rank.

        ``latest`` points to it afterwards. Its number is at least that of other nodes of the run.

        Raises:
            OutputError: names what could not be made, and the rank if it is a rank's.
        """
        first = max(at_least, self.next_attempt())
        path, number = make_attempt_dir(self.path, first, nproc)
        link_atomic(self.file("latest"), os.path.basename(path))
        return number, path


def forget_result(directory: str) -> None:
    """Take away the result.json of an earlier run in a directory, before another one starts there.

    So what is there afterwards is of the latter, whatever the clocks say.

    Raises:
        OutputError: it cannot be taken away.
    """
    path = os.path.join(directory, RESULT)
    with naming(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def free_space(path: str) -> tuple[str, int] | None:
    """Return where the file system of a directory is mounted, and the bytes that are free on it."""
    try:
        found = os.statvfs(path)
        mount = os.path.realpath(path)
        while not os.path.ismount(mount):
            mount = os.path.dirname(mount)
    except OSError:
        return None
    return mount, found.f_bavail * found.f_frsize


def _make(path: str) -> bool:
    """Make a directory and those above it; return False if there is something of its name."""
    with naming(path):
        for _ in range(_TRIES):
            # another launcher may just take away the one above it, which it has made
            with contextlib.suppress(FileNotFoundError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                try:
                    os.mkdir(path)
                except FileExistsError:
                    return False
                return True
        os.mkdir(path)
        return True


def _missing(path: str) -> tuple[str, ...]:
    """Return those of a directory and the ones above it that are not there, outermost first."""
    found: list[str] = []
    while not os.path.lexists(path):
        found.append(path)
        path = os.path.dirname(path)
    return tuple(reversed(found))


# What happens


# Fields that may hold secrets, or megabytes.
_HIDDEN = frozenset(
    {"argv", "args", "kwargs", "call", "payload", "env", "envs", "environ", "trace", "times_ns"}
)


def encode(event: object, time_ns: int, redact: Callable[[str], str] = str) -> bytes:
    """Return an event as one line of JSON; a ``time_ns`` of its own overrides the argument."""
    fields: dict[str, Any] = Plain(redact, hidden=_HIDDEN, named=True)(event)
    at = fields.pop("time_ns", None)
    at = at if isinstance(at, int) and at > 0 else time_ns
    line = {"time": isoformat(at), "time_ns": at, "type": type(event).__name__, **fields}
    return json.dumps(line, ensure_ascii=False).encode("utf-8", errors="backslashreplace") + b"\n"


MOST_BYTES = 1 << 20
"""How long the file may grow before it is thinned out, to four fifths of that."""

# Distances beyond which nothing is thinned out any more: a line in 2**40 intervals.
_LEVELS = 40
# What a number can be that is told of.
_MOST = 2.0**63


class RankSample(Record, frozen=True, omit_defaults=True):
    """What a worker does, and how far it is; what is not known is left out."""

    cpu: Number | None = None
    rss: Number | None = None
    read: Number | None = None
    written: Number | None = None
    output: Number | None = None
    gpus: tuple[str, ...] = ()
    step: Number | None = None
    total: Number | None = None
    rate: Number | None = None
    eta: Number | None = None
    idle: Number | None = None
    metrics: Mapping[str, Number] = {}


class GpuSample(Record, frozen=True, omit_defaults=True):
    """What a GPU does."""

    use: Number | None = None
    memory: Number | None = None
    power: Number | None = None


class RunSample(Record, frozen=True, omit_defaults=True):
    """What all workers of an attempt do at a moment."""

    time: float  # seconds since the epoch
    attempt: int
    ranks: Mapping[str, RankSample]
    gpus: Mapping[str, GpuSample] = {}  # by name; of several nodes with the node's before it

    @property
    def by_rank(self) -> dict[int, RankSample]:
        """What each worker does."""
        return {int(rank): each for rank, each in self.ranks.items() if rank.isdecimal()}


def finite(value: float | None) -> float | None:
    """Return a number that can be told of, None for any other."""
    return value if value is not None and abs(value) < _MOST else None


def decode_sample(line: bytes) -> RunSample | None:
    """Return what a line says, None if it is torn, or is none of ours."""
    try:
        sample = decode_record(line, RunSample)
    except (ValueError, RecursionError):
        return None
    return sample if abs(sample.time) * 1e9 < _MOST else None


def plain_sample(sample: RunSample) -> dict[str, Any]:
    """Return a sample as data for JSON; ``gpus`` is there in any case."""
    found: dict[str, Any] = Plain()(sample)
    return {**found, "gpus": found.get("gpus", {})}


def encode_sample(
    sample: Sample, time_ns: int, attempt: int, rank_of: Callable[[int], int]
) -> bytes:
    """Return a sample as one line of JSON, newline included."""
    ranks = {}
    for local_rank, worker in sorted(sample.workers.items()):
        progress = sample.progress.get(local_rank)
        far: dict[str, Any] = {}
        if progress is not None:
            precision = {"rate": ".4g", "eta": ".0f", "idle": ".0f"}
            names = ("step", "total", *precision)
            far = {name: _rounded(getattr(progress, name), precision.get(name)) for name in names}
            far["metrics"] = {name: _rounded(value) for name, value in progress.metrics.items()}
        rounded = worker._replace(
            cpu=round(worker.cpu, 3), read=round(worker.read), written=round(worker.written)
        )
        ranks[str(rank_of(local_rank))] = RankSample(**rounded._asdict(), **far)
    gpus = {name: GpuSample(**use._asdict()) for name, use in sample.gpus.items()}
    line = Plain()(RunSample(round(time_ns / 1e9, 3), attempt, ranks, gpus))
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _rounded(value: float | None, precision: str | None = None) -> float | None:
    if value is None or not math.isfinite(value):
        return value
    rounded = float(format(value, precision)) if precision else value
    return int(rounded) if rounded == int(rounded) else rounded


def thinned(times: Sequence[float], sizes: Sequence[int], limit: int) -> list[int]:
    """Choose which lines of a file that has grown too long are kept. Pure.

    The newer half is kept as it is. Of the older half those go that are closest to the one before:
    the first time every second, later those that have not been thinned out yet. If all of the older
    half was halved each time, a run of days would lose its first ones.

    Times of the lines are seconds, oldest first; sizes and the limit are bytes. Returned are the
    places, in order: the newest in any case, and else no more than four fifths of the limit.
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
        kept: list[int] = []
        for place, time in enumerate(times[:first]):
            # clocks may be set between two runs in one directory
            if not kept or abs(time - times[kept[-1]]) >= (2**level - 0.5) * interval:
                kept.append(place)
        if sum(sizes[place] for place in kept) <= room:
            return [*kept, *range(first, len(times))]
    return [*range(first, len(times))]


class SampleLog(LineFile):
    """Writes samples to a file that it keeps short, for as long as the disk lets it.

    What is there is kept, and thinned out with the rest beyond the limit, which is bytes.
    """

    def __init__(
        self, path: str, on_error: Callable[[OutputError], object], limit: int = MOST_BYTES
    ) -> None:
        super().__init__(path, on_error)
        self._limit = self._thin_beyond = limit

    def write(self, sample: Sample, attempt: int, rank_of: Callable[[int], int]) -> None:
        """Append a sample; never raises for the disk's sake. Arguments as for `encode_sample`."""
        line = encode_sample(sample, now_ns(), attempt, rank_of)
        if self.size + len(line) > self._thin_beyond:
            self.rewrite(self._thinned)
            # where nothing can be replaced it is not tried again each time
            self._thin_beyond = max(self._limit, self.size + self._limit // 8)
        if self.size + len(line) <= 2 * self._limit:
            self.append(line)

    def _thinned(self, data: bytes) -> bytes:
        lines = [
            (sample.time, line)
            for line in data.splitlines(keepends=True)
            if (sample := decode_sample(line))
        ]
        kept = thinned([time for time, _ in lines], [len(line) for _, line in lines], self._limit)
        return b"".join(lines[place][1] for place in kept)
