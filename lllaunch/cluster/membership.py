"""What the nodes of a run tell each other, and what follows from it. Pure.

All of it goes through the store of the rendezvous as JSON. A node that runs torchrun tells nothing
of it: of that one only what torch's agents tell each other is known.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lllaunch.cluster.address import is_loopback
from lllaunch.documents import Record

# torch's default, seconds; and how many nodes may write its one value, of them all, per second.
_SHORTEST_INTERVAL = 5
_WRITES_PER_SECOND = 25
# Nodes whose clocks differ by more are told so, seconds: times of theirs cannot be compared.
CLOCK_TOLERANCE = 1.0


class Share(NamedTuple):
    """Where the workers of one node begin."""

    base_rank: int
    world_size: int
    base_role_rank: int
    role_world_size: int


def shares(nodes: Sequence[tuple[str, int]]) -> list[Share]:
    """Lay out the workers of all nodes, one node after the other.

    ``nodes``: role and number of workers of every node, by group rank.
    """
    of_role: Counter[str] = Counter()
    for role, size in nodes:
        of_role[role] += size
    found, before = [], Counter[str]()
    for role, size in nodes:
        found.append(Share(before.total(), of_role.total(), before[role], of_role[role]))
        before[role] += size
    return found


class Member(Record, frozen=True):
    """What a node says of itself when it joins an attempt."""

    node_rank: int | None = None
    hostname: str = ""
    # names the network that its loopback is of: the same on all launchers of a machine, but for
    # those in containers and network namespaces of their own
    network: str = ""
    address: str = ""
    nproc: int = 0
    plan: str = ""  # hash of what all nodes must have in common
    attempt: int = 0  # the number that its next attempt can have at the earliest
    restarts: int = 0
    directory: str = ""  # where it writes, absolute
    token: str = ""  # what it found in the run's directory of who else is there; empty if nothing
    # seconds that its clock is ahead of node 0's; None if it is not known
    clock_offset: float | None = None


class Roster(Record, frozen=True):
    """The nodes of an attempt."""

    # by group rank; None for one that runs torchrun, or says nothing of itself
    members: tuple[Member | None, ...]
    attempt: int = 0  # number of the attempt, above all that any node has made
    restarts: int = 0
    differing: tuple[int, ...] = ()  # group ranks of nodes whose plan is not that of the first
    plan: str = ""  # of the first node, as text, where there are such; else empty

    @classmethod
    def of(cls, members: Sequence[Member | None], plan: str = "") -> Roster:
        """Return what a group comes to, whose first node has a plan."""
        known = {rank: member for rank, member in enumerate(members) if member is not None}
        first = next(iter(known.values()), Member()).plan
        differing = tuple(rank for rank, member in known.items() if member.plan != first)
        return cls(
            members=tuple(members),
            attempt=max((member.attempt for member in known.values()), default=0),
            restarts=max((member.restarts for member in known.values()), default=0),
            differing=differing,
            plan=plan if differing else "",
        )

    @property
    def leader(self) -> int:
        """Group rank of the node that looks after the others: the first that can."""
        return self.of_lllaunch[0]

    @property
    def token(self) -> str:
        """What node 0 has left in the run's directory, which names this run; empty without it."""
        known = (member for member in self.members if member is not None)
        return next((member.token for member in known if member.node_rank == 0), "")

    @property
    def names(self) -> frozenset[str]:
        """What its nodes are called, but for those that run torchrun."""
        return frozenset(self.name(rank) for rank in self.of_lllaunch)

    @property
    def of_lllaunch(self) -> list[int]:
        """Group ranks of all nodes but those that run torchrun."""
        return [rank for rank, member in enumerate(self.members) if member is not None]

    @property
    def mixed(self) -> bool:
        """Whether some of them run torchrun."""
        return any(member is None for member in self.members)

    def name(self, group_rank: int) -> str:
        """Return what a node is called: ``node 1 (host1)``."""
        known = 0 <= group_rank < len(self.members)
        member = self.members[group_rank] if known else None
        if member is None:
            which = ", which runs torchrun" if known else ""
            return f"the node of group rank {group_rank}{which}"
        if member.node_rank is None:
            # its group rank is another one in each attempt
            return f"node {member.hostname}"
        return f"node {member.node_rank} ({member.hostname})"

    def unreachable(self, master_addr: str) -> int | None:
        """Return the group rank of a node that cannot reach rank 0's store, None without one."""
        first = self.members[0] if is_loopback(master_addr) else None
        others = (
            rank
            for rank, member in enumerate(self.members)
            if member is not None and first is not None and member.network != first.network
        )
        return next(others, None)


class Hello(Record, frozen=True):
    """What a node says when it comes."""

    hostname: str = ""
    node_rank: int | None = None


def packed(text: bytes) -> bytes:
    """Return a text as it is stored where each node reads what all have said.

    A thousand rosters of a thousand nodes are hundreds of MB; what nodes say of themselves is
    nearly the same.
    """
    return zlib.compress(text, 1)


def unpacked(data: bytes) -> bytes:
    """Return what `packed` has packed."""
    return zlib.decompress(data)


class Place(Record, frozen=True):
    """Where a node stands in an attempt."""

    group_rank: int
    share: Share
    master_addr: str
    master_port: int
    use_agent_store: bool  # whether that store is a launcher's already
    roster: Roster
    attempt: int
    restarts: int

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return len(self.roster.members)


def keep_alive_interval(max_nodes: int) -> int:
    """Return the seconds between two signs of life of a node, where the config does not say.

    torch's agents all replace one value, whose size and the time to make it grow with the nodes,
    and try again if another was faster: with a thousand nodes and torch's five seconds hardly
    anybody would get through (docs/design/scale.md).
    """
    return max(_SHORTEST_INTERVAL, math.ceil(max_nodes / _WRITES_PER_SECOND))


class Pulse:
    """Notices who gives no sign of life any more, by counters that each node raises.

    No clock is compared with another machine's: a node counts as lost when its counter has not
    changed here for ``patience`` seconds.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._seen: dict[int, tuple[bytes, float]] = {}

    def look(self, now: float, counters: Mapping[int, bytes]) -> dict[int, float]:
        """Take note of the counters, by group rank, at a moment of the monotonic clock.

        Returns nodes that are lost, with the seconds since their last sign of life.
        """
        for rank, counter in counters.items():
            if rank not in self._seen or self._seen[rank][0] != counter:
                self._seen[rank] = counter, now
        silent = {rank: now - self._seen[rank][1] for rank in counters}
        return {rank: seconds for rank, seconds in silent.items() if seconds >= self._patience}

    def forgive(self, now: float) -> None:
        """Count from now: this process itself did not run for a while."""
        self._seen = {rank: (counter, now) for rank, (counter, _) in self._seen.items()}


def missing_text(hello: Sequence[Hello], expected: int) -> str:
    """Return who has come, for a rendezvous that was not complete in time."""
    names: list[str] = []
    for each in hello:
        rank = each.node_rank
        name = each.hostname + ("" if rank is None else f" (node_rank {rank})")
        if name and name not in names:
            names.append(name)
    if not names:
        return f"fewer than {expected} nodes have come"
    return f"{len(names)} of {expected} nodes have come: {', '.join(names)}"
