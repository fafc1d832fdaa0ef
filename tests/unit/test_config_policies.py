"""``launch.watchdog``, ``restart`` and ``console``: as they are written, and as Hydra composes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from lllaunch.app.launcher import SweepSettings, sweep_settings
from lllaunch.app.planning import install
from lllaunch.config.kinds import CONSOLE, PRESETS, with_spin, written_policy
from lllaunch.config.nodes import HostContext
from lllaunch.config.plan import complete, essential, plan_hash, portable_plan
from lllaunch.config.resolve import resolve
from lllaunch.config.schema import defaults, schema_node
from lllaunch.errors import ConfigError
from lllaunch.spec import RESTART_CAUSES, ConsolePolicy, LaunchSpec, RestartPolicy, WatchdogPolicy
from tests.unit import launch_nodes
from tests.unit.launch_nodes import complaints, mistakes, plan_text, read_back, spec_of

GIB = 1024**3
SPIN = frozenset({"spin"})


def watchdog_of(watchdog: Any) -> WatchdogPolicy:
    return spec_of({"watchdog": watchdog}).watchdog


def test_what_is_found_is_reported_and_ends_nothing_where_nothing_is_said() -> None:
    reported = WatchdogPolicy(stall=1800, spin=1800, report=frozenset({"stall", "spin"}))
    for unsaid in (None, {}, {"preset": None}, "report"):
        assert watchdog_of(unsaid) == reported
    for nothing in (False, "none", {"preset": "none"}):
        assert watchdog_of(nothing) == WatchdogPolicy()


def test_a_limit_says_what_follows() -> None:
    said = {"preset": "default", "stall": {"after": "10m", "action": "report"}, "memory": "1GiB"}
    assert watchdog_of(said) == WatchdogPolicy(
        timers=True, stall=600, spin=1800, warmup=300, memory=GIB, report=SPIN | {"stall"}
    )
    assert watchdog_of({"stall": {"after": "10m"}}) == WatchdogPolicy(
        stall=600, spin=1800, report=SPIN
    )
    assert watchdog_of({"stall": {"after": None, "action": "report"}}) == WatchdogPolicy()
    assert watchdog_of({"preset": "default", "stall": {"action": "report"}}) == WatchdogPolicy(
        timers=True, stall=1800, spin=1800, warmup=300, report=SPIN | {"stall"}
    )
    for progress in ({"within": "5m", "action": "report"}, {"within": 300}):
        policy = watchdog_of({"preset": "none", "progress": progress})
        assert policy.progress == watchdog_of({"progress": "5m"}).progress
        assert policy.report == ({"progress"} if "action" in progress else set())
    off = {"within": None, "action": "report"}
    assert watchdog_of({"preset": "none", "progress": off}) == WatchdogPolicy()
    written = written_policy(watchdog_of(said))
    assert written["stall"] == {"after": "10m", "action": "report"}
    assert watchdog_of(written) == watchdog_of(said)


@pytest.mark.parametrize(
    ("said", "spin", "reported"),
    [
        ({"stall": None}, None, False),
        ({"preset": "none", "stall": "2h"}, 7200, True),
        ({"preset": "default", "stall_scope": "rank"}, 1800, False),
        ({"preset": "strict", "stall": "2h"}, 7200, False),
        ({"preset": "strict", "stall_scope": "group"}, 1800, True),
        ({"stall_scope": "rank"}, 1800, True),
        ({"stall": None, "spin": "10m"}, 600, False),
        ({"spin": {"after": "10m", "action": "report"}}, 600, True),
        ({"preset": "strict", "spin": {"action": "report"}}, 1800, True),
        ({"preset": "default", "spin": None}, None, False),
    ],
)
def test_what_a_spin_is_follows_from_the_rest(
    said: dict[str, Any], spin: float | None, reported: bool
) -> None:
    spec = spec_of({"watchdog": said})
    assert (spec.watchdog.spin, "spin" in spec.watchdog.report) == (spin, reported)
    # a plan names it
    node = essential(portable_plan(spec))["launch"].get("watchdog", {})
    again = complete({"launch": {"watchdog": node}})["launch"]["watchdog"]
    assert watchdog_of(again) == spec.watchdog


@pytest.mark.parametrize("off", [None, False])
@pytest.mark.parametrize(
    "limit", ["timeout", "run_timeout", "stall", "silence", "spin", "heartbeat", "memory"]
)
def test_a_limit_can_be_turned_off(limit: str, off: Any) -> None:
    policy = watchdog_of({"preset": "strict", "timeout": "1h", "memory": "1GB", limit: off})
    assert getattr(policy, limit) is None
    assert policy.timers


@pytest.mark.parametrize(
    "watchdog",
    [
        "${oc.env:WATCH}",
        {"preset": "${oc.env:WATCH}", "memory": "1GiB"},
        {"preset": "default", "stall": "${oc.env:STALL}"},
    ],
)
def test_what_came_from_the_environment_is_named_and_not_written(
    watchdog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCH", "strict")
    monkeypatch.setenv("STALL", "1234s")
    spec = spec_of({"watchdog": watchdog})
    text = plan_text(spec)
    assert "${oc.env:" in text
    assert not {"strict", "stall: 5m", "1234s", "20m34s"} & {line.strip() for line in text.split()}
    again = read_back(text)
    assert again.watchdog == spec.watchdog
    assert plan_text(again) == text
    # as it is run again
    launch = complete(essential(portable_plan(spec)))["launch"]
    assert watchdog_of(launch["watchdog"]) == spec.watchdog


def test_a_mapping_that_undid_a_preset_unseen_is_refused() -> None:
    def composed(watchdog: Any) -> WatchdogPolicy:
        """As Hydra would hand it over: with every key of the schema."""
        return spec_of({**schema_node(), "entrypoint": "env", "watchdog": watchdog}).watchdog

    with pytest.raises(ConfigError) as caught:
        composed({"stall": "10m"})
    assert str(caught.value) == (
        "launch.watchdog: {stall: '10m'} names no preset, and has replaced what another config "
        "said; add preset: none, report, default or strict [preset]"
    )
    assert composed({"preset": "none", "stall": "10m"}) == watchdog_of({"stall": "10m"})
    everything = written_policy(PRESETS["strict"])
    assert composed(everything) == PRESETS["strict"]
    # as it was written before there was such a limit
    del everything["spin"]
    assert composed(everything) == PRESETS["strict"]


# Restarts


def with_restart(restart: Any, **more: Any) -> Any:
    return launch_nodes.spec_of({"restart": restart, **more})


def restart_of(restart: Any) -> RestartPolicy:
    return with_restart(restart).restart


def test_by_default_all_is_tried_again_at_once() -> None:
    assert restart_of(None) == restart_of({}) == restart_of(schema_node()["restart"])
    assert restart_of(None) == RestartPolicy(frozenset(RESTART_CAUSES), 0, 300)


@pytest.mark.parametrize(
    ("on", "causes"),
    [
        (["oom", "hang", "oom"], {"hang", "oom"}),
        ("oom, hang", {"hang", "oom"}),
        ("all", {*RESTART_CAUSES}),
        (["hang", "all"], {*RESTART_CAUSES}),
        (["none"], set()),
        (False, set()),
        (None, {*RESTART_CAUSES}),
    ],
)
def test_causes(on: Any, causes: set[str]) -> None:
    assert restart_of({"on": on}).on == causes


def test_an_unquoted_on_is_true_for_yaml_and_means_the_causes() -> None:
    written = yaml.safe_load("{on: [hang], delay: 1s}")
    assert True in written
    assert restart_of(written) == RestartPolicy(frozenset({"hang"}), 1, 300)
    # the command line's comes later
    assert restart_of({**written, "on": "oom"}).on == {"oom"}
    (line,) = complaints({"restart": {True: ["hgn"]}})
    assert line.startswith("launch.restart.on[0]: expected failure, signal, ")


def test_a_plan_names_the_causes_unless_they_are_all() -> None:
    every, named = with_restart(None), with_restart({"on": ["oom", "hang"]})
    assert plan_hash(every) == plan_hash(with_restart({"on": [*RESTART_CAUSES]}))
    assert plan_hash(every) != plan_hash(named)
    assert "restart" not in essential(portable_plan(every))["launch"]
    assert complete(essential(portable_plan(every)))["launch"]["restart"]["on"] == "all"
    for spec in (every, named):
        launch = yaml.safe_load(plan_text(spec))["launch"]
        assert with_restart(launch["restart"]).restart == spec.restart


def test_a_checkpoint_is_the_same_in_another_directory() -> None:
    portable = portable_plan(with_restart({"checkpoint": "/out/day/time/ckpt/latest"}))
    assert portable["launch"]["restart"]["checkpoint"] == "<output_dir>/ckpt/latest"


# The console


def console(tree: Any) -> ConsolePolicy:
    return spec_of({"console": tree}).console


def test_the_schema_says_the_defaults_of_the_console() -> None:
    assert console(defaults()["console"]) == console(None) == console({}) == ConsolePolicy()
    assert tuple(defaults()["console"]) == tuple(CONSOLE.fields)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"live": False, "quiet": True}, ConsolePolicy(live=False, quiet=True)),
        ({"color": "always"}, ConsolePolicy(color="always")),
        ({"color": "never", "live": None}, ConsolePolicy(color="never")),
        ({"interval": "10m"}, ConsolePolicy(interval=600)),
        ({"interval": None}, ConsolePolicy(interval=None)),
        ({"interval": False}, ConsolePolicy(interval=None)),
    ],
)
def test_what_is_said_of_the_console_holds(tree: Any, expected: ConsolePolicy) -> None:
    assert console(tree) == expected


def test_a_sweep_has_a_console_as_well() -> None:
    cfg = OmegaConf.create({"hydra": {"launcher": {"console": {"live": False, "color": "never"}}}})
    assert sweep_settings(cfg).console == ConsolePolicy(live=False, color="never")
    assert SweepSettings().console == ConsolePolicy()
    cfg = OmegaConf.create({"hydra": {"launcher": {"console": {"quiet": "x"}}}})
    with pytest.raises(ConfigError, match=r"hydra.launcher.console.quiet: expected true or false"):
        sweep_settings(cfg)


# What is wrong

MISTAKES = """
watchdog: true
    launch.watchdog: expected a preset (none, report, default, strict) or a mapping of settings,
    got true; write default [preset]
