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

from lllaunch.app.sweeping.launcher import (
    SweptJob,
    check_sweeper,
    launches_once,
    sweepers_direction,
)
from lllaunch.app.sweeping.probes import (
    ComposerKilled,
    SweepRefused,
    choose,
    decides,
    map_in_forks,
    references,
)
from lllaunch.app.sweeping.resume import check, completed
from lllaunch.app.sweeping.sweeper import Grid
from lllaunch.config.sweep import sweep_settings
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.sweep.protocol import Broken


@given(st.lists(st.lists(st.integers(), max_size=4), max_size=4))
def test_a_grid_has_the_jobs_of_hydras_basic_sweeper_in_its_order(values: list[list[int]]) -> None:
    dimensions = [[f"k{place}={value}" for value in row] for place, row in enumerate(values)]
    grid = Grid(dimensions)
    expected = [list(job) for job in itertools.product(*dimensions)]
    assert list(grid) == expected
    assert len(grid) == len(expected)
    assert grid[1:3] == expected[1:3]
    assert [grid[-1]] == expected[-1:] if expected else not grid
    for outside in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            grid[outside]


def about_launch(override: str) -> bool:
    return override.startswith("launch.")


def test_the_first_job_is_tried_and_one_for_each_value_that_may_matter() -> None:
    grid = Grid([["lr=1", "lr=2"], ["launch.nproc=1", "launch.nproc=2", "launch.nproc=99"]])
    assert choose(grid, about_launch) == [0, 1, 2]
    assert choose(Grid([[f"seed={seed}" for seed in range(1000)]]), about_launch) == [0]
    assert choose([], about_launch) == []
    many = Grid([[f"launch.nproc={nproc}" for nproc in range(1000)]])
    assert len(choose(many, about_launch)) == 32


class Loader:
    def list_groups(self, parent: str) -> list[str]:
        return {"": ["db", "exp"], "exp": ["deep"]}.get(parent, [])


def test_what_is_wrong_with_many_jobs_is_told_once() -> None:
    faults = {f"job {number}": Broken(2, "no\nnot at all") for number in range(9)}
    error = SweepRefused({**faults, "job 10": Broken(1, "else")})
    assert error.exit_code == 2
    assert str(error).splitlines() == [
        "nothing was started",
        "job 0, job 1, job 2, job 3, job 4 and 4 more:",
        "  no",
        "  not at all",
        "job 10:",
        "  else",
    ]


def test_an_error_of_ours_comes_from_aside_as_it_is() -> None:
    def refuse(item: int) -> int:
        if item == 2:
            raise ConfigError((Diagnostic("type", "a", "2", "is too much"),))
        return item

    # in their order, however many try
    found = map_in_forks(refuse, range(4), 2)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ConfigError, match="a: 2 is too much"):
        next(found)


@pytest.mark.parametrize("fail", [lambda _: 1 // 0, lambda _: os._exit(0)])
def test_what_fails_aside_is_an_error(fail: Callable[[Any], Any]) -> None:
    with (
        contextlib.closing(map_in_forks(fail, (None,), 1)) as answers,
        pytest.raises(ComposerKilled),
    ):
        next(answers)


def test_a_resumed_sweep_is_where_it_was() -> None:
    argv = ["-m", "hydra.launcher.resume=a", "hydra.launcher.resume=b"]
    assert completed(argv) == [*argv, "hydra.sweep.dir=b"]
    argv += ["hydra.sweep.dir=y"]
    assert completed(argv) == argv


def test_a_resume_elsewhere_is_refused(tmp_path: Path) -> None:
    check(None, "multirun/x", str(tmp_path))
    check("./multirun//x", "multirun/x", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"hydra\.launcher\.resume: 'y' .*add hydra\.sweep\.dir=y"
    ):
        check("y", "multirun/x", str(tmp_path))


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
    ("config", "message"),
    [
        (swept_by(OPTUNA, resume="x"), "chooses jobs by the results of others"),
        (swept_by(BASIC, batch=2, resume="x"), "in batches"),
        (swept_by(BASIC, batch=2, on_failure="continue"), r"hydra\.launcher\.on_failure"),
    ],
)
def test_what_a_sweeper_cannot_do_is_refused_with_the_reason(config: Any, message: str) -> None:
    settings = sweep_settings(OmegaConf.to_container(config.hydra.launcher))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        check_sweeper(config, settings)


def test_a_sweeper_may_say_which_objective_it_looks_for() -> None:
    config = swept_by(OPTUNA)
    assert sweepers_direction(config) is None
    for direction, expected in (("MAXIMIZE", "maximize"), (["minimize", "maximize"], None)):
        config.hydra.sweeper.direction = direction
        assert sweepers_direction(config) == expected


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
    assert references(master) == {"params.n", "size", "times.long", "shown", "name"}
    matters = decides(Loader(), master)  # type: ignore[arg-type]
    assert all(map(matters, ("size=2", "params.n=3", "+times={long: 2h}", "name=a", "shown=x")))
    assert all(map(matters, ("+launch.resources.gpus_per_proc=2", "+exp=resnet", "~db")))
    assert not any(map(matters, ("params.lr=launch.nproc", "sizes=3", "other=1", "launcher=2")))


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
