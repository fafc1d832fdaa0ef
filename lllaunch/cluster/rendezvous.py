"""Nodes meet through torch's rendezvous: the only module that knows it, and torch.

What nodes tell each other beside torch's own keys stands below ``lllaunch`` in the same store, so
that launchers of both kinds can meet. docs/design/several-nodes.md has the keys.

Everything here may wait for other machines, so it is used in threads (`lllaunch.supervisor.nodes`).
A thread that waits for a machine which is cut off waits for as long as an operation may take.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from lllaunch.clock import now_ns
from lllaunch.cluster.address import await_endpoint, format_endpoint, is_loopback
from lllaunch.cluster.membership import (
    Hello,
    Member,
    Place,
    Roster,
    Share,
    keep_alive_interval,
    missing_text,
    packed,
    shares,
    unpacked,
)
from lllaunch.documents import decode_record, encode_record
from lllaunch.errors import PackageMissing, RendezvousFailed
from lllaunch.text import duration

if TYPE_CHECKING:
    from lllaunch.spec import Nodes

# torch's own (torch.distributed.elastic.agent.server)
_ROLE_INFO = "torchelastic/role_info/"
_ASSIGNED = "torchelastic/assigned_ranks/"
_TERMINAL = "torchelastic/agent/terminal_state"
_RENDEZVOUS = "torch.distributed.elastic.rendezvous"
_IDENTICAL = "TORCH_ELASTIC_WORKER_IDENTICAL"

# Between two looks at whether an answer is still wanted, seconds.
_MOMENT_SECONDS = 0.5
# What a read of node 0's clock may take, seconds.
_CLOCK_SECONDS = 2.0
# One wait for somebody who may come or not, seconds.
_LONGEST_WAIT = 60.0
_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
# What the workers of all nodes may be idle by, and when those are that have ended.
_IDLE_KINDS = ("stall", "silence", "spin", "progress")
_FOR_EVER = 2**63
# torch's defaults of a rendezvous that changes.
_KEEP_ALIVE_INTERVAL = 5
_KEEP_ALIVE_ATTEMPTS = 3


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
        raise PackageMissing("torch", "launch.nnodes") from None
    finally:
        # not for the workers
        if before is None:
            os.environ.pop(_LOG_LEVEL, None)


def keep_alive(nodes: Nodes) -> tuple[float, float]:
    """Return the seconds between two signs of life, and how many may be missing in a row."""
    interval = nodes.conf.get("keep_alive_interval", _KEEP_ALIVE_INTERVAL)
    return float(interval), float(nodes.conf.get("keep_alive_max_attempt", _KEEP_ALIVE_ATTEMPTS))


def torchs_keep_alive(nodes: Nodes) -> tuple[float, float]:
    """Return the same of torch's rendezvous, whose signs of life cost more than ours."""
    interval = nodes.conf.get("keep_alive_interval", keep_alive_interval(nodes.max_nodes))
    return float(interval), keep_alive(nodes)[1]


def agree(
    store: Any,
    group_rank: int,
    group_world_size: int,
    role: str,
    nproc: int,
    lay_out: Callable[[Sequence[tuple[str, int]]], None] = lambda _: None,
) -> Share:
    """Find out where this node's workers begin, as torch's agents do.

    Group rank 0 calls ``lay_out`` with what all nodes have said, before they hear from it.
    """
    if os.environ.get(_IDENTICAL) == "1":
        # All nodes are said to be alike: nothing needs to be exchanged.
        lay_out([(role, nproc)] * group_world_size)
        return shares([(role, nproc)] * group_world_size)[group_rank]
    mine = {"role": role, "rank": group_rank, "local_world_size": nproc}
    store.set(f"{_ROLE_INFO}{group_rank}", json.dumps(mine).encode())
    if group_rank == 0:
        texts = store.multi_get([f"{_ROLE_INFO}{rank}" for rank in range(group_world_size)])
        nodes = [(node["role"], node["local_world_size"]) for node in map(json.loads, texts)]
        lay_out(nodes)
        keys = [f"{_ASSIGNED}{rank}" for rank in range(group_world_size)]
        store.multi_set(keys, [json.dumps(share).encode() for share in shares(nodes)])
    return Share(*json.loads(store.get(f"{_ASSIGNED}{group_rank}")))


