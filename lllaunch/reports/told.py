"""What a result.json tells, as a case; pure, and patient with documents of any other make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lllaunch.exit_codes import ExitCode
from lllaunch.reports.cases import Case, Log, Outcome
from lllaunch.reports.fields import (
    first_line,
    inner,
    number,
    numbers,
    objects,
    text,
    texts,
    tidy,
    whole,
)
from lllaunch.reports.find import Fields
from lllaunch.reports.places import Place, Tree, frames_of
from lllaunch.units import spans

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
        state: of the sweep's directory, as `lllaunch.records.listing.STATES` has it.
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
        state: of its directory, as `lllaunch.records.listing.STATES` has it.
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


def _place(document: Fields, tree: Tree, logs: Sequence[Log]) -> Place | None:
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
        (Place(tidy(str(frame.get("file"))), whole(frame, "line") or 0) for frame in standing),
        # where the user's own faulthandler writes
        *(frames_of("\n".join(log.lines)) for log in logs if log.stream == "stderr"),
    ):
        place = tree.place(found)
        if place is not None:
            return place
    return None
