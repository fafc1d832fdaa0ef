"""What ``plan --lock`` and ``plan --diff`` do with the plans that were made."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lllaunch.app.gate import variables_of_hydra
from lllaunch.app.naming import unlocked
from lllaunch.app.reviewed import located
from lllaunch.config.overrides import redacted_overrides
from lllaunch.difference import as_json as changes_as_json
from lllaunch.difference import differences, text_lines
from lllaunch.errors import ConfigError, LaunchError, Problem
from lllaunch.review.lock import (
    Lock,
    lock_path,
    lock_text,
    read_lock,
    renew_command,
    sweep_plan,
    write_lock,
)
from lllaunch.review.refused import PlanRefused
from lllaunch.verbs.printing import print_json, print_lines

if TYPE_CHECKING:
    from lllaunch.app.composed import Command
    from lllaunch.app.reviewed import Reviewed


class Locked(NamedTuple):
    """What one lock is to hold.

    Attributes:
        name: of the lock.
        command: that its plan is made with.
        plan: of a run or of a sweep.
    """

    name: str
    command: tuple[str, ...]
    plan: Mapping[str, Any]


def write_locks(runs: Sequence[Reviewed], command: Command, name: str | None) -> None:
    """Writes the locks of some plans and tells what is new in them.

    Raises:
        ConfigError: a lock has no name that it can have, or would leave out what workers see.
        OutputError: it cannot be written.
    """
    problems = located(runs, lambda run: variables_of_hydra(run.config["hydra"]["job"]["env_set"]))
    if problems:
        raise ConfigError(problems)
    for lock in _locks(runs, command, name):
        text = lock_text(lock.name, lock.command, lock.plan)
        known = _known(lock.name)
        path = os.path.relpath(write_lock(os.getcwd(), lock.name, text))
        changes = () if known is None else differences(known.plan, lock.plan)
        what = "the plan is new" if known is None else "the plan is the same"
        told = [f"wrote {path}: {f'{len(changes)} changed' if changes else what}"]
        print_lines([*told, *(f"  {line}" for line in text_lines(changes))])


def show_difference(
    runs: Sequence[Reviewed], command: Command, name: str | None, *, as_json: bool
) -> None:
    """Prints how plans differ from their locks.

    Raises:
        PlanRefused: they do, or there is no lock.
        ConfigError: a lock cannot be read, or has no name that it can have.
    """
    found = []
    differs = False
    for wanted in _locks(runs, command, name):
        path = os.path.relpath(lock_path(os.getcwd(), wanted.name))
        if not os.path.lexists(path):
            missing = Problem(path, "", "does not exist: this plan has not been reviewed")
            raise PlanRefused(problems=(missing,), renew=renew_command(wanted.command))
        lock = read_lock(path)
        changes = differences(lock.plan, wanted.plan)
        differs = differs or bool(changes)
        found.append({"lock": path, "changes": changes_as_json(changes)})
        if not as_json:
            same = [f"{path}: the plan is the reviewed one"]
            print_lines(text_lines(changes) if changes else same)
    if as_json:
        print_json({"differs": differs, "locks": found})
    if differs:
        raise Differs


class Differs(LaunchError):
    """A plan differs from its lock, as has been printed."""

    exit_code = PlanRefused.exit_code

    def __str__(self) -> str:
        return ""


def _known(name: str) -> Lock | None:
    """The lock that there is, if it can be read."""
    path = os.path.relpath(lock_path(os.getcwd(), name))
    try:
        return read_lock(path) if os.path.lexists(path) else None
    except (ConfigError, PlanRefused):
        return None  # it is about to be replaced


def _locks(runs: Sequence[Reviewed], command: Command, name: str | None) -> Iterator[Locked]:
    """One lock for each name: of a run, or of all jobs of a sweep that have it."""
    by_name: dict[str, list[Reviewed]] = {}
    for run in runs:
        own = run.name if name is None else name
        if not own:
            hint = "give one with --name NAME, and to runs with launch.locked=NAME"
            raise ConfigError((Problem("", "the lock", "has no name", hint),))
        by_name.setdefault(own, []).append(run)
    given = ["--name", name] if name is not None else []
    for own, members in by_name.items():
        if len(members) == 1 and command.multirun:
            alone = command._replace(multirun=False, overrides=_words(members[0].job))
            yield Locked(own, _clean(alone, given), members[0].plan)
        elif command.multirun:
            plan = sweep_plan({run.job: run.spec for run in members})
            yield Locked(own, _clean(command, given), plan)
        else:
            yield Locked(own, _clean(command, given), members[0].plan)


def _words(job: str) -> tuple[str, ...]:
    import shlex  # noqa: PLC0415 - of sweeps only

    return tuple(shlex.split(job))


def _clean(command: Command, given: Sequence[str]) -> tuple[str, ...]:
    overrides = unlocked(redacted_overrides(command.overrides))
    return (*given, *command._replace(overrides=overrides).words)
