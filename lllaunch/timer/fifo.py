"""The FIFO of a timer server: made, read without waiting, removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios

from lllaunch.timer.file_client import SERVED_BY_US

# As much as a user may have without privileges, by default: 9000 requests.
_PIPE_BYTES = 1 << 20
# A few milliseconds of work, whatever is in it: who reads has other things to do as well.
_READ_BYTES = 1 << 16


class Fifo:
    """A FIFO that only this user may use.

    It is opened for writing too: there is never an end of file, nor a hang-up, when clients leave.

    Args:
        path: where; nothing may be there.

    Raises:
        OSError: it cannot be made; names the path.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            os.mkfifo(path, 0o600)
        except OSError as error:
            # It says what, but not where.
            raise OSError(error.errno, error.strerror, path) from None
        try:
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(path, flags)
        except OSError:
            os.unlink(path)
            raise
        # A filesystem that keeps no such bit costs clients an open for each request.
        with contextlib.suppress(OSError):
            os.fchmod(self._fd, 0o600 | SERVED_BY_US)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def read(self) -> bytes:
        """Reads what is in it, 64 KiB at most; nothing if it is empty."""
        try:
            return os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return b""

    def waiting(self) -> int:
        """Returns how many bytes are in it."""
        size: int = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))[0]
        return size

    def close(self) -> None:
        """Close it; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Unlink and close it, unless something else has taken its place; idempotent."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.lstat(self.path)):
                os.unlink(self.path)
        self.close()
