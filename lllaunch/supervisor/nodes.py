"""The other nodes of a run, as the supervisor sees them: events in, actions out.

What waits for other machines runs in two threads: one does what it is told, one follows the
others. Neither touches anything else of the launcher; the main thread waits for their news as for
any descriptor, and for nothing longer than it must.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import queue
import re
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from lllaunch.clock import now_ns
from lllaunch.cluster.address import local_address, network_name
from lllaunch.cluster.membership import CLOCK_TOLERANCE, Ending, Member, Place, Pulse
from lllaunch.cluster.rendezvous import (
    Rendezvous,
    are_set,
    keep_alive,
    load_torch,
    torchs_keep_alive,
)
from lllaunch.cluster.values import format_endpoint
from lllaunch.difference import differences
from lllaunch.documents import Plain, Record, as_record, decode_record, encode_record
from lllaunch.errors import ConfigError, Diagnostic, LaunchError, RendezvousFailed
from lllaunch.linux.process import wait
from lllaunch.signal_source import SignalException
from lllaunch.supervisor.machine import (
    AttemptProgress,
    BarrierPassed,
    GroupEnd,
    GroupStacks,
    MembershipChanged,
    NodesAgreed,
    NodesCounted,
    RestartHistory,
    TellNodes,
    TellProgress,
    TellStacks,
    WaitForOthers,
)
from lllaunch.text import duration
from lllaunch.watchdog.evidence import RankStack
from lllaunch.watchdog.findings import FoundElsewhere

if TYPE_CHECKING:
    from lllaunch.signal_source import SignalSource
    from lllaunch.spec import Nodes
    from lllaunch.supervisor.machine import Action, Event
    from lllaunch.watchdog.findings import Finding, Kind

# What is said in the end may take so long, seconds.
_FAREWELL_SECONDS = 5.0
# Stacks of all nodes are waited for, seconds; taking them may take eight.
_STACKS_SECONDS = 10.0
_PATIENCE_FOR_BLAME = 2.0
# The store of a group with torchrun in it outlives its end here by so long, seconds.
_LINGER_SECONDS = 3.0
# What other machines are asked in the end may take so long, seconds.
_MOMENT_SECONDS = 2.0
# What takes longer is worth a line, seconds.
_SILENT_SECONDS = 3.0
_MOST_NAMES = 8
# For so long a node listens before it asks whether it has missed something, seconds.
_LONGEST_PAUSE_SECONDS = 5.0
# After this process did not run for a while, its thread gets so long for a word, seconds.
_BENEFIT_SECONDS = 2.0
# Of so many ranks that wait, more stacks say nothing new.
_MOST_STACKS = 32


class Failure(NamedTuple):
    """The first failure of this node's attempt."""

    rank: int | None  # rank among all workers, None if it is about all of this node
    text: str  # what happened, as the predicate of a sentence about the worker
    time_ns: int
    cause: str = ""


class LastWord(Record, frozen=True):
    """What a node has left of its part of the run."""

    attempt: int
    document: Mapping[str, Any]  # what result.json has
    name: str = ""  # of the node


