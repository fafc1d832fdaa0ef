"""Reads the files of a run or a sweep, finished or not, into a `Report`.

Documents may be of any make, and logs may hold anything: what is read is bounded, only regular
files within the directory are read, and what cannot be understood is told, not guessed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from msgspec import structs

from lllaunch.config.secrets import redacted_overrides
from lllaunch.documents import isoformat, last_record, nanoseconds, signal_name
from lllaunch.errors import ConfigError, Diagnostic, OutputError
from lllaunch.exit_codes import ExitCode
from lllaunch.files import within
from lllaunch.results.cases import Case, CodeLine, Log, Outcome, Report, Tree, frames_of
from lllaunch.results.store import FoundDirectory, lock_of, read_overrides, read_run, state_of
from lllaunch.run.directory import EVENTS, SUBMISSION
from lllaunch.run.excerpts import tail
from lllaunch.run.redact import redactor_of
from lllaunch.run.result import known_result, read_result
from lllaunch.sweep.directory import JOURNAL
from lllaunch.sweep.history import SweepHistory, SweepResult, read_summary, summary_of
from lllaunch.sweep.journal import read_journal
from lllaunch.text import first_line, spans, tidy

if TYPE_CHECKING:
    from lllaunch.run.result import Hang, RootCause, RunResult, WorkerResult
    from lllaunch.sweep.history import JobHistory
    from lllaunch.watchdog.stacks.frames import Frame


def _result(path: str, directory: str) -> RunResult | None:
    """Return what a result.json says, None if it is not there.

    Raises:
        ConfigError: it makes no sense, or is of another version than is understood here.
        OutputError: it cannot be read.
    """
    try:
        result = read_result(path, directory)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _wrong(path, str(error).removeprefix(f"{os.path.basename(path)}: ")) from None
    if result is None and os.path.lexists(path):
        raise _wrong(path, "has no version, so it is not the result of a run")
    return result


def _read_sweep(path: str) -> SweepResult | None:
    """Return what a sweep.json says, None if it is not there.

    Raises:
        ConfigError: it makes no sense, or is of another version than is understood here.
        OutputError: it cannot be read.
    """
    try:
        return read_summary(path)
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _wrong(path, str(error)) from None


def _wrong(path: str, message: str) -> ConfigError:
    return ConfigError((Diagnostic("file", "report", repr(path), message),))


_MOST_LINES = 300
_LONGEST_LINE = 2000
_OUTCOMES: dict[str, Outcome] = {"succeeded": "succeeded", "failed": "failed"}
UNFINISHED = {
    "running": "still running",
    "queued": "still waiting in the queue of its cluster",
    "died": "no result.json: its launcher was killed, or the machine went down",
}
"""What is to be said of a run that is not over, by the state of its directory."""
_UNKNOWN = "no result.json: still running, or its launcher was killed"


def run_case(result: RunResult, tree: Tree, logs: Sequence[Log] = (), name: str = "") -> Case:
    """Return what a result.json says.

    Args:
        logs: the ends of the logs of the worker that `blamed` names.
    """
    case = Case(
        name=name,
        outcome=_OUTCOMES.get(result.state, "error"),
        state=result.state,
        exit_code=result.exit_code,
        seconds=result.seconds if result.started_ns else None,
        started=isoformat(result.started_ns) if result.started_ns else "",
        hostname=tidy(str(result.host.get("hostname") or "")),
        plan_hash=tidy(result.plan_hash),
        run_id=tidy(result.run_id),
        attempts=len(result.attempts),
    )
    logs_in = result.attempts[-1].path if result.attempts else ""
    if logs_in:
        case = replace(case, logs_in=tidy(os.path.relpath(logs_in, result.directory)))
    if case.outcome == "succeeded":
        return case
    kind = _kind_of_state(result.state, result.exit_code)
    kind = (tidy(result.cause_type) or "failed") if result.state == "failed" else kind
    root = result.root_cause
    return replace(
        case,
        kind=kind,
        message=tidy(first_line(_message(result))),
        explanation=tuple(map(tidy, _explanation(result))),
        traceback=bounded(tidy(root.traceback)) if root is not None else (),
        place=_place(result, tree, logs),
        logs=tuple(logs),
    )


def sweep_cases(
    sweep: SweepResult, runs: Mapping[int, Case], common: Sequence[str] = (), state: str = ""
) -> tuple[Case, ...]:
    """Return what is known of the jobs of a sweep.

    Args:
        runs: by job, what its result.json tells, where there is one of its own.
        common: overrides that all jobs share; they are left out of names where others are left.
        state: of the sweep's directory, as `lllaunch.results.store.STATES` has it.
    """
    return tuple(_job_case(job, runs.get(job.job), common, state) for job in sweep.jobs)


def _job_case(job: JobHistory, run: Case | None, common: Sequence[str], sweep: str) -> Case:
    overrides = tuple(map(tidy, job.overrides))
    own = [each for each in overrides if each not in common]
    state = tidy(job.state)
    case = run if run is not None and run.state == state else _bare(job, state, sweep)
    return replace(
        case,
        name=" ".join(own or overrides) or f"job {job.job}",
        job=job.job,
        overrides=overrides,
        tries=job.tries,
        directory=tidy(job.directory),
    )


def _bare(job: JobHistory, state: str, sweep: str) -> Case:
    """Return what sweep.json alone says of a job of a sweep in some state."""
    ended = job.result
    exit_code = None if ended is None else ended.exit_code
    outcome: Outcome = _OUTCOMES.get(state, "error")
    kind, message = _kind_of_state(state, exit_code), "" if ended is None else ended.root_cause
    if state in {"composed", "skipped"}:
        outcome, kind = "skipped", "not_run"
        message = job.reason or "it was not started"
    elif state == "started":
        message = UNFINISHED.get(sweep, _UNKNOWN)
    message = tidy(first_line(message))
    return Case(
        name="",
        outcome=outcome,
        state=state,
        kind="" if outcome == "succeeded" else kind,
        message=message or ("" if outcome == "succeeded" else _ended(state, exit_code)),
        exit_code=exit_code,
        seconds=None if ended is None else ended.seconds,
        started=isoformat(job.started_ns) if job.started_ns else "",
    )


def _ended(state: str, exit_code: int | None) -> str:
    code = "" if exit_code is None else f" (exit code {exit_code})"
    return f"{'ended by a signal' if state == 'signalled' else 'failed'}{code}"


def unfinished_case(name: str, state: str) -> Case:
    """Returns the case of a run that has no result.json.

    Args:
        state: of its directory, as `lllaunch.results.store.STATES` has it.
    """
    message = UNFINISHED.get(state, _UNKNOWN)
    return Case(name, "error", state="unfinished", kind="unfinished", message=message)


def blamed(outcome: RunResult) -> WorkerResult | None:
    """Return the worker whose logs tell most of a run that did not succeed, None if there is none.

    That is the root cause; of several that hung the first; where no worker is to blame the first.
    """
    root = outcome.root_cause
    last = outcome.attempts[-1:]
    if root is not None:
        last = tuple(each for each in outcome.attempts if each.number == root.attempt) or last
    workers = {worker.rank: worker for attempt in last for worker in attempt.workers}
    ranks = [] if root is None else [root.rank, *(root.hang.hung if root.hang is not None else ())]
    for rank in ranks:
        if rank in workers:
            return workers[rank]
    return next(iter(workers.values()), None)


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


def _message(outcome: RunResult) -> str:
    if outcome.state == "signalled":
        signum = outcome.signum
        return f"ended by {'a signal' if signum is None else signal_name(signum)}"
    if outcome.state == "error":
        return outcome.error or "lllaunch failed"
    root = outcome.root_cause
    if root is not None:
        said = f"{_who(root)}: {root.cause}"
        return said if outcome.no_progress is None else f"{outcome.no_progress}; {said}"
    return "workers failed" if outcome.limit is None else str(outcome.limit)


def _who(root: RootCause) -> str:
    if root.rank is not None:
        return f"rank {root.rank}"
    # when time is over, all have taken it
    hung = root.hang.hung if root.hang is not None and root.hang.blamed else ()
    return f"{'rank' if len(hung) == 1 else 'ranks'} {spans(hung)}" if hung else "all workers"


def _explanation(outcome: RunResult) -> Iterator[str]:
    """Yields what is to be said beyond the message and the traceback."""
    yield from bounded(outcome.error)[1:]
    root = outcome.root_cause
    if root is not None:
        if root.explanation is not None:
            yield f"Why ({root.explanation.sure}): {root.explanation.text}"
        if not root.traceback:
            yield from bounded(getattr(root.cause, "message", ""))[1:]
        if outcome.state != "failed":
            yield f"Before that, {_who(root)}: {root.cause}"
        if outcome.limit is not None:
            yield f"Then the run {outcome.limit}"
        if root.collectives is not None:
            yield f"{root.collectives.sentence()}."
        if root.hang is not None:
            yield from _hang(root.hang)
    for attempt in outcome.attempts[:-1][-10:]:
        earlier = attempt.root_cause
        if earlier is not None:
            yield f"Attempt {attempt.number}: {_who(earlier)}: {first_line(str(earlier.cause))}"


def _hang(hang: Hang) -> Iterator[str]:
    if hang.collectives is not None:
        yield f"{hang.collectives.sentence()}."
    if hang.waiting:
        ranks = f"{'rank' if len(hang.waiting) == 1 else 'ranks'} {spans(hang.waiting)}"
        yield f"Only waited for that: {ranks}"
    for rank, stack in list(hang.stacks.items())[:16]:
        state = " ".join(filter(None, (stack.state, stack.wchan)))
        if stack.frames:
            yield f"Rank {rank} stood at (innermost first):"
            yield from (f"  {_frame(frame)}" for frame in stack.frames)
        elif state:
            yield f"Rank {rank} stood in the kernel: {state}"


def _frame(frame: Frame) -> str:
    code = frame.code.strip()
    return first_line(f"{frame}: {code}" if code else str(frame))


def _place(outcome: RunResult, tree: Tree, logs: Sequence[Log]) -> CodeLine | None:
    """Returns the line of the user's code that a run failed in, as far as that is known."""
    root, worker = outcome.root_cause, blamed(outcome)
    texts: list[str] = []
    standing: tuple[Frame, ...] = ()
    if root is not None:
        texts = [root.traceback, getattr(root.cause, "message", "")]
        stack = root.hang.stacks.get(worker.rank) if root.hang is not None and worker else None
        # the root cause itself has those of a crash of native code
        standing = (*(stack.frames if stack is not None else ()), *root.frames)
    # where the user's own faulthandler writes
    stderr = ["\n".join(log.lines) for log in logs if log.stream == "stderr"]
    for frames in (
        *(frames_of(tidy(text)) for text in texts),
        (CodeLine(tidy(frame.file), frame.line) for frame in standing),
        *map(frames_of, stderr),
    ):
        place = tree.place(frames)
        if place is not None:
            return place
    return None


