"""What is logged about expired timers, for whoever looks for the cause later."""

from __future__ import annotations

from lllaunch.timer.process_local import logger

__all__ = ["log_debug_info_for_expired_timers"]


def log_debug_info_for_expired_timers(run_id: str, expired_timers: dict[int, list[str]]) -> None:
    """Logs which timers have expired.

    ``expired_timers``: process id -> its expired requests as JSON; nothing is logged if empty.
    """
    if expired_timers:
        logger(__name__).info("Timers expired for run:[%s] [%s].", run_id, expired_timers)
