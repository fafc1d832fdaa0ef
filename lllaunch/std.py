"""Which of a worker's standard streams a setting is about: the mask and its map by local rank.

At the very bottom of the package: imports nothing but the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntFlag

_VALUE = re.compile(r"[0-3]", re.ASCII)
_MAPPING = re.compile(r"\d+:[0-3](,\d+:[0-3])*", re.ASCII)


class Std(IntFlag):
    """Standard streams, as a mask: ``NONE`` 0, ``OUT`` 1, ``ERR`` 2, ``ALL`` 3.

    Names and values are those of ``torch.distributed.elastic.multiprocessing.Std``.
    """

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Reads torchrun's notation of ``--redirects`` and ``--tee``.

        That is one mask for all (``"0"`` to ``"3"``), or masks by local rank, separated by commas
        without spaces (``"0:3,1:0,12:1"``); unlike torch's it takes ranks of any number of digits.

        Raises:
            ValueError: the text is neither of the two.
        """
        if _VALUE.fullmatch(vm):
            return cls(int(vm))
        if _MAPPING.fullmatch(vm):
            pairs = (item.split(":") for item in vm.split(","))
            return {int(rank): cls(int(mask)) for rank, mask in pairs}
        raise ValueError(
            f"{vm!r} is not a mask of streams: expected a number from 0 to 3 for all ranks "
            "(as '3'), or numbers by local rank (as '0:3,1:0,12:1')"
        )


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Spells out a setting for every local rank: ``Std.NONE`` for those that it leaves out.

    Other ranks in the map are dropped.
    """
    if isinstance(val_or_map, Mapping):
        return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}
    return dict.fromkeys(range(local_world_size), Std(val_or_map))
