"""States of a worker group; names are torch's."""

from __future__ import annotations

from enum import Enum


class WorkerState(str, Enum):
    """State of a worker group; its workers change state as one.

    Attributes:
        UNKNOWN: the agent lost track of its workers; terminal.
        INIT: being started, for the first time or again.
        HEALTHY: workers run.
        UNHEALTHY: workers run and are being ended.
        STOPPED: no worker runs; what they left behind is being ended.
        SUCCEEDED: all workers ended with exit status 0.
        FAILED: workers failed and are not started again; terminal.
    """

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """Whether workers exist in this state, healthy or not."""
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)
