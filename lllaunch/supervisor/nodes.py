"""The other nodes of a run, as the supervisor sees them: events in, actions out.

What waits for other machines runs in two threads: one does what it is told, one follows the
others. Neither touches anything else of the launcher; the main thread waits for their news as for
any descriptor, and for nothing longer than it must.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import queue
import re
import signal
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from lllaunch.clock import now_ns
from lllaunch.cluster.address import format_endpoint, local_address, network_name
from lllaunch.cluster.rendezvous import (
    Member,
    Place,
    Rendezvous,
    are_set,
    collect,
    innermost,
    keep_alive,
    load_torch,
    result_key,
    torchs_keep_alive,
)
from lllaunch.documents import Plain, as_record, decode_record, encode_record
from lllaunch.errors import ConfigError, Diagnostic, LaunchError, RendezvousFailed
from lllaunch.signal_source import SignalException
from lllaunch.supervisor.machine import (
    AttemptProgress,
    BarrierPassed,
    GroupEnd,
    GroupStacks,
    MembershipChanged,
    NodesAgreed,
    NodesCounted,
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
# The store of a group with torchrun in it outlives its end here by so long, seconds.
_LINGER_SECONDS = 3.0
# What other machines are asked in the end may take so long, seconds.
_MOMENT_SECONDS = 2.0
# What takes longer is worth a line, seconds.
_SILENT_SECONDS = 3.0
# For so long a node listens before it asks whether it has missed something, seconds.
_LONGEST_PAUSE_SECONDS = 5.0
# After this process did not run for a while, its thread gets so long for a word, seconds.
_BENEFIT_SECONDS = 2.0
# Of so many ranks that wait, more stacks say nothing new.
_MOST_STACKS = 32
# Nodes whose clocks differ by more are told so, seconds: times of theirs cannot be compared.
_CLOCK_TOLERANCE = 1.0


class NodeGroup:
    """The nodes of a run, from its first attempt to its end.

    ``plan``: what all nodes must have in common, plain data. ``settles``: seconds within which each
    node knows how far an attempt came that has ended, and says so, since all must know; None if
    that does not matter. A subclass knows the run: `token`, `say` and `failure`.
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
        settles: float | None = None,
    ) -> None:
        self._settles = settles
        self._nodes = nodes
        self._run_id = run_id
        self._role = role
        self._address = local_address(nodes.host, nodes.port, nodes.interface)
        self._member = Member(
            node_rank=nodes.node_rank,
            hostname=socket.gethostname(),
            network=network_name(),
            nproc=nproc,
            plan=json.dumps(plan, sort_keys=True),
            directory=directory,
        )
        self._patience = math.prod(keep_alive(nodes))
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # While it is held the descriptor above is not closed.
        self._open = threading.Lock()
        self._news: deque[tuple[object, object]] = deque()
        self._link: _Link | None = None
        self._watch: _Watch | None = None
        self._joined = False
        self._suspected: float | None = None
        self._idle: dict[str, float] = {}
        self._shares: Future[None] | None = None  # stacks, with the others
        # requests of other nodes for stacks
        self._wanted: list[tuple[int, bytes]] = []
        # Whether it is known why the attempt ends, and which nodes were gone by then.
        self._ending = False
        self._gone: list[int] = []
        self.place: Place | None = None
        self.places: list[Place] = []
        # nodes that were lost or left, by their name, with what happened to them
        self.lost: dict[str, str] = {}

    def token(self) -> str:
        """Return what node 0 has left where this node's files are; empty if it sees nothing."""
        return ""

    def say(self, text: str) -> None:
        """Show a line to people."""

    def failure(self) -> GroupEnd | None:
        """Return the first failure of the present attempt here, None if there is none."""
        return None

    # Meeting

    def prepare(self) -> _Link:
        """Begin to connect; `join` waits for it."""
        if self._link is None:
            rendezvous = Rendezvous(
                self._nodes, self._address, self._run_id, self._role, self._member.nproc
            )
            self._link = _Link(rendezvous, self._wake)
            self._link.do(load_torch)
        return self._link

    def join(self, signals: SignalSource, attempt: int, restarts: int) -> Place:
        """Meet the other nodes for an attempt.

        Raises:
            ConfigError: the nodes do not run the same plan, or cannot reach each other.
            RendezvousFailed: not enough of them came in time, or the run is over for the others.
        """
        self._stop_listening()
        self._news.clear()
        link, first = self.prepare(), not self._joined
        rendezvous = link.rendezvous

        def member() -> Member:
            return replace(self._member, attempt=attempt, restarts=restarts, token=self.token())

        def meet() -> Place:
            if first:
                rendezvous.connect(self.say, link.given_up.is_set)
            return rendezvous.join(member)

        if self._nodes.backend == "static" and self._gone:
            text = "a static rendezvous cannot replace a node that is gone"
            raise RendezvousFailed(text, "launch.rdzv.backend=c10d can")
        with signals.raising():
            place: Place = self._await(link, meet, signals)
        self._joined = True
        self._check(place)
        self.place = place
        self.places.append(place)
        for rank in range(place.size):
            self.lost.pop(place.roster.name(rank), None)
        if first:
            self._tell_offset(place.clock_offset or 0.0)
        self._watch = _Watch(
            rendezvous, self._nodes, self._settles, self._wake, link.given_up.is_set
        )
        self._watch.start()
        self._ending, self._gone = False, []
        self._idle.clear()
        return place

    def _await(self, link: _Link, work: Callable[[], Any], signals: SignalSource) -> Any:
        """Wait until the thread has done something, which says itself what it waits for.

        Raises:
            SignalException: a signal came, now or before.
            RendezvousFailed: the store does not answer. A node that was cut off from it closes no
                connection, and torch's client waits for an answer as long as TCP does, a quarter of
                an hour.
        """
        for signum in signals.received():
            # one that came before it raised
            if signum not in signals.quiet:
                name = signal.Signals(signum)
                raise SignalException(f"{name.name} came while nodes met", name)
        # to connect, to meet, to meet once more, and to agree
        patience = 3 * self._nodes.join_timeout + self._nodes.timeout
        done, until = link.do(work), time.monotonic() + patience
        while not link.wait(done, min(_LONGEST_PAUSE_SECONDS, max(0.0, until - time.monotonic()))):
            if signals.stopping:
                signals.stop_until_continued()
                until = time.monotonic() + patience
            if time.monotonic() >= until:
                at = format_endpoint(self._nodes.host, self._nodes.port)
                text = f"the rendezvous at {at} has not answered for {duration(patience)}"
                raise RendezvousFailed(text, "its host is down, or the network between is cut")
        try:
            return done.result()
        except Exception as error:
            if not _is_of_store(error):
                raise
            text = f"the nodes lost each other while they met: {innermost(error)}"
            raise RendezvousFailed(text) from error

    def _check(self, place: Place) -> None:
        """Raise if the nodes do not run the same plan, or cannot reach the first."""
        roster = place.roster
        problems = [Diagnostic("nodes", key, "", text) for key, text in roster.differing]
        unreachable = roster.unreachable(place.master_addr)
        if unreachable is not None and not problems:
            text = (
                f"leads to {place.master_addr} on {roster.name(0)}, which "
                f"{roster.name(unreachable)} cannot reach: it is on another machine"
            )
            hint = (
                "set it to an address of node 0 that all nodes can reach, or set "
                "launch.rdzv.interface"
            )
            host = repr(self._nodes.host)
            problems = [Diagnostic("endpoint", "launch.rdzv.endpoint", host, text, hint)]
        if problems:
            raise ConfigError(tuple(problems))

    def _tell_offset(self, offset: float) -> None:
        if abs(offset) < _CLOCK_TOLERANCE:
            return
        way = "ahead of" if offset > 0 else "behind"
        text = f"the clock of this node is {duration(abs(offset))} {way} that of node 0"
        patience = math.prod(torchs_keep_alive(self._nodes))
        if abs(offset) >= patience:
            text += (
                f"; torch's rendezvous takes a node for dead at {duration(patience)}: set "
                "the clocks, or launch.rdzv.conf.keep_alive_max_attempt"
            )
        self.say(f"warning: {text}")

    @property
    def restarts(self) -> int | None:
        """How many restarts have counted, as the nodes have agreed."""
        return None if self.place is None else self.place.restarts

    @property
    def base_rank(self) -> int:
        """Rank of this node's first worker among those of all nodes."""
        return 0 if self.place is None else self.place.share.base_rank

    # The supervisor's side (`lllaunch.supervisor.supervisor.OtherNodes`)

    def files(self) -> list[int]:
        """Return what is readable when `events` has something to tell."""
        return [self._wakeup]

    def next_in(self) -> float | None:
        """Return the seconds until `events` has something to tell though nothing is readable."""
        if self._suspected is None and self._watch is None:
            return None
        until = 0.0 if self._watch is None else self._watch.contact + self._patience
        if self._suspected is not None:
            until = self._suspected + _BENEFIT_SECONDS
        return max(0.0, until - time.monotonic())

    def events(self) -> list[Event]:
        """Return what happened since the last call, without waiting."""
        self._clear()
        found: list[Event] = []
        while self._news:
            news, source = self._news.popleft()
            if source in (None, self._watch, self._link):
                found += self._take(news)
        now = time.monotonic()
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
            self._tell_end(link, self._ending_of(action))
        elif isinstance(action, TellProgress):
            self._confirm(link, action.progress)
        elif isinstance(action, TellStacks):
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
        agreed = NodesAgreed("failure", self._end_here("failed", f"could not be started: {text}"))
        self._tell_end(link, agreed)
        link.wait(self._confirm(link, None), _MOMENT_SECONDS)

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

    def ask_stacks(
        self, request: bytes, seconds: float, given_up: Callable[[], bool]
    ) -> Mapping[int, bytes] | None:
        """Ask the other nodes where their workers stand, and wait for it; for another thread.

        ``request``: what they are asked. Returns what those say that answer, by group rank; None if
        no attempt goes on.
        """
        link, place = self._link, self.place
        if link is None or place is None or self._watch is None:
            return None
        others = [rank for rank in place.roster.of_lllaunch if rank != place.group_rank]
        # who has not answered is named, whatever the reason
        with contextlib.suppress(Exception):
            return link.rendezvous.ask_others(request, others, seconds, given_up)
        return {}

    def stacks_wanted(self) -> list[tuple[int, bytes]]:
        """Return what other nodes have asked since the last call: numbers and requests."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def give_stacks(self, number: int, answer: Mapping[str, Any]) -> None:
        """Answer what another node has asked; waits for nothing."""
        link = self._link
        if link is not None:
            text = zlib.compress(json.dumps(answer).encode(), 1)
            link.do(lambda: link.rendezvous.put(f"look/{number}", text))

    # What is told

    def _end_here(self, how: Any, text: str = "") -> GroupEnd:
        """Return an end that this node is the cause of, now; times of what is told are node 0's."""
        assert self.place is not None
        rank = self.place.group_rank
        now = now_ns() - self._offset_ns
        return GroupEnd(how, self.place.roster.name(rank), rank, text, time_ns=now)

    def _ending_of(self, action: TellNodes) -> NodesAgreed:
        if action.reason == "membership":
            return NodesAgreed(action.reason, self._end_here("joined"))
        if action.signum is not None:
            text = f"was ended by {signal.Signals(action.signum).name}"
            ended = self._end_here("left", text)
            return NodesAgreed("node", ended, gone=(ended.group_rank,))
        ended, failure, finding = self._end_here("failed"), self.failure(), action.finding
        if failure is not None:
            at = failure.time_ns - self._offset_ns
            changes = {"text": failure.text, "rank": failure.rank, "cause": failure.cause}
            ended = replace(ended, time_ns=at, **changes)
        if finding is not None:
            kind: Kind = "timeout" if action.reason == "timeout" else "hang"
            found = FoundElsewhere(ended.node, str(finding), kind)
            ended = replace(ended, text=found.found, finding=found)
        return NodesAgreed(action.reason, ended, action.final)

    def _tell_end(self, link: _Link, agreed: NodesAgreed) -> None:
        text = encode_record(agreed).decode()
        link.do(lambda: link.rendezvous.end(text))

    def _tell_stacks(self, link: _Link, action: TellStacks) -> None:
        place = self.place
        assert place is not None
        mine = [replace(each, rank=place.share.base_rank + each.rank) for each in action.stacks]
        # with their traces
        text, finding = json.dumps(Plain(named=True)(mine)), action.finding

        def share() -> None:
            until, document = time.monotonic() + _STACKS_SECONDS, None
            with contextlib.suppress(Exception):
                document = link.rendezvous.share_stacks(
                    text, until, lambda texts: encode_record(_judged(place, texts, finding))
                )
            known = GroupStacks() if document is None else decode_record(document, GroupStacks)
            self._wake(known, link)

        self._shares = link.do(share)

    def _confirm(self, link: _Link, progress: AttemptProgress | None) -> Future[None]:
        """Say how far the attempt came here that ends; None: nobody knows."""
        if progress is not None:
            progress = replace(progress, time_ns=progress.time_ns - self._offset_ns)
        text = encode_record(progress).decode()
        return link.do(lambda: link.rendezvous.put("end", text))

    @property
    def _offset_ns(self) -> int:
        """How far this node's clock is ahead of node 0's."""
        offset = None if self.place is None else self.place.clock_offset
        return int((offset or 0.0) * 1e9)

    # What is heard

    def _take(self, news: object) -> list[Event]:
        match news:
            case MembershipChanged() | GroupStacks() | BarrierPassed():
                if isinstance(news, BarrierPassed):
                    self._stop_listening()
                return [news]
            case NodesAgreed():
                return [self._agreed(news)]
            case NodesCounted():
                return [self._counted(news)]
            case _Broken():
                return self._broken(news)
            case _Wanted():
                self._wanted.append((news.number, news.request))
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

    def _agreed(self, agreed: NodesAgreed) -> NodesAgreed:
        place, ended = self.place, agreed.ended
        assert place is not None
        self._ending, self._gone = True, [*agreed.gone]
        self.lost |= {place.roster.name(each): ended.text for each in agreed.gone}
        at, here = ended.time_ns + self._offset_ns, ended.group_rank == place.group_rank
        return replace(agreed, ended=replace(ended, time_ns=at, here=here))

    def _counted(self, counted: NodesCounted) -> NodesCounted:
        place = self.place
        assert place is not None
        self._stop_listening()
        text = "gave no sign of life when the attempt ended"
        lost = [GroupEnd("lost", place.roster.name(each), each, text) for each in counted.missing]
        self.lost |= {each.node: text for each in lost}
        self._gone += counted.missing
        again = self._store_host not in self._gone
        if place.size - len(self._gone) < self._nodes.min_nodes:
            elastic = self._nodes.min_nodes < self._nodes.max_nodes
            again = place.group_rank in self._gone and elastic
        return replace(counted, gone=lost[0] if lost else None, again=again)

    @property
    def _store_host(self) -> int:
        """Group rank of the node that holds the store; -1 if none of them does."""
        assert self.place is not None
        members = () if self._nodes.backend == "etcd-v2" else self.place.roster.members
        return next((r for r, each in enumerate(members) if each and each.node_rank == 0), -1)

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
        host = self._store_host
        name = "the store of the rendezvous" if host < 0 else place.roster.name(host)
        self.lost[name] = text
        # What waits in vain for a machine that is cut off is left behind.
        if self._link is not None:
            self._link.stop()
            self._link = None
        here = host == place.group_rank
        ended = GroupEnd("lost", name, host, text, time_ns=now_ns(), here=here)
        found: list[Event] = [] if self._ending else [NodesAgreed("node", ended)]
        found.append(NodesCounted(ended, again=False))
        if self._shares is not None and not self._shares.done():
            found.append(GroupStacks())
        return found

    # The end

    def give_result(self, document: Mapping[str, Any]) -> None:
        """Leave what became of this node's part of the run, for node 0; waits for seconds."""
        link, place = self._link, self.place
        if link is not None and place is not None:
            key, text = result_key(place, place.group_rank), json.dumps(document)
            link.wait(link.do(lambda: link.rendezvous.base.set(key, text)), _FAREWELL_SECONDS)

    def results(
        self, seconds: float, signals: SignalSource
    ) -> dict[str, list[tuple[int, Mapping[str, Any]]]]:
        """Return what the other nodes have left, by their name and in order, for node 0.

        Each is the number of its last attempt there, and what its result.json has. A signal ends
        the wait.
        """
        link, last = self._link, self.place
        if link is None or last is None:
            return {}
        # who came again has left a word when it left
        keys = {
            (place.attempt, place.roster.name(rank)): result_key(place, rank)
            for place, after in itertools.pairwise((*self.places, None))
            if place is not None
            for rank in place.roster.of_lllaunch
            if after is None or place.roster.name(rank) not in after.roster.names
        }
        del keys[last.attempt, last.roster.name(last.group_rank)]
        expected = {
            name: key
            for name, key in keys.items()
            if name[0] == last.attempt and name[1] not in self.lost
        }
        over = threading.Event()

        def read() -> dict[tuple[int, str], bytes]:
            store = link.rendezvous.base
            come = collect(store, expected, seconds, over.is_set)
            return come | collect(store, {n: key for n, key in keys.items() if n not in come})

        done = link.do(read)
        with contextlib.suppress(SignalException), signals.raising():
            if not link.wait(done, min(seconds, _SILENT_SECONDS)):
                nodes = "another node" if len(expected) == 1 else f"{len(expected)} other nodes"
                self.say(f"waiting for the results of {nodes}, up to {duration(seconds)}")
                link.wait(done, seconds)
        over.set()
        found: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
        if link.wait(done, _FAREWELL_SECONDS) and done.exception() is None:
            for (attempt, name), text in sorted(done.result().items()):
                found.setdefault(name, []).append((attempt, json.loads(text)))
        return found

    def close(self, *, over: bool) -> None:
        """Take leave of the other nodes; idempotent."""
        watch = self._watch
        self._stop_listening()
        link, self._link = self._link, None
        if link is not None:
            rendezvous = link.rendezvous
            # one that waits for others to join, or for a machine that is cut off, is left behind
            free = self._joined and link.wait(link.do(lambda: None), _MOMENT_SECONDS)
            if free:
                if self._settles is not None and self.place is not None:
                    # who waits for this one to say more need not
                    self._confirm(link, None)
                left = link.do(lambda: rendezvous.leave(over=over))
                link.wait(left, _FAREWELL_SECONDS)
                if over and rendezvous.hosts and self.place and self.place.roster.mixed:
                    # torchrun's agents ask the store in their last moments, and do not say which
                    # those are; without it they would not get to report what has failed
                    time.sleep(_LINGER_SECONDS)
            link.stop()
            # A thread that waits in torch when the interpreter is torn down would take it along.
            until = time.monotonic() + _MOMENT_SECONDS
            for thread in (watch, link) if free else ():
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
    changed = {each.checkpoint_changed for each in said}
    return AttemptProgress(
        max((each.step for each in said if each.step is not None), default=None),
        True if True in changed else None if None in changed else False,
        max(each.time_ns for each in said),
        any(each.ran for each in said),
    )