class NodeGroup:
    """The nodes of a run, from its first attempt to its end.

    ``plan``: what all nodes must have in common, plain data. ``say``: gets lines for people.
    ``failure``: tells the first failure of the present attempt, None if there is none. ``settles``:
    seconds within which each node knows how far an attempt came that has ended, and says so, since
    all must know; None if that does not matter.
    """

    def __init__(
        self,
        nodes: Nodes,
        *,
        run_id: str,
        role: str,
        nproc: int,
        plan: Mapping[str, Any],
        directory: str,
        token: Callable[[], str] = str,
        say: Callable[[str], object] = print,
        failure: Callable[[], Failure | None] = lambda: None,
        settles: float | None = None,
    ) -> None:
        self._settles = settles
        self._nodes = nodes
        self._run_id = run_id
        self._role = role
        self._nproc = nproc
        self._plan = json.dumps(plan, sort_keys=True)
        self._directory = directory
        self._token = token
        self._say = say
        self._failure = failure
        self._address = local_address(nodes.host, nodes.port, nodes.interface)
        interval, attempts = keep_alive(nodes)
        self._interval = interval
        self._patience = interval * attempts
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # While it is held the descriptor above is not closed.
        self._open = threading.Lock()
        self._news: deque[tuple[object, object]] = deque()
        self._clock: _Thread | None = None
        self._closed = False
        self._link: _Link | None = None
        self._watch: _Watch | None = None
        self._joined = False
        self._suspected: float | None = None
        self._stacks_until: float | None = None
        self._told_offset = False
        self._idle: dict[str, float] = {}
        # Requests of other nodes for stacks, and what others were asked last.
        self._wanted: list[tuple[int, bytes]] = []
        self._others: _Link | None = None
        # Whether it is known why the attempt ends, and which nodes were gone by then.
        self._ending = False
        self._gone: list[int] = []
        self.place: Place | None = None
        self.places: list[Place] = []
        # nodes that were lost or left, by their name, with what happened to them
        self.lost: dict[str, str] = {}

    # Meeting

    def prepare(self) -> None:
        """Begin to connect; `join` waits for it."""
        self._linked()

    def _linked(self) -> _Link:
        if self._link is None:
            rendezvous = Rendezvous(
                self._nodes, self._address, self._run_id, self._role, self._nproc
            )
            self._link = _Link(rendezvous, self._wake)
            self._link.do(load_torch)
            self._joined = False
        return self._link

    def join(
        self,
        signals: SignalSource,
        attempt: int,
        restarts: int,
        history: RestartHistory | None = None,
    ) -> Place:
        """Meet the other nodes for an attempt.

        ``history``: what became of earlier attempts here; None if it does not matter.

        Raises:
            ConfigError: the nodes do not run the same plan, or cannot reach each other.
            RendezvousFailed: not enough of them came in time, or the run is over for the others.
        """
        self._stop_listening()
        self._news.clear()
        link = self._linked()
        rendezvous = link.rendezvous

        def member() -> Member:
            return Member(
                node_rank=self._nodes.node_rank,
                hostname=socket.gethostname(),
                network=network_name(),
                address=self._address,
                nproc=self._nproc,
                plan=hashlib.sha256(self._plan.encode()).hexdigest(),
                attempt=attempt,
                restarts=restarts,
                directory=self._directory,
                token=self._token(),
                clock_offset=rendezvous.clock_offset,
                history="" if history is None else encode_record(history).decode(),
            )

        first, text = not self._joined, self._plan

        def meet() -> tuple[Place, str]:
            if first:
                rendezvous.connect(self._wake, link.stopped)
                self._greet(link)
            place = rendezvous.join(member, text)
            if first:
                self._greet(link)
            return place, rendezvous.other_plan(text) if place.roster.differing else ""

        with signals.raising():
            place: Place
            place, other = self._await(link, meet, signals)
        self._joined = True
        self._check(place, other)
        self.place = place
        self.places.append(place)
        for rank in range(place.size):
            self.lost.pop(place.roster.name(rank), None)
        self._tell_offset(rendezvous)
        if first:
            self._tell_unshared(place)
        self._watch = _Watch(
            rendezvous,
            place,
            self._nodes,
            self._interval,
            self._patience,
            self._wake,
            link.stopped,
            self._settles,
        )
        self._watch.start()
        self._stacks_until = None
        self._ending, self._gone = False, []
        self._idle.clear()
        return place

    def _await(self, link: _Link, work: Callable[[], Any], signals: SignalSource) -> Any:
        """Wait until the thread has done something, showing what it has to say meanwhile.

        Raises:
            SignalException: a signal came, now or before.
            RendezvousFailed: the store does not answer. A node that was cut off from it closes no
                connection, and torch's client waits for an answer as long as TCP does, a quarter of
                an hour.
        """
        done = link.do(work)
        # to connect, to meet, to meet once more, and to agree
        patience = 3 * self._nodes.join_timeout + self._nodes.timeout
        until = time.monotonic() + patience
        while not done.done():
            if time.monotonic() > until:
                at = format_endpoint(self._nodes.host, self._nodes.port)
                text = f"the rendezvous at {at} has not answered for {duration(patience)}"
                raise RendezvousFailed(text, "its host is down, or the network between is cut")
            for signum in signals.received():
                # one that came before it raised
                if signum not in signals.quiet:
                    name = signal.Signals(signum)
                    raise SignalException(f"{name.name} came while nodes met", name)
            if signals.stopping:
                signals.stop_until_continued()
                until = time.monotonic() + patience
            wait((self._wakeup, signals), seconds=min(5.0, max(0.0, until - time.monotonic())))
            self._clear()
            while self._news:
                each, _ = self._news.popleft()
                if isinstance(each, str):
                    self._say(each)
        try:
            return done.result()
        except Exception as error:
            if not _is_of_store(error):
                raise
            text = f"the nodes lost each other while they met: {_first_line(error)}"
            raise RendezvousFailed(text) from error

    def _greet(self, link: _Link) -> None:
        rendezvous = link.rendezvous

        def is_over() -> bool:
            return self._closed or link.stopped()

        if rendezvous.greet() and self._nodes.node_rank == 0:
            self._clock = _Thread("lllaunch-clock", lambda: rendezvous.answer_greetings(is_over))
            self._clock.start()

    def _check(self, place: Place, other: str) -> None:
        roster = place.roster
        if roster.differing:
            raise ConfigError(tuple(self._differences(place, other)))
        unreachable = roster.unreachable(place.master_addr)
        if unreachable is not None:
            problem = Diagnostic(
                "endpoint",
                "launch.rdzv.endpoint",
                repr(self._nodes.host),
                f"leads to {place.master_addr} on {roster.name(0)}, which "
                f"{roster.name(unreachable)} cannot reach: it is on another machine",
                "set it to an address of node 0 that all nodes can reach, or set "
                "launch.rdzv.interface",
            )
            raise ConfigError((problem,))

    def _differences(self, place: Place, other: str) -> list[Diagnostic]:
        roster = place.roster
        first, second = roster.leader, roster.differing[0]
        changes = differences(json.loads(roster.plan), json.loads(other))
        names = f"{roster.name(first)} -> {roster.name(second)}"
        return [
            Diagnostic("nodes", change.key, "", f"is not the same on all nodes, {names}: {text}")
            for change in changes
            for text in (change.text().partition(": ")[2],)
        ]

    def _tell_unshared(self, place: Place) -> None:
        roster = place.roster
        first = next((each for each in roster.members if each and each.node_rank == 0), None)
        mine = roster.members[place.group_rank]
        if first is None or mine is None or mine.token == roster.token:
            return
        self._say(
            f"this node's files are in {mine.hostname}:{mine.directory}, apart from node 0's "
            f"({first.hostname}); if both see one file system, launch.rdzv.id gives them one place"
        )

    def _tell_offset(self, rendezvous: Rendezvous) -> None:
        offset = rendezvous.clock_offset or 0.0
        if abs(offset) < CLOCK_TOLERANCE or self._told_offset:
            return
        self._told_offset = True
        way = "ahead of" if offset > 0 else "behind"
        text = f"the clock of this node is {duration(abs(offset))} {way} that of node 0"
        patience = math.prod(torchs_keep_alive(self._nodes))
        if abs(offset) >= patience:
            text += (
                f"; torch's rendezvous takes a node for dead at {duration(patience)}: set "
                "the clocks, or launch.rdzv.conf.keep_alive_max_attempt"
            )
        self._say(f"warning: {text}")

    @property
    def restarts(self) -> int | None:
        """How many restarts have counted, as the nodes have agreed."""
        return None if self.place is None else self.place.restarts

    @property
    def base_rank(self) -> int:
        """Rank of this node's first worker among those of all nodes."""
        return 0 if self.place is None else self.place.share.base_rank

    @property
    def history(self) -> RestartHistory | None:
        """What became of earlier attempts; all nodes believe the same one of them.

        That is the one that has seen most restarts, and of these one that has seen most progress.
        """
        known: list[tuple[tuple[float, ...], RestartHistory]] = []
        for each in () if self.place is None else self.place.roster.members:
            if each and each.history:
                history = decode_record(each.history.encode(), RestartHistory)
                step = -math.inf if history.step is None else history.step
                known.append(((each.restarts, step, -len(history.ended_at)), history))
        return max(known, key=lambda each: each[0])[1] if known else None

    # The supervisor's side (`lllaunch.supervisor.supervisor.OtherNodes`)

    def files(self) -> list[int]:
        """Return what is readable when `events` has something to tell."""
        return [self._wakeup]

    def next_in(self) -> float | None:
        """Return the seconds until `events` has something to tell though nothing is readable."""
        moments = []
        if self._suspected is not None:
            moments.append(self._suspected + _BENEFIT_SECONDS)
        elif self._watch is not None:
            moments.append(self._watch.contact + self._patience)
        if self._stacks_until is not None:
            moments.append(self._stacks_until)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def events(self) -> list[Event]:
        """Return what happened since the last call, without waiting."""
        self._clear()
        found: list[Event] = []
        while self._news:
            news, source = self._news.popleft()
            if source in (None, self._watch, self._link):
                found += self._take(news)
        now = time.monotonic()
        if self._stacks_until is not None and now >= self._stacks_until:
            self._stacks_until = None
            found.append(GroupStacks())
        if self._watch is not None and self._is_out_of_contact(self._watch, now):
            seconds = now - self._watch.contact
            self._stop_listening()
            found += self._out_of_contact(f"gave no sign of life for {duration(seconds)}")
        return found

    def perform(self, action: Action) -> list[Event]:
        """Carry out an action that is for the other nodes; waits for nothing."""
        link = self._link
        if link is None:
            # nobody is left to tell it to, or to wait for
            return [GroupStacks()] if isinstance(action, TellStacks) else []
        if isinstance(action, TellNodes):
            ending = self._ending_of(action)
            link.do(lambda: link.rendezvous.end(ending))
        elif isinstance(action, TellProgress):
            self._tell_progress(link, action.progress)
        elif isinstance(action, TellStacks):
            self._stacks_until = time.monotonic() + _STACKS_SECONDS + _PATIENCE_FOR_BLAME
            self._tell_stacks(link, action)
        elif isinstance(action, WaitForOthers):
            if self._watch is not None:
                self._watch.at_barrier = True
            link.do(link.rendezvous.finish)
        return []

    def fail(self, text: str) -> None:
        """Tell the others that this node could not begin the attempt; waits for seconds at most."""
        link = self._link
        if link is None or self.place is None:
            return
        ending = Ending(
            "failed",
            "failure",
            self.place.group_rank,
            text=f"could not be started: {text}",
            time_ns=now_ns() - self._offset_ns,
        )
        link.do(lambda: link.rendezvous.end(ending))
        link.wait(self._tell_progress(link, None), _MOMENT_SECONDS)

    def are_all_idle(self, kind: str, valid: float) -> bool:
        """Take note that this node's workers do nothing; return whether those of all nodes do so.

        To be asked as long as they do: what is returned is what was known when it was asked before.

        ``kind``: the limit that it is about: ``stall``, ``silence``, ``spin``, .... ``valid``: for
        how long what a node says holds, seconds.
        """
        link = self._link
        if link is None or self._watch is None:
            return False

        def ask() -> None:
            if link.rendezvous.are_all_idle(kind, now_ns() - self._offset_ns, valid):
                self._idle[kind] = time.monotonic()

        link.do(ask)
        return time.monotonic() - self._idle.get(kind, -math.inf) <= valid

    # Where workers stand, for somebody who wants to know

    def ask_stacks(self, request: bytes, seconds: float) -> Future[Mapping[int, bytes]] | None:
        """Ask the other nodes where their workers stand; `files` tell when they have answered.

        ``request``: what they are asked. Returns what those say that answer, by group rank; None if
        no attempt goes on.
        """
        link, place = self._link, self.place
        if link is None or place is None or self._watch is None:
            return None
        others = [rank for rank in place.roster.of_lllaunch if rank != place.group_rank]

        def ask() -> Mapping[int, bytes]:
            # who has not answered is named, whatever the reason
            with contextlib.suppress(Exception):
                return link.rendezvous.ask_others(request, others, seconds, link.stopped)
            return {}

        self._others = _Link(link.rendezvous, self._wake)
        asked = self._others.do(ask)
        self._others.stop()
        return asked

    def stacks_wanted(self) -> list[tuple[int, bytes]]:
        """Return what other nodes have asked since the last call: numbers and requests."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def give_stacks(self, number: int, answer: Mapping[str, Any]) -> None:
        """Answer what another node has asked; waits for nothing."""
        link = self._link
        if link is not None:
            text = json.dumps(answer).encode()
            link.do(lambda: link.rendezvous.give_answer(number, text))

    # What is told

    def _ending_of(self, action: TellNodes) -> Ending:
        assert self.place is not None
        here, now = self.place.group_rank, now_ns() - self._offset_ns
        if action.reason == "membership":
            return Ending("joined", action.reason, here, time_ns=now)
        if action.signum is not None:
            text = f"was ended by {signal.Signals(action.signum).name}"
            return Ending("left", "node", here, (here,), text, time_ns=now)
        failure = self._failure()
        ending = Ending("failed", action.reason, here, time_ns=now, final=action.final)
        if failure is not None:
            at = failure.time_ns - self._offset_ns
            ending = replace(ending, **{**failure._asdict(), "time_ns": at})
        if action.finding is not None:
            ending = replace(ending, text=str(action.finding), finding=True)
        return ending

    def _tell_stacks(self, link: _Link, action: TellStacks) -> None:
        place = self.place
        assert place is not None
        mine = [replace(each, rank=place.share.base_rank + each.rank) for each in action.stacks]
        # with their traces
        text, finding = json.dumps(Plain(named=True)(mine)), action.finding

        def share() -> None:
            until = time.monotonic() + _STACKS_SECONDS
            document = link.rendezvous.share_stacks(
                text, until, lambda texts: _judged(place, texts, finding)
            )
            if document is not None:
                self._wake(as_record(document, GroupStacks), link)

        link.do(share)

    def _tell_progress(self, link: _Link, progress: AttemptProgress | None) -> Future[None]:
        """Say how far the attempt came here; None: nobody knows, and need wait for it."""
        if progress is not None:
            progress = replace(progress, time_ns=progress.time_ns - self._offset_ns)
        text = encode_record(progress).decode()
        return link.do(lambda: link.rendezvous.tell_progress(text))

    @property
    def _offset_ns(self) -> int:
        """How far this node's clock is ahead of node 0's."""
        offset = None if self._link is None else self._link.rendezvous.clock_offset
        return int((offset or 0.0) * 1e9)

    # What is heard

    def _take(self, news: object) -> list[Event]:
        if isinstance(news, (MembershipChanged, GroupStacks)):
            if isinstance(news, GroupStacks):
                self._stacks_until = None
            return [news]
        if isinstance(news, Ending):
            return self._agreed(news)
        if isinstance(news, _Counted):
            return self._counted(news)
        if isinstance(news, _Broken):
            return self._broken(news)
        if isinstance(news, _Wanted):
            self._wanted.append((news.number, news.request))
        else:
            self._say(str(news))
        return []

    def _broken(self, news: _Broken) -> list[Event]:
        watch, place = self._watch, self.place
        if watch is None or place is None:
            return []
        self._stop_listening()
        if watch.at_barrier and place.roster.mixed and not self._ending:
            # torchrun's agent leaves when all are done, and takes the store along
            return [BarrierPassed()]
        closed = _CLOSED.search(news.why)
        return self._out_of_contact(
            "closed the connection: its launcher is gone"
            if closed
            else f"cannot be spoken to any more: {news.why}"
        )

    def _agreed(self, ending: Ending) -> list[Event]:
        place = self.place
        assert place is not None
        if ending.how == "succeeded":
            self._stop_listening()
            return [BarrierPassed()]
        self._gone = [*ending.gone]
        finding = None
        if ending.finding:
            kind: Kind = "timeout" if ending.reason == "timeout" else "hang"
            finding = FoundElsewhere(place.roster.name(ending.group_rank), ending.text, kind)
        about = self._gone[0] if self._gone else ending.group_rank
        how: Any = ending.how
        ended = GroupEnd(
            how=how,
            node=place.roster.name(about),
            group_rank=about,
            text=ending.text,
            rank=ending.rank,
            time_ns=ending.time_ns + self._offset_ns,
            here=about == place.group_rank,
            finding=finding,
            cause=ending.cause,
        )
        for each in self._gone:
            self.lost[place.roster.name(each)] = ending.text
        self._ending = True
        reason: Any = ending.reason
        return [NodesAgreed(reason, ended, ending.final)]

    def _counted(self, news: _Counted) -> list[Event]:
        place = self.place
        assert place is not None
        self._stop_listening()
        text = "gave no sign of life when the attempt ended"
        for each in news.gone:
            self.lost[place.roster.name(each)] = text
        first = news.gone[0] if news.gone else None
        lost = None if first is None else GroupEnd("lost", place.roster.name(first), first, text)
        again = self._enough_without([*self._gone, *news.gone])
        return [NodesCounted(lost, again, news.progress)]

    def _enough_without(self, gone: list[int]) -> bool:
        assert self.place is not None
        members = self.place.roster.members
        if self.place.size - len(gone) < self._nodes.min_nodes:
            return self.place.group_rank in gone and self._nodes.min_nodes < self._nodes.max_nodes
        hosts = [members[rank] for rank in gone if members[rank] is not None]
        holds_store = self._nodes.backend != "etcd-v2"
        return not (holds_store and any(each.node_rank == 0 for each in hosts if each))

    def _is_out_of_contact(self, watch: _Watch, now: float) -> bool:
        if now - watch.contact < self._patience:
            self._suspected = None
            return False
        if self._suspected is None:
            # This process itself may have been stopped: the thread gets its turn first.
            self._suspected = now
        return now - self._suspected >= _BENEFIT_SECONDS

    def _out_of_contact(self, text: str) -> list[Event]:
        """The store is gone, and with it the node that holds it."""
        place = self.place
        assert place is not None
        members = place.roster.members
        hosts = [r for r, m in enumerate(members) if m is not None and m.node_rank == 0]
        host = hosts[0] if hosts and self._nodes.backend != "etcd-v2" else -1
        name = "the store of the rendezvous" if host < 0 else place.roster.name(host)
        self.lost[name] = text
        # What waits in vain for a machine that is cut off is left behind.
        if self._link is not None:
            self._link.stop()
            self._link = None
        here = host == place.group_rank
        ended = GroupEnd("lost", name, host, text, time_ns=now_ns(), here=here)
        counted = NodesCounted(ended, again=False)
        return [counted] if self._ending else [NodesAgreed("node", ended), counted]

    # The end

    @property
    def name(self) -> str:
        """What this node is called."""
        if self.place is not None:
            return self.place.roster.name(self.place.group_rank)
        rank = self._nodes.node_rank
        return socket.gethostname() if rank is None else f"node {rank} ({socket.gethostname()})"

    def give_result(self, document: Mapping[str, Any]) -> None:
        """Leave what became of this node's part of the run, for node 0; waits for seconds."""
        link = self._link
        if link is not None and self.place is not None:
            text = encode_record(LastWord(self.place.attempt, document, self.name)).decode()
            run = self.place.roster.token
            given = link.do(lambda: link.rendezvous.give_result(run, text))
            link.wait(given, _FAREWELL_SECONDS)

    def results(
        self, seconds: float, given_up: Callable[[], bool] = lambda: False
    ) -> dict[str, list[LastWord]]:
        """Return what the other nodes have left, by their name and in order, for node 0.

        ``given_up``: asked meanwhile; whether nobody waits any more.
        """
        link = self._link
        if link is None or self.place is None:
            return {}
        roster = self.place.roster
        expected = roster.names - {self.name, *self.lost}
        until, said = time.monotonic() + seconds, time.monotonic() + _SILENT_SECONDS
        present = self.place.attempt
        found: dict[str, list[LastWord]] = {}
        while True:
            done = link.do(functools.partial(link.rendezvous.results, roster.token))
            if not link.wait(done, _FAREWELL_SECONDS) or done.exception() is not None:
                return found
            for text in done.result():
                word = decode_record(text, LastWord)
                found.setdefault(word.name, []).append(word)
            # one that came again has left something before
            here = {name for name, told in found.items() if told[-1].attempt >= present}
            missing, now = sorted(expected - here), time.monotonic()
            if not missing or now >= until or given_up():
                return found
            if now >= said:
                names = ", ".join(missing[:_MOST_NAMES]) + (
                    ", ..." if missing[_MOST_NAMES:] else ""
                )
                self._say(f"waiting for the results of {names}, up to {duration(until - now)}")
                said = until
            time.sleep(0.1)

    def close(self, *, over: bool) -> None:
        """Take leave of the other nodes; idempotent."""
        watch, self._closed = self._watch, True
        self._stop_listening()
        link, self._link = self._link, None
        if link is not None:
            rendezvous = link.rendezvous
            # one that waits for others to join, or for a machine that is cut off, is left behind
            free = self._joined and link.wait(link.do(lambda: None), _MOMENT_SECONDS)
            if free:
                if self._settles is not None and self.place is not None:
                    # who waits for this one to say more need not
                    self._tell_progress(link, None)
                if self._clock is not None:
                    link.do(rendezvous.knock)
                left = link.do(lambda: rendezvous.leave(over=over))
                link.wait(left, _FAREWELL_SECONDS)
                if over and rendezvous.hosts and self.place and self.place.roster.mixed:
                    # torchrun's agents ask the store in their last moments, and do not say which
                    # those are; without it they would not get to report what has failed
                    time.sleep(_LINGER_SECONDS)
            link.stop()
            # A thread that waits in torch when the interpreter is torn down would take it along.
            until = time.monotonic() + _MOMENT_SECONDS
            for thread in (self._clock, watch, self._others, link) if free else ():
                if thread is not None:
                    thread.join(max(0.0, until - time.monotonic()))
        with self._open:
            if self._wakeup >= 0:
                os.close(self._wakeup)
                self._wakeup = -1

    def _stop_listening(self) -> None:
        self._suspected = None
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    # From the threads

    def _wake(self, news: object = None, source: object = None) -> None:
        """Let the main thread know of something.

        ``news``: what; None if it need only look.
        """
        if news is not None:
            self._news.append((news, source))
        with self._open:
            if self._wakeup >= 0:
                os.eventfd_write(self._wakeup, 1)

    def _clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)


