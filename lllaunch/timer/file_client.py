"""`FileTimerClient` and `FileTimerRequest`: the worker's side of the FIFO.

One request is one ``os.write`` of at most PIPE_BUF bytes, which the kernel never mixes with
others'. The client keeps the FIFO open if the server is ours, which marks its FIFO with the sticky
bit: torch's server waits in ``readline`` for as long as any writer is there, so with that one the
FIFO is opened and closed for each request, as torch's client does.
"""

from __future__ import annotations

import errno
import math
import os
import select
import stat
import time

from lllaunch.timer.api import TimerClient, TimerRequest
from lllaunch.timer.process_local import this_process

SERVED_BY_US = stat.S_ISVTX
"""Mode bit of a FIFO whose server does not mind that writers keep it open."""

_SIGKILL = 9  # the module `signal` imports enum
_TRIES = 10
_PAUSE = 0.1
# Seconds without any room in a full FIFO: its server reads nothing.
_STUCK = 1.0
# Seconds in all, where there was room and others took it.
_CROWDED = 10.0
_CACHED_SCOPES = 1024


class FileTimerRequest(TimerRequest):
    """A request to a `FileTimerServer`.

    ``expiration_time``: when it ends, seconds since the epoch; negative takes the timer back.
    """

    __slots__ = ("signal", "version")

    def __init__(
        self, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0
    ) -> None:
        super().__init__(worker_pid, scope_id, expiration_time)
        self.version = 1
        self.signal = signal

    @property
    def worker_pid(self) -> int:
        """Process id of the worker, also ``worker_id``."""
        pid: int = self.worker_id
        return pid

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileTimerRequest):
            return False
        same = self.version == other.version and self.signal == other.signal
        return same and super().__eq__(other)

    __hash__ = None

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.signal!r})"

    def to_json(self) -> str:
        """Returns the request as it is written into the FIFO, without the newline."""
        import json  # noqa: PLC0415 - 5 ms that a worker's client pays when it needs them

        return json.dumps(
            {
                "version": self.version,
                "pid": self.worker_pid,
                "scope_id": self.scope_id,
                "expiration_time": self.expiration_time,
                "signal": self.signal,
            }
        )


