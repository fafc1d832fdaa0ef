"""``console``: what is shown of a run or of a sweep, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from lllaunch.config.fields import (
    Findings,
    hinted,
    mapping_items,
    one_of,
    read_choice,
    read_flag,
    read_items,
)
from lllaunch.config.tree import Tree, reveal
from lllaunch.config.values import parse_duration
from lllaunch.spec import ConsolePolicy

CONSOLE_KEYS = tuple(field.name for field in dataclasses.fields(ConsolePolicy))
SYNONYMS = {name: f"launch.{name}" for name in ("tee", "redirects", "collapse", "log_line_prefix")}
_COLORS = ("always", "never")


def read_console(tree: Tree, key: str, findings: Findings) -> ConsolePolicy:
    """Read ``console``."""
    items = mapping_items(tree, key, CONSOLE_KEYS, SYNONYMS, findings)
    values: dict[str, Any] = {}
    if "interval" in items and (reveal(items["interval"]) is None or items["interval"] is False):
        values["interval"] = None
        del items["interval"]
    return ConsolePolicy(**read_items(items, key, _READERS, findings), **values)


_READERS: dict[str, Callable[[object], Any]] = {
    "live": hinted(read_flag, "null is where there is a terminal for it", "true, false or null"),
    "color": hinted(partial(read_choice, choices=_COLORS), "", one_of((*_COLORS, "null"))),
    "quiet": read_flag,
    # more often is what a terminal has
    "interval": hinted(
        partial(parse_duration, zero=False, least=1.0), "write null for no such lines"
    ),
}