# What torch's store says when the other end has closed the connection.
_CLOSED = re.compile(r"connection|socket|broken pipe|recv|shutdown or crash", re.IGNORECASE)


class _Broken(NamedTuple):
    why: str


class _Counted(NamedTuple):
    """Group ranks of nodes that have not confirmed that the attempt ends."""

    gone: list[int]
    # how far it came on all nodes; None if that does not matter, or is not known
    progress: AttemptProgress | None = None


class _Wanted(NamedTuple):
    """Another node wants to know where this node's workers stand."""

    number: int
    request: bytes


def _farthest(texts: Iterable[bytes]) -> AttemptProgress | None:
    """Return how far an attempt came on all nodes; None if none says so."""
    told = (decode_record(text, AttemptProgress | None) for text in texts)
    said: list[AttemptProgress] = [each for each in told if each is not None]
    if not said:
        return None
    return AttemptProgress(
        max((each.step for each in said if each.step is not None), default=None),
        _any(each.checkpoint_changed for each in said),
        max(each.time_ns for each in said),
        any(each.ran for each in said),
    )


def _any(answers: Iterable[bool | None]) -> bool | None:
    """Whether one of the answers is yes; None if one of them is not known, and could be."""
    known = {*answers}
    return True if True in known else None if None in known else False


