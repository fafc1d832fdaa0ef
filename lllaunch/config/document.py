"""YAML files that anybody may have written: read as plain data, with the line of everything.

Nothing is made but text, numbers, booleans, null, lists and mappings. Aliases are followed as long
as what they come to stays small, so that a file of a few lines cannot fill the memory; no key may
stand twice; nothing is deeper than `DEEPEST`. Files of ours (locks, policies) have no tags and no
merge keys (``<<``); of configs, what Hydra takes is taken.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from lllaunch.documents import as_record
from lllaunch.errors import Code, ConfigError, Diagnostic
from lllaunch.text import shorten

T = TypeVar("T")

LONGEST = 2 * 1024 * 1024
"""Size of a file, bytes."""

MOST_VALUES = 100_000
"""Values in a file, those that aliases stand for counted each time."""

DEEPEST = 100
"""Lists and mappings within each other."""

_STAR = "quote a pattern that begins with *"
# libyaml is ten times as fast
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# the slow one takes a second for so many characters
_LONGEST_AGAIN = 200_000
# of more digits Python makes no text
_LONGEST_NUMBER = 1000
_TOO_LONG: Any = object()
_STANDARD = "tag:yaml.org,2002:"
# the one family of tags that OmegaConf adds
_PATHS = f"{_STANDARD}python/object/apply:pathlib."
_PLAIN = frozenset(
    ("str", "int", "float", "bool", "null", "timestamp", "value", "merge", "seq", "map")
)
_CONFLICT = "it looks like a merge that was not resolved"


class Lines:
    """Line of a value (or of its key) in a file, from 1, and of the items in it; no values.

    ``line`` is None if not known. Aliases of one anchor share their ``items``.
    """

    __slots__ = ("items", "line")

    def __init__(self, line: int | None = None, items: dict[object, Lines] | None = None) -> None:
        self.line = line
        self.items = items if items is not None else {}

    def below(self, key: object) -> Lines:
        """Lines of a key of a mapping, or of an index of a list."""
        found = self.items.get(key)
        if found is None and not isinstance(key, str):
            # the config may read as a number what stands here as text
            found = self.items.get(str(key))
        return found or NO_LINES

    def nearest(self, path: Iterable[object]) -> int:
        """The line of the value at a path, or of what it is in; 1 where there is none."""
        found, line = self, 1
        for key in path:
            found = found.below(key)
            if found.line is None:
                break
            line = found.line
        return line


NO_LINES = Lines()


class Sexagesimal(NamedTuple):
    """A scalar that YAML 1.1 reads as a number of base 60: its text, and the number."""

    path: tuple[Any, ...]
    line: int
    text: str
    number: float


class Document(NamedTuple):
    """What a file says: plain data (None for an empty file), with lines."""

    data: Any
    lines: Lines
    sexagesimals: tuple[Sexagesimal, ...] = ()


def read_text(path: str) -> str:
    """Returns the text of a file.

    Raises:
        ConfigError: it is not there, no ordinary file, too long, or not UTF-8.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise wrong(path, 0, "is not an ordinary file")
    try:
        # should it be a FIFO by now, it is not waited for
        with open(path, "rb", opener=lambda p, flags: os.open(p, flags | os.O_NONBLOCK)) as file:
            data = file.read(LONGEST + 1)
    except FileNotFoundError:
        raise wrong(path, 0, "is not there") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise wrong(path, 0, f"cannot be read: {why}") from None
    if len(data) > LONGEST:
        raise wrong(path, 0, f"is longer than {LONGEST // 1024**2} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise wrong(path, line, "is not UTF-8 text") from None


def parse(text: str, file: str, *, as_hydra: bool = False) -> Document:
    """Read YAML; ``as_hydra`` allows merge keys, and tags of YAML's own and of paths.

    Raises:
        ConfigError: it is no YAML, or more than is taken; the problem names its line.
    """
    try:
        try:
            return _read(text, file, _Loader, as_hydra)
        except yaml.YAMLError:
            # takes a little more: what Hydra reads, and lone surrogates, parts of names that are
            # not UTF-8
            if len(text) > _LONGEST_AGAIN:
                raise
            return _read(text, file, yaml.SafeLoader, as_hydra)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        hint, problem = _meant(text, line), str(error.problem).removeprefix("but ")
        raise wrong(file, line, f"is not valid YAML: {problem}", hint, code="yaml") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = "is not valid YAML: a character that it may not hold"
        raise wrong(file, line, message, code="yaml") from None
    except UnicodeEncodeError:
        raise wrong(file, 0, "is not UTF-8 text") from None


def lines_of(text: str) -> Lines:
    """The lines of a config's text; none if it cannot be read."""
    try:
        return parse(text, "", as_hydra=True).lines
    except (ConfigError, RecursionError):
        return NO_LINES


def wrong(
    file: str, line: int, message: str, hint: str = "", *, code: Code = "file"
) -> ConfigError:
    """Returns an error about one line of a file."""
    return ConfigError((Diagnostic(code, "", "", shorten(message), hint, file, line),))


def expect_record(document: Document, kind: type[T], path: str, code: Code, hint: str) -> T:
    """Return the record that a file is, or raise a `ConfigError` with the line that is wrong."""
    try:
        return as_record(document.data, kind)
    except ValueError as error:
        found = re.search(r"\$([\w.\[\]]*)", str(error))
        parts = re.findall(r"\w+", found[1]) if found else []
        line = document.lines.nearest([int(part) if part.isdecimal() else part for part in parts])
        raise wrong(path, line, f"is no {code}: {error}", hint, code=code) from None


def _meant(text: str, line: int) -> str:
    if any(each.startswith(("<<<<<<<", ">>>>>>>")) for each in text.splitlines()):
        return _CONFLICT
    lines = text.split("\n")
    return _STAR if 0 < line <= len(lines) and "*" in lines[line - 1] else ""


def _read(text: str, file: str, loader: Any, as_hydra: bool) -> Document:
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        # before nodes are made of it, which libyaml does by recursion
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise wrong(file, _line(event), f"is nested more than {DEEPEST} deep", code="yaml")
    node = yaml.compose(text, Loader=loader)
    return Document(None, NO_LINES) if node is None else _Builder(file, as_hydra).build(node)


class _Made(NamedTuple):
    value: Any
    items: dict[object, Lines]
    size: int  # how many values it is made of


class _Builder:
    """Makes a document of YAML's nodes."""

    def __init__(self, file: str, as_hydra: bool) -> None:
        self._file = file
        self._as_hydra = as_hydra
        self._count = 0
        # by identity: an alias is the node itself; None while it is being made
        self._made: dict[int, _Made | None] = {}
        self._sexagesimals: list[Sexagesimal] = []
        self._constructor = yaml.constructor.SafeConstructor()

    def build(self, node: Any) -> Document:
        """Returns what a file says."""
        data, items = self._value(node, ())
        return Document(data, Lines(_line(node), items), tuple(self._sexagesimals))

    def _value(self, node: Any, path: tuple[Any, ...]) -> tuple[Any, dict[object, Lines]]:
        """Return a value, and the lines of what is in it."""
        if id(node) in self._made:
            made = self._made[id(node)]
            if made is None:
                raise self._wrong(node, "holds itself: an alias stands within its anchor")
            self._add(node, made.size)
            return made.value, made.items
        before = self._count
        self._add(node, 1)
        self._made[id(node)] = None
        if not self._takes(node.tag):
            raise self._wrong(node, f"has a tag, {node.tag!r}: only plain data is read")
        items: dict[object, Lines] = {}
        value: Any
        if isinstance(node, yaml.ScalarNode):
            value = self._scalar(node, path)
        elif isinstance(node, yaml.SequenceNode):
            value = []
            for index, each in enumerate(node.value):
                item, below = self._value(each, (*path, index))
                items[index] = Lines(_line(each), below)
                value.append(item)
        else:
            value = self._mapping(node, path, items)
        self._made[id(node)] = _Made(value, items, self._count - before)
        return value, items

    def _add(self, node: Any, count: int) -> None:
        self._count += count
        if self._count > MOST_VALUES:
            raise self._wrong(node, f"comes to more than {MOST_VALUES} values")

    def _mapping(
        self, node: Any, path: tuple[Any, ...], lines: dict[object, Lines]
    ) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        merged: dict[Any, tuple[Any, Lines]] = {}
        for name, item in node.value:
            if name.tag == f"{_STANDARD}merge":
                # of several the last wins
                merged |= self._merged(name, item, (*path, "<<"))
                continue
            key, _ = self._value(name, (*path, name.value))
            if isinstance(key, (dict, list)):
                raise self._wrong(name, "has a key that is not a plain value")
            if key in values and type(key) in {type(each) for each in values if each == key}:
                shown, first = shorten(repr(key), 80), lines[key].line
                raise self._wrong(name, f"has the key {shown} of line {first} a second time")
            values[key], below = self._value(item, (*path, key))
            lines[key] = Lines(_line(name), below)
        for key, (_, place) in merged.items():
            lines.setdefault(key, place)
        return {**{key: value for key, (value, _) in merged.items()}, **values}

    def _merged(self, name: Any, node: Any, path: tuple[Any, ...]) -> dict[Any, tuple[Any, Lines]]:
        """Return what a ``<<`` brings in, with its lines; of several mappings the first wins."""
        if not self._as_hydra:
            raise self._wrong(name, "merges mappings (<<): write them out")
        value, items = self._value(node, path)
        several = isinstance(value, list)
        found: dict[Any, tuple[Any, Lines]] = {}
        for index, each in enumerate(value if several else [value]):
            if not isinstance(each, dict):
                raise self._wrong(name, "merges (<<) what is not a mapping")
            lines = items[index].items if several else items
            for key in each:
                found.setdefault(key, (each[key], lines.get(key, NO_LINES)))
        return found

    def _scalar(self, node: Any, path: tuple[Any, ...]) -> Any:
        kind, text = node.tag.rpartition(":")[2], node.value
        if kind not in {"int", "float", "bool", "null"}:
            return text  # dates among them
        value: Any = _TOO_LONG
        if len(text) <= _LONGEST_NUMBER:
            with contextlib.suppress(ValueError, OverflowError, LookupError):
                value = self._constructor.construct_object(yaml.ScalarNode(node.tag, text))
        if value is _TOO_LONG:
            raise self._wrong(node, "has a number that cannot be read", "quote it")
        if ":" in text and kind in {"int", "float"}:
            self._sexagesimals.append(Sexagesimal(path, _line(node), text, value))
        return value

    def _takes(self, tag: str) -> bool:
        kind = tag.removeprefix(_STANDARD)
        if self._as_hydra and kind != tag:
            return tag.startswith(_PATHS) or not kind.startswith("python/")
        return kind in _PLAIN

    def _wrong(self, node: Any, message: str, hint: str = "") -> ConfigError:
        return wrong(self._file, _line(node), message, hint, code="yaml")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
