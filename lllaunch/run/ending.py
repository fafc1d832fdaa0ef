"""The end of a run: what was seen is judged, completed from files, and rendered.

A function's worker leaves ``return.pkl`` (the value), ``return.meta.json`` (its type and size) and,
where the value is JSON and small, ``return.json``. A script or program that calls `lllaunch.report`
leaves ``return.json`` alone.

All that only the end needs is imported by this module, and this module while the workers start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lllaunch.clock import now_ns
from lllaunch.files import read_bytes
from lllaunch.run.excerpts import LINES, tail, without_dump
from lllaunch.run.judge import judge_attempt
from lllaunch.run.outcome import ReturnValue, RunOutcome, summarize
from lllaunch.run.result import render_result

if TYPE_CHECKING:
    from lllaunch.run.observer import Recorder
    from lllaunch.run.outcome import AttemptOutcome, Excerpt, RootCause
    from lllaunch.run.records import PreflightRecord
    from lllaunch.spec import LaunchSpec
    from lllaunch.watchdog.stacks.frames import Frame


RETURN_JSON = "return.json"
RETURN_PICKLE = "return.pkl"
RETURN_META = "return.meta.json"

INLINE_LIMIT = 64 * 1024
"""Largest value that result.json holds itself, bytes of JSON."""


def find_return_value(directory: str) -> ReturnValue | None:
    """Returns what the worker of a directory returned or reported, None if it did neither.

    Args:
        directory: attempt_N/R, absolute.
    """
    pickled = _size(os.path.join(directory, RETURN_PICKLE))
    plain = _size(os.path.join(directory, RETURN_JSON))
    text = _inline(os.path.join(directory, RETURN_JSON), plain)
    if pickled is not None:
        path = os.path.join(directory, RETURN_PICKLE)
        type_name = _type_name(os.path.join(directory, RETURN_META))
        return ReturnValue(path, pickled, type_name, text)
    if plain is not None:
        return ReturnValue(os.path.join(directory, RETURN_JSON), plain, "json", text)
    return None


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _inline(path: str, size: int | None) -> str | None:
    """Returns the file's text if it is short and strictly JSON, None otherwise.

    ``NaN`` and ``Infinity``, which Python writes, are no JSON: other readers of result.json would
    stumble over them.
    """
    if size is None or size > INLINE_LIMIT:
        return None
    try:
        text = read_bytes(path, INLINE_LIMIT + 1).decode()
        json.loads(text, parse_constant=_refuse)
    except (OSError, ValueError, RecursionError):
        return None
    return text


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _type_name(path: str) -> str:
    try:
        found = json.loads(read_bytes(path))["type"]
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
    return found if isinstance(found, str) else "unknown"


__all__ = ["complete", "judge_attempt", "outcome_of", "render_result"]


def outcome_of(
    recorder: Recorder | None,
    spec: LaunchSpec,
    plan_hash: str,
    started_ns: int,
    signum: int | None,
) -> RunOutcome:
    """What became of a run that ends now.

    Args:
        recorder: what was seen of it, or None if nothing was.
        spec: the run.
        plan_hash: identifies its plan.
        started_ns: when it began, nanoseconds since the epoch.
        signum: the signal to the launcher that ended it, or None.
    """
    records = recorder.records() if recorder else []
    last = len(records) - 1
    outcome = summarize(
        [
            judge_attempt(record, interrupted=signum is not None and index == last)
            for index, record in enumerate(records)
        ],
        directory=spec.log_dir,
        run_id=_shown_run_id(spec),
        plan_hash=plan_hash,
        started_ns=started_ns,
        ended_ns=now_ns(),
        signum=signum,
        reason=recorder.reason if recorder else None,
        limit=recorder.limit if recorder else None,
        no_progress=recorder.no_progress if recorder else None,
        importing=spec.imports if recorder and recorder.importing else (),
    )
    interrupted = records[-1].preflight if signum is not None and records else None
    if interrupted is not None and _has_signal(interrupted):
        outcome = replace(outcome, preflight=(interrupted.command, interrupted.log))
    if spec.detected:
        outcome = replace(outcome, detected=spec.detected)
    return replace(outcome, look=recorder.look) if recorder and recorder.look else outcome


def _has_signal(preflight: PreflightRecord) -> bool:
    """Whether a preflight was running when a signal ended the run."""
    end = preflight.end
    if end is None:
        return True
    told = any(each.time_ns <= end.time_ns for each in preflight.sent)
    return told and not preflight.timed_out


def complete(
    outcome: RunOutcome, failure: tuple[str, int] | None, hide: Callable[[str], str]
) -> RunOutcome:
    """Adds an error of our own, or what has to be read from files.

    Args:
        outcome: what became of the run.
        failure: message and exit code of an error of our own, or None.
        hide: applied to what workers wrote.
    """
    if failure is not None:
        return outcome.with_error(*failure)
    root = outcome.root_cause
    if root is not None and root.frames:
        root = replace(root, frames=_with_code(root.frames, outcome.started_ns))
        outcome = replace(outcome, root_cause=root)
    if root is not None and root.files.stderr and not root.traceback:
        outcome = replace(outcome, excerpt=_excerpt(root, hide))
    if outcome.state == "succeeded":
        outcome = replace(outcome, return_values=_return_values(outcome.attempts[-1]))
    return outcome


def _excerpt(root: RootCause, hide: Callable[[str], str]) -> Excerpt | None:
    """Returns the end of the root cause's stderr, without stacks that the report shows anyway."""
    if not root.frames:
        return tail(root.files.stderr, hide=hide)
    excerpt = tail(root.files.stderr, 20 * LINES, hide)
    if excerpt is None:
        return None
    lines = without_dump(excerpt.lines)
    return replace(excerpt, lines=lines[-LINES:], cut=excerpt.cut or len(lines) > LINES)


def _with_code(frames: tuple[Frame, ...], started_ns: int) -> tuple[Frame, ...]:
    """Returns frames with the text of their lines, where the files are what ran."""
    from lllaunch.watchdog.stacks.source import Sources  # noqa: PLC0415 - seldom needed

    sources = Sources(started_ns / 1e9)
    return tuple(replace(frame, code=sources.line(frame.file, frame.line)) for frame in frames)


def _return_values(attempt: AttemptOutcome) -> dict[int, ReturnValue]:
    found = {worker.rank: find_return_value(worker.files.directory) for worker in attempt.workers}
    return {rank: value for rank, value in found.items() if value is not None}


def _shown_run_id(spec: LaunchSpec) -> str:
    """The run's name; if it comes from the environment, where from."""
    return str(spec.sources.get(("run_id",), spec.run_id))
