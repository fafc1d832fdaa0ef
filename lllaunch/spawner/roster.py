"""What the launcher knows of the workers that it ordered, and of the commands that it gave."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lllaunch.linux.process import Alarm, send_signal
from lllaunch.spawner.facts import Fact, Started, translate
from lllaunch.spawner.wire import Message

# How long the spawner may take to confirm a signal before the launcher sends it itself.
ACKNOWLEDGE_SECONDS = 1.0


@dataclass
class _Worker:
    rank: int
    pidfd: int = -1


class Roster:
    """The workers that were ordered and are not known to have ended, each with its pidfd."""

    def __init__(self) -> None:
        self._keys = itertools.count(1)
        self._workers: dict[int, _Worker] = {}

    def add(self, rank: int) -> int:
        """Take note of an order; the worker's key."""
        key = next(self._keys)
        self._workers[key] = _Worker(rank)
        return key

    def note(self, message: Message) -> Fact | None:
        """Take note of a message about a worker.

        Returns:
            The fact that it tells; None if nobody waits for that worker any more.
        """
        key = message.header["key"]
        worker = self._workers.get(key)
        if worker is None:
            for fd in message.fds:
                os.close(fd)
            return None
        fact = translate(message.header, worker.rank)
        if isinstance(fact, Started):
            worker.pidfd = message.fds[0] if message.fds else -1
        else:
            self._forget(key)
        return fact

    def _forget(self, key: int) -> None:
        worker = self._workers.pop(key)
        if worker.pidfd >= 0:
            os.close(worker.pidfd)

    def signal_directly(self, keys: Iterable[int], signum: int) -> None:
        """Signal workers through their pidfds."""
        for key in keys:
            worker = self._workers.get(key)
            if worker is not None and worker.pidfd >= 0:
                send_signal(worker.pidfd, signum)

    def abandon(self, keys: Iterable[int]) -> None:
        """Wait no longer for the ends of workers; nothing is told of them any more."""
        for key in keys:
            if key in self._workers:
                self._forget(key)

    def clear(self) -> None:
        """Forget all of them."""
        self.abandon(list(self._workers))


@dataclass(frozen=True)
class Command:
    """A signal or kill that the spawner was told to carry out.

    Attributes:
        operation: ``signal`` or ``kill``.
        keys: which workers.
        signum: the signal.
    """

    operation: str
    keys: list[int]
    signum: int


class Commands:
    """The commands that the spawner has not confirmed, and the alarm for when it does not.

    Args:
        clock: tells the time, seconds of the monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._alarm = Alarm()
        self._ids = itertools.count(1)
        # With the time by which it must be confirmed; the oldest first.
        self._waiting: dict[int, tuple[float, Command]] = {}

    def fileno(self) -> int:
        """Readable when `overdue` may have something to tell."""
        return self._alarm.fileno()

    def add(self, command: Command) -> int:
        """Begin to wait for a command's confirmation; return the number that confirms it."""
        number = next(self._ids)
        self._waiting[number] = self._clock() + ACKNOWLEDGE_SECONDS, command
        self._set_alarm()
        return number

    def confirm(self, number: int) -> None:
        """The spawner carried out a command."""
        self._waiting.pop(number, None)
        self._set_alarm()

    def overdue(self) -> list[Command]:
        """Return the commands that waited too long; they are waited for no longer."""
        if not self._waiting or not self._alarm.clear():
            return []
        now = self._clock()
        late = [number for number, (deadline, _) in self._waiting.items() if deadline <= now]
        commands = [self._waiting.pop(number)[1] for number in late]
        self._set_alarm()
        return commands

    def _set_alarm(self) -> None:
        first = next(iter(self._waiting.values()), None)
        self._alarm.set(None if first is None else max(0.0, first[0] - self._clock()))

    def close(self) -> None:
        """Wait for nothing any more; idempotent."""
        self._waiting.clear()
        self._alarm.close()
