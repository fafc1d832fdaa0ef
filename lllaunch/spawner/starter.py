"""What a process context needs of whatever starts its workers: a spawner's client or a forker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from lllaunch.events import SpawnerEvent


class Starter(Protocol):
    """Starts workers, tells what became of them, signals them.

    Attributes:
        pid: of the process that is the workers' parent.
    """

    pid: int

    def fileno(self) -> int:
        """A descriptor that is readable when `dispatch` has something to do."""
        ...

    def dispatch(self) -> list[SpawnerEvent]:
        """The events since the last call, without waiting."""
        ...

    def signal(self, keys: Iterable[int], signum: int) -> None:
        """Send a signal to workers' process groups."""
        ...

    def kill(self, keys: Iterable[int]) -> None:
        """SIGKILL workers and all that descends from them."""
        ...

    def clean_up(self) -> None:
        """End what workers left behind."""
        ...

    def abandon(self, keys: Iterable[int]) -> None:
        """Wait no longer for workers, nor for a cleanup: no event of either follows."""
        ...

    def close(self) -> None:
        """End everything."""
        ...