def _judged(place: Place, texts: Mapping[int, bytes], finding: Finding) -> dict[str, Any]:
    """Return who hangs of all nodes.

    ``texts``: the stacks of nodes, by group rank.
    """
    from lllaunch.watchdog.blame import blame  # noqa: PLC0415 - seldom

    node_of: dict[int, int] = {}
    stacks: list[RankStack] = []
    for node, text in texts.items():
        for each in json.loads(text):
            stacks.append(as_record(each, RankStack))
            node_of[each["rank"]] = node
    found = blame(stacks, _of_all(finding, place.share.base_rank))
    first = sorted(stacks, key=lambda each: (each.rank not in found.hung, each.rank))

    hung = [rank for rank in found.hung if rank in node_of]
    told = tuple(first[: len(hung) + _MOST_STACKS])
    names = tuple((rank, place.roster.name(node_of[rank])) for rank in hung)
    group: dict[str, Any] = Plain()(GroupStacks(found, told, names))
    return group


def _of_all(finding: Finding, base_rank: int) -> Finding:
    """Return a finding of this node with ranks among all workers."""
    changes: dict[str, Any] = {}
    for name in ("rank", "ranks", "asleep", "stopped"):
        value = getattr(finding, name, None)
        if value is not None:
            moved = value + base_rank if name == "rank" else tuple(r + base_rank for r in value)
            changes[name] = moved
    return replace(finding, **changes) if changes else finding


