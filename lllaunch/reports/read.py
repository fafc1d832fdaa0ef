"""Reads the files of a run or a sweep, finished or not.

Documents may be of any make, and logs may hold anything: what is read is bounded, only regular
files within the directory are read, and what cannot be understood is told, not guessed.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Literal

from lllaunch.config.overrides import redacted_overrides
from lllaunch.errors import ConfigError, OutputError
from lllaunch.records.files import read_overrides
from lllaunch.records.locks import state_of
from lllaunch.reports.cases import Case, Log, Report
from lllaunch.reports.fields import number, objects, text, texts, tidy, whole
from lllaunch.reports.find import Fields, Found, checked, find, read_document
from lllaunch.reports.places import Tree
from lllaunch.reports.told import blamed, run_case, sweep_cases, unfinished_case
from lllaunch.run.directory import LOCK_NAME
from lllaunch.run.excerpts import tail
from lllaunch.sweep.directory import LOCK_NAME as SWEEP_LOCK_NAME

LOG_LINES = 100
"""How many lines of a log are kept."""

_LAST_LINE = 64 * 1024  # bytes
_OVERRIDES = os.path.join(".hydra", "overrides.yaml")


def load(path: str, roots: Iterable[str] = (), hide: Callable[[str], str] = str) -> Report:
    """Reads what became of a run or a sweep.

    Args:
        path: as `find` takes it.
        roots: directories of the user's own source files, absolute.
        hide: applied to what workers wrote, to take secrets out.

    Raises:
        ConfigError: the path is something else, or a file there makes no sense.
        OutputError: a file cannot be read.
    """
    found = find(path)
    tree = Tree(roots)
    return _load_run(found, tree, hide) if found.kind == "run" else _load_sweep(found, tree, hide)


def _load_run(found: Found, tree: Tree, hide: Callable[[str], str]) -> Report:
    document = checked(found.document, read_document(found.document))
    known = _within(found.directory, _OVERRIDES) is not None
    overrides = tuple(map(tidy, read_overrides(found.directory))) if known else ()
    name = " ".join(overrides) or "run"
    over = document is not None and not _goes_on(
        os.path.join(found.directory, "events.jsonl"), text(document, "ended")
    )
    if document is not None and over:
        case = run_case(document, tree, _logs(found.directory, "", document, hide), name)
    else:
        case = unfinished_case(name, state_of(os.path.join(found.directory, LOCK_NAME)))
    case = replace(case, overrides=overrides)
    shown = tidy(found.directory)
    return Report("run", shown, (case,), over, case.exit_code, case.seconds, case.started)


def _load_sweep(found: Found, tree: Tree, hide: Callable[[str], str]) -> Report:
    document = checked(found.document, read_document(found.document))
    journal = os.path.join(found.directory, "sweep.jsonl")
    over = document is not None and not _goes_on(journal, text(document, "ended"), "over")
    if document is None or not over:
        document = _from_journal(journal)
    jobs = list(objects(document, "jobs"))
    for job in jobs:
        if isinstance(job, dict):
            job["overrides"] = list(redacted_overrides(texts(job, "overrides")))
    runs = dict(_runs(found.directory, jobs, tree, hide))
    common = _common(jobs)
    state = "" if over else state_of(os.path.join(found.directory, SWEEP_LOCK_NAME))
    return Report(
        kind="sweep",
        directory=tidy(found.directory),
        cases=sweep_cases(document, runs, common, state),
        finished=over,
        state=state,
        exit_code=whole(document, "exit_code"),
        seconds=number(document, "seconds"),
        started=text(document, "started"),
        version=text(document, "lllaunch"),
        common=common,
    )


def _goes_on(path: str, ended: str, last_type: str = "") -> bool:
    """Whether a log of events tells of a time after a document's: another launcher goes on.

    Args:
        path: of events.jsonl or sweep.jsonl.
        ended: when the document was written, ISO 8601; both have one format, in order of time.
        last_type: a record of this type may be the last one after that.
    """
    last = _last_record(path)
    return last is not None and text(last, "time") > ended and last.get("type") != last_type


def _last_record(path: str) -> Fields | None:
    """Returns the last whole line of a file of JSON lines, None if there is none."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _LAST_LINE))
            lines = file.read(_LAST_LINE).split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return None


def _from_journal(path: str) -> Fields:
    """Returns what sweep.json would hold if a sweep that goes on were over."""
    from lllaunch.sweep.history import SweepHistory  # noqa: PLC0415 - only for these
    from lllaunch.sweep.journal import read_journal  # noqa: PLC0415
    from lllaunch.sweep.summary import summary_of  # noqa: PLC0415

    history = SweepHistory(read_journal(path))
    return {**summary_of(history, history.started_ns), "seconds": None, "exit_code": None}


def _runs(
    sweep: str, jobs: Iterable[Fields], tree: Tree, hide: Callable[[str], str]
) -> Iterator[tuple[int, Case]]:
    """Yields what the result.json of each job tells, where there is one of its own."""
    last: dict[str, tuple[str, int]] = {}
    for job in jobs:
        if text(job, "started") and text(job, "directory"):
            place = text(job, "directory")
            last[place] = max(last.get(place, ("", -1)), (text(job, "started"), _number_of(job)))
    for job in jobs:
        place = text(job, "directory")
        started, owner = last.get(place, ("", -1))
        if owner != _number_of(job):
            continue
        path = os.path.join(sweep, place, "result.json")
        document = _lenient(path)
        if document is None or text(document, "ended") < started:
            continue
        logs = _logs(os.path.join(sweep, place), place, document, hide)
        case = run_case(document, tree, logs)
        yield owner, replace(case, logs_in=os.path.join(place, case.logs_in))


def _number_of(job: Fields) -> int:
    found = whole(job, "job")
    return -1 if found is None else found


def _lenient(path: str) -> Fields | None:
    """Returns the result.json of a job, None if it is of no use: sweep.json tells the rest."""
    try:
        return checked(path, read_document(path))
    except (ConfigError, OutputError):
        return None


def _logs(
    directory: str, shown: str, document: Fields, hide: Callable[[str], str]
) -> tuple[Log, ...]:
    """Reads the ends of the logs of the worker that a run failed because of."""
    if document.get("state") == "succeeded":
        return ()
    worker = blamed(document) or {}
    streams: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
    found = []
    for stream in streams:
        name = worker.get(stream)
        path = _within(directory, name) if isinstance(name, str) and name else None
        excerpt = tail(path, LOG_LINES, hide) if path is not None else None
        if excerpt is not None:
            lines = tuple(tidy(line) for line in excerpt.lines)
            found.append(Log(stream, tidy(os.path.join(shown, str(name))), lines, excerpt.cut))
    return tuple(found)


def _within(directory: str, name: str) -> str | None:
    """Returns a regular file within a directory; None if it is none, or lies elsewhere."""
    try:
        root, path = os.path.realpath(directory), os.path.realpath(os.path.join(directory, name))
        inside = os.path.commonpath((root, path)) == root
        return path if inside and stat.S_ISREG(os.stat(path).st_mode) else None
    except (OSError, ValueError):
        return None


def _common(jobs: Iterable[Fields]) -> tuple[str, ...]:
    """Returns the overrides that all of several jobs share."""
    known = [texts(job, "overrides") for job in jobs]
    often = Counter(each for overrides in known for each in set(overrides))
    if len(known) < 2:
        return ()
    return tuple(each for each in dict.fromkeys(known[0]) if often[each] == len(known))
