"""What became of runs and sweeps, one entry for each, as far as a list shows it.

Of a run only its result.json is read, and its overrides when they are asked for; of a sweep its
sweep.json or its journal, but nothing of its jobs' own.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

from lllaunch.config.secrets import redacted_overrides
from lllaunch.errors import LaunchError
from lllaunch.results.find import (
    DEFAULT_ROOTS,
    DEPTH,
    PLAN,
    RESULT,
    FoundDirectory,
    find,
    finite,
    is_result,
    last_event,
    look,
    nanoseconds,
    read_json,
    read_overrides,
    read_text,
    used_from,
)
from lllaunch.run.directory import LOCK_NAME
from lllaunch.run.events import isoformat
from lllaunch.run.files import relative_path
from lllaunch.run.lock import SIGNED, launcher_is_dead
from lllaunch.sweep.directory import JOURNAL, SUMMARY
from lllaunch.sweep.directory import LOCK_NAME as SWEEP_LOCK_NAME

_HELD = {errno.EWOULDBLOCK, errno.EACCES}


def is_held(lock: str) -> bool | None:
    """Whether somebody holds a lock as `lllaunch.run.lock.lock_directory` takes it.

    Who signed it is looked at first: a lock whose launcher is gone is not touched. One that is
    tried is nearly always held, which changes nothing; else it is given back at once.

    Args:
        lock: the lock's file.

    Returns:
        None if that cannot be found out: it is another user's, or the file system has no locks.
    """
    if launcher_is_dead(lock):
        return False
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in _HELD else None
    else:
        return False
    finally:
        os.close(fd)


def holder(lock: str) -> str:
    """Return who holds a lock that is held, as ``pid 1 on host``; an empty string if unknown."""
    text = read_text(lock) or ""
    return text.rstrip("\n") if SIGNED.fullmatch(text) else ""


def state_of(lock: str) -> str:
    """Return what a run or a sweep that has not ended does, as ``ls`` and ``show`` have it."""
    return {True: "running", False: "died", None: "unknown"}[is_held(lock)]


def plain(entry: ListEntry, path: str) -> dict[str, Any]:
    """Returns what is known of a run, a sweep or a job, as data for JSON.

    Args:
        entry: what is known.
        path: its directory, as it is to be told.
    """
    found = {
        "kind": entry.kind,
        "path": path,
        "state": entry.state,
        "exit_code": entry.exit_code,
        "started": None if entry.started_ns is None else isoformat(entry.started_ns),
        "seconds": entry.seconds,
        "overrides": list(entry.overrides),
    }
    if entry.kind == "sweep":
        return {**found, "counts": dict(sorted(entry.counts.items()))}
    if entry.kind == "job":
        found["job"] = entry.job
    return {
        **found,
        "attempts": entry.attempts,
        "root_cause": entry.root_cause,
        "return_value": entry.value,
    }


# Hydra's, of the sweep itself.
_MULTIRUN = "multirun.yaml"

STATES = {
    "succeeded": "it did what it should",
    "failed": "workers did; of a sweep: not all of its jobs succeeded",
    "signalled": "a signal to its launcher ended it",
    "error": "lllaunch could not do its part",
    "running": "its launcher lives",
    "died": "its launcher ended without a result: it was killed, or the machine went down",
    "waiting": "a job of a running sweep that has not started",
    "not_run": "a job that its sweep did not come to",
    "unknown": "its files cannot be read, or do not say",
}
"""All states of an entry, and what they mean."""


@dataclass(frozen=True)
class ListEntry:
    """A run, a sweep, or a job of a sweep.

    Attributes:
        kind: which of these.
        path: its directory; of a job that has none, that of its sweep.
        state: one of `STATES`.
        exit_code: of its launcher, or None where that is not known.
        started_ns: when it began, nanoseconds since the epoch, or None.
        seconds: how long it took, or takes until now; None where that is not known.
        attempts: how often its workers were started, or a job; None where that is not known.
        root_cause: the first failure in one line, or an empty string.
        value: what rank 0 returned, where that is short; else None.
        job: number of a job, else None.
        counts: of a sweep, the number of jobs by state.
        told: gives the overrides of the command line.
    """

    kind: Literal["run", "sweep", "job"]
    path: str
    state: str
    exit_code: int | None = None
    started_ns: int | None = None
    seconds: float | None = None
    attempts: int | None = None
    root_cause: str = ""
    value: Any = None
    job: int | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    told: Callable[[], tuple[str, ...]] = field(default=tuple, repr=False, compare=False)

    @cached_property
    def overrides(self) -> tuple[str, ...]:
        """The overrides of the command line, as it was written down."""
        return self.told()


def list_entries(roots: Iterable[str], depth: int = DEPTH) -> list[ListEntry]:
    """Returns the runs and sweeps below some directories, the newest first.

    Args:
        roots: where to look; each directory counts once.
        depth: as for `lllaunch.results.find.find`.
    """
    return sorted(newest(roots, depth), key=lambda entry: entry.started_ns or 0, reverse=True)


def newest(roots: Iterable[str], depth: int = DEPTH) -> Iterator[ListEntry]:
    """Yield the same, as far as the times of files tell the order; each is read when it is due.

    Who wants a few of thousands stops early.
    """
    found: dict[str, tuple[int, FoundDirectory]] = {}
    for root in roots:
        for each in find(root, depth):
            key = os.path.realpath(each.path)
            if key not in found:
                found[key] = began_ns(each), each
    for _, each in sorted(found.values(), key=lambda pair: pair[0], reverse=True):
        yield entry_of(each)


def began_ns(found: FoundDirectory) -> int:
    """Return when a run or a sweep began, as its files tell without being read; 0 if unknown."""
    # written once at the start
    for name in (_MULTIRUN, JOURNAL, SUMMARY) if found.kind == "sweep" else (PLAN, RESULT):
        changed = _changed_ns(os.path.join(found.path, name)) if name in found.names else None
        if changed is not None:
            return changed
    return _changed_ns(found.path) or 0


def entry_of(found: FoundDirectory) -> ListEntry:
    """Reads what became of a run or a sweep; never raises."""
    return read(found)[0]


def read(found: FoundDirectory) -> tuple[ListEntry, Mapping[str, Any]]:
    """Return the same, and what result.json or the sweep's summary says: empty if there is none."""
    return _sweep(found.path) if found.kind == "sweep" else _run(found)