class _Thread(threading.Thread):
    """A thread that keeps nobody from ending, and gets no signals: they are the main thread's."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work

    def run(self) -> None:
        """Do the work."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._work()


class _Link:
    """A thread that does one thing after the other at the rendezvous."""

    def __init__(self, rendezvous: Rendezvous, wake: Callable[[object, object], None]) -> None:
        self.rendezvous = rendezvous
        self._wake = wake
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
        self._work = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = _Thread("lllaunch-nodes", self._run)
        self._thread.start()

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        """Do something after all else; what is returned says when, and what came of it."""
        done: Future[Any] = Future()
        self._work.put((work, done))
        return done

    def wait(self, done: Future[Any], seconds: float) -> bool:
        """Wait until something is done; return whether it is."""
        return bool(futures.wait([done], seconds).done)

    def stopped(self) -> bool:
        """Return whether nobody waits for anything any more."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Do nothing more; what is being done may take its time."""
        self._stop.set()
        self._work.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the thread."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            item = self._work.get()
            if item is None:
                return
            work, done = item
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                done.set_exception(error)
            self._tell(done)

    def _tell(self, done: Future[Any]) -> None:
        error = done.exception()
        foreign = isinstance(error, Exception) and not isinstance(error, LaunchError)
        news = _Broken(_first_line(error)) if error and foreign and not self.stopped() else None
        self._wake(news, self)


