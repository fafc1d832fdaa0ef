"""One run on several nodes: what each node has in common with the others, and what came of all.

Each node writes below ``node_<n>`` of the run's directory what it would write if it was alone.
Node 0 writes result.json of the run beside them, from what the others leave in the store, so that
it is whole also where nodes see different file systems.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from lllaunch.files import link_atomic, read_bytes, write_atomic
from lllaunch.run.directory import EVENTS, LOCK_NAME, PLAN, forget_result
from lllaunch.run.result import (
    AttemptResult,
    NodeGone,
    NodeResult,
    NodesJoined,
    OnAnotherNode,
    RunResult,
    as_result,
    plain_result,
)
from lllaunch.supervisor.machine import GroupEnd
from lllaunch.supervisor.nodes import NodeGroup
from lllaunch.workers.group import UNKILLABLE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lllaunch.cluster.rendezvous import Member, Place
    from lllaunch.run.directory import RunDirectory
    from lllaunch.run.observer import RunObserver
    from lllaunch.run.result import RootCause
    from lllaunch.signal_source import SignalSource
    from lllaunch.spec import LaunchSpec

# What node 0 leaves in the run's directory for nodes that see the same file system.
NODES_FILE = ".lllaunch.nodes"
# After their grace period workers are killed, and what they leave behind is ended: seconds.
_SETTLE_SECONDS = 2 * UNKILLABLE_SECONDS + 5.0
# Others may still write what became of them, seconds beyond their grace period.
_LAST_WORDS = 15.0


class RunNodes(NodeGroup):
    """The nodes of a run, with the run's files and its end."""

    def __init__(
        self,
        spec: LaunchSpec,
        directory: RunDirectory,
        observer: RunObserver,
        plan: Mapping[str, Any],
    ) -> None:
        assert spec.nodes is not None
        super().__init__(
            spec.nodes,
            run_id=spec.nodes.rdzv_id or spec.run_id,
            role=spec.role,
            nproc=spec.nproc,
            plan=plan,
            directory=directory.path,
            settles=spec.grace_period + _SETTLE_SECONDS if spec.restart.looks_back else None,
        )
        self._grace_period = spec.grace_period
        self._root = os.path.dirname(directory.path)
        self._observer = observer
        self._own_token = secrets.token_hex(8)
        if spec.nodes.node_rank != 0:
            return
        # the run's directory looks like that of any run: it leads to what node 0 writes
        forget_result(self._root)
        write_atomic(self.file(NODES_FILE), self._own_token.encode())
        for name in (LOCK_NAME, EVENTS, PLAN, "latest", ".hydra"):
            # what Hydra writes is elsewhere if launch.log_dir is set
            if name != ".hydra" or os.path.isdir(directory.file(name)):
                link_atomic(self.file(name), os.path.join(os.path.basename(directory.path), name))

    def file(self, name: str) -> str:
        """Return the path of a file of the run as a whole."""
        return os.path.join(self._root, name)

    def say(self, text: str) -> None:
        """Show a line to people."""
        self._observer.console.note(text)

    def token(self) -> str:
        """Return what node 0 has left in the run's directory, if this node sees it."""
        if self._nodes.node_rank == 0:
            return self._own_token
        try:
            return read_bytes(self.file(NODES_FILE)).decode("ascii", "replace")
        except OSError:
            return ""

    def failure(self) -> GroupEnd | None:
        """Return the first failure of the present attempt here, None if there is none."""
        from lllaunch.run.judge import judge_attempt  # noqa: PLC0415 - only where something failed

        record = self._observer.latest()
        root = None if record is None else judge_attempt(record).root_cause
        if root is None:
            return None
        text, cause = str(root.cause), type(root.cause).__name__
        return GroupEnd("failed", "", -1, text, root.rank, root.time_ns, cause=cause)

    def finish(self, outcome: RunResult, signals: SignalSource) -> RunResult | None:
        """Let the other nodes know what became of this one; return what became of all to node 0.

        Signals tell that somebody wants it to end now.
        """
        over = outcome.signum is None
        try:
            if self._nodes.node_rank != 0:
                hide = self._observer.hide
                # of a node nobody asks for its host
                alone = replace(outcome, host=None, build=None)
                offset = None if self.place is None else self.place.clock_offset
                self.give_result({**plain_result(alone, hide), "clock_offset": offset})
                return None
            waits = over and not signals.received()
            found = self.results(self._grace_period + _LAST_WORDS if waits else 1.0, signals)
            return merged(outcome, self.places, found, self.lost, self._root)
        finally:
            self.close(over=over)


