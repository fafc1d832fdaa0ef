from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.core.utils import JobStatus
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lllaunch.app.jobs import SweepRefused, choose, decides, map_in_forks
from lllaunch.app.launcher import SweptJob, check_resume, launches_once
from lllaunch.app.sweeper import completed, grid
from lllaunch.errors import ConfigError, LaunchError
from lllaunch.sweep.schedule import JobBroken


@given(st.lists(st.lists(st.integers(), max_size=4), max_size=4))
def test_a_grid_has_the_jobs_of_hydras_basic_sweeper_in_its_order(values: list[list[int]]) -> None:
    dimensions = [[f"k{place}={value}" for value in row] for place, row in enumerate(values)]
    jobs = grid(dimensions)
    expected = [list(job) for job in itertools.product(*dimensions)]
    assert list(jobs) == expected
    assert len(jobs) == len(expected)
    assert jobs[1:3] == expected[1:3]
    assert [jobs[-1]] == expected[-1:] if expected else not jobs
    for outside in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            jobs[outside]


def about_launch(override: str) -> bool:
    return override.startswith("launch.")


def test_the_first_job_is_tried_and_one_for_each_value_that_may_matter() -> None:
    jobs = grid([["lr=1", "lr=2"], ["launch.nproc=1", "launch.nproc=2", "launch.nproc=99"]])
    assert choose(jobs, about_launch) == [0, 1, 2]
    assert choose(grid([[f"seed={seed}" for seed in range(1000)]]), about_launch) == [0]
    assert choose([], about_launch) == []
    many = grid([[f"launch.nproc={nproc}" for nproc in range(1000)]])
    assert len(choose(many, about_launch)) == 32


class Loader:
    def list_groups(self, parent: str) -> list[str]:
        return {"": ["db", "exp"], "exp": ["deep"]}.get(parent, [])


def test_what_is_wrong_with_many_jobs_is_told_once() -> None:
    faults = {f"job {number}": JobBroken(number, 2, "no\nnot at all") for number in range(9)}
    error = SweepRefused({**faults, "job 10": JobBroken(10, 1, "else")})
    assert error.exit_code == 2
    assert str(error).splitlines() == [
        "nothing was started",
        "job 0, job 1, job 2, job 3, job 4 and 4 more:",
        "  no",
        "  not at all",
        "job 10:",
        "  else",
    ]


