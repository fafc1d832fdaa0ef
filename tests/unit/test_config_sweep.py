"""``hydra.launcher`` as `sweep_settings` reads it, and as Hydra composes it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from lllaunch.app.schema_store import install
from lllaunch.config.launcher_schema import LAUNCH_FIELDS, launcher_node
from lllaunch.config.plan import plan_node
from lllaunch.config.resolve import resolve
from lllaunch.config.schema import KEYS
from lllaunch.config.sweep import SWEEP_KEYS, SYNONYMS, SweepSettings, sweep_settings
from lllaunch.config.tree import show
from lllaunch.config.watchdog import with_spin
from lllaunch.errors import ConfigError
from lllaunch.spec import RESTART_CAUSES, LaunchSpec, Resources, RestartPolicy, WatchdogPolicy
from lllaunch.sweep.policy import Retries, SweepPolicy

HYDRAS = {"_target_", "_recursive_"}
OF_SEVERAL = ("nnodes", "node_rank", "rdzv")
OF_JOBS = ("entrypoint", "args", "log_dir", "run_id", "locked", *OF_SEVERAL)


def complaints(node: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        sweep_settings(node)
    return str(caught.value).splitlines()


# What the node says


def test_the_stored_node_says_the_defaults() -> None:
    assert sweep_settings(launcher_node()) == sweep_settings({}) == SweepSettings()
    assert sweep_settings(dict.fromkeys(SWEEP_KEYS)) == SweepSettings()


def test_the_stored_node_has_every_key_and_no_other() -> None:
    assert tuple(key for key in KEYS if key not in OF_JOBS) == LAUNCH_FIELDS
    assert {*launcher_node()} == {*SWEEP_KEYS, "cluster", *LAUNCH_FIELDS, *HYDRAS}
    assert not {*SWEEP_KEYS} & {*LAUNCH_FIELDS}
    assert OmegaConf.to_container(launcher_node().retries) == Retries()._asdict()
    # a job has one node
    assert {*Retries._fields} == {*RESTART_CAUSES} - {"node", "preflight"}


def test_the_stored_node_is_made_anew_each_time() -> None:
    launcher_node().retries.hang = 5
    assert launcher_node().retries.hang == 1


def test_the_stored_node_costs_no_import_that_hydra_has_not_made() -> None:
    code = (
        "import sys, hydra\n"
        "before = {*sys.modules}\n"
        "import lllaunch.config.launcher_schema\n"
        "print(sorted({*sys.modules} - before))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    names = {"lllaunch", "lllaunch.config", "lllaunch.config.launcher_schema"}
    assert printed.stdout.strip() == str(sorted(names))


def test_everything_at_once() -> None:
    node = OmegaConf.create(
        """
        max_parallel: 3
        gpus: [0, GPU-5e]
        cpus: 0-3, 8
        pin_cpus: true
        on_failure: {max_failures: 4}
        retries: {failure: 1, hang: 0}
        retry_delay: 1m30s
        direction: maximize
        resume: multirun/a b
        nproc: 7
        """
    )
    policy = SweepPolicy(3, 4, Retries(failure=1, hang=0), 90.0)
    limits = (0, "GPU-5e"), ("0-3", "8")
    expected = SweepSettings(policy, *limits, True, "maximize", "multirun/a b")
    assert sweep_settings(node) == expected


@pytest.mark.parametrize(
    ("limit", "read"),
    [
        (None, None),
        (0, 0),
        (4, 4),
        ("4", 4),
        (" 4 ", 4),
        ([], ()),
        ([1, "x"], (1, "x")),
        ("0,1", ("0", "1")),
        ("MIG-1", ("MIG-1",)),
    ],
)
def test_limits(limit: Any, read: Any) -> None:
    settings = sweep_settings({"gpus": limit, "cpus": limit})
    assert settings.gpus == settings.cpus == read


@pytest.mark.parametrize(
    ("written", "most"), [("continue", None), ("stop", 1), ({"max_failures": 3}, 3), (None, None)]
)
def test_failures_that_end_a_sweep(written: Any, most: int | None) -> None:
    assert sweep_settings({"on_failure": written}).policy.max_failures == most


def test_values_may_refer_to_the_config_and_to_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOBS", "3")
    cfg = OmegaConf.create(
        {
            "n": 2,
            "hydra": {"launcher": {"max_parallel": "${oc.env:JOBS}", "retries": {"oom": "${n}"}}},
        }
    )
    for node in (cfg.hydra.launcher, {key: cfg.hydra.launcher[key] for key in cfg.hydra.launcher}):
        policy = sweep_settings(node).policy
        assert (policy.max_parallel, policy.retries.oom) == (3, 2)


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"max_parallel": 0},
        "max_parallel: expected a whole number, 1 or more, got 0; null is as many",
    ),
    ({"max_parallel": True}, "max_parallel: expected a whole number, 1 or more, got true"),
    ({"max_parallel": 1.5}, "max_parallel: expected a whole number, 1 or more, got 1.5"),
    ({"max_paralel": 2}, "max_paralel: unknown setting; did you mean 'max_parallel'"),
    ({"n_jobs": 2}, "n_jobs: unknown setting; did you mean 'max_parallel'?"),
    ({"max_failures": 2}, "max_failures: unknown setting; did you mean 'on_failure."),
    ({"nprok": 2}, "nprok: unknown setting; did you mean 'nproc'?"),
    ({"log_dir": "x"}, "log_dir: unknown setting: each job has its own; set launch."),
    (
        {"gpus": "all"},
        "gpus: expected a number of GPUs (0, 1, 2, ...) or a list, got 'all'; null is all",
    ),
    (
        {"gpus": "none"},
        "gpus: expected a number of GPUs (0, 1, 2, ...) or a list, got 'none'; write 0",
    ),
    ({"gpus": -1}, "gpus: expected a number of GPUs (0, 1, 2, ...) or a list, got -1"),
    ({"gpus": True}, "gpus: expected a number of GPUs (0, 1, 2, ...) or a list, got true"),
    ({"gpus": "0,,1"}, "gpus: expected a number of GPUs (0, 1, 2, ...) or a list, got '0,,1'"),
    ({"gpus": ""}, "gpus: expected a number of GPUs (0, 1, 2, ...) or a list, got ''"),
    (
        {"cpus": {"a": 1}},
        "cpus: expected a number of CPU slots (0, 1, 2, ...) or a list, got {a: 1}",
    ),
    ({"cpus": [1, True]}, "cpus[1]: expected a number or a name, got true"),
    ({"pin_cpus": "yes"}, "pin_cpus: expected true or false, got 'yes'"),
    (
        {"on_failure": "abort"},
        "on_failure: expected continue, stop or {max_failures: 3}, got 'abort';",
    ),
    (
        {"on_failure": 2},
        "on_failure: expected continue, stop or {max_failures: 3}, got 2; did you me",
    ),
    (
        {"on_failure": {}},
        "on_failure: expected a number of failures, got {}; write {max_failures: 3}",
    ),
    ({"on_failure": {"max": 2}}, "on_failure.max: unknown setting; did you mean 'max_"),
    (
        {"on_failure": {"max_failures": 0}},
        "on_failure.max_failures: expected a whole number, 1 or more, got 0; wr",
    ),
    (
        {"retries": 3},
        "retries: expected a mapping of causes to numbers (failure, oom, hang, signal",
    ),
    ({"retries": 3}, "timeout), got 3; say for what: {failure: 3}"),
    ({"retries": {"memory": 1}}, "retries.memory: unknown setting; did you mean 'oom'?"),
    ({"retries": {"hang": -1}}, "retries.hang: expected a whole number, 0 or more, got -1"),
    (
        {"retry_delay": "1:30"},
        "retry_delay: expected a duration (90, 90s, 10m, 1h30m, 1d), got '1:30'; colons",
    ),
    (
        {"direction": "max"},
        "direction: expected minimize or maximize, got 'max'; did you mean 'maximize'?",
    ),
    ({"direction": ["minimize"]}, "direction: expected minimize or maximize, got ['minimize']"),
    ({"mode": "min"}, "mode: unknown setting; did you mean 'direction'?"),
    ({"resume": 3}, "resume: expected text, got 3; quote it"),
    ({"resume": ""}, "resume: expected text that is not empty, got ''"),
]


@pytest.mark.parametrize(("node", "told"), WRONG)
def test_what_is_wrong_is_told(node: dict[str, Any], told: str) -> None:
    (line,) = complaints(OmegaConf.create(node))
    assert line.startswith("hydra.launcher.")
    assert told in line


@pytest.mark.parametrize("key", SWEEP_KEYS)
def test_a_wrong_value_is_told_with_what_was_expected_and_what_came(key: str) -> None:
    for value in (True, 1.5, -1):
        if (key, value) in {("pin_cpus", True), ("retry_delay", 1.5)}:
            continue
        with pytest.raises(ConfigError) as caught:
            sweep_settings({key: value})
        line = str(caught.value)
        assert line.startswith(f"hydra.launcher.{key}: expected ")
        assert f", got {show(value)}" in line


def test_all_that_is_wrong_is_told_together_in_the_order_of_the_settings() -> None:
    node = {"resume": 3, "foo": 1, "retries": {"oom": "x"}, "gpus": [{}], "max_parallel": "x"}
    keys = [line.partition(": ")[0] for line in complaints(node)]
    expected = ["max_parallel", "gpus[0]", "retries.oom", "resume", "foo"]
    assert keys == [f"hydra.launcher.{key}" for key in expected]


def test_the_key_in_messages_is_the_callers() -> None:
    with pytest.raises(ConfigError, match=r"^here\.gpus: expected a number of GPUs"):
        sweep_settings({"gpus": True}, "here")


def test_a_value_from_the_environment_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMIT", "hunter2,")
    (line,) = complaints(OmegaConf.create({"gpus": "${oc.env:LIMIT}"}))
    assert line.startswith("hydra.launcher.gpus: expected a number of GPUs")
    assert "hunter2" not in line


def test_other_words_stand_for_settings_that_there_are() -> None:
    meant = {word.partition(".")[0] for word in SYNONYMS.values()}
    assert meant <= {*SWEEP_KEYS, *LAUNCH_FIELDS, *OF_JOBS}


# As Hydra composes it


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Path]:
    """Stores what the plugin and the app do. The plugin's stays: a plugin is loaded once."""
    store = ConfigStore.instance()
    root = store.load("hydra/config.yaml")
    install()
    store.store(group="hydra/launcher", name="lllaunch", node=launcher_node(), provider="lllaunch")
    yield tmp_path
    store.repo["hydra"]["config.yaml"] = root
    store.repo.pop("_lllaunch_schema.yaml", None)
    GlobalHydra.instance().clear()


