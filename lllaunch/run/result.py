"""result.json: what became of a run, for programs. Pure; docs/reference/files.md has the schema."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

from lllaunch.run.causes import signal_name
from lllaunch.run.events import isoformat
from lllaunch.run.fates import Ended, Failed, Fate, Lost, NotStarted, Succeeded, Victim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lllaunch.run.causes import Cause
    from lllaunch.run.hang import Hang
    from lllaunch.run.outcome import (
        AttemptOutcome,
        ReturnValue,
        RootCause,
        RunOutcome,
        WorkerOutcome,
    )
    from lllaunch.run.postmortem import Explanation
    from lllaunch.watchdog.stacks.frames import RankStack

VERSION = 1
"""Version of result.json's schema; grows when a field changes its meaning."""

_FATES: dict[type[Fate], str] = {
    Succeeded: "succeeded",
    Failed: "failed",
    Victim: "victim",
    Ended: "ended",
    Lost: "lost",
    NotStarted: "not_started",
}


def render_result(
    outcome: RunOutcome,
    host: Mapping[str, Any],
    redact: Callable[[str], str] = str,
    build: Mapping[str, Any] | None = None,
) -> bytes:
    """Returns the text of result.json.

    Args:
        outcome: what became of the run.
        host: facts about this machine, JSON.
        redact: applied to every text in it.
        build: what the code is that ran, JSON; None if that is not known.
    """
    root = outcome.directory
    document = {
        "version": VERSION,
        "state": outcome.state,
        "exit_code": outcome.exit_code,
        "signal": signal_name(outcome.signum) if outcome.signum is not None else None,
        "limit": None if outcome.limit is None else _cause(outcome.limit),
        "error": outcome.error or None,
        "run_id": outcome.run_id,
        "plan_hash": outcome.plan_hash,
        "started": _time(outcome.started_ns),
        "ended": _time(outcome.ended_ns),
        "seconds": outcome.seconds,
        "restarts": outcome.restarts,
        "importing": list(outcome.importing),
        "look": None if outcome.look is None else _hang(outcome.look, root),
        "root_cause": _root(outcome.root_cause, root),
        "attempts": [_attempt(attempt, root) for attempt in outcome.attempts],
        "return_values": {
            str(rank): _value(value, root) for rank, value in outcome.return_values.items()
        },
        "host": dict(host),
        "build": None if build is None else dict(build),
    }
    text = json.dumps(_redacted(document, redact), indent=2, ensure_ascii=False)
    return text.encode("utf-8", errors="backslashreplace") + b"\n"


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _redacted(item, redact) for key, item in value.items()}
    if isinstance(value, list):
        return [_redacted(item, redact) for item in value]
    return value


def _time(time_ns: int | None) -> str | None:
    return isoformat(time_ns) if time_ns else None


def _path(path: str, root: str) -> str | None:
    """Returns a path relative to the run's directory, None for an empty one."""
    if not path:
        return None
    relative = os.path.relpath(path, root) if root else path
    return path if relative.startswith(os.pardir) else relative


def _cause(cause: Cause) -> dict[str, Any]:
    fields = dataclasses.asdict(cause)
    return {"type": type(cause).__name__, "text": str(cause), **fields}


def _explanation(explanation: Explanation | None) -> dict[str, Any] | None:
    return None if explanation is None else dataclasses.asdict(explanation)


def _root(root: RootCause | None, directory: str) -> dict[str, Any] | None:
    if root is None:
        return None
    return {
        "attempt": root.attempt,
        "rank": root.rank,
        "local_rank": root.local_rank,
        "time": _time(root.time_ns),
        "time_ns": root.time_ns,
        "cause": _cause(root.cause),
        "explanation": _explanation(root.explanation),
        "traceback": root.traceback or None,
        "stderr": _path(root.files.stderr, directory),
        "hang": None if root.hang is None else _hang(root.hang, directory),
        "frames": [dataclasses.asdict(frame) for frame in root.frames],
    }


def _hang(hang: Hang, directory: str) -> dict[str, Any]:
    return {
        "finding": _cause(hang.finding),
        "time": _time(hang.time_ns),
        "since": _time(hang.since_ns),
        "hung": list(hang.hung),
        "waiting": list(hang.waiting),
        "left": {str(rank): seconds for rank, seconds in hang.left.items()},
        "stacks": [_stack(rank, stack, directory) for rank, stack in hang.stacks.items()],
    }


def _stack(rank: int, stack: RankStack, directory: str) -> dict[str, Any]:
    return {
        "rank": rank,
        "path": _path(stack.path, directory),
        "source": stack.source or None,
        "state": stack.state or None,
        "wchan": stack.wchan or None,
        "frames": [dataclasses.asdict(frame) for frame in stack.frames],
        "locks": [dataclasses.asdict(wait) for wait in stack.locks],
    }


def _attempt(attempt: AttemptOutcome, directory: str) -> dict[str, Any]:
    root = attempt.root_cause
    return {
        "attempt": attempt.number,
        "restart_count": attempt.restart_count,
        "directory": _path(attempt.path, directory),
        "state": attempt.state,
        "started": _time(attempt.started_ns),
        "ended": _time(attempt.ended_ns),
        "root_cause": None if root is None else {"rank": root.rank, "cause": _cause(root.cause)},
        "workers": [_worker(worker, directory) for worker in attempt.workers],
        "leftovers": [dataclasses.asdict(leftover) for leftover in attempt.leftovers],
    }


def _worker(worker: WorkerOutcome, directory: str) -> dict[str, Any]:
    exitcode = worker.exitcode
    files = worker.files
    return {
        "rank": worker.rank,
        "local_rank": worker.local_rank,
        "pid": worker.pid,
        "fate": _FATES[type(worker.fate)],
        "exitcode": exitcode,
        "signal": signal_name(-exitcode) if exitcode is not None and exitcode < 0 else None,
        **_fate(worker.fate),
        "started": _time(worker.started_ns),
        "ended": _time(worker.ended_ns),
        "max_rss": worker.max_rss,
        "cpu_seconds": worker.cpu_seconds,
        "stdout": _path(files.stdout, directory),
        "stderr": _path(files.stderr, directory),
        "error_file": _path(files.error, directory) if worker.traceback else None,
        "stacks": _path(files.stacks, directory),
    }


def _fate(fate: Fate) -> dict[str, Any]:
    """Returns the fields that only some fates have."""
    if isinstance(fate, Ended):
        return {
            "signals_sent": [signal_name(signum) for signum in fate.sent],
            "waited_for": list(fate.waited_for),
        }
    if isinstance(fate, Lost):
        return {"why": fate.why}
    if isinstance(fate, Failed):
        return {"cause": _cause(fate.cause), "explanation": _explanation(fate.explanation)}
    if isinstance(fate, Victim):
        return {
            "cause": _cause(fate.cause),
            "explanation": _explanation(fate.explanation),
            "seconds_after_root_cause": fate.after_ns / 1e9,
        }
    return {}


def _value(value: ReturnValue, directory: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "path": _path(value.path, directory),
        "size": value.size,
        "type": value.type_name,
    }
    if value.json is not None:
        found["value"] = json.loads(value.json)
    return found
