"""The agent: takes a worker group through its attempts.

Names, signatures and documented behaviour are those of ``torch.distributed.elastic.agent.server``.
Events and metrics go to torch's modules of them where these are loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "local_elastic_agent" if name == "LocalElasticAgent" else "api"
    return getattr(import_module(f"{__name__}.{module}"), name)


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
