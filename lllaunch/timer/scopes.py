"""Names for timers that are set at the same time.

A server knows a timer by its process and its name, so a name that is taken again while it is held
(by recursion, by threads, by asyncio's tasks) would set the first timer anew, and the first to
leave would take it from the others. Such timers get names of their own.
"""

from __future__ import annotations

from heapq import heappop, heappush

from lllaunch.timer.here import here


class _Held:
    """A name that is held.

    Attributes:
        freed: numbers that were given out with it and have come back, a heap.
        next: the least number that was never given out.
    """

    __slots__ = ("freed", "next")

    def __init__(self) -> None:
        self.freed: list[int] = []
        self.next = 2


class Scopes:
    """The names of the timers that this process has set."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def take(self, scope: str) -> str:
        """Returns the name itself if it is free, else the first free one of ``scope (2)``, ..."""
        with here.lock:
            held = self._held.get(scope)
            if held is None:
                self._held[scope] = _Held()
                return scope
            while True:
                if held.freed:
                    number = heappop(held.freed)
                else:
                    number = held.next
                    held.next += 1
                name = f"{scope} ({number})"
                # Somebody may have chosen just that name, or have it from an earlier holder.
                if name not in self._held:
                    self._held[name] = _Held()
                    return name

    def free(self, scope: str, name: str) -> None:
        """Gives back a name that was taken; one that is free is no error.

        Args:
            scope: what was asked for.
            name: what was given.
        """
        with here.lock:
            self._held.pop(name, None)
            first = self._held.get(scope)
            if first is not None and name != scope:
                heappush(first.freed, int(name[len(scope) + 2 : -1]))

    def clear(self) -> None:
        """All names are free; called in each fork, which holds no timers."""
        self._held.clear()
