"""Loggers for those who have something to say; most workers never import logging for a timer."""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    import logging


def logger(name: str) -> logging.Logger:
    """Returns the logger of that name."""
    import logging  # noqa: PLC0415 - 10 ms that a worker need not pay

    return logging.getLogger(name)