watchdog: strickt
    launch.watchdog: expected a preset (none, report, default, strict) or a mapping of settings,
    got 'strickt'; did you mean 'strict'? [preset]
watchdog: 30m
    launch.watchdog: expected a preset (none, report, default, strict) or a mapping of settings,
    got '30m' [preset]
watchdog: {stal: 3}
    launch.watchdog.stal: unknown setting; did you mean 'stall'? [unknown-key]
watchdog: {silence: {action: report}}
    launch.watchdog.silence: {action: 'report'} names no limit; add after: 30m [duration]
watchdog: {spin: {after: 1h, action: stop}}
    launch.watchdog.spin.action: expected end or report, got 'stop' [choice]
watchdog: {progress: {action: report}}
    launch.watchdog.progress: {action: 'report'} names no limit; add within: 30m [duration]
watchdog: {progress: often}
    launch.watchdog.progress: expected a duration (5m) or a mapping of pattern, within, first_within
    or action, got 'often'; write null for no limit [duration]
watchdog: {stall: "0.5"}
    launch.watchdog.stall: expected a duration of at least 1s, got '0.5'; write null for no limit
    [duration]
watchdog: {timeout: none}
    launch.watchdog.timeout: expected a duration (90, 90s, 10m, 1h30m, 1d), got 'none'; write null
    for no limit [duration]
