"""Whether a group that ended is started again, and after how long. Pure."""

from __future__ import annotations

from lllaunch.agent.vocabulary import Reason
from lllaunch.policies import RestartCause, RestartPolicy

# What a reason is called in a restart policy. The others are no fault of the workers'.
_CAUSES: dict[Reason, RestartCause] = {
    "failure": "failure",
    "died": "signal",
    "oom": "oom",
    "hang": "hang",
    "timeout": "timeout",
}


class Chances:
    """The restarts that are left.

    Args:
        max_restarts: how often a failed group is started again.
        spawner_retries: how often, on top, when the spawner died.
        policy: what it is started again for, and how soon.

    Attributes:
        counted: restarts that were taken and counted.
        restart: which of ``max_restarts`` was taken last, from 1; None if that was none of them.
    """

    def __init__(self, max_restarts: int, spawner_retries: int, policy: RestartPolicy) -> None:
        self.counted = 0
        self.restart: int | None = None
        self._max = max_restarts
        self._left = max_restarts
        self._spawner_left = spawner_retries
        self._policy = policy
        self._delayed = 0

    def take(self, reason: Reason | None) -> float | None:
        """Take a chance.

        Args:
            reason: why the group ended.

        Returns:
            Seconds to wait before it is started again; None if it is not.
        """
        self.restart = None
        if reason == "membership":
            return 0.0
        if reason == "spawner" and self._spawner_left:
            self._spawner_left -= 1
            self.counted += 1
            return 0.0
        if reason is None or not self._left or not self._worth(reason):
            return None
        self._left -= 1
        self.counted += 1
        self.restart = self._max - self._left
        self._delayed += 1
        return self._policy.wait(self._delayed)

    def _worth(self, reason: Reason) -> bool:
        return reason == "spawner" or _CAUSES.get(reason) in self._policy.on

    def forfeit(self) -> None:
        """Leave no chance."""
        self._left = self._spawner_left = 0