# Runs


def _run(found: FoundDirectory) -> tuple[ListEntry, Mapping[str, Any]]:
    path = found.path
    document = read_json(os.path.join(path, RESULT)) if RESULT in found.names else None
    if document is not None and not is_result(document):
        document = None
    started_ns = _changed_ns(os.path.join(path, PLAN))
    if document is not None and not _is_of_former(document, path, started_ns):
        return _ended(path, document), document
    attempts = sum(name.startswith("attempt_") for name in found.names)
    state = "unknown"
    if RESULT not in found.names or document is not None:
        state = state_of(os.path.join(path, LOCK_NAME)) if LOCK_NAME in found.names else "died"
    entry = ListEntry(
        "run",
        path,
        state,
        started_ns=started_ns,
        seconds=_until(started_ns, path, state),
        attempts=attempts,
        told=lambda: read_overrides(path),
    )
    return entry, {}


def _ended(path: str, document: Mapping[str, Any]) -> ListEntry:
    from lllaunch.sweep.history import result_of  # noqa: PLC0415 - not every list has one

    result = result_of(document)
    state = document["state"]
    attempts = document["attempts"]
    return ListEntry(
        "run",
        path,
        state if isinstance(state, str) and state in STATES else "unknown",
        exit_code=None if result is None else result.exit_code,
        started_ns=nanoseconds(document.get("started")),
        seconds=finite(document.get("seconds")),
        attempts=len(attempts) if isinstance(attempts, list) else None,
        root_cause="" if result is None else result.root_cause,
        value=_returned(document),
        told=lambda: read_overrides(path),
    )


def _returned(document: Mapping[str, Any]) -> Any:
    values = document.get("return_values")
    first = values.get("0") if isinstance(values, Mapping) else None
    return first.get("value") if isinstance(first, Mapping) else None


