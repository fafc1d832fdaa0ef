"""What the console says of a failure: cause, rank and place, word by word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.diagnosis import CASES, Case, can_mount, memory_cgroup, run_of

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
