"""Destinations of events."""

from __future__ import annotations

import logging

__all__ = ["get_logging_handler"]

# Programs may add their own; unknown destinations are null.
_log_handlers: dict[str, logging.Handler] = {
    "console": logging.StreamHandler(),
    "dynamic_rendezvous": logging.NullHandler(),
    "null": logging.NullHandler(),
}


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """The logging handler of a destination; the null handler for unknown ones."""
    return _log_handlers.get(destination, _log_handlers["null"])
