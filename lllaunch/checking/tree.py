"""A tree of configs, as text: its files, and what they show by themselves.

Hydra would follow every alias, and would stop at the first file that is no YAML. So each file is
read here first, by `lllaunch.config.document`, which takes no more than it can bear.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from lllaunch.app.command_line import quoted
from lllaunch.app.planning import EXPERIMENTS
from lllaunch.checking.findings import WRONG, CheckedDiagnostic, is_in
from lllaunch.config.document import NO_LINES, Document, parse, read_text
from lllaunch.config.secrets import EXPOSED, exposed, not_secret
from lllaunch.config.tree import dotted, leaf_items, shown_path
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.review.paths import LOCKS, POLICY_FILE
from lllaunch.secret_names import is_secret_name
from lllaunch.text import shorten

_HEADER = re.compile(r"\s*#\s*@")
_PACKAGE = re.compile(r"\s*#\s*@package\s+(\S+)\s*")

MOST_FILES = 20_000
"""Entries of all directories of a tree."""

_EMPTY = Document({}, NO_LINES)


@dataclass(frozen=True)
class ConfigFile:
    """One config file, by the name that Hydra gives it; ``problem`` is why it cannot be read."""

    name: str
    path: str
    document: Document = field(default=_EMPTY, repr=False)
    header: str | None = None  # the package that it begins with
    late: int = 0  # line of a ``# @package`` where Hydra no longer looks for it
    problem: CheckedDiagnostic | None = None

    @classmethod
    def of(cls, name: str, path: str, text: str) -> ConfigFile:
        """Read the text of a config file.

        Raises:
            ConfigError: Hydra could not read it, or it is more than anybody should; the problem
                names its line.
        """
        return cls(name, path, parse(text, path, as_hydra=True), *_package(text))

    @property
    def group(self) -> str:
        """The group that it is in; empty at the root."""
        return self.name.rpartition("/")[0]

    @property
    def data(self) -> dict[Any, Any]:
        """What it says; empty if that is no mapping."""
        return self.document.data if isinstance(self.document.data, dict) else {}

    @property
    def package(self) -> str:
        """The dotted key that its content is put under, unless a defaults list names another."""
        group = self.group.replace("/", ".")
        if self.header is None:
            return group
        if self.header == "_global_":
            return ""
        return self.header.replace("_group_", group).replace("_global_.", "")

    def line_of(self, *path: object) -> int:
        """The line of a value; that of what it is in, or 1, where there is none."""
        return self.document.lines.nearest(path)

    def line_of_choice(self, name: str) -> int:
        """The line of the defaults list that asks for a config, as far as that is clear."""
        option = name.rpartition("/")[2]
        entries = self.data.get("defaults")
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            words = {"": entry} if not isinstance(entry, dict) else entry
            for _, word in leaf_items(words):
                asked = str(word).partition("@")[0].removesuffix(".yaml").rpartition("/")[2]
                if asked == option:
                    return self.line_of("defaults", index)
        return self.line_of("defaults")


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


@dataclass(frozen=True)
class ConfigTree:
    """The files of a tree, by name; ``found`` is what is wrong with files as such."""

    directory: str
    files: dict[str, ConfigFile]
    locks: dict[str, str]
    policy: str = ""
    found: tuple[CheckedDiagnostic, ...] = ()


def read_tree(directory: str) -> ConfigTree:
    """Reads all files of a tree of configs."""
    found: list[CheckedDiagnostic] = []
    policy = ""
    files: dict[str, ConfigFile] = {}
    locks: dict[str, str] = {}
    for name in _names(directory, found):
        path = shown_path(os.path.join(directory, name))
        stem, extension = os.path.splitext(name)
        if extension == ".yml":
            message = "is never read: for Hydra the names of configs end in .yaml"
            found.append(CheckedDiagnostic.at(0, "unread", path, 0, "", message))
        if extension != ".yaml":
            continue
        if name == os.path.basename(POLICY_FILE):
            policy = path
        elif stem.startswith(f"{LOCKS}/"):
            locks[stem.partition("/")[2]] = path
        else:
            try:
                files[stem] = ConfigFile.of(stem, path, read_text(path))
            except ConfigError as error:
                problem, *_ = found_in(error.problems)
                files[stem] = ConfigFile(stem, path, problem=problem)
                found.append(problem)
    return ConfigTree(shown_path(directory), files, locks, policy, tuple(found))


def found_in(
    problems: Iterable[Diagnostic], file: str = "", exit_code: int = WRONG
) -> list[CheckedDiagnostic]:
    """Returns the problems of a file, which know their place.

    Problems without a file are about ``file`` or, without that, the file of the one before.
    """
    found = []
    for each in problems:
        line = 0
        if each.file:
            file, line = shown_path(each.file), each.line
        found.append(CheckedDiagnostic.of(replace(each, file=file, line=line), exit_code))
    return found


def _names(directory: str, found: list[CheckedDiagnostic]) -> Iterator[str]:
    """Paths of all files, relative to the directory, in order; hidden ones are left out."""

    def unreadable(error: OSError) -> None:
        path, message = shown_path(str(error.filename)), f"cannot be read: {error.strerror}"
        found.append(CheckedDiagnostic.at(WRONG, "file", path, 0, "", message))

    # links may lead back to where they are
    seen: set[tuple[int, int]] = set()
    count = 0
    for path, directories, names in os.walk(directory, followlinks=True, onerror=unreadable):
        status = os.stat(path)
        count += len(directories) + len(names)
        if (status.st_dev, status.st_ino) in seen:
            directories.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        if count > MOST_FILES:
            message = f"holds more than {MOST_FILES} files: the others are not checked"
            place = (shown_path(directory), 0, "", message)
            found.append(CheckedDiagnostic.at(WRONG, "too-large", *place))
            return
        below = os.path.relpath(path, directory)
        prefix = "" if below == os.curdir else f"{below}/"
        yield from (f"{prefix}{name}" for name in sorted(names) if not name.startswith("."))
        shown = {name for name in directories if not name.startswith(".")} - {"__pycache__"}
        directories[:] = sorted(shown)


_LAUNCH = "launch"


@dataclass(frozen=True)
class Experiment:
    """One config that can be run, by the overrides that choose it.

    ``name`` is without the group for those in ``exp``; ``config_name`` is None for lllaunch's own
    primary config. ``certain``: False if it is none unless what it includes sets ``launch``.
    """

    name: str
    file: ConfigFile
    overrides: tuple[str, ...] = ()
    config_name: str | None = None
    certain: bool = True

    @property
    def is_preset(self) -> bool:
        """Whether it is only a choice beside the experiments, and need not be whole."""
        return self.config_name is None and not self.file.name.startswith(f"{EXPERIMENTS}/")


def find_experiments(files: Iterable[ConfigFile]) -> Iterator[Experiment]:
    """Yield the experiments of a tree, and what may be one, by name."""
    known = {file.name: file for file in files}
    for name, file in known.items():
        group, _, option = name.rpartition("/")
        if name.startswith(f"{EXPERIMENTS}/"):
            rest = name.partition("/")[2]
            # another config may have the same name
            told = name if rest in known else rest
            yield Experiment(told, file, (f"+{EXPERIMENTS}={quoted(rest, numbers=False)}",))
        elif not group:
            yield Experiment(name, file, (), name, certain=_LAUNCH in file.data)
        elif file.header == "_global_" and isinstance(file.data.get(_LAUNCH), dict):
            yield Experiment(name, file, (f"+{group}={quoted(option, numbers=False)}",))


# Here a number of base 60 can only be something else that was not quoted.
_NEVER_NUMBERS = (
    *("launch.tee", "launch.redirects", "launch.grace_period", "launch.local_ranks_filter"),
    *("launch.watchdog", "launch.restart", "launch.nnodes", "launch.rdzv"),
)


def lint(file: ConfigFile) -> Iterator[CheckedDiagnostic]:
    """Tells what is wrong with a file."""
    yield from misplaced(file)
    for key in exposed(file.data, file.package, not_secret(file.data)):
        line = file.line_of(*key.removeprefix(f"{file.package}.").split("."))
        yield CheckedDiagnostic.at(0, "secret", file.path, line, key, EXPOSED)
    for each in file.document.sexagesimals:
        key = dotted([*file.package.split("."), *each.path] if file.package else each.path)
        text, number = shorten(each.text, 40), shorten(repr(each.number), 40)
        if any(map(is_secret_name, each.path)):
            text, number = "it", "a number of base 60"
        message = f"YAML reads {text} as {number}: quote it"
        code = WRONG if is_in(key, *_NEVER_NUMBERS) else 0
        yield CheckedDiagnostic.at(code, "base-60", file.path, each.line, shorten(key), message)


def misplaced(file: ConfigFile) -> Iterator[CheckedDiagnostic]:
    """Tells if a file is put elsewhere than its text seems to say."""
    if file.late:
        message = "comes too late: '# @package' has to stand before anything else, comments too"
        yield CheckedDiagnostic.at(WRONG, "package", file.path, file.late, "", message)
        return
    if not file.name.startswith(f"{EXPERIMENTS}/"):
        return
    if not isinstance(file.document.data, (dict, type(None))):
        message = "is no mapping of keys to values"
        yield CheckedDiagnostic.at(WRONG, "type", file.path, 1, "", message)
    elif file.header is None and "launch" in file.data:
        message = (
            f"is put under {file.package}, where nothing reads it; "
            "begin the file with '# @package _global_'"
        )
        line = file.line_of("launch")
        yield CheckedDiagnostic.at(WRONG, "package", file.path, line, "launch", message)
