"""Where in the files of a tree a problem is, and what was meant. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lllaunch.checking.files import ConfigFile
from lllaunch.checking.findings import Found
from lllaunch.checking.includes import includes_of
from lllaunch.checking.references import references_of
from lllaunch.config.origin import Origins, parts_of
from lllaunch.config.suggest import did_you_mean
from lllaunch.config.tree import shorten, value_at
from lllaunch.errors import Problem

_MISSING_KEY = re.compile(r"Interpolation key '([^']+)' not found")
_ASKED_BY = re.compile(r"In '([^']+)': ")
_NOT_FOUND = re.compile(r"Could not (?:find|load) '([^']+)'")
_OPTIONS = re.compile(r"Available options in '[^']*':((?:\n\t\S+)*)")
_FULL_KEY = re.compile(r"full_key: (\S+)(?:\s+object_type=\S+)?")
_LONGEST = 600
_MOST_OPTIONS = 10
# comparing a word with all keys takes its time
_MOST_CHOICES = 1_000


class Places:
    """Finds the lines of one experiment's problems.

    Args:
        experiment: its name.
        file: its own file.
        config: as it is composed, plain data, unresolved.
        origins: of its values.
    """

    def __init__(
        self, experiment: str, file: ConfigFile, config: Mapping[Any, Any], origins: Origins
    ) -> None:
        self._experiment = experiment
        self._file = file
        self._config = config
        self._origins = origins

    def found(self, problem: Problem, code: int) -> Found:
        """Returns a problem with its place.

        Args:
            problem: with a dotted key of the config, or with any other one.
            code: as `Found` has it.
        """
        missing = self._missing(problem)
        at = missing[1] if missing else problem.key
        file, line = self.place(at)
        if missing and not problem.hint:
            problem = replace(problem, hint=self._meant(missing[0]))
        return Found(code, file, line, problem.key, problem.text, (self._experiment,))

    def place(self, key: str) -> tuple[str, int]:
        """File and line of a key, of what it refers to, or of what it is in."""
        origin = self._origins.stands_in(key)
        if origin is not None and origin.kind == "file":
            return origin.where, origin.line or 1
        return self._file.path, self._file.line_of(*parts_of(key)[:1])

    def _missing(self, problem: Problem) -> tuple[str, str] | None:
        """The key that an interpolation asks for in vain, and the key where it does."""
        told = _MISSING_KEY.search(problem.message)
        if told is None:
            return None
        for link in self._origins.chain(problem.key):
            path = parts_of(link.key)
            for each in references_of(value_at(self._config, path), path):
                if each.key.endswith(told[1].lstrip(".")):
                    return each.key, link.key
        return told[1], problem.key

    def _meant(self, key: str) -> str:
        above, _, name = key.rpartition(".")
        node = value_at(self._config, parts_of(above)) if above else None
        near = [str(each) for each in node or ()] if isinstance(node, Mapping) else []
        hint = did_you_mean(name, near[:_MOST_CHOICES])
        if hint:
            return hint.replace("'", f"'{above}.", 1)
        keys = self._origins.keys()  # no mapping: an iterator
        others = [each for each in keys if not _is_near(each, key, above)]
        hint = did_you_mean(key, others[:_MOST_CHOICES])
        if hint or not near:
            return hint
        return f"there is {', '.join(f'{above}.{each}' for each in near[:_MOST_OPTIONS])}"


def _is_near(other: str, key: str, above: str) -> bool:
    """Whether a key is above or beside another one, or is one of Hydra's."""
    beside = bool(above) and other.startswith(f"{above}.")
    return beside or key.startswith(f"{other}.") or other.startswith("hydra.")


def compose_problem(
    reason: str, experiment: str, file: ConfigFile, files: Mapping[str, ConfigFile], code: int
) -> Found:
    """Returns why Hydra cannot compose an experiment, at the line that asks for what is not there.

    Args:
        reason: what Hydra says.
        experiment: the name of the experiment.
        file: its own file.
        files: of the tree, by name.
        code: as `Found` has it.
    """
    asked_by = _ASKED_BY.search(reason)
    asking = files.get(asked_by[1], file) if asked_by else file
    name, message = in_short(reason, files)
    key, line = "", 1
    if name:
        lines = [each.line for each in includes_of(asking) if each.name == name]
        key, line = "defaults", lines[0] if lines else asking.line_of("defaults")
    elif full := _FULL_KEY.search(reason):
        key, line = full[1], asking.line_of(*parts_of(full[1]))
    said = message if name else f"cannot be composed: {message}"
    return Found(code, asking.path, line, key, said, (experiment,))


def in_short(reason: str, names: Iterable[str]) -> tuple[str, str]:
    """Says why Hydra cannot compose a config.

    Args:
        reason: what Hydra says.
        names: of configs that there are.

    Returns:
        The name of a config that is not there, or an empty string, and a text of one line.
    """
    wanted = _NOT_FOUND.search(reason)
    if wanted is None:
        return "", shorten(" ".join(_FULL_KEY.sub("", reason).split()), _LONGEST)
    name = wanted[1].removesuffix(".yaml")
    group, _, option = name.rpartition("/")
    options = _OPTIONS.search(reason)
    hint = did_you_mean(option, options[1].split()) if options else did_you_mean(name, names)
    if options and not hint:
        hint = f"there are {', '.join(options[1].split()[:_MOST_OPTIONS])} in {group}"
    return name, f"there is no config {name!r}" + (f"; {hint}" if hint else "")
