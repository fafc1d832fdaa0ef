"""The end of a run: what was seen is judged, completed from files, and rendered.

All that only the end needs is imported by this module, and this module while the workers start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lllaunch.moments import now_ns
from lllaunch.run.causes import KilledBySignal
from lllaunch.run.excerpts import LINES, tail, without_dump
from lllaunch.run.judge import judge_attempt
from lllaunch.run.outcome import RunOutcome, summarize
from lllaunch.run.postmortem import of_aborted
from lllaunch.run.result import render_result
from lllaunch.run.returns import find_return_value

if TYPE_CHECKING:
    from lllaunch.run.outcome import AttemptOutcome, Excerpt, ReturnValue, RootCause
    from lllaunch.run.recorder import Recorder
    from lllaunch.spec import LaunchSpec
    from lllaunch.watchdog.stacks.facts import Frame

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
        importing=tuple(spec.preload) if recorder and recorder.importing else (),
    )
    return replace(outcome, look=recorder.look) if recorder and recorder.look else outcome


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
        why = of_aborted(outcome.excerpt.lines) if outcome.excerpt else None
        if why is not None and isinstance(root.cause, KilledBySignal):
            outcome = replace(outcome, root_cause=replace(root, explanation=why))
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
    written = spec.redacted.get("run_id")
    return written if isinstance(written, str) and "oc.env" in written else spec.run_id
