"""The jobs of a command line that sweeps: the product of its values, without being made. Pure."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import overload


class Grid(Sequence[Sequence[str]]):
    """All combinations of one choice from each dimension; the last varies fastest, as in Hydra.

    Args:
        dimensions: the overrides to choose from, each such as ``params.lr=0.1``.

    Raises:
        OverflowError: there are more of them than Python counts.
    """

    def __init__(self, dimensions: Sequence[Sequence[str]]) -> None:
        self.dimensions = [list(choices) for choices in dimensions]
        self._len = math.prod(len(choices) for choices in self.dimensions)
        if self._len > sys.maxsize:
            raise OverflowError(self._len)

    def __len__(self) -> int:
        return self._len

    @overload
    def __getitem__(self, index: int) -> list[str]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[str]]: ...
    def __getitem__(self, index: int | slice) -> list[str] | list[list[str]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._len))]
        place = index + self._len if index < 0 else index
        if not 0 <= place < self._len:
            raise IndexError(index)
        chosen: list[str] = []
        for choices in reversed(self.dimensions):
            place, which = divmod(place, len(choices))
            chosen.append(choices[which])
        return chosen[::-1]
