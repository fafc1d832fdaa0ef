"""The warm spawners of a sweep: one for each environment that several jobs share.

They are the launcher's. A job that begins gets a branch of one, which begins when what is to be
preloaded has been. A job runs cold, with a spawner of its own, where there are enough for other
environments, and where the one of its environment died or cannot preload: its own will say what is
wrong.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lllaunch.events import PreloadBroken, SpawnerEvent, SpawnerGone
from lllaunch.spawner.client import Branch, Spawner
from lllaunch.spawner.interpreter import Shared

if TYPE_CHECKING:
    from lllaunch.sweep.protocol import SpawnerKey


class SpawnerPool:
    """The warm spawners of a launcher; one thread uses them at a time.

    They outlive a sweep, for the next one of the same launcher, until `close`.
    """

    def __init__(
        self, environ: Mapping[str, str], limit: int = 8, prestarted: Spawner | None = None
    ) -> None:
        self._environ = dict(environ)
        self._limit = limit
        self._prestarted = prestarted
        # By what their jobs share. None: a job of this environment runs cold.
        self._pooled: dict[SpawnerKey, Spawner | None] = {}

    def spawners(self) -> list[Spawner]:
        """Those to wait for: they live, and `dispatch` has something to do when one is readable."""
        return [spawner for spawner in self._pooled.values() if spawner is not None]

    def marks(self) -> list[str]:
        """The marks of all that they start."""
        return [spawner.mark for spawner in self.spawners()]

    def pids(self) -> frozenset[int]:
        """Process ids of all of them."""
        return frozenset(spawner.pid for spawner in self._all())

    def _all(self) -> list[Spawner]:
        return self.spawners() + ([] if self._prestarted is None else [self._prestarted])

    def start(self, key: SpawnerKey) -> Spawner | None:
        """Return the spawner of an environment, started if need be; None if its jobs run cold."""
        shared = key.shared()
        if shared in self._pooled:
            return self._pooled[shared]
        if len(self.spawners()) >= self._limit:
            return None
        spawner, self._prestarted = self._prestarted or Spawner(), None
        try:
            spawner.configure(*self._shared(key))
        except OSError:
            # No process or descriptor is left. There may be later.
            spawner.close()
            return None
        self._pooled[shared] = spawner
        return spawner

    def lend(self, key: SpawnerKey, job: int) -> tuple[Branch, bool] | None:
        """Return a branch for a job that begins, and whether it is there soon; None for a cold job.

        ``job``: pidfd of its process.
        """
        spawner = self.start(key)
        if spawner is None:
            return None
        launcher = -1
        try:
            launcher = os.dup(job)
            return spawner.branch(launcher), spawner.ready
        except OSError:
            # No descriptor is left.
            if launcher >= 0:
                os.close(launcher)
            return None

    def branch_of(self, key: SpawnerKey, mark: str, fd: int) -> Branch:
        """In the job: what `lend` has sent."""
        return Branch(socket.socket(fileno=fd), self._shared(key), mark)

    def _shared(self, key: SpawnerKey) -> Shared:
        return Shared(key.environ(self._environ), key.cwd, key.preload)

    def dispatch(self, ready: frozenset[int], tell: Callable[[SpawnerEvent], None]) -> None:
        """Take note of what spawners say."""
        for key, spawner in list(self._pooled.items()):
            if spawner is None or spawner.fileno() not in ready:
                continue
            facts = spawner.dispatch()
            if any(isinstance(fact, (SpawnerGone, PreloadBroken)) for fact in facts):
                self._pooled[key] = None
                spawner.close()
            for fact in facts:
                tell(fact)

    def leave(self) -> None:
        """In a forked job: these are the launcher's."""
        for spawner in self._all():
            spawner.forget()
        self._pooled, self._prestarted = {}, None

    def close(self) -> None:
        """End all of them; idempotent."""
        for spawner in self._all():
            spawner.close()
        self._pooled, self._prestarted = {}, None
