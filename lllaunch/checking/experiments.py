"""What in a tree of configs is an experiment, and how it is asked for. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lllaunch.checking.files import ConfigFile
from lllaunch.checking.findings import WRONG, Found
from lllaunch.checking.includes import MOST_INCLUDES, MOST_VALUES, Graph

EXPERIMENTS = "exp"
"""The group whose configs are experiments, whatever they say."""

MOST_EXPERIMENTS = 1_000
"""How many are composed."""

MOST_IN_ALL = 500_000
"""Values in all of them, with what they include."""

_LAUNCH = "launch"
_PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[a-z_][\w/.+-]*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Experiment:
    """One config that can be run.

    Attributes:
        name: of its config: without the group for those in ``exp``.
        file: its config.
        overrides: that choose it.
        config_name: of the primary config, None for lllaunch's own.
        included: whether other configs include it.
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
    """Returns the experiments of a tree, by name.

    Args:
        files: of the tree.
        graph: of the same files.
    """
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


def too_much(
    experiments: Iterable[Experiment],
    directory: str,
    files: Mapping[str, ConfigFile],
    graph: Graph,
) -> tuple[list[Experiment], list[Found]]:
    """Leaves out what nobody could compose, or only in a very long time.

    Args:
        experiments: of a tree.
        directory: its top, for messages.
        files: of the tree.
        graph: of its files.

    Returns:
        The others, and why each of those was left out.
    """
    kept: list[Experiment] = []
    found: list[Found] = []
    values, left_out = 0, 0
    for each in experiments:
        problem = _endless(each, files, graph)
        if problem is not None:
            found.append(problem)
            continue
        values += graph.cost(each.file.name)[1]
        if len(kept) >= MOST_EXPERIMENTS or values > MOST_IN_ALL:
            left_out += 1
        else:
            kept.append(each)
    if left_out:
        message = f"is too much for one check: {left_out} experiments are not checked"
        found.append(Found(WRONG, directory, 0, "", message))
    return kept, found


def _endless(experiment: Experiment, files: Mapping[str, ConfigFile], graph: Graph) -> Found | None:
    name, path = experiment.file.name, experiment.file.path
    circle = graph.circle(name)
    if circle:
        first = files[circle[0]]
        message = f"these configs include each other: {_trail(circle)}"
        line = next(each.line for each in graph.own(circle[0]) if each.name == circle[1])
        return Found(WRONG, first.path, line, "defaults", message, (experiment.name,))
    configs, values = graph.cost(name)
    if configs > MOST_INCLUDES:
        message = f"includes more than {MOST_INCLUDES} configs"
    elif values > MOST_VALUES:
        message = f"is made of more than {MOST_VALUES} values"
    else:
        return None
    line = experiment.file.line_of("defaults") if configs > 1 else 0
    return Found(WRONG, path, line, "", message, (experiment.name,))


def _trail(names: tuple[str, ...]) -> str:
    shown = names if len(names) <= 8 else (*names[:4], "...", *names[-2:])
    return " -> ".join(shown)


def broken_by(
    experiment: Experiment, files: Mapping[str, ConfigFile], graph: Graph
) -> tuple[Found, ...]:
    """Returns what is wrong with the files of an experiment, so that it cannot be composed."""
    problems = (files[name].problem for name in sorted(graph.reached([experiment.file.name])))
    return tuple(each for each in problems if each is not None)
