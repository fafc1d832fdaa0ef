"""`PContext`: n processes of one entrypoint, with the blocking methods of torch's class."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from signal import Signals

from lllaunch.linux.process import wait_readable
from lllaunch.multiprocessing.processes import Processes, validate_full_rank
from lllaunch.multiprocessing.results import RunProcsResult
from lllaunch.multiprocessing.signals import SignalException
from lllaunch.spawner.protocol import Exited, StartFailed

__all__ = ["PContext", "validate_full_rank"]

logger = logging.getLogger(__name__)

# How long SIGKILL may take to end processes, at least, before they are given up.
_UNKILLABLE_SECONDS = 10.0


class PContext(Processes):
    """A set of processes that is waited for; see `Processes` for its arguments.

    Public attributes and methods are those of torch's ``PContext``.
    """

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:  # noqa: ARG002
        """Wait until all processes succeeded or one failed; then end the others.

        Args:
            timeout: seconds; negative for ever, 0 only asks.
            period: torch's polling interval. Accepted, not needed: an exit wakes this up.

        Returns:
            The result, or None if the processes still run after ``timeout``.

        Raises:
            SignalException: a death signal arrived (see ``handle_signals``).
            SpawnerDied, PreloadFailed: see `result`.
        """
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            found = self._poll()
            if found is not None:
                return found
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return None
            wait_readable(self, left)

    def _poll(self) -> RunProcsResult | None:
        """The result if all succeeded or any failed, after ending the others; else None."""
        if self._starter is None:
            return None
        if not self._released:
            self.dispatch()
        failed = any(not _succeeded(end) for end in self.exits.values())
        if self.alive and not failed:
            return None
        self.close()
        return self.result()

    def pids(self) -> dict[int, int]:
        """Process ids by local rank; waits for starts that are under way."""
        while self._starter is not None and not self._released:
            waiting = self.alive - frozenset(self._pids)
            if not waiting:
                break
            wait_readable(self)
            self.dispatch()
        return dict(sorted(self._pids.items()))

    def known_pids(self) -> dict[int, int]:
        """Process ids by local rank, of those that are known to have started; does not wait."""
        return dict(self._pids)

    def watched_pids(self) -> dict[int, int]:
        """Process ids by local rank of the processes that live; does not wait.

        For one that is not known to have started, the process that is to start it, if there is one.
        """
        pids = {rank: self._pids.get(rank, self.starter_pid) for rank in sorted(self.alive)}
        return {rank: pid for rank, pid in pids.items() if pid}

    @property
    def starter_pid(self) -> int:
        """Id of the process that starts the others; 0 if that is this one, or nothing starts."""
        return getattr(self._starter, "pid", 0)

    def close(self, death_sig: Signals | None = None, timeout: float = 30) -> None:
        """End all processes and what they left behind; show the rest of their output.

        Args:
            death_sig: the polite signal, SIGTERM if not given.
            timeout: seconds after which SIGKILL follows.

        Raises:
            SignalException: one arrived meanwhile; all was killed at once and is gone.
        """
        interruption: BaseException | None = None
        if not self._released:
            try:
                self._terminate(death_sig or Signals.SIGTERM, timeout)
            except (SignalException, KeyboardInterrupt) as error:
                interruption = error
                self._kill_all(timeout)
            self._finish_sweep()
        self.release()
        if interruption is not None:
            raise interruption

    def _terminate(self, death_sig: Signals, timeout: float) -> None:
        self.signal(death_sig)
        if not self._until(lambda: not self.alive, timeout):
            logger.warning(
                "%s: ranks %s did not end within %s s of %s; killing them",
                self.name,
                sorted(self.alive),
                timeout,
                death_sig.name,
            )
            self._kill_all(timeout)

    def _kill_all(self, timeout: float) -> None:
        self.kill()
        # What sleeps uninterruptibly in the kernel cannot be killed, and must not be waited for.
        if not self._until(lambda: not self.alive, max(timeout, _UNKILLABLE_SECONDS)):
            pids = [self._pids.get(rank) for rank in sorted(self.alive)]
            logger.error("%s: SIGKILL does not end the processes %s; left behind", self.name, pids)

    def _finish_sweep(self) -> None:
        if self._swept or self._starter is None or not self._keys:
            return
        if self._died is None and self._broken is None:
            self.sweep()
            self._until(lambda: self._swept or self._died is not None, _UNKILLABLE_SECONDS)

    def _until(self, done: Callable[[], bool], timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not done():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self._starter is None:
                return True
            wait_readable(self, left)
            self.dispatch()
        return True


def _succeeded(end: Exited | StartFailed) -> bool:
    return isinstance(end, Exited) and end.exitcode == 0
