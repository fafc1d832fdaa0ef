"""``launch.watchdog``: presets, mappings, and what is said about mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from lllaunch.config.kinds import PRESETS, written_policy
from lllaunch.config.plan import complete, essential, portable_plan
from lllaunch.config.schema import schema_node
from lllaunch.errors import ConfigError
from lllaunch.spec import WatchdogPolicy
from tests.unit.launch_nodes import complaints, mistakes, plan_text, read_back, spec_of

GIB = 1024**3
SPIN = frozenset({"spin"})


def policy_of(watchdog: Any) -> WatchdogPolicy:
    return spec_of({"watchdog": watchdog}).watchdog


def test_what_is_found_is_reported_and_ends_nothing_where_nothing_is_said() -> None:
    reported = WatchdogPolicy(stall=1800, spin=1800, report=frozenset({"stall", "spin"}))
    for unsaid in (None, {}, {"preset": None}, "report"):
        assert policy_of(unsaid) == reported
    for nothing in (False, "none", {"preset": "none"}):
        assert policy_of(nothing) == WatchdogPolicy()


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
    for progress in ({"within": "5m", "action": "report"}, {"within": 300}):
        policy = policy_of({"preset": "none", "progress": progress})
        assert policy.progress == policy_of({"progress": "5m"}).progress
        assert policy.report == ({"progress"} if "action" in progress else set())
    off = {"within": None, "action": "report"}
    assert policy_of({"preset": "none", "progress": off}) == WatchdogPolicy()
    written = written_policy(policy_of(said))
    assert written["stall"] == {"after": "10m", "action": "report"}
    assert policy_of(written) == policy_of(said)


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
    assert policy_of(again) == spec.watchdog


@pytest.mark.parametrize("off", [None, False])
@pytest.mark.parametrize(
    "limit", ["timeout", "run_timeout", "stall", "silence", "spin", "heartbeat", "memory"]
)
def test_a_limit_can_be_turned_off(limit: str, off: Any) -> None:
    policy = policy_of({"preset": "strict", "timeout": "1h", "memory": "1GB", limit: off})
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
    assert policy_of(launch["watchdog"]) == spec.watchdog


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
"""


@pytest.mark.parametrize(("node", "told"), mistakes(MISTAKES))
def test_one_mistake_is_one_line(node: Any, told: str) -> None:
    assert complaints(node) == [told]


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
    assert composed({"preset": "none", "stall": "10m"}) == policy_of({"stall": "10m"})
    everything = written_policy(PRESETS["strict"])
    assert composed(everything) == PRESETS["strict"]
    # as it was written before there was such a limit
    del everything["spin"]
    assert composed(everything) == PRESETS["strict"]
