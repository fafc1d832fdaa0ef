"""Handing a warm spawner to another launcher: what a branch needs on the launchers' side.

A launcher that has a spawner makes a branch, forks, and hands the branch over to the child: that
adopts it, and forgets the spawner that its parent has.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from lllaunch.errors import SpawnerDied
from lllaunch.linux.process import Subreaper, hold_standard_fds, wait_readable

if TYPE_CHECKING:
    from typing_extensions import Self

    from lllaunch.linux.cgroup import Cgroup
    from lllaunch.spawner.wire import Channel

# A spawner that does not answer by then is preloading something else, or is dead.
_ADOPT_SECONDS = 60.0


class Branch(NamedTuple):
    """A branch, made before the process that will adopt it is forked.

    Attributes:
        sock: the connection's end for that process.
        other: its end for the branch.
        key: what the workers of the spawner have in common.
        exec_env: its variables that act when an interpreter is executed.
        limits: limits of open files that the launcher was started with.
        mark: the mark in its environment.
    """

    sock: socket.socket
    other: socket.socket
    key: object
    exec_env: dict[str, str]
    limits: tuple[int, int]
    mark: str


class Branching:
    """The part of `lllaunch.spawner.client.Spawner` that makes, takes and leaves branches."""

    pid: int
    mark: str
    _key: object
    _exec_env: dict[str, str]
    _limits: tuple[int, int]
    _ready: bool
    _adopts: bool
    _channel: Channel | None
    _cgroup: Cgroup | None
    _connect: Any
    _let_go: Any
    _note: Any
    _release: Any
    _send: Any

    def new_branch(self) -> Branch:
        """Make a branch; to be followed by a fork, `hand_over` here and `adopt` there."""
        ours, theirs = socket.socketpair()
        return Branch(ours, theirs, self._key, self._exec_env, self._limits, self.mark)

    def hand_over(self, branch: Branch, launcher: int) -> None:
        """Let a branch begin, when the preloads are done.

        Args:
            branch: made by `new_branch`.
            launcher: pidfd of the process that adopts it; the branch ends when that ends.
        """
        branch.sock.close()
        # What the channel sends is closed when it has left.
        fds = (branch.other.detach(), os.dup(launcher))
        self._send({"op": "branch"}, fds=fds, close_fds=True)

    @classmethod
    def adopt(cls, branch: Branch) -> Self:
        """Take a branch over, in the process that was forked for it.

        It is configured as the spawner that it comes from: `configure` with other values replaces
        it by a spawner of this process's own.

        Raises:
            SpawnerDied: it ended, or never began.
        """
        hold_standard_fds()
        branch.other.close()
        spawner = cls()
        spawner.mark, spawner._key = branch.mark, branch.key
        spawner._exec_env, spawner._limits = branch.exec_env, branch.limits
        Subreaper.need()
        spawner._adopts = True
        spawner._connect(branch.sock)
        spawner._await_branch(time.monotonic() + _ADOPT_SECONDS)
        spawner._ready = True
        cgroup = spawner._cgroup.procs if spawner._cgroup is not None else ""
        spawner._send({"op": "adopt", "cgroup": cgroup})
        return spawner

    def _await_branch(self, until: float) -> None:
        while not self.pid:
            left = until - time.monotonic()
            if left <= 0 or self._channel is None or self._channel.closed:
                self.forget()
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
