"""What the apps of lllaunch tell its launcher about their task functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.spawner.client import Spawner

_ATTRIBUTE = "__lllaunch__"


class TaskSource(NamedTuple):
    """What stands behind a task function that would launch workers itself.

    Attributes:
        function: what the workers run; None for the entrypoint of the config.
        spawner: one whose interpreter was started early, or None.
    """

    function: Callable[[Any], Any] | None
    spawner: Spawner | None

    def mark(self, task_function: Callable[..., object]) -> None:
        """Lets `of` find it."""
        setattr(task_function, _ATTRIBUTE, self)

    @classmethod
    def of(cls, task_function: Callable[..., object]) -> TaskSource | None:
        """Returns what was told of a task function; None of a user's own."""
        return getattr(task_function, _ATTRIBUTE, None)
