"""What a config file says before Hydra has a look at it, as far as that can be told from its text.

Hydra would follow every alias, and would stop at the first file that is no YAML. So each file is
read here first, by the parser of `lllaunch.review.document`, which takes no more than it can bear;
of what that refuses, only what Hydra takes is let through: merge keys (``<<``) and YAML's own tags.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from lllaunch.config.tree import shorten

# The same parser, with what Hydra accepts beyond the plain kind.
from lllaunch.review.document import SURROGATE, Builder, telling

_STANDARD = "tag:yaml.org,2002:"
# the one family of tags that OmegaConf adds
_PATHS = f"{_STANDARD}python/object/apply:pathlib."
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# the slow one takes a second for so many characters
_LONGEST_AGAIN = 200_000
_HEADER = re.compile(r"\s*#\s*@")
_PACKAGE = re.compile(r"\s*#\s*@package\s+(\S+)\s*")


class Sexagesimal(NamedTuple):
    """A scalar that YAML 1.1 reads as a number of base 60.

    Attributes:
        path: keys and places that lead to it.
        line: in the file, from 1.
        text: what is written.
        number: what is read.
    """

    path: tuple[Any, ...]
    line: int
    text: str
    number: float


class Facts(NamedTuple):
    """What a config file says.

    Attributes:
        data: plain data; None for an empty file.
        lines: the line of each value, from 1, by its path.
        sexagesimals: scalars of base 60, those that are keys among them.
        size: of how many values it is made, those that aliases stand for counted each time.
        package: what its header says, None without one.
        late: line of a ``# @package`` that stands where Hydra does not look for it any more, or 0.
    """

    data: Any
    lines: Mapping[tuple[Any, ...], int]
    sexagesimals: tuple[Sexagesimal, ...] = ()
    size: int = 0
    package: str | None = None
    late: int = 0


def read_facts(text: str, file: str) -> Facts:
    """Reads the text of a config file.

    Args:
        text: of the file.
        file: its name, for messages.

    Raises:
        ConfigError: Hydra could not read it, or it is more than anybody should; the problem names
            its line.
    """
    with telling(text, file):
        builder = None if SURROGATE.search(text) else _fast(text, file)
        if builder is None:
            builder = _Lenient(file)
            builder.data = builder.build(yaml.parse(text, Loader=yaml.SafeLoader))
    found = tuple(builder.sexagesimals)
    return Facts(builder.data, builder.lines, found, builder.size, *_package(text))


def _fast(text: str, file: str) -> _Lenient | None:
    """Reads with libyaml, which is fast; None if it cannot, since Hydra reads with another one."""
    builder = _Lenient(file)
    try:
        builder.data = builder.build(yaml.parse(text, Loader=_Loader))
    except yaml.YAMLError:
        if len(text) > _LONGEST_AGAIN:
            raise
        return None
    return builder


def _package(text: str) -> tuple[str | None, int]:
    """The package that a file begins with, and the line of one that comes too late."""
    header = True
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            break
        found = _PACKAGE.fullmatch(line)
        if found:
            return (found[1], 0) if header else (None, number)
        # an ordinary comment ends it, too
        header = header and (not line.strip() or bool(_HEADER.match(line)))
    return None, 0


class _Lenient(Builder):
    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.data: Any = None
        self.sexagesimals: list[Sexagesimal] = []

    @property
    def size(self) -> int:
        return self._count

    def _value(self, event: Any, path: tuple[Any, ...]) -> Any:
        tag = getattr(event, "tag", None)
        if isinstance(event, yaml.CollectionStartEvent) and _is_allowed(tag):
            event.tag = None
        value = super()._value(event, path)
        if isinstance(event, yaml.ScalarEvent):
            self._note(event, path, value)
        return value

    def _mapping(self, path: tuple[Any, ...]) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        merged: list[Any] = []
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._wrong(event, "has a key that is not a plain value")
            self._add(event, 1)
            if event.value == "<<" and event.implicit[0]:
                merged.append(self._merged(event, (*path, "<<")))
                continue
            key = self._scalar(event)
            below = (*path, key)
            if key in items:
                shown, first = shorten(repr(key), 80), self.lines[below]
                raise self._wrong(event, f"has the key {shown} of line {first} a second time")
            self.lines[below] = event.start_mark.line + 1
            self._note(event, below, key)
            items[key] = self._value(next(self._events), below)
        for each in merged:
            items = {**each, **items}
        return items

    def _merged(self, event: Any, path: tuple[Any, ...]) -> dict[Any, Any]:
        value = self._value(next(self._events), path)
        items: dict[Any, Any] = {}
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, dict):
                raise self._wrong(event, "merges (<<) what is not a mapping")
            items = {**each, **items}
        return items

    def _scalar(self, event: Any) -> Any:
        if event.tag is not None and _is_allowed(event.tag):
            return event.value
        return super()._scalar(event)

    def _note(self, event: Any, path: tuple[Any, ...], value: Any) -> None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and ":" in event.value:
            line = event.start_mark.line + 1
            self.sexagesimals.append(Sexagesimal(path, line, event.value, value))


def _is_allowed(tag: str | None) -> bool:
    if tag is None or not tag.startswith(_STANDARD):
        return False
    return tag.startswith(_PATHS) or not tag.startswith(f"{_STANDARD}python/")
