"""Showing the lines of log files while they are written, with torch's names and signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from lllaunch.workers.tail import Follower

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

__all__ = ["TailLog", "tail_logfile"]


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: threading.Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Show the lines of one file until an event is set; blocks the calling thread.

    What was written before that is shown. The other arguments are those of `TailLog`.
    """
    tail = TailLog("", {0: file}, dst, {0: header}, interval_sec, log_line_filter).start()
    try:
        finished.wait()
    finally:
        tail.stop()


class TailLog(Follower):
    """Shows the lines of log files, each with a header, from `start` to `stop`.

    The files need not exist when it starts. All are followed by one thread, which sleeps until one
    of them changes. Lines of different files come in no particular order, but never mixed.

    ``name``: what the files belong to; the header of a line is ``[<name><key>]:``. ``dst``: where
    the lines go; None shows nothing. ``interval_sec``: torch's polling interval. Accepted, not
    needed: a change wakes it up. ``log_line_filter``: says of a line, with its newline, whether
    it is shown. ``progbar_events``: events ``trigger_clear`` and ``cleared`` of a progress bar that
    is taken off the screen while lines are written.
    """

    def __init__(
        self,
        name: str,
        log_files: Mapping[int, str],
        dst: TextIO | None,
        log_line_prefixes: Mapping[int, str] | None = None,
        interval_sec: float = 0.1,  # noqa: ARG002
        log_line_filter: Callable[[str], bool] | None = None,
        *,
        progbar_events: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"TailLog_{name}")
        if dst is None:
            return
        for key, path in log_files.items():
            header = (log_line_prefixes or {}).get(key, f"[{name}{key}]:")
            shown = header.encode("utf-8", "surrogateescape")
            self.add(path, shown, dst, log_line_filter, progbar_events=progbar_events)
