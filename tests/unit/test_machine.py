"""The life of a worker group, decided without processes."""

from __future__ import annotations

import ast
import contextlib
import copy
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.events import (
    AttemptProgress,
    Exited,
    GroupEnd,
    OrphansGone,
    PreloadBroken,
    SpawnerGone,
    StartFailed,
)
from lllaunch.spec import RESTART_CAUSES, RestartCause, RestartPolicy
from lllaunch.supervisor import machine as machine_module
from lllaunch.supervisor import machine as v
from lllaunch.supervisor.machine import (
    SIGTERM,
    TABLE,
    GroupState,
    ImpossibleEvent,
    Machine,
    WorkerState,
)
from lllaunch.watchdog.findings import (
    Asked,
    Finding,
    FoundElsewhere,
    Stalled,
    TimedOut,
    TimerExpired,
)
from lllaunch.watchdog.stacks.frames import Blame

EVENTS: list[type] = list(v.Event.__args__)  # type: ignore[attr-defined]
SIGINT, SIGHUP = 2, 1


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
    assert machine.worker_state is WorkerState.HEALTHY
    return machine


def ended(machine: Machine, *ranks: int, ok: bool = False) -> v.Actions:
    decisions: v.Actions = ()
    for rank in ranks:
        decisions = machine.handle(end_of(rank, ok=ok))
    return decisions


# What cannot come in a state, and why.
OF_STARTS: set[type] = {v.Begin, v.GroupStarted}
OF_WORKERS: set[type] = {Exited, StartFailed, PreloadBroken, v.MonitorLost}
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


@pytest.mark.untraced
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
        if v.Step.ABANDON in steps:
            assert (state, event) == (GroupState.KILLING, v.GraceExpired)
        if v.Step.KILL in steps:
            assert after in (GroupState.KILLING, GroupState.DONE)


@pytest.mark.parametrize(
    ("state", "event"),
    [(state, event) for state, events in IMPOSSIBLE.items() for event in sorted(events, key=str)],
)
def test_an_impossible_event_raises(state: GroupState, event: type) -> None:
    for machine in machines(state):
        with pytest.raises(ImpossibleEvent, match=event.__name__):
            machine.handle((VARIANTS.get(event) or [event()])[0])


def test_the_machine_knows_neither_processes_nor_time() -> None:
    tree = ast.parse(Path(machine_module.__file__).read_text())
    imported = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    allowed = {"__future__", "collections.abc", "dataclasses", "enum", "typing"}
    pure = ("lllaunch.events", "lllaunch.spec", "lllaunch.watchdog.")
    assert {module for module in imported if not module.startswith(pure)} <= allowed


def test_success_is_swept_and_waits_for_the_other_nodes() -> None:
    machine = running()
    assert ended(machine, 0, ok=True) == ()
    assert ended(machine, 1, ok=True) == (v.CleanUp(),)
    assert machine.handle(OrphansGone()) == (v.WaitForOthers(),)
    assert machine.handle(v.BarrierPassed()) == (v.Finish(WorkerState.SUCCEEDED),)


def test_the_first_failure_ends_the_others_politely() -> None:
    machine = running()
    assert ended(machine, 1) == (v.SignalWorkers(SIGTERM, "failure"), v.StartGrace())
    assert machine.worker_state is WorkerState.UNHEALTHY
    assert ended(machine, 0) == (v.CleanUp(),)
    assert machine.handle(OrphansGone()) == (v.Finish(WorkerState.FAILED, "failure"),)


def test_a_failed_group_is_started_again_as_often_as_allowed() -> None:
    machine = running(1, max_restarts=2)
    for restart in (1, 2):
        ended(machine, 0)
        start = v.StartWorkers(attempt=restart, restart_count=restart, reason="failure")
        assert machine.handle(OrphansGone()) == (start,)
        machine.handle(v.GroupStarted(frozenset({0})))
    ended(machine, 0)
    assert machine.handle(OrphansGone()) == (v.Finish(WorkerState.FAILED, "failure"),)


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
    assert machine.handle(OrphansGone()) == (end,)


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
    (end,) = machine.handle(OrphansGone())
    assert end == v.Finish(WorkerState.FAILED, "signal", first)


def test_a_signal_while_a_failure_is_handled_counts_as_the_first() -> None:
    machine = running(2, max_restarts=3)
    ended(machine, 0)
    assert machine.handle(v.SignalReceived(SIGINT)) == (v.SignalWorkers(SIGINT, "signal"),)
    assert v.KillWorkers("signal") in machine.handle(v.SignalReceived(SIGINT))
    ended(machine, 1)
    assert machine.handle(OrphansGone()) == (v.Finish(WorkerState.FAILED, "signal", SIGINT),)


def test_a_signal_while_leftovers_are_swept_cancels_the_restart() -> None:
    machine = running(1, max_restarts=3)
    ended(machine, 0)
    assert machine.handle(v.SignalReceived(SIGINT)) == ()
    assert machine.handle(OrphansGone()) == (v.Finish(WorkerState.FAILED, "signal", SIGINT),)


def test_a_signal_at_the_exit_barrier_ends_the_wait() -> None:
    machine = running(1)
    ended(machine, 0, ok=True)
    machine.handle(OrphansGone())
    end = v.Finish(WorkerState.FAILED, "signal", SIGTERM)
    assert machine.handle(v.SignalReceived(SIGTERM)) == (end,)


