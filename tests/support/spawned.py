"""What starters of workers tell, for tests that have one of their own."""

from __future__ import annotations

import time
from typing import Any

from lllaunch.events import SpawnerEvent
from lllaunch.linux.process import wait_readable
from support.launching import WAIT


def told(starter: Any, *kinds: type[SpawnerEvent], count: int = 1) -> list[Any]:
    """What a spawner tells of these kinds, as soon as it has come to so much."""
    everything: list[SpawnerEvent] = []
    deadline = time.monotonic() + WAIT
    while True:
        found = [event for event in everything if isinstance(event, kinds)]
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, f"only this came: {everything}"
        wait_readable(starter, 1.0)
        everything += starter.dispatch()
