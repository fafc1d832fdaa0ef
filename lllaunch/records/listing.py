"""What became of runs and sweeps, one entry for each, as far as a list shows it.

Of a run only its result.json is read, and its overrides when they are asked for; of a sweep its
sweep.json or its journal, but nothing of its jobs' own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from lllaunch.config.overrides import redacted_overrides
from lllaunch.errors import LaunchError
from lllaunch.records.files import finite, last_event, nanoseconds, read_json, read_overrides
from lllaunch.records.find import DEPTH, PLAN, RESULT, Found, find, is_result
from lllaunch.records.locks import is_held, state_of
from lllaunch.run.directory import LOCK_NAME
from lllaunch.sweep.directory import JOURNAL, SUMMARY
from lllaunch.sweep.directory import LOCK_NAME as SWEEP_LOCK_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

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
class Entry:
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


def list_entries(roots: Iterable[str], depth: int = DEPTH) -> list[Entry]:
    """Returns the runs and sweeps below some directories, the newest first.

    Args:
        roots: where to look; each directory counts once.
        depth: as for `lllaunch.records.find.find`.
    """
    return sorted(newest(roots, depth), key=lambda entry: entry.started_ns or 0, reverse=True)


def newest(roots: Iterable[str], depth: int = DEPTH) -> Iterator[Entry]:
    """Yield the same, as far as the times of files tell the order; each is read when it is due.

    Who wants a few of thousands stops early.
    """
    found: dict[str, tuple[int, Found]] = {}
    for root in roots:
        for each in find(root, depth):
            key = os.path.realpath(each.path)
            if key not in found:
                found[key] = began_ns(each), each
    for _, each in sorted(found.values(), key=lambda pair: pair[0], reverse=True):
        yield entry_of(each)


def began_ns(found: Found) -> int:
    """Return when a run or a sweep began, as its files tell without being read; 0 if unknown."""
    # written once at the start
    for name in (_MULTIRUN, JOURNAL, SUMMARY) if found.kind == "sweep" else (PLAN, RESULT):
        changed = _changed_ns(os.path.join(found.path, name)) if name in found.names else None
        if changed is not None:
            return changed
    return _changed_ns(found.path) or 0


def entry_of(found: Found) -> Entry:
    """Reads what became of a run or a sweep; never raises."""
    return read(found)[0]


def read(found: Found) -> tuple[Entry, Mapping[str, Any]]:
    """Return the same, and what result.json or the sweep's summary says: empty if there is none."""
    return _sweep(found.path) if found.kind == "sweep" else _run(found)


# Runs


def _run(found: Found) -> tuple[Entry, Mapping[str, Any]]:
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
    entry = Entry(
        "run",
        path,
        state,
        started_ns=started_ns,
        seconds=_until(started_ns, path, state),
        attempts=attempts,
        told=lambda: read_overrides(path),
    )
    return entry, {}


def _ended(path: str, document: Mapping[str, Any]) -> Entry:
    from lllaunch.sweep.results import result_of  # noqa: PLC0415 - not every list has one

    result = result_of(document)
    state = document["state"]
    attempts = document["attempts"]
    return Entry(
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


def _sweep(path: str) -> tuple[Entry, Mapping[str, Any]]:
    document = read_sweep(path)
    if document is None:
        began = _changed_ns(os.path.join(path, JOURNAL))
        return Entry("sweep", path, "unknown", started_ns=began), {}
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
    entry = Entry(
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
    from lllaunch.sweep.history import SweepHistory  # noqa: PLC0415 - not every list has one
    from lllaunch.sweep.journal import read_journal  # noqa: PLC0415 - the same
    from lllaunch.sweep.summary import summary_of  # noqa: PLC0415 - the same

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


def jobs_of(sweep: Entry) -> Iterator[Entry]:
    """Yields the jobs of a sweep by number, as its journal tells of them."""
    for job in _jobs(read_sweep(sweep.path) or {}):
        directory, tries = job.get("directory"), job.get("tries")
        code, number = job.get("exit_code"), job.get("job")
        yield Entry(
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
