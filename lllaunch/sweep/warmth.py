"""The warm spawners of a sweep: one for each environment that several jobs share.

They are the launcher's. A job that begins gets a branch of one; the branch begins when what is to
be preloaded has been. Where enough are kept, one that no job has asked for of late makes room. A
job runs cold, with a spawner of its own, where there is none to do so, and where the one of its
environment died or cannot preload: its own will say what is wrong.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lllaunch.events import PreloadBroken, SpawnerEvent, SpawnerGone
from lllaunch.linux.process import process_ended
from lllaunch.spawner.client import Branch, Spawner
from lllaunch.spawner.environment import Shared

if TYPE_CHECKING:
    from lllaunch.spawner.protocol import Channel, Message
    from lllaunch.sweep.prepared import WarmKey


# So many jobs may ask for others before a spawner makes room: environments that take turns keep
# theirs.
_OF_LATE = 16


class _Kept:
    """A spawner, and who uses it.

    Attributes:
        spawner: it.
        waiting: what waits for its preloads: the branch's end, and a pidfd of the job.
        jobs: pidfds of the jobs that have got a branch.
        asked: the number of the job that asked for it last, of all that asked for one.
    """

    def __init__(self, spawner: Spawner) -> None:
        self.spawner = spawner
        self.waiting: list[tuple[socket.socket, int]] = []
        self.jobs: list[int] = []
        self.asked = 0

    def idle(self) -> bool:
        """Return whether no job uses it."""
        for job in [job for job in self.jobs if process_ended(job)]:
            self.jobs.remove(job)
            os.close(job)
        return not self.waiting and not self.jobs

    def hand_over(self) -> None:
        """Let what waits begin, if its job still lives."""
        waiting, self.waiting = self.waiting, []
        for other, launcher in waiting:
            if process_ended(launcher):
                _close(other, launcher)
            else:
                self.spawner.hand_over(other, launcher)

    def drop(self) -> None:
        """Close what waits; the job sees that, and goes on without."""
        for other, launcher in self.waiting:
            _close(other, launcher)
        self.waiting.clear()
        while self.jobs:
            os.close(self.jobs.pop())


def _close(other: socket.socket, launcher: int) -> None:
    other.close()
    os.close(launcher)


class Warmth:
    """The warm spawners of a launcher; one thread uses them at a time.

    They outlive a sweep, for the next one of the same launcher, until `close`.

    Args:
        environ: the launcher's environment.
        limit: how many there are at most.
        prestarted: one that is not configured yet, for the first environment; closed with the
            others.
    """

    def __init__(
        self, environ: Mapping[str, str], limit: int = 4, prestarted: Spawner | None = None
    ) -> None:
        self._environ = dict(environ)
        self._limit = limit
        self._prestarted = prestarted
        self._asked = 0
        # None: a job of this environment runs cold.
        self._kept: dict[WarmKey, _Kept | None] = {}

    def spawners(self) -> list[Spawner]:
        """Those to wait for: they live, and `look` has something to do when one is readable."""
        return [kept.spawner for kept in self._kept.values() if kept is not None]

    def marks(self) -> list[str]:
        """The marks of all that they start."""
        return [spawner.mark for spawner in self.spawners()]

    def pids(self) -> frozenset[int]:
        """Process ids of all of them."""
        spare = [] if self._prestarted is None else [self._prestarted]
        return frozenset(spawner.pid for spawner in [*self.spawners(), *spare])

    def start(self, key: WarmKey) -> None:
        """Start the spawner of an environment before a job wants it, if there is none."""
        if key not in self._kept:
            self._start(key)

    def give(self, key: WarmKey, channel: Channel, job: int) -> None:
        """Send a job that begins its branch, if it does not run cold.

        Args:
            key: which spawner it wants.
            channel: to the job.
            job: pidfd of its process.
        """
        self._asked += 1
        kept = self._kept[key] if key in self._kept else self._start(key)
        if kept is None:
            return
        kept.asked = self._asked
        kept.idle()
        with contextlib.ExitStack() as undo:
            try:
                branch = kept.spawner.new_branch()
                undo.callback(branch.close)
                launcher = os.dup(job)
                undo.callback(os.close, launcher)
                kept.jobs.append(os.dup(job))
            except OSError:
                # No descriptor is left.
                return
            undo.pop_all()
        assert branch.other is not None
        kept.waiting.append((branch.other, launcher))
        header = {"branch": branch.mark, "soon": kept.spawner.ready}
        channel.queue(header, fds=(branch.sock.detach(),), close_fds=True)
        if kept.spawner.ready:
            kept.hand_over()

    def branch_of(self, key: WarmKey, message: Message) -> Branch:
        """In the job: what `give` has sent."""
        return Branch(
            socket.socket(fileno=message.fds[0]), self._shared(key), message.header["branch"]
        )

    def _shared(self, key: WarmKey) -> Shared:
        return Shared(key.environ(self._environ), key.cwd, key.preload)

    def _start(self, key: WarmKey) -> _Kept | None:
        if len(self.spawners()) >= self._limit and not self._make_room():
            return None
        spawner, self._prestarted = self._prestarted, None
        try:
            spawner = Spawner() if spawner is None else spawner
            spawner.configure(*self._shared(key))
        except OSError:
            # No process or descriptor is left. There may be later.
            if spawner is not None:
                spawner.close()
            return None
        kept = self._kept[key] = _Kept(spawner)
        return kept

    def _make_room(self) -> bool:
        """End a spawner that no job uses, nor has asked for of late; False if there is none."""
        for key, kept in self._kept.items():
            if kept is not None and self._asked - kept.asked >= _OF_LATE and kept.idle():
                del self._kept[key]
                kept.drop()
                kept.spawner.close()
                return True
        return False

    def look(self, ready: frozenset[int], tell: Callable[[SpawnerEvent], None]) -> None:
        """Take note of what spawners say.

        Args:
            ready: descriptors that are readable.
            tell: gets it.
        """
        for key, kept in list(self._kept.items()):
            if kept is None or kept.spawner.fileno() not in ready:
                continue
            facts = kept.spawner.dispatch()
            if any(isinstance(fact, (SpawnerGone, PreloadBroken)) for fact in facts):
                self._kept[key] = None
                kept.drop()
                kept.spawner.close()
            elif kept.spawner.ready:
                kept.hand_over()
            for fact in facts:
                tell(fact)

    def leave(self) -> None:
        """In a forked job: these are the launcher's."""
        for kept in self._kept.values():
            if kept is not None:
                kept.drop()
                kept.spawner.forget()
        if self._prestarted is not None:
            self._prestarted.forget()
        self._kept, self._prestarted = {}, None

    def close(self) -> None:
        """End all of them; idempotent."""
        for kept in self._kept.values():
            if kept is not None:
                kept.drop()
                kept.spawner.close()
        if self._prestarted is not None:
            self._prestarted.close()
        self._kept, self._prestarted = {}, None
