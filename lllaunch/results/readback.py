"""From a result.json back to the outcome that it was written from: `lllaunch.run.result` reversed.

So that a run is told of later in the words of its own end. Pure. What result.json leaves out stays
at its default; the tests show that nothing which a report says is among it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from lllaunch.events import Orphan
from lllaunch.results.find import nanoseconds
from lllaunch.run import causes
from lllaunch.run.fates import Ended, Failed, Fate, Lost, NotStarted, Succeeded, Victim
from lllaunch.run.hang import Hang
from lllaunch.run.outcome import AttemptOutcome, ReturnValue, RootCause, RunOutcome, WorkerOutcome
from lllaunch.run.postmortem import Explanation
from lllaunch.run.records import WorkerFiles
from lllaunch.watchdog import findings
from lllaunch.watchdog.findings import suspects
from lllaunch.watchdog.stacks.frames import Frame, LockWait, RankStack

if TYPE_CHECKING:
    from lllaunch.run.causes import Cause
    from lllaunch.watchdog.findings import Finding


Json = Mapping[str, Any]

_FINDINGS = (
    findings.TimerExpired,
    findings.Stalled,
    findings.HeartbeatLost,
    findings.TimedOut,
    findings.OverMemory,
)
_CAUSES: dict[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (
        causes.Raised,
        causes.ExitedNonZero,
        causes.CalledExit,
        causes.KilledBySignal,
        causes.OutOfMemory,
        causes.LeftEarly,
        causes.DiskFull,
        causes.StartFailure,
        causes.SpawnerLost,
        causes.PreloadFailure,
        causes.NotPicklableReturn,
        causes.HungInKernel,
        *_FINDINGS,
    )
}
_FOUND = "its error.json has it"


def read_back(document: Json, directory: str) -> RunOutcome | None:
    """Returns the outcome that a result.json was written from.

    Args:
        document: what it holds.
        directory: of the run.

    Returns:
        None if it cannot be understood: it is of another version, or was changed.
    """
    try:
        return _outcome(document, directory)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError):
        return None


def _outcome(document: Json, directory: str) -> RunOutcome:
    attempts = tuple(_attempt(each, directory) for each in document["attempts"])
    root, limit = document["root_cause"], document["limit"]
    name = document["signal"]
    return RunOutcome(
        state=document["state"],
        exit_code=int(document["exit_code"]),
        directory=directory,
        run_id=document["run_id"],
        started_ns=_time(document["started"]),
        ended_ns=_time(document["ended"]),
        attempts=attempts,
        root_cause=None if root is None else _root(root, attempts, directory),
        signum=None if name is None else _signum(name),
        limit=None if limit is None else _finding(limit),
        error=document["error"] or "",
        return_values={
            int(rank): _value(value, directory) for rank, value in document["return_values"].items()
        },
        plan_hash=document["plan_hash"],
        importing=tuple(document.get("importing", ())),
        look=_look(document.get("look"), attempts, directory),
    )


def _look(found: Json | None, attempts: tuple[AttemptOutcome, ...], directory: str) -> Hang | None:
    return None if found is None else _hang(found, attempts[-1].workers, directory)


def _time(text: Any) -> int:
    return nanoseconds(text) or 0


def _signum(name: str) -> int:
    return int(name.split()[1]) if name.startswith("signal ") else signal.Signals[name].value


def _path(path: str | None, directory: str) -> str:
    return os.path.join(directory, path) if path else ""


def _cause(found: Json) -> Cause:
    kind = _CAUSES[found["type"]]
    # What it has not was not there when it was written.
    names = [each.name for each in fields(kind) if each.name in found]  # type: ignore[arg-type]  # all are dataclasses
    cause: Cause = kind(**{name: _hashable(found[name]) for name in names})
    return cause


def _finding(found: Json) -> Finding:
    cause = _cause(found)
    if not isinstance(cause, _FINDINGS):
        raise ValueError(f"{type(cause).__name__} is not found by the watchdog")  # noqa: TRY004
    return cause


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _explanation(found: Json | None) -> Explanation | None:
    return None if found is None else Explanation(found["suspect"], found["sure"], found["text"])


def _attempt(found: Json, directory: str) -> AttemptOutcome:
    workers = tuple(_worker(each, directory) for each in found["workers"])
    return AttemptOutcome(
        number=found["attempt"],
        restart_count=found["restart_count"],
        path=_path(found["directory"], directory),
        state=found["state"],
        started_ns=_time(found["started"]),
        ended_ns=_time(found["ended"]),
        workers=workers,
        root_cause=_root_of_attempt(found, workers),
        leftovers=tuple(
            Orphan(each["pid"], each["command"], each["killed"]) for each in found["leftovers"]
        ),
    )


def _root_of_attempt(found: Json, workers: tuple[WorkerOutcome, ...]) -> RootCause | None:
    """Returns the first failure of an attempt; of all but the last one little is kept."""
    root = found["root_cause"]
    if root is None:
        return None
    cause, hang = _cause(root["cause"]), None
    if isinstance(cause, _FINDINGS):
        hung = (worker.rank for worker in workers if isinstance(worker.fate, Failed))
        hang = Hang(cause, 0, named=_named(cause, workers), hung=tuple(hung))
    return RootCause(found["attempt"], root["rank"], None, cause, 0, hang=hang)


def _named(finding: Finding, workers: tuple[WorkerOutcome, ...]) -> tuple[int, ...]:
    numbers = {worker.local_rank: worker.rank for worker in workers}
    return tuple(sorted(numbers.get(rank, rank) for rank in suspects(finding)))


def _worker(found: Json, directory: str) -> WorkerOutcome:
    return WorkerOutcome(
        local_rank=found["local_rank"],
        rank=found["rank"],
        fate=_fate(found),
        files=WorkerFiles(
            stdout=_path(found["stdout"], directory),
            stderr=_path(found["stderr"], directory),
            error=_path(found["error_file"], directory),
            stacks=_path(found["stacks"], directory),
        ),
        pid=found["pid"],
        exitcode=found["exitcode"],
        started_ns=_time(found["started"]) or None,
        ended_ns=_time(found["ended"]) or None,
        max_rss=found["max_rss"],
        cpu_seconds=found["cpu_seconds"],
        traceback=_FOUND if found["error_file"] else "",
    )


def _fate(found: Json) -> Fate:
    kind, at = found["fate"], _time(found["ended"])
    if kind == "failed":
        return Failed(_cause(found["cause"]), at, _explanation(found["explanation"]))
    if kind == "victim":
        after = round(found["seconds_after_root_cause"] * 1e9)
        return Victim(_cause(found["cause"]), at, after, _explanation(found["explanation"]))
    if kind == "ended":
        code: int = found["exitcode"]
        sent = tuple(map(_signum, found["signals_sent"]))
        signum = -code if code < 0 else sent[-1] if sent else 0
        return Ended(signum, code, sent, tuple(found["waited_for"]))
    if kind == "lost":
        return Lost(found["why"])
    return Succeeded() if kind == "succeeded" else NotStarted()


def _root(found: Json, attempts: tuple[AttemptOutcome, ...], directory: str) -> RootCause:
    workers = attempts[-1].workers if attempts else ()
    hang = found["hang"]
    return RootCause(
        attempt=found["attempt"],
        rank=found["rank"],
        local_rank=found["local_rank"],
        cause=_cause(found["cause"]),
        time_ns=found["time_ns"],
        explanation=_explanation(found["explanation"]),
        traceback=found["traceback"] or "",
        files=WorkerFiles(stderr=_path(found["stderr"], directory)),
        hang=None if hang is None else _hang(hang, workers, directory),
        frames=tuple(_frame(frame) for frame in found.get("frames", ())),
    )


def _frame(found: Json) -> Frame:
    return Frame(found["file"], found["line"], found["function"], found["code"])


def _hang(found: Json, workers: tuple[WorkerOutcome, ...], directory: str) -> Hang:
    finding = _finding(found["finding"])
    numbers = {worker.local_rank: worker.rank for worker in workers}
    local = {rank: local_rank for local_rank, rank in numbers.items()}
    stacks = {
        each["rank"]: RankStack(
            rank=local.get(each["rank"], each["rank"]),
            path=_path(each["path"], directory),
            frames=tuple(_frame(frame) for frame in each["frames"]),
            state=each["state"] or "",
            wchan=each["wchan"] or "",
            source=each["source"] or "",
            locks=tuple(
                LockWait(wait["thread"], _frame(wait["frame"])) for wait in each.get("locks", ())
            ),
        )
        for each in found["stacks"]
    }

    def among_all(name: str, states: str) -> tuple[int, ...]:
        named = {numbers.get(rank, rank) for rank in getattr(finding, name, ())}
        seen = {rank for rank, stack in stacks.items() if stack.state and stack.state in states}
        return tuple(sorted(named | seen))

    return Hang(
        finding=finding,
        time_ns=_time(found["time"]),
        since_ns=_time(found["since"]) or None,
        named=_named(finding, workers),
        hung=tuple(found["hung"]),
        waiting=tuple(found["waiting"]),
        asleep=among_all("asleep", "D"),
        stopped=among_all("stopped", "Tt"),
        left={int(rank): seconds for rank, seconds in found.get("left", {}).items()},
        stacks=stacks,
    )


def _value(found: Json, directory: str) -> ReturnValue:
    return ReturnValue(
        path=_path(found["path"], directory),
        size=found["size"],
        type_name=found["type"],
        json=json.dumps(found["value"]) if "value" in found else None,
    )
