"""The life of a worker group, decided without processes."""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
from collections import deque
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.events import (
    Exited,
    OrphansGone,
    PreloadBroken,
    SpawnerGone,
    StartFailed,
)
from lllaunch.spec import RESTART_CAUSES, RestartCause, RestartPolicy
from lllaunch.supervisor import machine as v
from lllaunch.supervisor.machine import (
    SIGTERM,
    TABLE,
    AttemptProgress,
    GroupEnd,
    GroupState,
    ImpossibleEvent,
    Machine,
)
from lllaunch.watchdog.evidence import Blame
from lllaunch.watchdog.findings import (
    Asked,
    Finding,
    FoundElsewhere,
    Stalled,
    TimedOut,
    TimerExpired,
)

EVENTS: list[type] = [
    kind for each in get_args(v.Event) for kind in (each.__subclasses__() or [each])
]
SIGINT, SIGHUP, SIGQUIT = 2, 1, 3
SIGNALS = [SIGTERM, SIGINT, SIGHUP, SIGQUIT]


SPAWNER_GONE = SpawnerGone(7, -9)
TIMER = TimerExpired(rank=1, pid=77, scope="train.py#3", after=10.0, signum=9)
HANG = v.WatchdogFired(TIMER, "hang", asked=v.SignalProcess(1, 77, 9))
REPORTED = v.WatchdogFired(Stalled((0, 1), 60.0), "hang", ends=False)
RUN_OVER = v.WatchdogFired(TimedOut(60.0, "run"), "timeout", whole_run=True)
STACKS = v.StacksTaken((), Blame(), TIMER)
TERMINATE = (v.SignalWorkers(SIGTERM, "hang"), v.StartGrace())


FAILED_ELSEWHERE = GroupEnd("failed", "node 1 (b)", 1, "raised ValueError: x", rank=2)
LOST = GroupEnd("lost", "node 1 (b)", 1, "gave no sign of life for 15 s")
HANGS_ELSEWHERE = GroupEnd("failed", "node 1 (b)", 1, finding=FoundElsewhere("node 1 (b)", "hung"))


def end_of(rank: int, *, ok: bool, fault: v.Fault = "failure") -> Exited:
    """The end of a worker."""
    exitcode = 0 if ok else {"failure": 1, "died": -9, "oom": -9}[fault]
    return Exited(rank, 100 + rank, exitcode, 1, out_of_memory=fault == "oom")


# Events that carry something: every variant that can lead elsewhere.
VARIANTS: dict[type, list[v.Event]] = {
    v.GroupStarted: [
        v.GroupStarted(frozenset({0})),
        v.GroupStarted(frozenset({-1}), preflight=True),
    ],
    Exited: [end_of(0, ok=True), end_of(0, ok=False)],
    StartFailed: [StartFailed(0, "/x", "no", 2, 1)],
    SpawnerGone: [SPAWNER_GONE],
    PreloadBroken: [PreloadBroken("m", "no", "")],
    v.SignalReceived: [v.SignalReceived(2), v.SignalReceived(2, look=Asked(2, 9.0))],
    v.StacksAsked: [v.StacksAsked(Asked(3))],
    AttemptProgress: [AttemptProgress(7.0, checkpoint_changed=False, time_ns=1)],
    v.WatchdogFired: [HANG, REPORTED, RUN_OVER],
    v.StacksTaken: [STACKS, v.StacksTaken((), Blame(), REPORTED.finding)],
    v.NodesAgreed: [
        v.NodesAgreed("failure", FAILED_ELSEWHERE),
        v.NodesAgreed("node", LOST),
        v.NodesAgreed("hang", HANGS_ELSEWHERE),
    ],
    v.NodesCounted: [v.NodesCounted(), v.NodesCounted(LOST), v.NodesCounted(LOST, again=False)],
}


