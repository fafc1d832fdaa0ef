"""What a run is watched for, and what is tried again: plain frozen data, made by `config`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StallScope = Literal["group", "rank"]
RestartCause = Literal["failure", "signal", "oom", "hang", "timeout"]

# Environment variable that names the timer FIFO to workers.
# torch's switch for timers; what a config says is all that a reviewed run does.
ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
TIMER_FILE = "TORCHELASTIC_TIMER_FILE"

RESTART_CAUSES: tuple[RestartCause, ...] = ("failure", "signal", "oom", "hang", "timeout")


@dataclass(frozen=True)
class WatchdogPolicy:
    """What the watchdog looks for; without arguments, nothing.

    Attributes:
        timers: serve a timer FIFO, named by TORCHELASTIC_TIMER_FILE.
        timeout: seconds that an attempt may take, or None.
        run_timeout: seconds that the run may take with all of its attempts, or None.
        stall: seconds without output, CPU use and heartbeat that count as a hang, or None.
        stall_scope: ``group``: all workers must be idle; ``rank``: one is enough.
        warmup: seconds from the start of an attempt that do not count as idle.
        heartbeat: seconds without a heartbeat, of a worker that has sent one, that count as a hang
            whatever else it does, or None.
        memory: bytes of anonymous and shared memory that a worker and all below it may use, or
            None.
        report: names of those limits of the above that are only reported, with stacks and once in
            an attempt; for the others it ends.
    """

    timers: bool = False
    timeout: float | None = None
    run_timeout: float | None = None
    stall: float | None = None
    stall_scope: StallScope = "group"
    warmup: float = 0.0
    heartbeat: float | None = None
    memory: int | None = None
    report: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RestartPolicy:
    """What a failed group is started again for, and how soon.

    Attributes:
        on: causes that are worth another attempt, as long as there are restarts left: ``failure``
            (a worker failed), ``signal`` (a worker died of a signal), ``oom`` (of a lack of memory,
            or over ``memory``), ``hang`` (a timer, a stall, a lost heartbeat), ``timeout``.
        delay: seconds before the first restart; each later one waits twice as long.
        max_delay: the longest wait, seconds.
    """

    on: frozenset[RestartCause] = frozenset(RESTART_CAUSES)
    delay: float = 0.0
    max_delay: float = 300.0

    def wait(self, restart: int) -> float:
        """Seconds to wait before a restart, the first of which has the number 1."""
        # A large exponent would overflow long after the limit was reached.
        return min(self.max_delay, self.delay * 2.0 ** min(restart - 1, 60))
