"""The overrides of jobs, as people and the journal see them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import overload

from hydra.core.utils import filter_overrides

from lllaunch.config.whole import redacted_overrides


class Labels(Sequence[Sequence[str]]):
    """The overrides of jobs as Hydra lists them for a job, without secrets; made when asked for.

    Args:
        overrides: of each job.
        marks: whether hidden values that differ are told apart, by a part of their hash: of an app
            where literals stand under names that only sound secret (``sort_key``).
    """

    def __init__(self, overrides: Sequence[Sequence[str]], *, marks: bool = False) -> None:
        self._overrides = overrides
        self._marks = marks

    def __len__(self) -> int:
        return len(self._overrides)

    @overload
    def __getitem__(self, index: int) -> tuple[str, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, ...]]: ...
    def __getitem__(self, index: int | slice) -> tuple[str, ...] | list[tuple[str, ...]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        written = filter_overrides(self._overrides[index])
        shown = redacted_overrides(written)
        return tuple(map(_marked, written, shown)) if self._marks else shown

    def name(self, index: int, number: int | None = None) -> str:
        """What a message calls a job: by its number, if it is known, and its overrides."""
        overrides = " ".join(self[index])
        if number is None:
            return overrides or "the job"
        return f"job {number} ({overrides})" if overrides else f"job {number}"


def mark(text: str) -> str:
    """Returns a name for a hidden value: a part of its hash, which tells it from others."""
    return f"<hidden {hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}>"


def _marked(written: str, shown: str) -> str:
    if written == shown or "${" in written:
        return shown
    return f"{written.partition('=')[0]}={mark(written)}"
