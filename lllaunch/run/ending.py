"""The end of a run: what was seen is judged, and completed from files.

A function's worker leaves ``return.json`` where its value is JSON and small, else ``return.pkl``
and ``return.meta.json`` (type and size of that). A script or program that calls `lllaunch.report`
leaves ``return.json``.

All that only the end needs is imported by this module, and this module while the workers start.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from lllaunch.clock import now_ns
from lllaunch.documents import read_json
from lllaunch.errors import ExitCode, for_signal
from lllaunch.files import read_bytes
from lllaunch.run.excerpts import LINES, tail, without_dump
from lllaunch.run.judge import judge_attempt
from lllaunch.run.result import ReturnValue, RunResult, RunState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.run.observer import RunObserver
    from lllaunch.run.result import AttemptResult
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
    text = None
    # ``NaN`` and ``Infinity``, which Python writes, are no JSON: others would stumble over them
    with contextlib.suppress(OSError, ValueError, RecursionError):
        data = read_bytes(json_path, INLINE_LIMIT + 1)
        if len(data) <= INLINE_LIMIT:
            msgspec.json.decode(data)
            text = data.decode()
    with contextlib.suppress(OSError):
        size = os.stat(path).st_size
        told = (read_json(os.path.join(directory, RETURN_META)) or {}).get("type")
        return ReturnValue(path, size, told if isinstance(told, str) else "unknown", text)
    with contextlib.suppress(OSError):
        return ReturnValue(json_path, os.stat(json_path).st_size, "json", text)
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
    return summarize(
        attempts,
        directory=spec.directory,
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
        look=observer.look,
        detected=spec.detected,
    )


def complete(
    result: RunResult, failure: tuple[str, int] | None, hide: Callable[[str], str]
) -> RunResult:
    """Add an error of our own, as message and exit code, or what has to be read from files.

    Of a run that has succeeded no empty file is kept of what its workers wrote.
    """
    if failure is not None:
        return result.with_error(*failure)
    root = result.root_cause
    if root is not None and root.frames:
        from lllaunch.watchdog.frames import Sources  # noqa: PLC0415 - seldom needed

        # the text of their lines, where the files are what ran
        sources = Sources(result.started_ns / 1e9)
        frames = (replace(each, code=sources.line(each.file, each.line)) for each in root.frames)
        root = replace(root, frames=tuple(frames))
        result = replace(result, root_cause=root)
    if root is not None and root.stderr and not root.traceback:
        excerpt = tail(root.stderr, 20 * LINES if root.frames else LINES, hide)
        if excerpt is not None and root.frames:
            # without stacks that the report shows anyway
            lines = without_dump(excerpt.lines)
            cut = excerpt.cut or len(lines) > LINES
            excerpt = replace(excerpt, lines=lines[-LINES:], cut=cut)
        result = replace(result, excerpt=excerpt)
    if result.state == "succeeded":
        last = result.attempts[-1]
        values = {}
        for worker in last.workers:
            directory = f"{last.path}/{worker.local_rank}"
            if (value := _settled_value(directory)) is not None:
                values[worker.rank] = value
            for path in (f"{directory}/stdout.log", f"{directory}/stderr.log"):
                with contextlib.suppress(OSError):
                    if not os.lstat(path).st_size:
                        os.unlink(path)
        result = replace(result, return_values=values)
    return result


def _settled_value(directory: str) -> ReturnValue | None:
    """Return what a worker returned; of a value that is JSON no other file is kept."""
    value = find_return_value(directory)
    meta = os.path.join(directory, RETURN_META)
    if value is None or value.json is None or (read_json(meta) or {}).get("json") is not True:
        return value
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory, RETURN_PICKLE))
        os.unlink(meta)
    return replace(value, path=os.path.join(directory, RETURN_JSON))
