"""``watchdog``: the name of a preset, or a mapping that says what is watched for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from lllaunch.config.fields import (
    Findings,
    did_you_mean,
    known_items,
    one_of,
    read_choice,
    read_flag,
)
from lllaunch.config.schema import DEFAULT, PRESETS
from lllaunch.config.settings import Settings
from lllaunch.config.tree import BROKEN, Tree, reveal
from lllaunch.config.values import format_duration, format_size, parse_duration, parse_size
from lllaunch.errors import Unfit
from lllaunch.spec import WatchdogPolicy

# `report` stands in the values of the limits that it names.
WATCHDOG_KEYS = tuple(
    field.name for field in dataclasses.fields(WatchdogPolicy) if field.name != "report"
)
SYNONYMS = {
    **dict.fromkeys(("base", "name", "mode", "level", "extends"), "preset"),
    **dict.fromkeys(("timer", "file_timer", "enable_timers"), "timers"),
    **dict.fromkeys(("max_time", "walltime", "wall_time", "time", "time_limit"), "timeout"),
    **dict.fromkeys(("attempt_timeout", "deadline", "limit", "max_duration"), "timeout"),
    **dict.fromkeys(("total_timeout", "total_time", "run_time", "max_run_time"), "run_timeout"),
    **dict.fromkeys(("stall_timeout", "hang", "hang_timeout", "idle", "idle_timeout"), "stall"),
    **dict.fromkeys(("stalled", "inactivity"), "stall"),
    **dict.fromkeys(("silent", "no_output", "no_output_timeout", "output_timeout"), "silence"),
    **dict.fromkeys(("scope", "rank_stall", "stall_rank", "stall_mode"), "stall_scope"),
    **dict.fromkeys(("startup", "start_period", "grace", "initial_delay"), "warmup"),
    **dict.fromkeys(("heartbeat_timeout", "heartbeat_interval", "beat"), "heartbeat"),
    **dict.fromkeys(("mem", "mem_limit", "memory_limit", "max_memory", "rss", "ram"), "memory"),
    "grace_period": "launch.grace_period",
    "max_restarts": "launch.max_restarts",
}

_PRESET_HINTS = {
    **dict.fromkeys(("on", "yes", "true", "enabled"), "write default"),
    **dict.fromkeys(("off", "no", "false", "null", "disabled", "0"), "write none"),
}
_SCOPE_HINTS = {"all": "did you mean 'group'?", "any": "did you mean 'rank'?"}
_OFF_WORDS = frozenset({"none", "off", "no", "never", "false", "inf", "infinity", "unlimited"})
_NO_LIMIT = "write null for no limit"
# Less would take a pause for a hang.
_SHORTEST = 1.0
# Less is no Python interpreter; a number without its unit is.
_SMALLEST = 1024**2


def read_watchdog(settings: Settings) -> WatchdogPolicy:
    """Reads ``watchdog``.

    Args:
        settings: of the launch node; what is wrong goes to their findings.
    """
    tree, key, findings = settings["watchdog"], settings.key_of("watchdog"), settings.findings
    if not isinstance(tree, dict):
        return findings.attempt(key, tree, _read_scalar) or WatchdogPolicy()
    names = ("preset", *WATCHDOG_KEYS)
    items = known_items(tree, key, names, SYNONYMS, findings)
    preset = items.pop("preset", None)
    base = PRESETS[DEFAULT]
    if preset is not None:
        base = findings.attempt(f"{key}.preset", preset, _read_preset) or WatchdogPolicy()
    return _changed(base, items, key, findings)


def written_policy(policy: WatchdogPolicy) -> dict[str, Any]:
    """All settings of a policy, in their order, as a config would say them."""
    values = {name: _write(name, getattr(policy, name)) for name in WATCHDOG_KEYS}
    reported = {name: {"after": values[name], "action": "report"} for name in policy.report}
    return {**values, **reported}


def check_replaced(tree: Tree, key: str, findings: Findings) -> None:
    """Notes a mapping that has taken the place of a preset's name, and so undone it unseen.

    For Hydra ``watchdog: default`` is text: ``watchdog: {stall: 10m}`` in another config, or
    ``+launch.watchdog.stall=10m``, does not change that preset but puts a mapping in its place.

    Args:
        tree: value of ``watchdog`` in a config that was composed over the schema, whose own mapping
            names a preset.
        key: its key.
        findings: takes it.
    """
    if isinstance(tree, dict) and "preset" not in tree and not tree.keys() >= {*WATCHDOG_KEYS}:
        message = "names no preset, and has replaced what another config said"
        hint = f"add preset: {one_of(PRESETS)}"
        findings.add(key, tree, Unfit(message=message, hint=hint, code="preset"))


def _read_preset(value: object) -> WatchdogPolicy:
    if value is None or value is False:
        return PRESETS["none"]
    if isinstance(value, str) and value in PRESETS:
        return PRESETS[value]
    word = str(value).strip().lower() if isinstance(value, (str, bool, int)) else ""
    hint = _PRESET_HINTS.get(word) or did_you_mean(word, PRESETS)
    raise Unfit(f"a preset ({', '.join(PRESETS)})", hint, code="preset")


def _read_scalar(value: object) -> WatchdogPolicy:
    try:
        return _read_preset(value)
    except Unfit as unfit:
        hint = unfit.hint or _for_duration(value)
        raise Unfit(f"{unfit.expected} or a mapping of settings", hint, code=unfit.code) from None


def _for_duration(value: object) -> str:
    try:
        parse_duration(value)
    except Unfit:
        return ""
    return f"write {{stall: {value}}} or {{timeout: {value}}}"


def _changed(
    base: WatchdogPolicy, items: dict[str, Tree], key: str, findings: Findings
) -> WatchdogPolicy:
    """Return a preset with what a mapping changes of it; without what is wrong."""
    changes: dict[str, Any] = {}
    report = set(base.report)
    for name, item in items.items():
        limit, action = item, "end"
        if name in _LIMITS and isinstance(item, dict):
            limit, action = _parts(item, f"{key}.{name}", findings)
        plain = reveal(limit)
        if name in _LIMITS and (plain is None or plain is False):
            changes[name], action = None, "end"
        elif limit is not BROKEN:
            value = findings.attempt(f"{key}.{name}", limit, _READERS[name])
            changes.update({} if value is None else {name: value})
        report.discard(name)
        report |= {name} if action == "report" else set()
    return dataclasses.replace(base, **changes, report=frozenset(report))


def _parts(item: dict[str, Tree], key: str, findings: Findings) -> tuple[Tree, str]:
    """Return the limit and the action of ``{after: 30m, action: report}``."""
    parts = known_items(item, key, ("after", "action"), {}, findings)
    action = parts.get("action", "end")
    read = findings.attempt(
        f"{key}.action", action, lambda value: read_choice(value, ("end", "report"), {})
    )
    return parts.get("after"), read or "end"


def _read_limit(value: object, least: float = 0.0) -> float:
    try:
        seconds = parse_duration(value, zero=False)
    except Unfit as unfit:
        hint = unfit.hint or (_NO_LIMIT if _means_off(value) else "")
        raise Unfit(unfit.expected, hint, unfit.detail, code=unfit.code) from None
    if seconds < least:
        expected = f"a duration of at least {format_duration(least)}"
        raise Unfit(expected, "a shorter time is no more than a pause", code="duration")
    return seconds


def _read_memory(value: object) -> int:
    try:
        size = parse_size(value)
    except Unfit as unfit:
        hint = unfit.hint or (_NO_LIMIT if _means_off(value) else "")
        raise Unfit(unfit.expected, hint, unfit.detail, code=unfit.code) from None
    if size >= _SMALLEST:
        return size
    bare = isinstance(value, int) or str(value).strip().isdecimal()
    hint = f"a number without a unit is bytes: write {size}GiB or {size}MiB" if bare else ""
    raise Unfit("a size of at least 1MiB", hint if size else _NO_LIMIT, code="size")


def _means_off(value: object) -> bool:
    if isinstance(value, str):
        word = value.strip().lower()
        return word in _OFF_WORDS or word.strip("0.dhms") == ""
    # -1 as well: so others say it
    return isinstance(value, (int, float)) and value <= 0


_READERS: dict[str, Callable[[object], Any]] = {
    "timers": read_flag,
    "timeout": _read_limit,
    "run_timeout": _read_limit,
    "stall": partial(_read_limit, least=_SHORTEST),
    "stall_scope": lambda value: read_choice(value, ("group", "rank"), _SCOPE_HINTS),
    "silence": partial(_read_limit, least=_SHORTEST),
    "warmup": parse_duration,
    "heartbeat": partial(_read_limit, least=_SHORTEST),
    "memory": _read_memory,
}
_LIMITS = frozenset({"timeout", "run_timeout", "stall", "silence", "heartbeat", "memory"})


def _write(name: str, value: Any) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    return format_size(value) if name == "memory" else format_duration(value)