def _is_of_former(document: Mapping[str, Any], path: str, began_ns: int | None) -> bool:
    """Whether a result is that of an earlier run in the same directory.

    The plan of a later one is younger. It also is where files were copied, so somebody else has to
    confirm it: whoever holds the directory, or the events.
    """
    if began_ns is None or began_ns <= (_changed_ns(os.path.join(path, RESULT)) or 0):
        return False
    if is_held(os.path.join(path, LOCK_NAME)):
        return True
    ended, event = nanoseconds(document.get("ended")), last_event(path)
    at = None if event is None else event.get("time_ns")
    return ended is not None and isinstance(at, int) and at > ended


def _until(began_ns: int | None, path: str, state: str) -> float | None:
    """Returns for how long a run without a result has run."""
    end: object = time.time_ns() if state == "running" else (last_event(path) or {}).get("time_ns")
    if began_ns is None or not isinstance(end, int):
        return None
    return max(0, end - began_ns) / 1e9


def _changed_ns(path: str) -> int | None:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return None


# Sweeps


def _sweep(path: str) -> tuple[ListEntry, Mapping[str, Any]]:
    document = read_sweep(path)
    if document is None:
        began = _changed_ns(os.path.join(path, JOURNAL))
        return ListEntry("sweep", path, "unknown", started_ns=began), {}
    code = document.get("exit_code")
    state = _state_of_sweep(path, code)
    started_ns, seconds = nanoseconds(document.get("started")), document.get("seconds")
    if state in {"running", "died"} and started_ns is not None:
        last = time.time_ns() if state == "running" else _changed_ns(os.path.join(path, JOURNAL))
        seconds = max(0, (last or started_ns) - started_ns) / 1e9
    counts: dict[str, int] = {}
    for job in _jobs(document):
        name = _state_of_job(job, state)
        counts[name] = counts.get(name, 0) + 1
    command = document.get("command")
    overrides = redacted_overrides(list(map(str, command))) if isinstance(command, list) else ()
    entry = ListEntry(
        "sweep",
        path,
        state,
        exit_code=code if isinstance(code, int) else None,
        started_ns=started_ns,
        seconds=finite(seconds),
        counts=counts,
        told=lambda: overrides,
    )
    return entry, document


def read_sweep(path: str) -> dict[str, Any] | None:
    """Returns what is known of a sweep in the form of sweep.json, None if nothing is.

    Args:
        path: its directory. sweep.json counts if it is younger than the journal; after a crash or
            during a resume it is not.
    """
    journal, summary = os.path.join(path, JOURNAL), os.path.join(path, SUMMARY)
    written, grown = _changed_ns(summary), _changed_ns(journal)
    document = read_json(summary) if written is not None else None
    if document is not None and (grown is None or (written or 0) >= grown):
        return document
    # not every list has one
    from lllaunch.sweep.history import SweepHistory, summary_of  # noqa: PLC0415
    from lllaunch.sweep.journal import read_journal  # noqa: PLC0415

    try:
        history = SweepHistory(read_journal(journal))
    except LaunchError:
        return document
    return summary_of(history, grown or 0) if history.header is not None else document


def _state_of_sweep(path: str, code: object) -> str:
    state = state_of(os.path.join(path, SWEEP_LOCK_NAME))
    if state == "running" or not isinstance(code, int):
        return state
    if code > 128:  # 128 + a signal's number
        return "signalled"
    return "succeeded" if code == 0 else "failed"


def jobs_of(sweep: ListEntry) -> Iterator[ListEntry]:
    """Yields the jobs of a sweep by number, as its journal tells of them."""
    for job in _jobs(read_sweep(sweep.path) or {}):
        directory, tries = job.get("directory"), job.get("tries")
        code, number = job.get("exit_code"), job.get("job")
        yield ListEntry(
            "job",
            os.path.join(sweep.path, directory) if isinstance(directory, str) else sweep.path,
            _state_of_job(job, sweep.state),
            exit_code=code if isinstance(code, int) else None,
            started_ns=nanoseconds(job.get("started")),
            seconds=finite(job.get("seconds")),
            attempts=tries if isinstance(tries, int) else None,
            root_cause=str(job.get("root_cause") or job.get("reason") or ""),
            value=job.get("return_value"),
            job=number if isinstance(number, int) else None,
            told=_telling(job),
        )


