"""``console``: what is shown of a run or of a sweep, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from lllaunch.config.fields import Findings, known_items, one_of, read_choice, read_flag
from lllaunch.config.tree import Tree, reveal
from lllaunch.config.values import format_duration, parse_duration
from lllaunch.errors import Unfit
from lllaunch.spec import ConsolePolicy

CONSOLE_KEYS = tuple(field.name for field in dataclasses.fields(ConsolePolicy))
SYNONYMS = {
    **dict.fromkeys(("progress", "progress_bar", "bar", "status", "line", "dynamic"), "live"),
    **dict.fromkeys(("table", "tui", "interactive"), "live"),
    **dict.fromkeys(("colour", "colors", "colours", "no_color", "force_color"), "color"),
    **dict.fromkeys(("silent", "silence", "mute", "verbose", "verbosity"), "quiet"),
    **dict.fromkeys(("every", "heartbeat", "heartbeats", "period", "refresh"), "interval"),
    **{name: f"launch.{name}" for name in ("tee", "redirects", "collapse", "log_line_prefix")},
}
# More often is what a terminal has.
_SHORTEST = 1.0
_COLORS = ("always", "never")
_AS_RICH = "null is for a terminal that has them"
_COLOR_HINTS = {
    **dict.fromkeys(("auto", "automatic", "default", "tty", "if-tty", "null"), _AS_RICH),
    **dict.fromkeys(("true", "on", "yes", "force", "1"), "did you mean 'always'?"),
    **dict.fromkeys(("false", "off", "no", "none", "0"), "did you mean 'never'?"),
}


def read_console(tree: Tree, key: str, findings: Findings) -> ConsolePolicy:
    """Read ``console``."""
    if tree is not None and not isinstance(tree, dict):
        findings.attempt(key, tree, _refuse)
        tree = None
    items = known_items(tree or {}, key, CONSOLE_KEYS, SYNONYMS, findings)
    values: dict[str, Any] = {}
    for name, item in items.items():
        plain = reveal(item)
        if name == "interval" and (plain is None or plain is False):
            values[name] = None
        elif plain is not None:
            value = findings.attempt(f"{key}.{name}", item, _READERS[name])
            values.update({} if value is None else {name: value})
    return ConsolePolicy(**values)


def _refuse(value: object) -> None:
    word = str(value).strip().lower()
    hint = ""
    if word in {"quiet", "silent", "none", "off", "false"}:
        hint = "did you mean {quiet: true}?"
    elif word in {"live", "true"}:
        hint = "did you mean {live: true}?"
    raise Unfit(f"a mapping of settings ({', '.join(CONSOLE_KEYS)})", hint, code="type")


def _read_live(value: object) -> bool:
    try:
        return read_flag(value)
    except Unfit as unfit:
        hint = unfit.hint or "null is where there is a terminal for it"
        raise Unfit("true, false or null", hint, code=unfit.code) from None


def _read_color(value: object) -> str:
    try:
        return read_choice(value, _COLORS, _COLOR_HINTS)
    except Unfit as unfit:
        hint = _COLOR_HINTS.get(str(value).lower(), "") if isinstance(value, bool) else unfit.hint
        raise Unfit(one_of((*_COLORS, "null")), hint, code=unfit.code) from None


def _read_interval(value: object) -> float:
    try:
        seconds = parse_duration(value, zero=False)
    except Unfit as unfit:
        hint = unfit.hint or "write null for no such lines"
        raise Unfit(unfit.expected, hint, unfit.detail, code=unfit.code) from None
    if seconds < _SHORTEST:
        expected = f"a duration of at least {format_duration(_SHORTEST)}"
        raise Unfit(expected, "write null for no such lines", code="duration")
    return seconds


_READERS: dict[str, Callable[[object], Any]] = {
    "live": _read_live,
    "color": _read_color,
    "quiet": read_flag,
    "interval": _read_interval,
}
