"""The end of a run: what was seen is judged, and completed from files.

A function's worker leaves ``return.pkl`` (the value), ``return.meta.json`` (its type and size) and,
where the value is JSON and small, ``return.json``. A script or program that calls `lllaunch.report`
leaves ``return.json`` alone.

All that only the end needs is imported by this module, and this module while the workers start.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from lllaunch.clock import now_ns
from lllaunch.documents import read_json
from lllaunch.exit_codes import ExitCode, for_signal
from lllaunch.files import read_bytes
from lllaunch.run.excerpts import LINES, tail, without_dump
from lllaunch.run.judge import judge_attempt
from lllaunch.run.result import Excerpt, ReturnValue, RunResult, RunState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.errors import LaunchError
    from lllaunch.run.observer import PreflightRecord, RunObserver
    from lllaunch.run.result import AttemptResult, RootCause
    from lllaunch.spec import LaunchSpec
    from lllaunch.supervisor.machine import NoProgress, Reason
    from lllaunch.watchdog.findings import Finding


RETURN_JSON = "return.json"
RETURN_PICKLE = "return.pkl"
RETURN_META = "return.meta.json"

INLINE_LIMIT = 64 * 1024
"""Largest value that result.json holds itself, bytes of JSON."""


def find_return_value(directory: str) -> ReturnValue | None:
    """Return what the worker of a directory returned or reported, None if it did neither."""
    path, json_path = (os.path.join(directory, each) for each in (RETURN_PICKLE, RETURN_JSON))
    pickled, plain = _size(path), _size(json_path)
    text = _inline(json_path, plain)
    if pickled is not None:
        told = (read_json(os.path.join(directory, RETURN_META)) or {}).get("type")
        return ReturnValue(path, pickled, told if isinstance(told, str) else "unknown", text)
    return None if plain is None else ReturnValue(json_path, plain, "json", text)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _inline(path: str, size: int | None) -> str | None:
    """Return the file's text if it is short and strictly JSON, None otherwise.

    ``NaN`` and ``Infinity``, which Python writes, are no JSON: others would stumble over them.
    """
    if size is None or size > INLINE_LIMIT:
        return None
    try:
        text = read_bytes(path, INLINE_LIMIT + 1)
        msgspec.json.decode(text)
        return text.decode()
    except (OSError, ValueError, RecursionError):
        return None


def summarize(
    attempts: Sequence[AttemptResult],
    *,
    signum: int | None = None,
    reason: Reason | None = None,
    limit: Finding | None = None,
    no_progress: NoProgress | None = None,
    **more: Any,
) -> RunResult:
    """Make the result of a run from its attempts; the last one decides.

    The rest is as in `lllaunch.run.observer.RunObserver`; ``signum`` ended the run, if not None.
    """
    last = attempts[-1] if attempts else None
    root = last.root_cause if last else None
    hang = None if root is None else root.hang
    state: RunState = "failed"
    exit_code: int = ExitCode.WORKERS_FAILED
    # the kernel may have ended it for want of memory
    if reason in ("hang", "timeout") or (reason == "oom" and hang is not None):
        exit_code = ExitCode.WATCHDOG
    if no_progress is not None:
        exit_code = ExitCode.NO_PROGRESS
    if signum is not None:
        state, exit_code = "signalled", for_signal(signum)
    elif last is not None and last.state == "succeeded":
        state, exit_code = "succeeded", ExitCode.SUCCESS
    ended_for_limit = hang is not None and hang.finding == limit
    return RunResult(
        state=state,
        exit_code=int(exit_code),
        attempts=tuple(attempts),
        root_cause=root,
        signum=signum,
        limit=limit if reason == "timeout" and not ended_for_limit else None,
        no_progress=no_progress,
        **more,
    )


def failed_early(spec: LaunchSpec, started_ns: int, error: LaunchError) -> RunResult:
    """Return what became of a run whose directory could not be claimed."""
    code, now = int(error.exit_code), now_ns()
    return RunResult(
        "error", code, spec.log_dir, started_ns=started_ns, ended_ns=now, error=str(error)
    )


def result_of(
    observer: RunObserver,
    spec: LaunchSpec,
    plan_hash: str,
    started_ns: int,
    signum: int | None,
) -> RunResult:
    """Return what became of a run that ends now, as far as anything was seen of it.

    ``signum`` is the signal to the launcher that ended it, or None.
    """
    records = observer.records()
    interrupted = signum is not None
    attempts = [judge_attempt(record) for record in records[:-1]]
    attempts += [judge_attempt(record, interrupted=interrupted) for record in records[-1:]]
    preflight = records[-1].preflight if interrupted and records else None
    return summarize(
        attempts,
        directory=spec.log_dir,
        # where it comes from the environment, from where
        run_id=str(spec.sources.get(("run_id",), spec.run_id)),
        plan_hash=plan_hash,
        started_ns=started_ns,
        ended_ns=now_ns(),
        signum=signum,
        reason=observer.reason,
        limit=observer.limit,
        no_progress=observer.no_progress,
        importing=spec.imports if interrupted and observer.is_importing else (),
        preflight=(preflight.command, preflight.log)
        if preflight is not None and _has_signal(preflight)
        else None,
        look=observer.look,
        detected=spec.detected,
    )


def _has_signal(preflight: PreflightRecord) -> bool:
    """Whether a preflight was running when a signal ended the run."""
    end = preflight.end
    if end is None:
        return True
    told = any(each.time_ns <= end.time_ns for each in preflight.sent)
    return told and not preflight.timed_out


def complete(
    result: RunResult, failure: tuple[str, int] | None, hide: Callable[[str], str]
) -> RunResult:
    """Add an error of our own, as message and exit code, or what has to be read from files."""
    if failure is not None:
        return result.with_error(*failure)
    root = result.root_cause
    if root is not None and root.frames:
        from lllaunch.watchdog.stacks.source import Sources  # noqa: PLC0415 - seldom needed

        # the text of their lines, where the files are what ran
        sources = Sources(result.started_ns / 1e9)
        frames = (replace(each, code=sources.line(each.file, each.line)) for each in root.frames)
        root = replace(root, frames=tuple(frames))
        result = replace(result, root_cause=root)
    if root is not None and root.stderr and not root.traceback:
        result = replace(result, excerpt=_excerpt(root, hide))
    if result.state == "succeeded":
        last = result.attempts[-1]
        found = {
            worker.rank: find_return_value(f"{last.path}/{worker.local_rank}")
            for worker in last.workers
        }
        values = {rank: value for rank, value in found.items() if value is not None}
        result = replace(result, return_values=values)
    return result


def _excerpt(root: RootCause, hide: Callable[[str], str]) -> Excerpt | None:
    """Return the end of the root cause's stderr, without stacks that the report shows anyway."""
    if not root.frames:
        return tail(root.stderr, hide=hide)
    excerpt = tail(root.stderr, 20 * LINES, hide)
    if excerpt is None:
        return None
    lines = without_dump(excerpt.lines)
    return Excerpt(excerpt.path, lines[-LINES:], cut=excerpt.cut or len(lines) > LINES)
