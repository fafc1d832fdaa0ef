"""What happens in an agent, for whoever collects it: names of ``torch.distributed.elastic.events``.

An event goes to a logger per destination: ``null`` (nowhere, the default) or ``console``. Programs
register destinations of their own in `handlers`.
"""

from __future__ import annotations

import inspect
import logging
import os
import socket
import traceback

from lllaunch.agent.events.api import Event, EventMetadataValue, EventSource, NodeState, RdzvEvent
from lllaunch.agent.events.handlers import get_logging_handler

__all__ = [
    "Event",
    "EventMetadataValue",
    "EventSource",
    "NodeState",
    "RdzvEvent",
    "construct_and_record_rdzv_event",
    "get_logging_handler",
    "record",
    "record_rdzv_event",
]

_loggers: dict[str, logging.Logger] = {}


def _logger_of(destination: str) -> logging.Logger:
    if destination not in _loggers:
        logger = logging.getLogger(f"lllaunch-events-{destination}")
        logger.setLevel(os.environ.get("LOGLEVEL", "INFO"))
        # Events have a destination of their own; the root logger's handlers are not it.
        logger.propagate = False
        logger.addHandler(get_logging_handler(destination))
        _loggers[destination] = logger
    return _loggers[destination]


def record(event: Event, destination: str = "null") -> None:
    """Send an event to a destination."""
    _logger_of(destination).info(event.serialize())


def record_rdzv_event(event: RdzvEvent) -> None:
    """Send an event of a rendezvous to the destination ``dynamic_rendezvous``."""
    _logger_of("dynamic_rendezvous").info(event.serialize())


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Make an event of a rendezvous out of what is given, and send it.

    Args:
        run_id: id of the rendezvous.
        message: what happened.
        node_state: state of this node.
        name: name of the action; the calling file and function if not given.
        hostname: this host's name if not given.
        pid: this process if not given.
        master_endpoint: endpoint of the store, where it is known.
        local_id: id of this participant, where there is one.
        rank: rank of this node, where it is known.
    """
    # Telling a caller's name costs a look at its frame; without a listener nobody would see it.
    if isinstance(get_logging_handler("dynamic_rendezvous"), logging.NullHandler):
        return
    if not name:
        caller = inspect.stack(0)[1]
        name = f"{os.path.basename(caller.filename).removesuffix('.py')}:{caller.function}"
    event = RdzvEvent(
        name=name,
        run_id=run_id,
        message=message,
        hostname=hostname or socket.getfqdn(),
        pid=pid or os.getpid(),
        node_state=node_state,
        master_endpoint=master_endpoint,
        rank=rank,
        local_id=local_id,
        error_trace=traceback.format_exc() if node_state is NodeState.FAILED else "",
    )
    record_rdzv_event(event)