def machines(state: GroupState) -> list[Machine]:
    """Groups in a state, as events lead there: with and without restarts that are left."""
    ways: dict[GroupState, list[list[v.Event]]] = {
        GroupState.INIT: [[]],
        GroupState.RUNNING: [[]],
        GroupState.TAKING_STACKS: [[HANG]],
        GroupState.LOOKING: [[v.SignalReceived(2, look=Asked(2, 9.0))]],
        GroupState.TERMINATING: [[v.WorkersStuck()], [HANG, STACKS]],
        GroupState.INTERRUPTED: [[v.SignalReceived(2)], [HANG, v.SignalReceived(2)]],
        GroupState.KILLING: [
            [v.SignalReceived(2), v.SignalReceived(2)],
            [HANG, STACKS, v.GraceExpired()],
            [v.WorkersStuck(), v.GraceExpired()],
        ],
        GroupState.CLEANING_UP: [
            [end_of(0, ok=True), end_of(1, ok=True)],
            [end_of(0, ok=False), end_of(1, ok=False)],
            [end_of(0, ok=False), end_of(1, ok=False), v.SignalReceived(2)],
        ],
        GroupState.PAUSED: [[end_of(0, ok=False), end_of(1, ok=False), OrphansGone()]],
        GroupState.AGREEING: [[end_of(0, ok=False), end_of(1, ok=False), OrphansGone()]],
        GroupState.BARRIER: [[end_of(0, ok=True), end_of(1, ok=True), OrphansGone()]],
    }
    found = []
    kinds = itertools.product((0, 1), (0.0, 1.0), (True, False), (False, True))
    for restarts, delay, alone, preflight in kinds:
        for events in ways[state]:
            machine = Machine(restarts, 0, RestartPolicy(delay=delay), alone=alone)
            machine.handle(v.Begin())
            if state is not GroupState.INIT:
                machine.handle(v.GroupStarted(frozenset({0, 1}), preflight=preflight))
            for event in events:
                # a preflight leads elsewhere, and what follows there cannot come
                with contextlib.suppress(ImpossibleEvent):
                    machine.handle(event)
            one_left = copy.deepcopy(machine)
            one_left.alive &= {0}
            found += [each for each in (machine, one_left) if each.state is state]
    assert found
    return found


def running(n: int = 2, max_restarts: int = 0) -> Machine:
    machine = Machine(max_restarts)
    assert machine.handle(v.Begin()) == (v.StartWorkers(0, 0),)
    assert machine.handle(v.GroupStarted(frozenset(range(n)))) == ()
    assert machine.worker_state == "HEALTHY"
    return machine


def ended(machine: Machine, *ranks: int, ok: bool = False) -> v.Actions:
    decisions: v.Actions = ()
    for rank in ranks:
        decisions = machine.handle(end_of(rank, ok=ok))
    return decisions


# What cannot come in a state, and why.
OF_STARTS: set[type] = {v.Begin, v.GroupStarted}
OF_WORKERS: set[type] = {Exited, StartFailed, PreloadBroken}
OF_CLEANUPS: set[type] = {OrphansGone, v.OrphansStuck}
IMPOSSIBLE: dict[GroupState, set[type]] = {
    # Nothing has been started that could end or be watched; nothing was asked for.
    GroupState.INIT: OF_WORKERS
    | OF_CLEANUPS
    | {SpawnerGone, v.MembershipChanged, v.BarrierPassed, v.WorkersStuck}
    | {v.WatchdogFired, v.StacksTaken, v.PauseOver, v.NodesAgreed, v.NodesCounted}
    | {AttemptProgress, v.PreflightTimedOut},
    # Nodes are counted when the attempt ends.
    GroupState.RUNNING: OF_STARTS | OF_CLEANUPS | {v.BarrierPassed, v.PauseOver, v.NodesCounted},
    # Workers live: neither a start, nor a cleanup, nor a barrier, nor a wait is under way.
    # A preflight is not looked at.
    GroupState.TAKING_STACKS: OF_STARTS
    | OF_CLEANUPS
    | {v.BarrierPassed, v.PauseOver, v.PreflightTimedOut},
    **dict.fromkeys(
        (GroupState.LOOKING, GroupState.TERMINATING),
        OF_STARTS | OF_CLEANUPS | {v.BarrierPassed, v.PauseOver},
    ),
    **dict.fromkeys(
        (GroupState.INTERRUPTED, GroupState.KILLING),
        OF_STARTS | OF_CLEANUPS | {v.BarrierPassed, v.PauseOver},
    ),
    # All workers have ended.
    GroupState.CLEANING_UP: OF_STARTS | OF_WORKERS | {v.BarrierPassed, v.PauseOver},
    GroupState.AGREEING: OF_STARTS | OF_WORKERS | {v.BarrierPassed, v.PauseOver},
    GroupState.PAUSED: OF_STARTS | OF_WORKERS | {v.BarrierPassed, v.NodesCounted},
    # Nothing is started after a success.
    GroupState.BARRIER: OF_STARTS | OF_WORKERS | {v.PauseOver, v.NodesCounted},
}


def test_the_table_holds_every_pair_of_state_and_event_that_is_possible() -> None:
    listed = {(state, event) for state, event, _ in TABLE}
    for state in set(GroupState) - {GroupState.DONE}:
        missing = {event for event in EVENTS if (state, event) not in listed}
        assert missing == IMPOSSIBLE[state], state
    assert not any(state is GroupState.DONE for state, _ in listed), "then all is late news"


@pytest.mark.slow
def test_every_case_in_the_table_can_come() -> None:
    reached = set()
    for state, kind, case in TABLE:
        for machine in machines(state):
            for event in VARIANTS.get(kind) or [kind()]:
                copied = copy.deepcopy(machine)
                if copied._note(event) == case:
                    reached.add((state, kind, case))
    assert set(TABLE) == reached


