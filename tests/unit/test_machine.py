"""The life of a worker group, decided without processes."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.agent import machine as machine_module
from lllaunch.agent import machine as v
from lllaunch.agent.machine import (
    IMPOSSIBLE,
    SIGTERM,
    TRANSITIONS,
    ImpossibleFact,
    Machine,
    WorkerState,
)
from lllaunch.policies import RESTART_CAUSES, RestartCause, RestartPolicy
from lllaunch.watchdog.findings import Asked, Finding, Stalled, TimedOut, TimerExpired
from lllaunch.watchdog.stacks.frames import Blame

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
    arguments: dict[type, tuple[object, ...]] = {
        v.GroupStarted: (frozenset({0}),),
        v.WorkerEnded: (0, True),
        v.WatchdogFired: (TimedOut(1.0), "timeout"),
        v.StacksTaken: ((), Blame(), TimedOut(1.0)),
        v.StacksAsked: (Asked(3),),
    }
    with pytest.raises(ImpossibleFact, match=fact.__name__):
        machine.handle(fact(*arguments.get(fact, ())))


def test_the_decisions_know_neither_processes_nor_time() -> None:
    tree = ast.parse(Path(machine_module.__file__).read_text())
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    allowed = {"__future__", "collections.abc", "dataclasses", "enum", "typing"}
    pure = ("lllaunch.policies", "lllaunch.watchdog.")
    assert {module for module in imported if not module.startswith(pure)} <= allowed


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


def test_a_retry_for_the_spawner_is_none_of_the_restarts_that_are_counted() -> None:
    machine = running(1, max_restarts=2)
    taken = []
    for _ in range(3):
        (start,) = machine.handle(v.SpawnerLost())
        assert isinstance(start, v.StartWorkers)
        taken.append((start.restart_count, start.restart))
        machine.handle(v.GroupStarted(frozenset({0})))
    assert taken == [(1, None), (2, 1), (3, 2)]


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
    assert machine.handle(v.WorkersStuck())[0] == v.SignalWorkers(SIGTERM, "hang")
    ended(machine, 0)
    assert machine.handle(v.LeftoversGone()) == (v.Finish(WorkerState.FAILED, "hang"),)


def test_losing_track_kills_and_ends_unknown() -> None:
    machine = running(1, max_restarts=3)
    assert machine.handle(v.MonitorLost()) == (
        v.KillWorkers("lost"),
        v.Finish(WorkerState.UNKNOWN, "failure"),
    )
    assert machine.handle(v.WorkerEnded(0, ok=True)) == (), "late news"


TIMER = TimerExpired(rank=1, pid=77, scope="train.py#3", after=10.0, signum=9)
HANG = v.WatchdogFired(TIMER, "hang", asked=v.SignalProcess(1, 77, 9))
REPORTED = v.WatchdogFired(Stalled((0, 1), 60.0), "hang", ends=False)
RUN_OVER = v.WatchdogFired(TimedOut(60.0, "run"), "timeout", whole_run=True)
STACKS = v.StacksTaken((), Blame(), TIMER)
TERMINATE = (v.SignalWorkers(SIGTERM, "hang"), v.StartGrace())


def test_stacks_are_taken_before_anything_is_signalled() -> None:
    machine = running(2)
    assert machine.handle(HANG) == (v.TakeStacks(frozenset({0, 1}), TIMER),)
    assert machine.state is WorkerState.HEALTHY
    assert machine.handle(STACKS) == (v.SignalProcess(1, 77, 9), *TERMINATE)
    assert machine.state is WorkerState.UNHEALTHY
    ended(machine, 0, 1)
    assert machine.handle(v.LeftoversGone()) == (v.Finish(WorkerState.FAILED, "hang"),)


def test_a_second_finding_waits_for_the_stacks_of_the_first() -> None:
    machine = running(2)
    machine.handle(HANG)
    assert machine.handle(v.WatchdogFired(TimedOut(1.0), "timeout")) == ()
    assert machine.handle(STACKS)[-2:] == TERMINATE


def test_a_worker_that_fails_while_stacks_are_taken_is_no_other_reason() -> None:
    machine = running(2, max_restarts=1)
    machine.handle(HANG)
    assert ended(machine, 0) == TERMINATE
    assert machine.handle(STACKS) == ()
    ended(machine, 1)
    assert machine.handle(v.LeftoversGone()) == (v.StartWorkers(1, 1, "hang"),)


def test_workers_that_finish_while_stacks_are_taken_have_succeeded() -> None:
    machine = running(2)
    machine.handle(HANG)
    assert ended(machine, 0, 1, ok=True) == (v.SweepLeftovers(),)
    assert machine.handle(STACKS) == ()
    machine.handle(v.LeftoversGone())
    assert machine.handle(v.BarrierPassed()) == (v.Finish(WorkerState.SUCCEEDED),)


def test_what_is_only_reported_ends_nothing() -> None:
    machine = running(2)
    assert machine.handle(REPORTED) == (v.TakeStacks(frozenset({0, 1}), REPORTED.finding),)
    assert machine.handle(v.StacksTaken((), Blame(), REPORTED.finding)) == ()
    assert machine.state is WorkerState.HEALTHY
    assert machine.handle(HANG) == (v.TakeStacks(frozenset({0, 1}), TIMER),)
    assert machine.handle(STACKS)[-2:] == TERMINATE


def test_who_asks_where_the_workers_stand_sees_it_and_nothing_ends() -> None:
    machine = running(2)
    asked = Asked(3)
    assert machine.handle(v.StacksAsked(asked)) == (v.TakeStacks(frozenset({0, 1}), asked),)
    assert machine.handle(v.StacksTaken((), Blame(), asked)) == ()
    assert machine.state is WorkerState.HEALTHY
    ended(machine, 0)
    assert machine.handle(v.StacksAsked(asked)) == (v.TakeStacks(frozenset({1}), asked),)


def test_a_signal_to_a_silent_run_is_passed_on_when_the_stacks_are_taken() -> None:
    machine = running(2, max_restarts=1)
    look = Asked(SIGINT, 9.0)
    taken = v.TakeStacks(frozenset({0, 1}), look)
    assert machine.handle(v.SignalReceived(SIGINT, look=look)) == (taken,)
    forwarded = (v.SignalWorkers(SIGINT, "signal"), v.StartGrace())
    assert machine.handle(v.StacksTaken((), Blame(), look)) == forwarded
    ended(machine, 0, 1)
    end = v.Finish(WorkerState.FAILED, "signal", SIGINT)
    assert machine.handle(v.LeftoversGone()) == (end,)


def test_nobody_waits_for_stacks_who_sends_a_second_signal() -> None:
    machine = running(2)
    look = Asked(SIGINT, 9.0)
    machine.handle(v.SignalReceived(SIGINT, look=look))
    decisions = machine.handle(v.SignalReceived(SIGINT))
    assert decisions[0] == v.SignalWorkers(SIGINT, "signal")
    assert v.KillWorkers("signal") in decisions
    assert machine.handle(v.StacksTaken((), Blame(), look)) == ()


def test_a_signal_does_not_wait_for_the_stacks() -> None:
    machine = running(2, max_restarts=1)
    machine.handle(HANG)
    assert machine.handle(v.SignalReceived(SIGINT))[0] == v.SignalWorkers(SIGINT, "signal")
    assert machine.handle(STACKS) == ()
    ended(machine, 0, 1)
    assert machine.handle(v.LeftoversGone())[0].signum == SIGINT  # type: ignore[union-attr]


def test_the_death_of_the_spawner_after_a_finding_is_no_free_retry() -> None:
    machine = running(2)
    machine.handle(HANG)
    assert machine.handle(v.SpawnerLost()) == (v.Finish(WorkerState.FAILED, "hang"),)


def failing(fact: v.Fact, policy: RestartPolicy, max_restarts: int = 5) -> v.Decisions:
    """The decisions when one worker ended by ``fact`` and nothing is left of it."""
    machine = Machine(max_restarts, policy=policy)
    machine.handle(v.Begin())
    machine.handle(v.GroupStarted(frozenset({0})))
    machine.handle(fact)
    if isinstance(fact, v.WatchdogFired):
        machine.handle(STACKS)
        ended(machine, 0)
    return machine.handle(v.LeftoversGone())


@pytest.mark.parametrize(
    ("fact", "cause", "reason"),
    [
        (v.WorkerEnded(0, ok=False), "failure", "failure"),
        (v.WorkerEnded(0, ok=False, fault="died"), "signal", "died"),
        (v.WorkerEnded(0, ok=False, fault="oom"), "oom", "oom"),
        (v.WatchdogFired(TIMER, "oom"), "oom", "oom"),
        (v.WatchdogFired(TIMER, "hang"), "hang", "hang"),
        (v.WatchdogFired(TimedOut(1.0), "timeout"), "timeout", "timeout"),
    ],
)
def test_what_is_started_again_is_the_policys_choice(
    fact: v.Fact, cause: RestartCause, reason: v.Reason
) -> None:
    chosen = RestartPolicy(on=frozenset({cause}))
    others = RestartPolicy(on=frozenset(RESTART_CAUSES) - {cause})
    assert failing(fact, chosen) == (v.StartWorkers(1, 1, reason),)
    assert failing(fact, others) == (v.Finish(WorkerState.FAILED, reason),)
    assert failing(fact, chosen, max_restarts=0) == (v.Finish(WorkerState.FAILED, reason),)


def pausing(delay: float = 2.0, longest: float = 300.0) -> Machine:
    machine = Machine(5, policy=RestartPolicy(delay=delay, max_delay=longest))
    machine.handle(v.Begin())
    fail(machine)
    return machine


def fail(machine: Machine) -> v.Decisions:
    machine.handle(v.GroupStarted(frozenset({0})))
    ended(machine, 0)
    return machine.handle(v.LeftoversGone())


def test_the_wait_before_a_restart_grows_up_to_its_limit() -> None:
    machine = pausing(2.0, longest=7.0)
    waits = [2.0]
    for attempt in (1, 2, 3):
        assert machine.handle(v.PauseOver()) == (v.StartWorkers(attempt, attempt, "failure"),)
        (pause,) = fail(machine)
        assert isinstance(pause, v.Pause)
        waits.append(pause.seconds)
    assert waits == [2.0, 4.0, 7.0, 7.0]


def test_a_signal_ends_the_wait_before_a_restart() -> None:
    machine = pausing()
    assert machine.handle(v.SignalReceived(SIGTERM)) == (
        v.Finish(WorkerState.FAILED, "signal", SIGTERM),
    )


def test_the_spawner_may_die_while_a_restart_is_waited_for() -> None:
    machine = pausing()
    assert machine.handle(v.SpawnerLost()) == ()
    assert machine.handle(v.PauseOver()) == (v.StartWorkers(1, 1, "failure"),)


def test_the_end_of_the_runs_time_cancels_the_restart_that_is_waited_for() -> None:
    machine = pausing()
    assert machine.handle(RUN_OVER) == (v.Finish(WorkerState.FAILED, "timeout"),)


def test_after_the_runs_time_nothing_is_started_again() -> None:
    machine = running(1, max_restarts=5)
    machine.handle(RUN_OVER)
    taken = v.StacksTaken((), Blame(), RUN_OVER.finding)
    assert machine.handle(taken) == (v.SignalWorkers(SIGTERM, "timeout"), v.StartGrace())
    ended(machine, 0)
    assert machine.handle(v.LeftoversGone()) == (v.Finish(WorkerState.FAILED, "timeout"),)


@pytest.mark.parametrize(("restarts", "reason"), [(1, "timeout"), (0, "failure")])
def test_the_runs_time_is_the_reason_only_if_it_prevented_a_restart(
    restarts: int, reason: v.Reason
) -> None:
    machine = running(2, max_restarts=restarts)
    ended(machine, 0)
    assert machine.handle(RUN_OVER) == ()
    ended(machine, 1)
    assert machine.handle(v.LeftoversGone()) == (v.Finish(WorkerState.FAILED, reason),)


class World:
    """Plays the agent: performs decisions in an imagined world and offers what may happen next."""

    def __init__(self, machine: Machine, nprocs: int) -> None:
        self.machine = machine
        self.nprocs = nprocs
        self.alive: set[int] = set()
        self.killed = self.grace = self.sweeping = self.barrier = False
        self.paused = False
        self.stacks: Finding | None = None
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
            self.killed = self.grace = self.sweeping = self.paused = False
            self.stacks = None
            self.tell(v.GroupStarted(frozenset(self.alive)))
        elif isinstance(decision, (v.KillWorkers, v.SignalWorkers)):
            assert self.alive
            self.killed = self.killed or isinstance(decision, v.KillWorkers)
        elif isinstance(decision, v.TakeStacks):
            assert self.alive == decision.ranks
            # those that something ends for take the place of others, and never the other way round
            assert self.stacks is not TIMER
            self.stacks = decision.finding
        elif isinstance(decision, v.SignalProcess):
            assert self.stacks is None, "signalled before the stacks were taken"
        elif isinstance(decision, v.Pause):
            self.paused, self.sweeping = True, False
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
            facts += [v.SpawnerLost(), v.MembershipChanged(), v.WorkersStuck(), HANG]
            facts += [v.WorkerEnded(rank, ok=False, fault="died"), REPORTED]
            facts += [v.StacksAsked(Asked(3)), v.SignalReceived(SIGINT, look=Asked(SIGINT, 9.0))]
        if self.grace:
            facts.append(v.GraceExpired())
        if self.sweeping:
            facts += [v.LeftoversGone(), v.SpawnerLost()]
        if self.barrier:
            facts.append(v.BarrierPassed())
        if self.stacks is not None:
            facts.append(v.StacksTaken((), Blame(), self.stacks))
        if self.paused:
            facts += [v.PauseOver(), v.SpawnerLost()]
        # The run's time may be over at any moment, last in the list.
        return [*facts, RUN_OVER]

    def happen(self, fact: v.Fact) -> None:
        if isinstance(fact, v.WorkerEnded):
            self.alive.discard(fact.rank)
        elif isinstance(fact, v.SpawnerLost):
            self.alive.clear()
        elif isinstance(fact, v.GraceExpired):
            self.grace = False
        elif isinstance(fact, v.LeftoversGone):
            self.sweeping = False
        elif isinstance(fact, v.StacksTaken):
            self.stacks = None
        self.tell(fact)


POLICIES = st.builds(
    RestartPolicy, st.frozensets(st.sampled_from(RESTART_CAUSES)), st.sampled_from([0.0, 1.0])
)


@given(st.integers(1, 4), st.integers(0, 3), POLICIES, st.lists(st.integers(0, 50), max_size=60))
def test_any_course_of_events_ends_and_keeps_the_promises(
    nprocs: int, max_restarts: int, policy: RestartPolicy, choices: list[int]
) -> None:
    world = World(Machine(max_restarts, policy=policy), nprocs)
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
    reasons = [start.reason for start in world.starts]
    counted = [reason for reason in reasons if reason in ("failure", "died", "oom", "hang")]
    assert len(counted) <= max_restarts
    if "signal" not in policy.on:
        assert "died" not in reasons
    assert max(start.restart_count for start in world.starts) <= max_restarts + 1
    if world.end.signum is not None:
        assert world.end.state is WorkerState.FAILED
    assert (world.end.state is WorkerState.SUCCEEDED) == (world.end.reason is None)