def test_the_death_of_the_spawner_is_retried_once_on_top_of_the_restarts() -> None:
    machine = running(2, max_restarts=1)
    assert machine.handle(SPAWNER_GONE) == (v.StartWorkers(1, 1, "spawner"),)
    machine.handle(v.GroupStarted(frozenset({0, 1})))
    assert machine.handle(SPAWNER_GONE) == (v.StartWorkers(2, 2, "spawner"),)
    machine.handle(v.GroupStarted(frozenset({0, 1})))
    assert machine.handle(SPAWNER_GONE) == (v.Finish(WorkerState.FAILED, "spawner"),)


def test_a_retry_for_the_spawner_is_none_of_the_restarts_that_are_counted() -> None:
    machine = running(1, max_restarts=2)
    taken = []
    for _ in range(3):
        (start,) = machine.handle(SPAWNER_GONE)
        assert isinstance(start, v.StartWorkers)
        taken.append((start.restart_count, start.restart))
        machine.handle(v.GroupStarted(frozenset({0})))
    assert taken == [(1, None), (2, 1), (3, 2)]


def test_a_broken_preload_is_not_tried_again() -> None:
    machine = running(2, max_restarts=9)
    assert machine.handle(PreloadBroken("m", "no", "")) == (
        v.Finish(WorkerState.FAILED, "failure"),
    )


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
    assert machine.handle(OrphansGone()) == (v.Finish(WorkerState.FAILED, "hang"),)


def test_losing_track_kills_and_ends_unknown() -> None:
    machine = running(1, max_restarts=3)
    assert machine.handle(v.MonitorLost()) == (
        v.KillWorkers("lost"),
        v.Finish(WorkerState.UNKNOWN, "failure"),
    )
    assert machine.handle(end_of(0, ok=True)) == (), "late news"


def test_stacks_are_taken_before_anything_is_signalled() -> None:
    machine = running(2)
    assert machine.handle(HANG) == (v.TakeStacks(frozenset({0, 1}), TIMER),)
    assert machine.worker_state is WorkerState.HEALTHY
    assert machine.handle(STACKS) == (v.SignalProcess(1, 77, 9), *TERMINATE)
    assert machine.worker_state is WorkerState.UNHEALTHY
    ended(machine, 0, 1)
    assert machine.handle(OrphansGone()) == (v.Finish(WorkerState.FAILED, "hang"),)


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
    assert machine.handle(OrphansGone()) == (v.StartWorkers(1, 1, "hang"),)


def test_workers_that_finish_while_stacks_are_taken_have_succeeded() -> None:
    machine = running(2)
    machine.handle(HANG)
    assert ended(machine, 0, 1, ok=True) == (v.CleanUp(),)
    assert machine.handle(STACKS) == ()
    machine.handle(OrphansGone())
    assert machine.handle(v.BarrierPassed()) == (v.Finish(WorkerState.SUCCEEDED),)


def test_what_is_only_reported_ends_nothing() -> None:
    machine = running(2)
    assert machine.handle(REPORTED) == (v.TakeStacks(frozenset({0, 1}), REPORTED.finding),)
    assert machine.handle(v.StacksTaken((), Blame(), REPORTED.finding)) == ()
    assert machine.worker_state is WorkerState.HEALTHY
    assert machine.handle(HANG) == (v.TakeStacks(frozenset({0, 1}), TIMER),)
    assert machine.handle(STACKS)[-2:] == TERMINATE


def test_who_asks_where_the_workers_stand_sees_it_and_nothing_ends() -> None:
    machine = running(2)
    asked = Asked(3)
    assert machine.handle(v.StacksAsked(asked)) == (v.TakeStacks(frozenset({0, 1}), asked),)
    assert machine.handle(v.StacksTaken((), Blame(), asked)) == ()
    assert machine.worker_state is WorkerState.HEALTHY
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
    assert machine.handle(OrphansGone()) == (end,)


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
    assert machine.handle(OrphansGone())[0].signum == SIGINT  # type: ignore[union-attr]


def test_the_death_of_the_spawner_after_a_finding_is_no_free_retry() -> None:
    machine = running(2)
    machine.handle(HANG)
    assert machine.handle(SPAWNER_GONE) == (v.Finish(WorkerState.FAILED, "hang"),)


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
    assert failing(fact, chosen) == (v.StartWorkers(1, 1, reason),)
    assert failing(fact, others) == (v.Finish(WorkerState.FAILED, reason),)
    assert failing(fact, chosen, max_restarts=0) == (v.Finish(WorkerState.FAILED, reason),)


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
    assert machine.handle(SPAWNER_GONE) == ()
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
    assert machine.handle(OrphansGone()) == (v.Finish(WorkerState.FAILED, "timeout"),)


@pytest.mark.parametrize(("restarts", "reason"), [(1, "timeout"), (0, "failure")])
def test_the_runs_time_is_the_reason_only_if_it_prevented_a_restart(
    restarts: int, reason: v.Reason
) -> None:
    machine = running(2, max_restarts=restarts)
    ended(machine, 0)
    assert machine.handle(RUN_OVER) == ()
    ended(machine, 1)
    assert machine.handle(OrphansGone()) == (v.Finish(WorkerState.FAILED, reason),)


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
        facts: list[v.Event] = [v.SignalReceived(SIGINT), v.SignalReceived(SIGTERM, forward=False)]
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
        assert world.end.state is WorkerState.FAILED
    assert (world.end.state is WorkerState.SUCCEEDED) == (world.end.reason is None)
    assert (world.end.no_progress is not None) == (world.end.reason == "no_progress")