def test_no_step_leads_back_from_the_kill_and_only_time_abandons() -> None:
    for (state, event, _), (after, steps) in TABLE.items():
        if state is GroupState.KILLING:
            assert after in {
                *(GroupState.KILLING, GroupState.CLEANING_UP, GroupState.DONE),
                *(GroupState.INIT, GroupState.PAUSED, GroupState.AGREEING),  # the spawner died
            }
        if v.AbandonWorkers in steps:
            assert (state, event) == (GroupState.KILLING, v.GraceExpired)
        if v.KillWorkers in steps:
            assert after in (GroupState.KILLING, GroupState.DONE)


@pytest.mark.parametrize(
    ("state", "event"),
    [(state, event) for state, events in IMPOSSIBLE.items() for event in sorted(events, key=str)],
)
def test_an_impossible_event_raises(state: GroupState, event: type) -> None:
    for machine in machines(state):
        with pytest.raises(ImpossibleEvent, match=event.__name__):
            machine.handle((VARIANTS.get(event) or [event()])[0])


def test_the_death_of_the_spawner_is_retried_once_on_top_of_the_restarts() -> None:
    machine = running(2, max_restarts=1)
    # the first is none of the restarts that are counted
    for taken, restart in ((1, None), (2, 1)):
        (start,) = machine.handle(SPAWNER_GONE)
        assert start == v.StartWorkers(taken, taken, "spawner", restart)
        machine.handle(v.GroupStarted(frozenset({0, 1})))
    assert machine.handle(SPAWNER_GONE) == (v.Finish("FAILED", "spawner"),)


def test_a_broken_preload_is_not_tried_again() -> None:
    machine = running(2, max_restarts=9)
    assert machine.handle(PreloadBroken("m", "no", "")) == (v.Finish("FAILED", "failure"),)


def test_a_change_of_membership_starts_anew_without_counting() -> None:
    machine = running(1, max_restarts=0)
    decisions = machine.handle(v.MembershipChanged())
    assert decisions == (v.SignalWorkers(SIGTERM, "membership"), v.StartGrace())
    assert machine.handle(v.MembershipChanged()) == ()
    ended(machine, 0)
    assert machine.handle(OrphansGone()) == (v.StartWorkers(1, 0, "membership"),)


def test_workers_stuck_in_the_kernel_are_not_replaced() -> None:
    machine = running(1, max_restarts=3)
    assert machine.handle(v.WorkersStuck())[0] == v.SignalWorkers(SIGTERM, "hang")
    ended(machine, 0)
    assert machine.handle(OrphansGone()) == (v.Finish("FAILED", "hang"),)


def test_stacks_are_taken_before_anything_is_signalled() -> None:
    machine = running(2)
    assert machine.handle(HANG) == (v.TakeStacks(frozenset({0, 1}), TIMER),)
    assert machine.worker_state == "HEALTHY"
    assert machine.handle(STACKS) == (v.SignalProcess(1, 77, 9), *TERMINATE)
    assert machine.worker_state == "UNHEALTHY"
    ended(machine, 0, 1)
    assert machine.handle(OrphansGone()) == (v.Finish("FAILED", "hang"),)


def test_a_failure_while_stacks_are_taken_is_the_hangs_and_a_later_one_its_own() -> None:
    machine = running(2, max_restarts=2)
    machine.handle(HANG)
    assert ended(machine, 0) == TERMINATE
    ended(machine, 1)
    assert machine.handle(OrphansGone()) == (v.StartWorkers(1, 1, "hang", 1),)
    machine.handle(v.GroupStarted(frozenset({0, 1})))
    ended(machine, 0, 1)
    assert machine.handle(OrphansGone()) == (v.StartWorkers(2, 2, "failure", 2),)


def test_workers_that_finish_while_stacks_are_taken_have_succeeded() -> None:
    machine = running(2)
    machine.handle(HANG)
    assert ended(machine, 0, 1, ok=True) == (v.CleanUp(),)
    assert machine.handle(STACKS) == ()
    machine.handle(OrphansGone())
    assert machine.handle(v.BarrierPassed()) == (v.Finish("SUCCEEDED"),)


def test_what_is_only_reported_ends_nothing() -> None:
    machine = running(2)
    assert machine.handle(REPORTED) == (v.TakeStacks(frozenset({0, 1}), REPORTED.finding),)
    assert machine.handle(v.StacksTaken((), Blame(), REPORTED.finding)) == ()
    assert machine.worker_state == "HEALTHY"
    assert machine.handle(HANG) == (v.TakeStacks(frozenset({0, 1}), TIMER),)
    assert machine.handle(STACKS)[-2:] == TERMINATE


