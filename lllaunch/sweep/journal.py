"""sweep.jsonl: the journal of a sweep, which survives any end of the launcher.

One record a line, each on the disk before `Journal.append` returns. A launcher or a machine that
dies in the middle of an append leaves a torn last line: readers pass over it, and whoever appends
next cuts it off first, so that a torn line is never followed by a good one. Anything else that
cannot be read is damage from outside, and an error.

Only the launcher that holds the sweep's directory appends; anybody may read at any time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from lllaunch.errors import ConfigError, OutputError, Problem
from lllaunch.run.files import naming, write_all, write_atomic
from lllaunch.sweep.journal_lines import Damaged, parse
from lllaunch.sweep.records import (
    VERSION,
    Composed,
    Entry,
    Header,
    Record,
    UnknownVersion,
    decode,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from typing_extensions import Self

_RESUME = "hydra.launcher.resume"
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC


class Journal:
    """The journal of a sweep, open for appending; made by `create` or `open`.

    Attributes:
        path: the file.
        header: its first record.
        error: why the last record could not be written; None if it was.
    """

    def __init__(
        self,
        path: str,
        header: Header,
        end: int,
        now: Callable[[], int],
        tell: Callable[[Entry], object] | None,
    ) -> None:
        self.path = path
        self.header = header
        self.error: OutputError | None = None
        self._now = now
        self._tell = tell
        self._end = end  # bytes of whole records
        self._kept: deque[bytes] = deque()
        self._composed: dict[int, tuple[int, int]] | None = None
        with naming(path):
            self._fd = os.open(path, _FLAGS)
            self._torn = os.fstat(self._fd).st_size != end

    @classmethod
    def create(
        cls,
        path: str,
        header: Header,
        now: Callable[[], int] = time.time_ns,
        tell: Callable[[Entry], object] | None = None,
    ) -> Self:
        """Begins a journal; its header is there whole or not at all.

        Args:
            path: the file, in a sweep's directory that this launcher holds.
            header: its first record.
            now: the time, nanoseconds since the epoch.
            tell: gets every record, this one first.

        Raises:
            ConfigError: there is a journal already.
            OutputError: it cannot be written.
        """
        if os.path.lexists(path):
            directory = os.path.dirname(path)
            message = "has a sweep in it already"
            hint = f"choose another directory, or go on with that one: {_RESUME}={directory}"
            raise ConfigError((Problem("hydra.sweep.dir", repr(directory), message, hint),))
        entry = Entry(now(), header)
        line = encode(header, entry.time_ns)
        write_atomic(path, line)
        journal = cls(path, header, len(line), now, tell)
        _sync_directory(path)
        if tell is not None:
            tell(entry)
        return journal

    @classmethod
    def open(
        cls,
        path: str,
        now: Callable[[], int] = time.time_ns,
        tell: Callable[[Entry], object] | None = None,
    ) -> Self:
        """Opens a journal to go on with it; the file is changed by the first `append` only.

        Args:
            path: the file, in a sweep's directory that this launcher holds.
            now: the time, nanoseconds since the epoch.
            tell: gets every record that is in it, and those that are added.

        Raises:
            ConfigError: it is not there, damaged, or of another version.
            OutputError: it cannot be read or written.
        """
        header, end = None, 0
        for end, entry in _entries(path):  # noqa: B007 - the last one is what counts
            header = header or _header(path, entry)
            if tell is not None and entry is not None:
                tell(entry)
        if header is None:
            raise _problem(path, "holds no record of a sweep", "start the sweep anew")
        return cls(path, header, end, now, tell)

    def append(self, record: Record) -> None:
        """Adds a record, after those that were kept; it is on the disk when this returns.

        After an error the record is not in the journal, and others can be tried.

        Raises:
            OutputError: the disk is full, the file was removed, ...; names the file.
        """
        entry = Entry(self._now(), record)
        self.flush()
        self._write(encode(record, entry.time_ns))
        if self._tell is not None:
            self._tell(entry)

    def keep(self, record: Record) -> None:
        """Adds a record of what has happened, as soon as the disk takes it; see `error`."""
        entry = Entry(self._now(), record)
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
        self._composed = None

    def _repair(self) -> None:
        """Cuts off what is no whole record."""
        if self._torn:
            os.ftruncate(self._fd, self._end)
            self._torn = False

    def config_of(self, job: int) -> Mapping[str, Any] | None:
        """Returns the config that a job was last composed with, None if it was not kept.

        Configs may be long and are asked for rarely, so none is held in memory.

        Args:
            job: its number.

        Raises:
            ConfigError, OutputError: as `read_journal` does.
        """
        if self._composed is None:
            self._composed = _find_composed(self.path)
        where = self._composed.get(job)
        if where is None:
            return None
        start, end = where
        with naming(self.path), open(self.path, "rb") as file:
            file.seek(start)
            entry = decode(file.read(end - start))
        return entry.record.config if entry and isinstance(entry.record, Composed) else None

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_journal(path: str) -> Iterator[Entry]:
    """Reads a journal, also while a launcher appends to it; one record at a time is in memory.

    Raises:
        ConfigError: it is not there, damaged (names the line), or of another version.
        OutputError: it cannot be read.
    """
    for _, entry in _entries(path):
        if entry is not None:
            yield entry


def _entries(path: str) -> Iterator[tuple[int, Entry | None]]:
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
            raise _unknown(path, unknown) from None
        else:
            return


def _open_entries(path: str, start: int, lines: int) -> Iterator[tuple[int, Entry | None]]:
    # not within `naming`: an error of whoever consumes the records is not the file's
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        raise _problem(path, "is not there", "give the directory of a sweep") from None
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    with file:
        file.seek(start)
        records = parse(file, start, lines)
        while True:
            try:
                found = next(records, None)
            except OSError as error:
                raise OutputError(path, error.strerror or str(error)) from error
            if found is None:
                return
            yield found


def _find_composed(path: str) -> dict[int, tuple[int, int]]:
    """Returns for each job where in the file its last `Composed` begins and ends."""
    found: dict[int, tuple[int, int]] = {}
    start = 0
    for end, entry in _entries(path):
        if entry is not None and isinstance(entry.record, Composed):
            found[entry.record.job] = (start, end)
        start = end
    return found


def _header(path: str, entry: Entry | None) -> Header:
    assert entry is not None, path
    assert isinstance(entry.record, Header), path
    return entry.record


def _sync_directory(path: str) -> None:
    """Makes the name of a new file survive a power failure."""
    directory = os.path.dirname(path) or "."
    with naming(directory):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _unknown(path: str, unknown: UnknownVersion) -> ConfigError:
    author = f" (lllaunch {unknown.lllaunch})" if unknown.lllaunch else ""
    message = f"is a journal of version {unknown.version}{author}; this one reads {VERSION}"
    return _problem(path, message, "resume it with the lllaunch that began it")


def _problem(path: str, message: str, hint: str) -> ConfigError:
    return ConfigError((Problem(_RESUME, repr(path), message, hint),))
