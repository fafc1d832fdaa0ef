"""In what two configs differ, key by key, for a person to read. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WIDEST = 60  # characters of a value that is shown
_MOST = 8  # lines of a difference


class Change(NamedTuple):
    """One value that differs.

    Attributes:
        key: where it is, dotted.
        old: the value as JSON text, None if there was none.
        new: the same of the new one.
    """

    key: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.key}: new, {_short(self.new)}"
        if self.new is None:
            return f"{self.key}: was {_short(self.old)}, is gone"
        old, new = _short(self.old), _short(self.new)
        if old == new:
            old, new = _around(self.old, self.new)
        return f"{self.key}: {old} -> {new}"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    """Returns in what two configs differ, by key.

    Args:
        old: canonical, as `lllaunch.sweep.fingerprint.job_config` makes them.
        new: the other one.
    """
    return tuple(_changes("", old, new))


def lines(changes: Sequence[Change]) -> list[str]:
    """Returns a difference as a few lines of text; says how much is left out."""
    shown = [str(change) for change in changes[:_MOST]]
    more = len(changes) - len(shown)
    return [*shown, f"... and {more} more"] if more else shown


def _changes(key: str, old: Any, new: Any) -> Iterator[Change]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _changed_items(key, old, new)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _changes(f"{key}[{index}]", before, after)
    elif _text(old) != _text(new):
        yield Change(key, _text(old), _text(new))


def _changed_items(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        below = f"{key}.{name}" if key else name
        if name not in new:
            yield Change(below, _text(old[name]), None)
        elif name not in old:
            yield Change(below, None, _text(new[name]))
        else:
            yield from _changes(below, old[name], new[name])


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _short(text: str | None) -> str:
    text = text or ""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _around(old: str, new: str) -> tuple[str, str]:
    """Returns the parts of two long texts where they begin to differ."""
    pairs = enumerate(zip(old, new, strict=False))
    first = next((index for index, (a, b) in pairs if a != b), min(len(old), len(new)))
    start = max(0, first - _WIDEST // 3)
    return f"...{_short(old[start:])}", f"...{_short(new[start:])}"