def _telling(job: Mapping[str, Any]) -> Callable[[], tuple[str, ...]]:
    overrides = job.get("overrides")
    texts = list(map(str, overrides)) if isinstance(overrides, list) else []
    return lambda: redacted_overrides(texts)


def _jobs(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    jobs = document.get("jobs")
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, Mapping):
            yield job


def _state_of_job(job: Mapping[str, Any], sweep: str) -> str:
    state = job.get("state")
    if not isinstance(state, str):
        return "unknown"
    if state in {"composed", "skipped"}:
        return "waiting" if sweep == "running" else "not_run"
    if state == "started":
        return "running" if sweep == "running" else "died"
    return state if state in STATES else "unknown"


LATEST = "latest"
"""What stands for the run or sweep that was started last."""

_NEAR = 8
_MOST_NAMED = 5
# what lies in the directory of a run
_WITHIN = re.compile(r"(?:(.+)/)?(?:(?:attempt_\d+|latest)(?:/\d+)?|\.hydra)(?:/[^/]+\.\w+)?")


@dataclass(eq=False)
class NoSuchRun(LaunchError):
    """There is no run or sweep where somebody looked for one.

    Attributes:
        path: what was given; empty if that was nothing in particular.
        reason: what is there, as the predicate of a sentence.
        hint: what to do, or an empty string.
    """

    path: str
    reason: str
    hint: str = ""
    exit_code: ClassVar[int] = 2

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        path = f"{self.path!r} " if self.path else ""
        return f"{path}{self.reason}{hint}"


def locate(name: str, cwd: str | None = None) -> FoundDirectory:
    """Finds a run or a sweep.

    Args:
        name: its directory, or something in it: its result.json, the directory of an attempt or a
            worker; the end of its path; or ``latest``, for the newest of this directory.
        cwd: what relative paths count from; the working directory if None.

    Returns:
        its directory, absolute only if ``name`` or ``cwd`` is.

    Raises:
        NoSuchRun: it is not there.
    """
    path = name if cwd is None else os.path.join(cwd, name)
    if name == LATEST and not os.path.exists(path):
        return _latest(cwd)
    if not os.path.exists(path):
        return _named(name, cwd)
    directory = os.path.normpath(path)
    inside = _WITHIN.fullmatch(directory)
    if inside is not None:
        directory = inside[1] or "."
    elif os.path.isfile(directory):
        directory = os.path.dirname(directory) or "."
    found = look(directory)
    if found is None:
        where = name if os.path.isdir(path) else ""
        raise NoSuchRun(name, "is not the directory of a run or a sweep", _hint(where))
    return found


def roots_of(cwd: str | None = None) -> list[str]:
    """Return where the runs are that were started in a directory.

    Args:
        cwd: the directory; None for the working directory.
    """
    roots = [root if cwd is None else os.path.join(cwd, root) for root in DEFAULT_ROOTS]
    here = os.path.realpath(cwd or os.getcwd())
    used = used_from(here, os.environ)
    # as the user would type them
    return roots + [path if cwd else relative_path(path, here) for path in used]


def _latest(cwd: str | None) -> FoundDirectory:
    # the times of files tell nearly who began last
    entries = itertools.islice(newest(roots_of(cwd)), _NEAR)
    last = max(entries, key=lambda entry: entry.started_ns or 0, default=None)
    found = look(last.path) if last else None
    if found is None:
        raise NoSuchRun("", f"no runs found in {' or '.join(f'{root}/' for root in DEFAULT_ROOTS)}")
    return found


def _named(name: str, cwd: str | None) -> FoundDirectory:
    """Find the run or sweep whose path ends with a name.

    Raises:
        NoSuchRun: there is none, or there are several.
    """
    found = {
        os.path.realpath(each.path): each
        for root in roots_of(cwd)
        for each in find(root)
        if each.path.endswith(f"/{name.rstrip('/')}")
    }
    if not found:
        raise NoSuchRun(name, "does not exist", _hint(""))
    first, *others = found.values()
    if others:
        paths = ", ".join(sorted(each.path for each in found.values())[:_MOST_NAMED])
        raise NoSuchRun(name, f"names {len(found)} runs: {paths}", "say which one")
    return first


def _hint(directory: str) -> str:
    where = f" {directory}" if directory else ""
    return f"'python -m lllaunch ls{where}' lists what is there"
