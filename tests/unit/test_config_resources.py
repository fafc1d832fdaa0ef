"""``launch.resources``, what a job needs by it, and GPUs that are only pretended."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf
from support.nvml import FakeNvml

from lllaunch.config.fields import Unfit
from lllaunch.config.plan import plan_node, plan_text
from lllaunch.config.resolve import resolve
from lllaunch.config.resources import RESOURCE_KEYS, SYNONYMS
from lllaunch.config.schema import schema_node
from lllaunch.config.values import count_gpus
from lllaunch.errors import ConfigError
from lllaunch.spec import LaunchSpec, Resources
from lllaunch.sweep.pool import Need, need_of


def spec_of(launch: dict[str, Any], **more: Any) -> LaunchSpec:
    cfg = OmegaConf.create({"launch": {"entrypoint": "env", **launch}})
    return resolve(cfg, runtime_cwd="/", output_dir="/out", **more)


@pytest.mark.parametrize(
    ("written", "resources"),
    [
        (None, Resources()),
        ({}, Resources()),
        (schema_node()["resources"], Resources()),
        ({"gpus_per_proc": 2}, Resources(2)),
        ({"gpus_per_proc": "2", "cpus_per_proc": 0}, Resources(2, 0)),
        ({"gpus_per_proc": None, "cpus_per_proc": 4}, Resources(None, 4)),
    ],
)
def test_resources_are_read_and_written(written: Any, resources: Resources) -> None:
    spec = spec_of({"resources": written})
    assert spec.resources == resources
    assert plan_node(spec)["launch"]["resources"] == resources._asdict()
    again = OmegaConf.create(plan_text(spec))
    assert resolve(again, runtime_cwd="/", output_dir="/out") == spec


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"gpu_per_proc": 1}, ".gpu_per_proc: unknown setting; did you mean 'gpus_per_"),
        ({"gpus": 1}, ".gpus: unknown setting; did you mean 'gpus_per_proc'?"),
        ({"gpus_per_proc": -1}, ".gpus_per_proc: expected a whole number, 0 or more, got -1"),
        ({"cpus_per_proc": 0.5}, ".cpus_per_proc: expected a whole number, 0 or more, got 0.5"),
        ({"cpus_per_proc": True}, ".cpus_per_proc: expected a whole number, 0 or more, got true"),
        (
            2,
            (
                ": expected a mapping of numbers (gpus_per_proc, "
                "cpus_per_proc), got 2; did you mean {gpus_"
            ),
        ),
        ("gpu", ": expected a mapping of numbers (gpus_per_proc, cpus_per_proc), got 'gpu'"),
        ({"gpus_per_proc": "${nope}"}, ".gpus_per_proc: '${nope}' cannot be resolved"),
    ],
)
def test_what_is_wrong_is_told(written: Any, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_of({"resources": written})
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"launch.resources{told}")


def test_what_comes_from_the_environment_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NGPUS", "3")
    spec = spec_of({"resources": {"gpus_per_proc": "${oc.env:NGPUS}"}})
    assert spec.resources == Resources(3)
    written = {"gpus_per_proc": "${oc.env:NGPUS}", "cpus_per_proc": None}
    assert plan_node(spec)["launch"]["resources"] == written


def test_other_words_stand_for_settings_that_there_are() -> None:
    assert {*SYNONYMS.values()} <= {*RESOURCE_KEYS, "launch.nproc", "launch.watchdog.memory"}
    assert not {*SYNONYMS} & {*RESOURCE_KEYS}


@pytest.mark.parametrize(
    ("gpus", "cpus", "with_gpus", "without"),
    [
        (None, None, Need(3, 0), Need(0, 3)),
        (None, 2, Need(3, 6), Need(0, 6)),
        (None, 0, Need(3, 0), Need(0, 0)),
        (0, None, Need(0, 3), Need(0, 3)),
        (0, 2, Need(0, 6), Need(0, 6)),
        (0, 0, Need(0, 0), Need(0, 0)),
        (2, None, Need(6, 0), Need(6, 0)),
        (2, 1, Need(6, 3), Need(6, 3)),
    ],
)
def test_what_a_job_of_three_workers_needs(
    gpus: int | None, cpus: int | None, with_gpus: Need, without: Need
) -> None:
    assert need_of(3, Resources(gpus, cpus), True, 8) == with_gpus
    assert need_of(3, (gpus, cpus), False, 8) == without


# LLLAUNCH_PRETEND_GPUS


@pytest.mark.parametrize(
    ("environ", "nproc"),
    [
        ({"LLLAUNCH_PRETEND_GPUS": "a,b,c"}, 3),
        ({"LLLAUNCH_PRETEND_GPUS": "a,b,c", "CUDA_VISIBLE_DEVICES": "c,a"}, 2),
        ({"LLLAUNCH_PRETEND_GPUS": "a,b,c", "CUDA_VISIBLE_DEVICES": "b,x,a"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 1),
        ({}, 2),
    ],
)
def test_a_worker_for_each_pretended_gpu(environ: dict[str, str], nproc: int) -> None:
    assert spec_of({"nproc": "gpu"}, environ=environ, nvml=FakeNvml(None, None)).nproc == nproc


def test_the_variable_of_the_config_chooses_among_them() -> None:
    environ = {"LLLAUNCH_PRETEND_GPUS": "a,b,c"}
    launch = {"nproc": "gpu", "env": {"CUDA_VISIBLE_DEVICES": "b"}}
    assert spec_of(launch, environ=environ).nproc == 1


def test_an_empty_value_means_that_there_are_none() -> None:
    with pytest.raises(ConfigError, match=r"launch\.nproc: 'gpu' found no visible GPU"):
        spec_of({"nproc": "gpu"}, environ={"LLLAUNCH_PRETEND_GPUS": ""}, nvml=FakeNvml(None))


@pytest.mark.parametrize("names", ["a,a", "a,,b", "a b"])
def test_names_that_are_none_are_told(names: str) -> None:
    with pytest.raises(Unfit) as caught:
        count_gpus(None, pretended=names)
    assert caught.value.detail.startswith(
        "LLLAUNCH_PRETEND_GPUS: expected a list of different names"
    )
    with pytest.raises(
        ConfigError, match="'gpu' cannot be counted: LLLAUNCH_PRETEND_GPUS: expected"
    ):
        spec_of({"nproc": "gpu"}, environ={"LLLAUNCH_PRETEND_GPUS": names})


def test_a_job_of_more_workers_than_cores_has_them_all() -> None:
    assert need_of(4, (None, None), False, 2) == Need(0, 2)
    assert need_of(4, (None, None), True, 2) == Need(4, 0)
    # who says how many means that
    assert need_of(4, (None, 1), False, 2) == Need(0, 4)
