"""Checks a tree of configs: all its experiments, files and locks at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lllaunch.app.compose import Composition, ConfigRequest, composing, name_of
from lllaunch.app.configs import DIRECTORY, as_written, job_name
from lllaunch.app.sweeping.sweeper import grid_of
from lllaunch.checking.examine import (
    CheckContext,
    Examined,
    examine,
    in_fork,
    in_short,
    told_unused,
)
from lllaunch.checking.findings import (
    REFUSED,
    WRONG,
    Checked,
    CheckedDiagnostic,
    Outcome,
    merged,
)
from lllaunch.checking.tree import (
    ConfigFile,
    ConfigTree,
    find_experiments,
    found_in,
    is_in,
    lint,
    read_tree,
)
from lllaunch.config.document import wrong
from lllaunch.config.plan import portable_plan
from lllaunch.config.secrets import literals
from lllaunch.config.tree import leaf_items, shown_path
from lllaunch.difference import Change, differences, text_lines
from lllaunch.errors import ConfigError, Unfit
from lllaunch.review.lock import Lock, PlanRefused, read_lock, sweep_plan
from lllaunch.review.paths import policy_path, tree_top
from lllaunch.review.policy import Policy, read_policy
from lllaunch.secret_names import Redactor, is_secret_name
from lllaunch.text import shorten

if TYPE_CHECKING:
    from lllaunch.spec import LaunchSpec


LONGEST_OF_LOCKS = 300.0
"""How long composing what a lock holds may take, seconds."""

_MOST_LINES = 20
_JOBS = "jobs"


def compare_lock(
    name: str, path: str, examined: Mapping[ConfigRequest, Examined]
) -> Iterator[CheckedDiagnostic]:
    """Tells what is wrong with a lock, or differs from it; ``examined`` are known by command."""
    try:
        lock = read_lock(path)
        experiment, changes = _changes(lock, name, examined)
    except ConfigError as error:
        yield from found_in(error)
    except PlanRefused as refused:
        for each in refused.problems:
            line = each.line if each.file else 1
            message = f"{each.text}: {refused.renew}"
            yield CheckedDiagnostic.at(REFUSED, each.code, path, line, each.key, message)
    except Unfit as unfit:
        yield CheckedDiagnostic.of(replace(unfit.at("command", ""), file=path, line=1), WRONG)
    else:
        if changes:
            lines = [f"  {line}" for line in text_lines(changes, _MOST_LINES)]
            advice = f"if this is what shall run, have it reviewed anew: {lock.renew}"
            whose = f"the plan of {experiment}" if experiment else "the plan"
            message = "\n".join([f"{whose} is not the reviewed one:", *lines, advice])
            names = (experiment,) if experiment else ()
            yield CheckedDiagnostic.at(REFUSED, "not-reviewed", path, 1, "", message, names)


def _changes(
    lock: Lock, name: str, examined: Mapping[ConfigRequest, Examined]
) -> tuple[str, tuple[Change, ...]]:
    """The experiment of a lock, if it is one of the tree, and what differs."""
    try:
        named = lock.command[:1] == ("--name",)
        command = ConfigRequest.parse(lock.command[2:] if named else lock.command)
    except ValueError as error:
        message = f"is no command that makes a plan: {shorten(str(error))}"
        raise Unfit(message=message, code="lock") from None
    known = examined.get(command)
    if known is not None and _JOBS not in lock.plan:
        if known.plan is None:
            message = f"makes no plan any more: see {known.experiment.file.path}"
            raise Unfit(message=message, code="lock")
        return known.experiment.name, differences(lock.plan, known.plan)
    whose = None if named else name
    changes = in_fork(lambda: _composed_changes(lock, command, whose), LONGEST_OF_LOCKS)
    if changes is None:
        changes = f"cannot be composed within {LONGEST_OF_LOCKS:g} s"
    if isinstance(changes, str):
        raise Unfit(message=changes, code="lock")
    return "", changes


def _composed_changes(
    lock: Lock, command: ConfigRequest, name: str | None
) -> tuple[Change, ...] | str:
    """What differs from a lock, or why that is not known."""
    plan: Mapping[str, Any]
    try:
        with Composition(command) as composed:
            if _JOBS in lock.plan or composed.is_sweep():
                plan = sweep_plan(dict(_jobs(composed, name)))
            else:
                plan = portable_plan(composed.plan(composed.compose()))
        return differences(lock.plan, plan)
    except Exception as error:  # noqa: BLE001 - one hostile lock must not hide the others
        return f"makes no plan any more: {in_short(error)}"


def _jobs(composed: Composition, name: str | None) -> Iterator[tuple[str, LaunchSpec]]:
    """The jobs of a sweep that have a lock's name, or all if it was given to them."""
    master = composed.master()
    with composing():
        grid = grid_of(master, composed.loader, as_written(master.hydra.overrides.task))
        composer = composed.composer(master)
        for number, overrides in enumerate(grid):
            job = composer.compose(overrides, number)
            spec = composer.plan(job, here=False)
            if name is None or name_of(spec, job.whole) == name:
                yield job_name(overrides), spec