class FileTimerClient(TimerClient):
    """Sends requests to the `FileTimerServer` of this machine, or to torch's.

    It works in several threads, and in forks of the process that made it.

    ``signal``: signal that the server sends this process on expiry; 0 or less: none.

    Raises:
        BrokenPipeError: from `acquire` and `release`: no server reads the FIFO for a second.
        BlockingIOError: the FIFO is full and its server read nothing for a second.
        RuntimeError: the request is larger than PIPE_BUF bytes; nothing was sent.
        ValueError: the expiration is infinite or not a number.
    """

    def __init__(self, file_path: str, signal: int = _SIGKILL) -> None:
        super().__init__()
        self._file_path = file_path
        self._fd = -1
        self.signal = signal
        self._begin()

    @property
    def signal(self) -> int:
        """What the server shall send."""
        return self._signal

    @signal.setter
    def signal(self, signum: int) -> None:
        self._signal = signum
        self._tail = f', "signal": {int(signum)}}}\n'

    def _begin(self) -> None:
        """Forget what was set; a fork has no timers yet."""
        self._pid = this_process.pid
        self._heads: dict[str, tuple[str, bytes]] = {}
        self._set: set[str] = set()
        self._failed: set[str] = set()

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Sets a timer; the request has been written when this returns.

        ``expiration_time``: when it ends, seconds since the epoch.
        """
        if self._pid != this_process.pid:
            self._begin()
        if not math.isfinite(expiration_time):
            raise ValueError(f"timer {scope_id!r}: expiration_time is {expiration_time!r}")
        head = (self._heads.get(scope_id) or self._encode(scope_id))[0]
        try:
            self._send(f"{head}{float(expiration_time)!r}{self._tail}".encode())
        except BaseException:
            # An earlier timer of that name is still running: its release must be sent.
            if scope_id not in self._set:
                self._failed.add(scope_id)
            raise
        self._set.add(scope_id)
        if self._failed:
            self._failed.discard(scope_id)

    def release(self, scope_id: str) -> None:
        """Takes a timer back; does nothing if it could not be set."""
        if self._pid != this_process.pid:
            self._begin()
        if scope_id in self._failed:
            self._failed.discard(scope_id)
            return
        self._set.discard(scope_id)
        self._send((self._heads.get(scope_id) or self._encode(scope_id))[1])

    def _encode(self, scope_id: str) -> tuple[str, bytes]:
        """What does not change in the requests for a scope: the first part, the whole release."""
        import json  # noqa: PLC0415 - 5 ms that only those pay who set a timer

        if len(self._heads) >= _CACHED_SCOPES:
            self._heads.clear()
        head = (
            f'{{"version": 1, "pid": {self._pid}, "scope_id": {json.dumps(scope_id)}, '
            '"expiration_time": '
        )
        encoded = self._heads[scope_id] = (head, f'{head}-1, "signal": 0}}\n'.encode())
        return encoded

    def _send(self, data: bytes) -> None:
        if len(data) > select.PIPE_BUF:
            raise RuntimeError(
                f"FileTimerRequest larger than {select.PIPE_BUF} bytes is not supported: "
                f"{len(data)} bytes, {data[:200].decode()}..."
            )
        tries = 0
        until = 0.0
        while True:
            try:
                with this_process.lock:
                    self._write(data)
            except BlockingIOError:
                until = until or time.monotonic() + _CROWDED
                if self._write_when_there_is_room(data, until):
                    return
            except OSError as error:
                tries += 1
                if tries >= _TRIES:
                    reason = error.strerror or str(error)
                    message = (
                        f"no timer server reads this FIFO, the request was not sent ({reason})"
                    )
                    raise BrokenPipeError(errno.EPIPE, message, self._file_path) from error
                time.sleep(_PAUSE)
            else:
                return

    def _write(self, data: bytes) -> None:
        """Writes a request; whole or, raising an OSError, not at all."""
        if self._fd >= 0:
            try:
                os.write(self._fd, data)
            except BlockingIOError:
                raise
            except OSError:
                # The server has gone; there may be another by now.
                self.close()
            else:
                return
        fd = os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        keep = False
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISFIFO(mode):
                raise OSError(errno.EINVAL, "it is no FIFO")
            keep = bool(mode & SERVED_BY_US)
            os.write(fd, data)
        finally:
            if keep:
                self._fd = fd
            else:
                os.close(fd)

    def _write_when_there_is_room(self, data: bytes, until: float) -> bool:
        """Waits until the full FIFO has room, and writes at once, as others wait for it too.

        ``until``: when to give up, seconds of the monotonic clock. Returns False if it could not be
        written yet: others were faster, or the server has gone.
        """
        try:
            fd = os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            # The next try tells.
            return False
        try:
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            stuck = not poll.poll(_STUCK * 1000)
            if not stuck and stat.S_ISFIFO(os.fstat(fd).st_mode):
                os.write(fd, data)
                return True
        except OSError:
            # Others were faster, or the server has gone just now.
            stuck = False
        finally:
            os.close(fd)
        if stuck or time.monotonic() > until:
            seconds = _STUCK if stuck else _CROWDED
            raise BlockingIOError(
                errno.EAGAIN,
                f"the timer server's FIFO was full for {seconds:g} s, the request was not sent",
                self._file_path,
            )
        return False

    def __getstate__(self) -> dict[str, object]:
        # A descriptor means nothing, or something else, in another process.
        return {**self.__dict__, "_fd": -1, "_pid": 0}

    def close(self) -> None:
        """Closes the FIFO; the next request opens it again. Idempotent; beyond torch."""
        with this_process.lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    def __del__(self) -> None:
        # Not there if __init__ failed.
        if getattr(self, "_fd", -1) >= 0:
            self.close()