def test_a_signal_to_a_silent_run_is_passed_on_when_the_stacks_are_taken() -> None:
    machine = running(2, max_restarts=1)
    look = Asked(SIGINT, 9.0)
    taken = v.TakeStacks(frozenset({0, 1}), look)
    assert machine.handle(v.SignalReceived(SIGINT, look=look)) == (taken,)
    forwarded = (v.SignalWorkers(SIGINT, "signal"), v.StartGrace())
    assert machine.handle(v.StacksTaken((), Blame(), look)) == forwarded
    ended(machine, 0, 1)
    end = v.Finish("FAILED", "signal", SIGINT)
    assert machine.handle(OrphansGone()) == (end,)


@pytest.mark.parametrize("first", [HANG, v.SignalReceived(SIGINT, look=Asked(SIGINT, 9.0))])
def test_a_signal_while_stacks_are_taken_does_not_wait_for_them(first: v.Event) -> None:
    machine = running(2, max_restarts=1)
    machine.handle(first)
    decisions = machine.handle(v.SignalReceived(SIGINT))
    assert decisions[0] == v.SignalWorkers(SIGINT, "signal")
    assert (v.KillWorkers("signal") in decisions) is (first is not HANG), "it is the second one"
    assert machine.handle(STACKS) == ()
    ended(machine, 0, 1)
    assert machine.handle(OrphansGone()) == (v.Finish("FAILED", "signal", SIGINT),)


def failing(fact: v.Event, policy: RestartPolicy, max_restarts: int = 5) -> v.Actions:
    """The decisions when one worker ended by ``fact`` and nothing is left of it."""
    machine = Machine(max_restarts, policy=policy)
    machine.handle(v.Begin())
    machine.handle(v.GroupStarted(frozenset({0})))
    machine.handle(fact)
    if isinstance(fact, v.WatchdogFired):
        machine.handle(STACKS)
        ended(machine, 0)
    return machine.handle(OrphansGone())


@pytest.mark.parametrize(
    ("fact", "cause", "reason"),
    [
        (end_of(0, ok=False), "failure", "failure"),
        (end_of(0, ok=False, fault="died"), "signal", "died"),
        (end_of(0, ok=False, fault="oom"), "oom", "oom"),
        (v.WatchdogFired(TIMER, "oom"), "oom", "oom"),
        (v.WatchdogFired(TIMER, "hang"), "hang", "hang"),
        (v.WatchdogFired(TimedOut(1.0), "timeout"), "timeout", "timeout"),
    ],
)
def test_what_is_started_again_is_the_policys_choice(
    fact: v.Event, cause: RestartCause, reason: v.Reason
) -> None:
    chosen = RestartPolicy(on=frozenset({cause}))
    others = RestartPolicy(on=frozenset(RESTART_CAUSES) - {cause})
    assert failing(fact, chosen) == (v.StartWorkers(1, 1, reason, 1),)
    assert failing(fact, others) == (v.Finish("FAILED", reason),)
    assert failing(fact, chosen, max_restarts=0) == (v.Finish("FAILED", reason),)


def pausing(delay: float = 2.0, longest: float = 300.0) -> Machine:
    machine = Machine(5, policy=RestartPolicy(delay=delay, max_delay=longest))
    machine.handle(v.Begin())
    fail(machine)
    return machine


def fail(machine: Machine) -> v.Actions:
    machine.handle(v.GroupStarted(frozenset({0})))
    ended(machine, 0)
    return machine.handle(OrphansGone())


def test_the_wait_before_a_restart_grows_up_to_its_limit() -> None:
    machine = pausing(2.0, longest=7.0)
    waits = [2.0]
    for attempt in (1, 2, 3):
        assert machine.handle(v.PauseOver()) == (
            v.StartWorkers(attempt, attempt, "failure", attempt),
        )
        (pause,) = fail(machine)
        assert isinstance(pause, v.Pause)
        waits.append(pause.seconds)
    assert waits == [2.0, 4.0, 7.0, 7.0]


@pytest.mark.parametrize(
    ("event", "end"),
    [
        (v.SignalReceived(SIGTERM), v.Finish("FAILED", "signal", SIGTERM)),
        (RUN_OVER, v.Finish("FAILED", "timeout")),
    ],
)
def test_a_signal_and_the_end_of_the_runs_time_end_the_wait_before_a_restart(
    event: v.Event, end: v.Finish
) -> None:
    assert pausing().handle(event) == (end,)


@pytest.mark.parametrize(("restarts", "reason"), [(1, "timeout"), (0, "failure")])
def test_the_runs_time_is_the_reason_only_if_it_prevented_a_restart(
    restarts: int, reason: v.Reason
) -> None:
    machine = running(2, max_restarts=restarts)
    ended(machine, 0)
    assert machine.handle(RUN_OVER) == ()
    ended(machine, 1)
    assert machine.handle(OrphansGone()) == (v.Finish("FAILED", reason),)


