"""Locks: reviewed plans in ``conf/locks``, one file for each experiment; and what is refused.

A lock holds a plan without what differs from place to place and without defaults: exactly what
`lllaunch.config.plan.plan_hash` hashes. So a plan fits its lock if the hashes are equal, and the
difference of the two is what a reviewer has to look at.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from lllaunch.config.document import expect_record, parse, read_text, wrong
from lllaunch.config.plan import complete, dump_yaml, essential, hash_of, portable_plan
from lllaunch.config.tree import show
from lllaunch.documents import Change, Record, differences
from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.files import naming, write_atomic
from lllaunch.review.paths import LOCKS, PlanRefused, expect_within
from lllaunch.spec import LaunchSpec

DIRECTORY = f"conf/{LOCKS}"
"""Where locks are, relative to the project."""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", re.ASCII)
_LONGEST_NAME = 200


def lock_path(root: str, name: str) -> str:
    """Returns where the lock of an experiment is, or would be; with slashes, in a directory below.

    A name that no lock can have, or a link out of the project, is a `ConfigError`.
    """
    problem = name_problem(name)
    if problem is not None:
        raise ConfigError((problem,))
    path = os.path.join(root, DIRECTORY, f"{name}.yaml")
    expect_within(path, root, "a lock is a file of the project")
    return path


def name_problem(name: str) -> Diagnostic | None:
    """Tells what is wrong with the name of a lock, None if nothing is."""
    fits = all(_PART.fullmatch(part) for part in name.split("/"))
    if fits and len(name) <= _LONGEST_NAME and not name.endswith((".yaml", ".yml")):
        return None
    expected = (
        f"at most {_LONGEST_NAME} characters, without a suffix: words of letters, digits, _ . + "
        "and -, each beginning with one of the first three"
    )
    hint = "separate them by /"
    return Diagnostic("lock-name", "the lock's name", show(name), "", hint, expected=expected)


_JOBS = "jobs"


class Lock(Record, frozen=True, forbid_unknown_fields=True, dict=True):
    """A reviewed plan, with the overrides and flags that it was made with.

    ``plan`` is plain data, complete: ``launch`` with the node under it, ``cluster`` if it goes to
    one, and ``hydra`` if that makes anything by name; or ``jobs``, where each job of a sweep has
    such a plan under its overrides.
    """

    lock: Literal[2]
    command: tuple[str, ...]
    plan_hash: str
    plan: Mapping[str, Mapping[Any, Any]]

    @property
    def renew(self) -> str:
        """The command that writes this lock anew."""
        return renew_command(self.command)

    @functools.cached_property
    def hashes_of_jobs(self) -> frozenset[str]:
        """Of the plan of each job; none of a run's lock."""
        return frozenset(map(hash_of, self.plan.get(_JOBS, {}).values()))


def sweep_plan(jobs: Mapping[str, LaunchSpec]) -> dict[str, Any]:
    """Return the plan of a sweep, as a lock holds it: that of each job by its overrides."""
    return {_JOBS: {overrides: portable_plan(spec) for overrides, spec in jobs.items()}}


def lock_text(name: str, command: Sequence[str], plan: Mapping[str, Any]) -> str:
    """Returns the text of a lock; the same for the same arguments, on every machine.

    ``command`` is redacted; ``plan`` is of a run (`lllaunch.config.plan.portable_plan`) or of a
    sweep (`sweep_plan`).
    """
    renewal = renew_command(command)
    header = [
        f"The reviewed plan of {name}: with launch.locked=true nothing else is started.",
        "Made by lllaunch, not to be edited. To renew it:",
        # a line break in it would end the comment
        f"  {renewal}" if renewal.isprintable() else "  python -m lllaunch plan --lock ...",
    ]
    content = {
        "lock": 2,  # grows when an older reader would misunderstand it
        "command": list(command),
        "plan_hash": hash_of(plan),
        "plan": essential(plan),
    }
    return "".join(f"# {line}\n" for line in header) + dump_yaml(content)


def read_lock(path: str) -> Lock:
    """Reads a lock, or raises `ConfigError`; `PlanRefused` if somebody edited the plan in it."""
    return parse_lock(read_text(path), path)


def parse_lock(text: str, path: str) -> Lock:
    """Reads the text of a lock; `read_lock` tells what is raised."""
    document = parse(text, path)
    hint = "renew it, or use a newer lllaunch"
    lock = expect_record(document, Lock, path, "lock", hint)
    try:
        plan = complete(lock.plan)
    except (LookupError, AttributeError, TypeError):
        line = document.lines.nearest(["plan"])
        message = "is no lock: expected a plan (launch: {...}, or jobs: {...} of a sweep)"
        raise wrong(path, line, message, hint, code="lock") from None
    if lock.plan_hash != hash_of(plan):
        message = "does not fit the plan below it: the file was edited by hand"
        line = document.lines.nearest(["plan_hash"])
        shown = f"{lock.plan_hash[:12]}..."
        edited = Diagnostic("lock-edited", "plan_hash", shown, message, "renew it", path, line)
        raise PlanRefused(path, problems=(edited,), renew=lock.renew)
    return replace(lock, plan=plan)


def write_lock(root: str, name: str, text: str) -> str:
    """Writes a lock, or raises what `lock_path` does, or `OutputError`."""
    path = lock_path(root, name)
    directory = os.path.dirname(path)
    with naming(directory):
        os.makedirs(directory, exist_ok=True)
    write_atomic(path, text.encode())
    return path


def compare(lock: Lock, spec: LaunchSpec, job: str = "") -> tuple[Change, ...]:
    """Returns in what a run's plan differs from the reviewed one; nothing if it is that.

    ``job``: its overrides, if it is one of a sweep. It may be any job that was reviewed; if it is
    none it is compared with the one of that name, else with the first.
    """
    plan = portable_plan(spec)
    if _JOBS not in lock.plan:
        return () if hash_of(plan) == lock.plan_hash else differences(lock.plan, plan)
    known = lock.plan[_JOBS]
    if hash_of(plan) in lock.hashes_of_jobs:
        return ()
    like = job if job in known else next(iter(known), "")
    reviewed = {like: known[like]} if known else {}
    return differences({_JOBS: reviewed}, {_JOBS: {like or job: plan}})


def renew_command(command: Sequence[str]) -> str:
    """Returns the command that writes a lock, as a shell takes it."""
    return f"python -m lllaunch plan --lock {shlex.join(command)}".rstrip()
