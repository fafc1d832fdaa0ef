"""From a worker group with its ranks to the processes that will be started."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

from lllaunch.agent.environ import Place, contract, substitute_local_rank, virtual_rank
from lllaunch.agent.worker_group import WorkerGroup, WorkerSpec
from lllaunch.multiprocessing.api import (
    LogsSpecs,
    MultiprocessContext,
    PContext,
    SubprocessContext,
    TargetContext,
)
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.protocol import Forked, Target

# On one node rank 0's store is reached over loopback, whatever the host's name resolves to.
LOOPBACK = "127.0.0.1"


def places_of(
    group: WorkerGroup, attempt: int, restart_count: int, run_id: str
) -> dict[int, Place]:
    """Where every worker of a group stands, by local rank.

    Args:
        group: the group, after its rendezvous.
        attempt: number of the attempt.
        restart_count: restarts that counted.
        run_id: id of the run, where there is no rendezvous that has one.
    """
    spec, handler = group.spec, group.spec.rdzv_handler
    hostname = socket.gethostname()
    return {
        worker.local_rank: Place(
            local_rank=worker.local_rank,
            rank=worker.global_rank,
            group_rank=group.group_rank or 0,
            role_rank=worker.role_rank,
            role_name=spec.role,
            local_world_size=spec.local_world_size,
            world_size=worker.world_size,
            group_world_size=group.group_world_size or 1,
            role_world_size=worker.role_world_size,
            master_addr=group.master_addr or LOOPBACK,
            master_port=group.master_port or 0,
            restart_count=restart_count,
            max_restarts=spec.max_restarts,
            run_id=handler.get_run_id() if handler is not None else run_id,
            attempt=attempt,
            hostname=hostname,
            use_agent_store=handler is not None and bool(handler.use_agent_store),
        )
        for worker in group.workers
    }


@dataclass(frozen=True)
class Recipe:
    """How the workers of an agent are started; attributes as for `LocalElasticAgent`."""

    logs_specs: LogsSpecs
    start_method: str
    log_line_prefix_template: str | None
    spawner: Spawner | None
    targets: Callable[[Mapping[str, str]], Target | Forked] | None
    env: Callable[[Mapping[str, str]], Mapping[str, str]] | None
    preload: Sequence[str]
    cwd: str | None
    spawner_cwd: str | None = None

    def context(
        self,
        spec: WorkerSpec,
        places: Mapping[int, Place],
        more: Callable[[int], Mapping[str, str]] = lambda _: {},
    ) -> PContext:
        """The processes of one attempt, not started yet.

        Args:
            spec: what they run.
            places: where they stand, by local rank.
            more: further variables, from a local rank.
        """
        envs = {
            rank: {**self.environment(spec, place), **more(rank)} for rank, place in places.items()
        }
        common: dict[str, Any] = {
            "name": spec.role,
            "envs": envs,
            "logs_specs": self.logs_specs,
            "log_line_prefixes": self._prefixes(places),
            "duplicate_stdout_filters": spec.duplicate_stdout_filters,
            "duplicate_stderr_filters": spec.duplicate_stderr_filters,
            "handle_signals": False,
        }
        if self.targets is not None:
            made = {rank: self.targets(place.facts()) for rank, place in places.items()}
            forked = {rank: target for rank, target in made.items() if isinstance(target, Forked)}
            if forked:
                return _forked_context(forked, spec.get_entrypoint_name(), common)
            return TargetContext(
                targets={r: target for r, target in made.items() if not isinstance(target, Forked)},
                spawner=self.spawner,
                start_method=self.start_method,
                preload=self.preload,
                cwd=self.cwd,
                spawner_cwd=self.spawner_cwd,
                entrypoint=spec.get_entrypoint_name(),
                **common,
            )
        common["args"] = {rank: substitute_local_rank(spec.args, rank) for rank in places}
        common["numa_options"] = spec.numa_options
        if isinstance(spec.entrypoint, str):
            return SubprocessContext(entrypoint=spec.entrypoint, **common)
        assert spec.entrypoint is not None
        method = self.start_method
        return MultiprocessContext(entrypoint=spec.entrypoint, start_method=method, **common)

    def environment(self, spec: WorkerSpec, place: Place) -> dict[str, str]:
        """The variables of one worker, on top of the launcher's."""
        env = contract(place, os.environ)
        if self.env is not None:
            env |= self.env(place.facts())
        if spec.virtual_local_rank:
            env |= virtual_rank(place.local_rank, {**os.environ, **env})
        return env

    def _prefixes(self, places: Mapping[int, Place]) -> dict[int, str] | None:
        if not self.log_line_prefix_template:
            return None
        template = Template(self.log_line_prefix_template)
        return {rank: template.safe_substitute(place.facts()) for rank, place in places.items()}


def _forked_context(
    targets: Mapping[int, Forked], entrypoint: str, common: Mapping[str, Any]
) -> PContext:
    from lllaunch.multiprocessing.forked_context import (  # noqa: PLC0415 - the rarest start method
        ForkedContext,
    )

    return ForkedContext(targets=targets, entrypoint=entrypoint, **common)
