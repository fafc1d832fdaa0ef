"""sweep.jsonl: the journal of a sweep, which survives any end of the launcher.

One record a line, each on the disk before `Journal.append` returns. A launcher or a machine that
dies in the middle of an append leaves a torn last line: readers pass over it, and whoever appends
next cuts it off first, so that a torn line is never followed by a good one. Anything else that
cannot be read is damage from outside, and an error.

Only the launcher that holds the sweep's directory appends; anybody may read at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, TypeAlias, get_args

from msgspec import Meta

from lllaunch import documents
from lllaunch.documents import JsonText, Plain, as_record, isoformat
from lllaunch.errors import ConfigError, Diagnostic, OutputError
from lllaunch.files import open_file, write_all
from lllaunch.run.files import naming, write_atomic
from lllaunch.sweep.objective import Direction, objective_of
from lllaunch.sweep.pool import Lease

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# not the name of a run's: a job whose directory is the sweep's own takes that one
LOCK_NAME = ".lllaunch-sweep.lock"
JOURNAL = "sweep.jsonl"
SUMMARY = "sweep.json"
ARRAYS = "submitted"
"""Where the directories of what went to a cluster are."""

VERSION = 1
"""Version of the journal and of its fingerprints; grows when either changes its meaning."""

Count: TypeAlias = Annotated[int, Meta(ge=0)]
"""A number of a job, or of things."""


class Header(documents.Record, frozen=True, tag="sweep"):
    """The first record: a sweep was begun."""

    sweep: str  # its id
    lllaunch: str  # version of the launcher
    command: tuple[str, ...] = ()  # the overrides of the command line, redacted
    version: int = VERSION  # of the journal
    direction: Direction | None = None  # which of two objectives is better, if that is known
    # what the jobs may lease; None if that is not known, or if they go to a cluster
    slots: Lease | None = None


class Resumed(documents.Record, frozen=True, tag="resumed"):
    """The sweep is gone on with, by another launcher. Its fields are those of `Header`."""

    lllaunch: str
    command: tuple[str, ...] = ()
    direction: Direction | None = None
    slots: Lease | None = None


class PlannedRecord(documents.Record, frozen=True, tag="planned"):
    """The launcher is going to run some jobs, of which nothing more is known yet."""

    # how many, those included that had finished before. What a sweeper asks for later comes on top
    # of them
    jobs: Count


class ComposedRecord(documents.Record, frozen=True, tag="composed"):
    """A job's config is known; the job is not started before this is on the disk."""

    job: Count
    overrides: tuple[str, ...] = ()
    directory: str = ""  # where its result.json will be; relative to the sweep's if it is in it
    # `lllaunch.sweep.fingerprint.job_key`; None if it could not be composed
    fingerprint: str | None = None
    config: Mapping[str, Any] | None = None  # what that was made from, or None if it is not kept


class StartedRecord(documents.Record, frozen=True, tag="started"):
    """A job was started."""

    job: Count
    retry: Count = 0  # 0 for its first start in a sweep or resume, then 1, 2, ...
    lease: Lease = Lease()
    pid: int | None = None  # of its launcher, if that is on this machine


class Result(documents.Record, frozen=True):
    """What became of a job."""

    state: str  # as in its result.json: ``succeeded``, ``failed``, ``signalled``, ``error``
    exit_code: int | None = None
    root_cause: str = ""
    seconds: float | None = None  # how long the run took, or None where that is not known
    return_value: JsonText = None  # rank 0's, as JSON text, if it is short; or None

    @property
    def succeeded(self) -> bool:
        """Whether the job need not run again."""
        return self.state == "succeeded"

    @property
    def objective(self) -> float | None:
        """What a job that succeeded returned, if that is a number."""
        if not self.succeeded or self.return_value is None:
            return None
        return objective_of(json.loads(self.return_value))


class EndedRecord(documents.Record, frozen=True, tag="ended"):
    """A job ended, or was found to have ended."""

    job: Count
    retry: Count
    result: Result


class Skipped(documents.Record, frozen=True, tag="skipped"):
    """A job is not going to be started by this launcher, and why."""

    job: Count
    reason: str = ""


class OverRecord(documents.Record, frozen=True, tag="over"):
    """The launcher is done with the jobs that it had, and with what exit code.

    More jobs may follow: sweepers that ask for one batch of jobs after another.
    """

    exit_code: int


Record: TypeAlias = (
    Header
    | Resumed
    | PlannedRecord
    | ComposedRecord
    | StartedRecord
    | EndedRecord
    | Skipped
    | OverRecord
)
_KINDS = {kind.__struct_config__.tag: kind for kind in get_args(Record)}


class JournalEntry(NamedTuple):
    """A record of the journal, and when it was made, nanoseconds since the epoch."""

    time_ns: int
    record: Record


class _Moment(documents.Record, frozen=True):
    time_ns: Annotated[int, Meta(ge=0, le=2**62)]


