"""What a sweep does about failures: when a job is tried again, when the sweep ends. Pure data."""

from __future__ import annotations

from typing import NamedTuple

from lllaunch.exit_codes import ExitCode, for_signal
from lllaunch.spec import RestartCause

# Exit codes above are 128 + the number of the signal that ended a job's process, or the job.
_OF_SIGNALS = 128
# Another try of these meets the same config, or the same plan; or has been made often enough.
_IN_VAIN = frozenset(map(int, (ExitCode.CONFIG, ExitCode.REFUSED, ExitCode.NO_PROGRESS)))
# What result.json names as a cause. The rest are failures.
_CAUSES: dict[str, RestartCause] = {
    "OutOfMemory": "oom",
    "OverMemory": "oom",
    "DeviceOutOfMemory": "oom",
    "KilledBySignal": "signal",
    # Nothing of the experiment's failed: somebody killed the spawner.
    "SpawnerLost": "signal",
    "TimerExpired": "hang",
    "Stalled": "hang",
    "Silent": "hang",
    "Spinning": "hang",
    "HeartbeatLost": "hang",
    "ProgressMissing": "hang",
    "Unchanged": "hang",
    "NotFinite": "hang",
    "HungInKernel": "hang",
    "FoundElsewhere": "hang",
    "TimedOut": "timeout",
}


class Retries(NamedTuple):
    """How often a job is tried again, by cause; each cause has its own count."""

    failure: int = 0
    oom: int = 0
    hang: int = 1
    signal: int = 2
    timeout: int = 0

    def of(self, cause: RestartCause) -> int:
        """How often for a cause."""
        return int(getattr(self, cause))


class SweepPolicy(NamedTuple):
    """What holds for all jobs of a sweep."""

    # how many jobs may run at the same time, at least 1; None for as many as fit
    max_parallel: int | None = None
    # nothing more is started once so many jobs have failed for good: 1 is ``on_failure: stop``,
    # None is ``on_failure: continue``
    max_failures: int | None = None
    retries: Retries = Retries()
    retry_delay: float = 0.0  # seconds before it is tried again
    # how many jobs behind a waiting one may be started before slots are kept for it
    patience: int = 64


class Summary(NamedTuple):
    """How many jobs of a sweep ended in which way."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    not_run: int = 0  # they were never started, because the sweep ended before
    skipped: int = 0

    def exit_code(self, signum: int | None = None) -> int:
        """Returns the sweep's exit code."""
        if signum is not None:
            return for_signal(signum)
        good = self.succeeded + self.skipped == sum(self)
        return int(ExitCode.SUCCESS if good else ExitCode.SWEEP)


def by_signal(exit_code: int) -> bool:
    """Whether a signal ended a job's process, or the job through its launcher."""
    return exit_code > _OF_SIGNALS


def cause_of(exit_code: int, kind: str = "") -> RestartCause | None:
    """Returns what a job's end is to `Retries`; None if it is not worth another try.

    ``exit_code``: of the job's process; 128+N if signal N ended that process itself. ``kind``: what
    its result.json names as ``type`` of its limit or of its root cause; empty if there is none.
    """
    if exit_code == ExitCode.SUCCESS or exit_code in _IN_VAIN:
        return None
    if by_signal(exit_code):
        # Whatever had happened in it before.
        return "signal"
    if exit_code == ExitCode.WATCHDOG:
        return _CAUSES.get(kind, "hang")
    return _CAUSES.get(kind, "failure")
