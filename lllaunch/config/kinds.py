"""Kinds of settings: how each is read and written. One table for each mapping among them.

What reads a mapping, writes it in a plan and names its keys in messages follows from its table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from lllaunch.config.fields import (
    Findings,
    did_you_mean,
    hinted,
    known_items,
    one_of,
    read_choice,
    read_count,
    read_each,
    read_flag,
    read_line,
    read_locked,
    read_positive,
    read_prefix,
    read_signal,
    read_text,
)
from lllaunch.config.schema import DEFAULT_PRESET
from lllaunch.config.tree import BROKEN, Tree, reveal
from lllaunch.config.values import format_duration, format_size, parse_duration, parse_size
from lllaunch.errors import Unfit
from lllaunch.spec import (
    RESTART_CAUSES,
    ConsolePolicy,
    ProgressLimit,
    Resources,
    RestartCause,
    RestartPolicy,
    WatchdogPolicy,
)


class Kind(NamedTuple):
    """How settings of one kind are read, raising `Unfit`, and written in a plan."""

    read: Callable[..., Any]
    write: Callable[[Any], Any] = lambda value: value
    whole: bool = False  # whether what reads it takes a tree, its key, and `Findings`
    off: bool = False  # whether null and false mean None, rather than the default


def read_fields(
    fields: Mapping[str, Kind], items: Mapping[str, Tree], key: str, findings: Findings
) -> dict[str, Any]:
    """Read the items of a mapping; those that are null or wrong are left out."""
    values: dict[str, Any] = {}
    for name, kind in fields.items():
        tree, where = items.get(name), f"{key}.{name}"
        plain = reveal(tree)
        if name not in items or tree is BROKEN or (plain is None and not kind.off):
            continue
        if kind.off and (plain is None or plain is False):
            values[name] = None
            continue
        if kind.whole:
            value = kind.read(tree, where, findings)
        else:
            value = findings.attempt(where, tree, kind.read)
        values.update({} if value is None else {name: value})
    return values


class Node(NamedTuple):
    """A mapping among the settings, and the record that is made of it."""

    record: Callable[..., Any]
    fields: Mapping[str, Kind]
    meant: Callable[[Any], str] = lambda _: ""  # by what is no mapping
    of: str = "settings"
    synonyms: Mapping[str, str] = {}

    def values(self, tree: Tree, key: str, findings: Findings) -> dict[str, Any]:
        """Return what is set, as the record has it; nothing if it is no mapping."""
        expected = f"a mapping of {self.of} ({', '.join(self.fields)})"
        given = findings.mapping(key, tree, expected, self.meant(reveal(tree)))
        items = known_items(given, key, self.fields, findings, self.synonyms)
        return read_fields(self.fields, items, key, findings)

    def read(self, tree: Tree, key: str, findings: Findings) -> Any:
        """Read it; what is not set has the record's defaults."""
        return self.record(**self.values(tree, key, findings))

    def write(self, record: Any) -> dict[str, Any]:
        """Return all fields of a record, as a config would say them."""
        values = {name: (getattr(record, name), kind.write) for name, kind in self.fields.items()}
        return {name: None if of is None else write(of) for name, (of, write) in values.items()}

    @property
    def kind(self) -> Kind:
        """How a setting that is one is read and written."""
        return Kind(self.read, self.write, whole=True)


_TIME = Kind(parse_duration, format_duration)
_COLORS = ("always", "never")

CONSOLE = Node(
    ConsolePolicy,
    {
        "live": Kind(
            hinted(read_flag, "null is where there is a terminal for it", "true, false or null")
        ),
        "color": Kind(
            hinted(partial(read_choice, choices=_COLORS), "", one_of((*_COLORS, "null")))
        ),
        "quiet": Kind(read_flag),
        # more often is what a terminal has
        "interval": Kind(
            hinted(partial(parse_duration, zero=False, least=1.0), "write null for no such lines"),
            format_duration,
            off=True,
        ),
    },
)


def _resources_meant(value: object) -> str:
    number = isinstance(value, int) and not isinstance(value, bool)
    return f"did you mean {{gpus_per_proc: {value}}}?" if number else ""


RESOURCES = Node(
    Resources, dict.fromkeys(Resources._fields, Kind(read_count)), _resources_meant, of="numbers"
)


_CAUSES = f"a list of causes ({', '.join(RESTART_CAUSES)})"


