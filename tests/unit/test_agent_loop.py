"""The loop of LocalElasticAgent without processes and without waiting."""

from __future__ import annotations

import signal

import pytest
from support.played import Make, Order, Rendezvous, ended, playing, script

from lllaunch.agent import WorkerState
from lllaunch.events import OrphansGone, SpawnerGone, Started
from lllaunch.multiprocessing import SignalException
from lllaunch.supervisor import machine as v

SIGINT, SIGTERM, SIGHUP = int(signal.SIGINT), int(signal.SIGTERM), int(signal.SIGHUP)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Make:
    return playing(monkeypatch)


def test_success_is_swept_and_told_by_global_rank(play: Make) -> None:
    agent = play(2)
    script(
        agent,
        lambda: agent.now.tell(Started(0, 7, 1), Started(1, 8, 1)),
        lambda: agent.now.tell(ended(1), ended(0)),
        lambda: agent.now.tell(OrphansGone()),
    )
    result = agent.run()
    assert result.state is WorkerState.SUCCEEDED
    assert result.return_values == {10: None, 11: None}
    assert [worker.id for worker in agent.get_worker_group().workers] == [7, 8]
    assert agent.orders() == [Order("clean_up")]


def test_the_ladder_climbs_by_the_clock(play: Make) -> None:
    agent = play(2)
    script(agent, lambda: agent.now.tell(ended(1, 3)))
    result = agent.run()
    assert agent.orders() == [Order("signal", (0,), SIGTERM), Order("kill", (0,))]
    assert agent.clock.now == 5 + 10, "the grace period, and ten seconds for what SIGKILL ends"
    assert v.AbandonWorkers(frozenset({0})) in agent.seen
    assert result.state is WorkerState.FAILED
    assert [failure.exitcode for failure in result.failures.values()] == [3]


def test_a_sweep_that_does_not_end_is_not_waited_for(play: Make) -> None:
    agent = play(1, max_restarts=3)
    script(agent, lambda: agent.now.tell(ended(0, 1)))
    assert agent.run().state is WorkerState.FAILED
    assert agent.clock.now == 10
    assert len(agent.contexts) == 1, "what hangs would be missing in the next attempt"
    agent = play(1)
    script(agent, lambda: agent.now.tell(ended(0)))
    assert agent.run().state is WorkerState.SUCCEEDED
    assert v.OrphansStuck() in agent.seen


def test_a_spawner_that_dies_right_after_the_sweep_does_not_touch_the_next_attempt(
    play: Make,
) -> None:
    agent = play(1, max_restarts=1)
    script(
        agent,
        lambda: agent.now.tell(ended(0, 1)),
        lambda: agent.now.tell(OrphansGone(), SpawnerGone(1, -9)),
        lambda: agent.now.tell(ended(0)),
        lambda: agent.now.tell(OrphansGone()),
    )
    assert agent.run().state is WorkerState.SUCCEEDED
    assert len(agent.contexts) == 2


def test_nodes_that_wait_when_the_sweep_ends_find_the_next_attempt(play: Make) -> None:
    agent = play(1, max_restarts=1, handler=Rendezvous(waiting=1))

    def sweep_ends_as_the_deadline_passes() -> None:
        agent.clock.advance(1)
        agent.now.tell(OrphansGone())

    script(
        agent,
        lambda: agent.now.tell(ended(0, 1)),
        sweep_ends_as_the_deadline_passes,
        lambda: agent.now.tell(ended(0)),
        lambda: agent.now.tell(OrphansGone()),
    )
    assert agent.run().state is WorkerState.SUCCEEDED


def test_waiting_nodes_are_let_in(play: Make) -> None:
    handler = Rendezvous(waiting=1)
    agent = play(1, handler=handler)

    def react(item: object) -> None:
        if isinstance(item, v.SignalWorkers):
            handler.waiting = 0
            agent.now.tell(ended(0, -SIGTERM))
        elif isinstance(item, v.CleanUp):
            agent.now.tell(OrphansGone())
        elif isinstance(item, v.StartWorkers) and item.attempt == 1:
            script(agent, lambda: agent.now.tell(ended(0)))

    agent.react = react
    assert agent.run().state is WorkerState.SUCCEEDED
    starts = [item for item in agent.seen if isinstance(item, v.StartWorkers)]
    assert starts == [v.StartWorkers(0, 0), v.StartWorkers(1, 0, "membership")]


@pytest.mark.parametrize("first", [SIGINT, SIGTERM, SIGHUP])
@pytest.mark.parametrize("second", [SIGINT, SIGTERM, SIGHUP])
def test_two_signals_from_outside(play: Make, first: int, second: int) -> None:
    agent = play(2)
    script(
        agent,
        lambda: signal.raise_signal(first),
        lambda: signal.raise_signal(second),
        lambda: agent.now.tell(ended(0, -9), ended(1, -9)),
        lambda: agent.now.tell(OrphansGone()),
    )
    with pytest.raises(SignalException) as caught:
        agent.run()
    assert caught.value.sigval == first
    assert agent.clock.now == 0, "the grace period was not waited for"
    told = [Order("signal", (0, 1), first), Order("kill", (0, 1)), Order("clean_up")]
    assert agent.orders() == told


def test_a_signal_while_the_leftovers_of_a_success_are_ended_waits_for_them(play: Make) -> None:
    agent = play(1)
    script(
        agent,
        lambda: agent.now.tell(ended(0)),
        lambda: signal.raise_signal(SIGINT),
        lambda: agent.now.tell(OrphansGone()),
    )
    with pytest.raises(SignalException):
        agent.run()
    assert OrphansGone() in agent.seen


def test_the_second_signal_ends_the_wait_for_a_sweep(play: Make) -> None:
    agent = play(1)
    script(
        agent,
        lambda: agent.now.tell(ended(0)),
        lambda: signal.raise_signal(SIGHUP),
        lambda: signal.raise_signal(SIGTERM),
    )
    with pytest.raises(SignalException) as caught:
        agent.run()
    assert caught.value.sigval == SIGHUP
    assert agent.clock.now == 0


def test_slurm_signals_the_workers_itself(play: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    agent = play(1)
    script(
        agent,
        lambda: signal.raise_signal(SIGTERM),
        lambda: agent.now.tell(ended(0, -SIGTERM)),
        lambda: agent.now.tell(OrphansGone()),
    )
    with pytest.raises(SignalException):
        agent.run()
    assert agent.orders() == [Order("clean_up")]


def test_a_signal_that_was_ignored_at_the_start_stays_ignored(play: Make) -> None:
    agent = play(1)

    def signal_and_end() -> None:
        signal.raise_signal(SIGHUP)
        agent.now.tell(ended(0))

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        script(
            agent,
            signal_and_end,
            lambda: agent.now.tell(OrphansGone()),
        )
        assert agent.run().state is WorkerState.SUCCEEDED
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_metrics_are_the_roles(play: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr("lllaunch.agent.api.put_metric", lambda name, value: found.append(name))
    agent = play(1)
    script(agent, lambda: agent.now.tell(ended(0)), lambda: agent.now.tell(OrphansGone()))
    agent.run()
    assert found
    assert all(name.startswith("workers.r.") for name in found)


def test_nothing_is_waited_for_without_a_wake_up_or_a_deadline(play: Make) -> None:
    agent = play(1)
    with pytest.raises(AssertionError, match="a wait for ever"):
        agent.run()
    assert agent.now.orders == [Order("close")], "also then the context is released"
