"""Where a node stands among the nodes of a run, as its environment has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lllaunch.spec import Detected, RdzvBackend


@dataclass(frozen=True)
class Placement:
    """Where this node stands among the nodes; without arguments there is no other.

    Attributes:
        min_nodes: the least number of nodes.
        max_nodes: the most.
        node_rank: this node's number, from 0; None if it has none.
        host: where they meet, without brackets; empty if nothing says.
        port: its port; None if nothing says.
        nproc: number of workers, or ``auto``, ``cpu`` or ``gpu``; None if nothing says.
        rdzv_id: identifies the run among others; empty if nothing does.
        backend: of the rendezvous; None if nothing says.
        conf: its further settings.
        detected: what was taken from where.
    """

    min_nodes: int = 1
    max_nodes: int = 1
    node_rank: int | None = None
    host: str = ""
    port: int | None = None
    nproc: int | str | None = None
    rdzv_id: str = ""
    backend: RdzvBackend | None = None
    conf: Mapping[str, str | int | float | bool] = field(default_factory=dict, repr=False)
    detected: tuple[Detected, ...] = ()
