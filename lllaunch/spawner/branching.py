"""Handing a warm spawner to another launcher: what a branch needs on the launchers' side.

A launcher that has a spawner makes a branch and hands it over to a fork of its own: that adopts it,
and forgets the spawner that its parent has.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from lllaunch.errors import SpawnerDied
from lllaunch.linux.process import (
    Subreaper,
    hold_standard_fds,
    raise_open_files_limit,
    wait_readable,
)
from lllaunch.spawner.environment import exec_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from lllaunch.linux.cgroup import Cgroup
    from lllaunch.spawner.environment import Shared
    from lllaunch.spawner.facts import Died
    from lllaunch.spawner.wire import Channel


class Branch(NamedTuple):
    """A branch, as the process gets it that will adopt it.

    Attributes:
        sock: the connection's end for that process.
        shared: what the workers of the spawner have in common.
        mark: the mark in its environment.
        other: the connection's end for the branch, if that process was forked while its parent had
            it open; else None.
    """

    sock: socket.socket
    shared: Shared
    mark: str
    other: socket.socket | None = None

    def close(self) -> None:
        """Close what this process has of it."""
        self.sock.close()
        if self.other is not None:
            self.other.close()


class Branching:
    """The part of `lllaunch.spawner.client.Spawner` that makes, takes and leaves branches."""

    pid: int
    mark: str
    dead: Died | None
    _key: Shared | None
    _exec_env: dict[str, str]
    _limits: tuple[int, int]
    _ready: bool
    _adopts: bool
    _arrival: Callable[[], None] | None
    _channel: Channel | None
    _cgroup: Cgroup | None
    _connect: Any
    _hand_locks: Any
    _let_go: Any
    _note: Any
    _release: Any
    _send: Any

    def new_branch(self) -> Branch:
        """Make a branch of this spawner, which is configured.

        `adopt` is to be called with it in a process that is forked now, and `hand_over` here. A
        process that was forked before is sent ``sock`` and ``mark``.
        """
        assert self._key is not None
        ours, theirs = socket.socketpair()
        return Branch(ours, self._key, self.mark, theirs)

    def hand_over(self, other: socket.socket, launcher: int) -> None:
        """Let a branch begin, when the preloads are done.

        Both are closed here, as soon as they have been sent.

        Args:
            other: the branch's end of its connection.
            launcher: pidfd of the process that adopts it; the branch ends when that ends.
        """
        if self.dead is None:
            self._send({"op": "branch"}, fds=(other.detach(), launcher), close_fds=True)
        else:
            other.close()
            os.close(launcher)

    @classmethod
    def adopt(
        cls,
        branch: Branch,
        seconds: float | None = None,
        *,
        adopted: Callable[[int], object] = lambda pid: None,  # noqa: ARG005
        later: bool = False,
    ) -> Self:
        """Take a branch over, in the process that it is meant for; waits for the preloads.

        It is configured as the spawner that it comes from: `configure` with other values replaces
        it by a spawner of this process's own.

        Args:
            branch: as `new_branch` made it.
            seconds: how long it is waited for; None: as long as somebody may still let it begin.
            adopted: told its process id before it starts workers.
            later: wait for it in `configure` only, which starts a spawner of this process's own
                if it has ended: for one that is being forked meanwhile.

        Raises:
            SpawnerDied: it ended, or did not begin.
        """
        hold_standard_fds()
        if branch.other is not None:
            branch.other.close()
        spawner = cls()
        spawner.mark, spawner._key = branch.mark, branch.shared
        spawner._exec_env = exec_part(branch.shared.environ)
        spawner._limits = raise_open_files_limit()
        Subreaper.need()
        spawner._adopts = True
        spawner._connect(branch.sock)
        until = None if seconds is None else time.monotonic() + seconds
        spawner._arrival = lambda: spawner._arrive(until, adopted)
        if not later:
            spawner._complete()
        return spawner

    def _complete(self) -> None:
        """Wait for a branch that is being adopted.

        Raises:
            SpawnerDied: it ended, or did not begin.
        """
        if self._arrival is not None:
            arrival, self._arrival = self._arrival, None
            arrival()

    def _arrive(self, until: float | None, adopted: Callable[[int], object]) -> None:
        self._await_branch(until)
        self._ready = True
        adopted(self.pid)
        self._hand_locks()
        cgroup = self._cgroup.procs if self._cgroup is not None else ""
        # a worker whose stream goes to no file writes to where this process's goes
        self._send({"op": "adopt", "cgroup": cgroup}, fds=(1, 2))

    def _await_branch(self, until: float | None) -> None:
        while not self.pid:
            left = None if until is None else until - time.monotonic()
            late = left is not None and left <= 0
            if late or self._channel is None or self._channel.closed:
                self.forget()
                if self._cgroup is not None:
                    self._cgroup.remove()
                raise SpawnerDied(0, None, "it did not hand over a branch")
            wait_readable(self._channel, left)
            for message in self._channel.receive():
                self._note(message)

    def forget(self) -> None:
        """Close what this process has of the spawner, and leave the spawner itself alone.

        For a fork of its launcher, which still has it.
        """
        self._release()
        self._channel = None
        self._let_go()
        self.pid = 0