def test_answers_come_in_order_however_many_forks_there_are() -> None:
    assert [*map_in_forks(str, range(5), 2)] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("fail", [lambda _: 1 // 0, lambda _: os._exit(0)])
def test_what_fails_aside_is_an_error(fail: Callable[[Any], Any]) -> None:
    with (
        contextlib.closing(map_in_forks(fail, (None,), 1)) as answers,
        pytest.raises(LaunchError, match="killed or failed"),
    ):
        next(answers)


def test_a_resumed_sweep_is_where_it_was() -> None:
    argv = ["-m", "hydra.launcher.resume=a", "hydra.launcher.resume=b"]
    assert completed(argv) == [*argv, "hydra.sweep.dir=b"]
    argv += ["hydra.sweep.dir=y"]
    assert completed(argv) == argv


OURS = "hydra_plugins.lllaunch_launcher.sweeper.LllaunchSweeper"
BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
OPTUNA = "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper"


def swept_by(target: str, batch: int | None = None, **launcher: Any) -> Any:
    sweeper = {"_target_": target, "max_batch_size": batch}
    return OmegaConf.create({"hydra": {"sweeper": sweeper, "launcher": launcher}})


def test_a_grid_is_one_batch_and_adaptive_sweepers_ask_again() -> None:
    assert launches_once(swept_by(OURS))
    assert launches_once(swept_by(BASIC))
    assert not launches_once(swept_by(BASIC, batch=2))
    assert not launches_once(swept_by(OPTUNA))


@pytest.mark.parametrize(
    ("sweeper", "resume", "message"),
    [
        (swept_by(OPTUNA), "multirun/x", "several batches"),
        (swept_by(BASIC, batch=2), "multirun/x", "several batches"),
        (swept_by(BASIC), "y", r"resume: 'y' .*add hydra\.sweep\.dir=y"),
    ],
)
def test_what_cannot_be_resumed_is_refused_with_the_reason(
    sweeper: Any, resume: str, message: str, tmp_path: Path
) -> None:
    place = {"hydra": {"sweep": {"dir": "multirun/x"}, "runtime": {"cwd": str(tmp_path)}}}
    with pytest.raises(ConfigError, match=message):
        check_resume(OmegaConf.merge(sweeper, place), resume)  # type: ignore[arg-type]


def test_what_hydra_is_told_is_composed_when_it_asks(tmp_path: Path) -> None:
    def compose() -> Any:
        raise ZeroDivisionError

    result = {"state": "succeeded", "exit_code": 0, "attempts": []}
    values = {"return_values": {"0": {"value": [1, "x"]}}}
    (tmp_path / "result.json").write_text(json.dumps(result | values))
    job = SweptJob(["a=1"], str(tmp_path), None, compose)
    assert (job.overrides, job.status) == (["a=1"], JobStatus.COMPLETED)
    assert job.return_value == [1, "x"]
    with pytest.raises(ZeroDivisionError):
        _ = job.cfg


def test_groups_the_launch_node_and_what_it_refers_to_decide_whether_a_job_can_run() -> None:
    master = OmegaConf.create(
        {
            "launch": {
                "nproc": "${params.n}",
                "args": ["${params.lr}"],
                "watchdog": {"timeout": "${times.long}"},
                "tee": "${oc.select:shown, all}",
            },
            "params": {"n": "${size}", "lr": 1},
            "size": 1,
            "times": {"long": "1h"},
            "hydra": {"sweep": {"dir": "x", "subdir": "${name}"}, "launcher": {"cpus": None}},
        }
    )
    matters = decides(Loader(), master)  # type: ignore[arg-type]
    assert all(
        map(matters, ("params.n=3", "cluster.pack=2", "+times={long: 2h}", "name=a", "shown=x"))
    )
    assert all(map(matters, ("+launch.resources.gpus_per_proc=2", "+exp=resnet", "~db")))
    assert not any(
        map(matters, ("params.lr=launch.nproc", "params.lrs=3", "other=1", "launcher=2"))
    )


FORMER = """
hydra:
  overrides:
    hydra: [hydra.sweep.dir=old, hydra.launcher.max_parallel=2, hydra.mode=MULTIRUN]
    task: [+exp=a, 'x=1,2', '~y']
  job: {config_name: mine}
  runtime:
    config_sources:
      - {path: hydra.conf, schema: pkg, provider: hydra}
      - {path: /there/conf, schema: file, provider: command-line}
path: !!python/object/apply:pathlib.PosixPath [/, x]
"""


JOBS = "hydra.launcher.max_parallel=2 +exp=a x=1,2 ~y"
RESUME = "hydra.launcher.resume=DIR"
THERE = "--config-name=mine --config-dir=/there/conf"
THIS = "--config-name other -cd conf"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (f"-m {RESUME} hydra.launcher.cpus=1", f"{THERE} -m {JOBS} {RESUME} hydra.launcher.cpus=1"),
        (f"{THIS} -m {RESUME}", f"{THIS} -m {JOBS} {RESUME}"),
        # whoever names jobs names all
        (f"-m x=1,2,3 {RESUME}", f"-m x=1,2,3 {RESUME}"),
        (f"-m ~x {RESUME}", f"-m ~x {RESUME}"),
    ],
)
def test_a_resume_needs_no_more_than_the_directory(tmp_path: Path, said: str, meant: str) -> None:
    (tmp_path / "multirun.yaml").write_text(FORMER)
    said, meant = (text.replace("DIR", str(tmp_path)) for text in (said, meant))
    assert completed(said.split()) == [*meant.split(), f"hydra.sweep.dir={tmp_path}"]
