"""Which jobs of a task share a spawner: worked out in the task, so that no secret is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lllaunch.app.rerun import RerunRequest
from lllaunch.app.sweeping.packed import warm_key
from lllaunch.config.nodes import HostContext
from lllaunch.config.plan import SOURCES, portable_plan
from lllaunch.config.resolve import resolve
from lllaunch.run.group import spawner_environment
from lllaunch.sweep.protocol import SpawnerKey


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("TOKEN", "a secret")


@pytest.mark.parametrize(
    "launch",
    [
        {},
        {"nproc": 3},
        {"preload": ["json"]},
        {"cwd": "src"},
        {"env": {"PYTHON_TOKEN": "${oc.env:TOKEN}", "OTHER": "${oc.env:TOKEN}", "OMP_X": 3}},
        {"env": {"PYTHONPATH": "${hydra:runtime.cwd}/src", "OMP_NUM_THREADS": "4"}, "nproc": 2},
    ],
)
def test_it_is_that_which_the_run_asks_for(tmp_path: Path, launch: dict[str, Any]) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "s.py").touch()
    cwd = str(tmp_path)
    # as hydra: says it in the run
    given = OmegaConf.create({"launch": {"entrypoint": f"{cwd}/s.py", **launch}})
    text = OmegaConf.to_yaml(given).replace(SOURCES.cwd, cwd)
    spec = resolve(OmegaConf.create(text), HostContext(runtime_cwd=cwd, output_dir=f"{cwd}/out"))
    plan = portable_plan(spec, SOURCES)
    assert "a secret" not in str(plan)
    found = warm_key(RerunRequest("", plan, {}, cwd), None, os.environ)
    place = spec.spawner_cwd or spec.cwd
    assert found == SpawnerKey.of(spec.imports, place, spawner_environment(spec), os.environ)


def test_what_only_a_run_knows_has_a_spawner_of_its_own() -> None:
    plan = {"launch": {"cwd": "${hydra:job.num}"}}
    assert warm_key(RerunRequest("", plan, {}, "/"), None, os.environ) is None
