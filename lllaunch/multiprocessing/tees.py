"""Which files of a process context are shown where: one thread for all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from lllaunch.errors import OutputError
from lllaunch.linux.cgroup import shortage
from lllaunch.multiprocessing.follow import Follower

logger = logging.getLogger(__name__)

# Files that the kernel cannot watch are not looked at more often than this, seconds.
_POLL_SECONDS = 1.0


class Tees:
    """The teed streams of a context.

    Args:
        name: default header of lines: ``[<name><rank>]:``.
        prefixes: other headers, by local rank.
        progbar_events: as for `start_processes`.
        interval_sec: as for `start_processes`.
    """

    def __init__(
        self,
        name: str,
        prefixes: Mapping[int, str] | None,
        progbar_events: Mapping[str, Any] | None,
        interval_sec: float,
    ) -> None:
        self._name = name
        self._prefixes = prefixes or {}
        self._progbar_events = progbar_events
        self._follower = Follower(f"tee {name}", max(_POLL_SECONDS, interval_sec))
        self._empty = True

    def show(
        self, files: Mapping[int, str], dst: TextIO | None, filters: Sequence[str] = ()
    ) -> None:
        """Show files by local rank on ``dst``; with ``filters``, lines that hold one of them."""
        if dst is None:
            # A program without a console (pythonw, some daemons) has None there.
            return
        for rank, path in files.items():
            header = self._prefixes.get(rank, f"[{self._name}{rank}]:")
            self._follower.add(
                path,
                header.encode("utf-8", "surrogateescape"),
                dst,
                _holds(filters) if filters else None,
                progbar_events=None if filters else self._progbar_events,
            )
            self._empty = False

    def start(self) -> None:
        """Begin to show; without a file there is no thread.

        If there is no room for it, that is said, and nothing else fails for it.
        """
        if self._empty:
            return
        try:
            self._follower.start()
        except (OSError, RuntimeError) as error:
            reason = shortage(error)
            if not reason:
                raise
            logger.error("the output is not shown, it is in the files: %s", reason)  # noqa: TRY400 - the reason says it all

    def stop(self) -> None:
        """Show what was written before this call, then end; idempotent."""
        if not self._empty:
            self._follower.stop(join=False)


def open_filtered(path: str) -> TextIO:
    """Open the file that collects matching lines of all ranks.

    Raises:
        OutputError: it cannot be opened.
    """
    try:
        return open(path, "w", errors="replace", buffering=1)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error


def _holds(filters: Sequence[str]) -> Callable[[str], bool]:
    return lambda line: any(needle in line for needle in filters)
