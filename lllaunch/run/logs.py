"""Where the workers of a configured run write: `RunLogs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lllaunch.multiprocessing.logs import LogsDest, LogsSpecs, announce, destinations
from lllaunch.multiprocessing.std import Std, to_map
from lllaunch.spawner.dump import CRASH, CRASH_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lllaunch.run.directory import RunDirectory


@dataclass(frozen=True)
class Attempt:
    """A new attempt's place, made before its workers start.

    Attributes:
        number: index of its directory.
        path: its directory, absolute.
        dest: the workers' files, by local rank.
        envs: the workers' variables, by local rank.
    """

    number: int
    path: str
    dest: LogsDest
    envs: Mapping[int, Mapping[str, str]]


class RunLogs(LogsSpecs):
    """Files in ``<run directory>/attempt_<N>/<local rank>/``; each `reify` makes the next attempt.

    Args:
        directory: the run's directory, claimed.
        redirects: streams that go to files, for all ranks or by local rank.
        tee: streams that go to files and are shown, for all ranks or by local rank.
        local_ranks_filter: ranks whose output is shown; None or an empty set for all.
        on_attempt: told of every attempt that was made.
    """

    def __init__(
        self,
        directory: RunDirectory,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> None:
        super().__init__(directory.path, redirects, tee, local_ranks_filter)
        self._directory = directory
        self._on_attempt = on_attempt

    @property
    def root_log_dir(self) -> str:
        """The run's directory."""
        return self._directory.path

    @property
    def next_attempt(self) -> int:
        """Number of the attempt that the next `reify` makes.

        Raises:
            OutputError: the run's directory cannot be read.
        """
        return self._directory.next_attempt()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Makes the next attempt's directories; ``latest`` points to it.

        Args:
            envs: environment of each worker, for local ranks 0 to n-1.
                TORCHELASTIC_ERROR_FILE and LLLAUNCH_RESULT_FILE are set in each.

        Returns:
            The paths.

        Raises:
            OutputError: a directory cannot be made; names it, and the rank that it is for.
        """
        number, path = self._directory.make_attempt(len(envs))
        announce(envs, path)
        for rank, env in envs.items():
            env[CRASH_FILE] = f"{path}/{rank}/{CRASH}"
        dest = destinations(
            path,
            to_map(self._redirects, len(envs)),
            to_map(self._tee, len(envs)),
            self._local_ranks_filter,
        )
        if self._on_attempt is not None:
            self._on_attempt(Attempt(number, path, dest, envs))
        return dest