def merged(
    own: RunResult,
    places: Sequence[Place],
    results: Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]],
    lost: Mapping[str, str],
    root: str,
) -> RunResult:
    """Make the outcome of a run from those of its nodes.

    ``places``: where it stood in each attempt. ``results``: what other nodes have left, by name,
    each with the number of its last attempt; one that came again has left several. ``lost``: what
    happened to those that were lost or left, by name.
    """
    known = _members(places)
    token = places[-1].roster.token if places else ""
    present = places[-1].attempt if places else 0
    there = places[-1].roster.names if places else frozenset()
    nodes: list[NodeResult] = []
    outcomes: list[RunResult] = []
    # What became of a node that had left before the last attempt is its own matter.
    deciding: list[RunResult] = []
    for name, (group_rank, member) in known.items():
        node = NodeResult(
            name=name,
            hostname=member.hostname,
            node_rank=member.node_rank,
            group_rank=group_rank,
            nproc=member.nproc,
            directory=member.directory,
            shared=bool(token) and member.token == token,
            said=lost.get(name, ""),
            clock_offset=0.0 if member.node_rank == 0 else None,
        )
        parts = [(present, own)] if member.node_rank == 0 else []
        for attempt, document in results.get(name, ()):
            node = replace(node, clock_offset=document.get("clock_offset"))
            with contextlib.suppress(ValueError):
                told = as_result(document, member.directory)
                if told is not None:
                    parts.append((attempt, told))
        for attempt, part in parts:
            outcomes.append(_seen_from_first(part, node))
            if attempt == present:
                deciding.append(outcomes[-1])
            # one that came again may have been lost then
            if attempt == present or name not in there:
                node = replace(node, state=part.state, exit_code=part.exit_code)
        nodes.append(node)
    attempts = _merged_attempts(outcomes) or own.attempts
    # whom a signal ended here needs no other to say so
    cause = own.root_cause
    if own.signum is None:
        causes = (each.root_cause for each in deciding)
        numbers = {each.number for each in attempts[-1:]}
        cause = _first(each for each in causes if each and {each.attempt} >= numbers)
    best = next((each for each in deciding if each.root_cause is cause), own)
    return replace(
        own,
        directory=root,
        state=next((o.state for o in (own, *deciding) if o.state != "succeeded"), own.state),
        exit_code=own.exit_code or next((o.exit_code for o in deciding if o.exit_code), 0),
        attempts=attempts,
        root_cause=cause,
        excerpt=best.excerpt,
        return_values=dict(chain.from_iterable(o.return_values.items() for o in deciding)),
        nodes=tuple(nodes),
    )


def _members(places: Sequence[Place]) -> dict[str, tuple[int, Member]]:
    """Return all nodes that have ever been there, by name, as they were last, in order."""
    found: dict[str, tuple[int, Member]] = {}
    for place in places:
        for rank, member in enumerate(place.roster.members):
            if member is not None:
                found[place.roster.name(rank)] = rank, member
    order = sorted(
        found.items(),
        key=lambda item: (item[1][1].node_rank is None, item[1][1].node_rank or 0, item[0]),
    )
    return dict(order)


def _seen_from_first(outcome: RunResult, node: NodeResult) -> RunResult:
    """Return an outcome with its root causes by the clock of node 0, and where they were."""
    ahead = round((node.clock_offset or 0.0) * 1e9)

    def seen(root: RootCause | None) -> RootCause | None:
        if root is None or node.node_rank == 0 or isinstance(root.cause, _SECOND_HAND):
            return root
        return replace(root, time_ns=max(0, root.time_ns - ahead), node=node.name)

    attempts = tuple(replace(each, root_cause=seen(each.root_cause)) for each in outcome.attempts)
    return replace(outcome, root_cause=seen(outcome.root_cause), attempts=attempts)


_SECOND_HAND = (OnAnotherNode, NodeGone, NodesJoined)


def _first(causes: Iterable[RootCause | None]) -> RootCause | None:
    """Return the first failure across nodes: told first hand, if anybody can."""
    known = [each for each in causes if each is not None]
    own = [each for each in known if not isinstance(each.cause, _SECOND_HAND)]
    return min(own or known, key=lambda each: each.time_ns, default=None)


def _merged_attempts(outcomes: Sequence[RunResult]) -> tuple[AttemptResult, ...]:
    each = sorted(chain.from_iterable(o.attempts for o in outcomes), key=attrgetter("number"))
    found = []
    for _, group in groupby(each, key=attrgetter("number")):
        parts = list(group)
        states = {part.state for part in parts}
        worst: Any = next((s for s in ("failed", "stopped") if s in states), "succeeded")
        workers = chain.from_iterable(part.workers for part in parts)
        found.append(
            replace(
                parts[0],
                state=worst,
                started_ns=min(part.started_ns for part in parts),
                ended_ns=max(part.ended_ns for part in parts),
                workers=tuple(sorted(workers, key=attrgetter("rank"))),
                root_cause=_first(part.root_cause for part in parts),
                leftovers=tuple(chain.from_iterable(part.leftovers for part in parts)),
            )
        )
    return tuple(found)
