"""The loop of LocalElasticAgent without processes and without waiting."""

from __future__ import annotations

import contextlib
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.played import SWEPT, Make, Order, Played, Rendezvous, ended, playing, script

from lllaunch.agent import WorkerState
from lllaunch.errors import SpawnerDied
from lllaunch.events import OrphansGone, SpawnerEvent, SpawnerGone, Started
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
        (Started(0, 7, 1), Started(1, 8, 1)),
        (ended(1), ended(0)),
        SWEPT,
    )
    result = agent.run()
    assert result.state is WorkerState.SUCCEEDED
    assert result.return_values == {10: None, 11: None}
    assert [worker.id for worker in agent.get_worker_group().workers] == [7, 8]
    assert agent.orders() == [Order("clean_up")]


def test_the_ladder_climbs_by_the_clock(play: Make) -> None:
    agent = play(2)
    script(agent, (ended(1, 3),))
    result = agent.run()
    assert agent.orders() == [Order("signal", (0,), SIGTERM), Order("kill", (0,))]
    assert agent.clock.now == 5 + 10, "the grace period, and ten seconds for what SIGKILL ends"
    assert v.AbandonWorkers(frozenset({0})) in agent.seen
    assert result.state is WorkerState.FAILED
    assert [failure.exitcode for failure in result.failures.values()] == [3]


@pytest.mark.parametrize("first", [SIGINT, SIGTERM, SIGHUP])
@pytest.mark.parametrize("second", [SIGINT, SIGTERM, SIGHUP])
def test_two_signals_from_outside(play: Make, first: int, second: int) -> None:
    agent = play(2)
    script(
        agent,
        lambda: signal.raise_signal(first),
        lambda: signal.raise_signal(second),
        (ended(0, -9), ended(1, -9)),
        SWEPT,
    )
    with pytest.raises(SignalException) as caught:
        agent.run()
    assert caught.value.sigval == first
    assert agent.clock.now == 0, "the grace period was not waited for"
    told = [Order("signal", (0, 1), first), Order("kill", (0, 1)), Order("clean_up")]
    assert agent.orders() == told


class Chance:
    """Lets things happen in any order and any company, as hypothesis chooses."""

    def __init__(self, agent: Played, choices: list[int]) -> None:
        self.agent = agent
        self.choices = choices
        self.dead: set[int] = set()
        self.waits = 0

    def choose(self, below: int) -> int:
        return self.choices.pop() % below if self.choices else 0

    def idle(self) -> None:
        self.waits += 1
        assert self.waits < 500, "it does not end"
        starter = self.agent.now
        if id(starter) in self.dead:
            return
        facts: list[SpawnerEvent] = []
        for rank in sorted(self.agent.contexts[-1].alive):
            if self.choose(3) == 0 or not self.choices:
                facts.append(ended(rank, (0, 1, -9)[self.choose(3)]))
        if (
            self.agent._machine.cleaning_up
            and Order("clean_up") in starter.orders
            and self.choose(2) == 0
        ):
            facts.append(OrphansGone())
        if self.choose(12) == 1:
            facts.append(SpawnerGone(1, -9))
            self.dead.add(id(starter))
        if facts:
            starter.tell(*facts)
        if self.choose(6) == 1:
            signal.raise_signal((SIGINT, SIGTERM, SIGHUP)[self.choose(3)])
        if self.choose(3) == 1:
            self.agent.clock.advance(1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 1),
    st.lists(st.integers(0, 1000), max_size=80),
)
def test_any_company_of_events_ends_the_run_once(
    play: Make, nprocs: int, max_restarts: int, waiting: int, choices: list[int]
) -> None:
    agent = play(nprocs, max_restarts, Rendezvous(waiting))
    agent._store = None
    agent.idle = Chance(agent, choices).idle
    with contextlib.suppress(SignalException, SpawnerDied):
        agent.run()
    assert sum(isinstance(item, v.Finish) for item in agent.seen) == 1
    assert not agent.contexts[-1].alive or any(
        isinstance(item, v.AbandonWorkers) for item in agent.seen
    )
    counted = [i for i in agent.seen if isinstance(i, v.StartWorkers) and i.reason == "failure"]
    assert len(counted) <= max_restarts
