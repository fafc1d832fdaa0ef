"""Helpers for tests of lllaunch, its plugins and its users.

`FakeClock` and `FakeSpawner` let a test decide the time and the fate of workers without a process.
`live_descendants`, `open_fds` and `leaked_fds` find what a test left behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from lllaunch.clock import now_ns
from lllaunch.events import Exited, OrphansGone, SpawnerEvent, SpawnerGone, Started, StartFailed
from lllaunch.linux import proc
from lllaunch.spawner.protocol import Target

__all__ = ["FakeClock", "FakeSpawner", "leaked_fds", "live_descendants", "open_fds"]

T = TypeVar("T")

_PAUSE_SECONDS = 0.02


class FakeClock:
    """A clock that a test moves; call it for the time, seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock forward.

        Raises:
            ValueError: ``seconds`` is negative; a monotonic clock never goes back.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        self.now += seconds


class FakeSpawner:
    """Replaces `lllaunch.spawner.client.Spawner`: starts nothing, and reports what a test says."""

    def __init__(self, obedient: bool = True) -> None:
        # orders by key: local rank, target and options
        self.ordered: dict[int, tuple[int, Target, dict[str, Any]]] = {}
        # signals as ``(keys, signum)``; SIGKILL from `kill` included
        self.sent: list[tuple[tuple[int, ...], int]] = []
        self.configured: list[tuple[dict[str, str], str, tuple[str, ...]]] = []
        self.obedient = obedient  # whether a signalled worker ends by that signal at once
        self.pid = 1
        self._events: list[SpawnerEvent] = []
        self._alive: set[int] = set()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def configure(self, environ: Mapping[str, str], cwd: str, preload: Sequence[str] = ()) -> None:
        """Record the arguments."""
        self.configured.append((dict(environ), cwd, tuple(preload)))

    def hold(self, locks: tuple[int, ...]) -> None:
        """Do nothing."""

    def spawn(self, rank: int, target: Target, **options: Any) -> int:
        """Record an order, report the worker as started, and return its key."""
        key = len(self.ordered) + 1
        self.ordered[key] = (rank, target, options)
        self._alive.add(key)
        self.tell(Started(rank, 1000 + key, now_ns(), self._attempt(key)))
        return key

    def _attempt(self, key: int) -> int:
        return int(self.ordered[key][2].get("attempt", 0))

    def tell(self, *events: SpawnerEvent) -> None:
        """Report events."""
        self._events += events
        os.eventfd_write(self._event, 1)

    def _take(self, rank: int) -> int:
        key = next((key for key in sorted(self._alive) if self.ordered[key][0] == rank), 0)
        if not key:
            raise LookupError(f"no worker of rank {rank} is alive")
        self._alive.remove(key)
        return key

    def end(self, rank: int, exitcode: int = 0) -> None:
        """End the live worker of a rank."""
        key = self._take(rank)
        self.tell(Exited(rank, 1000 + key, exitcode, now_ns(), attempt=self._attempt(key)))

    def fail_to_start(self, rank: int, path: str, reason: str, errno: int) -> None:
        """Report that the live worker of a rank failed to start."""
        attempt = self._attempt(self._take(rank))
        self.tell(StartFailed(rank, path, reason, errno, now_ns(), attempt))

    def die(self, status: int = -9) -> None:
        """End the spawner and its workers."""
        self._alive.clear()
        self.tell(SpawnerGone(self.pid, status))

    def fileno(self) -> int:
        """Return a descriptor that is readable while events wait."""
        return self._event

    def dispatch(self) -> list[SpawnerEvent]:
        """Return the events reported since the last call."""
        events, self._events = self._events, []
        if events:
            os.eventfd_read(self._event)
        return events

    def signal(self, keys: Iterable[int], signum: int, *, ends: bool | None = None) -> None:
        """Record the signal; end the workers if obedient."""
        chosen = tuple(keys)
        self.sent.append((chosen, int(signum)))
        for key in chosen if (self.obedient if ends is None else ends) else ():
            if key in self._alive:
                self.end(self.ordered[key][0], -signum)

    def notify(self, keys: Iterable[int], signum: int) -> None:
        """Record the signal; end nobody."""
        self.signal(keys, signum, ends=False)

    def kill(self, keys: Iterable[int]) -> None:
        """Record SIGKILL and end the workers."""
        self.signal(keys, 9, ends=True)

    def clean_up(self, settle: float) -> None:  # noqa: ARG002 - no orphan is played
        """Report that no orphan is left."""
        self.tell(OrphansGone())

    def abandon(self, keys: Iterable[int]) -> None:
        """Report nothing more about these workers."""
        self._alive -= set(keys)

    def close(self) -> None:
        """Close the descriptor; idempotent."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


def live_descendants(
    pid: int, settle: float = 0.0, but: Collection[int] = ()
) -> list[proc.ProcessFacts]:
    """Return the live descendants of a process.

    It waits ``settle`` seconds for them to end; ``but`` are ignored.
    """
    return _settled(lambda: [each for each in proc.descendants(pid) if each.pid not in but], settle)


def open_fds() -> dict[int, str]:
    """Return the open descriptors of this process and their targets."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            # The descriptor of the listing itself.
            continue
    return found


def leaked_fds(before: Mapping[int, str], settle: float = 1.0) -> dict[int, str]:
    """Return descriptors that are new, or have another target.

    ``before`` is from `open_fds`; another thread may take ``settle`` seconds to close some.
    """
    return _settled(
        lambda: {fd: what for fd, what in open_fds().items() if before.get(fd) != what}, settle
    )


def _settled(look: Callable[[], T], settle: float) -> T:
    deadline = time.monotonic() + settle
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
    return found
