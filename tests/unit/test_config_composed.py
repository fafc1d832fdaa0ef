"""``launch.watchdog`` and ``launch.restart`` as Hydra composes them from files and overrides."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from lllaunch.app.planning import install
from lllaunch.config.kinds import with_spin
from lllaunch.config.nodes import HostContext
from lllaunch.config.resolve import resolve
from lllaunch.spec import RESTART_CAUSES, LaunchSpec, RestartPolicy, WatchdogPolicy

GIB = 1024**3
DEFAULT = with_spin(WatchdogPolicy(timers=True, stall=1800, warmup=300))
REPORT = with_spin(WatchdogPolicy(stall=1800, report=frozenset({"stall"})))
STRICT = with_spin(
    WatchdogPolicy(timers=True, stall=300, stall_scope="rank", warmup=300, heartbeat=300)
)

EXPERIMENTS = {
    "plain": "{entrypoint: env}",
    "by_name": "{entrypoint: env, watchdog: default}",
    "mapping": """
  entrypoint: env
  watchdog: {preset: default, timeout: 1h}
  restart: {on: [hang, oom], delay: 1s}""",
    "nothing": "{entrypoint: env, watchdog: null, restart: null}",
}


@pytest.fixture(autouse=True)
def _schema() -> None:
    install()


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "exp").mkdir()
    for name, launch in EXPERIMENTS.items():
        text = f"# @package _global_\nlaunch: {launch}\n"
        (tmp_path / "exp" / f"{name}.yaml").write_text(text)
    return tmp_path


def spec(conf: Path, experiment: str, *overrides: str) -> LaunchSpec:
    with initialize_config_dir(str(conf), version_base="1.3"):
        cfg = compose(None, [f"+exp={experiment}", *overrides])
    return resolve(cfg, HostContext(runtime_cwd="/", output_dir="/out"))


HOUR = with_spin(WatchdogPolicy(timers=True, timeout=3600, stall=600, warmup=300, memory=8 * GIB))


@pytest.mark.parametrize(
    ("experiment", "overrides", "policy"),
    [
        ("plain", "", REPORT),
        ("plain", "launch.watchdog.preset=strict", STRICT),
        ("plain", "launch.watchdog.stall=10m", with_spin(WatchdogPolicy(stall=600))),
        ("plain", "+launch.watchdog.stall=10m", with_spin(WatchdogPolicy(stall=600))),
        ("by_name", "", DEFAULT),
        ("by_name", "launch.watchdog=false", WatchdogPolicy()),
        ("mapping", "launch.watchdog=strict", STRICT),
        ("mapping", "launch.watchdog.timeout=null", DEFAULT),
        ("mapping", "launch.watchdog.stall=10m launch.watchdog.memory=8GiB", HOUR),
        ("nothing", "", REPORT),
    ],
)
def test_what_a_command_line_makes_of_the_watchdog(
    conf: Path, experiment: str, overrides: str, policy: WatchdogPolicy
) -> None:
    assert spec(conf, experiment, *overrides.split()).watchdog == policy


@pytest.mark.parametrize(
    ("experiment", "overrides", "policy"),
    [
        ("plain", "launch.restart.delay=5s", RestartPolicy(delay=5)),
        ("plain", "launch.restart.on=none", RestartPolicy(frozenset())),
        ("mapping", "launch.restart={on:[oom],delay:0}", RestartPolicy(frozenset({"oom"}))),
        ("mapping", "launch.restart.on=all", RestartPolicy(frozenset(RESTART_CAUSES), 1)),
        ("nothing", "", RestartPolicy()),
    ],
)
def test_what_a_command_line_makes_of_restarts(
    conf: Path, experiment: str, overrides: str, policy: RestartPolicy
) -> None:
    assert spec(conf, experiment, *overrides.split()).restart == policy