def composed(directory: Path, *overrides: str, config: str | None = None) -> DictConfig:
    with initialize_config_dir(str(directory), version_base="1.3"):
        chosen = [] if config else ["hydra/launcher=lllaunch"]
        return compose(config, [*chosen, *overrides], return_hydra_config=True)


def spec_of(cfg: DictConfig) -> LaunchSpec:
    return resolve(cfg, runtime_cwd="/", output_dir="/out", outer="hydra.launcher")


@pytest.mark.parametrize(
    ("overrides", "policy"),
    [
        ("", SweepPolicy()),
        ("hydra.launcher.retries.hang=3", SweepPolicy(retries=Retries(hang=3))),
        ("hydra.launcher.retries={oom:2}", SweepPolicy(retries=Retries(oom=2))),
        ("hydra.launcher.on_failure=stop", SweepPolicy(max_failures=1)),
        ("hydra.launcher.on_failure.max_failures=3", SweepPolicy(max_failures=3)),
        ("hydra.launcher.on_failure={max_failures:3}", SweepPolicy(max_failures=3)),
        ("hydra.launcher.max_parallel=2", SweepPolicy(2)),
        ("hydra.launcher.retry_delay=10s", SweepPolicy(retry_delay=10)),
    ],
)
def test_what_a_command_line_makes_of_it(stored: Path, overrides: str, policy: SweepPolicy) -> None:
    node = composed(stored, *overrides.split()).hydra.launcher
    assert sweep_settings(node) == SweepSettings(policy)


