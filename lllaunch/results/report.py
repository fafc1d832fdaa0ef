"""Reads the files of a run or a sweep, finished or not.

Documents may be of any make, and logs may hold anything: what is read is bounded, only regular
files within the directory are read, and what cannot be understood is told, not guessed.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from lllaunch.config.secrets import redacted_overrides
from lllaunch.errors import ConfigError, Diagnostic, OutputError
from lllaunch.exit_codes import ExitCode
from lllaunch.results.cases import (
    Case,
    CodeLine,
    Log,
    Outcome,
    Report,
    Tree,
    first_line,
    frames_of,
    inner,
    number,
    numbers,
    objects,
    text,
    texts,
    tidy,
    whole,
)
from lllaunch.results.find import last_record, read_overrides
from lllaunch.results.listing import state_of
from lllaunch.run.directory import LOCK_NAME
from lllaunch.run.excerpts import tail
from lllaunch.sweep.directory import LOCK_NAME as SWEEP_LOCK_NAME
from lllaunch.sweep.history import SweepHistory, summary_of
from lllaunch.sweep.journal import read_journal
from lllaunch.units import spans

_VERSION = 1
_LONGEST = 256 * 1024 * 1024  # bytes of a document
_OF_RUN = ("result.json", "plan.yaml", "events.jsonl")
_OF_SWEEP = ("sweep.json", "sweep.jsonl")
_EXPECTED = (
    "expected the directory of a run (with plan.yaml or result.json) or of a sweep (with "
    "sweep.jsonl or sweep.json), or its result.json or sweep.json"
)

Fields = Mapping[str, Any]


class ReportSource(NamedTuple):
    """What a path is.

    Attributes:
        kind: ``run`` or ``sweep``.
        directory: its directory, as it was given.
        document: path of its result.json or sweep.json; it may not be there.
    """

    kind: Literal["run", "sweep"]
    directory: str
    document: str


def find(path: str) -> ReportSource:
    """Finds out what a path is.

    Args:
        path: a directory of a run or a sweep, or its result.json or sweep.json.

    Raises:
        ConfigError: it is none of these; says what was expected.
    """
    if os.path.isdir(path):
        return _find_directory(path)
    if not os.path.lexists(path):
        raise _wrong(path, "does not exist", _EXPECTED)
    directory, name = os.path.split(path)
    directory = directory or os.curdir
    if name in _OF_SWEEP:
        return ReportSource("sweep", directory, os.path.join(directory, "sweep.json"))
    if name in _OF_RUN[1:]:
        return ReportSource("run", directory, os.path.join(directory, "result.json"))
    document = read_document(path)
    if document is not None and isinstance(document.get("jobs"), list):
        return ReportSource("sweep", directory, path)
    if document is not None and "exit_code" in document:
        return ReportSource("run", directory, path)
    raise _wrong(path, "is neither a result.json nor a sweep.json", _EXPECTED)


def _find_directory(path: str) -> ReportSource:
    names = set(_listed(path))
    if not names.isdisjoint(_OF_SWEEP):
        return ReportSource("sweep", path, os.path.join(path, "sweep.json"))
    if not names.isdisjoint(_OF_RUN) or any(name.startswith("attempt_") for name in names):
        return ReportSource("run", path, os.path.join(path, "result.json"))
    if "multirun.yaml" in names:
        raise _wrong(
            path, "holds no sweep.jsonl", "the sweep was refused, or lllaunch did not run it"
        )
    if ".hydra" in names:
        raise _wrong(path, "holds no plan.yaml", "the run was refused before it began")
    raise _wrong(path, "is not the directory of a run or a sweep", _EXPECTED)


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error


def checked(path: str, document: Fields | None) -> Fields | None:
    """Returns a document, if it is of the version that is understood here.

    Args:
        path: of its file.
        document: what that holds, or None.

    Raises:
        ConfigError: it is of another version.
    """
    if document is None:
        return None
    version = document.get("version")
    if version != _VERSION:
        told = f"is of version {version!r}" if version is not None else "has no version"
        raise _wrong(path, f"{told}; this lllaunch reads version {_VERSION}")
    return document


def read_document(path: str) -> Fields | None:
    """Returns what a JSON file holds, None if it is not there.

    Args:
        path: the file.

    Raises:
        ConfigError: it is not a JSON object.
        OutputError: it cannot be read.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise _wrong(path, "is not a regular file")
        with open(path, "rb") as file:
            data = file.read(_LONGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    if len(data) > _LONGEST:
        raise _wrong(path, f"is longer than {_LONGEST} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise _wrong(path, "is not a JSON object")
    return document


def _wrong(path: str, message: str, hint: str = "") -> ConfigError:
    return ConfigError((Diagnostic("file", "report", repr(path), message, hint),))


_MOST_LINES = 300
_LONGEST_LINE = 2000
_OUTCOMES: dict[str, Outcome] = {"succeeded": "succeeded", "failed": "failed"}
UNFINISHED = {
    "running": "still running",
    "died": "no result.json: its launcher was killed, or the machine went down",
}
"""What is to be said of a run that is not over, by the state of its directory."""
_UNKNOWN = "no result.json: still running, or its launcher was killed"


def run_case(document: Fields, tree: Tree, logs: Sequence[Log] = (), name: str = "") -> Case:
    """Returns what a result.json tells.

    Args:
        document: the result.json.
        tree: the user's own source files.
        logs: the ends of the logs of the worker that `blamed` names.
        name: what the run is called.
    """
    state = text(document, "state")
    outcome: Outcome = _OUTCOMES.get(state, "error")
    good = outcome == "succeeded"
    root = inner(document, "root_cause")
    traceback = bounded(text(root, "traceback"))
    attempts = list(objects(document, "attempts"))
    return Case(
        name=name,
        outcome=outcome,
        state=state,
        kind="" if good else _kind(document, state),
        message="" if good else _message(document, state),
        exit_code=whole(document, "exit_code"),
        seconds=number(document, "seconds"),
        started=text(document, "started"),
        hostname=text(inner(document, "host"), "hostname"),
        logs_in=text(attempts[-1], "directory") if attempts else "",
        plan_hash=text(document, "plan_hash"),
        run_id=text(document, "run_id"),
        attempts=len(attempts),
        explanation=() if good else tuple(_explanation(document)),
        traceback=() if good else traceback,
        place=None if good else _place(document, tree, logs),
        logs=() if good else tuple(logs),
    )


def sweep_cases(
    document: Fields, runs: Mapping[int, Case], common: Sequence[str] = (), state: str = ""
) -> tuple[Case, ...]:
    """Returns what a sweep.json tells of its jobs.

    Args:
        document: the sweep.json.
        runs: by job, what its result.json tells, where there is one of its own.
        common: overrides that all jobs share; they are left out of names where others are left.
        state: of the sweep's directory, as `lllaunch.results.listing.STATES` has it.
    """
    return tuple(
        _job_case(job, runs.get(whole(job, "job") or 0), common, state)
        for job in objects(document, "jobs")
    )


def _job_case(job: Fields, run: Case | None, common: Sequence[str], sweep: str) -> Case:
    overrides = texts(job, "overrides")
    own = [each for each in overrides if each not in common]
    state = text(job, "state")
    case = run if run is not None and run.state == state else _bare(job, state, sweep)
    return replace(
        case,
        name=" ".join(own or overrides) or f"job {whole(job, 'job')}",
        job=whole(job, "job"),
        overrides=overrides,
        tries=whole(job, "tries"),
        directory=text(job, "directory"),
    )


def _bare(job: Fields, state: str, sweep: str) -> Case:
    """Returns what sweep.json alone tells of a job of a sweep in some state."""
    exit_code = whole(job, "exit_code")
    outcome: Outcome = _OUTCOMES.get(state, "error")
    kind, message = _kind_of_state(state, exit_code), text(job, "root_cause")
    if state in {"composed", "skipped"}:
        outcome, kind = "skipped", "not_run"
        message = text(job, "reason") or "it was not started"
    elif state == "started":
        message = UNFINISHED.get(sweep, _UNKNOWN)
    return Case(
        name="",
        outcome=outcome,
        state=state,
        kind="" if outcome == "succeeded" else kind,
        message=first_line(message) or ("" if outcome == "succeeded" else _ended(state, exit_code)),
        exit_code=exit_code,
        seconds=number(job, "seconds"),
        started=text(job, "started"),
    )


def _ended(state: str, exit_code: int | None) -> str:
    code = "" if exit_code is None else f" (exit code {exit_code})"
    return f"{'ended by a signal' if state == 'signalled' else 'failed'}{code}"


def unfinished_case(name: str, state: str) -> Case:
    """Returns the case of a run that has no result.json.

    Args:
        name: what it is called.
        state: of its directory, as `lllaunch.results.listing.STATES` has it.
    """
    message = UNFINISHED.get(state, _UNKNOWN)
    return Case(name, "error", state="unfinished", kind="unfinished", message=message)


def blamed(document: Fields) -> Fields | None:
    """Returns the worker whose logs tell most of a run that did not succeed, None if there is none.

    That is the root cause; of several that hung the first; where no worker is to blame the first.
    """
    root = inner(document, "root_cause")
    attempts = list(objects(document, "attempts"))
    of_root = [each for each in attempts if whole(each, "attempt") == whole(root, "attempt")]
    chosen = (of_root or attempts)[-1:]
    workers = [worker for attempt in chosen for worker in objects(attempt, "workers")]
    ranks = [whole(root, "rank"), *numbers(inner(root, "hang"), "hung")]
    for rank in ranks:
        for worker in workers:
            if rank is not None and whole(worker, "rank") == rank:
                return worker
    return workers[0] if workers else None


def bounded(words: str) -> tuple[str, ...]:
    """Returns the lines of a text; where they are very many, the last ones."""
    lines = [
        line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."
        for line in words.splitlines()
    ]
    left = len(lines) - _MOST_LINES
    if left > 0:
        lines = [f"... ({left} more lines)", *lines[left:]]
    return tuple(lines)


def _kind_of_state(state: str, exit_code: int | None) -> str:
    if state == "signalled":
        return "signal"
    if state == "error":
        return "config" if exit_code == ExitCode.CONFIG else "error"
    return {"started": "unfinished"}.get(state, state)


def _kind(document: Fields, state: str) -> str:
    if state == "failed":
        limit, cause = inner(document, "limit"), inner(inner(document, "root_cause"), "cause")
        return text(limit, "type") or text(cause, "type") or "failed"
    return _kind_of_state(state, whole(document, "exit_code"))


def _message(document: Fields, state: str) -> str:
    if state == "signalled":
        return first_line(f"ended by {text(document, 'signal') or 'a signal'}")
    if state == "error":
        return first_line(text(document, "error")) or "lllaunch failed"
    root = inner(document, "root_cause")
    cause = text(inner(root, "cause"), "text")
    if cause:
        return first_line(f"{_who(root)}: {cause}")
    return first_line(text(inner(document, "limit"), "text")) or "workers failed"


def _who(root: Fields) -> str:
    rank = whole(root, "rank")
    if rank is not None:
        return f"rank {rank}"
    hang = inner(root, "hang")
    hung = numbers(hang, "hung")
    # when time is over, all have taken it
    if not hung or inner(root, "cause").get("type") == "TimedOut":
        return "all workers"
    return f"{'rank' if len(hung) == 1 else 'ranks'} {spans(hung)}"


def _explanation(document: Fields) -> Iterator[str]:
    """Yields what is to be said beyond the message and the traceback."""
    yield from bounded(text(document, "error"))[1:]
    root = inner(document, "root_cause")
    why = inner(root, "explanation")
    if why:
        yield f"Why ({text(why, 'sure')}): {text(why, 'text')}"
    cause = inner(root, "cause")
    if not text(root, "traceback"):
        yield from bounded(text(cause, "message"))[1:]
    if text(document, "state") != "failed" and text(cause, "text"):
        yield f"Before that, {_who(root)}: {text(cause, 'text')}"
    limit = inner(document, "limit")
    if limit and cause:
        yield f"Then the run {text(limit, 'text')}"
    yield from _hang(inner(root, "hang"))
    failed = list(objects(document, "attempts"))[:-1]
    for attempt in failed[-10:]:
        earlier = inner(attempt, "root_cause")
        told = text(inner(earlier, "cause"), "text")
        if told:
            yield f"Attempt {whole(attempt, 'attempt')}: {_who(earlier)}: {first_line(told)}"


def _hang(hang: Fields) -> Iterator[str]:
    waiting = numbers(hang, "waiting")
    if waiting:
        yield f"Only waited for that: {'rank' if len(waiting) == 1 else 'ranks'} {spans(waiting)}"
    for stack in list(objects(hang, "stacks"))[:16]:
        frames = [_frame(frame) for frame in objects(stack, "frames")]
        state = " ".join(filter(None, (text(stack, "state"), text(stack, "wchan"))))
        if frames:
            yield f"Rank {whole(stack, 'rank')} stood at (innermost first):"
            yield from (f"  {frame}" for frame in frames)
        elif state:
            yield f"Rank {whole(stack, 'rank')} stood in the kernel: {state}"


def _frame(frame: Fields) -> str:
    code = text(frame, "code").strip()
    where = f"{text(frame, 'file')}:{whole(frame, 'line')} in {text(frame, 'function')}"
    return first_line(f"{where}: {code}" if code else where)


def _place(document: Fields, tree: Tree, logs: Sequence[Log]) -> CodeLine | None:
    """Returns the line of the user's code that a run failed in, as far as that is known."""
    root = inner(document, "root_cause")
    written = (text(root, "traceback"), text(inner(root, "cause"), "message"))
    stacks = list(objects(inner(root, "hang"), "stacks"))
    worker = blamed(document) or {}
    of_blamed = [each for each in stacks if whole(each, "rank") == whole(worker, "rank")]
    # the root cause itself has those of a crash of native code
    standing = [frame for stack in (*of_blamed, root) for frame in objects(stack, "frames")]
    for found in (
        *map(frames_of, written),
        (CodeLine(tidy(str(frame.get("file"))), whole(frame, "line") or 0) for frame in standing),
        # where the user's own faulthandler writes
        *(frames_of("\n".join(log.lines)) for log in logs if log.stream == "stderr"),
    ):
        place = tree.place(found)
        if place is not None:
            return place
    return None


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


def _load_run(found: ReportSource, tree: Tree, hide: Callable[[str], str]) -> Report:
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


def _load_sweep(found: ReportSource, tree: Tree, hide: Callable[[str], str]) -> Report:
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
    last = last_record(path, _LAST_LINE)
    return last is not None and text(last, "time") > ended and last.get("type") != last_type


def _from_journal(path: str) -> Fields:
    """Returns what sweep.json would hold if a sweep that goes on were over."""
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
