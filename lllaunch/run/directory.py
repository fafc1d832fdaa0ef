"""The directory of a run: claimed by one launcher at a time, grown attempt by attempt.

Layout (docs/reference/files.md)::

    plan.yaml  events.jsonl  samples.jsonl  result.json  latest -> attempt_1
    attempt_0/0/  attempt_0/1/  attempt_1/0/ ...

Only the launcher makes directories; an attempt's directory is never deleted or used twice. A claim
is a lock on a file, ``flock``'s: the kernel drops it however its holder ends. Processes that the
holder forks share it: it is free when the last of them has ended or closed it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Literal, Self

from lllaunch.errors import ConfigError, Diagnostic, OutputError
from lllaunch.files import own_file, read_text, write_all
from lllaunch.linux import proc
from lllaunch.linux.process import open_pidfd, process_ended
from lllaunch.run.files import link_atomic, naming
from lllaunch.workers.log_files import make_attempt_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCK_NAME = ".lllaunch.lock"
PLAN = "plan.yaml"
EVENTS = "events.jsonl"
SAMPLES = "samples.jsonl"
RESULT = "result.json"
SUBMISSION = "submission.json"
"""What was submitted to a cluster (`lllaunch.run.submission`)."""
ATTEMPT = re.compile(r"attempt_(\d+)")
"""The name of an attempt's directory."""

PATIENCE = 10.0
"""How long to wait for what a killed launcher has left, seconds."""
SIGNED = re.compile(r"pid (\d+) on (.*)\n?")
"""What a launcher writes into the lock that it holds: its process id and its host's name."""
LONGEST = 256
"""Bytes of that, at most."""

# A lock counts as held after so many seconds: somebody may just look whether it is
# (`lllaunch.results.listing`), or, for who has patience, be a launcher that was killed this moment.
_SHORT, _MOMENT = 0.1, 0.5
_PAUSE = 0.02
# what may outlive a launcher
_PARTS = {"run": "workers", "sweep": "jobs"}
_TRIES = 10


class HeldDirectory:
    """A directory that this launcher holds until `release`, or until its end."""

    def __init__(self, path: str, lock_fd: int | None) -> None:
        self.path = path
        self._lock_fd = lock_fd

    def file(self, name: str) -> str:
        """Returns the absolute path of a file in it."""
        return os.path.join(self.path, name)

    @property
    def locks(self) -> tuple[int, ...]:
        """The descriptors of its locks: whoever has them open holds the directory, too."""
        return () if self._lock_fd is None else (self._lock_fd,)

    def release(self) -> None:
        """Gives the directory back; idempotent."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


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
        lock = lock_directory(path, LOCK_NAME, "launch.log_dir", "run", patience, say, alone=alone)
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


# The lock


def lock_directory(
    path: str,
    name: str,
    key: str,
    kind: Literal["run", "sweep"],
    patience: float = 0.0,
    say: Callable[[str], object] | None = None,
    *,
    alone: bool = False,
) -> int | None:
    """Takes a directory for this process, making it if need be; its path is absolute.

    ``key``: that names the directory, for the message of a refusal. ``patience``: how long to wait
    for what a launcher that has ended has left, seconds. A launcher that lives is not waited for.
    ``say``: gets a line for people if that takes longer than a moment. ``alone``: whether it is
    known that no launcher that lives has it: the file server may take a while to see that the
    machine of the last one is gone. Returns a descriptor whose closing gives the lock back; None on
    a file system without locks.

    Raises:
        ConfigError: another process holds it.
        OutputError: it cannot be made or written to.
    """
    file = own_file(os.path.join(path, name))
    began = time.monotonic()
    while True:
        # named by the directory: that is what the user chose and can change
        with naming(path):
            os.makedirs(path, exist_ok=True)
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            taken = _try_lock(path, fd)
            if taken is None:
                os.close(fd)
                return None
            # its holder may have taken the directory away in between: `RunDirectory.discard`
            with contextlib.suppress(FileNotFoundError):
                if taken and os.path.samestat(os.fstat(fd), os.stat(file)):
                    # for the message that another launcher shows
                    with naming(path):
                        os.ftruncate(fd, 0)
                        write_all(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if not taken:
            waited, ended = time.monotonic() - began, launcher_is_dead(file)
            # what this launcher had itself, its spawner gives back in a moment
            passing = alone or ended or _signer(file) == os.getpid()
            if waited >= max(patience if passing else min(patience, _MOMENT), _SHORT):
                raise ConfigError((_refusal(path, file, key, kind, ended=ended),))
            if say is not None and ended and waited >= _MOMENT:
                say(f"waiting for {_PARTS[kind]} that the killed launcher of {path!r} has left")
                say = None
            time.sleep(_PAUSE)


def _try_lock(path: str, fd: int) -> bool | None:
    """Return whether the lock was taken; None if there are none here."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}:
            return None
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
            raise OutputError(path, error.strerror or str(error)) from None
        return False
    return True


def launcher_is_dead(lock: str) -> bool:
    """Whether the launcher that signed a lock has ended; False if unknown."""
    pid = _signer(lock)
    facts = proc.facts(pid) if pid else None
    return pid != 0 and (facts is None or facts.state in "ZX")


def open_launcher(lock: str) -> int | None:
    """Returns a pidfd of the launcher that holds a lock; None if it is none of this machine's.

    Its number alone says little: it may be another process's by now, or of another container whose
    host has the same name, or anybody has written it. The kernel says who holds the lock.

    Raises:
        OutputError: the process may not be looked at: it is another user's.
    """
    pid = _signer(lock)
    pidfd = open_pidfd(pid) if pid else None
    if pidfd is None:
        return None
    try:
        held = (
            "FLOCK" in proc.read_text(f"/proc/{pid}/fdinfo/{name}")
            for name in _descriptors(pid, os.lstat(lock))
        )
        if any(held) and not process_ended(pidfd):
            return pidfd
    except PermissionError as error:
        os.close(pidfd)
        raise OutputError(lock, f"process {pid}, which holds it, is another user's") from error
    except OSError:  # one of them is gone
        pass
    os.close(pidfd)
    return None


def _signer(lock: str) -> int:
    """Return the process id of the launcher that signed a lock, 0 if it is not of this machine."""
    signed = SIGNED.fullmatch(read_text(lock, LONGEST) or "")
    return int(signed[1]) if signed is not None and signed[2] == socket.gethostname() else 0


def _refusal(path: str, lock: str, key: str, kind: str, *, ended: bool) -> Diagnostic:
    signed = (read_text(lock, LONGEST) or "").strip()
    holder = f" ({signed})" if signed else ""
    other = f"choose another directory with hydra.{kind}.dir=..."
    if not ended:
        message = f"is in use by another {kind}{holder}"
        return Diagnostic("in-use", key, repr(path), message, f"wait for it, or {other}")
    message = f"is still in use by {_PARTS[kind]} of a {kind} whose launcher{holder} has ended"
    everything, pids = proc.processes(), set[int]()
    for each in everything:
        with contextlib.suppress(OSError):  # it may not be looked at
            if any(_descriptors(each.pid, os.stat(lock))):
                pids |= {each.pid, *(one.pid for one in proc.descendants(each.pid, everything))}
    pids.discard(os.getpid())
    hint = f"wait for them, or end them (pids {', '.join(map(str, sorted(pids)))})"
    hint = hint if pids else f"wait for them, or {other}"
    return Diagnostic("in-use", key, repr(path), message, hint)


def _descriptors(pid: int, wanted: os.stat_result) -> Iterator[str]:
    """Yield the descriptors of a process that are of a file, if they may be looked at."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):
                yield name
