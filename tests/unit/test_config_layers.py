"""Schema, then ``hydra.launcher``, then the job's own ``launch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from omegaconf import OmegaConf

from lllaunch.config.kinds import PRESETS, with_spin
from lllaunch.config.nodes import HostContext
from lllaunch.config.resolve import resolve
from lllaunch.config.schema import DEFAULT_PRESET, launcher_node, schema_node
from lllaunch.errors import ConfigError
from lllaunch.spec import LAUNCH_FIELDS, LaunchSpec, RestartPolicy, WatchdogPolicy

HERE = str(Path(__file__).parent)

# Something else than the default for each of them.
OTHER: dict[str, Any] = {
    "nproc": 2,
    "role": "trainer",
    "start_method": "spawn",
    "preload": ["json"],
    "cwd": "..",
    "env": {"A": "1"},
    "env_per_rank": {0: {"B": "2"}},
    "redirects": "err",
    "tee": "none",
    "local_ranks_filter": "0",
    "duplicate_stdout_filters": "loss",
    "duplicate_stderr_filters": "Warning",
    "log_line_prefix": "> ",
    "collapse": False,
    "grace_period": "5s",
    "leftovers": "10s",
    "signals": "SIGUSR1",
    "watchdog": "strict",
    "max_restarts": 3,
    "restart": {"on": ["oom"]},
    "resources": {"cpus_per_proc": 2},
    "min_disk": "1GiB",
    "preflight": ["env"],
    "virtual_local_rank": True,
    "samples": "1m",
    "console": {"quiet": True},
}


def spec_of(launcher: Any, launch: Any = None, **root: Any) -> LaunchSpec:
    cfg = {"hydra": {"launcher": launcher}, **root}
    if launch is not None:
        cfg["launch"] = launch
    return resolve(
        OmegaConf.create(cfg),
        HostContext(
            runtime_cwd=HERE,
            output_dir="/out",
            outer="hydra.launcher",
            entrypoint_required=False,
        ),
    )


def complaints(launcher: Any, launch: Any = None, **root: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        spec_of(launcher, launch, **root)
    return str(caught.value).splitlines()


def alone(launch: Any) -> LaunchSpec:
    """What the launch node alone would give."""
    return resolve(
        OmegaConf.create({"launch": launch}),
        HostContext(
            runtime_cwd=HERE,
            output_dir="/out",
            entrypoint_required=False,
        ),
    )


@pytest.mark.parametrize("name", LAUNCH_FIELDS)
@pytest.mark.parametrize("launch", [None, {}, schema_node()], ids=["none", "empty", "composed"])
def test_a_value_of_the_launcher_is_stronger_than_the_default(name: str, launch: Any) -> None:
    if name == "redirects":
        launch = {**(launch or {}), "tee": "none"}  # which would redirect as well
    base = {"tee": "none"} if name == "redirects" else {}
    expected = alone({**base, name: OTHER[name]})
    assert expected != alone(base)
    assert spec_of({name: OTHER[name]}, launch) == expected
    assert spec_of({**launcher_node(), name: OTHER[name]}, launch) == expected


@pytest.mark.parametrize("name", LAUNCH_FIELDS)
def test_a_value_of_the_job_is_stronger(name: str) -> None:
    launcher = dict.fromkeys(LAUNCH_FIELDS) | {name: "not at all"}
    assert spec_of(launcher, {name: OTHER[name]}) == alone({name: OTHER[name]})


def test_where_hydra_composed_the_schema_a_default_counts_as_not_given() -> None:
    composed = {**schema_node(), "max_restarts": 2}
    spec = spec_of({"nproc": 4, "max_restarts": 9, "role": "r"}, composed)
    assert (spec.nproc, spec.max_restarts, spec.role) == (4, 2, "r")


def test_mappings_are_taken_whole() -> None:
    launcher = {"env": {"A": "1"}, "watchdog": {"stall": "10m"}, "restart": {"delay": "1s"}}
    spec = spec_of(launcher, {"env": {"B": "2"}, "watchdog": {"timeout": "1h"}})
    assert spec.env == {"B": "2"}
    assert spec.watchdog == structs.replace(PRESETS[DEFAULT_PRESET], timeout=3600)
    assert spec.restart == RestartPolicy(delay=1)


def test_a_null_of_the_job_sets_nothing() -> None:
    composed = {**schema_node(), "env": None, "watchdog": None}
    spec = spec_of({"env": {"A": "1"}, "watchdog": {"stall": "5m"}}, composed)
    assert (spec.env, spec.watchdog) == ({"A": "1"}, with_spin(WatchdogPolicy(stall=300)))


def test_problems_name_where_the_value_stands() -> None:
    launcher = {"nproc": 0, "env": {"RANK": 1}, "watchdog": {"stal": 3}, "signals": ["SIGKILL"]}
    keys = [line.partition(": ")[0] for line in complaints(launcher, {"max_restarts": -1})]
    assert keys == [
        "hydra.launcher.nproc",
        "hydra.launcher.env.RANK",
        "hydra.launcher.signals[0]",
        "hydra.launcher.watchdog.stal",
        "launch.max_restarts",
    ]
