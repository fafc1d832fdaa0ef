"""Process contexts and a run over a spawner that starts nothing."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.contexts import TargetContext

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
