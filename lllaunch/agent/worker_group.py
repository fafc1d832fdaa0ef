"""The vocabulary of an agent: what workers are to run, and what they are. Names are torch's."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lllaunch.agent.states import WorkerState
from lllaunch.multiprocessing.errors import ProcessFailure

DEFAULT_ROLE = "default"


@dataclass
class WorkerSpec:
    """What the workers of one role run; the same on every node.

    Attributes:
        role: name of the role.
        local_world_size: workers on this node, at least 1.
        rdzv_handler: a handler of ``torch.distributed.elastic.rendezvous``, by which the agents of
            several nodes find each other; None on one node.
        fn: older name of ``entrypoint``.
        entrypoint: a function, or a program.
        args: its arguments; ``${local_rank}`` in text is replaced per worker.
        max_restarts: how often a failed group is started again.
        monitor_interval: seconds between looks at what cannot wake the agent: nodes that wait to
            join, and the workers of agents that only know polling.
        master_port: port of rank 0's store; a free one if not given.
        master_addr: its host; this one, or group rank 0's, if not given.
        local_addr: address of this node, where a rendezvous needs it.
        event_log_handler: destination of events, see `lllaunch.agent.events`.
        numa_options: torch's NUMA binding options.
        duplicate_stdout_filters: lines of teed stdout with one of these go to a file more.
        duplicate_stderr_filters: the same for stderr.
        virtual_local_rank: workers see their own GPU as device 0, and LOCAL_RANK=0.

    Raises:
        ValueError: a number is not positive, or there is no entrypoint.
    """

    role: str
    local_world_size: int
    rdzv_handler: Any = None
    fn: Callable[..., Any] | None = None
    entrypoint: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: float = 0.1
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False

    def __post_init__(self) -> None:
        if self.local_world_size <= 0:
            raise ValueError(f"local_world_size: {self.local_world_size} is not positive")
        if self.monitor_interval <= 0:
            raise ValueError(f"monitor_interval: {self.monitor_interval} is not positive")
        if self.fn is not None:
            warnings.warn(
                "WorkerSpec.fn is deprecated, use WorkerSpec.entrypoint instead",
                DeprecationWarning,
                stacklevel=3,
            )
            self.entrypoint = self.fn
        if not self.entrypoint:
            raise ValueError("entrypoint: a function or a program is needed")

    def get_entrypoint_name(self) -> str:
        """Qualified name of a function, base name of a program."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        return getattr(self.entrypoint, "__qualname__", repr(self.entrypoint))


class Worker:
    """One worker, as its agent knows it.

    Attributes:
        id: what the agent knows it by; a process id, for a local agent.
        local_rank: rank among the workers of this node.
        global_rank: rank among all.
        role_rank: rank among those of the role.
        world_size: number of all workers.
        role_world_size: number of those of the role.
    """

    __slots__ = (
        "global_rank",
        "id",
        "local_rank",
        "role_rank",
        "role_world_size",
        "world_size",
    )

    def __init__(
        self,
        local_rank: int,
        global_rank: int = -1,
        role_rank: int = -1,
        world_size: int = -1,
        role_world_size: int = -1,
    ) -> None:
        self.id: Any = None
        self.local_rank = local_rank
        self.global_rank = global_rank
        self.role_rank = role_rank
        self.world_size = world_size
        self.role_world_size = role_world_size

    def __repr__(self) -> str:
        names = ("local_rank", "global_rank", "role_rank", "world_size", "role_world_size")
        return ",".join(f"{name}={getattr(self, name)}" for name in names)


class WorkerGroup:
    """The workers of one spec on one node.

    Attributes:
        spec: what they run.
        workers: the workers, by local rank.
        store: the store of the rendezvous, or None.
        group_rank: rank of this node.
        group_world_size: number of nodes.
        master_addr: host of rank 0's store.
        master_port: its port.
        state: state of the group.
    """

    __slots__ = (
        "group_rank",
        "group_world_size",
        "master_addr",
        "master_port",
        "spec",
        "state",
        "store",
        "workers",
    )

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(local_rank) for local_rank in range(spec.local_world_size)]
        self.store: Any = None
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.master_addr: str | None = None
        self.master_port: int | None = None
        self.state = WorkerState.INIT


@dataclass
class RunResult:
    """What became of a worker group: all workers succeeded, or it failed as one.

    Attributes:
        state: its last state.
        return_values: what functions returned, by global rank, of this node's workers.
        failures: the workers that failed, by global rank, the root cause first. Workers that were
            ended because of it stand in neither.
    """

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether the group failed."""
        return self.state == WorkerState.FAILED
