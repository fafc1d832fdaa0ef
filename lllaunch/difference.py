"""In what two plans or configs differ, key by key, for a person and as JSON. Pure."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import UNSET

from lllaunch.text import shorten, visible

WIDEST = 200  # characters of a value that is shown, unless somebody wants it shorter

_PLAIN_KEY = re.compile(r"[^\W\d][\w-]*")

Kind = Literal["added", "removed", "changed"]
ABSENT = UNSET  # stands where there is no value; null is one


class Index(int):
    """A place in a list, in a path; other whole numbers there are keys of mappings."""


class Change(NamedTuple):
    """One value that differs.

    ``path`` has keys and `Index`es; a missing side is `ABSENT`.
    """

    path: tuple[Any, ...]
    old: Any
    new: Any

    @property
    def key(self) -> str:
        """Where it is, dotted: ``launch.args[3]``."""
        return dotted(self.path)

    @property
    def kind(self) -> Kind:
        """Whether the value was added, removed or changed."""
        if self.old is ABSENT:
            return "added"
        return "removed" if self.new is ABSENT else "changed"

    def __str__(self) -> str:
        return self.text()

    def text(self, widest: int = WIDEST) -> str:
        """Returns it for a person, on one line."""
        if self.kind == "added":
            return f"{self.key}: new, {shorten(_text(self.new), widest)}"
        if self.kind == "removed":
            return f"{self.key}: was {shorten(_text(self.old), widest)}, is gone"
        old, new = _text(self.old), _text(self.new)
        if shorten(old, widest) == shorten(new, widest):
            # from a little before the place where they begin to differ
            pairs = enumerate(zip(old, new, strict=False))
            first = next((index for index, (a, b) in pairs if a != b), min(len(old), len(new)))
            start = max(0, first - widest // 3)
            dots = "..." if start else ""
            old, new = f"{dots}{old[start:]}", f"{dots}{new[start:]}"
        return f"{self.key}: {shorten(old, widest)} -> {shorten(new, widest)}"


def differences(old: Any, new: Any, *, ordered: bool = True) -> tuple[Change, ...]:
    """Returns in what two plans differ, in the order of the keys of the old one, new ones last.

    Mappings are compared key by key; of a mapping with the same items in another order, the whole
    counts as changed if it is ``ordered``, since the order of some matters. Lists are compared
    place by place where few of them differ or where one goes on after the end of the other; else
    the whole list has changed. ``true``, ``1`` and ``1.0`` are three values.
    """
    return tuple(_changes((), old, new, ordered))


def text_lines(
    changes: Sequence[Change], most: int | None = None, widest: int = WIDEST
) -> list[str]:
    """Returns a difference as lines of text such as ``launch.nproc: 2 -> 4``.

    What exceeds ``most`` lines is counted in one more; ``widest`` is in characters.
    """
    shown = [change.text(widest) for change in changes[:most]]
    more = len(changes) - len(shown)
    return [*shown, f"... and {more} more"] if more else shown


def as_json(changes: Iterable[Change]) -> list[dict[str, Any]]:
    """Returns a difference as JSON.

    Objects with ``key``, ``kind``, and ``old`` and ``new`` where there is such a value. Keys of
    mappings are text, and numbers that are not finite are texts such as ``nan``.
    """
    found = []
    for change in changes:
        sides = {"old": change.old, "new": change.new}
        told = {name: jsonable(value) for name, value in sides.items() if value is not ABSENT}
        found.append({"key": change.key, "kind": change.kind, **told})
    return found


def dotted(path: Iterable[Any]) -> str:
    """Returns a path as text: ``launch.env_per_rank[3]["A.B"]``, or ``launch.args[2]``."""
    text = ""
    for part in path:
        if isinstance(part, str) and _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{_text(part)}]"
    return text or "the plan"


def _changes(path: tuple[Any, ...], old: Any, new: Any, ordered: bool) -> Iterator[Change]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = False
        for key in (*old, *(key for key in new if key not in old)):
            below = (*path, key)
            before, after = old.get(key, ABSENT), new.get(key, ABSENT)
            for change in _changes(below, before, after, ordered):
                found = True
                yield change
        if ordered and not found and [*map(_typed, old)] != [*map(_typed, new)]:
            yield Change(path, old, new)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _in_lists(path, old, new, ordered)
    elif not _same(old, new):
        yield Change(path, old, new)


def _in_lists(
    path: tuple[Any, ...], old: list[Any], new: list[Any], ordered: bool
) -> Iterator[Change]:
    common = min(len(old), len(new))
    pairs = enumerate(itertools.zip_longest(old, new, fillvalue=ABSENT))
    by_place = [[*_changes((*path, Index(place)), *pair, ordered)] for place, pair in pairs]
    differing = sum(map(bool, by_place[:common]))
    many = differing > common / 2 or (differing and len(old) != len(new))
    if many and not any(isinstance(item, (Mapping, list)) for item in (*old, *new)):
        yield Change(path, old, new)
    else:
        yield from itertools.chain(*by_place)


def _same(old: Any, new: Any) -> bool:
    if type(old) is not type(new):
        return False
    return bool(old == new) or (isinstance(old, float) and math.isnan(old) and math.isnan(new))


def _typed(key: Any) -> tuple[str, Any]:
    return type(key).__name__, key


def jsonable(value: Any) -> Any:
    """Returns plain data as JSON can say it: keys are text, and so are numbers that it has not."""
    if isinstance(value, Mapping):
        return {_key(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(jsonable(key))


def _text(value: Any) -> str:
    # what a terminal obeys or hides would make another text of it
    return visible(json.dumps(jsonable(value), ensure_ascii=False))