def _read_causes(tree: Tree, key: str, findings: Findings) -> frozenset[RestartCause] | None:
    if reveal(tree) is False:
        return frozenset()
    before = findings.count
    read = partial(read_choice, choices=(*RESTART_CAUSES, "all", "none"))
    causes = {*read_each(tree, key, findings, read)}
    if findings.count == before and (not causes or ("none" in causes and len(causes) > 1)):
        findings.add(key, tree, Unfit(_CAUSES, "write all or none", code="choice"))
    if findings.count > before or tree is BROKEN:
        return None
    if "all" in causes:
        return frozenset(RESTART_CAUSES)
    return frozenset(cast("set[RestartCause]", causes - {"none"}))


def _write_causes(on: frozenset[RestartCause]) -> Any:
    causes = [cause for cause in RESTART_CAUSES if cause in on]
    return "all" if len(causes) == len(RESTART_CAUSES) else causes


RESTART = Node(
    RestartPolicy,
    {
        "on": Kind(_read_causes, _write_causes, whole=True),
        "delay": _TIME,
        "max_delay": _TIME,
        "window": Kind(
            hinted(partial(parse_duration, zero=False), "null is for as long as the run goes on"),
            format_duration,
        ),
        "reset_on": Kind(
            hinted(partial(read_choice, choices=("progress",)), "", "progress or null")
        ),
        "max_without_progress": Kind(read_positive),
        "checkpoint": Kind(read_text),
        "gpu_wait": _TIME,
    },
    lambda _: "causes go under 'on': {on: [hang, oom]}",
)


def _read_restart(tree: Tree, key: str, findings: Findings) -> RestartPolicy:
    before = findings.count
    policy: RestartPolicy = RESTART.read(tree, key, findings)
    # what is left of a broken one is not compared with a default that nobody chose
    whole = findings.count == before and not (isinstance(tree, dict) and BROKEN in tree.values())
    if whole and policy.delay > policy.max_delay:
        message = f"is more than {key}.max_delay, {format_duration(policy.max_delay)}"
        unfit = Unfit(message=message, hint="set max_delay as well", code="duration")
        findings.add(f"{key}.delay", tree["delay"], unfit)
    return policy


def with_on(tree: Tree) -> Tree:
    """A value of ``restart`` with ``on`` under its name: for YAML an unquoted ``on`` is true.

    Where both are there, ``on`` is what the command line said, which comes after all files.
    """
    if not isinstance(tree, dict) or not any(name is True for name in tree):
        return tree
    return {"on": tree[True], **{name: item for name, item in tree.items() if name is not True}}


PRESETS: Mapping[str, WatchdogPolicy] = {
    "none": WatchdogPolicy(),
    # ends nothing
    "report": WatchdogPolicy(stall=1800.0, spin=1800.0, report=frozenset({"stall", "spin"})),
    "default": WatchdogPolicy(
        timers=True, stall=1800.0, spin=1800.0, warmup=300.0, report=frozenset({"spin"})
    ),
    "strict": WatchdogPolicy(
        timers=True, stall=300.0, stall_scope="rank", spin=1800.0, warmup=300.0, heartbeat=300.0
    ),
}

"""What ``watchdog: none``, ``report`` and so on stand for; the docs read them as well.

None of them limits time or memory, which only the user can know.
"""

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


def _read_watchdog(tree: Tree, key: str, findings: Findings) -> WatchdogPolicy:
    if not isinstance(tree, dict):
        read = hinted(_read_preset, "", f"{_PRESET} or a mapping of settings")
        return findings.attempt(key, tree, read) or WatchdogPolicy()
    names = ("preset", *WATCHDOG.fields)
    items = known_items(tree, key, names, findings)
    preset = items.pop("preset", None)
    base = PRESETS[DEFAULT_PRESET]
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
    return replace(
        policy,
        spin=None if policy.stall is None else max(_SPIN, policy.stall),
        report=policy.report - {"spin"} | ({"spin"} if reported else frozenset()),
    )


def written_policy(policy: WatchdogPolicy) -> dict[str, Any]:
    """All settings of a policy, in their order, as a config would say them."""
    values = WATCHDOG.write(policy)
    for name in policy.report:
        value = values[name]
        limit = value if isinstance(value, dict) else {"after": value}
        values[name] = {**limit, "action": "report"}
    return values


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
        kind, where, action = WATCHDOG.fields[name], f"{key}.{name}", "end"
        if kind.off and isinstance(item, dict):
            # {after: 30m, action: report}; progress has other parts in place of after
            fields = _OF_PROGRESS if name == "progress" else {"after": kind}
            parts = known_items(item, where, (*fields, "action"), findings)
            values = read_fields({**fields, "action": _ACTION}, parts, where, findings)
            action = values.pop("action", "end")
            if not fields.keys() & parts and (getattr(base, name) is None or "action" not in parts):
                hint = f"add {'within' if name == 'progress' else 'after'}: 30m"
                unfit = Unfit(message="names no limit", hint=hint, code="duration")
                findings.add(where, item, unfit)
            elif name == "progress":
                given = {part: value for part, value in values.items() if value is not None}
                changes[name] = ProgressLimit(**given) if given else None
            elif "after" in values:
                changes[name] = values["after"]
        else:
            changes |= read_fields({name: kind}, {name: item}, key, findings)
        limit = changes.get(name, getattr(base, name))
        report -= {name}
        report |= {name} if action == "report" and limit is not None else set()
    policy = replace(base, **changes, report=frozenset(report))
    return policy if "spin" in items else with_spin(policy)


