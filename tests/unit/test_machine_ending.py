"""How an attempt ends: the ladder's table, and every pair of signals on it."""

from __future__ import annotations

import itertools
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.agent import machine as v
from lllaunch.agent.machine import LADDER, Machine, Push, Rung, Step, WorkerState

SIGNALS = [int(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)]
SIGTERM = int(signal.SIGTERM)
ORDER = {Rung.NONE: 0, Rung.ASKED: 1, Rung.TOLD: 2, Rung.KILLED: 3, Rung.KILLED_TOLD: 4}


def running(n: int = 2, max_restarts: int = 0) -> Machine:
    machine = Machine(max_restarts)
    machine.handle(v.Begin())
    machine.handle(v.GroupStarted(frozenset(range(n))))
    return machine


def test_every_cell_of_the_ladder_is_filled() -> None:
    assert set(LADDER) == set(itertools.product(Rung, Push))


def test_no_push_leads_down_and_nothing_is_killed_twice_by_the_clock() -> None:
    for (rung, push), (after, steps) in LADDER.items():
        assert ORDER[after] >= ORDER[rung], (rung, push)
        killed = rung in (Rung.KILLED, Rung.KILLED_TOLD)
        assert (Step.ABANDON in steps) == (killed and push is Push.GRACE_OVER)
        if Step.KILL in steps:
            assert after in (Rung.KILLED, Rung.KILLED_TOLD)


@given(st.lists(st.sampled_from(list(Push)), max_size=12))
def test_whatever_came_before_two_more_grace_periods_end_the_wait(pushes: list[Push]) -> None:
    rung = Rung.NONE
    for push in [Push.CAUSE, *pushes]:
        rung = LADDER[rung, push][0]
    taken: list[Step] = []
    for _ in range(2):
        rung, steps = LADDER[rung, Push.GRACE_OVER]
        taken += steps
    assert Step.ABANDON in taken


# How the group came to be ended before the two signals, and what the first of them then does.
BEFORE: dict[str, list[v.Fact]] = {
    "running": [],
    "after a failure": [v.WorkerEnded(0, ok=False)],
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
        machine.handle(v.WorkerEnded(rank, ok=False))
    end = v.Finish(WorkerState.FAILED, "signal", first)
    assert machine.handle(v.LeftoversGone()) == (end,)


@pytest.mark.parametrize("forward", [True, False])
def test_a_signal_after_the_kill_is_still_the_runs_end(forward: bool) -> None:
    machine = running(max_restarts=3)
    machine.handle(v.WorkerEnded(0, ok=False))
    assert machine.handle(v.GraceExpired()) == (v.KillWorkers("grace"), v.StartGrace())
    told = (v.SignalWorkers(SIGTERM, "signal"),) if forward else ()
    assert machine.handle(v.SignalReceived(SIGTERM, forward)) == told
    assert machine.handle(v.SignalReceived(SIGTERM, forward)) == (v.KillWorkers("signal"),)
    assert machine.handle(v.GraceExpired()) == (
        v.AbandonWorkers(frozenset({1})),
        v.Finish(WorkerState.FAILED, "signal", SIGTERM),
    )


@pytest.mark.parametrize(("first", "second"), list(itertools.product(SIGNALS, repeat=2)))
def test_two_signals_while_leftovers_are_swept(first: int, second: int) -> None:
    machine = running(1, max_restarts=3)
    machine.handle(v.WorkerEnded(0, ok=False))
    assert machine.handle(v.SignalReceived(first)) == ()
    end = v.Finish(WorkerState.FAILED, "signal", first)
    assert machine.handle(v.SignalReceived(second)) == (end,)


def test_a_signal_after_success_waits_for_the_sweep_but_not_at_the_barrier() -> None:
    machine = running(1)
    assert machine.handle(v.WorkerEnded(0, ok=True)) == (v.SweepLeftovers(),)
    assert machine.handle(v.SignalReceived(SIGTERM)) == ()
    assert machine.state is WorkerState.STOPPED
    end = v.Finish(WorkerState.FAILED, "signal", SIGTERM)
    assert machine.handle(v.LeftoversGone()) == (end,)


def test_leftovers_that_do_not_end_forbid_a_restart_but_no_success() -> None:
    machine = running(1, max_restarts=3)
    machine.handle(v.WorkerEnded(0, ok=False))
    assert machine.handle(v.LeftoversStuck()) == (v.Finish(WorkerState.FAILED, "failure"),)
    machine = running(1)
    machine.handle(v.WorkerEnded(0, ok=True))
    assert machine.handle(v.LeftoversStuck()) == (v.WaitForOthers(),)


def test_the_barrier_is_entered_once() -> None:
    machine = running(1)
    machine.handle(v.WorkerEnded(0, ok=True))
    assert machine.handle(v.LeftoversGone()) == (v.WaitForOthers(),)
    assert machine.handle(v.SpawnerLost()) == ()
    assert machine.handle(v.BarrierPassed()) == (v.Finish(WorkerState.SUCCEEDED),)
