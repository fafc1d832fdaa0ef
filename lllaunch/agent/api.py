"""What torch's agent is told and tells: the records of a worker group."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lllaunch.multiprocessing.errors import ProcessFailure
from lllaunch.supervisor.machine import WorkerState

__all__ = ["DEFAULT_ROLE", "RunResult", "Worker", "WorkerGroup", "WorkerSpec", "WorkerState"]

DEFAULT_ROLE = "default"


class OneNode:
    """The rendezvous of a single node, as far as torch's agent asks for it."""

    use_agent_store = False

    def get_run_id(self) -> str:
        """It has none."""
        return ""

    get_backend = get_run_id

    def num_nodes_waiting(self) -> int:
        """Nobody can join."""
        return 0


@dataclass
class WorkerSpec:
    """What the workers of one role run; the same on every node.

    Raises:
        ValueError: a number is not positive, or there is no entrypoint.
    """

    role: str
    local_world_size: int  # workers on this node, at least 1
    # a handler of ``torch.distributed.elastic.rendezvous`` for several nodes
    rdzv_handler: Any = field(default_factory=OneNode)
    fn: Callable[..., Any] | None = None  # older name of ``entrypoint``
    entrypoint: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()  # its arguments; ``${local_rank}`` in text is replaced per worker
    max_restarts: int = 3
    # seconds between looks for nodes that wait to join, and at the workers of agents that poll
    monitor_interval: float = 0.1
    master_port: int | None = None  # port of rank 0's store; default: a free one
    master_addr: str | None = None  # its host; default: this one, or group rank 0's
    local_addr: str | None = None  # address of this node, if a rendezvous needs it
    event_log_handler: str = "null"  # destination of torch's events
    numa_options: Any = None
    # teed lines of stdout with one of these also go to another file
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False  # workers see their own GPU as device 0, and LOCAL_RANK=0

    def __post_init__(self) -> None:
        if self.local_world_size <= 0:
            raise ValueError(f"local_world_size: {self.local_world_size} is not positive")
        if self.monitor_interval <= 0:
            raise ValueError(f"monitor_interval: {self.monitor_interval} is not positive")
        if self.rdzv_handler is None:
            self.rdzv_handler = OneNode()
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


@dataclass(slots=True, eq=False)
class Worker:
    """One worker, as its agent knows it."""

    local_rank: int
    global_rank: int = -1
    role_rank: int = -1
    world_size: int = -1
    role_world_size: int = -1
    # what the agent knows it by; a process id, for a local agent
    id: Any = field(default=None, init=False)

    def __repr__(self) -> str:
        names = ("local_rank", "global_rank", "role_rank", "world_size", "role_world_size")
        return ",".join(f"{name}={getattr(self, name)}" for name in names)


@dataclass(slots=True, eq=False)
class WorkerGroup:
    """The workers of one spec on one node."""

    spec: WorkerSpec
    workers: list[Worker] = field(init=False)  # by local rank
    store: Any = field(default=None, init=False)  # the store of the rendezvous, or None
    group_rank: int | None = field(default=None, init=False)
    group_world_size: int | None = field(default=None, init=False)
    master_addr: str | None = field(default=None, init=False)
    master_port: int | None = field(default=None, init=False)
    state: WorkerState = field(default=WorkerState.INIT, init=False)

    def __post_init__(self) -> None:
        self.workers = [Worker(local_rank) for local_rank in range(self.spec.local_world_size)]


@dataclass
class RunResult:
    """The result of a worker group."""

    state: WorkerState  # its last state
    # what functions returned, by global rank, of this node's workers
    return_values: dict[int, Any] = field(default_factory=dict)
    # the workers that failed, by global rank, the root cause first, without those that were ended
    # because of it
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether the group failed."""
        return self.state == WorkerState.FAILED
