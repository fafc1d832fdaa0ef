"""What users call a run or a sweep, and lists of many of them."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lllaunch.errors import ExitCode, LaunchError
from lllaunch.files import relative_path
from lllaunch.results.index import DEFAULT_ROOTS, used_from
from lllaunch.results.store import (
    MULTIRUN,
    OF_A_RUN,
    OF_A_SWEEP,
    BatchQueue,
    FoundDirectory,
    ListEntry,
    changed_ns,
    contents_of,
    find,
    look,
    read_run,
)
from lllaunch.results.sweeps import SweepFiles, view_sweep
from lllaunch.run.directory import PLAN, RESULT, SUBMISSION
from lllaunch.run.submission import read_submission
from lllaunch.sweep.journal import ARRAYS, JOURNAL, SUMMARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def list_entries(roots: Iterable[str], queue: BatchQueue | None = None) -> list[ListEntry]:
    """Returns the runs and sweeps below some directories, the newest first."""
    return sorted(newest(roots, queue), key=lambda entry: entry.started_ns or 0, reverse=True)


def newest(roots: Iterable[str], queue: BatchQueue | None = None) -> Iterator[ListEntry]:
    """Yield the same, as far as the times of files tell the order; each is read when it is due.

    Who wants a few of thousands stops early.
    """
    found: dict[str, tuple[int, FoundDirectory]] = {}
    for root in roots:
        for each in find(root):
            key = os.path.realpath(each.path)
            if key not in found:
                found[key] = began_ns(each), each
    queue = queue or BatchQueue()
    for _, each in sorted(found.values(), key=lambda pair: pair[0], reverse=True):
        yield entry_of(each, queue)


def began_ns(found: FoundDirectory) -> int:
    """Return when a run or a sweep began, as its files tell without being read; 0 if unknown."""
    # written once at the start
    for name in (MULTIRUN, JOURNAL, SUMMARY) if found.kind == "sweep" else (PLAN, RESULT):
        changed = changed_ns(os.path.join(found.path, name)) if name in found.names else None
        if changed is not None:
            return changed
    return changed_ns(found.path) or 0


def entry_of(found: FoundDirectory, queue: BatchQueue | None = None) -> ListEntry:
    """Reads what became of a run or a sweep; never raises."""
    if found.kind == "sweep":
        return view_sweep(found.path, str, queue).entry
    return read_run(found, queue)[0]


def jobs_of(sweep: ListEntry, queue: BatchQueue | None = None) -> tuple[ListEntry, ...]:
    """Return the jobs of a sweep by number, as they are by now."""
    return view_sweep(sweep.path, str, queue).jobs


def entry_now(found: FoundDirectory, queue: BatchQueue | None = None) -> ListEntry:
    """Return what is known of a run or a sweep by now, and not when it was found."""
    return entry_of(look(found.path) or found, queue)


# By name

LATEST = "latest"
"""What stands for the run or sweep that was started last."""

_NEAR = 8
_MOST_NAMED = 5
# what lies in the directory of a run
_WITHIN = re.compile(r"(?:(.+)/)?(?:(?:attempt_\d+|latest)(?:/\d+)?|\.hydra)(?:/[^/]+\.\w+)?")


@dataclass(eq=False)
class NoSuchRun(LaunchError):
    """There is no run or sweep where somebody looked for one."""

    path: str
    reason: str  # what is there, as the predicate of a sentence
    hint: str = ""
    exit_code = ExitCode.CONFIG

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        path = f"{self.path!r} " if self.path else ""
        return f"{path}{self.reason}{hint}"


def locate(name: str) -> FoundDirectory:
    """Finds a run or a sweep.

    ``name``: its directory, or something in it: its result.json, the directory of an
    attempt or a worker; the end of its path; the id of its batch job; or
    ``latest``, for the newest of this directory.

    Raises:
        NoSuchRun: it is not there.
    """
    if not name:
        raise NoSuchRun("", "RUN is empty", _hint(""))
    if not os.path.exists(name):
        return _latest() if name == LATEST else _named(name)
    directory = os.path.normpath(name)
    inside = _WITHIN.fullmatch(directory)
    if inside is not None:
        directory = inside[1] or "."
    elif os.path.basename(directory) in OF_A_RUN | OF_A_SWEEP:
        directory = os.path.dirname(directory) or "."
    found = look(directory)
    if found is None:
        raise _none_at(name, directory, is_directory=os.path.isdir(name))
    return found


def _none_at(name: str, directory: str, *, is_directory: bool) -> NoSuchRun:
    names, _ = contents_of(directory)
    if is_directory and MULTIRUN in names:
        hint = "the sweep was refused, or lllaunch did not run it"
        return NoSuchRun(name, f"holds no {JOURNAL}", hint)
    if is_directory and ".hydra" in names:
        return NoSuchRun(name, f"holds no {PLAN}", "the run was refused before it began")
    hint = _hint(name if is_directory else "")
    return NoSuchRun(name, "is not the directory of a run or a sweep", hint)


def roots_of() -> list[str]:
    """Return where the runs are that were started here, as the user would type it."""
    here = os.path.realpath(os.getcwd())
    used = used_from(here, os.environ)
    return [*DEFAULT_ROOTS, *(relative_path(path, here) for path in used)]


def _latest() -> FoundDirectory:
    # the times of files tell nearly who began last
    entries = itertools.islice(newest(roots_of()), _NEAR)
    last = max(entries, key=lambda entry: entry.started_ns or 0, default=None)
    found = look(last.path) if last else None
    if found is None:
        raise NoSuchRun("", f"no runs found in {' or '.join(f'{root}/' for root in DEFAULT_ROOTS)}")
    return found


def _named(name: str) -> FoundDirectory:
    """Find the run or sweep whose path ends with a name.

    Raises:
        NoSuchRun: there is none, or there are several.
    """
    found = {
        os.path.realpath(each.path): each
        for root in roots_of()
        for each in find(root)
        if each.path.endswith(f"/{name.rstrip('/')}")
    }
    if not found and _JOB_ID.fullmatch(name):
        places = (place for root in roots_of() for place in find(root))
        runs = (each for place in places for each in _having(place, name))
        found = {os.path.realpath(each.path): each for each in runs}
        if not found:
            reason = "does not exist, and is the batch job of no run that was started here"
            raise NoSuchRun(name, reason, _hint(""))
    if not found:
        raise NoSuchRun(name, "does not exist", _hint(""))
    first, *others = found.values()
    if others:
        paths = ", ".join(sorted(each.path for each in found.values())[:_MOST_NAMED])
        raise NoSuchRun(name, f"names {len(found)} runs: {paths}", "say which one")
    return first


# 123, or 123_4 of an array's task
_JOB_ID = re.compile(r"\d+(?:_\d+)?", re.ASCII)


def _having(found: FoundDirectory, job: str) -> list[FoundDirectory]:
    """Return a run if a batch job is its own; of a sweep those jobs, or itself for all."""
    if found.kind == "run":
        return [found] if SUBMISSION in found.names and _batch_job(found.path) == job else []
    if ARRAYS not in found.names:
        return []
    result = SweepFiles(found.path).look()
    paths = [os.path.join(found.path, each.directory) for each in result.jobs] if result else []
    ids = {path: _batch_job(path) for path in paths}
    if any(id_.startswith(f"{job}_") for id_ in ids.values()):
        return [found]
    runs = (look(path) for path, id_ in ids.items() if id_ == job)
    return [run for run in runs if run is not None]


def _batch_job(directory: str) -> str:
    submission = read_submission(directory)
    return "" if submission is None else submission.job


def _hint(directory: str) -> str:
    where = f" {directory}" if directory else ""
    return f"'python -m lllaunch ls{where}' lists what is there"
