"""The agent: takes a worker group through its attempts.

Names, signatures and documented behaviour are those of ``torch.distributed.elastic.agent.server``.
The base classes of agents of one's own are torch's, which is imported for them.
"""

from typing import Any

from lllaunch.agent.api import RunResult, Worker, WorkerGroup, WorkerSpec, WorkerState
from lllaunch.agent.local_elastic_agent import LocalElasticAgent

__all__ = ["LocalElasticAgent", "RunResult", "Worker", "WorkerGroup", "WorkerSpec", "WorkerState"]


def __getattr__(name: str) -> Any:
    if name not in ("ElasticAgent", "SimpleElasticAgent"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch.distributed.elastic.agent.server import api  # noqa: PLC0415 - who asks needs torch

    api.SimpleElasticAgent.register(LocalElasticAgent)
    return getattr(api, name)
