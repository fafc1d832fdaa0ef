"""Events of an agent and of a rendezvous; names are torch's."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

__all__ = ["Event", "EventMetadataValue", "EventSource", "NodeState", "RdzvEvent"]

EventMetadataValue = str | int | float | bool | None


class EventSource(str, Enum):
    """Who an event is about."""

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass
class Event:
    """Something that happened.

    Attributes:
        name: its name.
        source: who it is about.
        timestamp: when, milliseconds since the epoch; 0 where nobody said.
        metadata: more about it.
    """

    name: str
    source: EventSource
    timestamp: int = 0
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


class NodeState(str, Enum):
    """State of a node in a rendezvous."""

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class RdzvEvent:
    """Something that happened in a rendezvous.

    Attributes:
        name: the action.
        run_id: id of the rendezvous.
        message: what happened.
        hostname: of the node.
        pid: of the node's process.
        node_state: state of the node.
        master_endpoint: endpoint of the store, where it is known.
        rank: rank of the node, where it is known.
        local_id: id of the participant, where there is one.
        error_trace: traceback of an error.
    """

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    def __str__(self) -> str:
        return self.serialize()

    @staticmethod
    def deserialize(data: str | RdzvEvent) -> RdzvEvent:
        """The event that `serialize` made text of; an event is returned as it is."""
        if isinstance(data, RdzvEvent):
            return data
        fields: dict[str, Any] = json.loads(data)
        return RdzvEvent(**(fields | {"node_state": NodeState(fields["node_state"])}))

    def serialize(self) -> str:
        """The event as JSON."""
        return json.dumps(asdict(self))
