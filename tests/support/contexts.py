"""A process context of targets that are plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lllaunch.multiprocessing import LogsSpecs
from lllaunch.multiprocessing.api import PContext
from lllaunch.spawner.protocol import Target
from lllaunch.workers.group import start_processes


class TargetContext(PContext):
    """Processes of programs, scripts and modules, that are waited for."""

    def __init__(
        self,
        name: str,
        targets: Mapping[int, Target],
        envs: Mapping[int, Mapping[str, str]],
        logs_specs: LogsSpecs,
        *,
        handle_signals: bool = True,
        **options: Any,
    ) -> None:
        nothing: dict[int, tuple[Any, ...]] = dict.fromkeys(targets, ())
        super().__init__(name, "", nothing, envs, logs_specs, handle_signals=handle_signals)
        self.targets, self.options = dict(targets), options

    def _start(self) -> None:
        start_processes(self, self.targets, self.envs, **self.options)
