"""What a project allows to be run: ``conf/lllaunch.yaml``, read and never composed.

No override, no group and no defaults list can change it: it comes from the top of the working tree,
or from the file that LLLAUNCH_POLICY names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from lllaunch.config.document import Document, parse, read_text
from lllaunch.config.fields import MOST_PROBLEMS, did_you_mean, one_of
from lllaunch.config.tree import show
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.text import shorten


class Forms(NamedTuple):
    """What a pattern may fit."""

    names: tuple[str, ...] = ()
    file: str = ""  # path, relative to the tree if in it, else absolute; empty if there is none
    exact: str = ""  # a name that only the same text allows: what is there may be something else


def is_within(path: str, patterns: Iterable[str]) -> bool:
    """Whether a directory, or what is in it, fits one of some patterns."""
    return any(fits(each, path) or fits(each, f"{path}/") for each in patterns)


def fits(pattern: str, text: str) -> bool:
    """Whether a text fits a pattern; it always fits itself."""
    return pattern == text or fnmatchcase(text, pattern)


def fits_any(patterns: Iterable[str], forms: Forms) -> bool:
    """Whether one of the forms of something fits one of some patterns."""
    return any(
        (forms.exact and each == forms.exact) or _fits_forms(each, forms) for each in patterns
    )


def _fits_forms(pattern: str, forms: Forms) -> bool:
    of_files = not pattern.startswith("-m ") and ("/" in pattern or pattern.endswith(".py"))
    if not of_files and any(fits(pattern, name) for name in forms.names):
        return True
    if not of_files and pattern != "*":
        return False
    # a star that begins a pattern does not lead out of the tree
    if not forms.file or pattern.startswith("/") != forms.file.startswith("/"):
        return False
    return fits(pattern, forms.file)


LISTS: tuple[str, ...] = (
    *("entrypoints", "programs", "preload", "callbacks", "targets"),
    *("searchpath", "env", "paths", "hosts", "cluster"),
)
"""Lists of patterns under ``allow``."""


@dataclass(frozen=True)
class Policy:
    """What may be run; what no pattern fits may not."""

    path: str
    # functions (``package.module:name``), modules (``-m package.module``) and scripts (paths)
    entrypoints: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()  # names on PATH, or paths
    preload: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()  # other targets
    searchpath: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # variables that are refused otherwise, such as ``PYTHONHASHSEED``
    # absolute paths outside of the tree where workers may work and write, and of log files outside
    # of the run's directory
    paths: tuple[str, ...] = ()
    # where nodes may meet (``launch.rdzv.endpoint``): names or addresses
    hosts: tuple[str, ...] = ()
    # lines that run in batch jobs (``cluster.setup``, ``cluster.teardown``), and words for srun and
    # sbatch (``cluster.srun_args``, ``cluster.additional_parameters``)
    cluster: tuple[str, ...] = ()


def read_policy(path: str) -> Policy:
    """Read a policy; raises a `ConfigError` with everything that is wrong."""
    return parse_policy(read_text(path), path)


def parse_policy(text: str, path: str) -> Policy:
    """Reads the text of a policy; `read_policy` tells what is raised."""
    reader = _Reader(parse(text, path), path)
    lists = reader.lists()
    if reader.problems:
        more = len(reader.problems) - MOST_PROBLEMS
        left_out = [Diagnostic("more", "and", "", f"{more} more problems")] if more > 0 else []
        raise ConfigError((*reader.problems[:MOST_PROBLEMS], *left_out))
    return Policy(path, **lists)


class _Reader:
    def __init__(self, document: Document, path: str) -> None:
        self.problems: list[Diagnostic] = []
        self._document = document
        self._path = path

    def lists(self) -> dict[str, tuple[str, ...]]:
        data = self._document.data
        if not isinstance(data, dict) or "allow" not in data:
            self._note((), data, "a mapping with the key 'allow'", "write 'allow: {...}'")
            return {}
        self._note_unknown((), data, ("allow",))
        allow = data["allow"]
        if not isinstance(allow, dict):
            self._note(("allow",), allow, f"a mapping of lists ({one_of(LISTS)})")
            return {}
        self._note_unknown(("allow",), allow, LISTS)
        return {name: self._patterns(name, allow[name]) for name in LISTS if name in allow}

    def _patterns(self, name: str, value: Any) -> tuple[str, ...]:
        where = ("allow", name)
        if isinstance(value, str):
            self._note(where, value, "a list of patterns", f"write [{value!r}]")
        elif not isinstance(value, list):
            hint = "leave it out, or write []" if value is None else ""
            self._note(where, value, "a list of patterns", hint)
        else:
            for place, item in enumerate(value):
                self._check(name, (*where, place), item)
            return tuple(item for item in value if isinstance(item, str))
        return ()

    def _check(self, name: str, where: tuple[Any, ...], item: Any) -> None:
        if not isinstance(item, str):
            hint = "" if item is None or isinstance(item, (dict, list)) else "quote it"
            self._note(where, item, "text", hint)
        elif not item or item != item.strip():
            self._note(where, item, "text without blanks around it")
        elif name == "paths" and not item.startswith("/"):
            self._note(where, item, "an absolute path", "those in the tree are allowed anyway")

    def _note_unknown(self, where: tuple[Any, ...], node: Any, names: tuple[str, ...]) -> None:
        for key in node:
            if key not in names:
                hint = did_you_mean(str(key), names)
                self._add(
                    (*where, key), Diagnostic("unknown-key", "", "", "unknown key", shorten(hint))
                )

    def _note(self, where: tuple[Any, ...], value: Any, expected: str, hint: str = "") -> None:
        self._add(
            where, Diagnostic("policy", "", show(value), "", shorten(hint), expected=expected)
        )

    def _add(self, where: tuple[Any, ...], problem: Diagnostic) -> None:
        line = self._document.lines.nearest(where)
        key = ".".join(str(part) for part in where if not isinstance(part, int))
        self.problems.append(replace(problem, key=shorten(key), file=self._path, line=line))