_VARIABLE = re.compile(r"oc\.env\s*:\s*(\w+)")


def check_tree(directory: str, environ: Mapping[str, str]) -> Outcome:
    """Checks all that is in a tree of configs. Nothing is started, nothing is written.

    Raises:
        ConfigError: there is no such directory.
    """
    if not os.path.isdir(directory):
        raise wrong(directory, 0, "is not a directory")
    tree = read_tree(directory)
    policy, about_policies = _policy(tree, environ)
    linted = [found for file in tree.files.values() for found in lint(file)]
    top, usual = tree_top(os.getcwd()), os.path.abspath(directory) == os.path.abspath(DIRECTORY)
    around = CheckContext(tree.directory, tree.files, policy, top, environ, usual)
    every = list(examine(find_experiments(tree.files.values()), around))
    for each in every:
        file = each.experiment.file.path
        included = any(file in other.made_of for other in every if other is not each)
        each.found += [] if each.experiment.is_preset or included else each.left_open
    examined = [each for each in every if each.is_one]
    by_command = {each.command: each for each in examined}
    found = [
        *(*tree.found, *about_policies, *linted),
        *superseded([each for one in examined for each in one.found], linted),
        *told_unused(examined),
        *(each for lock in tree.locks.items() for each in compare_lock(*lock, by_command)),
    ]
    outcome = Outcome(
        tree.directory,
        tuple(
            Checked(
                each.experiment.name,
                each.experiment.file.path,
                each.command.words,
                each.plan_hash,
                each.locked,
            )
            for each in examined
        ),
        tuple(tree.locks.values()),
        (*(file.path for file in tree.files.values()), *tree.policies),
        tuple(merged(found)),
    )
    hide, literal = _redactors(tree.files.values(), environ)
    return outcome.cleaned(lambda text: hide(literal(text)))


def superseded(
    found: Iterable[CheckedDiagnostic], by: Iterable[CheckedDiagnostic]
) -> list[CheckedDiagnostic]:
    """Leaves out what says again, in other words, what the text of a file shows."""
    known: dict[tuple[str, int], list[str]] = {}
    for each in by:
        if each.exit_code:
            known.setdefault((each.file, each.line), []).append(each.key)
    return [
        each
        for each in found
        if not any(is_in(key, each.key) for key in known.get((each.file, each.line), ()))
    ]


def _policy(
    tree: ConfigTree, environ: Mapping[str, str]
) -> tuple[Policy | None, list[CheckedDiagnostic]]:
    """The policy that counts, and what is wrong with this one and those of the tree."""
    found: list[CheckedDiagnostic] = []
    path = policy_path(tree_top(os.getcwd()), environ)
    counting = shown_path(path) if path else ""
    policy = None
    for path in dict.fromkeys(filter(None, [*tree.policies, counting])):
        try:
            read = read_policy(path)
        except ConfigError as error:
            found += found_in(error)
        else:
            policy = read if path == counting else policy
    return policy, found


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
