"""What `examples.wordcount` is made of; a module can import its neighbours, a script cannot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def share(things: Sequence[T], rank: int, world_size: int) -> Sequence[T]:
    """The things that one worker looks after."""
    return things[rank::world_size]


def count(text: str) -> Counter[str]:
    return Counter(re.findall(r"[a-z]+", text.lower()))
