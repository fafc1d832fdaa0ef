"""Ranks of workers, agreed on by the agents of all nodes through their store.

Every agent tells its role and size; the agent of group rank 0 lays out all workers, node by node,
and tells every agent where its own begin. Keys and values are torch's, so that agents of both kinds
could meet in one store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from lllaunch.agent.worker_group import Worker, WorkerSpec

_ROLE_INFO = "torchelastic/role_info/"
_ASSIGNED = "torchelastic/assigned_ranks/"


class Share(NamedTuple):
    """Where the workers of one node begin.

    Attributes:
        base_rank: global rank of its first worker.
        world_size: number of all workers.
        base_role_rank: rank of its first worker within the role.
        role_world_size: number of workers of the role.
    """

    base_rank: int
    world_size: int
    base_role_rank: int
    role_world_size: int


def shares(nodes: Sequence[tuple[str, int]]) -> list[Share]:
    """Lay out the workers of all nodes, one node after the other. Pure.

    Args:
        nodes: role and number of workers of every node, by group rank.
    """
    world = sum(size for _, size in nodes)
    of_role = {role: sum(size for other, size in nodes if other == role) for role, _ in nodes}
    found = []
    base = 0
    role_base = dict.fromkeys(of_role, 0)
    for role, size in nodes:
        found.append(Share(base, world, role_base[role], of_role[role]))
        base += size
        role_base[role] += size
    return found


def agree(store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec) -> Share:
    """Find out where this node's workers begin.

    Args:
        store: the store of the rendezvous (torch's ``Store``).
        group_rank: rank of this node.
        group_world_size: number of nodes.
        spec: what the workers run.
    """
    if os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1":
        # All nodes are said to be alike: nothing needs to be exchanged.
        return shares([(spec.role, spec.local_world_size)] * group_world_size)[group_rank]
    mine = {"role": spec.role, "rank": group_rank, "local_world_size": spec.local_world_size}
    store.set(f"{_ROLE_INFO}{group_rank}", json.dumps(mine).encode())
    if group_rank == 0:
        texts = store.multi_get([f"{_ROLE_INFO}{rank}" for rank in range(group_world_size)])
        nodes = [(node["role"], node["local_world_size"]) for node in map(json.loads, texts)]
        laid_out = shares(nodes)
        keys = [f"{_ASSIGNED}{rank}" for rank in range(group_world_size)]
        store.multi_set(keys, [json.dumps(share).encode() for share in laid_out])
    return Share(*json.loads(store.get(f"{_ASSIGNED}{group_rank}")))


def workers_of(share: Share, local_world_size: int) -> list[Worker]:
    """The workers of a node."""
    return [
        Worker(
            local_rank=local_rank,
            global_rank=share.base_rank + local_rank,
            role_rank=share.base_role_rank + local_rank,
            world_size=share.world_size,
            role_world_size=share.role_world_size,
        )
        for local_rank in range(local_world_size)
    ]


def barrier(store: Any, world_size: int, key_prefix: str, timeout: float) -> None:
    """Wait until the agents of all nodes are here.

    Args:
        store: the store of the rendezvous.
        world_size: number of nodes.
        key_prefix: prefix of the barrier's keys.
        timeout: seconds.

    Raises:
        Exception: what the store raises when its wait times out.
    """
    import datetime as dt  # noqa: PLC0415 - only groups of several nodes have a barrier

    if world_size <= 1:
        return
    here = store.add(f"{key_prefix}/num_members", 1)
    if here == world_size:
        store.set(f"{key_prefix}/last_member", b"1")
    store.wait([f"{key_prefix}/last_member"], dt.timedelta(seconds=timeout))
