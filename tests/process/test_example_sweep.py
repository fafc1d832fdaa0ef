"""The repository's example of a sweep, as its users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.project import environment, result

# the same lines are measured where others run them

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_sweep_validates_a_fold_in_each_worker_of_each_job(tmp_path: Path) -> None:
    overrides = (
        "+exp=sweep",
        "params.lr=0.1,10",
        "launch.nproc=2,4",
        f"hydra.sweep.dir={tmp_path}",
    )
    ended = subprocess.run(
        [sys.executable, "-m", "lllaunch", "-m", *overrides],
        cwd=ROOT,
        env=environment() | {"LLLAUNCH_PRETEND_GPUS": "a,b,c,d"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    swept = json.loads((tmp_path / "sweep.json").read_text())
    assert swept["counts"] == {"succeeded": 4}
    found = {job["job"]: job["return_value"] for job in swept["jobs"]}
    # ten times the step, and a fold of 1/4 instead of 1/2, leave more to learn from
    assert 0.85 < found[0] < found[2] < found[3]
    for number, nproc in ((0, 2), (1, 4), (2, 2), (3, 4)):
        values = result(tmp_path / str(number))["return_values"]
        assert {value["value"] for value in values.values()} == {found[number]}
        assert len(values) == len(os.listdir(tmp_path / str(number) / "attempt_0")) == nproc
