"""``hydra.launcher`` as `sweep_settings` reads it, and as Hydra composes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from lllaunch.app.launcher import SWEEP, SweepSettings, sweep_settings
from lllaunch.app.planning import install
from lllaunch.config.nodes import HostContext
from lllaunch.config.resolve import resolve
from lllaunch.config.schema import launcher_node
from lllaunch.errors import ConfigError
from lllaunch.spec import KEYS, LAUNCH_FIELDS, RESTART_CAUSES, Cluster, LaunchSpec
from lllaunch.sweep.schedule import Retries, SweepPolicy
from tests.unit.launch_nodes import mistakes

HYDRAS = {"_target_", "_recursive_"}
OF_SEVERAL = ("nnodes", "node_rank", "rdzv")
OF_JOBS = ("entrypoint", "args", "log_dir", "run_id", "locked", "not_secret", *OF_SEVERAL)


def settings_of(node: Any) -> SweepSettings:
    return sweep_settings(OmegaConf.create({"hydra": {"launcher": node}}))


def complaints(node: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        settings_of(node)
    return str(caught.value).splitlines()


# What the node says


def test_the_stored_node_says_the_defaults() -> None:
    assert settings_of(launcher_node()) == settings_of({}) == SweepSettings()
    assert settings_of(dict.fromkeys(SWEEP)) == SweepSettings()


def test_the_stored_node_has_every_key_and_no_other() -> None:
    assert tuple(key for key in KEYS if key not in OF_JOBS) == LAUNCH_FIELDS
    assert {*launcher_node()} == {*SWEEP, "cluster", *LAUNCH_FIELDS, *HYDRAS}
    assert {*SWEEP} & {*LAUNCH_FIELDS} == {"console"}
    assert OmegaConf.to_container(launcher_node().retries) == Retries()._asdict()
    # a job has one node
    assert {*Retries._fields} == {*RESTART_CAUSES} - {"node", "preflight"}


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
    assert settings_of(node) == expected


@pytest.mark.parametrize(
    ("limit", "read"),
    [(4, 4), ("4", 4), ([1, "x"], (1, "x")), ("0,1", ("0", "1")), ("MIG-1", ("MIG-1",))],
)
def test_limits(limit: Any, read: Any) -> None:
    settings = settings_of({"gpus": limit, "cpus": limit})
    assert settings.gpus == settings.cpus == read


MISTAKES = """
max_paralel: 2
    max_paralel: unknown setting; did you mean 'max_parallel'? [unknown-key]
log_dir: x
    log_dir: unknown setting; each job has its own: set launch.log_dir [unknown-key]
nnodes: 2
    nnodes: unknown setting; start a run of several nodes by itself, without -m, or set cluster
    [unknown-key]
gpus: all
    gpus: expected a number (0, 1, 2, ...) or a list of which, got 'all'; null is all of them, 0 is
    none [number]
cpus: -1
    cpus: expected a number (0, 1, 2, ...) or a list of which, got -1 [number]
cpus: [1, true]
    cpus[1]: expected a number or a name, got true [type]
on_failure: 2
    on_failure: expected continue, stop or {max_failures: 3}, got 2 [choice]
on_failure: {}
    on_failure.max_failures: expected a whole number, 1 or more, got null; write on_failure:
    continue for no limit [number]
retries: 3
    retries: expected a mapping of causes to numbers (failure, oom, hang, signal, timeout), got 3;
    say for what: {failure: 3} [type]
retries: {ooms: 1}
    retries.ooms: unknown setting; did you mean 'oom'? [unknown-key]
direction: maximise
    direction: expected minimize or maximize, got 'maximise'; did you mean 'maximize'?
    [choice]
"""


@pytest.mark.parametrize(("node", "told"), mistakes(MISTAKES))
def test_one_mistake_is_one_line(node: dict[str, Any], told: str) -> None:
    assert complaints(OmegaConf.create(node)) == [f"hydra.launcher.{told}"]


# As Hydra composes it


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Stores what the plugin and the app do; where a user's files would be."""
    install()
    node = launcher_node()
    ConfigStore.instance().store(group="hydra/launcher", name="lllaunch", node=node, provider="us")
    return tmp_path


def composed(directory: Path, *overrides: str, config: str | None = None) -> DictConfig:
    with initialize_config_dir(str(directory), version_base="1.3"):
        chosen = [] if config else ["hydra/launcher=lllaunch"]
        return compose(config, [*chosen, *overrides], return_hydra_config=True)


def spec_of(cfg: DictConfig) -> LaunchSpec:
    return resolve(cfg, HostContext(runtime_cwd="/", output_dir="/out", outer="hydra.launcher"))


@pytest.mark.parametrize(
    ("overrides", "policy"),
    [
        ("", SweepPolicy()),
        ("hydra.launcher.retries.hang=3", SweepPolicy(retries=Retries(hang=3))),
        ("hydra.launcher.retries={oom:2}", SweepPolicy(retries=Retries(oom=2))),
        ("hydra.launcher.on_failure=stop", SweepPolicy(max_failures=1)),
        ("hydra.launcher.on_failure.max_failures=3", SweepPolicy(max_failures=3)),
    ],
)
def test_what_a_command_line_makes_of_it(stored: Path, overrides: str, policy: SweepPolicy) -> None:
    assert sweep_settings(composed(stored, *overrides.split())) == SweepSettings(policy)


def test_a_jobs_own_value_on_the_command_line_wins_even_if_it_is_the_default(stored: Path) -> None:
    chosen = ("hydra.launcher.nproc=3", "launch.entrypoint=env")
    assert spec_of(composed(stored, *chosen, "launch.nproc=1")).nproc == 1
    assert spec_of(composed(stored, *chosen, "++launch.nproc=1")).nproc == 1
    assert spec_of(composed(stored, *chosen, "launch={nproc:1}")).nproc == 1


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("cluster=slrum", "cluster: expected 'slurm', got 'slrum'; did you mean 'slurm'?"),
        ("cluster={requeue: 0}", "cluster.requeue: expected a mapping of causes to numbers ("),
        ("nodes=x", "nodes: expected a whole number, 1 or more, got 'x'"),
        ("cluster=${nope}", "cluster: '${nope}' cannot be resolved: Interpolation key 'nope'"),
        (
            "timeout_min=1",
            "cluster: 90 is not less than the time limit, cluster.timeout_min; the run",
        ),
    ],
)
def test_a_problem_with_the_launchers_cluster_has_its_key_there(
    stored: Path, override: str, told: str
) -> None:
    chosen = () if override.startswith("cluster") else ("hydra.launcher.cluster=slurm",)
    cfg = composed(stored, *chosen, f"++hydra.launcher.{override}", "launch.entrypoint=env")
    with pytest.raises(ConfigError) as caught:
        spec_of(cfg)
    assert str(caught.value).startswith(f"hydra.launcher.{told}")


def test_the_launchers_cluster_has_submitits_keys_beside_it(stored: Path) -> None:
    beside = ("hydra.launcher.cluster={nodes: 2}", "+hydra.launcher.partition=${p}")
    ignored = "+hydra.launcher.submitit_folder=${nope}"
    cfg = composed(stored, *beside, ignored, "+p=long", "launch.entrypoint=env")
    cluster = spec_of(cfg).cluster
    assert cluster is not None
    assert (cluster.settings, cluster.nodes) == ({"partition": "long"}, 2)
    cfg = composed(stored, *beside, "+p=long", "launch.entrypoint=env", "+cluster.backend=slurm")
    assert spec_of(cfg).cluster == Cluster()
