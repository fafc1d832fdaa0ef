"""Process contexts and a run over a spawner that starts nothing."""

from __future__ import annotations

import errno
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.contexts import TargetContext

from lllaunch.clock import Deadlines
from lllaunch.console.console import Console
from lllaunch.errors import PreloadFailed, SpawnerDied
from lllaunch.events import Exited, PreloadBroken, Started
from lllaunch.multiprocessing import DefaultLogsSpecs, Std
from lllaunch.run.directory import RunDirectory
from lllaunch.run.events import EventLog
from lllaunch.run.group import run_group
from lllaunch.run.observer import RunObserver
from lllaunch.signal_source import SignalSource
from lllaunch.spawner.interpreter import interpreter_command
from lllaunch.spawner.protocol import Program
from lllaunch.spec import Entrypoint, LaunchSpec
from lllaunch.testing import FakeClock, FakeSpawner


@pytest.fixture
def spawner() -> Iterator[FakeSpawner]:
    fake = FakeSpawner()
    yield fake
    fake.close()


def context_of(tmp_path: Path, spawner: Any, n: int = 2, **options: Any) -> TargetContext:
    return TargetContext(
        "t",
        {rank: Program("p", (str(rank),)) for rank in range(n)},
        {rank: {"RANK": str(rank), "OMP_NUM_THREADS": "1"} for rank in range(n)},
        DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL),
        spawner=spawner,
        handle_signals=False,
        **options,
    )


def test_workers_are_ordered_with_their_own_variables(tmp_path: Path, spawner: FakeSpawner) -> None:
    context = context_of(tmp_path, spawner, preload=["m"], cwd="/w", fresh=True)
    context.start()
    ((environ, cwd, preload),) = spawner.configured
    assert environ["OMP_NUM_THREADS"] == "1"
    assert (cwd, preload) == ("/w", ("m",))
    assert [order[0] for order in spawner.ordered.values()] == [0, 1]
    _, target, options = spawner.ordered[2]
    assert target == Program("p", ("1",))
    assert options["env"]["RANK"] == "1"
    assert "OMP_NUM_THREADS" not in options["env"]
    assert options["fresh"]
    assert options["stdout"].endswith("attempt_0/1/stdout.log")
    assert context.pids() == {0: 1001, 1: 1002}
    spawner.end(0)
    spawner.end(1)
    result = context.wait()
    assert result is not None
    assert not result.is_failed()


def test_one_failure_terminates_the_others_politely(tmp_path: Path, spawner: FakeSpawner) -> None:
    context = context_of(tmp_path, spawner, 3)
    context.start()
    assert context.wait(0) is None
    spawner.end(1, exitcode=7)
    result = context.wait()
    assert result is not None
    assert list(result.failures) == [1]
    assert result.failures[1].exitcode == 7
    assert spawner.sent == [((1, 3), signal.SIGTERM)]


def test_the_disobedient_are_killed_after_the_timeout(tmp_path: Path) -> None:
    spawner = FakeSpawner(obedient=False)
    context = context_of(tmp_path, spawner)
    context.start()
    context.close(signal.SIGINT, timeout=0)
    assert spawner.sent == [((1, 2), signal.SIGINT), ((1, 2), signal.SIGKILL)]
    assert context.alive == frozenset()
    spawner.close()


@pytest.mark.parametrize(("number", "code"), [(errno.ENOENT, 127), (errno.EACCES, 126)])
def test_a_failed_start_is_a_failure_with_a_shells_exit_code(
    tmp_path: Path, spawner: FakeSpawner, number: int, code: int
) -> None:
    context = context_of(tmp_path, spawner, 1)
    context.start()
    spawner.fail_to_start(0, "/p", "it is not so", number)
    result = context.wait()
    assert result is not None
    assert result.failures[0].exitcode == code
    assert result.failures[0].message == "worker 0 could not be started: '/p': it is not so"


