"""Process contexts and a run over a spawner that starts nothing."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.contexts import TargetContext

from lllaunch.errors import PreloadFailed
from lllaunch.events import PreloadBroken
from lllaunch.multiprocessing import DefaultLogsSpecs, Std
from lllaunch.spawner.protocol import Program
from lllaunch.testing import FakeSpawner


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
    assert options["env"]["OMP_NUM_THREADS"] == "1"
    assert options["fresh"]
    assert options["stdout"].endswith("attempt_0/1/stdout.log")
    assert context.pids() == {0: 1001, 1: 1002}
    spawner.end(0)
    spawner.end(1)
    result = context.wait()
    assert result is not None
    assert not result.is_failed()


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


def test_a_broken_preload_is_raised(tmp_path: Path, spawner: FakeSpawner) -> None:
    context = context_of(tmp_path, spawner)
    context.start()
    spawner.tell(PreloadBroken("m", "why", "trace"))
    with pytest.raises(PreloadFailed, match=r"(?s)'m' could not be preloaded: why.*trace"):
        context.wait()
