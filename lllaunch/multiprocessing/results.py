"""What became of n processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lllaunch.multiprocessing.errors import ProcessFailure
from lllaunch.spawner.protocol import Exited, StartFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

# Exit codes of a program that could not be executed, as shells have them.
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_ENOENT = 2


@dataclass
class RunProcsResult:
    """Results of processes started with `start_processes`; every field is by local rank.

    Attributes:
        return_values: what functions returned; None for programs.
        failures: the workers that failed. Those that were ended because another failed are not
            among them.
        stdouts: path of the file that stdout went to; empty if it was not redirected.
        stderrs: the same for stderr.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether any worker failed."""
        return bool(self.failures)


def judge(
    exits: Mapping[int, Exited | StartFailed],
    error_files: Mapping[int, str],
    terminated_by: Mapping[int, int],
    at_fault: Mapping[int, str] | None = None,
) -> dict[int, ProcessFailure]:
    """The failures among the ends of workers, the root cause first.

    Args:
        exits: how each ended.
        error_files: where each would have left its error.
        terminated_by: the last signal that each was sent by us. One that ended by it is no failure.
        at_fault: those that failed all the same, and why: they hung, for instance.
    """
    found, blamed = {}, at_fault or {}
    for rank, end in exits.items():
        error_file = error_files.get(rank, "")
        if isinstance(end, StartFailed):
            exitcode = _NOT_FOUND if end.errno == _ENOENT else _NOT_EXECUTABLE
            failure = ProcessFailure(rank, -1, exitcode, error_file, exit_time_ns=end.time_ns)
            where = f"{end.path!r}: " if end.path else ""
            failure.message = f"worker {rank} could not be started: {where}{end.reason}"
        elif rank not in blamed and end.exitcode in (0, -terminated_by.get(rank, 0)):
            continue
        else:
            failure = ProcessFailure(
                rank, end.pid, end.exitcode, error_file, exit_time_ns=end.time_ns
            )
            failure.message = blamed.get(rank, failure.message)
        found[rank] = failure
    return dict(sorted(found.items(), key=lambda item: item[1].timestamp_ns))
