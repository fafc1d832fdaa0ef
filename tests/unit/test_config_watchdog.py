"""``launch.watchdog``: presets, mappings, and what is said about mistakes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from lllaunch.config.plan import complete, essential, plan_hash, plan_text, portable_plan
from lllaunch.config.resolve import resolve
from lllaunch.config.schema import PRESETS, schema_node
from lllaunch.config.watchdog import SYNONYMS, WATCHDOG_KEYS, with_spin, written_policy
from lllaunch.errors import ConfigError
from lllaunch.spec import LaunchSpec, WatchdogPolicy

GIB = 1024**3
NAMES = "none, report, default, strict"
SPIN = frozenset({"spin"})


def spec_of(launch: Any, **root: Any) -> LaunchSpec:
    launch = OmegaConf.merge({"entrypoint": "env"}, launch)
    cfg = OmegaConf.create({"launch": launch, **root})
    return resolve(cfg, runtime_cwd="/", output_dir="/out")


def policy_of(watchdog: Any) -> WatchdogPolicy:
    return spec_of({"watchdog": watchdog}).watchdog


def complaints(watchdog: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        spec_of({"watchdog": watchdog})
    return str(caught.value).splitlines()


def test_nothing_is_watched_where_the_config_says_so() -> None:
    for nothing in (False, "none", {"preset": "none"}):
        assert policy_of(nothing) == WatchdogPolicy()


def test_what_is_found_is_reported_and_ends_nothing_where_nothing_is_said() -> None:
    reported = WatchdogPolicy(stall=1800, spin=1800, report=frozenset({"stall", "spin"}))
    assert spec_of({}).watchdog == reported
    for unsaid in (None, {}, {"preset": None}, "report"):
        assert policy_of(unsaid) == reported


def test_a_limit_says_what_follows() -> None:
    said = {"preset": "default", "stall": {"after": "10m", "action": "report"}, "memory": "1GiB"}
    assert policy_of(said) == WatchdogPolicy(
        timers=True, stall=600, spin=1800, warmup=300, memory=GIB, report=SPIN | {"stall"}
    )
    assert policy_of({"stall": {"after": "10m"}}) == WatchdogPolicy(
        stall=600, spin=1800, report=SPIN
    )
    assert policy_of({"stall": {"after": None, "action": "report"}}) == WatchdogPolicy()
    assert policy_of({"preset": "default", "stall": {"action": "report"}}) == WatchdogPolicy(
        timers=True, stall=1800, spin=1800, warmup=300, report=SPIN | {"stall"}
    )
    written = written_policy(policy_of(said))
    assert written["stall"] == {"after": "10m", "action": "report"}
    assert policy_of(written) == policy_of(said)


def test_the_presets() -> None:
    assert policy_of("default") == WatchdogPolicy(
        timers=True, stall=1800, stall_scope="group", spin=1800, warmup=300, report=SPIN
    )
    assert policy_of("strict") == WatchdogPolicy(
        timers=True, stall=300, stall_scope="rank", spin=1800, warmup=300, heartbeat=300
    )
    # only the user can know these
    assert {(p.timeout, p.run_timeout, p.memory) for p in PRESETS.values()} == {(None, None, None)}


def test_no_preset_is_a_boolean_in_yaml() -> None:
    assert all(yaml.safe_load(name) == name for name in PRESETS)


def test_a_mapping_changes_a_preset() -> None:
    changed = {"preset": "strict", "stall": "10m", "memory": "8GiB", "heartbeat": None}
    assert policy_of(changed) == WatchdogPolicy(
        timers=True, stall=600, stall_scope="rank", spin=1800, warmup=300, memory=8 * GIB
    )
    assert policy_of({"stall": 90}) == WatchdogPolicy(stall=90, spin=1800, report=SPIN)


@pytest.mark.parametrize(
    ("said", "spin", "reported"),
    [
        ({"stall": None}, None, False),
        ({"preset": "none"}, None, False),
        ({"preset": "none", "stall": "2h"}, 7200, True),
        ({"preset": "default", "stall": "2h"}, 7200, True),
        ({"preset": "default", "stall_scope": "rank"}, 1800, False),
        ({"preset": "strict", "stall": "2h"}, 7200, False),
        ({"preset": "strict", "stall_scope": "group"}, 1800, True),
        ({"stall_scope": "rank"}, 1800, True),
        ({"stall": None, "spin": "10m"}, 600, False),
        ({"spin": {"after": "10m", "action": "report"}}, 600, True),
        ({"preset": "strict", "spin": {"action": "report"}}, 1800, True),
        ({"preset": "default", "spin": None}, None, False),
        ({"spin": "10m", "stall_scope": "rank"}, 600, False),
    ],
)
def test_what_a_spin_is_follows_from_the_rest(
    said: dict[str, Any], spin: float | None, reported: bool
) -> None:
    spec = spec_of({"watchdog": said})
    assert (spec.watchdog.spin, "spin" in spec.watchdog.report) == (spin, reported)
    # in a plan as well, where it is named only if it does not
    node = essential(portable_plan(spec))["launch"].get("watchdog", {})
    assert ("spin" in node) is ("spin" in said and spec.watchdog != with_spin(spec.watchdog))
    again = complete({"launch": {"watchdog": node}})["launch"]["watchdog"]
    assert policy_of(again) == spec.watchdog


def test_a_spin_after_a_time_of_the_environment_is_in_no_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STALL", "4321s")
    spec = spec_of({"watchdog": {"preset": "strict", "stall": "${oc.env:STALL}"}})
    assert spec.watchdog.spin == 4321
    plan = portable_plan(spec)
    assert "spin" not in plan["launch"]["watchdog"]
    assert complete(essential(plan)) == plan
    assert policy_of(plan["launch"]["watchdog"]) == spec.watchdog


def test_everything_can_be_said() -> None:
    said = yaml.safe_load(
        "{timers: true, timeout: 1h, run_timeout: 1d, stall: 1s, stall_scope: rank, silence: 4s,"
        " spin: 5s, warmup: 0, heartbeat: 1.5, memory: 1MiB}"
    )
    assert policy_of(said) == WatchdogPolicy(
        timers=True,
        timeout=3600,
        run_timeout=86400,
        stall=1,
        stall_scope="rank",
        silence=4,
        spin=5,
        warmup=0,
        heartbeat=1.5,
        memory=1024**2,
    )


@pytest.mark.parametrize("off", [None, False])
@pytest.mark.parametrize(
    "limit", ["timeout", "run_timeout", "stall", "silence", "spin", "heartbeat", "memory"]
)
def test_a_limit_can_be_turned_off(limit: str, off: Any) -> None:
    policy = policy_of({"preset": "strict", "timeout": "1h", "memory": "1GB", limit: off})
    assert getattr(policy, limit) is None
    assert policy.timers


def test_values_may_come_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALL", "5m")
    launch = {"watchdog": {"preset": "${params.watch}", "stall": "${oc.env:STALL}"}}
    spec = spec_of(launch, params={"watch": "strict"})
    assert spec.watchdog.stall == 300
    assert spec.watchdog.stall_scope == "rank"


def plan_of(spec: LaunchSpec) -> Any:
    return yaml.safe_load(plan_text(spec))["launch"]["watchdog"]


def test_a_plan_says_what_a_preset_means() -> None:
    plan = plan_of(spec_of({"watchdog": "strict"}))
    assert list(plan) == list(WATCHDOG_KEYS)
    assert plan == {
        "timers": True,
        "timeout": None,
        "run_timeout": None,
        "stall": "5m",
        "stall_scope": "rank",
        "silence": None,
        "spin": "30m",
        "warmup": "5m",
        "heartbeat": "5m",
        "memory": None,
        "collectives": True,
        "progress": None,
    }


def test_the_hash_of_a_plan_is_that_of_the_meaning() -> None:
    def hash_of(watchdog: Any) -> str:
        return plan_hash(spec_of({"watchdog": watchdog}))

    assert hash_of("default") == hash_of({"preset": "default", "stall": 1800})
    assert hash_of("none") == hash_of({"stall": False}) != hash_of(None) == hash_of("report")
    assert hash_of("default") != hash_of("strict")
    assert hash_of({"memory": "1GiB"}) == hash_of({"memory": "1024MiB"}) != hash_of("none")


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
    again = resolve(OmegaConf.create(text), runtime_cwd="/", output_dir="/out")
    assert again.watchdog == spec.watchdog
    assert plan_text(again) == text
    # as it is run again
    launch = complete(essential(portable_plan(spec)))["launch"]
    assert policy_of(launch["watchdog"]) == spec.watchdog


# A value of `watchdog`, and what is told after `launch.watchdog`.
MISTAKES = [
    (
        True,
        f": expected a preset ({NAMES}) or a mapping of settings, got true; write default [preset]",
    ),
    (
        "yes",
        (
            f": expected a preset ({NAMES}) or a mapping of settings, got 'yes'; "
            "write default [preset]"
        ),
    ),
    (
        "off",
        f": expected a preset ({NAMES}) or a mapping of settings, got 'off'; write none [preset]",
    ),
    (
        "strickt",
        (
            f": expected a preset ({NAMES}) or a mapping of settings, got "
            "'strickt'; did you mean 'strict'? [preset]"
        ),
    ),
    (
        "30m",
        (
            f": expected a preset ({NAMES}) or a mapping of settings, got '30m'; "
            "write {stall: 30m} or {timeout: 30m} [preset]"
        ),
    ),
    (
        ["default"],
        f": expected a preset ({NAMES}) or a mapping of settings, got ['default'] [preset]",
    ),
    (
        {"preset": "defualt"},
        f".preset: expected a preset ({NAMES}), got 'defualt'; did you mean 'default'? [preset]",
    ),
    (
        {"preset": True},
        f".preset: expected a preset ({NAMES}), got true; write default [preset]",
    ),
    ({"stal": 3}, ".stal: unknown setting; did you mean 'stall'? [unknown-key]"),
    (
        {"silence": {"action": "report"}},
        (
            ".silence: {action: 'report'} names no limit; "
            "the preset has none: add after: 30m [duration]"
        ),
    ),
    ({"stall": {}}, ".stall: {} names no limit; add after: 30m [duration]"),
    (
        {"spin": {"after": "1h", "action": "stop"}},
        ".spin.action: expected end or report, got 'stop' [choice]",
    ),
    ({"Stall": 3}, ".Stall: unknown setting; did you mean 'stall'? [unknown-key]"),
    ({1: 3}, ".1: unknown setting [unknown-key]"),
    (
        {"stall": 0},
        ".stall: expected a duration of more than 0, got 0; write null for no limit [duration]",
    ),
    (
        {"stall": "0.5"},
        (
            ".stall: expected a duration of at least 1s, got '0.5'; a "
            "shorter time is no more than a pause [duration]"
        ),
    ),
    ({"stall": True}, ".stall: expected a duration (90, 90s, 10m, 1h30m, 1d), got true [duration]"),
    (
        {"heartbeat": "999ms"},
        (
            ".heartbeat: expected a duration of at least 1s, got "
            "'999ms'; a shorter time is no more than a pause [duration]"
        ),
    ),
    (
        {"timeout": -1},
        ".timeout: expected a duration of more than 0, got -1; write null for no limit [duration]",
    ),
    (
        {"timeout": "none"},
        (
            ".timeout: expected a duration (90, 90s, 10m, 1h30m, 1d), "
            "got 'none'; write null for no limit [duration]"
        ),
    ),
    (
        {"run_timeout": "1:30"},
        (
            ".run_timeout: expected a duration (90, 90s, 10m, 1h30m, 1d), got '1:30'; "
            "colons could mean hours or minutes; "
            "write 1h30m or 1m30s [duration]"
        ),
    ),
    ({"warmup": -1}, ".warmup: expected a duration of 0 or more, got -1 [duration]"),
    (
        {"warmup": None},
        ".warmup: expected a duration (90, 90s, 10m, 1h30m, 1d), got null [duration]",
    ),
    (
        {"memory": 16},
        (
            ".memory: expected a size of at least 1MiB, got 16; a number "
            "without a unit is bytes: write 16GiB or 16MiB [size]"
        ),
    ),
    ({"memory": "8kB"}, ".memory: expected a size of at least 1MiB, got '8kB' [size]"),
    (
        {"memory": 0},
        ".memory: expected a size of at least 1MiB, got 0; write null for no limit [size]",
    ),
    (
        {"memory": "16G"},
        (
            ".memory: expected a size (1048576, 512MiB, 16GB), got '16G'; "
            "write 16GB (powers of 1000) or 16GiB [size]"
        ),
    ),
    (
        {"memory": "off"},
        (
            ".memory: expected a size (1048576, 512MiB, 16GB), got 'off'; write null "
            "for no limit [size]"
        ),
    ),
    (
        {"stall_scope": "all"},
        ".stall_scope: expected group or rank, got 'all'; did you mean 'group'? [choice]",
    ),
    (
        {"timers": "true"},
        ".timers: expected true or false, got 'true'; write it without quotes [choice]",
    ),
    (
        {"stall": "${worker:rank}"},
        (
            ".stall: '${worker:rank}' asks for a worker's fact where all workers have one value; "
            "only args, env, env_per_rank, log_line_prefix may have ${worker:...} [worker-variable]"
        ),
    ),
    (
        {"stall": "${nope}"},
        ".stall: '${nope}' cannot be resolved: Interpolation key 'nope' not found [interpolation]",
    ),
]


@pytest.mark.parametrize(("watchdog", "told"), MISTAKES)
def test_one_mistake_is_one_line(watchdog: Any, told: str) -> None:
    assert complaints(watchdog) == [f"launch.watchdog{told}"]


@pytest.mark.parametrize("written", [*SYNONYMS, "hang-timeout", "MEM"])
def test_another_word_for_a_key_says_which(written: str) -> None:
    meant = SYNONYMS[written.lower().replace("-", "_")]
    (line,) = complaints({written: 1})
    told = f"unknown setting; did you mean {meant!r}? [unknown-key]"
    assert line == f"launch.watchdog.{written}: {told}"


def test_other_words_stand_for_keys_that_there_are() -> None:
    keys = {"preset", *WATCHDOG_KEYS}
    meant = {f"launch.{key}" for key in schema_node()} | keys
    assert set(SYNONYMS.values()) <= meant
    assert not set(SYNONYMS) & keys


def test_mistakes_are_told_together() -> None:
    lines = complaints({"stal": 1, "preset": "x", "stall": 0, "memory": 1, "timers": 1})
    assert [line.partition(": ")[0] for line in lines] == [
        f"launch.watchdog.{name}" for name in ("stal", "preset", "stall", "memory", "timers")
    ]


def test_many_unknown_keys_are_counted() -> None:
    lines = complaints({f"k{number}": 1 for number in range(1000)})
    assert len(lines) == 21
    assert lines[-1] == "launch.watchdog: 980 more unknown settings [unknown-key]"


def composed(watchdog: Any) -> WatchdogPolicy:
    """As Hydra would hand it over: with every key of the schema."""
    return spec_of({**schema_node(), "entrypoint": "env", "watchdog": watchdog}).watchdog


def test_a_mapping_that_undid_a_preset_unseen_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        composed({"stall": "10m"})
    assert str(caught.value) == (
        "launch.watchdog: {stall: '10m'} names no preset, and has replaced what another config "
        "said; add preset: none, report, default or strict [preset]"
    )
    assert composed({"preset": "none", "stall": "10m"}) == policy_of({"stall": "10m"})
    everything = plan_of(spec_of({"watchdog": "strict"}))
    assert composed(everything) == PRESETS["strict"]
    # as it was written before there was such a limit
    del everything["spin"]
    assert composed(everything) == PRESETS["strict"]