def test_a_misspelt_key_on_the_command_line_gets_as_far_as_our_own_check(stored: Path) -> None:
    cfg = composed(stored, "hydra.launcher.max_paralel=2", "hydra.launcher.retries.hnag=1")
    assert complaints(cfg.hydra.launcher) == [
        "hydra.launcher.retries.hnag: unknown setting; did you mean 'hang'? [unknown-key]",
        "hydra.launcher.max_paralel: unknown setting; did you mean 'max_parallel'? [unknown-key]",
    ]


def test_launch_fields_on_the_command_line(stored: Path) -> None:
    overrides = [
        "hydra.launcher.env.A=b",
        "hydra.launcher.env.C=d",
        "hydra.launcher.watchdog.stall=10m",
        "hydra.launcher.resources.gpus_per_proc=2",
        "hydra.launcher.restart.on=[oom]",
        "hydra.launcher.nproc=3",
        "launch.entrypoint=env",
    ]
    spec = spec_of(composed(stored, *overrides))
    assert spec.env == {"A": "b", "C": "d"}
    assert spec.watchdog == with_spin(WatchdogPolicy(stall=600))
    assert spec.resources == Resources(2)
    assert spec.restart == RestartPolicy(frozenset({"oom"}))
    assert spec.nproc == 3


def test_a_jobs_own_value_on_the_command_line_wins_even_if_it_is_the_default(stored: Path) -> None:
    chosen = ("hydra.launcher.nproc=3", "launch.entrypoint=env")
    assert spec_of(composed(stored, *chosen, "launch.nproc=1")).nproc == 1
    assert spec_of(composed(stored, *chosen, "++launch.nproc=1")).nproc == 1
    assert spec_of(composed(stored, *chosen, "launch={nproc:1}")).nproc == 1


