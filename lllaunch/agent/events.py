"""What happens in an agent, for whoever collects it: names of ``torch.distributed.elastic.events``.

Those of a rendezvous are missing: a rendezvous is torch's own, and so are its events.

An event goes to a logger per destination: ``null`` (nowhere, the default) or ``console``. Programs
register destinations of their own in `_log_handlers`, as with torch. Where torch's module is
loaded, its handlers stand for those that nobody has registered here: what a site has set up for
torch's agent serves this one as well.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

__all__ = [
    "Event",
    "EventMetadataValue",
    "EventSource",
    "get_logging_handler",
    "record",
]

EventMetadataValue = str | int | float | bool | None


class EventSource(str, Enum):
    """Who an event is about."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass
class Event:
    """Something that happened."""

    name: str
    source: EventSource
    timestamp: int = 0  # when, milliseconds since the epoch; 0 where nobody said
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.serialize()

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        """The event that `serialize` made text of; an event is returned as it is."""
        if isinstance(data, Event):
            return data
        fields: dict[str, Any] = json.loads(data)
        return Event(**(fields | {"source": EventSource(fields["source"])}))

    def serialize(self) -> str:
        """The event as JSON."""
        return json.dumps(asdict(self))


# Programs may add their own, as with torch.
_log_handlers: dict[str, logging.Handler] = {
    "console": logging.StreamHandler(),
    "null": logging.NullHandler(),
}
_DEFAULTS = frozenset(_log_handlers.values())
_loggers: dict[str, tuple[logging.Logger, logging.Handler]] = {}


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """The logging handler of a destination; the null handler for unknown ones."""
    handler = _log_handlers.get(destination, _log_handlers["null"])
    if handler not in _DEFAULTS:
        return handler
    torchs = sys.modules.get("torch.distributed.elastic.events.handlers")
    # none yet, while another thread imports it
    found: logging.Handler = getattr(torchs, "_log_handlers", {}).get(destination, handler)
    return found


def _logger_of(destination: str) -> logging.Logger:
    handler = get_logging_handler(destination)
    logger, installed = _loggers.get(destination, (None, None))
    if logger is None:
        logger = logging.getLogger(f"lllaunch-events-{destination}")
        logger.setLevel(os.environ.get("LOGLEVEL", "INFO"))
        # Events have a destination of their own; the root logger's handlers are not it.
        logger.propagate = False
    if installed is not handler:
        # torch may have been loaded since
        if installed is not None:
            logger.removeHandler(installed)
        logger.addHandler(handler)
        _loggers[destination] = logger, handler
    return logger


def record(event: Event, destination: str = "null") -> None:
    """Send an event to a destination."""
    _logger_of(destination).info(event.serialize())