watchdog: {memory: 16}
    launch.watchdog.memory: expected a size of at least 1MiB, got 16; a number without a unit is
    bytes: write 16GiB or 16MiB [size]
restart: all
    launch.restart: expected a mapping of settings (on, delay, max_delay, window, reset_on,
    max_without_progress, checkpoint, gpu_wait), got 'all'; causes go under 'on': {on: [hang, oom]}
    [type]
restart: {"on": hng}
    launch.restart.on: expected failure, signal, oom, hang, timeout, node, preflight, all or none,
    got 'hng'; did you mean 'hang'? [choice]
restart: {"on": [hang, none]}
    launch.restart.on: expected a list of causes (failure, signal, oom, hang, timeout, node,
    preflight), got ['hang', 'none']; write all or none [choice]
restart: {delay: 10s, max_delay: 5}
    launch.restart.delay: '10s' is more than launch.restart.max_delay, 5s; set max_delay as well
    [duration]
restart: {reset_on: checkpoint}
    launch.restart.reset_on: expected progress or null, got 'checkpoint' [choice]
restart: {dealy: 3}
    launch.restart.dealy: unknown setting; did you mean 'delay'? [unknown-key]
console: quiet
    launch.console: expected a mapping of settings (live, color, quiet, interval), got 'quiet'
    [type]
console: {live: auto}
    launch.console.live: expected true, false or null, got 'auto'; null is where there is a terminal
    for it [choice]
console: {color: false}
    launch.console.color: expected always, never or null, got false [choice]
console: {interval: 0.5}
    launch.console.interval: expected a duration of at least 1s, got 0.5; write null for no such
    lines [duration]
console: {colour: never}
    launch.console.colour: unknown setting; did you mean 'color'? [unknown-key]
"""


@pytest.mark.parametrize(("node", "told"), mistakes(MISTAKES))
def test_one_mistake_is_one_line(node: Any, told: str) -> None:
    assert complaints(node) == [told]


# As Hydra composes them

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


def composed(conf: Path, experiment: str, *overrides: str) -> LaunchSpec:
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
    assert composed(conf, experiment, *overrides.split()).watchdog == policy


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
    assert composed(conf, experiment, *overrides.split()).restart == policy