class _Watch:
    """A thread that learns why the attempt ends, and gives and looks for signs of life.

    The first node that can looks after all others, and they after it: so each round of looks costs
    the store a constant number of operations per node.

    A failure may be all that is seen of a node that is gone: connections to it break at once, and
    its signs of life end later. So all confirm that the attempt ends, and are counted. Where it
    matters how far it came, they are counted when all have said that, too.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        place: Place,
        nodes: Nodes,
        interval: float,
        patience: float,
        wake: Callable[[object, object], None],
        abandoned: Callable[[], bool],
        settles: float | None = None,
    ) -> None:
        self._settles = settles
        # Who has not confirmed, as long as it is waited for how far the others came.
        self._missing: list[int] | None = None
        self._rendezvous = rendezvous
        self._place = place
        self._wake = wake
        self._abandoned = abandoned
        self._interval = interval
        self._dynamic = nodes.backend != "static"
        self._pulse = Pulse(patience)
        self._patience = patience
        self._ended: Ending | None = None
        self._roll_ends = 0.0
        self._beats = 0
        self._next_beat = 0.0
        self._stop = threading.Event()
        self._told_joiners = False
        # Questions of other nodes that were heard of, and whether the next one may need a moment.
        self._looks = 0
        self._patient = True
        # moment of the last answer of the store, seconds of the monotonic clock
        self.contact = time.monotonic()
        self.at_barrier = False
        self._mixed = place.roster.mixed
        self._leads = place.group_rank == place.roster.leader
        self._watched = (
            [rank for rank in place.roster.of_lllaunch if rank != place.group_rank]
            if self._leads
            else [place.roster.leader]
        )
        self._thread = _Thread("lllaunch-watch", self._run)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for the thread."""
        self._thread.join(seconds)

    def stop(self) -> None:
        """Hear nothing more; does not wait for the thread, which may wait for another machine."""
        self._stop.set()

    def _run(self) -> None:
        try:
            self._follow(self._rendezvous.round_store())
        except Exception as error:  # noqa: BLE001 - torch raises several types
            if not self._is_over():
                self._wake(_Broken(_first_line(error)), self)

    def _is_over(self) -> bool:
        return self._stop.is_set() or self._abandoned()

    def _follow(self, store: Any) -> None:
        while not self._is_over():
            if self.turn(store):
                return

    def turn(self, store: Any) -> bool:
        """Give and look for signs of life if it is time to, and hear for a moment.

        Returns whether the attempt has ended.
        """
        # One node looks for joiners as often as torch's agents do; the others only wait.
        looks = self._leads or self._mixed
        pause = min(1.0 if looks else _LONGEST_PAUSE_SECONDS, self._interval / 2)
        now = time.monotonic()
        if now >= self._next_beat:
            if self._next_beat and now - self._next_beat > self._interval:
                self._pulse.forgive(now)
            self._next_beat = now + self._interval / 2
            self._beat(store)
            self.contact = time.monotonic()
        if self._ended is not None:
            return self._call_roll(store, self._ended, pause)
        if self._leads:
            self._look_for_joiners()
        elif self._mixed and self.at_barrier and self._rendezvous.has_finished():
            self._wake(Ending("succeeded"), self)
            return True
        has_ended = are_set(store, ["ended"], pause)
        self.contact = time.monotonic()
        return has_ended and self._begin_to_end(store, decode_record(store.get("ended"), Ending))

    def _begin_to_end(self, store: Any, ending: Ending) -> bool:
        """Pass on why the attempt ends, and confirm it; return whether that is all."""
        self._wake(ending, self)
        if ending.how == "succeeded":
            return True
        store.set(f"here/{self._place.group_rank}", "1")
        self._ended = ending
        # who was just looked at may be gone since then
        self._roll_ends = time.monotonic() + self._patience + self._interval
        return False

    def _call_roll(self, store: Any, ending: Ending, pause: float) -> bool:
        """Find out who is left: nodes that are gone do not confirm that the attempt ends.

        The first of those that should be there finds out, and tells the others.

        Returns whether it is known.
        """
        of_lllaunch = self._place.roster.of_lllaunch
        expected = [rank for rank in of_lllaunch if rank not in ending.gone]
        calls = not expected or expected[0] == self._place.group_rank
        if self._missing is not None:
            return self._collect(store, expected, self._missing, pause)
        keys = [f"here/{rank}" for rank in expected] if calls else ["counted"]
        late = not are_set(store, keys, pause) if keys else False
        now = self.contact = time.monotonic()
        # the others give it the time to say so
        patience = 0.0 if calls else 2 * self._interval + (self._settles or 0.0)
        if late and now < self._roll_ends + patience:
            return False
        if not calls and not late:
            missing = json.loads(store.get("counted"))
        else:
            missing = [r for r in expected if not store.check([f"here/{r}"])] if late else []
        if calls and self._settles is not None:
            self._missing, self._roll_ends = missing, now + self._settles
            return False
        if calls:
            store.set("counted", json.dumps(missing))
        elif late and expected[0] not in missing:
            missing = [expected[0], *missing]
        self._wake(_Counted(missing, None if late else self._agreed_progress(store)), self)
        return True

    def _collect(
        self, store: Any, expected: Sequence[int], missing: list[int], pause: float
    ) -> bool:
        """Wait for how far the attempt came on the nodes that are left; then all are counted.

        Returns whether it is known, or was waited for long enough.
        """
        keys = [f"progress/{rank}" for rank in expected if rank not in missing]
        late = bool(keys) and not are_set(store, keys, pause)
        now = self.contact = time.monotonic()
        if late and now < self._roll_ends:
            return False
        if late:
            keys = [key for key in keys if store.check([key])]
        found = _farthest(store.multi_get(keys)) if keys else None
        if found is not None:
            store.set("progress", encode_record(found).decode())
        store.set("counted", json.dumps(missing))
        self._wake(_Counted(missing, found), self)
        return True

    def _agreed_progress(self, store: Any) -> AttemptProgress | None:
        """Return how far the attempt came on all nodes, as the first has found."""
        if self._settles is None or not store.check(["progress"]):
            return None
        return _farthest([store.get("progress")])

    def _beat(self, store: Any) -> None:
        self._beats += 1
        store.set(f"alive/{self._place.group_rank}", str(self._beats))
        # all have begun to count when they joined, so this waits for nobody
        keys = [f"alive/{rank}" for rank in self._watched]
        *found, looks = store.multi_get([*keys, "looks"]) if keys else [b"0"]
        counters = dict(zip(self._watched, found, strict=True))
        lost = self._pulse.look(time.monotonic(), counters)
        if lost and self._ended is None and not self._is_over():
            seconds, offset = max(lost.values()), self._rendezvous.clock_offset or 0.0
            first = min(lost)
            text = f"gave no sign of life for {duration(seconds)}"
            at = now_ns() - int((seconds + offset) * 1e9)
            gone = tuple(sorted(lost))
            self._rendezvous.end(Ending("lost", "node", first, gone, text, time_ns=at))
        self._hear_looks(store, int(looks))

    def _hear_looks(self, store: Any, count: int) -> None:
        """Pass on what other nodes have asked."""
        while self._looks < count:
            found = self._rendezvous.wanted(store, self._looks + 1)
            if found is None and self._patient:
                # who asks is between two words, or gone
                self._patient = False
                return
            self._looks, self._patient = self._looks + 1, True
            if found is not None and found[0] != self._place.group_rank:
                self._wake(_Wanted(self._looks, found[1]), self)

    def _look_for_joiners(self) -> None:
        if self._mixed and self.at_barrier and self._rendezvous.has_finished():
            self._rendezvous.end(Ending("succeeded"))
        if self._dynamic and not self._told_joiners and self._rendezvous.are_waiting():
            self._told_joiners = True
            self._wake(MembershipChanged(), self)


def _is_of_store(error: Exception) -> bool:
    """Whether torch's store, or etcd, could not be spoken to."""
    theirs = type(error).__module__.partition(".")[0] in ("torch", "etcd", "urllib3")
    return theirs or isinstance(error, (RuntimeError, LookupError, OSError))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
