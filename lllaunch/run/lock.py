"""A directory that one launcher holds at a time: a lock on a file in it.

The lock is ``flock``'s: the kernel drops it however its holder ends. Processes that the holder
forks share it: it is free when the last of them has ended or closed it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from typing import TYPE_CHECKING

from lllaunch.errors import ConfigError, OutputError
from lllaunch.run.files import naming, write_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

    from lllaunch.errors import Problem

# How often a lock is tried before it counts as held.
_TRIES, _PAUSE_SECONDS = 5, 0.02
_UNSUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class HeldDirectory:
    """A directory that this launcher holds until `release`, or until its end.

    Args:
        path: the directory, absolute.
        lock_fd: what `lock_directory` returned.

    Attributes:
        path: the same.
    """

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def lock_directory(path: str, name: str, refusal: Callable[[str], Problem]) -> int | None:
    """Takes a directory for this process, making it if need be.

    Args:
        path: the directory, absolute.
        name: the lock's file in it.
        refusal: makes the message from who holds it: an empty string, or ``" (pid 1 on host)"``.

    Returns:
        a descriptor whose closing gives the lock back, or None on a file system without locks,
        where everybody is let in.

    Raises:
        ConfigError: another process holds it.
        OutputError: it cannot be made or written to.
    """
    file = os.path.join(path, name)
    while True:
        # named by the directory: that is what the user chose and can change
        with naming(path):
            os.makedirs(path, exist_ok=True)
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not _lock(path, fd, refusal):
                os.close(fd)
                return None
            if _is_file(fd, file):
                _sign(path, fd)
                return fd
        except BaseException:
            os.close(fd)
            raise
        # its holder took the directory away in between, see `HeldDirectory.discard`
        os.close(fd)


def _is_file(fd: int, file: str) -> bool:
    """Return whether a descriptor is that of the file which has a name now."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(file))
    except FileNotFoundError:
        return False


def _lock(path: str, fd: int, refusal: Callable[[str], Problem]) -> bool:
    """Takes the lock; False if there are none here."""
    try:
        for left in reversed(range(_TRIES)):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # somebody may just look whether the directory is held (`lllaunch.records.locks`)
                if not left:
                    raise
                time.sleep(_PAUSE_SECONDS)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
            raise OutputError(path, error.strerror or str(error)) from None
        holder = os.pread(fd, 200, 0).decode(errors="replace").strip()
        raise ConfigError((refusal(f" ({holder})" if holder else ""),)) from None
    return True


def _sign(path: str, fd: int) -> None:
    """Writes who holds the lock, for the message that another launcher shows."""
    with naming(path):
        os.ftruncate(fd, 0)
        write_all(fd, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