def test_files_may_say_it(stored: Path) -> None:
    (stored / "mine.yaml").write_text(
        "defaults: [override hydra/launcher: lllaunch, _self_]\n"
        "n: 4\n"
        "launch: {entrypoint: env, tee: all}\n"
        "hydra: {launcher: {nproc: '${n}', tee: none, watchdog: {timeout: 1h}, max_parallel: 2}}\n"
    )
    cfg = composed(stored, "hydra.launcher.watchdog.stall=10m", "n=5", config="mine")
    spec = spec_of(cfg)
    assert (spec.nproc, plan_node(spec)["launch"]["tee"]) == (5, "all")
    assert spec.watchdog == with_spin(WatchdogPolicy(stall=600, timeout=3600))
    assert sweep_settings(cfg.hydra.launcher).policy == SweepPolicy(2)


def test_a_preset_is_not_undone_by_a_key_that_replaces_its_name(stored: Path) -> None:
    overrides = ["hydra.launcher.watchdog=strict", "hydra.launcher.watchdog.stall=10m"]
    cfg = composed(stored, *overrides, "launch.entrypoint=env")
    with pytest.raises(ConfigError, match=r"hydra\.launcher\.watchdog: .* names no preset"):
        spec_of(cfg)


def test_a_cluster_that_there_is_none_of_is_refused(stored: Path) -> None:
    for override in ("hydra.launcher.cluster=slrum", "hydra.launcher.cluster={backend: slrum}"):
        cfg = composed(stored, override, "launch.entrypoint=env")
        with pytest.raises(ConfigError) as caught:
            sweep_settings(cfg.hydra.launcher)
        assert str(caught.value) == (
            "hydra.launcher.cluster: expected 'slurm', got 'slrum'; did you mean 'slurm'? [cluster]"
        )
    cfg = composed(stored, "hydra.launcher.cluster=slurm", "launch.entrypoint=env")
    assert sweep_settings(cfg.hydra.launcher) == SweepSettings()
