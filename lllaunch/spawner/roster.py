"""What the launcher knows of the workers that it ordered, and of the commands that it gave."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
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
    """The workers that were ordered and are not known to have ended, each with its pidfd.

    Attributes:
        pids: process ids of all workers that ever started.
    """

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._keys = itertools.count(1)
        self._workers: dict[int, _Worker] = {}

    def add(self, rank: int) -> int:
        """Take note of an order; the worker's key."""
        key = next(self._keys)
        self._workers[key] = _Worker(rank)
        return key

    def note(self, message: Message) -> Fact:
        """Take note of a message about a worker; the fact that it tells."""
        key = message.header["key"]
        worker = self._workers[key]
        fact = translate(message.header, worker.rank)
        if isinstance(fact, Started):
            self.pids.add(fact.pid)
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

    def clear(self) -> None:
        """Forget all of them."""
        for key in list(self._workers):
            self._forget(key)


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
    """The commands that the spawner has not confirmed, and the alarm for when it does not."""

    def __init__(self) -> None:
        self._alarm = Alarm()
        self._waiting: list[Command] = []

    def fileno(self) -> int:
        """Readable when `overdue` may have something to tell."""
        return self._alarm.fileno()

    def add(self, command: Command) -> None:
        """Begin to wait for a command's confirmation."""
        self._waiting.append(command)
        self._alarm.set(ACKNOWLEDGE_SECONDS)

    def confirm(self, operation: str) -> None:
        """The spawner carried out the oldest command of this kind."""
        for command in self._waiting:
            if command.operation == operation:
                self._waiting.remove(command)
                break
        if not self._waiting:
            self._alarm.set(None)

    def overdue(self) -> list[Command]:
        """The commands that waited too long; they are waited for no longer."""
        if not self._waiting or not self._alarm.clear():
            return []
        overdue, self._waiting = self._waiting, []
        return overdue

    def close(self) -> None:
        """Wait for nothing any more; idempotent."""
        self._waiting.clear()
        self._alarm.close()
