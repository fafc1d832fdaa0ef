"""The warm spawners of a sweep: one for each environment that several jobs share.

They are the launcher's. A job that begins gets a branch of one, which begins when what is to be
preloaded has been. Where enough are kept, one that no job has asked for of late makes room. A
job runs cold, with a spawner of its own, where there is none to do so, and where the one of its
environment died or cannot preload: its own will say what is wrong.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lllaunch.events import PreloadBroken, SpawnerEvent, SpawnerGone
from lllaunch.linux.process import process_ended
from lllaunch.spawner.client import Branch, Spawner
from lllaunch.spawner.interpreter import Shared

if TYPE_CHECKING:
    from lllaunch.sweep.protocol import SpawnerKey


# So many jobs may ask for others before a spawner makes room: environments that take turns keep
# theirs.
_RECENT = 16


class _Pooled:
    """A spawner, and who uses it."""

    def __init__(self, spawner: Spawner) -> None:
        self.spawner = spawner
        self.jobs: list[int] = []
        self.lent_at = 0

    def idle(self) -> bool:
        """Return whether no job uses it."""
        for job in [job for job in self.jobs if process_ended(job)]:
            self.jobs.remove(job)
            os.close(job)
        return not self.jobs

    def drop(self) -> None:
        """Forget who uses it."""
        while self.jobs:
            os.close(self.jobs.pop())


class SpawnerPool:
    """The warm spawners of a launcher; one thread uses them at a time.

    They outlive a sweep, for the next one of the same launcher, until `close`.
    """

    def __init__(
        self, environ: Mapping[str, str], limit: int = 4, prestarted: Spawner | None = None
    ) -> None:
        self._environ = dict(environ)
        self._limit = limit
        self._prestarted = prestarted
        self._lent = 0
        # By what their jobs share. None: a job of this environment runs cold.
        self._pooled: dict[SpawnerKey, _Pooled | None] = {}

    def spawners(self) -> list[Spawner]:
        """Those to wait for: they live, and `dispatch` has something to do when one is readable."""
        return [pooled.spawner for pooled in self._pooled.values() if pooled is not None]

    def marks(self) -> list[str]:
        """The marks of all that they start."""
        return [spawner.mark for spawner in self.spawners()]

    def pids(self) -> frozenset[int]:
        """Process ids of all of them."""
        spare = [] if self._prestarted is None else [self._prestarted]
        return frozenset(spawner.pid for spawner in [*self.spawners(), *spare])

    def start(self, key: SpawnerKey) -> None:
        """Start the spawner of an environment before a job wants it, if there is none."""
        if key.shared() not in self._pooled:
            self._start(key)

    def lend(self, key: SpawnerKey, job: int) -> tuple[Branch, bool] | None:
        """Return a branch for a job that begins, and whether it is there soon; None for a cold job.

        ``job``: pidfd of its process.
        """
        self._lent += 1
        known = key.shared() in self._pooled
        pooled = self._pooled[key.shared()] if known else self._start(key)
        if pooled is None:
            return None
        pooled.lent_at = self._lent
        pooled.idle()
        try:
            pooled.jobs.append(os.dup(job))
            launcher = os.dup(job)
        except OSError:
            # No descriptor is left.
            return None
        try:
            return pooled.spawner.branch(launcher), pooled.spawner.ready
        except OSError:
            os.close(launcher)
            return None

    def branch_of(self, key: SpawnerKey, mark: str, fd: int) -> Branch:
        """In the job: what `lend` has sent."""
        return Branch(socket.socket(fileno=fd), self._shared(key), mark)

    def _shared(self, key: SpawnerKey) -> Shared:
        return Shared(key.environ(self._environ), key.cwd, key.preload)

    def _start(self, key: SpawnerKey) -> _Pooled | None:
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
        pooled = self._pooled[key.shared()] = _Pooled(spawner)
        return pooled

    def _make_room(self) -> bool:
        """End a spawner that no job uses, nor has asked for of late; False if there is none."""
        for key, pooled in self._pooled.items():
            if pooled is not None and self._lent - pooled.lent_at >= _RECENT and pooled.idle():
                del self._pooled[key]
                pooled.drop()
                pooled.spawner.close()
                return True
        return False

    def dispatch(self, ready: frozenset[int], tell: Callable[[SpawnerEvent], None]) -> None:
        """Take note of what spawners say."""
        for key, pooled in list(self._pooled.items()):
            if pooled is None or pooled.spawner.fileno() not in ready:
                continue
            facts = pooled.spawner.dispatch()
            if any(isinstance(fact, (SpawnerGone, PreloadBroken)) for fact in facts):
                self._pooled[key] = None
                pooled.drop()
                pooled.spawner.close()
            for fact in facts:
                tell(fact)

    def leave(self) -> None:
        """In a forked job: these are the launcher's."""
        for pooled in self._pooled.values():
            if pooled is not None:
                pooled.drop()
                pooled.spawner.forget()
        if self._prestarted is not None:
            self._prestarted.forget()
        self._pooled, self._prestarted = {}, None

    def close(self) -> None:
        """End all of them; idempotent."""
        for pooled in self._pooled.values():
            if pooled is not None:
                pooled.drop()
                pooled.spawner.close()
        if self._prestarted is not None:
            self._prestarted.close()
        self._pooled, self._prestarted = {}, None
