"""System calls that Python's library does not offer: prctl, pidfd, inotify, limits."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import select
import signal
import struct
import threading
from collections.abc import Iterable, Iterator
from typing import Protocol

# From <sys/prctl.h> and <sys/inotify.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_CLOEXEC_NONBLOCK = os.O_CLOEXEC | os.O_NONBLOCK

_LONGEST_WAIT = 3600.0

_libc = ctypes.CDLL(None, use_errno=True)


class HasFileno(Protocol):
    """Anything with a descriptor."""

    def fileno(self) -> int:
        """The descriptor."""
        ...


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def set_parent_death_signal(signum: int) -> None:
    """Ask for ``signum`` when the thread that forked this process ends; 0 asks for nothing.

    The setting is lost when a set-uid program is executed (prctl(2), PR_SET_PDEATHSIG).
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def hold_standard_fds() -> None:
    """Open /dev/null where standard input, output or error is closed.

    Else the next file or socket that is opened gets that number, and becomes some process's output.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free: this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def set_child_subreaper(on: bool) -> bool:
    """Make this process the parent of its orphaned descendants, or stop; return what it was."""
    before = ctypes.c_int(0)
    _check(
        _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0),
        "prctl(PR_GET_CHILD_SUBREAPER)",
    )
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")
    return bool(before.value)


class Subreaper:
    """Whether this process adopts its orphaned descendants, counted over all who need that."""

    _users = 0
    _before = False
    _lock = threading.Lock()

    @classmethod
    def need(cls) -> None:
        """Adopt orphans, at least until the matching `release`."""
        with cls._lock:
            if cls._users == 0:
                cls._before = set_child_subreaper(True)
            cls._users += 1

    @classmethod
    def release(cls) -> None:
        """One need is over; with the last one, what was set before is set again."""
        with cls._lock:
            cls._users -= 1
            if cls._users == 0 and not cls._before:
                set_child_subreaper(False)


def flush_c_streams() -> None:
    """Write out what C code left in stdio buffers, as exit(3) would."""
    _libc.fflush(None)


def send_signal(pidfd: int, signum: int) -> bool:
    """Send a signal to the process behind a pidfd; False if it is gone."""
    try:
        signal.pidfd_send_signal(pidfd, signum)
    except ProcessLookupError:
        return False
    return True


def open_pidfd(pid: int) -> int | None:
    """A pidfd of a process (close-on-exec), or None if there is no such process."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def process_ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd has ended."""
    return wait_readable(pidfd, 0)


def wait_readable(file: HasFileno | int, seconds: float | None = None) -> bool:
    """Wait until one descriptor is readable, as a pidfd is when its process has ended.

    ``file``: the descriptor. Returns False if it is not.
    """
    return bool(wait((file,), seconds=seconds))


def wait(
    readable: Iterable[HasFileno | int] = (),
    writable: Iterable[HasFileno | int] = (),
    seconds: float | None = None,
) -> frozenset[int]:
    """Wait until something happens to one of several descriptors.

    ``seconds``: how long; None for ever. Of a longer time an hour at most: callers look at their
    clock again. Returns those that are ready, or have an error to tell; none if the time is over.
    """
    poll = select.poll()
    wanted: dict[int, int] = {}
    for files, event in ((readable, select.POLLIN), (writable, select.POLLOUT)):
        for file in files:
            fd = file if isinstance(file, int) else file.fileno()
            wanted[fd] = wanted.get(fd, 0) | event
            poll.register(fd, wanted[fd])
    # Rounded up: waking early would make the caller spin through the last millisecond. The kernel
    # takes no more than 24 days.
    limit = None if seconds is None else math.ceil(min(seconds, _LONGEST_WAIT) * 1000)
    return frozenset(fd for fd, _ in poll.poll(None if limit is None else max(0, limit)))


def signal_group(leader: int, signum: int) -> None:
    """Signal the process group of an unreaped child that leads it, if it is not gone.

    Only for children that have not been waited for: their number cannot have been given to others.
    """
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(leader, signum)
        except PermissionError:
            # A member changed its user. The leader may still be ours to signal.
            with contextlib.suppress(PermissionError):
                os.kill(leader, signum)


# Since Linux 2.6.25; the resource module has no name for it.
_RLIMIT_RTTIME = 15


def set_lineage(mark: str) -> None:
    """Mark this process, and all that it will ever start, whatever those do to get away.

    A session, a parent and an environment can be changed, and are by any daemon. Limits are
    inherited and stay. The one for the time that a real-time process may compute without a pause
    (RLIMIT_RTTIME, setrlimit(2)) is set to one of 2**62 values, each of more than 100,000 years, so
    that it limits nothing. Where it is limited already it is left as it is.

    ``mark``: hexadecimal digits; 16 of them distinguish enough.
    """
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(_RLIMIT_RTTIME)
        resource.setrlimit(_RLIMIT_RTTIME, (_lineage(mark), hard))


def _lineage(mark: str) -> int:
    return 1 << 62 | int(mark, 16) & (1 << 62) - 1


def descends_from(pid: int, mark: str) -> bool:
    """Whether a process, or one that it descends from, has called `set_lineage` with ``mark``."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    soft = str(_lineage(mark)).encode()
    return any(line.startswith(b"Max realtime timeout") and soft in line.split() for line in lines)


_limits_at_first: list[tuple[int, int]] = []


def raise_open_files_limit() -> tuple[int, int]:
    """Raise the soft limit of open files to the hard one.

    Returns both as they were before this was first called in this process.
    """
    now = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _limits_at_first:
        _limits_at_first.append(now)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (now[1], now[1]))
    return _limits_at_first[0]


def set_open_files_limit(limits: tuple[int, int]) -> None:
    """Set the ``(soft, hard)`` limit of open files."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


_IN_MODIFY = 0x2
_IN_Q_OVERFLOW = 0x4000
_INOTIFY_EVENT = struct.Struct("iIII")
# Room for twice as many events as the kernel keeps by default (fs.inotify.max_queued_events); those
# of watched files have no names.
_INOTIFY_BYTES = 512 * 1024


class Inotify:
    """Tells when files are written to or truncated: inotify(7). Not shared between threads.

    Raises:
        OSError, AttributeError: there is no such call, or the user's limit is reached.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = _check(self._libc.inotify_init1(_CLOEXEC_NONBLOCK), "inotify_init1")

    def fileno(self) -> int:
        """The descriptor that is readable when something has changed."""
        return self._fd

    def watch(self, path: str) -> int:
        """Watch a file; return the number by which `read` tells of it.

        Raises:
            OSError: it does not exist, the user's watches are used up (ENOSPC), ...
        """
        number = self._libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY)
        if number < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
        return int(number)

    def read(self) -> tuple[list[int], bool]:
        """Return what has changed, that which did first before others; never blocks.

        Also returns whether something is missing from that.
        """
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, _INOTIFY_BYTES)
        # the number of the watch, and what has happened
        events = [event[:2] for event in _INOTIFY_EVENT.iter_unpack(data)]
        overflow = any(mask & _IN_Q_OVERFLOW for _, mask in events)
        return [*dict.fromkeys(number for number, _ in events)], overflow

    def close(self) -> None:
        """End all watches."""
        os.close(self._fd)


@contextlib.contextmanager
def short_address(path: str) -> Iterator[str]:
    """Give another path of a Unix socket that is short enough for its address.

    An address has 107 bytes at most, wherever the socket is. The path is good for this process
    alone, within the context.

    Raises:
        OSError: the directory cannot be opened.
    """
    parent, name = os.path.split(path)
    fd = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)