class UnknownVersion(ValueError):
    """The journal is of another lllaunch: its records cannot be understood here."""

    def __init__(self, version: object, lllaunch: str) -> None:
        super().__init__(version, lllaunch)
        self.version = version
        self.lllaunch = lllaunch  # the version of the launcher that wrote it, or an empty string


def encode(record: Record, time_ns: int) -> bytes:
    """Return a record as one line of JSON, newline included."""
    line = {"time": isoformat(time_ns), "time_ns": time_ns, **Plain()(record)}
    return json.dumps(line, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def decode(line: bytes) -> JournalEntry | None:
    """Read a line of the journal.

    Returns the record, None if its type is not known: a later lllaunch may write more of them.

    Raises:
        UnknownVersion: it is a `Header` of another version.
        ValueError: it is not a record; says why.
    """
    try:
        # texts that are not Unicode are the same as before
        fields = json.loads(line, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    time_ns = as_record(fields, _Moment).time_ns
    kind = _KINDS.get(fields.get("type"))
    if kind is Header and fields.get("version") != VERSION:
        raise UnknownVersion(fields.get("version"), str(fields.get("lllaunch", "")))
    return None if kind is None else JournalEntry(time_ns, as_record(fields, kind))


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class Damaged(ValueError):
    """A line of a journal cannot be read, and it is not a torn last one."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line  # its number, from 1
        self.reason = reason


def parse(
    lines: Iterable[bytes], end: int = 0, before: int = 0
) -> Iterator[tuple[int, JournalEntry | None]]:
    """Reads the lines of a journal; pure.

    A last line without a newline is torn. So is one with NUL bytes in it: that is what a file
    system leaves, after a power failure, of data that had not reached the disk.

    ``end``: bytes of the lines before these. Yields for each line the bytes up to and with it, and
    its record; None if its type is not known.

    Raises:
        Damaged: a line cannot be read.
        UnknownVersion: the journal is of another version.
    """
    torn = 0
    for number, line in enumerate(lines, before + 1):
        if torn:
            raise Damaged(torn, "it holds NUL bytes")
        if b"\0" in line or not line.endswith(b"\n"):
            torn = number
            continue
        try:
            entry = decode(line)
        except UnknownVersion:
            raise
        except ValueError as error:
            # those of the decoders say at length where in the line they stopped
            reason = "it is not JSON" if type(error) is not ValueError else str(error)
            raise Damaged(number, reason) from None
        if (number == 1) != (entry is not None and isinstance(entry.record, Header)):
            raise Damaged(number, "a sweep begins with its header, and only there")
        end += len(line)
        yield end, entry


_RESUME = "hydra.launcher.resume"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LONGEST = 16 * 1024 * 1024  # bytes of a line


class Journal:
    """The journal of a sweep, open for appending; made by `create` or `open`."""

    def __init__(
        self,
        path: str,
        header: Header,
        end: int,
        now: Callable[[], int],
        tell: Callable[[JournalEntry], object] | None,
        composed: Mapping[int, tuple[int, int]],
    ) -> None:
        self.path = path
        self.header = header
        self.error: OutputError | None = None
        self._now = now
        self._tell = tell
        self._end = end  # bytes of whole records
        self._kept: deque[bytes] = deque()
        self._composed = composed  # where in the file the last `ComposedRecord` of a job is
        with naming(path):
            self._fd = os.open(path, _FLAGS)
            self._torn = os.fstat(self._fd).st_size != end

    @classmethod
    def create(
        cls,
        path: str,
        header: Header,
        now: Callable[[], int] = time.time_ns,
        tell: Callable[[JournalEntry], object] | None = None,
    ) -> Self:
        """Begins a journal; its header is there whole or not at all.

        Raises:
            ConfigError: there is a journal already.
            OutputError: it cannot be written.
        """
        if os.path.lexists(path):
            directory = os.path.dirname(path)
            message = "has a sweep in it already"
            hint = f"choose another directory, or go on with that one: {_RESUME}={directory}"
            raise ConfigError(
                (Diagnostic("in-use", "hydra.sweep.dir", repr(directory), message, hint),)
            )
        entry = JournalEntry(now(), header)
        line = encode(header, entry.time_ns)
        write_atomic(path, line)
        journal = cls(path, header, len(line), now, tell, {})
        _sync_directory(path)
        if tell is not None:
            tell(entry)
        return journal

    @classmethod
    def open(
        cls,
        path: str,
        now: Callable[[], int] = time.time_ns,
        tell: Callable[[JournalEntry], object] | None = None,
    ) -> Self:
        """Opens a journal to go on with it; the file is changed by the first `append` only.

        Raises:
            ConfigError: it is not there, damaged, or of another version.
            OutputError: it cannot be read or written.
        """
        header, start, end = None, 0, 0
        composed: dict[int, tuple[int, int]] = {}
        for end, entry in _entries(path):
            if entry is not None and isinstance(entry.record, ComposedRecord):
                composed[entry.record.job] = (start, end)
            start = end
            if header is None:
                assert entry is not None, path
                assert isinstance(entry.record, Header), path
                header = entry.record
            if tell is not None and entry is not None:
                tell(entry)
        if header is None:
            raise _problem(path, "holds no record of a sweep", "start the sweep anew")
        return cls(path, header, end, now, tell, composed)

    def append(self, record: Record) -> None:
        """Adds a record, after those that were kept; it is on the disk when this returns.

        After an error the record is not in the journal, and others can be tried.

        Raises:
            OutputError: the disk is full, the file was removed, ...; names the file.
        """
        entry = JournalEntry(self._now(), record)
        self.flush()
        self._write(encode(record, entry.time_ns))
        if self._tell is not None:
            self._tell(entry)

    def keep(self, record: Record) -> None:
        """Adds a record of what has happened, as soon as the disk takes it; see `error`."""
        entry = JournalEntry(self._now(), record)
        self._kept.append(encode(record, entry.time_ns))
        if self._tell is not None:
            self._tell(entry)
        with contextlib.suppress(OutputError):
            self.flush()

    def flush(self) -> None:
        """Writes what was kept.

        Raises:
            OutputError: as `append` does; the rest stays kept.
        """
        while self._kept:
            self._write(self._kept[0])
            self._kept.popleft()

    @property
    def lost(self) -> bool:
        """Whether nothing can be written any more: the file was removed."""
        return os.fstat(self._fd).st_nlink == 0

    def _write(self, line: bytes) -> None:
        try:
            self._expect_own_file()
            self._write_line(line)
        except OutputError as error:
            self.error = error
            raise
        self.error = None

    def _expect_own_file(self) -> None:
        """Raises if the file is no longer where it was: nobody would find what is written."""
        with naming(self.path):
            try:
                there = os.path.samestat(os.stat(self.path), os.fstat(self._fd))
            except (FileNotFoundError, NotADirectoryError):
                there = False
        if not there:
            raise OutputError(self.path, "was removed, renamed or replaced while the sweep ran")

    def _write_line(self, line: bytes) -> None:
        with naming(self.path):
            self._repair()
            # until all of it is on the disk, whatever has been written is to be cut off again
            self._torn = True
            try:
                write_all(self._fd, line)
                os.fsync(self._fd)
            except OSError:
                with contextlib.suppress(OSError):  # the next append tries again
                    self._repair()
                raise
            self._torn = False
            self._end += len(line)

    def _repair(self) -> None:
        """Cuts off what is no whole record."""
        if self._torn:
            os.ftruncate(self._fd, self._end)
            self._torn = False

    def config_of(self, job: int) -> Mapping[str, Any] | None:
        """Returns the config that a job was composed with, None if it was not kept.

        That is as of `open`. Configs may be long and are asked for rarely, so none is held in
        memory.

        Raises:
            ConfigError, OutputError: as `read_journal` does.
        """
        where = self._composed.get(job)
        if where is None:
            return None
        start, end = where
        with naming(self.path), open(open_file(self.path), "rb") as file:
            file.seek(start)
            entry = decode(file.read(end - start))
        return entry.record.config if entry and isinstance(entry.record, ComposedRecord) else None

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_journal(path: str) -> Iterator[JournalEntry]:
    """Reads a journal, also while a launcher appends to it; one record at a time is in memory.

    Raises:
        ConfigError: it is not there, damaged (names the line), or of another version.
        OutputError: it cannot be read.
    """
    for _, entry in _entries(path):
        if entry is not None:
            yield entry


def _entries(path: str) -> Iterator[tuple[int, JournalEntry | None]]:
    """Reads a file as `parse` does; errors name it."""
    start, lines, suspected = 0, 0, -1
    while True:
        try:
            for found in _open_entries(path, start, lines):
                start, lines = found[0], lines + 1
                yield found
        except Damaged as damage:
            if suspected == start:
                message = f"is damaged in line {damage.line}: {damage.reason}"
                raise _problem(path, message, "mend that line, or start the sweep anew") from None
            # A launcher may just have cut a torn line off, and written on in its place.
            suspected = start
        except UnknownVersion as unknown:
            author = f" (lllaunch {unknown.lllaunch})" if unknown.lllaunch else ""
            message = f"is a journal of version {unknown.version}{author}; this one reads {VERSION}"
            hint = "resume it with the lllaunch that began it"
            raise _problem(path, message, hint) from None
        else:
            return


def _open_entries(path: str, start: int, lines: int) -> Iterator[tuple[int, JournalEntry | None]]:
    # not within `naming`: an error of whoever consumes the records is not the file's
    try:
        file = open(open_file(path), "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        raise _problem(path, "is not there", "give the directory of a sweep") from None
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    with file:
        file.seek(start)
        records = parse(iter(lambda: file.readline(_LONGEST), b""), start, lines)
        while True:
            try:
                found = next(records, None)
            except OSError as error:
                raise OutputError(path, error.strerror or str(error)) from error
            if found is None:
                return
            yield found


def _sync_directory(path: str) -> None:
    """Makes the name of a new file survive a power failure."""
    directory = os.path.dirname(path) or "."
    with naming(directory):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _problem(path: str, message: str, hint: str) -> ConfigError:
    return ConfigError((Diagnostic("journal", _RESUME, repr(path), message, hint),))
