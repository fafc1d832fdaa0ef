"""The error of a group of workers of which at least one failed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lllaunch.multiprocessing.errors.failure import NOT_AVAILABLE, ProcessFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

GlobalRank = int
_WIDEST_RULE = 60


class ChildFailedError(Exception):
    """Workers failed. Raised under `record`, it hands the root cause on to whoever watches us.

    `record` copies the error file of the first failure to the error file of the raising process,
    so that the traceback shown at the top is the worker's and not its supervisor's.

    Attributes:
        name: name of the worker group.
        failures: the failures by global rank, at least one.
    """

    def __init__(self, name: str, failures: Mapping[GlobalRank, ProcessFailure]) -> None:
        if not failures:
            raise AssertionError("a ChildFailedError needs at least one failure")
        self.name = name
        self.failures = dict(failures)
        super().__init__(self.format_msg())

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[GlobalRank, ProcessFailure]:
        """The root cause: the failure that happened first, by nanoseconds, and its global rank."""
        rank = min(self.failures, key=lambda each: self.failures[each].timestamp_ns)
        return rank, self.failures[rank]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """The failures as text, the root cause last.

        Args:
            boarder_delim: the character of the first and last rule.
            section_delim: the character of the rules between sections.

        Returns:
            Several lines, with an empty one before, so that it stands free in a log.
        """
        title = f"{self.name} FAILED"
        root, _ = self.get_first_failure()
        shown = {
            rank: _describe(index, rank, failure)
            for index, (rank, failure) in enumerate(self.failures.items())
        }
        lines = [title, *(line for text in shown.values() for line in text.split("\n"))]
        width = min(_WIDEST_RULE, max(len(line) for line in lines))
        border, section = boarder_delim * width, section_delim * width
        others = [text for rank, text in shown.items() if rank != root]
        parts = ["", border, title, section, "Failures:"]
        parts += others or ["  <NO_OTHER_FAILURES>"]
        parts += [section, "Root Cause (first observed failure):", shown[root], border]
        return "\n".join(parts)


def _describe(index: int, rank: GlobalRank, failure: ProcessFailure) -> str:
    signal_name = failure.signal_name()
    how = "" if signal_name == NOT_AVAILABLE else f" ({signal_name})"
    fields = {
        "time": failure.timestamp_isoformat(),
        # The name the kernel has; asking a name server here could take longer than the run.
        "host": os.uname().nodename,
        "rank": f"{rank} (local_rank: {failure.local_rank})",
        "exitcode": f"{failure.exitcode} (pid: {failure.pid}){how}",
        "error_file": failure.error_file,
        "traceback": failure.traceback().replace("\n", "\n  "),
    }
    return "\n".join([f"[{index}]:", *(f"  {key:<10}: {value}" for key, value in fields.items())])
