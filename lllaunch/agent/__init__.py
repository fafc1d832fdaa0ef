"""The agent: takes a worker group through its attempts.

Names, signatures and documented behaviour are those of ``torch.distributed.elastic.agent.server``,
whose records and base classes these are.
"""

from torch.distributed.elastic.agent.server.api import (
    ElasticAgent,
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerState,
)

from lllaunch.agent.local_elastic_agent import LocalElasticAgent, WorkerSpec

__all__ = [
    "ElasticAgent",
    "LocalElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
]