LOG_LINES = 100
"""How many lines of a log are kept."""

_LAST_LINE = 64 * 1024  # bytes
_OVERRIDES = os.path.join(".hydra", "overrides.yaml")


def load(
    found: FoundDirectory, roots: Iterable[str] = (), environ: Mapping[str, str] | None = None
) -> Report:
    """Reads what became of a run or a sweep.

    Args:
        found: the run or the sweep, as `lllaunch.results.store.locate` returns it.
        roots: directories of the user's own source files, absolute.
        environ: where secrets may be that a run's plan names, to take them out of its logs; None
            for the environment of this process.

    Raises:
        ConfigError: a file there makes no sense.
        OutputError: a file cannot be read.
    """
    read = _load_run if found.kind == "run" else _load_sweep
    return read(found, Tree(roots), os.environ if environ is None else environ)


def _load_run(found: FoundDirectory, tree: Tree, environ: Mapping[str, str]) -> Report:
    result = _result(found.document, found.path)
    known = within(found.path, os.path.join(found.path, _OVERRIDES)) is not None
    overrides = tuple(map(tidy, read_overrides(found.path))) if known else ()
    name = " ".join(overrides) or "run"
    events = os.path.join(found.path, EVENTS)
    over = result is not None and not _goes_on(events, result.ended_ns)
    entry, own = read_run(found) if SUBMISSION in found.names else (None, result)
    if entry is not None and (entry.queue or own is None):
        # what is there is an earlier run's
        over = False
    if result is not None and over:
        case = run_case(result, tree, _logs(result, "", environ), name)
    elif entry is not None:
        case = unfinished_case(name, entry.state)
        message = tidy(entry.root_cause) or case.message
        case = replace(case, message=message, exit_code=entry.exit_code)
    else:
        case = unfinished_case(name, state_of(lock_of("run", found.path)))
    case = replace(case, overrides=overrides)
    shown = tidy(found.path)
    return Report("run", shown, (case,), over, case.exit_code, case.seconds, case.started)


