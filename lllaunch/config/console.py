"""``console``: what is shown of a run or of a sweep, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from lllaunch.config.fields import (
    Findings,
    hinted,
    known_items,
    one_of,
    read_choice,
    read_flag,
    read_items,
)
from lllaunch.config.tree import Tree, reveal
from lllaunch.config.values import format_duration, parse_duration
from lllaunch.errors import Unfit
from lllaunch.spec import ConsolePolicy

CONSOLE_KEYS = tuple(field.name for field in dataclasses.fields(ConsolePolicy))
SYNONYMS = {name: f"launch.{name}" for name in ("tee", "redirects", "collapse", "log_line_prefix")}
# More often is what a terminal has.
_SHORTEST = 1.0
_COLORS = ("always", "never")


def read_console(tree: Tree, key: str, findings: Findings) -> ConsolePolicy:
    """Read ``console``."""
    if tree is not None and not isinstance(tree, dict):
        expected = f"a mapping of settings ({', '.join(CONSOLE_KEYS)})"
        findings.add(key, tree, Unfit(expected, code="type"))
        tree = None
    items = known_items(tree or {}, key, CONSOLE_KEYS, SYNONYMS, findings)
    values: dict[str, Any] = {}
    if "interval" in items and (reveal(items["interval"]) is None or items["interval"] is False):
        values["interval"] = None
        del items["interval"]
    return ConsolePolicy(**read_items(items, key, _READERS, findings), **values)


def _read_live(value: object) -> bool:
    try:
        return read_flag(value)
    except Unfit as unfit:
        hint = unfit.hint or "null is where there is a terminal for it"
        raise Unfit("true, false or null", hint, code=unfit.code) from None


def _read_color(value: object) -> str:
    try:
        return read_choice(value, _COLORS)
    except Unfit as unfit:
        raise Unfit(one_of((*_COLORS, "null")), unfit.hint, code=unfit.code) from None


def _read_interval(value: object) -> float:
    seconds = parse_duration(value, zero=False)
    if seconds < _SHORTEST:
        raise Unfit(f"a duration of at least {format_duration(_SHORTEST)}", code="duration")
    return seconds


_READERS: dict[str, Callable[[object], Any]] = {
    "live": _read_live,
    "color": _read_color,
    "quiet": read_flag,
    "interval": hinted(_read_interval, "write null for no such lines"),
}
