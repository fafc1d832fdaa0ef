"""Plain data read from a config, with its secrets marked.

A tree is made of dicts, lists and scalars. A leaf whose value must not be written anywhere is a
`Withheld`, which shows its source instead: messages and plans are made from trees, so that a
secret cannot slip into one of them by an oversight.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from lllaunch.files import relative_path
from lllaunch.text import shorten

MOST_VALUES = 20_000
"""Values that a config may expand to, and references that one of them may come to."""
DEEPEST = 50
"""Lists and mappings of a config within each other."""

_LONGEST_SHOWN = 100
_MOST_BITS = 3400


class Withheld(Struct, frozen=True):
    """A value that is used but never written, and the text that stands for it."""

    value: Any
    source: str

    def __repr__(self) -> str:
        return f"Withheld({self.source!r})"


class _Broken:
    """A leaf that could not be read; the problem with it has been noted already."""

    def __repr__(self) -> str:
        return "BROKEN"


BROKEN = _Broken()

Tree = Any


def reveal(tree: Tree) -> Any:
    """The values themselves, for use."""
    if isinstance(tree, Withheld):
        return tree.value
    if isinstance(tree, dict):
        return {key: reveal(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [reveal(item) for item in tree]
    return tree


def conceal(tree: Tree) -> Any:
    """What may be written: text of a config that resolves to the same values again."""
    if isinstance(tree, Withheld):
        return tree.source
    if isinstance(tree, dict):
        return {key: conceal(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [conceal(item) for item in tree]
    if isinstance(tree, str):
        return escape(tree)
    return tree if tree is None or isinstance(tree, (bool, int, float)) else str(tree)


_INTERPOLATION = re.compile(r"(\\*)\$\{(worker:)?")


def escape(text: str) -> str:
    """Writes text so that OmegaConf reads it back as it is; ``${worker:NAME}`` is left alone."""

    def escaped(match: re.Match[str]) -> str:
        backslashes, worker = match[1] * 2, match[2]
        return f"{backslashes}${{worker:" if worker else f"{backslashes}\\${{"

    return _INTERPOLATION.sub(escaped, text)


def leaf_items(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every leaf of plain data with its path, depth first; an empty container counts as one."""
    waiting = [(path, node)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, Mapping) and value:
            items = [((*where, key), item) for key, item in value.items()]
        elif isinstance(value, list) and value:
            items = [((*where, index), item) for index, item in enumerate(value)]
        else:
            yield where, value
            continue
        waiting += reversed(items)


def value_at(node: Any, parts: Sequence[str]) -> Any:
    """What stands in plain data under the parts of a dotted key, None if there is nothing."""
    for part in parts:
        if isinstance(node, Mapping):
            node = node.get(part)
        elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            return None
    return node


_INDEX = re.compile(r"\[([^\[\]]*)\]")


def dotted(path: Sequence[object]) -> str:
    """The dotted key of a path, with the indices of lists as numbers: ``a.0.b``."""
    key = ".".join(map(str, path))
    return _INDEX.sub(r".\1", key).lstrip(".") if "[" in key else key


def written_key(path: Sequence[object]) -> str:
    """The dotted key of a path, with the indices of lists in brackets: ``a[0].b``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def parts_of(key: str) -> list[str]:
    """The parts of a dotted key: ``a[b].c`` has three."""
    return dotted([key]).split(".") if key else []


def part_of(word: str, tree: Tree) -> Tree:
    """A part of a text, without blanks around it; withheld if the text is."""
    return Withheld(word.strip(), tree.source) if isinstance(tree, Withheld) else word.strip()


def has_secrets(tree: Tree) -> bool:
    """Whether a part of it is withheld."""
    return any(isinstance(leaf, Withheld) for _, leaf in leaf_items(tree))


def show(tree: Tree) -> str:
    """A value as a message shows it: like YAML, on one line, short, without secrets."""
    return shorten(_show(tree), _LONGEST_SHOWN)


def shown_path(path: str) -> str:
    """A path as the user would write it: relative if it is below the working directory."""
    return relative_path(os.path.abspath(path), os.getcwd())


def _show(tree: Tree) -> str:
    if isinstance(tree, Withheld):
        return repr(tree.source)
    if tree is None or isinstance(tree, bool):
        return {None: "null", True: "true", False: "false"}[tree]
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {_show(item)}" for key, item in _some(tree.items())) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(_show(item) for item in _some(tree)) + "]"
    if isinstance(tree, int) and tree.bit_length() > _MOST_BITS:
        return "a number of more than a thousand digits"  # Python refuses to write long ones
    return repr(tree[: _LONGEST_SHOWN * 2]) if isinstance(tree, str) else repr(tree)


def _some(items: Any) -> Iterator[Any]:
    # As much of a large container as can be shown at all.
    for number, item in enumerate(items):
        if number == _LONGEST_SHOWN:
            return
        yield item
