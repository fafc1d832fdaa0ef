"""YAML files that anybody may have written: read as plain data, with the line of everything.

No tags, so nothing is made but text, numbers, booleans, null, lists and mappings. Aliases are
followed as long as what they come to stays small, so that a file of a few lines cannot fill the
memory; no key may stand twice; nothing is deeper than `DEEPEST`.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
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
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Escapes of lone surrogates, which libyaml does not know."""
_CONFLICT = "it looks like a merge that was not resolved"


class Document(NamedTuple):
    """What a file says.

    Attributes:
        data: plain data; None for an empty file.
        lines: the line of each value, from 1, by its path of keys and places in lists.
    """

    data: Any
    lines: Mapping[tuple[Any, ...], int]


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


def parse(text: str, file: str) -> Document:
    """Reads YAML.

    Args:
        text: the YAML.
        file: its name, for messages.

    Raises:
        ConfigError: it is no YAML, or not of the simple kind; the problem names its line.
    """
    # libyaml is fast, and knows no lone surrogates: parts of names that are not UTF-8
    fast = None if SURROGATE.search(text) else getattr(yaml, "CSafeLoader", None)
    builder = Builder(file)
    with telling(text, file):
        data = builder.build(yaml.parse(text, Loader=fast or yaml.SafeLoader))
    return Document(data, builder.lines)


@contextlib.contextmanager
def telling(text: str, file: str) -> Iterator[None]:
    """What a YAML parser raises in the block becomes an error about a line of a file.

    Args:
        text: that is parsed.
        file: its name.

    Raises:
        ConfigError: as said.
    """
    try:
        yield
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
    size: int  # how many values it is made of


class Builder:
    """Makes plain data of the events of a YAML parser.

    Args:
        file: its name, for messages.

    Attributes:
        lines: as `Document` has them.
    """

    def __init__(self, file: str) -> None:
        self.lines: dict[tuple[Any, ...], int] = {}
        self._file = file
        self._count = 0
        self._anchors: dict[str, _Anchored | None] = {}
        self._resolver = yaml.resolver.Resolver()
        self._constructor = yaml.constructor.SafeConstructor()

    def build(self, events: Iterator[Any]) -> Any:
        """Returns what a file says.

        Args:
            events: of its parser.

        Raises:
            ConfigError: it is not of the simple kind.
            yaml.YAMLError: it is no YAML.
        """
        self._events = events
        data, documents = None, 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._wrong(event, "holds more than one document")
                data = self._value(next(events), ())
        return data

    def _value(self, event: Any, path: tuple[Any, ...]) -> Any:
        self.lines.setdefault(path, event.start_mark.line + 1)
        if len(path) > DEEPEST:
            raise self._wrong(event, f"is nested more than {DEEPEST} deep")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._count
        self._add(event, 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = None  # not made yet
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif event.tag not in {None, "!"}:
            raise self._wrong(event, f"has a tag, {event.tag!r}: only plain data is read")
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._list(path)
        else:
            value = self._mapping(path)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchored(value, self._count - before)
        return value

    def _alias(self, event: Any) -> Any:
        anchored = self._anchors.get(event.anchor)
        if anchored is None and event.anchor in self._anchors:
            raise self._wrong(event, f"holds itself: *{event.anchor} stands within &{event.anchor}")
        if anchored is None:
            raise self._wrong(event, f"has no &{event.anchor} for *{event.anchor}", _STAR)
        self._add(event, anchored.size)
        return anchored.value

    def _add(self, event: Any, count: int) -> None:
        self._count += count
        if self._count > MOST_VALUES:
            raise self._wrong(event, f"comes to more than {MOST_VALUES} values")

    def _list(self, path: tuple[Any, ...]) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, path: tuple[Any, ...]) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._wrong(event, "has a key that is not a plain value")
            key = self._scalar(event)
            self._add(event, 1)
            if event.value == "<<" and event.implicit[0]:
                raise self._wrong(event, "merges mappings (<<): write them out")
            below = (*path, key)
            if key in items:
                first = self.lines[below]
                raise self._wrong(event, f"has the key {shorten(repr(key), 80)} of line {first}")
            self.lines[below] = event.start_mark.line + 1
            items[key] = self._value(next(self._events), below)
        return items

    def _scalar(self, event: Any) -> Any:
        if event.tag in _TEXT or (event.tag is None and not event.implicit[0]):
            return event.value
        if event.tag is not None:
            raise self._wrong(event, f"has a tag, {event.tag!r}: only plain data is read")
        tag = self._resolver.resolve(yaml.ScalarNode, event.value, (True, False))
        if tag.rpartition(":")[2] not in {"int", "float", "bool", "null"}:
            return event.value  # dates among them
        try:
            return self._constructor.construct_object(yaml.ScalarNode(tag, event.value))
        except (ValueError, OverflowError):
            raise self._wrong(event, "has a number that cannot be read", "quote it") from None

    def _wrong(self, event: Any, message: str, hint: str = "") -> ConfigError:
        return wrong(self._file, event.start_mark.line + 1, message, hint, code="yaml")