def _judged(place: Place, texts: Mapping[int, bytes], finding: Finding) -> GroupStacks:
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
    return GroupStacks(found, told, tuple((r, place.roster.name(node_of[r])) for r in hung))


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
        super().__init__(name=name, target=work, daemon=True)
        self.given_up = threading.Event()  # set if nobody waits for it any more

    def run(self) -> None:
        """Do the work."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        super().run()


class _Link(_Thread):
    """Does one thing after the other at the rendezvous."""

    def __init__(self, rendezvous: Rendezvous, wake: Callable[[object, object], None]) -> None:
        super().__init__("lllaunch-nodes", self._serve)
        self.rendezvous = rendezvous
        self._wake = wake
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]
        self._work = queue.SimpleQueue()
        self.start()

    def do(self, work: Callable[[], Any]) -> Future[Any]:
        """Do something after all else; what is returned says when, and what came of it."""
        done: Future[Any] = Future()
        self._work.put((work, done))
        return done

    def wait(self, done: Future[Any], seconds: float) -> bool:
        """Wait until something is done; return whether it is."""
        return bool(futures.wait([done], seconds).done)

    def stop(self) -> None:
        """Do nothing more; what is being done may take its time."""
        self.given_up.set()
        self._work.put(None)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                done.set_exception(error)
            self._tell(done)

    def _tell(self, done: Future[Any]) -> None:
        error = done.exception()
        foreign = isinstance(error, Exception) and not isinstance(error, LaunchError)
        broken = error is not None and foreign and not self.given_up.is_set()
        self._wake(_Broken(innermost(error)) if error and broken else None, self)


class _Watch(_Thread):
    """Learns why the attempt ends, and gives and looks for signs of life.

    The first node that can looks after all others, and they after it: so each round of looks costs
    the store a constant number of operations per node.

    A failure may be all that is seen of a node that is gone: connections to it break at once, and
    its signs of life end later. So all confirm that the attempt ends, and are counted. Where it
    matters how far it came, they confirm it when they know that.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        nodes: Nodes,
        settles: float | None,
        wake: Callable[[object, object], None],
        abandoned: Callable[[], bool],
    ) -> None:
        assert rendezvous.place is not None
        super().__init__("lllaunch-watch", self._listen)
        self._rendezvous = rendezvous
        self._place = place = rendezvous.place
        self._settles = settles
        self._wake = wake
        self._abandoned = abandoned
        self._interval, attempts = keep_alive(nodes)
        self._patience = self._interval * attempts
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._ended: NodesAgreed | None = None
        # until when all are waited for that have not confirmed the end, and which of them are gone
        self._roll_ends = 0.0
        self._lost: frozenset[int] = frozenset()
        self._beats = 0
        self._next_beat = 0.0
        self._look = b"0"  # what another node has asked last
        # moment of the last answer of the store, seconds of the monotonic clock
        self.contact = time.monotonic()
        self.at_barrier = False
        self._watched = [place.roster.leader]
        if place.group_rank == place.roster.leader:
            self._watched = place.roster.of_lllaunch[1:]
        # who looks for nodes that wait to join
        self._looks = place.group_rank == place.roster.leader and nodes.backend != "static"

    def stop(self) -> None:
        """Hear nothing more; does not wait for the thread, which may wait for another machine."""
        self.given_up.set()

    def _listen(self) -> None:
        try:
            store = self._rendezvous.round_store()
            while not (self._is_over() or self.turn(store)):
                pass
        except Exception as error:  # noqa: BLE001 - torch raises several types
            if not self._is_over():
                self._wake(_Broken(innermost(error)), self)

    def _is_over(self) -> bool:
        return self.given_up.is_set() or self._abandoned()

    def turn(self, store: Any) -> bool:
        """Give and look for signs of life if it is time to, and hear for a moment.

        Returns whether the attempt has ended.
        """
        pause = min(_LONGEST_PAUSE_SECONDS, self._interval / 2)
        now = time.monotonic()
        if now >= self._next_beat:
            if self._next_beat and now - self._next_beat > self._interval:
                # this process itself did not run for a while
                self._seen = {rank: (beat, now) for rank, (beat, _) in self._seen.items()}
            self._next_beat = now + self._interval / 2
            self._beat(store)
            self.contact = time.monotonic()
        if self._ended is not None:
            return self._count(store, self._ended, pause)
        if self._place.roster.mixed and self.at_barrier and self._rendezvous.has_finished():
            self._wake(BarrierPassed(), self)
            return True
        has_ended = are_set(store, ["ended"], pause)
        self.contact = time.monotonic()
        return has_ended and self._begin_to_end(store)

    def _begin_to_end(self, store: Any) -> bool:
        """Pass on why the attempt ends; return whether that is all."""
        self._ended = decode_record(store.get("ended"), NodesAgreed | None)
        self._wake(self._ended or BarrierPassed(), self)
        if self._ended is None:
            return True
        if self._settles is None:
            store.set(f"end/{self._place.group_rank}", "null")
        # who was just looked at may be gone since then
        patience = max(self._patience + self._interval, self._settles or 0.0)
        self._roll_ends = time.monotonic() + patience
        return False

    def _count(self, store: Any, ending: NodesAgreed, pause: float) -> bool:
        """Find out who is left: nodes that are gone do not confirm that the attempt ends.

        The first of those that should be there finds out, and tells the others.

        Returns whether it is known.
        """
        expected = [rank for rank in self._place.roster.of_lllaunch if rank not in ending.gone]
        counts = not expected or expected[0] == self._place.group_rank
        keys = [f"end/{rank}" for rank in expected] if counts else ["counted"]
        complete = not keys or are_set(store, keys, pause)
        now = self.contact = time.monotonic()
        if not counts:
            # it gets the time to say so
            if not complete and now < self._roll_ends + 2 * self._interval:
                return False
            counted = decode_record(store.get("counted"), NodesCounted) if complete else None
            self._wake(counted or NodesCounted(missing=(expected[0],)), self)
            return True
        self._watched = expected[1:]
        late = now >= self._roll_ends
        if not (complete or late or self._lost):
            return False
        there = collect(store, {rank: f"end/{rank}" for rank in expected})
        # who lives and says nothing takes longer than it may
        missing = tuple(self._lost.intersection(expected).difference(there))
        if not late and len(there) + len(missing) < len(expected):
            return False
        counted = NodesCounted(missing=tuple(sorted(missing)), progress=_farthest(there.values()))
        store.set("counted", encode_record(counted).decode())
        self._wake(counted, self)
        return True

    def _beat(self, store: Any) -> None:
        self._beats += 1
        store.set(f"alive/{self._place.group_rank}", str(self._beats))
        # all have begun to count when they joined, so this waits for nobody
        keys = [f"alive/{rank}" for rank in self._watched]
        *found, look = store.multi_get([*keys, "look"]) if keys else [b"0"]
        # No clock is compared with another machine's: a node is lost whose counter has not changed
        # here for so long.
        now = time.monotonic()
        for rank, counter in zip(self._watched, found, strict=True):
            if rank not in self._seen or self._seen[rank][0] != counter:
                self._seen[rank] = counter, now
        silent = {rank: now - self._seen[rank][1] for rank in self._watched}
        lost = {rank: each for rank, each in silent.items() if each >= self._patience}
        self._lost = frozenset(lost)
        self._hear_look(look)
        if self._ended is not None or self._is_over():
            return
        if lost:
            gone, rendezvous = tuple(sorted(lost)), self._rendezvous
            seconds, offset = max(lost.values()), self._place.clock_offset or 0.0
            text = f"gave no sign of life for {duration(seconds)}"
            at = now_ns() - int((seconds + offset) * 1e9)
            name = self._place.roster.name(gone[0])
            ended = GroupEnd("lost", name, gone[0], text, time_ns=at)
            rendezvous.end(encode_record(NodesAgreed("node", ended, gone=gone)).decode())
        if self._looks and self._rendezvous.are_waiting():
            # once
            self._looks = False
            self._wake(MembershipChanged(), self)

    def _hear_look(self, look: bytes) -> None:
        """Pass on what another node has asked last."""
        if look != self._look:
            self._look = look
            number, asker, request = json.loads(look)
            if asker != self._place.group_rank:
                self._wake(_Wanted(number, request.encode()), self)


def _is_of_store(error: Exception) -> bool:
    """Whether torch's store, or etcd, could not be spoken to."""
    theirs = type(error).__module__.partition(".")[0] in ("torch", "etcd", "urllib3")
    return theirs or isinstance(error, (RuntimeError, LookupError, OSError))
