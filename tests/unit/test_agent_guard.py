"""The watchdog in the supervisor's loop: without processes and without waiting."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest
from support.played import (
    SWEPT,
    Make,
    Order,
    PlayedCollector,
    PlayedStarter,
    collecting,
    ended,
    playing,
    script,
)

from lllaunch.agent import LocalElasticAgent, WorkerSpec, WorkerState
from lllaunch.errors import OutputError
from lllaunch.events import Started
from lllaunch.multiprocessing import DefaultLogsSpecs
from lllaunch.spec import WatchdogPolicy
from lllaunch.supervisor import machine as v
from lllaunch.supervisor.watchdog import STACKS_SECONDS, WatchdogDriver
from lllaunch.watchdog.sampling import Usage

SIGTERM = 15


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Make:
    collecting(monkeypatch)
    return playing(monkeypatch)


def kinds(items: list[object]) -> list[str]:
    return [type(item).__name__ for item in items]


def test_an_attempt_that_takes_too_long_is_ended_after_its_stacks_were_taken(play: Make) -> None:
    agent = play(2, watchdog=WatchdogPolicy(timeout=60.0))
    script(
        agent,
        (Started(0, 7, 1), Started(1, 8, 1)),
        (),
        (),
        (ended(0, -15), ended(1, -15)),
        SWEPT,
    )
    assert agent.run().state is WorkerState.FAILED
    assert agent.clock.now == 60.0
    assert agent.orders() == [Order("signal", (0, 1), SIGTERM), Order("clean_up")]
    assert kinds(agent.seen)[2:7] == [
        "GroupStarted",
        "Started",
        "Started",
        "WatchdogFired",
        "TakeStacks",
    ]
    (taken,) = [item for item in agent.seen if isinstance(item, v.StacksTaken)]
    assert [stack.rank for stack in taken.stacks] == [0, 1]
    (made,) = PlayedCollector.made
    assert made.workers == {0: 7, 1: 8}
    assert made.more["parent"] == PlayedStarter.pid
    assert made.more["recorders"] is not None
    assert made.written is not None
    assert "limited to 1 min" in made.written.heading


def test_stacks_that_do_not_come_are_not_waited_for(
    play: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlayedCollector, "done", False)
    agent = play(1, watchdog=WatchdogPolicy(timeout=60.0))
    script(agent, (Started(0, 7, 1),))
    agent.run()
    signalled = [item for item in agent.seen if isinstance(item, v.SignalWorkers)]
    assert signalled == [v.SignalWorkers(SIGTERM, "timeout")]
    # the limit, the stacks, the grace period, and the wait for what cannot be killed
    assert agent.clock.now == 60.0 + STACKS_SECONDS + 5 + 10


def torchs(policy: WatchdogPolicy | None = None) -> WatchdogDriver:
    """What watches the workers of torch's agent."""
    agent = LocalElasticAgent(
        WorkerSpec("r", 1, entrypoint="x"), DefaultLogsSpecs(), watchdog=policy
    )
    return agent._watchdog


def test_torchs_variable_asks_for_timers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    path = os.path.join(tmp_path, "timers")
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", path)

    def served(guard: WatchdogDriver) -> dict[str, str]:
        guard.prepare(1)
        found = guard.environment(0)
        guard.close()
        return found

    assert served(torchs()) == {}, "not asked for"
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    assert served(torchs(WatchdogPolicy())) == {}, "the policy says what is asked for"
    guard = torchs()
    guard.prepare(1)
    assert guard.environment(0)["TORCHELASTIC_TIMER_FILE"] == path
    assert os.path.exists(path)
    guard.prepare(1)
    assert os.path.exists(path), "the next attempt is served as well"
    guard.close()
    assert not os.path.exists(path)


def test_a_timer_file_that_another_launcher_serves_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    path = os.path.join(tmp_path, "timers")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", path)
    guard = torchs()
    with pytest.raises(OutputError, match="another launcher serves it"):
        guard.prepare(1)
    guard.close()
    os.close(reader)
    assert os.path.exists(path)


def test_whoever_hangs_in_the_kernel_is_looked_for_while_the_group_runs(play: Make) -> None:
    agent = play(1, max_restarts=5)
    clock = agent.clock
    driver = WatchdogDriver(None, clock, kernel_sleep=8.0)

    class Asleep:
        shared_out = None

        def usage(self, pids: Mapping[int, int]) -> dict[int, Usage]:
            return {rank: Usage(0.0, state="D", pids=(pid,)) for rank, pid in pids.items()}

    driver._sampler = Asleep()  # type: ignore[assignment]
    agent.watch(driver)
    script(agent, (Started(0, 7, 1),))
    assert agent.run().state is WorkerState.FAILED
    assert v.WorkersStuck() in agent.seen
    assert len(agent.contexts) == 1
    assert agent.seen[-1] == v.Finish(WorkerState.FAILED, "hang")
