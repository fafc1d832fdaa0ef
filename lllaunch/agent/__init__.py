"""The agent: takes a worker group through its attempts.

Names, signatures and documented behaviour are those of ``torch.distributed.elastic.agent.server``.
Events and metrics go to torch's modules of them where these are loaded.
"""

from lllaunch.agent.api import (
    ElasticAgent,
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from lllaunch.agent.local_elastic_agent import LocalElasticAgent

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
