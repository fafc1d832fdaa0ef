"""A tree of configs, as text: its files, what includes what, and its experiments.

Hydra would follow every alias, and would stop at the first file that is no YAML. So each file is
read here first, by `lllaunch.config.document`, which takes no more than it can bear.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from lllaunch.checking.findings import WRONG, CheckedDiagnostic
from lllaunch.config.document import NO_LINES, Lines, Sexagesimal, parse, read_text
from lllaunch.config.tree import shown_path
from lllaunch.errors import ConfigError

_HEADER = re.compile(r"\s*#\s*@")
_PACKAGE = re.compile(r"\s*#\s*@package\s+(\S+)\s*")


class Facts(NamedTuple):
    """What a config file says; ``package`` is None without a header.

    ``late`` is the line of a ``# @package`` where Hydra no longer looks for it, or 0.
    """

    data: Any
    lines: Lines = NO_LINES
    sexagesimals: tuple[Sexagesimal, ...] = ()
    package: str | None = None
    late: int = 0


def read_facts(text: str, file: str) -> Facts:
    """Reads the text of a config file.

    Raises:
        ConfigError: Hydra could not read it, or it is more than anybody should; the problem names
            its line.
    """
    return Facts(*parse(text, file, as_hydra=True), *_package(text))


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


MOST_FILES = 20_000
"""Entries of all directories of a tree."""

DEEPEST = 30
"""Directories within each other."""

_EMPTY = Facts({})
_OURS = "lllaunch.yaml"
_LOCKS = "locks"


@dataclass(frozen=True)
class ConfigFile:
    """One config file, by the name that Hydra gives it; ``problem`` is why it cannot be read."""

    name: str
    path: str
    facts: Facts = field(default=_EMPTY, repr=False)
    problem: CheckedDiagnostic | None = None

    @property
    def group(self) -> str:
        """The group that it is in; empty at the root."""
        return self.name.rpartition("/")[0]

    @property
    def data(self) -> dict[Any, Any]:
        """What it says; empty if that is no mapping."""
        return self.facts.data if isinstance(self.facts.data, dict) else {}

    @property
    def package(self) -> str:
        """The dotted key that its content is put under, unless a defaults list names another."""
        group = self.group.replace("/", ".")
        package = self.facts.package
        if package is None:
            return group
        if package == "_global_":
            return ""
        return package.replace("_group_", group).replace("_global_.", "")

    def line_of(self, *path: object) -> int:
        """The line of a value; that of what it is in, or 1, where there is none."""
        return self.facts.lines.nearest(path)


@dataclass(frozen=True)
class ConfigTree:
    """The files of a tree, by name; ``found`` is what is wrong with files as such."""

    directory: str
    files: dict[str, ConfigFile]
    locks: dict[str, str]
    policies: tuple[str, ...] = ()
    found: tuple[CheckedDiagnostic, ...] = ()


def read_tree(directory: str) -> ConfigTree:
    """Reads all files of a tree of configs."""
    found: list[CheckedDiagnostic] = []
    files: dict[str, ConfigFile] = {}
    locks: dict[str, str] = {}
    policies = []
    for name in _names(directory, found):
        path = shown_path(os.path.join(directory, name))
        stem, extension = os.path.splitext(name)
        if extension == ".yml":
            message = "is never read: for Hydra the names of configs end in .yaml"
            found.append(CheckedDiagnostic.at(0, "unread", path, 0, "", message))
        if extension != ".yaml":
            continue
        if name == _OURS:
            policies.append(path)
        elif stem.startswith(f"{_LOCKS}/"):
            locks[stem.partition("/")[2]] = path
        else:
            files[stem] = read_file(stem, path)
    found += [each.problem for each in files.values() if each.problem]
    return ConfigTree(shown_path(directory), files, locks, tuple(policies), tuple(found))


def read_file(name: str, path: str) -> ConfigFile:
    """Reads a config file; what is wrong with it stands in the result."""
    try:
        return ConfigFile(name, path, read_facts(read_text(path), path))
    except ConfigError as error:
        return ConfigFile(name, path, problem=found_in(error)[0])


def found_in(error: ConfigError, file: str = "") -> list[CheckedDiagnostic]:
    """Returns the problems of a file, which know their place.

    Problems without a file are about ``file`` or, without that, the file of the one before.
    """
    found = []
    for each in error.problems:
        line = 0
        if each.file:
            file, line = shown_path(each.file), each.line
        found.append(CheckedDiagnostic.of(replace(each, file=file, line=line), WRONG))
    return found


def _names(directory: str, found: list[CheckedDiagnostic]) -> Iterator[str]:
    """Paths of all files, relative to the directory, in order; hidden ones are left out."""
    waiting = [""]
    # links may lead back to where they are
    seen: set[tuple[int, int]] = set()
    count = 0
    while waiting:
        below = waiting.pop()
        path = os.path.join(directory, below)
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
            status = os.stat(path)
        except OSError as error:
            message = f"cannot be read: {error.strerror}"
            found.append(CheckedDiagnostic.at(WRONG, "file", shown_path(path), 0, "", message))
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        directories = []
        for entry in entries:
            count += 1
            if count > MOST_FILES:
                message = f"holds more than {MOST_FILES} files: the others are not checked"
                top = shown_path(directory)
                found.append(CheckedDiagnostic.at(WRONG, "too-large", top, 0, "", message))
                return
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            name = os.path.join(below, entry.name)
            if not _is_directory(entry):
                yield name
            elif name.count("/") < DEEPEST:
                directories.append(name)
            else:
                message = f"is more than {DEEPEST} directories deep: it is not checked"
                below = shown_path(os.path.join(directory, name))
                found.append(CheckedDiagnostic.at(WRONG, "too-large", below, 0, "", message))
        waiting += reversed(directories)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


MOST_INCLUDES = 1_000
"""Configs that one config may include, those included twice counted twice."""

_MADE_UP = re.compile(r"\$\{.*\}")


class Include(NamedTuple):
    """One entry of a defaults list.

    ``name`` is a pattern with ``${`` where it is made up. ``overrides``: it only says what another
    entry shall choose.
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
    """Who includes whom."""

    def __init__(self, files: Mapping[str, ConfigFile]) -> None:
        self._files = files
        self._own = {name: includes_of(file) for name, file in files.items()}
        self._matching: dict[str, list[str]] = {}
        self._sizes: dict[str, int] = {}

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
                waiting += [
                    each for include in self.own(name) for each in self._included_by(include)
                ]
        return found

    def _included_by(self, include: Include) -> list[str]:
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

        The first one is the last one as well, and before all others by the alphabet; empty if all
        ends.
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

    def size(self, name: str) -> int:
        """Return how many configs one is made of; it must not be in a circle."""
        order = [name]
        while order:
            current = order[-1]
            waiting = [each for each in self._nested(current) if each not in self._sizes]
            if waiting and current not in self._sizes:
                order += waiting
                continue
            order.pop()
            self._sizes[current] = 1 + sum(self._sizes[each] for each in self._nested(current))
        return self._sizes[name]

    def _nested(self, name: str) -> Iterator[str]:
        own = (each for each in self.own(name) if not each.overrides)
        return (each.name for each in own if each.name in self._files)


EXPERIMENTS = "exp"
"""The group whose configs are experiments, whatever they say."""
_LAUNCH = "launch"
_PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[a-z_][\w/.+-]*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Experiment:
    """One config that can be run, by the overrides that choose it.

    ``name`` is without the group for those in ``exp``; ``config_name`` is None for lllaunch's own
    primary config. ``included``: other configs include it.
    """

    name: str
    file: ConfigFile
    overrides: tuple[str, ...] = ()
    config_name: str | None = None
    included: bool = False

    @property
    def is_preset(self) -> bool:
        """Whether it is only a choice beside the experiments, and need not be whole."""
        return self.config_name is None and not self.file.name.startswith(f"{EXPERIMENTS}/")

    @property
    def may_be_partial(self) -> bool:
        """Whether it is no problem if something that others have to give is not there."""
        return self.is_preset or self.included


def find_experiments(files: Mapping[str, ConfigFile], graph: Graph) -> list[Experiment]:
    """Returns the experiments of a tree, by name."""
    included = {each.name for name in files for each in graph.own(name)}
    found = []
    for name, file in files.items():
        group, _, option = name.rpartition("/")
        if name.startswith(f"{EXPERIMENTS}/"):
            rest = name.partition("/")[2]
            # another config may have the same name
            told = name if rest in files else rest
            own = Experiment(told, file, (f"+{EXPERIMENTS}={_quoted(rest)}",))
        elif group and _is_global_launch(file):
            own = Experiment(name, file, (f"+{group}={_quoted(option)}",))
        elif not group and _says_launch(name, files, graph):
            own = Experiment(name, file, (), name)
        else:
            continue
        if name in included:
            own = Experiment(own.name, file, own.overrides, own.config_name, included=True)
        found.append(own)
    return found


def _quoted(option: str) -> str:
    """An option as an override takes it."""
    if _PLAIN.fullmatch(option):
        return option
    return "'" + option.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _is_global_launch(file: ConfigFile) -> bool:
    return file.facts.package == "_global_" and isinstance(file.data.get(_LAUNCH), dict)


def _says_launch(name: str, files: Mapping[str, ConfigFile], graph: Graph) -> bool:
    """Whether a config, or one that it includes, says something about the node ``launch``."""
    for each in graph.reached([name]):
        file = files[each]
        root = "" if each == name else file.package
        if root.partition(".")[0] == _LAUNCH or (not root and _LAUNCH in file.data):
            return True
        if any((entry.package or "").startswith(_LAUNCH) for entry in graph.own(each)):
            return True
    return False


def endless(
    experiment: Experiment, files: Mapping[str, ConfigFile], graph: Graph
) -> CheckedDiagnostic | None:
    """Return why nobody could compose an experiment, None if that can be done."""
    name, path = experiment.file.name, experiment.file.path
    circle = graph.circle(name)
    if circle:
        first = files[circle[0]]
        message = f"these configs include each other: {_trail(circle)}"
        line = next(each.line for each in graph.own(circle[0]) if each.name == circle[1])
        names = (experiment.name,)
        return CheckedDiagnostic.at(WRONG, "circular", first.path, line, "defaults", message, names)
    if graph.size(name) <= MOST_INCLUDES:
        return None
    line = experiment.file.line_of("defaults")
    message = f"includes more than {MOST_INCLUDES} configs"
    return CheckedDiagnostic.at(WRONG, "too-large", path, line, "", message, (experiment.name,))


def _trail(names: tuple[str, ...]) -> str:
    shown = names if len(names) <= 8 else (*names[:4], "...", *names[-2:])
    return " -> ".join(shown)


def broken_by(
    experiment: Experiment, files: Mapping[str, ConfigFile], graph: Graph
) -> tuple[CheckedDiagnostic, ...]:
    """Returns what is wrong with the files of an experiment, so that it cannot be composed."""
    problems = (files[name].problem for name in sorted(graph.reached([experiment.file.name])))
    return tuple(each for each in problems if each is not None)
