"""YAML files that anybody may have written: read as plain data, with the line of everything.

Nothing is made but text, numbers, booleans, null, lists and mappings. Aliases are followed as long
as what they come to stays small, so that a file of a few lines cannot fill the memory; no key may
stand twice; nothing is deeper than `DEEPEST`. Files of ours (locks, policies) have no tags and no
merge keys (``<<``); of configs, what Hydra takes is taken.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from lllaunch.errors import Code, ConfigError, Diagnostic
from lllaunch.text import shorten

LONGEST = 2 * 1024 * 1024
"""Size of a file, bytes."""

MOST_VALUES = 100_000
"""Values in a file, those that aliases stand for counted each time."""

DEEPEST = 100
"""Lists and mappings within each other."""

_TEXT = frozenset({"!", "tag:yaml.org,2002:str"})
_STAR = "quote a pattern that begins with *"
# escapes of lone surrogates
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_CLoader: Any = getattr(yaml, "CSafeLoader", None)
# the slow one takes a second for so many characters
_LONGEST_AGAIN = 200_000
# of more digits Python makes no text
_LONGEST_NUMBER = 1000
_STANDARD = "tag:yaml.org,2002:"
# the one family of tags that OmegaConf adds
_PATHS = f"{_STANDARD}python/object/apply:pathlib."
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

    def at(self, path: Iterable[object]) -> int | None:
        """The line of the value at a path of keys and indices; None if there is none."""
        found = self
        for key in path:
            found = found.below(key)
        return found.line

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
    try:
        # a FIFO would make a blocking open wait
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise wrong(path, 0, "is not there") from None
    except (OSError, ValueError) as error:
        raise wrong(path, 0, f"cannot be read: {_reason(error)}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise wrong(path, 0, "is not an ordinary file")
        with os.fdopen(os.dup(fd), "rb") as file:
            data = file.read(LONGEST + 1)
    except OSError as error:
        raise wrong(path, 0, f"cannot be read: {_reason(error)}") from None
    finally:
        os.close(fd)
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

    def read(loader: Any) -> Document:
        return _Builder(file, as_hydra).build(yaml.parse(text, Loader=loader))

    try:
        # libyaml is ten times as fast, and knows no lone surrogates: parts of names that are not
        # UTF-8
        if _CLoader is not None and not _SURROGATE.search(text):
            try:
                return read(_CLoader)
            except yaml.YAMLError:
                # Hydra reads with the other one, which takes a little more
                if not as_hydra or len(text) > _LONGEST_AGAIN:
                    raise
        return read(yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        hint = _meant(text, line)
        raise wrong(file, line, f"is not valid YAML: {error.problem}", hint, code="yaml") from None
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


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _meant(text: str, line: int) -> str:
    if any(each.startswith(("<<<<<<<", ">>>>>>>")) for each in text.splitlines()):
        return _CONFLICT
    lines = text.split("\n")
    return _STAR if 0 < line <= len(lines) and "*" in lines[line - 1] else ""


class _Anchored(NamedTuple):
    value: Any
    items: dict[object, Lines]
    size: int  # how many values it is made of


class _Builder:
    """Makes a document of a YAML parser's events."""

    def __init__(self, file: str, as_hydra: bool) -> None:
        self._file = file
        self._as_hydra = as_hydra
        self._count = 0
        self._anchors: dict[str, _Anchored | None] = {}
        self._sexagesimals: list[Sexagesimal] = []
        self._resolver = yaml.resolver.Resolver()
        self._constructor = yaml.constructor.SafeConstructor()

    def build(self, events: Iterator[Any]) -> Document:
        """Returns what a file says."""
        self._events = events
        found, documents = Document(None, NO_LINES), 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._wrong(event, "holds more than one document")
                first = next(events)
                data, items = self._value(first, ())
                found = Document(data, Lines(_line(first), items))
        return found._replace(sexagesimals=tuple(self._sexagesimals))

    def _value(self, event: Any, path: tuple[Any, ...]) -> tuple[Any, dict[object, Lines]]:
        """Return a value, and the lines of what is in it."""
        if len(path) > DEEPEST:
            raise self._wrong(event, f"is nested more than {DEEPEST} deep")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._count
        self._add(event, 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = None  # not made yet
        items: dict[object, Lines] = {}
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
            self._note(event, path, value)
        elif event.tag not in {None, "!"} and not self._takes(event.tag):
            raise self._wrong(event, f"has a tag, {event.tag!r}: only plain data is read")
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._list(path, items)
        else:
            value = self._mapping(path, items)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(value, items, self._count - before)
        return value, items

    def _alias(self, event: Any) -> tuple[Any, dict[object, Lines]]:
        anchored = self._anchors.get(event.anchor)
        if anchored is None and event.anchor in self._anchors:
            raise self._wrong(event, f"holds itself: *{event.anchor} stands within &{event.anchor}")
        if anchored is None:
            raise self._wrong(event, f"has no &{event.anchor} for *{event.anchor}", _STAR)
        self._add(event, anchored.size)
        return anchored.value, anchored.items

    def _add(self, event: Any, count: int) -> None:
        self._count += count
        if self._count > MOST_VALUES:
            raise self._wrong(event, f"comes to more than {MOST_VALUES} values")

    def _list(self, path: tuple[Any, ...], lines: dict[object, Lines]) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            value, items = self._value(event, (*path, len(values)))
            lines[len(values)] = Lines(_line(event), items)
            values.append(value)
        return values

    def _mapping(self, path: tuple[Any, ...], lines: dict[object, Lines]) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        merged: dict[Any, tuple[Any, Lines]] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if isinstance(event, yaml.ScalarEvent) and _is_merge(event):
                self._add(event, 1)
                # of several the last wins
                merged |= self._merged(event, (*path, "<<"))
                continue
            key = self._key(event, path)
            if key in values and type(key) in {type(each) for each in values if each == key}:
                shown, first = shorten(repr(key), 80), lines[key].line
                raise self._wrong(event, f"has the key {shown} of line {first} a second time")
            below = (*path, key)
            values[key], items = self._value(next(self._events), below)
            lines[key] = Lines(_line(event), items)
        for key, (_, place) in merged.items():
            lines.setdefault(key, place)
        return {**{key: value for key, (value, _) in merged.items()}, **values}

    def _key(self, event: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(event, yaml.AliasEvent) and self._as_hydra:
            key, _ = self._alias(event)
            if not isinstance(key, (dict, list)):
                return key
        if not isinstance(event, yaml.ScalarEvent):
            raise self._wrong(event, "has a key that is not a plain value")
        self._add(event, 1)
        key = self._scalar(event)
        self._note(event, (*path, key), key)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(key, {}, 1)
        return key

    def _merged(self, event: Any, path: tuple[Any, ...]) -> dict[Any, tuple[Any, Lines]]:
        """Return what a ``<<`` brings in, with its lines; of several mappings the first wins."""
        if not self._as_hydra:
            raise self._wrong(event, "merges mappings (<<): write them out")
        value, items = self._value(next(self._events), path)
        several = isinstance(value, list)
        found: dict[Any, tuple[Any, Lines]] = {}
        for index, each in enumerate(value if several else [value]):
            if not isinstance(each, dict):
                raise self._wrong(event, "merges (<<) what is not a mapping")
            lines = items[index].items if several else items
            for key in each:
                found.setdefault(key, (each[key], lines.get(key, NO_LINES)))
        return found

    def _scalar(self, event: Any) -> Any:
        if event.tag in _TEXT or (event.tag is None and not event.implicit[0]):
            return event.value
        tag = event.tag
        if tag is not None and not self._takes(tag):
            raise self._wrong(event, f"has a tag, {tag!r}: only plain data is read")
        if tag is None:
            tag = self._resolver.resolve(yaml.ScalarNode, event.value, (True, False))
        if tag.rpartition(":")[2] not in {"int", "float", "bool", "null"}:
            return event.value  # dates among them
        try:
            if len(event.value) <= _LONGEST_NUMBER:
                return self._constructor.construct_object(yaml.ScalarNode(tag, event.value))
        except (ValueError, OverflowError, LookupError):
            pass
        raise self._wrong(event, "has a number that cannot be read", "quote it")

    def _takes(self, tag: str) -> bool:
        if not self._as_hydra or not tag.startswith(_STANDARD):
            return False
        return tag.startswith(_PATHS) or not tag.startswith(f"{_STANDARD}python/")

    def _note(self, event: Any, path: tuple[Any, ...], value: Any) -> None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and ":" in event.value:
            self._sexagesimals.append(Sexagesimal(path, _line(event), event.value, value))

    def _wrong(self, event: Any, message: str, hint: str = "") -> ConfigError:
        return wrong(self._file, _line(event), message, hint, code="yaml")


def _is_merge(event: Any) -> bool:
    if event.tag is not None:
        return bool(event.tag == f"{_STANDARD}merge")
    return bool(event.value == "<<" and event.implicit[0])


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
