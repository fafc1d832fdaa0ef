"""The files of a tree of configs: all of them are read, none can make the reader wait or run on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lllaunch.checking.findings import WRONG, Found
from lllaunch.checking.yaml_facts import Facts, read_facts
from lllaunch.config.tree import shown_path
from lllaunch.errors import ConfigError
from lllaunch.review.document import read_text

MOST_FILES = 20_000
"""Entries of all directories of a tree."""

DEEPEST = 30
"""Directories within each other."""

_EMPTY = Facts({}, {})
_OURS = "lllaunch.yaml"
_LOCKS = "locks"


@dataclass(frozen=True)
class ConfigFile:
    """One config file.

    Attributes:
        name: as Hydra calls it, such as ``exp/vision/resnet``.
        path: as the user would type it.
        facts: what it says; nothing if it cannot be read.
        problem: why it cannot be read, or None.
    """

    name: str
    path: str
    facts: Facts = field(default=_EMPTY, repr=False)
    problem: Found | None = None

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
        for end in range(len(path), 0, -1):
            if path[:end] in self.facts.lines:
                return self.facts.lines[path[:end]]
        return 1


@dataclass(frozen=True)
class ConfigTree:
    """The files of a tree.

    Attributes:
        directory: as the user would type it.
        files: by name.
        locks: paths of the locks, by the names of their experiments.
        policies: paths of the policies in it.
        found: what is wrong with files as such.
    """

    directory: str
    files: dict[str, ConfigFile]
    locks: dict[str, str]
    policies: tuple[str, ...] = ()
    found: tuple[Found, ...] = ()


def read_tree(directory: str) -> ConfigTree:
    """Reads all files of a tree of configs.

    Args:
        directory: its top.
    """
    found: list[Found] = []
    files: dict[str, ConfigFile] = {}
    locks: dict[str, str] = {}
    policies = []
    for name in _names(directory, found):
        path = shown_path(os.path.join(directory, name))
        stem, extension = os.path.splitext(name)
        if extension == ".yml":
            message = "is never read: for Hydra the names of configs end in .yaml"
            found.append(Found(0, path, 0, "", message))
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
    """Reads a config file; what is wrong with it stands in the result.

    Args:
        name: as Hydra calls it.
        path: of the file.
    """
    try:
        return ConfigFile(name, path, read_facts(read_text(path), path))
    except ConfigError as error:
        return ConfigFile(name, path, problem=found_in(error)[0])


def found_in(error: ConfigError, file: str = "") -> list[Found]:
    """Returns the problems of a file, which know their place.

    Args:
        error: holds them.
        file: that the others are about; by default that of the one before.
    """
    found = []
    for each in error.problems:
        line = 0
        if each.file:
            file, line = shown_path(each.file), each.line
        found.append(Found(WRONG, file, line, each.key, each.text))
    return found


def _names(directory: str, found: list[Found]) -> Iterator[str]:
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
            found.append(Found(WRONG, shown_path(path), 0, "", f"cannot be read: {error.strerror}"))
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        directories = []
        for entry in entries:
            count += 1
            if count > MOST_FILES:
                message = f"holds more than {MOST_FILES} files: the others are not checked"
                found.append(Found(WRONG, shown_path(directory), 0, "", message))
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
                found.append(
                    Found(WRONG, shown_path(os.path.join(directory, name)), 0, "", message)
                )
        waiting += reversed(directories)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
