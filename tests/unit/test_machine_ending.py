"""How an attempt ends: the ladder's table, and every pair of signals on it."""

from __future__ import annotations

import itertools
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.events import Exited, OrphansGone, SpawnerGone
from lllaunch.supervisor import machine as v
from lllaunch.supervisor.machine import Machine, WorkerState

SIGNALS = [int(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)]
SIGTERM = int(signal.SIGTERM)
SPAWNER_GONE = SpawnerGone(7, -9)


def end_of(rank: int, *, ok: bool) -> Exited:
    return Exited(rank, 100 + rank, 0 if ok else 1, 1)


def running(n: int = 2, max_restarts: int = 0) -> Machine:
    machine = Machine(max_restarts)
    machine.handle(v.Begin())
    machine.handle(v.GroupStarted(frozenset(range(n))))
    return machine


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
    end = v.Finish(WorkerState.FAILED, "signal", first)
    assert machine.handle(OrphansGone()) == (end,)


@pytest.mark.parametrize("forward", [True, False])
def test_a_signal_after_the_kill_is_still_the_runs_end(forward: bool) -> None:
    machine = running(max_restarts=3)
    machine.handle(end_of(0, ok=False))
    assert machine.handle(v.GraceExpired()) == (v.KillWorkers("grace"), v.StartGrace())
    assert machine.handle(v.SignalReceived(SIGTERM, forward)) == (v.KillWorkers("signal"),)
    assert machine.handle(v.GraceExpired()) == (
        v.AbandonWorkers(frozenset({1})),
        v.Finish(WorkerState.FAILED, "signal", SIGTERM),
    )


@pytest.mark.parametrize(("first", "second"), list(itertools.product(SIGNALS, repeat=2)))
def test_two_signals_while_leftovers_are_swept(first: int, second: int) -> None:
    machine = running(1, max_restarts=3)
    machine.handle(end_of(0, ok=False))
    assert machine.handle(v.SignalReceived(first)) == ()
    end = v.Finish(WorkerState.FAILED, "signal", first)
    assert machine.handle(v.SignalReceived(second)) == (end,)


def test_a_signal_after_success_waits_for_the_sweep_but_not_at_the_barrier() -> None:
    machine = running(1)
    assert machine.handle(end_of(0, ok=True)) == (v.CleanUp(),)
    assert machine.handle(v.SignalReceived(SIGTERM)) == ()
    assert machine.worker_state is WorkerState.STOPPED
    end = v.Finish(WorkerState.FAILED, "signal", SIGTERM)
    assert machine.handle(OrphansGone()) == (end,)


def test_leftovers_that_do_not_end_forbid_a_restart_but_no_success() -> None:
    machine = running(1, max_restarts=3)
    machine.handle(end_of(0, ok=False))
    assert machine.handle(v.OrphansStuck()) == (v.Finish(WorkerState.FAILED, "failure"),)
    machine = running(1)
    machine.handle(end_of(0, ok=True))
    assert machine.handle(v.OrphansStuck()) == (v.WaitForOthers(),)


def test_the_barrier_is_entered_once() -> None:
    machine = running(1)
    machine.handle(end_of(0, ok=True))
    assert machine.handle(OrphansGone()) == (v.WaitForOthers(),)
    assert machine.handle(SPAWNER_GONE) == ()
    assert machine.handle(v.BarrierPassed()) == (v.Finish(WorkerState.SUCCEEDED),)
