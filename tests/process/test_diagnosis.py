"""What the console says of a failure: cause, rank and place, word by word."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.diagnosis import CASES, Case, can_mount, memory_cgroup, run_of

from benchmarks.unlisted import SCRIPT, UNLISTED, WATCHED

MARKS = {
    1: pytest.mark.smoke,
    6: pytest.mark.skipif(memory_cgroup() is None, reason="no cgroup can limit memory here"),
    7: pytest.mark.smoke,
    12: pytest.mark.skipif(not can_mount(), reason="no file system can be mounted here"),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=MARKS.get(case.number, ())) for case in CASES],
)
def test_the_console_names_cause_rank_and_place(case: Case, tmp_path: Path) -> None:
    said = run_of(case, tmp_path).said
    for expected in (case.cause, case.rank, case.place):
        assert re.search(expected, said), f"{expected!r} is not in\n{said}"
    # nothing of ours stands in what is the user's
    assert "lllaunch/spawner" not in said
    assert "internal error" not in said
    if case.number == 12:
        # whoever did not die of it failed by itself
        assert "(SIGTERM), status 1" not in said
    if case.number == 21:
        assert "Root cause" not in said
        assert "ended by" in said.splitlines()[-1]


# The launcher's and the worker's own part in these; what is made of it is tested without processes.
@pytest.mark.parametrize("name", ["timeout", "descriptors", "loader_segfault", "cpu_limit"])
def test_what_a_worker_and_its_peers_leave_is_enough(name: str, tmp_path: Path) -> None:
    (failure,) = [each for each in UNLISTED if each.name == name]
    shutil.copy(SCRIPT, tmp_path)
    node = {**WATCHED, "args": [name]}
    said = run_of(Case(0, failure.title, SCRIPT.name, failure.cause, node=node), tmp_path).said
    assert re.search(failure.cause, said), said
    assert f"Root cause: rank {failure.rank} (attempt 0)" in said
    # torch's own handler leaves no stack of a DataLoader worker
    if failure.place and name != "loader_segfault":
        assert re.search(rf"failures\.py(:|\", line ){failure.line}\b", said)
