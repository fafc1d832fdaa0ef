"""Which configs a config includes, as far as its defaults list says so by itself. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lllaunch.checking.files import ConfigFile

MOST_INCLUDES = 1_000
"""Configs that one config may include, those included twice counted twice."""

MOST_VALUES = 50_000
"""Values in all of them."""

_MADE_UP = re.compile(r"\$\{.*\}")


class Include(NamedTuple):
    """One entry of a defaults list.

    Attributes:
        name: of the config that it asks for; a pattern with ``${`` where it is made up.
        line: in the file.
        package: what it is put under, None if it does not say.
        overrides: whether it only says what another entry shall choose.
    """

    name: str
    line: int
    package: str | None = None
    overrides: bool = False

    @property
    def is_made_up(self) -> bool:
        """Whether one has to compose to know what it asks for."""
        return "${" in self.name


def includes_of(file: ConfigFile) -> tuple[Include, ...]:
    """Returns what a config's own defaults list asks for."""
    entries = file.data.get("defaults")
    found: list[Include] = []
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        line = file.line_of("defaults", index)
        found += _includes(file.group, entry, line)
    return tuple(found)


def _includes(group: str, entry: Any, line: int) -> Iterator[Include]:
    if isinstance(entry, str):
        if entry.partition("@")[0] != "_self_":
            yield _include(group, entry, "", line)
    elif isinstance(entry, dict):
        for key, value in entry.items():
            options = value if isinstance(value, list) else [value]
            for option in options:
                if isinstance(option, str) and option != "???":
                    yield _include(group, str(key), option, line)


def _include(group: str, key: str, option: str, line: int) -> Include:
    *keywords, name = key.split() or [""]
    name, at, package = name.partition("@")
    path = f"{name}/{option}" if option else name
    overrides = "override" in keywords
    path = path if path.startswith("/") else posixpath.join("/", group, path)
    path = posixpath.normpath(path).lstrip("/").removesuffix(".yaml")
    return Include(path, line, package if at else None, overrides)


class Graph:
    """Who includes whom.

    Args:
        files: of the tree, by name.
    """

    def __init__(self, files: Mapping[str, ConfigFile]) -> None:
        self._files = files
        self._own = {name: includes_of(file) for name, file in files.items()}
        self._matching: dict[str, list[str]] = {}
        self._cost: dict[str, tuple[int, int]] = {}

    def own(self, name: str) -> tuple[Include, ...]:
        """What a config itself asks for."""
        return self._own.get(name, ())

    def reached(self, names: Iterable[str]) -> set[str]:
        """All configs that some configs are made of, or may be, they themselves among them."""
        found: set[str] = set()
        waiting = [name for name in names if name in self._files]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [each for include in self.own(name) for each in self._asked(include)]
        return found

    def _asked(self, include: Include) -> list[str]:
        """Files that an entry may ask for."""
        if not include.is_made_up:
            return [include.name] if include.name in self._files else []
        if include.name not in self._matching:
            # what is in the braces may be anything
            pattern = re.compile(".*".join(map(re.escape, _MADE_UP.split(include.name))))
            self._matching[include.name] = [each for each in self._files if pattern.fullmatch(each)]
        return self._matching[include.name]

    def circle(self, name: str) -> tuple[str, ...]:
        """Configs that include each other and so themselves, from one of them to itself again.

        Args:
            name: of the config that is begun with.

        Returns:
            Names, the first one the last one as well, and before all others by the alphabet; none
            if all ends.
        """
        trail: list[str] = [name]
        inside, done = {name}, set()
        pending = [self._nested(name)]
        while pending:
            following = next(pending[-1], None)
            if following is None:
                pending.pop()
                leaving = trail.pop()
                inside.discard(leaving)
                done.add(leaving)
            elif following in inside:
                around = trail[trail.index(following) :]
                start = around.index(min(around))
                return (*around[start:], *around[: start + 1])
            elif following not in done:
                trail.append(following)
                inside.add(following)
                pending.append(self._nested(following))
        return ()

    def cost(self, name: str) -> tuple[int, int]:
        """How many configs one is made of, and of how many values; it must not be in a circle."""
        order = [name]
        while order:
            current = order[-1]
            waiting = [each for each in self._nested(current) if each not in self._cost]
            if waiting and current not in self._cost:
                order += waiting
                continue
            order.pop()
            parts = [self._cost[each] for each in self._nested(current)]
            configs = 1 + sum(count for count, _ in parts)
            values = self._files[current].facts.size + sum(size for _, size in parts)
            self._cost[current] = configs, values
        return self._cost[name]

    def _nested(self, name: str) -> Iterator[str]:
        own = (each for each in self.own(name) if not each.overrides)
        return (each.name for each in own if each.name in self._files)