# The ladder


@given(st.lists(st.sampled_from(["cause", "signal", "grace"]), max_size=12))
def test_whatever_came_before_two_more_grace_periods_end_the_wait(pushes: list[str]) -> None:
    machine = running(3)
    events: dict[str, v.Event] = {
        "cause": v.WorkersStuck(),
        "signal": v.SignalReceived(SIGTERM),
        "grace": v.GraceExpired(),
    }
    taken: list[v.Action] = []
    for push in ["cause", *pushes, "grace", "grace"]:
        taken += machine.handle(events[push])
    assert v.AbandonWorkers(frozenset({0, 1, 2})) in taken
    assert isinstance(taken[-1], v.Finish)


# How the group came to be ended before the two signals, and what the first of them then does.
BEFORE: dict[str, list[v.Event]] = {
    "running": [],
    "after a failure": [end_of(0, ok=False)],
    "for a new membership": [v.MembershipChanged()],
    "stuck in the kernel": [v.WorkersStuck()],
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_every_pair_of_signals(before: str, first: int, second: int) -> None:
    machine = running(max_restarts=3)
    for fact in BEFORE[before]:
        machine.handle(fact)
    begins = () if BEFORE[before] else (v.StartGrace(),)
    told = v.SignalWorkers(first, "signal")
    assert machine.handle(v.SignalReceived(first)) == (told, *begins)
    assert machine.handle(v.SignalReceived(second)) == (v.KillWorkers("signal"), v.StartGrace())
    for rank in sorted(machine.alive):
        machine.handle(end_of(rank, ok=False))
    end = v.Finish("FAILED", "signal", first)
    assert machine.handle(OrphansGone()) == (end,)


def test_a_signal_after_the_kill_is_still_the_runs_end() -> None:
    machine = running(max_restarts=3)
    machine.handle(end_of(0, ok=False))
    assert machine.handle(v.GraceExpired()) == (v.KillWorkers("grace"), v.StartGrace())
    assert machine.handle(v.SignalReceived(SIGTERM)) == (v.KillWorkers("signal"),)
    assert machine.handle(v.GraceExpired()) == (
        v.AbandonWorkers(frozenset({1})),
        v.Finish("FAILED", "signal", SIGTERM),
    )


def test_what_has_succeeded_stays_so_when_a_signal_comes() -> None:
    success = v.Finish("SUCCEEDED")
    machine = running(1)
    assert machine.handle(end_of(0, ok=True)) == (v.CleanUp(),)
    barrier = copy.deepcopy(machine)
    assert machine.handle(v.SignalReceived(SIGTERM)) == (success,)
    assert barrier.handle(OrphansGone()) == (v.WaitForOthers(),)
    assert barrier.handle(v.SignalReceived(SIGTERM)) == (success,)


def test_leftovers_that_do_not_end_forbid_a_restart_but_no_success() -> None:
    machine = running(1, max_restarts=3)
    machine.handle(end_of(0, ok=False))
    assert machine.handle(v.OrphansStuck()) == (v.Finish("FAILED", "failure"),)
    machine = running(1)
    machine.handle(end_of(0, ok=True))
    assert machine.handle(v.OrphansStuck()) == (v.WaitForOthers(),)


class World:
    """Plays the agent: performs decisions in an imagined world and offers what may happen next."""

    def __init__(self, machine: Machine, nprocs: int, *, preflight: bool = False) -> None:
        self.machine = machine
        self.nprocs = nprocs
        self.preflight = preflight
        self.now = 0
        self.alive: set[int] = set()
        self.killed = self.grace = self.sweeping = self.barrier = False
        self.paused = False
        self.stacks: Finding | None = None
        self.starts: list[v.StartWorkers] = []
        self.end: v.Finish | None = None

    def tell(self, fact: v.Event) -> None:
        for decision in self.machine.handle(fact):
            assert self.end is None, f"{decision} after the end"
            self.perform(decision)

    def perform(self, decision: v.Action) -> None:
        if isinstance(decision, (v.StartWorkers, v.StartAfterPreflight)):
            assert not self.alive, "started while something lives"
            self.start(decision)
        elif isinstance(decision, (v.KillWorkers, v.SignalWorkers)):
            assert self.alive
            self.killed = self.killed or isinstance(decision, v.KillWorkers)
        elif isinstance(decision, v.TakeStacks):
            assert self.alive == decision.ranks
            assert v.PREFLIGHT_RANK not in self.alive, "a preflight is not looked at"
            # those that something ends for take the place of others, and never the other way round
            assert self.stacks is not TIMER
            self.stacks = decision.finding
        elif isinstance(decision, v.SignalProcess):
            assert self.stacks is None, "signalled before the stacks were taken"
        elif isinstance(decision, v.Pause):
            self.paused, self.sweeping = True, False
        elif isinstance(decision, v.StartGrace):
            self.grace = True
        elif isinstance(decision, v.CleanUp):
            assert not self.alive
            self.sweeping = True
        elif isinstance(decision, v.WaitForOthers):
            self.sweeping, self.barrier = False, True
        elif isinstance(decision, v.Finish):
            self.end = decision

    def start(self, decision: v.StartWorkers | v.StartAfterPreflight) -> None:
        preflight = self.preflight and isinstance(decision, v.StartWorkers)
        if isinstance(decision, v.StartWorkers):
            assert decision.attempt == len(self.starts)
            self.starts.append(decision)
        self.alive = {v.PREFLIGHT_RANK} if preflight else set(range(self.nprocs))
        self.killed = self.grace = self.sweeping = self.paused = False
        self.stacks = None
        self.tell(v.GroupStarted(frozenset(self.alive), preflight=preflight))

    def possible(self) -> list[v.Event]:
        facts: list[v.Event] = [v.SignalReceived(SIGINT), v.SignalReceived(SIGTERM)]
        if self.alive:
            rank = min(self.alive)
            facts += [end_of(rank, ok=True), end_of(rank, ok=False)]
            facts += [SPAWNER_GONE, v.MembershipChanged(), v.WorkersStuck(), HANG]
            facts += [end_of(rank, ok=False, fault="died"), REPORTED]
            facts += [v.StacksAsked(Asked(3)), v.SignalReceived(SIGINT, look=Asked(SIGINT, 9.0))]
        if self.grace:
            facts.append(v.GraceExpired())
        if v.PREFLIGHT_RANK in self.alive:
            facts.append(v.PreflightTimedOut())
        if self.sweeping:
            self.now += 1
            steps = [None, *map(float, range(3))]
            facts += [OrphansGone(), SPAWNER_GONE]
            facts += [AttemptProgress(step, step == 0, self.now) for step in steps]
        if self.barrier:
            facts.append(v.BarrierPassed())
        if self.stacks is not None:
            facts.append(v.StacksTaken((), Blame(), self.stacks))
        if self.paused:
            facts += [v.PauseOver(), SPAWNER_GONE]
        # The run's time may be over at any moment, last in the list.
        return [*facts, RUN_OVER]

    def happen(self, fact: v.Event) -> None:
        if isinstance(fact, Exited):
            self.alive.discard(fact.local_rank)
        elif isinstance(fact, SpawnerGone):
            self.alive.clear()
        elif isinstance(fact, v.GraceExpired):
            self.grace = False
        elif isinstance(fact, OrphansGone):
            self.sweeping = False
        elif isinstance(fact, v.StacksTaken):
            self.stacks = None
        self.tell(fact)


POLICIES = st.builds(
    RestartPolicy,
    st.frozensets(st.sampled_from(RESTART_CAUSES)),
    st.sampled_from([0.0, 1.0]),
    max_without_progress=st.sampled_from([None, 1, 2]),
)
CHOICES = st.lists(st.integers(0, 50), max_size=60)


@given(st.integers(1, 4), st.integers(0, 3), POLICIES, st.booleans(), CHOICES)
def test_any_course_of_events_ends_and_keeps_the_promises(
    nprocs: int, max_restarts: int, policy: RestartPolicy, preflight: bool, choices: list[int]
) -> None:
    world = World(Machine(max_restarts, policy=policy), nprocs, preflight=preflight)
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
    counts = ("failure", "died", "oom", "hang", "preflight")
    counted = [reason for reason in reasons if reason in counts]
    assert len(counted) <= max_restarts
    if "signal" not in policy.on:
        assert "died" not in reasons
    assert max(start.restart_count for start in world.starts) <= max_restarts + 1
    if world.end.signum is not None:
        assert world.end.state == "FAILED"
    assert (world.end.state == "SUCCEEDED") == (world.end.reason is None)
    assert (world.end.no_progress is not None) == (world.end.reason == "no_progress")


# A group that is one of several: events of other nodes


ELSEWHERE = FoundElsewhere("node 1 (b)", "hung")


def agreed(reason: v.Reason = "failure", *, here: bool = False) -> v.Event:
    return v.NodesAgreed(reason, GroupEnd("failed", "node 1 (b)", 1, here=here))


def of_several(max_restarts: int = 0, policy: RestartPolicy | None = None) -> Machine:
    machine = Machine(max_restarts, policy=policy, alone=False)
    assert machine.handle(v.Begin()) == (v.StartWorkers(0, 0),)
    assert machine.handle(v.GroupStarted(frozenset({0, 1}), 0)) == ()
    return machine


def all_gone(machine: Machine) -> v.Actions:
    for rank in sorted(machine.alive):
        machine.handle(end_of(rank, ok=False))
    return machine.handle(OrphansGone())


def counted(machine: Machine, lost: GroupEnd | None = None, *, again: bool = True) -> v.Actions:
    """All workers end, and it becomes known which nodes are left."""
    assert all_gone(machine) == ()
    return machine.handle(v.NodesCounted(lost, again))


def test_the_others_are_told_of_a_failure_before_anything_is_ended() -> None:
    machine = of_several()
    told, *rest = machine.handle(end_of(0, ok=False))
    assert told == v.TellNodes("failure")
    assert rest == [v.SignalWorkers(SIGTERM, "failure"), v.StartGrace()]
    # once
    assert machine.handle(end_of(1, ok=False)) == (v.CleanUp(),)


def test_nothing_is_decided_before_all_have_agreed() -> None:
    machine = of_several(1)
    machine.handle(end_of(0, ok=False))
    assert all_gone(machine) == ()
    assert machine.state is GroupState.AGREEING
    assert machine.handle(agreed(here=True)) == ()
    assert machine.handle(v.NodesCounted()) == (v.StartWorkers(1, 1, "failure", 1),)


def test_a_worker_that_fails_since_a_node_is_lost_costs_no_restart_if_enough_are_left() -> None:
    machine = of_several()
    machine.handle(end_of(0, ok=False))
    machine.handle(agreed(here=True))
    assert counted(machine, LOST) == (v.StartWorkers(1, 0, "node"),)


def test_a_failure_elsewhere_ends_the_workers_here_and_counts() -> None:
    machine = of_several(1)
    ends = machine.handle(agreed())
    assert ends == (v.SignalWorkers(SIGTERM, "failure"), v.StartGrace())
    assert counted(machine) == (v.StartWorkers(1, 1, "failure", 1),)
    machine.handle(v.GroupStarted(frozenset({0, 1}), 1))
    machine.handle(agreed())
    assert counted(machine) == (v.Finish("FAILED", "failure"),)


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_node_that_is_lost_costs_no_restart_if_enough_are_left(restarts: int) -> None:
    machine = of_several(restarts)
    machine.handle(v.NodesAgreed("node", LOST))
    assert counted(machine) == (v.StartWorkers(1, 0, "node"),)


def test_a_node_that_is_lost_costs_a_restart_if_too_few_are_left() -> None:
    machine = of_several(1)
    machine.handle(v.NodesAgreed("node", LOST))
    assert counted(machine, again=False) == (v.StartWorkers(1, 1, "node", 1),)
    machine.handle(v.GroupStarted(frozenset({0, 1}), 1))
    machine.handle(v.NodesAgreed("node", LOST))
    assert counted(machine, again=False) == (v.Finish("FAILED", "node"),)


def test_who_has_succeeded_starts_again_with_the_others() -> None:
    machine = of_several(1)
    for rank in (0, 1):
        machine.handle(end_of(rank, ok=True))
    assert machine.handle(OrphansGone()) == (v.WaitForOthers(),)
    assert machine.handle(agreed()) == ()
    assert machine.handle(v.NodesCounted()) == (v.StartWorkers(1, 1, "failure", 1),)


def test_a_signal_here_is_told_and_waits_for_nobody() -> None:
    machine = of_several(3)
    assert machine.handle(v.SignalReceived(2))[0] == v.TellNodes("signal", 2)
    assert all_gone(machine) == (v.Finish("FAILED", "signal", 2),)


def test_a_finding_is_told_first_and_stacks_of_all_are_waited_for() -> None:
    machine = of_several()
    told, take = machine.handle(HANG)
    assert told == v.TellNodes("hang", finding=TIMER)
    assert take == v.TakeStacks(frozenset({0, 1}), TIMER)
    hangs = GroupEnd("failed", "node 0 (a)", 0, here=True, finding=ELSEWHERE)
    assert machine.handle(v.NodesAgreed("hang", hangs)) == ()
    assert machine.handle(v.StacksTaken((), Blame(), TIMER)) == (v.TellStacks((), TIMER),)
    asked, *terminate = machine.handle(v.GroupStacks(Blame((5,), ())))
    assert asked == HANG.asked
    assert terminate == [v.SignalWorkers(SIGTERM, "hang"), v.StartGrace()]


def test_a_finding_elsewhere_takes_stacks_here_before_anything_is_ended() -> None:
    machine = of_several()
    hangs = GroupEnd("failed", "node 1 (b)", 1, finding=ELSEWHERE)
    assert machine.handle(v.NodesAgreed("hang", hangs)) == (
        v.TakeStacks(frozenset({0, 1}), ELSEWHERE),
    )
    assert machine.handle(v.StacksTaken((), Blame(), ELSEWHERE)) == (v.TellStacks((), ELSEWHERE),)
    assert machine.handle(v.GroupStacks())[0] == v.SignalWorkers(SIGTERM, "hang")
    assert counted(machine) == (v.Finish("FAILED", "hang"),)


def test_where_the_time_of_the_run_is_over_on_one_node_nothing_is_started_again_on_any() -> None:
    over = v.WatchdogFired(TimedOut(60.0, "run"), "timeout", whole_run=True)
    machine = of_several(3)
    assert machine.handle(over)[0] == v.TellNodes("timeout", finding=over.finding, final=True)
    other = of_several(3)
    hangs = GroupEnd("failed", "node 1 (b)", 1, finding=ELSEWHERE)
    other.handle(v.NodesAgreed("timeout", hangs, final=True))
    other.handle(v.StacksTaken((), Blame(), ELSEWHERE))
    other.handle(v.GroupStacks())
    assert counted(other) == (v.Finish("FAILED", "timeout"),)


class Group:
    """Nodes whose machines hear each other through one list, in an order that chance decides."""

    def __init__(self, seed: int, nodes: int, restarts: int, policy: RestartPolicy) -> None:
        self.random = random.Random(seed)
        self.machines = [Machine(restarts, policy=policy, alone=False) for _ in range(nodes)]
        self.pending: list[deque[v.Event]] = [deque([v.Begin()]) for _ in range(nodes)]
        self.attempts: list[list[v.StartWorkers]] = [[] for _ in range(nodes)]
        self.ends: dict[int, v.Finish] = {}
        self.joined: set[int] = set()
        self.arrived: set[int] = set()
        self.word: v.Reason | None = None
        self.round = 0

    def play(self) -> None:
        """Go on until all have finished."""
        for _ in range(10_000):
            if len(self.ends) == len(self.machines):
                return
            ready = [n for n, events in enumerate(self.pending) if events and n not in self.ends]
            assert ready, "they wait for each other for ever"
            node = self.random.choice(ready)
            for action in self.machines[node].handle(self.pending[node].popleft()):
                self.perform(node, action)
        raise AssertionError("they never come to an end")

    def perform(self, node: int, action: v.Action) -> None:
        pending = self.pending[node]
        if isinstance(action, v.StartWorkers):
            self.attempts[node].append(action)
            self.joined.add(node)
            if len(self.joined) == len(self.machines):
                self.begin()
        elif isinstance(action, v.TellNodes):
            self.tell(action.reason)
        elif isinstance(action, v.WaitForOthers):
            self.arrived.add(node)
            if len(self.arrived) == len(self.machines) and self.word is None:
                for events in self.pending:
                    events.append(v.BarrierPassed())
        elif isinstance(action, v.Finish):
            self.ends[node] = action
        elif isinstance(action, v.CleanUp):
            # All workers end by themselves, sooner or later.
            pending.extend([self.progress(), OrphansGone()])

    def begin(self) -> None:
        """All have come: workers run, and some of them will fail."""
        self.joined.clear()
        self.arrived.clear()
        self.word = None
        for events in self.pending:
            events.clear()
            codes = [self.random.choice([0, 0, 0, 1]) for _ in range(2)]
            restarts = max(a[-1].restart_count for a in self.attempts)
            events.append(v.GroupStarted(frozenset({0, 1}), restarts))
            events.extend(end_of(rank, ok=not code) for rank, code in enumerate(codes))

    def tell(self, reason: v.Reason) -> None:
        if self.word is None:
            self.word = reason
            self.round += 1
            progress = self.progress()
            for events in self.pending:
                # nothing is heard before the attempt has begun
                first = bool(events) and isinstance(events[0], v.GroupStarted)
                place = self.random.randint(int(first), len(events))
                events.insert(place, agreed(reason))
                counted = v.NodesCounted(progress=progress)
                events.insert(self.random.randint(place + 1, len(events)), counted)

    def progress(self) -> AttemptProgress:
        """What one node has seen: none sees the same as another."""
        step = self.random.choice([None, 1.0, 2.0, 3.0])
        return AttemptProgress(step, self.random.random() < 0.2, self.round)


POLICIES_OF_NODES = st.builds(
    RestartPolicy,
    window=st.sampled_from([None, 2e-9]),
    reset_on=st.sampled_from([None, "progress"]),
    # where a window or progress gives restarts back it would go on for long
    max_without_progress=st.sampled_from([1, 2, 3]),
)


@given(
    st.integers(0, 10**6),
    st.integers(2, 5),
    st.integers(0, 3),
    st.just(RestartPolicy()) | POLICIES_OF_NODES,
)
def test_nodes_always_end_alike(
    seed: int, nodes: int, restarts: int, policy: RestartPolicy
) -> None:
    group = Group(seed, nodes, restarts, policy)
    group.play()
    ends = {(end.state, end.reason, end.no_progress) for end in group.ends.values()}
    assert len(ends) == 1
    assert len({tuple(a.restart_count for a in each) for each in group.attempts}) == 1
