"""Checks a tree of configs: all its experiments, files and locks at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lllaunch.checking.examine import CheckContext, Examined, examine
from lllaunch.checking.findings import Checked, CheckedDiagnostic, Outcome, merged
from lllaunch.checking.lint import lint, misplaced, superseded, told_unused
from lllaunch.checking.locks import Locks, not_locked
from lllaunch.checking.tree import (
    ConfigFile,
    ConfigTree,
    Experiment,
    Graph,
    broken_by,
    endless,
    find_experiments,
    found_in,
    read_tree,
)
from lllaunch.config.secrets import literals
from lllaunch.config.tree import leaf_items, shown_path
from lllaunch.errors import ConfigError
from lllaunch.review.document import wrong
from lllaunch.review.paths import policy_path, tree_top
from lllaunch.review.policy import Policy, read_policy
from lllaunch.run.redact import Redactor
from lllaunch.secret_names import is_secret_name

_VARIABLE = re.compile(r"oc\.env\s*:\s*(\w+)")


def check_tree(directory: str, environ: Mapping[str, str]) -> Outcome:
    """Checks all that is in a tree of configs. Nothing is started, nothing is written.

    Args:
        directory: its top.
        environ: of this process.

    Raises:
        ConfigError: there is no such directory.
    """
    if not os.path.isdir(directory):
        raise wrong(directory, 0, "is not a directory")
    tree = read_tree(directory)
    policy, about_policies = _policy(tree, environ)
    linted = [found for file in tree.files.values() for found in lint(file)]
    graph = Graph(tree.files)
    whole = find_experiments(tree.files, graph)
    left_out = {each.name: endless(each, tree.files, graph) for each in whole}
    possible = [each for each in whole if left_out[each.name] is None]
    around = CheckContext(tree.directory, tree.files, graph, policy, tree_top(os.getcwd()), environ)
    examined = list(_examined(possible, around))
    impossible = {each.file.name for each in whole if left_out[each.name] is not None}
    locks = Locks(examined, _Unreadable(tree, graph, impossible))
    found = [
        *(*tree.found, *about_policies, *linted, *filter(None, left_out.values())),
        *superseded([each for one in examined for each in one.found], linted),
        *told_unused({each.experiment.name: each.usage for each in examined if each.usage}),
        *(each for lock in tree.locks.items() for each in locks.compare(*lock)),
        *not_locked(examined),
    ]
    outcome = Outcome(
        tree.directory,
        tuple(_checked(whole, examined, around)),
        tuple(tree.locks.values()),
        (*(file.path for file in tree.files.values()), *tree.policies),
        tuple(merged(found)),
    )
    hide, literal = _redactors(tree.files.values(), environ)
    return outcome.hiding(lambda text: hide(literal(text)))


def _examined(experiments: Iterable[Experiment], around: CheckContext) -> Iterator[Examined]:
    """Each experiment; those whose files cannot be read are not composed."""
    readable = []
    for each in experiments:
        broken = [*broken_by(each, around.files, around.graph), *misplaced(each.file)]
        if not broken:
            readable.append(each)
            continue
        examined = Examined(each, around.command(each))
        examined.found = [_hitting(found, each.name) for found in broken]
        yield examined
    yield from examine(readable, around)


def _hitting(found: CheckedDiagnostic, name: str) -> CheckedDiagnostic:
    return replace(found, experiments=(name,))


class _Unreadable:
    """Whether a config cannot be composed, as far as its files tell."""

    def __init__(self, tree: ConfigTree, graph: Graph, impossible: set[str]) -> None:
        self._files = tree.files
        self._graph = graph
        self._impossible = impossible

    def __call__(self, name: str) -> bool:
        reached = self._graph.reached([name])
        return not reached.isdisjoint(self._impossible) or any(
            self._files[each].problem for each in reached
        )


def _policy(
    tree: ConfigTree, environ: Mapping[str, str]
) -> tuple[Policy | None, list[CheckedDiagnostic]]:
    """The policy that counts, and what is wrong with this one and those of the tree."""
    found: list[CheckedDiagnostic] = []
    counting = policy_path(tree_top(os.getcwd()), environ)
    policy = None
    paths = [*tree.policies, *([counting] if counting else [])]
    for path in dict.fromkeys(map(shown_path, paths)):
        try:
            read = read_policy(path)
        except ConfigError as error:
            found += found_in(error)
            continue
        policy = read if counting and path == shown_path(counting) else policy
    return policy, found


def _checked(
    experiments: Iterable[Experiment], examined: Iterable[Examined], around: CheckContext
) -> Iterator[Checked]:
    known = {each.experiment.file.name: each for each in examined}
    for each in experiments:
        words, path = around.command(each).words, each.file.path
        one = known.get(each.file.name)
        if one is None:
            yield Checked(each.name, path, words)
        else:
            yield Checked(each.name, path, words, one.plan_hash, bool(one.lock))


def _redactors(
    files: Iterable[ConfigFile], environ: Mapping[str, str]
) -> tuple[Redactor, Redactor]:
    """Return what takes out values of the environment, and what the literals of configs."""
    names = {name for name in environ if is_secret_name(name)}
    found: dict[str, str] = {}
    for file in files:
        for _, leaf in leaf_items(file.data):
            names.update(_VARIABLE.findall(leaf) if isinstance(leaf, str) else ())
        data: Any = file.data
        found |= {text: source for _, source, text in literals(data)}
    values = {environ[name]: f"${{oc.env:{name}}}" for name in names if name in environ}
    return Redactor(values), Redactor(found, certain=True)
