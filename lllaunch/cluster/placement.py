"""Where a node stands among the nodes of a run, as its environment has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lllaunch.spec import Detected, RdzvBackend


@dataclass(frozen=True)
class Placement:
    """Where this node stands among the nodes; without arguments there is no other."""

    min_nodes: int = 1
    max_nodes: int = 1
    node_rank: int | None = None  # this node's number, from 0; None if it has none
    host: str = ""  # where they meet, without brackets; empty if nothing says
    port: int | None = None  # its port; None if nothing says
    # number of workers, or ``auto``, ``cpu`` or ``gpu``; None if nothing says
    nproc: int | str | None = None
    rdzv_id: str = ""  # identifies the run among others; empty if nothing does
    backend: RdzvBackend | None = None  # of the rendezvous; None if nothing says
    conf: Mapping[str, str | int | float | bool] = field(default_factory=dict, repr=False)
    detected: tuple[Detected, ...] = ()
