"""Which streams of workers go where, before it is known how many workers there are."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod

from lllaunch.errors import OutputError
from lllaunch.std import Std, to_map
from lllaunch.workers.log_files import LogsDest, announce, destinations, make_attempt_dir

logger = logging.getLogger(__name__)

__all__ = ["DefaultLogsSpecs", "LogsDest", "LogsSpecs"]


class LogsSpecs(ABC):
    """Which streams go where, before it is known how many workers there are.

    ``redirects``: streams that go to files, for all ranks or by local rank. ``tee``: streams that
    go to files and are shown, for all ranks or by local rank. ``local_ranks_filter``: ranks whose
    output is shown; None or an empty set for all.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Makes the directories of one attempt.

        ``envs``: environment of each worker by local rank; may be added to.
        """

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """The directory under which files are written."""


class DefaultLogsSpecs(LogsSpecs):
    """Files in ``<log_dir>/<run id>_<random>/attempt_<N>/<local rank>/``, as torch lays them out.

    Unlike torch's, it never deletes an existing attempt; it takes the next free number.

    ``log_dir``: created if missing; a temporary directory if None or empty. With ``/dev/null`` no
    directory or file is made, and unredirected output stays on the console.

    Raises:
        NotADirectoryError: ``log_dir`` is a file.
        OutputError: it cannot be made.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        if not log_dir:
            log_dir = _temporary_directory("lllaunch_", None)
        elif log_dir != os.devnull:
            if os.path.exists(log_dir) and not os.path.isdir(log_dir):
                raise NotADirectoryError(f"log_dir: {log_dir!r} is a file, not a directory")
            _make_directories(log_dir)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._run_log_dir: str | None = None

    @property
    def root_log_dir(self) -> str:
        """The directory given, or the temporary one that was made instead."""
        return str(self._root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Makes the directories of one attempt.

        The run's directory is made at the first call and kept. The attempt's number is
        TORCHELASTIC_RESTART_COUNT of rank 0, or the next that is free.

        ``envs``: environment of each worker, for local ranks 0 to n-1. TORCHELASTIC_ERROR_FILE and
        LLLAUNCH_RESULT_FILE are set in each.

        Raises:
            OutputError: a directory cannot be made; names it, and the rank that it is for.
        """
        nprocs = len(envs)
        if not nprocs:
            logger.warning("no environments were given: no worker's output goes anywhere")
        shared = envs.get(0, {})
        if self._root_log_dir == os.devnull:
            attempt_dir = os.devnull
        else:
            run_dir = self._run_directory(shared.get("TORCHELASTIC_RUN_ID", "test_run_id"))
            number = shared.get("TORCHELASTIC_RESTART_COUNT", "0")
            first = int(number) if number.isdecimal() else 0
            attempt_dir, _ = make_attempt_dir(run_dir, first, nprocs)
        announce(envs, attempt_dir)
        return destinations(
            attempt_dir,
            to_map(self._redirects, nprocs),
            to_map(self._tee, nprocs),
            self._local_ranks_filter,
        )

    def _run_directory(self, run_id: str) -> str:
        if self._run_log_dir is None:
            # The id is part of one name: a slash in it must not lead elsewhere.
            prefix = run_id.replace(os.sep, "_") + "_"
            _make_directories(self.root_log_dir)
            self._run_log_dir = _temporary_directory(prefix, self._root_log_dir)
            logger.info("log directory set to: %s", self._run_log_dir)
        return self._run_log_dir

    def __repr__(self) -> str:
        return (
            f"DefaultLogsSpecs(root_log_dir={self._root_log_dir}, redirects={self._redirects}, "
            f"tee={self._tee}, local_ranks_filter={self._local_ranks_filter})"
        )

    def _key(self) -> tuple[object, ...]:
        return (self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultLogsSpecs) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]  # holds sets and dicts


def _make_directories(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error


def _temporary_directory(prefix: str, parent: str | None) -> str:
    import tempfile  # noqa: PLC0415 - costs 5 ms and is not needed where the run's directory is given

    try:
        return tempfile.mkdtemp(prefix=prefix, dir=parent)
    except OSError as error:
        where = os.path.join(parent or "the directory for temporary files", prefix)
        raise OutputError(where, error.strerror or str(error)) from error