def test_the_spawners_death_is_raised(tmp_path: Path, spawner: FakeSpawner) -> None:
    context = context_of(tmp_path, spawner)
    context.start()
    spawner.die()
    with pytest.raises(SpawnerDied, match="exit status -9"):
        context.wait()


def test_a_broken_preload_is_raised(tmp_path: Path, spawner: FakeSpawner) -> None:
    context = context_of(tmp_path, spawner)
    context.start()
    spawner.tell(PreloadBroken("m", "why", "trace"))
    with pytest.raises(PreloadFailed, match=r"(?s)'m' could not be preloaded: why.*trace"):
        context.wait()


class Scripted(FakeSpawner):
    """Ends each attempt's workers with the exit codes of a script."""

    def __init__(self, *attempts: tuple[int, ...]) -> None:
        super().__init__()
        self.attempts = list(attempts)
        self.present: tuple[int, ...] = ()

    def spawn(self, rank: int, target: Any, **options: Any) -> int:
        if rank == 0:
            self.present = self.attempts.pop(0)
        key = super().spawn(rank, target, **options)
        if rank == len(self.present) - 1:
            for worker, code in enumerate(self.present):
                self.end(worker, code)
        return key


@pytest.mark.parametrize(
    ("attempts", "restarts", "succeeded"),
    [
        ([(0, 0)], 0, True),
        ([(0, 1)], 0, False),
        ([(0, 1), (1, 0), (0, 0)], 2, True),
        ([(0, 1), (1, 1)], 1, False),
    ],
)
def test_a_run_goes_through_its_attempts(
    tmp_path: Path, attempts: list[tuple[int, ...]], restarts: int, succeeded: bool
) -> None:
    spawner = Scripted(*attempts)
    args = ("${worker:rank}", "${worker:attempt}", "${worker:restart_count}")
    spec = LaunchSpec(
        Entrypoint("program", "p", "p"),
        args=args,
        nproc=2,
        max_restarts=restarts,
        log_dir=str(tmp_path),
        cwd="/",
        env={"MINE": "${worker:role_name}"},
        role="r",
    )
    log = EventLog(str(tmp_path / "events.jsonl"), pytest.fail)
    observer = RunObserver(spec, log, Console(io.StringIO(), cwd="/"))
    with RunDirectory.claim(str(tmp_path)) as directory, SignalSource(()) as signals:
        assert run_group(spec, directory, observer, signals, spawner) is None  # type: ignore[arg-type]
    log.close()
    records = observer.recorder.records()
    assert [record.number for record in records] == list(range(len(attempts)))
    assert observer.recorder.reason == (None if succeeded else "failure")
    argv = [order[1].argv for order in spawner.ordered.values()]  # type: ignore[union-attr]
    assert argv[-1] == ("1", str(len(attempts) - 1), str(len(attempts) - 1))
    assert all(order[2]["env"]["MINE"] == "r" for order in spawner.ordered.values())
    for number, record in enumerate(records):
        for worker in record.workers:
            assert worker.exited is not None
            assert (worker.exited.attempt, worker.exited.local_rank) == (number, worker.local_rank)
    spawner.close()


def test_a_fake_clock_moves_deadlines() -> None:
    clock = FakeClock(5.0)
    deadlines = Deadlines(clock)
    deadlines.start("x", 3)
    clock.advance(2)
    assert deadlines.passed() == []
    clock.advance(1)
    assert deadlines.passed() == ["x"]
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)


def test_a_fake_spawner_refuses_what_cannot_be(spawner: FakeSpawner) -> None:
    with pytest.raises(LookupError, match="rank 0"):
        spawner.end(0)
    spawner.spawn(0, Program("p"))
    (fact,) = spawner.dispatch()
    assert isinstance(fact, Started)
    spawner.end(0, 3)
    (end,) = spawner.dispatch()
    assert isinstance(end, Exited)
    assert end.exitcode == 3
    assert spawner.dispatch() == []


def test_the_interpreter_is_one_like_this() -> None:
    command = interpreter_command()
    assert command[-1] == "-u"
    assert os.path.basename(command[0]).startswith("python")