def arrive(store: Any, size: int) -> bool:
    """Take note at torch's exit barrier that this node is done; return whether it was the last."""
    last = bool(store.add(f"{_TERMINAL}/num_members", 1) == size)
    if last:
        store.set(f"{_TERMINAL}/last_member", b"1")
    return last


def await_barrier(store: Any, seconds: float) -> None:
    """Wait until all nodes have arrived at torch's exit barrier; the store raises if not."""
    store.wait([f"{_TERMINAL}/last_member"], timedelta(seconds=seconds))


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
        self._base: Any = None
        self._greeted = False
        self._rounds = 0
        self._torch_store: Any = None
        self._round: Any = None
        # seconds that this node's clock is ahead of node 0's; None if not known
        self.clock_offset: float | None = None
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
            conf.setdefault("keep_alive_interval", keep_alive_interval(nodes.max_nodes))
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
        try:
            backend, store = module.create_backend(parameters)
        except Exception as error:
            if "EADDRINUSE" not in _innermost(error) or not self._is_open_already():
                raise
            parameters.config["is_host"] = False
            backend, store = module.create_backend(parameters)
        self._handler = dynamic_rendezvous.create_handler(store, backend, parameters)
        self._base = _below(f"lllaunch/{self._run_id}", store)

    def _is_open_already(self) -> bool:
        """Whether the store of this run is there: an agent of torchrun here was first."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

        nodes, patience = self._nodes, timedelta(seconds=_MOMENT_SECONDS)
        with contextlib.suppress(Exception):
            store = TCPStore(nodes.host, nodes.port, is_master=False, timeout=patience)
            return bool(store.check([f"torch.rendezvous.{self._run_id}"]))
        return False

    def _why_not(self, error: Exception) -> tuple[str, str]:
        said = _innermost(error)
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

    def greet(self) -> bool:
        """Say that this node is there, and find out how its clock differs from node 0's.

        Returns whether that was done now: not before there is a store, and once.

        Raises:
            RendezvousFailed: the store is gone.
        """
        if self._base is None or self._greeted:
            return False
        self._greeted = True
        try:
            number = self._base.add("hello", 1)
            said = encode_record(Hello(socket.gethostname(), self._nodes.node_rank)).decode()
            sent = now_ns()
            self._base.set(f"hello/{number}", said)
            if self._nodes.node_rank == 0:
                self.clock_offset = 0.0
            elif are_set(self._base, [f"clock/{number}"], _CLOCK_SECONDS):
                received = now_ns()
                theirs = int(self._base.get(f"clock/{number}"))
                self.clock_offset = ((sent + received) // 2 - theirs) / 1e9
        except RuntimeError as error:
            text = f"the rendezvous at {self._at} failed: {_innermost(error)}"
            raise RendezvousFailed(text, self._what_to_set()) from error
        return True

    def answer_greetings(self, stopped: Callable[[], bool]) -> None:
        """Tell whoever comes what time it is here; for node 0, until it is stopped."""
        store = _another(self._base)
        number = 1
        while not stopped():
            # `knock` ends the wait
            if are_set(store, [f"hello/{number}"], _LONGEST_WAIT):
                store.set(f"clock/{number}", str(now_ns()))
                number += 1

    def knock(self) -> None:
        """Wake who answers greetings, so that it sees that it is over."""
        self._base.set(f"hello/{self._base.add('hello', 1)}", "{}")

    def join(self, member: Callable[[], Member], plan: str) -> Place:
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
                return self._agree(info, member, plan)
            except RuntimeError as error:
                # A node was lost after it was counted in, and what it was to say never comes: all
                # others find that out, and meet once more.
                late = "timeout" in str(error).lower()
                if late and self._nodes.backend != "static" and time.monotonic() < until:
                    continue
                text = f"the nodes have met at {self._at}, and one was lost: {_innermost(error)}"
                raise RendezvousFailed(text) from error

    def _agree(self, info: Any, member: Callable[[], Member], plan: str) -> Place:
        """Agree on ranks with the nodes of a round."""
        self._torch_store = info.store
        if self._base is None:
            self._base = _below("lllaunch/run", info.store)
        # a static rendezvous has one store for all rounds
        static = self._nodes.backend == "static"
        self._round = _below(f"lllaunch/{self._rounds}" if static else "lllaunch", info.store)
        rank, size = info.rank, info.world_size
        self._round.set(f"alive/{rank}", "0")
        # nobody waits for it that way
        self._round.add("looks", 0)
        self._round.set(f"member/{rank}", encode_record(member()).decode())
        before = self.place.roster.members if self.place is not None else ()

        def lay_out(nodes: Sequence[tuple[str, int]]) -> None:
            roster = Roster.of(self._members(len(nodes), before), plan)
            self._round.set("roster", packed(encode_record(roster)))

        share = agree(info.store, rank, size, self._role, self._nproc, lay_out)
        bootstrap = info.bootstrap_store_info
        if before or self._round.check(["roster"]):
            roster = decode_record(unpacked(self._round.get("roster")), Roster)
        else:
            # group rank 0 runs torchrun
            roster = Roster.of(self._members(size), plan)
        self._rounds += 1
        self.place = Place(
            group_rank=rank,
            share=share,
            master_addr=bootstrap.master_addr,
            master_port=bootstrap.master_port,
            use_agent_store=bool(self._handler.use_agent_store),
            roster=roster,
            attempt=roster.attempt,
            restarts=roster.restarts,
        )
        return self.place

    def _members(self, size: int, before: Sequence[Member | None] = ()) -> list[Member | None]:
        """Return what nodes say of themselves; None for those that run torchrun."""
        keys = known = [f"member/{rank}" for rank in range(size)]
        # It says so before it tells torch's part; in a round that is no new one to torch, that is
        # there already.
        if self._nodes.backend == "static" and before:
            known = [key for key, member in zip(keys, before, strict=False) if member is not None]
        elif not self._round.check(keys):
            known = [key for key in keys if self._round.check([key])]
        said = dict(zip(known, self._round.multi_get(known), strict=True))
        return [decode_record(said[key], Member) if key in said else None for key in keys]

    def _rendezvous(self) -> Any:
        nodes, endpoint = self._nodes, self._at
        if nodes.backend == "static" and self.place is not None and self._lost_for_good():
            text = "a static rendezvous cannot replace a node that is gone"
            raise RendezvousFailed(text, "launch.rdzv.backend=c10d can")
        try:
            return self._handler.next_rendezvous()
        except Exception as error:  # as above
            kind = type(error).__name__
            if kind == "RendezvousClosedError":
                text = f"the run {self._run_id!r} at {endpoint} is over for the other nodes"
                hint = "a new run needs another launch.rdzv.id, or a store of its own"
                raise RendezvousFailed(text, hint) from error
            late = kind == "RendezvousTimeoutError" or "imeout" in _innermost(error)
            if not late:
                text = f"the rendezvous at {endpoint} failed: {_innermost(error)}"
                raise RendezvousFailed(text, self._who_knows()) from error
            within, hello = duration(nodes.join_timeout), self._hello()
            missing = missing_text(hello, nodes.min_nodes)
            text = f"{missing}; waited for {within} at {endpoint} (launch.rdzv.join_timeout)"
            raise RendezvousFailed(text, "" if hello else self._who_knows()) from error

    def _who_knows(self) -> str:
        elsewhere = self._nodes.backend != "etcd-v2" and not self.hosts
        return "node 0 holds it, and may have ended: see what that one says" if elsewhere else ""

    def _lost_for_good(self) -> bool:
        try:
            known = [key for key in ("ended", "counted") if self._round.check([key])]
            told = [json.loads(self._round.get(key)) for key in known]
            return any(each["gone"] or each.get("missing") for each in told)
        except (RuntimeError, ValueError, TypeError):
            return True

    def _hello(self) -> list[Hello]:
        """Return what nodes have said when they came; nothing if the store is gone, or unknown."""
        if self._base is None:
            return []
        try:
            count = self._base.add("hello", 0)
            keys = (f"hello/{number}" for number in range(1, count + 1))
            known = (self._base.get(key) for key in keys if self._base.check([key]))
            return [decode_record(said, Hello) for said in known]
        except RuntimeError:
            return []

    def other_plan(self, mine: str) -> str:
        """Return the first plan that differs from the first node's, where one does."""
        assert self.place is not None
        if self.place.group_rank == self.place.roster.differing[0]:
            self._round.set("other_plan", mine)
            return mine
        return bytes(self._round.get("other_plan")).decode("utf-8", "replace")

    # While an attempt goes on

    def round_store(self) -> Any:
        """Return the round's own store, over a connection of its own."""
        return _another(self._round)

    def are_waiting(self) -> bool:
        """Return whether nodes wait to join."""
        return bool(self._handler.num_nodes_waiting() > 0)

    def end(self, text: str) -> None:
        """Say why the attempt ends, unless somebody has said so before; ``null``: it succeeded."""
        if self._nodes.backend != "etcd-v2":
            # In one step: a node that is lost between two would leave all others waiting.
            self._round.compare_set("ended", "", text)
        elif self._round.add("ended_by", 1) == 1:
            self._round.set("ended", text)

    def finish(self) -> None:
        """Arrive at the exit barrier; the last one ends the attempt with success."""
        assert self.place is not None
        # where no worker is left none does anything any more
        mine = [f"{kind}/{self.place.group_rank}" for kind in _IDLE_KINDS]
        self._round.multi_set(mine, [str(_FOR_EVER)] * len(mine))
        size = self.place.size
        last = arrive(self._torch_store, size)
        if self._nodes.backend == "static":
            # torch's counts all rounds
            last = self._round.add("arrived", 1) == size
        if last and not self.place.roster.mixed:
            self.end("null")

    def are_all_idle(self, kind: str, now: int, valid: float) -> bool:
        """Take note that this node's workers do nothing; return whether those of all nodes do so.

        ``now`` is by node 0's clock, nanoseconds since the epoch; what a node says is ``valid`` for
        so many seconds. The first node that can asks all others, and they ask it.
        """
        assert self.place is not None
        roster, store = self.place.roster, self._round
        store.set(f"{kind}/{self.place.group_rank}", str(now))
        leads, leaders = self.place.group_rank == roster.leader, f"{kind}/{roster.leader}"
        if not store.check([leaders]):
            return False
        if not leads and int(store.get(leaders)) != _FOR_EVER:
            keys = [kind]
        else:
            # also where the leader has ended, and asks nobody any more
            keys = [f"{kind}/{rank}" for rank in roster.of_lllaunch]
        if not store.check(keys):
            return False
        oldest = min(int(text) for text in store.multi_get(keys))
        idle = now - oldest <= valid * 1e9
        if idle and leads:
            store.set(kind, str(now))
        return idle

    def share_stacks(
        self, text: str, until: float, judge: Callable[[Mapping[int, bytes]], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Let all nodes know where the workers of all stand.

        ``until``: moment of the monotonic clock until which others are waited for. Returns what
        ``judge`` makes of what nodes say, by group rank; None if that did not come in time.
        """
        assert self.place is not None
        roster = self.place.roster
        self._round.set(f"stacks/{self.place.group_rank}", text)
        if self.place.group_rank != roster.leader:
            if not are_set(self._round, ["group_stacks"], until + 1.0 - time.monotonic()):
                return None
            told: dict[str, Any] = json.loads(self._round.get("group_stacks"))
            return told
        known = roster.of_lllaunch
        if not are_set(self._round, [f"stacks/{rank}" for rank in known], until - time.monotonic()):
            known = [rank for rank in known if self._round.check([f"stacks/{rank}"])]
        found = self._round.multi_get([f"stacks/{rank}" for rank in known])
        document = judge(dict(zip(known, found, strict=True)))
        self._round.set("group_stacks", json.dumps(document))
        return document

    def ask_others(
        self,
        text: bytes,
        others: Sequence[int],
        seconds: float,
        given_up: Callable[[], bool] = lambda: False,
    ) -> dict[int, bytes]:
        """Ask other nodes where their workers stand, over a connection of its own.

        Returns what those have said that did in time, by group rank.
        """
        assert self.place is not None
        until = time.monotonic() + seconds
        store = self.round_store()
        number = store.add("looks", 1)
        store.set(f"look/{number}", json.dumps([self.place.group_rank, text.decode()]))
        keys = [f"look/{number}/{rank}" for rank in others]
        while not are_set(store, keys, _MOMENT_SECONDS):
            if time.monotonic() >= until or given_up():
                break
        known = [rank for rank, key in zip(others, keys, strict=True) if store.check([key])]
        found = store.multi_get([f"look/{number}/{rank}" for rank in known]) if known else []
        with contextlib.suppress(Exception):
            # etcd's knows no way to
            for key in [f"look/{number}", *keys]:
                store.delete_key(key)
        return dict(zip(known, map(unpacked, found), strict=True))

    @staticmethod
    def wanted(store: Any, number: int) -> tuple[int, bytes] | None:
        """Return the group rank of who asks where workers stand, and what; None if nobody does."""
        if not store.check([f"look/{number}"]):
            return None
        group_rank, text = json.loads(store.get(f"look/{number}"))
        return group_rank, text.encode()

    def give_answer(self, number: int, text: bytes) -> None:
        """Tell the node that has asked where this node's workers stand."""
        assert self.place is not None
        self._round.set(f"look/{number}/{self.place.group_rank}", packed(text))

    def confirm(self, text: str) -> None:
        """Confirm that the attempt ends, and say how far it came here; ``null``: nobody knows."""
        assert self.place is not None
        self._round.set(f"end/{self.place.group_rank}", text)

    def has_finished(self) -> bool:
        """Return whether all have arrived, where some nodes run torchrun."""
        if self._nodes.backend == "static" and self._rounds > 1:
            # torch's counts all rounds
            return False
        return bool(self._torch_store.check([f"{_TERMINAL}/last_member"]))

    # The end

    def give_result(self, text: str) -> None:
        """Leave what became of this node's part of the run, for node 0."""
        assert self.place is not None
        self._base.set(_result_key(self.place, self.place.group_rank), text)

    def results(
        self,
        left: Sequence[tuple[Place, int]],
        expected: Sequence[tuple[Place, int]],
        seconds: float,
        given_up: Callable[[], bool],
    ) -> list[tuple[tuple[Place, int], bytes]]:
        """Return what nodes have ``left``, each in a place and with its group rank there.

        Those that are ``expected`` are waited for, some ``seconds`` at most.
        """
        store, until = self._base, time.monotonic() + seconds
        keys = [_result_key(*each) for each in expected]
        while keys and not are_set(store, keys, _MOMENT_SECONDS):
            if time.monotonic() >= until or given_up():
                break
        keys = [_result_key(*each) for each in left]
        if keys and not store.check(keys):
            left = [each for each, key in zip(left, keys, strict=True) if store.check([key])]
        texts: list[bytes] = store.multi_get([_result_key(*each) for each in left]) if left else []
        return list(zip(left, texts, strict=True))

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


def _result_key(place: Place, group_rank: int) -> str:
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


def _innermost(error: BaseException) -> str:
    """Return what the first cause of an error says, without torch's C++ traceback."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = str(error).strip().split("\n")[0]
    return first or type(error).__name__