def _load_sweep(found: FoundDirectory, tree: Tree, environ: Mapping[str, str]) -> Report:
    result = _read_sweep(found.document)
    journal = os.path.join(found.path, JOURNAL)
    over = result is not None and not _goes_on(journal, result.ended_ns, "over")
    if result is None or not over:
        result = summary_of(SweepHistory(read_journal(journal)), 0)
        result = structs.replace(result, seconds=None, exit_code=None)
    jobs = tuple(
        structs.replace(job, overrides=redacted_overrides(job.overrides)) for job in result.jobs
    )
    common = common_overrides([tuple(map(tidy, job.overrides)) for job in jobs])
    runs = dict(_runs(found.path, jobs, tree, environ))
    state = "" if over else state_of(lock_of("sweep", found.path))
    return Report(
        kind="sweep",
        directory=tidy(found.path),
        cases=sweep_cases(structs.replace(result, jobs=jobs), runs, common, state),
        finished=over,
        state=state,
        exit_code=result.exit_code,
        seconds=result.seconds if result.started_ns else None,
        started=isoformat(result.started_ns) if result.started_ns else "",
        version=tidy(result.lllaunch or ""),
        common=common,
    )


def _goes_on(path: str, ended_ns: int | None, last_type: str = "") -> bool:
    """Whether a log of events tells of a time after a document's: another launcher goes on."""
    last = last_record(path, _LAST_LINE)
    if last is None or last.get("type") == last_type:
        return False
    # as the document's time it is cut to microseconds
    return (nanoseconds(last.get("time")) or 0) > (ended_ns or 0)


