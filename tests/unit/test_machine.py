"""The life of a worker group, decided without processes."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.agent import machine as machine_module
from lllaunch.agent import vocabulary as v
from lllaunch.agent.machine import IMPOSSIBLE, SIGTERM, TRANSITIONS, ImpossibleFact, Machine
from lllaunch.agent.states import WorkerState

FACTS: list[type] = list(v.Fact.__args__)  # type: ignore[attr-defined]
TERMINAL = {WorkerState.FAILED, WorkerState.UNKNOWN}
SIGINT, SIGHUP = 2, 1


def running(n: int = 2, max_restarts: int = 0) -> Machine:
    machine = Machine(max_restarts)
    assert machine.handle(v.Begin()) == (v.StartWorkers(0, 0),)
    assert machine.handle(v.GroupStarted(frozenset(range(n)))) == ()
    assert machine.state is WorkerState.HEALTHY
    return machine


def ended(machine: Machine, *ranks: int, ok: bool = False) -> v.Decisions:
    decisions: v.Decisions = ()
    for rank in ranks:
        decisions = machine.handle(v.WorkerEnded(rank, ok))
    return decisions


def test_every_pair_of_state_and_fact_is_listed_or_impossible() -> None:
    for state in WorkerState:
        listed, impossible = set(TRANSITIONS[state]), set(IMPOSSIBLE[state])
        assert not listed & impossible
        if state not in TERMINAL:
            assert listed | impossible == set(FACTS), state


@pytest.mark.parametrize(
    ("state", "fact"),
    [(state, fact) for state, facts in IMPOSSIBLE.items() for fact in sorted(facts, key=str)],
)
def test_an_impossible_fact_raises(state: WorkerState, fact: type) -> None:
    machine = Machine(0)
    machine.state = state
    arguments = {v.GroupStarted: (frozenset({0}),), v.WorkerEnded: (0, True)}.get(fact, ())
    with pytest.raises(ImpossibleFact, match=fact.__name__):
        machine.handle(fact(*arguments))


@pytest.mark.parametrize("name", ["machine", "vocabulary", "states"])
def test_the_decisions_know_neither_processes_nor_time(name: str) -> None:
    path = Path(machine_module.__file__).with_name(f"{name}.py")
    tree = ast.parse(path.read_text())
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    allowed = {"__future__", "collections.abc", "dataclasses", "enum", "typing"}
    assert {module for module in imported if not module.startswith("lllaunch.agent.")} <= allowed


def test_success_is_swept_and_waits_for_the_other_nodes() -> None:
    machine = running()
    assert ended(machine, 0, ok=True) == ()
    assert ended(machine, 1, ok=True) == (v.SweepLeftovers(),)
    assert machine.handle(v.LeftoversGone()) == (v.WaitForOthers(),)
    assert machine.handle(v.BarrierPassed()) == (v.Finish(WorkerState.SUCCEEDED),)


def test_the_first_failure_ends_the_others_politely() -> None:
    machine = running()
    assert ended(machine, 1) == (v.SignalWorkers(SIGTERM, "failure"), v.StartGrace())
    assert machine.state is WorkerState.UNHEALTHY
    assert ended(machine, 0) == (v.SweepLeftovers(),)
    assert machine.handle(v.LeftoversGone()) == (v.Finish(WorkerState.FAILED, "failure"),)


def test_a_failed_group_is_started_again_as_often_as_allowed() -> None:
    machine = running(1, max_restarts=2)
    for restart in (1, 2):
        ended(machine, 0)
        start = v.StartWorkers(attempt=restart, restart_count=restart, reason="failure")
        assert machine.handle(v.LeftoversGone()) == (start,)
        machine.handle(v.GroupStarted(frozenset({0})))
    ended(machine, 0)
    assert machine.handle(v.LeftoversGone()) == (v.Finish(WorkerState.FAILED, "failure"),)


def test_what_outlives_the_grace_period_is_killed_and_then_abandoned() -> None:
    machine = running(2, max_restarts=5)
    ended(machine, 1)
    assert machine.handle(v.GraceExpired()) == (v.KillWorkers("grace"), v.StartGrace())
    assert machine.handle(v.GraceExpired()) == (
        v.AbandonWorkers(frozenset({0})),
        v.Finish(WorkerState.FAILED, "failure"),
    )


def test_a_signal_is_forwarded_and_nothing_is_started_again() -> None:
    machine = running(1, max_restarts=3)
    decisions = machine.handle(v.SignalReceived(SIGHUP))
    assert decisions == (v.SignalWorkers(SIGHUP, "signal"), v.StartGrace())
    ended(machine, 0)
    end = v.Finish(WorkerState.FAILED, "signal", SIGHUP)
    assert machine.handle(v.LeftoversGone()) == (end,)


def test_a_signal_that_slurm_delivers_itself_is_not_forwarded() -> None:
    machine = running(1)
    assert machine.handle(v.SignalReceived(SIGTERM, forward=False)) == (v.StartGrace(),)


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.product((SIGINT, SIGTERM, SIGHUP), repeat=2))
)
def test_the_second_signal_kills_now_whatever_the_pair(first: int, second: int) -> None:
    machine = running(2)
    machine.handle(v.SignalReceived(first))
    decisions = machine.handle(v.SignalReceived(second))
    assert decisions == (v.KillWorkers("signal"), v.StartGrace())
    assert machine.handle(v.SignalReceived(second)) == (v.KillWorkers("signal"),)
    ended(machine, 0, 1)
    (end,) = machine.handle(v.LeftoversGone())
    assert end == v.Finish(WorkerState.FAILED, "signal", first)


def test_a_signal_while_a_failure_is_handled_counts_as_the_first() -> None:
    machine = running(2, max_restarts=3)
    ended(machine, 0)
    assert machine.handle(v.SignalReceived(SIGINT)) == (v.SignalWorkers(SIGINT, "signal"),)
    assert v.KillWorkers("signal") in machine.handle(v.SignalReceived(SIGINT))
    ended(machine, 1)
    assert machine.handle(v.LeftoversGone()) == (v.Finish(WorkerState.FAILED, "signal", SIGINT),)


def test_a_signal_while_leftovers_are_swept_cancels_the_restart() -> None:
    machine = running(1, max_restarts=3)
    ended(machine, 0)
    assert machine.handle(v.SignalReceived(SIGINT)) == ()
    assert machine.handle(v.LeftoversGone()) == (v.Finish(WorkerState.FAILED, "signal", SIGINT),)


def test_a_signal_at_the_exit_barrier_ends_the_wait() -> None:
    machine = running(1)
    ended(machine, 0, ok=True)
    machine.handle(v.LeftoversGone())
    end = v.Finish(WorkerState.FAILED, "signal", SIGTERM)
    assert machine.handle(v.SignalReceived(SIGTERM)) == (end,)


def test_the_death_of_the_spawner_is_retried_once_on_top_of_the_restarts() -> None:
    machine = running(2, max_restarts=1)
    assert machine.handle(v.SpawnerLost()) == (v.StartWorkers(1, 1, "spawner"),)
    machine.handle(v.GroupStarted(frozenset({0, 1})))
    assert machine.handle(v.SpawnerLost()) == (v.StartWorkers(2, 2, "spawner"),)
    machine.handle(v.GroupStarted(frozenset({0, 1})))
    assert machine.handle(v.SpawnerLost()) == (v.Finish(WorkerState.FAILED, "spawner"),)


def test_a_broken_preload_is_not_tried_again() -> None:
    machine = running(2, max_restarts=9)
    assert machine.handle(v.PreloadLost()) == (v.Finish(WorkerState.FAILED, "failure"),)


def test_a_change_of_membership_starts_anew_without_counting() -> None:
    machine = running(1, max_restarts=0)
    decisions = machine.handle(v.MembershipChanged())
    assert decisions == (v.SignalWorkers(SIGTERM, "membership"), v.StartGrace())
    assert machine.handle(v.MembershipChanged()) == ()
    ended(machine, 0)
    assert machine.handle(v.LeftoversGone()) == (v.StartWorkers(1, 0, "membership"),)


def test_workers_stuck_in_the_kernel_are_not_replaced() -> None:
    machine = running(1, max_restarts=3)
    assert machine.handle(v.WorkersStuck())[0] == v.SignalWorkers(SIGTERM, "failure")
    ended(machine, 0)
    assert machine.handle(v.LeftoversGone()) == (v.Finish(WorkerState.FAILED, "failure"),)


def test_losing_track_kills_and_ends_unknown() -> None:
    machine = running(1, max_restarts=3)
    assert machine.handle(v.MonitorLost()) == (
        v.KillWorkers("lost"),
        v.Finish(WorkerState.UNKNOWN, "failure"),
    )
    assert machine.handle(v.WorkerEnded(0, ok=True)) == (), "late news"


class World:
    """Plays the agent: performs decisions in an imagined world and offers what may happen next."""

    def __init__(self, machine: Machine, nprocs: int) -> None:
        self.machine = machine
        self.nprocs = nprocs
        self.alive: set[int] = set()
        self.killed = self.grace = self.sweeping = self.barrier = False
        self.starts: list[v.StartWorkers] = []
        self.end: v.Finish | None = None

    def tell(self, fact: v.Fact) -> None:
        for decision in self.machine.handle(fact):
            assert self.end is None, f"{decision} after the end"
            self.perform(decision)

    def perform(self, decision: v.Decision) -> None:
        if isinstance(decision, v.StartWorkers):
            assert not self.alive, "started while something lives"
            assert decision.attempt == len(self.starts)
            self.starts.append(decision)
            self.alive = set(range(self.nprocs))
            self.killed = self.grace = self.sweeping = False
            self.tell(v.GroupStarted(frozenset(self.alive)))
        elif isinstance(decision, (v.KillWorkers, v.SignalWorkers)):
            assert self.alive
            self.killed = self.killed or isinstance(decision, v.KillWorkers)
        elif isinstance(decision, v.StartGrace):
            self.grace = True
        elif isinstance(decision, v.SweepLeftovers):
            assert not self.alive
            self.sweeping = True
        elif isinstance(decision, v.WaitForOthers):
            self.sweeping, self.barrier = False, True
        elif isinstance(decision, v.Finish):
            self.end = decision

    def possible(self) -> list[v.Fact]:
        facts: list[v.Fact] = [v.SignalReceived(SIGINT), v.SignalReceived(SIGTERM, forward=False)]
        if self.alive:
            rank = min(self.alive)
            facts += [v.WorkerEnded(rank, ok=True), v.WorkerEnded(rank, ok=False)]
            facts += [v.SpawnerLost(), v.MembershipChanged(), v.WorkersStuck()]
        if self.grace:
            facts.append(v.GraceExpired())
        if self.sweeping:
            facts += [v.LeftoversGone(), v.SpawnerLost()]
        if self.barrier:
            facts.append(v.BarrierPassed())
        return facts

    def happen(self, fact: v.Fact) -> None:
        if isinstance(fact, v.WorkerEnded):
            self.alive.discard(fact.rank)
        elif isinstance(fact, v.SpawnerLost):
            self.alive.clear()
        elif isinstance(fact, v.GraceExpired):
            self.grace = False
        elif isinstance(fact, v.LeftoversGone):
            self.sweeping = False
        self.tell(fact)


@given(st.integers(1, 4), st.integers(0, 3), st.lists(st.integers(0, 50), max_size=60))
def test_any_course_of_events_ends_and_keeps_the_promises(
    nprocs: int, max_restarts: int, choices: list[int]
) -> None:
    world = World(Machine(max_restarts), nprocs)
    world.tell(v.Begin())
    for choice in choices:
        if world.end is not None:
            break
        possible = world.possible()
        world.happen(possible[choice % len(possible)])
    # From wherever that led, plain ends of workers and sweeps lead to the end of the run.
    for _ in range(100):
        if world.end is not None:
            break
        facts = [fact for fact in world.possible() if not isinstance(fact, v.SignalReceived)]
        world.happen(next(f for f in facts if not isinstance(f, v.MembershipChanged)))
    assert world.end is not None
    counted = [start for start in world.starts if start.reason == "failure"]
    assert len(counted) <= max_restarts
    assert max(start.restart_count for start in world.starts) <= max_restarts + 1
    if world.end.signum is not None:
        assert world.end.state is WorkerState.FAILED
    assert (world.end.state is WorkerState.SUCCEEDED) == (world.end.reason is None)
