"""What the interpolations of a config refer to: rather too much than too little. Pure.

`lllaunch.config.origin.references` knows references to one key each. Here it counts that a key may
be used in some way, by a resolver of the user's as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lllaunch.config.origin import dotted, parts_of
from lllaunch.config.tree import leaf_items

# Their arguments are no keys.
_NO_KEYS = frozenset({"worker", "oc.env", "now", "oc.deprecated"})
_OPENING = re.compile(r"(\\*)\$\{")
_KEY = re.compile(r"\.*[^\s.,:{}'\"\[\]$][^\s,:{}'\"$]*")


class Reference(NamedTuple):
    """A key that a text refers to, or the beginning of one that is made up.

    Attributes:
        key: dotted key; all below it is meant as well.
        certain: whether the text cannot be resolved if there is no such key.
    """

    key: str
    certain: bool


def references_of(text: object, path: Sequence[object]) -> tuple[Reference, ...]:
    """Returns all that a leaf's text may refer to.

    Args:
        text: the text; anything else refers to nothing.
        path: where it stands, for relative references.
    """
    if not isinstance(text, str) or "${" not in text:
        return ()
    return tuple(dict.fromkeys(_in_text(text, tuple(path))))


def _in_text(text: str, path: tuple[object, ...]) -> Iterator[Reference]:
    position = 0
    while (found := _OPENING.search(text, position)) is not None:
        position = found.end()
        if len(found[1]) % 2:
            continue
        end = _closing(text, position)
        yield from _in_braces(text[position:end], path)
        position = end


def _closing(text: str, start: int) -> int:
    """Where the brace ends that is open at ``start``."""
    depth = 1
    for index in range(start, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if not depth:
                return index
    return len(text)


def _in_braces(text: str, path: tuple[object, ...]) -> Iterator[Reference]:
    yield from _in_text(text, path)
    head, colon, rest = text.partition(":")
    if colon and "${" not in head and "{" not in head:
        resolver = head.strip()
        if resolver in _NO_KEYS:
            return
        for argument in _arguments(rest):
            key = _absolute(argument, path)
            if key is not None and resolver == "hydra":
                yield Reference(f"hydra.{key}", certain=False)
            elif key is not None:
                yield Reference(key, certain=False)
        return
    key = _absolute(text, path)
    if key is not None:
        yield Reference(key, certain="${" not in text)


def _arguments(text: str) -> Iterator[str]:
    """The arguments of a resolver, quoted ones without their quotes."""
    depth, start = 0, 0
    for index, char in enumerate(f"{text},"):
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth <= 0:
            yield text[start:index].strip().strip("'\"")
            start = index + 1


def _absolute(text: str, path: tuple[object, ...]) -> str | None:
    """The key that a text is; of one that is made up, what of it is certain."""
    text = text.strip()
    fixed, made_up, _ = text.partition("${")
    if made_up:
        # `a.b${x}` may be any key of a
        fixed = re.sub(r"[^.\[]*$", "", fixed).rstrip("[")
        if set(fixed) != {"."}:
            fixed = fixed.rstrip(".")
    if not fixed or set(fixed) == {"."}:
        dots = len(fixed)
        return dotted(path[: max(0, len(path) - dots)]) if made_up and dots else None
    if not _KEY.fullmatch(fixed):
        return None
    name = fixed.lstrip(".")
    dots = len(fixed) - len(name)
    if dots > len(path):
        return None
    return dotted([*path[: len(path) - dots], name]) if dots else dotted([name])


class Reached:
    """Which keys of a config something refers to: what counts, or what that refers to.

    Args:
        config: a composed config, plain data, unresolved.
        roots: top-level keys that count.

    Attributes:
        missing: keys that are referred to but are not there, each with a key that needs it.
        everything: whether some reference may be to any key at all.
    """

    def __init__(self, config: Mapping[Any, Any], roots: Sequence[str]) -> None:
        self.missing: dict[str, str] = {}
        self.everything = False
        self._config = config
        self._used: set[tuple[str, ...]] = set()
        self._asked: set[str] = set()
        waiting: list[tuple[tuple[Any, ...], Any]] = [
            ((name,), config[name]) for name in roots if name in config
        ]
        while waiting:
            path, node = waiting.pop()
            for leaf_path, leaf in leaf_items(node, path):
                for each in references_of(leaf, leaf_path):
                    waiting += self._found(each, leaf_path)

    def __contains__(self, path: Sequence[object]) -> bool:
        parts = tuple(map(str, path))
        return self.everything or any(
            parts[:length] in self._used for length in range(1, len(parts) + 1)
        )

    def _found(
        self, reference: Reference, source: tuple[Any, ...]
    ) -> list[tuple[tuple[Any, ...], Any]]:
        """What a reference leads to, the first time."""
        if reference.key in self._asked:
            return []
        self._asked.add(reference.key)
        if not reference.key:
            self.everything = True
            return []
        node: Any = self._config
        path: list[Any] = []
        for part in parts_of(reference.key):
            key = child_key(node, part)
            if key is None:
                break
            node = node[key]
            path.append(key)
        there = len(path) == len(parts_of(reference.key))
        # through a reference to a container there is no telling here
        if not there and reference.certain and not isinstance(node, str):
            self.missing.setdefault(reference.key, dotted(source))
        if not path or (not there and isinstance(node, (dict, list))):
            return []
        self._used.add(tuple(map(str, path)))
        return [(tuple(path), node)]


def child_key(node: Any, part: str) -> Any:
    """The key or index of a node that a part of a dotted key names, None if there is none."""
    if isinstance(node, list):
        return int(part) if part.isdecimal() and int(part) < len(node) else None
    if not isinstance(node, Mapping):
        return None
    if part in node:
        return part
    return next((key for key in node if not isinstance(key, str) and str(key) == part), None)