def _runs(
    sweep: str, jobs: Iterable[JobHistory], tree: Tree, environ: Mapping[str, str]
) -> Iterator[tuple[int, Case]]:
    """Yields what the result.json of each job tells, where there is one of its own."""
    last: dict[str, tuple[int, int]] = {}
    for job in jobs:
        if job.started_ns and job.directory:
            began = job.started_ns, job.job
            last[job.directory] = max(last.get(job.directory, began), began)
    for job in jobs:
        started_ns, owner = last.get(job.directory, (0, -1))
        if owner != job.job:
            continue
        directory = os.path.join(sweep, job.directory)
        # where it is of no use sweep.json tells the rest
        result = known_result(directory)
        # the moment of the start has microseconds or nanoseconds, that of the end has the former
        if result is None or result.ended_ns < started_ns // 1000 * 1000:
            continue
        case = run_case(result, tree, _logs(result, job.directory, environ))
        yield owner, replace(case, logs_in=os.path.join(tidy(job.directory), case.logs_in))


def _logs(result: RunResult, shown: str, environ: Mapping[str, str]) -> tuple[Log, ...]:
    """Reads the ends of the logs of the worker that a run failed because of."""
    worker = None if result.state == "succeeded" else blamed(result)
    if worker is None:
        return ()
    streams: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
    logs, hide = [], redactor_of(result.directory, environ)
    for stream in streams:
        written = getattr(worker, stream)
        path = within(result.directory, written) if written else None
        excerpt = tail(path, LOG_LINES, hide) if path is not None else None
        if excerpt is not None:
            lines = tuple(tidy(line) for line in excerpt.lines)
            name = os.path.join(shown, os.path.relpath(written, result.directory))
            logs.append(Log(stream, tidy(name), lines, excerpt.cut))
    return tuple(logs)


def common_overrides(overrides: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the overrides that all of several jobs share, in the order of the first one's.

    Args:
        overrides: of each job. If there is only one it shares nothing.
    """
    if len(overrides) < 2:
        return ()
    shared = set(overrides[0]).intersection(*map(set, overrides[1:]))
    return tuple(each for each in dict.fromkeys(overrides[0]) if each in shared)
