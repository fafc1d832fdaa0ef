"""Directories that one launcher at a time holds, and who does.

A claim is a lock on a file, ``flock``'s: the kernel drops it however its holder ends. Processes
that the holder forks share it: it is free when the last of them has ended or closed it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import time
from typing import TYPE_CHECKING, Literal, Self

from lllaunch.errors import ConfigError, Diagnostic, OutputError
from lllaunch.files import open_file, own_file, read_text, write_all
from lllaunch.linux import proc
from lllaunch.linux.process import open_pidfd, process_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 10.0
"""How long to wait for what a killed launcher has left, seconds."""
LOST_NODE_PATIENCE = 120.0
"""How long the lock of a node may last that is lost, seconds: NFS gives it 90."""
_SIGNED = re.compile(r"pid (\d+) on (.*)\n?")
"""What a launcher writes into the lock that it holds: its process id and its host's name."""
_LONGEST = 256  # bytes of that, at most

# A lock counts as held after so many seconds: somebody may just look whether it is
# (`lllaunch.results.listing`), or, for who has patience, be a launcher that was killed this moment.
_SHORT, _MOMENT = 0.1, 0.5
_PAUSE = 0.02
# what may outlive a launcher
_PARTS = {"run": "workers", "sweep": "jobs"}


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
        OSError: it cannot be made or written to. Callers name the directory: that is what the user
            chose and can change.
    """
    file = own_file(os.path.join(path, name))
    began = time.monotonic()
    while True:
        os.makedirs(path, exist_ok=True)
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            taken = _try_lock(fd, fcntl.LOCK_EX)
            if taken is None:
                os.close(fd)
                return None
            # its holder may have taken the directory away in between: `RunDirectory.discard`
            with contextlib.suppress(FileNotFoundError):
                if taken and os.path.samestat(os.fstat(fd), os.stat(file)):
                    # for the message that another launcher shows
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


def _try_lock(fd: int, kind: int) -> bool | None:
    """Return whether a lock, of one or to be shared, was taken; None if there are none here."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}:
            return None
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
            raise
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


def signed_by(lock: str) -> tuple[int, str]:
    """Return process id and host of the launcher that signed a lock; 0 and nothing if unknown."""
    signed = _SIGNED.fullmatch(read_text(lock, _LONGEST) or "")
    return (int(signed[1]), signed[2]) if signed is not None else (0, "")


def _signer(lock: str) -> int:
    """Return the process id of the launcher that signed a lock, 0 if it is not of this machine."""
    pid, host = signed_by(lock)
    return pid if host == socket.gethostname() else 0


def holder(lock: str) -> str:
    """Return who holds a lock that is held, as ``pid 1 on host``; an empty string if unknown."""
    pid, host = signed_by(lock)
    return f"pid {pid} on {host}" if pid else ""


def _refusal(path: str, lock: str, key: str, kind: str, *, ended: bool) -> Diagnostic:
    whose = f" ({signed})" if (signed := holder(lock)) else ""
    other = f"choose another directory with hydra.{kind}.dir=..."
    if not ended:
        message = f"is in use by another {kind}{whose}"
        return Diagnostic("in-use", key, repr(path), message, f"wait for it, or {other}")
    message = f"is still in use by {_PARTS[kind]} of a {kind} whose launcher{whose} has ended"
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


def is_held(lock: str) -> bool | None:
    """Whether somebody holds a lock as `lock_directory` takes it.

    Who signed it is looked at first: a lock whose launcher is gone is not touched. One that is
    tried is nearly always held, which changes nothing; else it is given back at once.

    Returns None if that cannot be found out: it is another user's, or the file system has no locks.
    """
    if launcher_is_dead(lock):
        return False
    try:
        fd = open_file(lock)
        try:
            taken = _try_lock(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return None if taken is None else not taken
