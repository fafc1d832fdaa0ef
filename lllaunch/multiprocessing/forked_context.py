"""The process context of configured targets that are forked from the calling process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lllaunch.multiprocessing.context import PContext
from lllaunch.spawner.forker import Forker
from lllaunch.spawner.preloading import loaded_runtimes, pause

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lllaunch.multiprocessing.logs import LogsSpecs
    from lllaunch.spawner.protocol import Forked


class ForkedContext(PContext):
    """Forks of this process, each of which calls a function.

    What this process has imported and made is theirs, threads excepted, and so is its working
    directory.

    Args:
        name: as for `PContext`.
        targets: what each local rank calls.
        envs: variables per local rank.
        logs_specs: as for `PContext`.
        entrypoint: what to call it in messages.
        options: as for `PContext`.
    """

    def __init__(
        self,
        name: str,
        targets: Mapping[int, Forked],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: LogsSpecs,
        *,
        entrypoint: str = "",
        **options: Any,
    ) -> None:
        nothing = dict.fromkeys(targets, ())
        super().__init__(name, entrypoint, nothing, envs, logs_specs, **options)
        self.targets = dict(targets)

    def _start(self) -> None:
        forker = Forker()
        self._starter = forker
        # a runtime that has computed here would hang in the workers
        pause(loaded_runtimes())
        for rank in range(self.nprocs):
            target = self.targets[rank]
            self._keys[rank] = forker.spawn(
                rank,
                (target.function, target.args),
                env=self.envs[rank],
                stdout=self.stdouts[rank],
                stderr=self.stderrs[rank],
            )

    def release(self) -> None:
        """As `PContext.release`; ends what is left of the workers."""
        if self._starter is not None:
            self._starter.close()
        super().release()
