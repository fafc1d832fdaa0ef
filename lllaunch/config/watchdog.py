"""``watchdog``: the name of a preset, or a mapping that says what is watched for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from lllaunch.config.fields import (
    Findings,
    did_you_mean,
    hinted,
    known_items,
    one_of,
    read_choice,
    read_flag,
)
from lllaunch.config.schema import DEFAULT, PRESETS
from lllaunch.config.settings import Settings
from lllaunch.config.tree import BROKEN, Tree, reveal
from lllaunch.config.values import (
    format_duration,
    format_size,
    means_off,
    parse_duration,
    parse_size,
)
from lllaunch.errors import Unfit
from lllaunch.spec import ProgressLimit, WatchdogPolicy

# `report` stands in the values of the limits that it names.
WATCHDOG_KEYS = tuple(
    field.name for field in dataclasses.fields(WatchdogPolicy) if field.name != "report"
)
SYNONYMS = {
    "grace_period": "launch.grace_period",
    "max_restarts": "launch.max_restarts",
    "memory_limit": "memory",
    "time_limit": "timeout",
}

_PRESET = f"a preset ({', '.join(PRESETS)})"
_NO_LIMIT = "write null for no limit"
# Less would take a pause for a hang.
_SHORTEST = 1.0
# Where stalls are watched for, seconds; not less than for a stall, which a spin may be as well.
_SPIN = 1800.0
# A mapping that has all of these stands for itself. It may be older than the other keys.
_FIRST_KEYS = frozenset(
    {
        *("timers", "timeout", "run_timeout", "stall", "stall_scope", "silence", "warmup"),
        *("heartbeat", "memory"),
    }
)
# Less is no Python interpreter; a number without its unit is.
_SMALLEST = 1024**2


def read_watchdog(settings: Settings) -> WatchdogPolicy:
    """Reads ``watchdog``."""
    tree, key, findings = settings["watchdog"], settings.key_of("watchdog"), settings.findings
    if not isinstance(tree, dict):
        read = hinted(_read_preset, "", f"{_PRESET} or a mapping of settings")
        return findings.attempt(key, tree, read) or WatchdogPolicy()
    names = ("preset", *WATCHDOG_KEYS)
    items = known_items(tree, key, names, SYNONYMS, findings)
    preset = items.pop("preset", None)
    base = PRESETS[DEFAULT]
    if preset is not None:
        base = findings.attempt(f"{key}.preset", preset, _read_preset) or WatchdogPolicy()
    return _changed(base, items, key, findings)


def with_spin(policy: WatchdogPolicy) -> WatchdogPolicy:
    """Return a policy with what it means for ``spin`` if nobody says so.

    Who watches for stalls wants to know of hangs that spin as well; such a run is ended only where
    one idle worker is enough to end it.
    """
    ends = policy.stall_scope == "rank" and "stall" not in policy.report
    reported = policy.stall is not None and not ends
    return dataclasses.replace(
        policy,
        spin=None if policy.stall is None else max(_SPIN, policy.stall),
        report=policy.report - {"spin"} | ({"spin"} if reported else frozenset()),
    )


def written_policy(policy: WatchdogPolicy) -> dict[str, Any]:
    """All settings of a policy, in their order, as a config would say them."""
    values = {name: _write(name, getattr(policy, name)) for name in WATCHDOG_KEYS}
    reported = {
        name: {
            **(values[name] if isinstance(values[name], dict) else {"after": values[name]}),
            "action": "report",
        }
        for name in policy.report
    }
    return {**values, **reported}


def check_replaced(tree: Tree, key: str, findings: Findings) -> None:
    """Notes a mapping that has taken the place of a preset's name, and so undone it unseen.

    For Hydra ``watchdog: default`` is text: ``watchdog: {stall: 10m}`` in another config, or
    ``+launch.watchdog.stall=10m``, does not change that preset but puts a mapping in its place.

    ``tree`` was composed over the schema, whose own mapping names a preset.
    """
    if isinstance(tree, dict) and "preset" not in tree and not tree.keys() >= _FIRST_KEYS:
        message = "names no preset, and has replaced what another config said"
        hint = f"add preset: {one_of(PRESETS)}"
        findings.add(key, tree, Unfit(message=message, hint=hint, code="preset"))


def _read_preset(value: object) -> WatchdogPolicy:
    if value is None or value is False:
        return PRESETS["none"]
    if isinstance(value, str) and value in PRESETS:
        return PRESETS[value]
    hint = "write default" if value is True else did_you_mean(str(value), PRESETS)
    raise Unfit(_PRESET, hint, code="preset")


def _changed(
    base: WatchdogPolicy, items: dict[str, Tree], key: str, findings: Findings
) -> WatchdogPolicy:
    """Return a preset with what a mapping changes of it; without what is wrong."""
    changes: dict[str, Any] = {}
    report = set(base.report)
    for name, item in items.items():
        limit, action = item, "end"
        if name == "progress":
            changes[name], action = _progress(item, f"{key}.{name}", findings)
            report -= {name}
            report |= {name} if action == "report" and changes[name] is not None else set()
            continue
        if name in _LIMITS and isinstance(item, dict):
            limit, action = _parts(item, f"{key}.{name}", findings, getattr(base, name))
        plain = reveal(limit)
        if name in _LIMITS and (plain is None or plain is False):
            changes[name], action = None, "end"
        elif limit is not BROKEN:
            value = findings.attempt(f"{key}.{name}", limit, _READERS[name])
            changes.update({} if value is None else {name: value})
        report.discard(name)
        report |= {name} if action == "report" else set()
    policy = dataclasses.replace(base, **changes, report=frozenset(report))
    return policy if "spin" in items else with_spin(policy)


def _parts(
    item: dict[str, Tree], key: str, findings: Findings, limit: float | None
) -> tuple[Tree, str]:
    """Return limit (the preset's by default) and action of ``{after: 30m, action: report}``."""
    parts = known_items(item, key, ("after", "action"), {}, findings)
    if "after" not in parts and (limit is None or "action" not in parts):
        hint = "the preset has none: add after: 30m" if limit is None else "add after: 30m"
        findings.add(key, item, Unfit(message="names no limit", hint=hint, code="duration"))
    return parts.get("after", limit), _action(parts, key, findings)


def _action(parts: dict[str, Tree], key: str, findings: Findings) -> str:
    read = partial(read_choice, choices=("end", "report"))
    return findings.attempt(f"{key}.action", parts.get("action", "end"), read) or "end"


def _progress(item: Tree, key: str, findings: Findings) -> tuple[ProgressLimit | None, str]:
    """Return the limit and the action of ``{pattern: ..., within: 5m, action: report}``, or 5m."""
    parts: dict[str, Tree]
    if isinstance(item, dict):
        parts = known_items(item, key, _OF_PROGRESS, {}, findings)
    elif reveal(item) is None or reveal(item) is False:
        return None, "end"
    else:
        within = findings.attempt(key, item, _read_within)
        return (None if within is None else ProgressLimit(within=within)), "end"
    action = _action(parts, key, findings)
    found: dict[str, Any] = {}
    for name, part in parts.items():
        if name == "action" or reveal(part) is None or reveal(part) is False:
            continue
        read = _read_pattern if name == "pattern" else partial(_read_limit, least=_SHORTEST)
        value: Any = findings.attempt(f"{key}.{name}", part, read)
        found.update({} if value is None else {name: value})
    if "action" in parts and not (parts.keys() - {"action"}):
        message = "says what follows, and not what for"
        hint = "add within, first_within or pattern"
        findings.add(key, item, Unfit(message=message, hint=hint, code="missing"))
    return (ProgressLimit(**found) if found else None), action


def _read_within(value: object) -> float:
    try:
        return _read_limit(value, _SHORTEST)
    except Unfit as unfit:
        expected = f"{unfit.expected} or a mapping of {one_of(_OF_PROGRESS)}"
        raise Unfit(expected, unfit.hint, unfit.detail, code=unfit.code) from None


def _read_pattern(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Unfit("a regular expression", code="pattern")
    try:
        re.compile(value)
    except re.error as error:
        at = "" if error.pos is None else f" at character {error.pos + 1}"
        raise Unfit("a regular expression", "", f"{error.msg}{at}", code="pattern") from None
    return value


def _read_limit(value: object, least: float = 0.0) -> float:
    hint = _NO_LIMIT if means_off(value) else ""
    seconds = hinted(partial(parse_duration, zero=False), hint)(value)
    if seconds < least:
        expected = f"a duration of at least {format_duration(least)}"
        raise Unfit(expected, "a shorter time is no more than a pause", code="duration")
    return seconds


def _read_memory(value: object) -> int:
    size = hinted(parse_size, _NO_LIMIT if means_off(value) else "")(value)
    if size >= _SMALLEST:
        return size
    bare = isinstance(value, int) or str(value).strip().isdecimal()
    hint = f"a number without a unit is bytes: write {size}GiB or {size}MiB" if bare else ""
    raise Unfit("a size of at least 1MiB", hint if size else _NO_LIMIT, code="size")


_READERS: dict[str, Callable[[object], Any]] = {
    "timers": read_flag,
    "timeout": _read_limit,
    "run_timeout": _read_limit,
    "stall": partial(_read_limit, least=_SHORTEST),
    "stall_scope": partial(read_choice, choices=("group", "rank")),
    "silence": partial(_read_limit, least=_SHORTEST),
    "spin": partial(_read_limit, least=_SHORTEST),
    "warmup": parse_duration,
    "heartbeat": partial(_read_limit, least=_SHORTEST),
    "memory": _read_memory,
    "collectives": read_flag,
}
_OF_PROGRESS = ("pattern", "within", "first_within", "action")
_LIMITS = frozenset({"timeout", "run_timeout", "stall", "silence", "spin", "heartbeat", "memory"})


def _write(name: str, value: Any) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, ProgressLimit):
        parts = {each: _write(each, part) for each, part in dataclasses.asdict(value).items()}
        return {each: part for each, part in parts.items() if part}
    return format_size(value) if name == "memory" else format_duration(value)
