"""The overrides of jobs, as people and the journal see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from hydra.core.utils import filter_overrides

from lllaunch.config.whole import redacted_overrides


class Labels(Sequence[Sequence[str]]):
    """The overrides of jobs as Hydra lists them for a job, without secrets; made when asked for.

    Args:
        overrides: of each job.
    """

    def __init__(self, overrides: Sequence[Sequence[str]]) -> None:
        self._overrides = overrides

    def __len__(self) -> int:
        return len(self._overrides)

    @overload
    def __getitem__(self, index: int) -> tuple[str, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, ...]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, ...] | list[tuple[str, ...]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return redacted_overrides(filter_overrides(self._overrides[index]))

    def name(self, index: int, number: int | None = None) -> str:
        """What a message calls a job: by its number, if it is known, and its overrides."""
        overrides = " ".join(self[index])
        if number is None:
            return overrides or "the job"
        return f"job {number} ({overrides})" if overrides else f"job {number}"