def _read_pattern(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Unfit("a regular expression", code="pattern")
    try:
        re.compile(value)
    except re.error as error:
        at = "" if error.pos is None else f" at character {error.pos + 1}"
        raise Unfit("a regular expression", "", f"{error.msg}{at}", code="pattern") from None
    return value


def _read_memory(value: object) -> int:
    size = hinted(parse_size, _NO_LIMIT)(value)
    if size < _SMALLEST:
        hint = f"a number without a unit is bytes: write {size}GiB or {size}MiB"
        raise Unfit("a size of at least 1MiB", hint if size else _NO_LIMIT, code="size")
    return size


_LIMIT = Kind(
    hinted(partial(parse_duration, zero=False, least=_SHORTEST), _NO_LIMIT),
    format_duration,
    off=True,
)
_WHOLE = Kind(hinted(partial(parse_duration, zero=False), _NO_LIMIT), format_duration, off=True)
_OF_PROGRESS: Mapping[str, Kind] = {
    "pattern": Kind(_read_pattern),
    "within": _LIMIT,
    "first_within": _LIMIT,
}
_ACTION = Kind(partial(read_choice, choices=("end", "report")))
_PROGRESS = f"a duration (5m) or a mapping of {one_of((*_OF_PROGRESS, 'action'))}"


def _read_progress(value: object) -> ProgressLimit:
    return ProgressLimit(within=_LIMIT.read(value))


def _write_progress(limit: ProgressLimit) -> dict[str, Any]:
    parts = Node(ProgressLimit, _OF_PROGRESS).write(limit)
    return {name: part for name, part in parts.items() if part}


WATCHDOG = Node(
    WatchdogPolicy,
    {
        "timers": Kind(read_flag),
        "timeout": _WHOLE,
        "run_timeout": _WHOLE,
        "stall": _LIMIT,
        "stall_scope": Kind(partial(read_choice, choices=("group", "rank"))),
        "silence": _LIMIT,
        "spin": _LIMIT,
        "warmup": _TIME,
        "heartbeat": _LIMIT,
        "memory": Kind(_read_memory, format_size, off=True),
        "collectives": Kind(read_flag),
        "progress": Kind(hinted(_read_progress, "", _PROGRESS), _write_progress, off=True),
    },
)
"""`report` stands in the values of the limits that it names."""


def _read_key(value: object) -> str:
    if isinstance(value, str):
        return value
    raise Unfit("a dotted key of the config", code="type")


def _read_interval(value: object) -> float | None:
    # more often it would cost more than it tells
    read = hinted(partial(parse_duration, least=1.0), "", "a duration of at least 1s, or false")
    return None if value is False else read(value)


KINDS: Mapping[str, Kind] = {
    "Console": CONSOLE.kind,
    "Count": Kind(read_count),
    "Duration": _TIME,
    "Flag": Kind(read_flag),
    "Interval": Kind(
        _read_interval, lambda seconds: False if seconds is None else format_duration(seconds)
    ),
    "Keys": Kind(partial(read_each, read=_read_key), list, whole=True),
    "Line": Kind(read_line),
    "Lock": Kind(read_locked),
    "Method": Kind(partial(read_choice, choices=("forkserver", "spawn"))),
    "Prefix": Kind(read_prefix),
    "Resources": RESOURCES.kind,
    "Restart": Kind(_read_restart, RESTART.write, whole=True),
    "Signals": Kind(
        partial(read_each, read=read_signal),
        lambda signals: [each.name for each in signals],
        whole=True,
    ),
    "Size": Kind(
        partial(parse_size, zero=False), lambda size: None if size is None else format_size(size)
    ),
    "Texts": Kind(partial(read_each, read=read_text), list, whole=True),
    "Watchdog": Kind(_read_watchdog, written_policy, whole=True),
}
"""By the names that `lllaunch.spec` has for them; the others have code of their own."""
