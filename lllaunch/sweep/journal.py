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
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, TypeAlias, get_args

from msgspec import Meta

from lllaunch import documents
from lllaunch.documents import JsonText, Plain, as_record, isoformat
from lllaunch.errors import ConfigError, Diagnostic, OutputError
from lllaunch.files import naming, open_file, write_all, write_atomic
from lllaunch.sweep.objective import Direction, objective_of
from lllaunch.sweep.pool import Lease
from lllaunch.words import RESUME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


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
        fields = _DECODER.decode(line.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    time_ns = as_record(fields, _Moment).time_ns
    kind = _KINDS.get(fields.get("type"))
    if kind is Header and fields.get("version") != VERSION:
        author = f" (lllaunch {fields['lllaunch']})" if fields.get("lllaunch") else ""
        message = f"is a journal of version {fields.get('version')}{author}"
        raise UnknownVersion(f"{message}; this one reads {VERSION}")
    return None if kind is None else JournalEntry(time_ns, as_record(fields, kind))


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# one for all lines: to make it takes as long as to read one
_DECODER = json.JSONDecoder(parse_constant=_refuse)


_HEADER = "a sweep begins with its header, and only there"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LONGEST = 16 * 1024 * 1024  # bytes of a line


class Journal:
    """The journal of a sweep, open for appending; made by `create` or `open`.

    ``path``: empty for one that keeps nothing, of jobs that another launcher journals. ``end``:
    bytes of whole records. ``tell``: gets each record.
    """

    def __init__(
        self, path: str = "", end: int = 0, tell: Callable[[int, Record], object] | None = None
    ) -> None:
        self.path = path
        self.error: OutputError | None = None  # why the last writing has failed, if it has
        self._tell = tell or (lambda *_: None)
        self._end = end
        self._kept: list[bytes] = []
        self._fd, self._torn = -1, False
        if path:
            with naming(path):
                self._fd = os.open(path, _FLAGS)
                self._torn = os.fstat(self._fd).st_size != end

    @classmethod
    def create(
        cls, path: str, header: Header, tell: Callable[[int, Record], object] | None = None
    ) -> Self:
        """Begins a journal; its header is there whole or not at all.

        Raises:
            OutputError: it cannot be written.
        """
        entry = JournalEntry(time.time_ns(), header)
        line = encode(header, entry.time_ns)
        write_atomic(path, line)
        journal = cls(path, len(line), tell)
        _sync_directory(path)
        journal._tell(*entry)
        return journal

    @classmethod
    def open(cls, path: str, tell: Callable[[int, Record], object] | None = None) -> Self:
        """Opens a journal to go on with it; the file is changed by the first `append` only.

        Raises:
            ConfigError: it is not there, damaged, or of another version.
            OutputError: it cannot be read or written.
        """
        reader = JournalReader(path)
        for entry in reader.added():
            if tell is not None:
                tell(*entry)
        if not reader.end:
            raise _problem(path, "holds no record of a sweep", "start the sweep anew")
        return cls(path, reader.end, tell)

    def append(self, record: Record) -> None:
        """Adds a record, after those that were kept; it is on the disk when this returns.

        After an error the record is not in the journal, and others can be tried.

        Raises:
            OutputError: the disk is full, the file was removed, ...; names the file.
        """
        entry = JournalEntry(time.time_ns(), record)
        self._kept.append(encode(record, entry.time_ns))
        try:
            self.flush()
        except OutputError:
            self._kept.pop()
            raise
        self._tell(*entry)

    def keep(self, record: Record) -> None:
        """Adds a record of what has happened; the next `flush` or `append` writes it."""
        entry = JournalEntry(time.time_ns(), record)
        self._kept.append(encode(record, entry.time_ns))
        self._tell(*entry)

    def flush(self) -> None:
        """Writes what was kept, all in one.

        Raises:
            OutputError: as `append` does; it stays kept.
        """
        if self._kept and self.path:
            self._write(b"".join(self._kept))
        self._kept.clear()

    @property
    def lost(self) -> bool:
        """Whether nothing can be written any more: the file was removed."""
        return self._fd >= 0 and os.fstat(self._fd).st_nlink == 0

    def _write(self, lines: bytes) -> None:
        try:
            with naming(self.path):
                self._expect_own_file()
                self._repair()
                # until all of it is on the disk, what has been written is to be cut off again
                self._torn = True
                try:
                    write_all(self._fd, lines)
                    os.fsync(self._fd)
                except OSError:
                    with contextlib.suppress(OSError):  # the next append tries again
                        self._repair()
                    raise
        except OutputError as error:
            self.error = error
            raise
        self._torn, self.error = False, None
        self._end += len(lines)

    def _expect_own_file(self) -> None:
        """Raises if the file is no longer where it was: nobody would find what is written."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.stat(self.path), os.fstat(self._fd)):
                return
        raise OutputError(self.path, "was removed, renamed or replaced while the sweep ran")

    def _repair(self) -> None:
        """Cuts off what is no whole record."""
        if self._torn:
            os.ftruncate(self._fd, self._end)
            self._torn = False

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
    return JournalReader(path).added()


def read_configs(path: str, jobs: Collection[int]) -> dict[int, Mapping[str, Any] | None]:
    """Returns the configs that some jobs were composed with last, None for one that was not kept.

    Raises:
        ConfigError, OutputError: as `read_journal` does.
    """
    return {
        record.job: record.config
        for _, record in read_journal(path)
        if isinstance(record, ComposedRecord) and record.job in jobs
    }


class JournalReader:
    """Reads a journal as it grows; `end` is how many bytes of whole records were read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._number = 1
        self.end = 0

    def added(self) -> Iterator[JournalEntry]:
        """Yield what was added since; a record of a later lllaunch is passed over.

        Raises:
            ConfigError, OutputError: as `read_journal` does.
        """
        suspected = -1
        while True:
            try:
                for line in _lines(self._path, self.end):
                    entry = decode(line)
                    is_header = entry is not None and isinstance(entry.record, Header)
                    if is_header != (self._number == 1):
                        raise ValueError(_HEADER)  # noqa: TRY301 - told as those of `decode`
                    self.end, self._number = self.end + len(line), self._number + 1
                    if entry is not None:
                        yield entry
            except UnknownVersion as unknown:
                hint = "resume it with the lllaunch that began it"
                raise _problem(self._path, str(unknown), hint) from None
            except ValueError as error:
                if suspected == self.end:
                    # those of the decoders say at length where in the line they stopped
                    damage = "it is not JSON" if type(error) is not ValueError else str(error)
                    message = f"is damaged in line {self._number}: {damage}"
                    hint = "mend that line, or start the sweep anew"
                    raise _problem(self._path, message, hint) from None
                # A launcher may just have cut a torn line off, and written on in its place.
                suspected = self.end
            else:
                return


def _lines(path: str, start: int) -> Iterator[bytes]:
    """Yield the lines from there on, but for a last one that is torn.

    That is one without a newline, or with NUL bytes in it: that is what a file system leaves, after
    a power failure, of data that had not reached the disk.
    """
    torn = False
    try:
        with open(open_file(path), "rb") as file:
            file.seek(start)
            while line := file.readline(_LONGEST):
                if torn:
                    raise ValueError("it holds NUL bytes")
                torn = b"\0" in line or not line.endswith(b"\n")
                if not torn:
                    yield line
    except FileNotFoundError:
        raise _problem(path, "is not there", "give the directory of a sweep") from None
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error


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
    return ConfigError((Diagnostic("journal", RESUME, repr(path), message, hint),))
