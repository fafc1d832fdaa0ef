"""Nodes meet through torch's rendezvous: the only module that knows it, and torch.

What nodes tell each other beside torch's own keys stands below ``lllaunch`` in the same store, so
that launchers of both kinds can meet: docs/design/several-nodes.md has the keys. A node that runs
torchrun tells nothing of it: of that one only what torch's agents tell each other is known.

Everything here may wait for other machines, so it is used in threads (`lllaunch.supervisor.nodes`).
A thread that waits for a machine which is cut off waits for as long as an operation may take.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import socket
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from msgspec.structs import replace

from lllaunch.clock import now_ns
from lllaunch.cluster.address import await_endpoint, format_endpoint, is_loopback
from lllaunch.documents import Record, decode_record, differences, encode_record
from lllaunch.errors import RendezvousFailed, package_missing
from lllaunch.text import duration

if TYPE_CHECKING:
    from lllaunch.spec import Nodes

_T = TypeVar("_T")

# torch's own (torch.distributed.elastic.agent.server)
_TERMINAL = "torchelastic/agent/terminal_state"
_RENDEZVOUS = "torch.distributed.elastic.rendezvous"

# Between two looks at whether an answer is still wanted, seconds.
_MOMENT_SECONDS = 0.5
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
# What the workers of all nodes may be idle by, and when those are that have ended.
_IDLE_KINDS = ("stall", "silence", "spin", "progress")
_FOR_EVER = 2**63
# torch's defaults of a rendezvous that changes; and how many nodes may write its one value, of them
# all, per second.
_KEEP_ALIVE_INTERVAL = 5
_KEEP_ALIVE_ATTEMPTS = 3
_WRITES_PER_SECOND = 25


# What nodes say of themselves, and what follows from it


class Share(NamedTuple):
    """Where the workers of one node begin."""

    base_rank: int
    world_size: int
    base_role_rank: int
    role_world_size: int


class Member(Record, frozen=True):
    """What a node says of itself when it joins an attempt."""

    node_rank: int | None = None
    hostname: str = ""
    # names the network that its loopback is of: the same on all launchers of a machine, but for
    # those in containers and network namespaces of their own
    network: str = ""
    nproc: int = 0
    plan: str = ""  # what all nodes must have in common, as JSON; empty in a `Roster`
    attempt: int = 0  # the number that its next attempt can have at the earliest
    restarts: int = 0
    directory: str = ""  # where it writes, absolute
    token: str = ""  # what it found in the run's directory of who else is there; empty if nothing


class Roster(Record, frozen=True):
    """The nodes of an attempt."""

    # by group rank; None for one that runs torchrun, or says nothing of itself
    members: tuple[Member | None, ...]
    attempt: int = 0  # number of the attempt, above all that any node has made
    restarts: int = 0
    # in what a plan is not that of the first node: keys and what is wrong with them
    differing: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, members: Sequence[Member | None]) -> Roster:
        """Return what a group comes to."""
        known = {rank: member for rank, member in enumerate(members) if member is not None}
        roster = cls(
            members=tuple(member and replace(member, plan="") for member in members),
            attempt=max((member.attempt for member in known.values()), default=0),
            restarts=max((member.restarts for member in known.values()), default=0),
        )
        (first, plan), *others = [(rank, each.plan) for rank, each in known.items()] or [(0, "")]
        rank, other = next((each for each in others if each[1] != plan), (first, plan))
        if other == plan:
            return roster
        wrong = f"is not the same on all nodes, {roster.name(first)} -> {roster.name(rank)}: "
        changes = differences(json.loads(plan), json.loads(other))
        told = ((each.key, wrong + each.text().partition(": ")[2]) for each in changes)
        return replace(roster, differing=tuple(told))

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
    # seconds that this node's clock is ahead of node 0's; None if there is no such node
    clock_offset: float | None = None

    @property
    def size(self) -> int:
        """How many nodes there are."""
        return len(self.roster.members)


# torch's part


def serve_store(listener: socket.socket) -> NoReturn:
    """Serve a ``TCPStore`` until this process is killed, so that ranks may end in any order.

    Under torchrun the agent holds the store. A launcher of one node does without torch: it only
    listens at MASTER_PORT, and the first connection starts a process for this.
    """
    # A signal that a scheduler sends to all processes of a job must not end it before the workers.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    # Takes seconds where it is not preloaded.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

    port = listener.getsockname()[1]
    fd = listener.detach()
    _store = TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=fd
    )
    while True:
        signal.pause()


def load_torch() -> None:
    """Import what is needed of torch, which takes seconds."""
    # What a rendezvous warns of is said in our words, or is no news: that one is closed already.
    logging.getLogger(_RENDEZVOUS).setLevel(logging.ERROR)
    before = os.environ.get(_LOG_LEVEL)
    # its C++ part is not to warn of each wait that times out
    os.environ.setdefault(_LOG_LEVEL, "ERROR")
    try:
        import torch.distributed  # noqa: PLC0415 - the launcher of one node does without
        import torch.distributed.elastic.rendezvous.registry  # noqa: F401, PLC0415 - as above
    except ModuleNotFoundError:
        raise package_missing("torch", "launch.nnodes") from None
    finally:
        # not for the workers
        if before is None:
            os.environ.pop(_LOG_LEVEL, None)


def keep_alive(nodes: Nodes) -> tuple[float, float]:
    """Return the seconds between two signs of life, and how many may be missing in a row."""
    interval = nodes.conf.get("keep_alive_interval", _KEEP_ALIVE_INTERVAL)
    return float(interval), float(nodes.conf.get("keep_alive_max_attempt", _KEEP_ALIVE_ATTEMPTS))


def torchs_keep_alive(nodes: Nodes) -> tuple[float, float]:
    """Return the same of torch's rendezvous, whose signs of life cost more than ours.

    torch's agents all replace one value, whose size and the time to make it grow with the nodes,
    and try again if another was faster: with a thousand nodes and torch's five seconds hardly
    anybody would get through (docs/design/scale.md).
    """
    rare = max(_KEEP_ALIVE_INTERVAL, math.ceil(nodes.max_nodes / _WRITES_PER_SECOND))
    return float(nodes.conf.get("keep_alive_interval", rare)), keep_alive(nodes)[1]


class Rendezvous:
    """This node's connection to the rendezvous of a run."""

    def __init__(self, nodes: Nodes, address: str, run_id: str, role: str, nproc: int) -> None:
        self._nodes = nodes
        self._at = format_endpoint(nodes.host, nodes.port)
        self._address = address
        self._run_id = run_id
        self._role = role
        self._nproc = nproc
        self._handler: Any = None
        self._rounds = 0
        self._torch_store: Any = None
        # what nodes tell each other in the run, and in the present round; None before there is one
        self.base: Any = None
        self.round: Any = None
        # where this node stands in the present round; None before the first
        self.place: Place | None = None

    @property
    def hosts(self) -> bool:
        """Whether this node holds the store."""
        return self._nodes.node_rank == 0 and self._nodes.backend != "etcd-v2"

    # Meeting

    def connect(
        self, say: Callable[[str], object], given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Reach the endpoint, or open it if this is node 0; arguments as for `await_endpoint`.

        Raises:
            RendezvousFailed: it cannot be reached, or opened.
        """
        nodes = self._nodes
        load_torch()
        if not self.hosts:
            why = await_endpoint(nodes.host, nodes.port, nodes.join_timeout, say, given_up)
            if why:
                raise RendezvousFailed(why, self._what_to_set())
        try:
            self._make_handler()
            if self.base is not None:
                rank = "" if nodes.node_rank is None else f" (node_rank {nodes.node_rank})"
                number = self.base.add("hello", 1)
                self.base.set(f"hello/{number}", f"{socket.gethostname()}{rank}")
        except Exception as error:  # torch raises several types, some of them its own C++ ones
            raise RendezvousFailed(*self._why_not(error)) from error

    def _make_handler(self) -> None:
        from torch.distributed.elastic.rendezvous import (  # noqa: PLC0415 - see `load_torch`
            RendezvousParameters,
            dynamic_rendezvous,
            registry,
        )

        nodes = self._nodes
        conf: dict[str, Any] = {"join_timeout": int(nodes.join_timeout), **nodes.conf}
        if nodes.backend == "static":
            conf |= {"rank": nodes.node_rank, "timeout": int(nodes.join_timeout)}
        else:
            conf.setdefault("keep_alive_interval", int(torchs_keep_alive(nodes)[0]))
            conf.setdefault("read_timeout", max(1, int(nodes.timeout)))
        if nodes.backend == "c10d":
            conf["is_host"] = self.hosts
        parameters = RendezvousParameters(
            backend=nodes.backend,
            endpoint=self._at,
            run_id=self._run_id,
            min_nodes=nodes.min_nodes,
            max_nodes=nodes.max_nodes,
            local_addr=self._address,
            **conf,
        )
        if nodes.backend == "static":
            self._handler = registry.get_rendezvous_handler(parameters)
            return
        name = "c10d" if nodes.backend == "c10d" else "etcd"
        module = import_module(f"{_RENDEZVOUS}.{name}_rendezvous_backend")
        backend, store = module.create_backend(parameters)
        self._handler = dynamic_rendezvous.create_handler(store, backend, parameters)
        self.base = _below(f"lllaunch/{self._run_id}", store)

    def _why_not(self, error: Exception) -> tuple[str, str]:
        said = innermost(error)
        if isinstance(error, ImportError):
            return f"{self._nodes.backend} cannot be used: {said}", "install python-etcd"
        if self.hosts and "EADDRINUSE" in said:
            hint = "another run on this machine may use it; choose another port for all nodes"
            return f"node 0 cannot listen at {self._at}: the port is in use", hint
        if self.hosts:
            hint = (
                "node 0 holds the rendezvous, so launch.rdzv.endpoint must name this machine on "
                "all nodes"
            )
            return f"node 0 cannot be reached at its own endpoint {self._at}: {said}", hint
        return f"the rendezvous at {self._at} cannot be joined: {said}", self._what_to_set()

    def _what_to_set(self) -> str:
        if self._nodes.node_rank is None:
            return "one of the nodes must have launch.node_rank=0: it holds the rendezvous"
        if is_loopback(self._nodes.host):
            return (
                f"{self._nodes.host} is this machine itself; if node 0 is another one, set "
                "launch.rdzv.endpoint to an address of node 0 that all nodes can reach"
            )
        return "node 0 is the one with launch.node_rank=0; is it started, and the port open?"

    def join(self, member: Callable[[], Member]) -> Place:
        """Meet the other nodes, which must have a plan in common, and agree on ranks.

        Raises:
            RendezvousFailed: not enough nodes came in time, or the run is over.
        """
        until = time.monotonic() + self._nodes.join_timeout
        while True:
            # Each round has a store for the workers of its own. torch keeps the address of the
            # first, also when the node that had it is gone, and keys of workers that were ended
            # would meet the next ones (they are told apart by the number of restarts, which a
            # change of membership does not raise).
            for name in ("_bootstrap_store_info", "_shared_tcp_store_server"):
                if getattr(self._handler, name, None) is not None:
                    setattr(self._handler, name, None)
            info = self._rendezvous()
            try:
                return self._agree(info, member())
            except RuntimeError as error:
                # A node was lost after it was counted in, and what it was to say never comes: all
                # others find that out, and meet once more.
                late = "timeout" in str(error).lower()
                if late and self._nodes.backend != "static" and time.monotonic() < until:
                    continue
                text = f"the nodes have met at {self._at}, and one was lost: {innermost(error)}"
                raise RendezvousFailed(text) from error

    def _agree(self, info: Any, member: Member) -> Place:
        """Agree on ranks with the nodes of a round."""
        self._torch_store = info.store
        if self.base is None:
            self.base = _below("lllaunch/run", info.store)
        # a static rendezvous has one store for all rounds
        nodes, static = self._nodes, self._nodes.backend == "static"
        self.round = _below(f"lllaunch/{self._rounds}" if static else "lllaunch", info.store)
        rank, size = info.rank, info.world_size
        self.round.set(f"alive/{rank}", "0")
        # nobody waits for it that way; who asks has met all others
        self.round.set("look", "0")
        self.round.set(f"member/{rank}", encode_record(member).decode())
        before = self.place.roster.members if self.place is not None else ()

        # where this node's workers begin, as torch's agents find it out; all have said who they are
        # before anybody knows it
        agent = import_module("torch.distributed.elastic.agent.server.api").SimpleElasticAgent
        spec = SimpleNamespace(role=self._role, local_world_size=self._nproc)
        first, *_ = agent._assign_worker_ranks(None, info.store, rank, size, spec)
        share = Share(first.global_rank, first.world_size, first.role_rank, first.role_world_size)
        known = before[:1] if static else ()
        if rank and (any(known) or self.round.check(["member/0"])):
            roster = decode_record(zlib.decompress(self.round.get("roster")), Roster)
        else:
            # of a group whose first node runs torchrun each finds out for itself
            roster = Roster.of(self._members(size, before))
            if rank == 0:
                # a thousand of a thousand nodes are hundreds of MB, in which most is the same
                self.round.set("roster", zlib.compress(encode_record(roster), 1))
        offset = 0.0 if nodes.node_rank == 0 else None
        if nodes.node_rank == 0:
            # all others wait for it by now
            self.round.set("clock", str(now_ns()))
        elif any(each is not None and each.node_rank == 0 for each in roster.members):
            at = int(self.round.get("clock"))
            offset = (now_ns() - at) / 1e9
        self._rounds += 1
        self.place = Place(
            group_rank=rank,
            share=share,
            master_addr=info.bootstrap_store_info.master_addr,
            master_port=info.bootstrap_store_info.master_port,
            use_agent_store=bool(self._handler.use_agent_store),
            roster=roster,
            attempt=roster.attempt,
            restarts=roster.restarts,
            clock_offset=offset,
        )
        return self.place

    def _members(self, size: int, before: Sequence[Member | None] = ()) -> list[Member | None]:
        """Return what nodes say of themselves; None for those that run torchrun."""
        keys = {rank: f"member/{rank}" for rank in range(size)}
        if self._nodes.backend == "static" and before:
            # In a round that is no new one to torch its part is there already.
            seconds = self._nodes.timeout
            keys = {rank: key for rank, key in keys.items() if before[rank] is not None}
        else:
            # it says so before it tells torch's part
            seconds = 0.0
        said = collect(self.round, keys, seconds)
        return [decode_record(said[r], Member) if r in said else None for r in range(size)]

    def _rendezvous(self) -> Any:
        nodes, endpoint = self._nodes, self._at
        try:
            return self._handler.next_rendezvous()
        except Exception as error:  # as above
            kind = type(error).__name__
            if kind == "RendezvousClosedError":
                text = f"the run {self._run_id!r} at {endpoint} is over for the other nodes"
                hint = "a new run needs another launch.rdzv.id, or a store of its own"
                raise RendezvousFailed(text, hint) from error
            elsewhere = nodes.backend != "etcd-v2" and not self.hosts
            hint = "node 0 holds it, and may have ended: see what that one says"
            hint = hint if elsewhere else ""
            late = kind == "RendezvousTimeoutError" or "imeout" in innermost(error)
            if not late:
                text = f"the rendezvous at {endpoint} failed: {innermost(error)}"
                raise RendezvousFailed(text, hint) from error
            within, come = duration(nodes.join_timeout), self._come()
            missing = f"fewer than {nodes.min_nodes} nodes have come"
            if come:
                missing = f"{len(come)} of {nodes.min_nodes} nodes have come: {', '.join(come)}"
            text = f"{missing}; waited for {within} at {endpoint} (launch.rdzv.join_timeout)"
            raise RendezvousFailed(text, "" if come else hint) from error

    def _come(self) -> list[str]:
        """Return which nodes have come; none if the store is gone, or unknown."""
        if self.base is None:
            return []
        try:
            keys = {n: f"hello/{n}" for n in range(1, self.base.add("hello", 0) + 1)}
            names = (name.decode() for name in collect(self.base, keys).values())
            return [*dict.fromkeys(names)]
        except RuntimeError:
            return []

    # While an attempt goes on

    @property
    def _here(self) -> Place:
        assert self.place is not None
        return self.place

    def put(self, name: str, text: str | bytes) -> None:
        """Leave something of this node's where the others of the attempt find it."""
        self.round.set(f"{name}/{self._here.group_rank}", text)

    def round_store(self) -> Any:
        """Return the round's own store, over a connection of its own."""
        return _another(self.round)

    def are_waiting(self) -> bool:
        """Return whether nodes wait to join."""
        return bool(self._handler.num_nodes_waiting() > 0)

    def end(self, text: str) -> None:
        """Say why the attempt ends, unless somebody has said so before; ``null``: it succeeded."""
        if self._nodes.backend != "etcd-v2":
            # In one step: a node that is lost between two would leave all others waiting.
            self.round.compare_set("ended", "", text)
        elif self.round.add("ended_by", 1) == 1:
            self.round.set("ended", text)

    def finish(self) -> None:
        """Arrive at the exit barrier; the last one ends the attempt with success."""
        # where no worker is left none does anything any more
        mine = [f"{kind}/{self._here.group_rank}" for kind in _IDLE_KINDS]
        self.round.multi_set(mine, [str(_FOR_EVER)] * len(mine))
        last = self._torch_store.add(f"{_TERMINAL}/num_members", 1) == self._here.size
        if last:
            self._torch_store.set(f"{_TERMINAL}/last_member", b"1")
        if self._nodes.backend == "static":
            # torch's counts all rounds
            last = self.round.add("arrived", 1) == self._here.size
        if last and not self._here.roster.mixed:
            self.end("null")

    def are_all_idle(self, kind: str, now: int, valid: float) -> bool:
        """Take note that this node's workers do nothing; return whether those of all nodes do so.

        ``now`` is by node 0's clock, nanoseconds since the epoch; what a node says is ``valid`` for
        so many seconds.
        """
        self.put(kind, str(now))
        keys = [f"{kind}/{rank}" for rank in self._here.roster.of_lllaunch]
        if not self.round.check(keys):
            return False
        return now - min(map(int, self.round.multi_get(keys))) <= valid * 1e9

    def share_stacks(
        self, text: str, until: float, judge: Callable[[Mapping[int, bytes]], bytes]
    ) -> bytes | None:
        """Let all nodes know where the workers of all stand.

        ``until``: moment of the monotonic clock until which others are waited for. Returns what
        ``judge`` makes of what nodes say, by group rank; None if that did not come in time.
        """
        roster = self._here.roster
        self.put("stacks", text)
        if self._here.group_rank != roster.leader:
            come = are_set(self.round, ["group_stacks"], until + 1.0 - time.monotonic())
            return bytes(self.round.get("group_stacks")) if come else None
        keys = {rank: f"stacks/{rank}" for rank in roster.of_lllaunch}
        document = judge(collect(self.round, keys, until - time.monotonic()))
        self.round.set("group_stacks", document)
        return document

    def ask_others(
        self, text: bytes, others: Sequence[int], seconds: float, given_up: Callable[[], bool]
    ) -> dict[int, bytes]:
        """Ask other nodes where their workers stand, over a connection of its own.

        Returns what those have said that did in time, by group rank.
        """
        store, number = self.round_store(), now_ns()
        store.set("look", json.dumps([number, self._here.group_rank, text.decode()]))
        keys = {rank: f"look/{number}/{rank}" for rank in others}
        found = collect(store, keys, seconds, given_up)
        with contextlib.suppress(Exception):
            # etcd's knows no way to
            for key in keys.values():
                store.delete_key(key)
        return {rank: zlib.decompress(answer) for rank, answer in found.items()}

    def has_finished(self) -> bool:
        """Return whether all have arrived, where some nodes run torchrun."""
        if self._nodes.backend == "static" and self._rounds > 1:
            # torch's counts all rounds
            return False
        return bool(self._torch_store.check([f"{_TERMINAL}/last_member"]))

    def leave(self, *, over: bool) -> None:
        """Take leave of the other nodes."""
        handler = self._handler
        with contextlib.suppress(Exception):
            if handler is not None and over:
                handler.shutdown()
            elif hasattr(handler, "_op_executor"):
                # The next round need not wait until this node counts as dead; torch removes it only
                # on the way to a next round.
                exit_op = import_module(f"{_RENDEZVOUS}.dynamic_rendezvous")._RendezvousExitOp
                handler._stop_heartbeats()
                deadline = handler._get_deadline(timedelta(seconds=2))
                handler._op_executor.run(exit_op(), deadline)


def result_key(place: Place, group_rank: int) -> str:
    """Return where a node leaves what became of it, whose last place that is."""
    return f"{place.roster.token}/result/{place.attempt}/{group_rank}"


def are_set(store: Any, keys: Sequence[str], seconds: float) -> bool:
    """Wait until all of some keys are set; return whether they are, or raise without a store."""
    try:
        store.wait(list(keys), timedelta(seconds=max(0.01, seconds)))
    except (RuntimeError, LookupError) as error:
        if "timeout" not in str(error).lower():
            raise
        # An answer as well, unless the other end is cut off; torch's older store wakes nobody who
        # waits for what is set by comparing.
        return bool(store.check(list(keys)))
    return True


def collect(
    store: Any,
    keys: Mapping[_T, str],
    seconds: float = 0.0,
    given_up: Callable[[], bool] | None = None,
) -> dict[_T, bytes]:
    """Return the values of those keys that are set, by their names; waits until all are.

    For so many seconds at most, and no longer than somebody wants to know.
    """
    until = time.monotonic() + seconds
    complete = not keys or store.check([*keys.values()])
    while not complete and (left := until - time.monotonic()) > 0 and not (given_up and given_up()):
        step = left if given_up is None else min(left, _MOMENT_SECONDS)
        complete = are_set(store, [*keys.values()], step)
    known = {n: key for n, key in keys.items() if complete or store.check([key])}
    found = store.multi_get([*known.values()]) if known else []
    return dict(zip(known, found, strict=True))


def _below(prefix: str, store: Any) -> Any:
    from torch.distributed import distributed_c10d  # noqa: PLC0415 - see `load_torch`

    return distributed_c10d.PrefixStore(prefix, store)


def _another(store: Any) -> Any:
    """Return a store over a connection of its own, so that a wait in one keeps nobody else."""
    try:
        return store.clone()
    except (AttributeError, RuntimeError):
        # etcd's has no lasting connection
        return store


def innermost(error: BaseException) -> str:
    """Return what the first cause of an error says, without torch's C++ traceback."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = str(error).strip().split("\n")[0]
    return first or type(error).__name__
