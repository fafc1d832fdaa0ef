"""result.json: what became of a run, for programs; written at its end, read by all who show it.

docs/reference/files.md has the schema. What is written stands beside what is read. A reader meets
files of older and newer versions, and broken ones: what it does not know it passes over, a cause
that it does not know keeps its text (`UnknownCause`), and only what says neither how the run ended
nor what its attempts were is not understood at all.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lllaunch.documents import Fields
from lllaunch.run import causes
from lllaunch.run.causes import UnknownCause, signal_name
from lllaunch.run.events import isoformat
from lllaunch.run.outcome import (
    AttemptOutcome,
    Ended,
    Failed,
    Fate,
    Lost,
    NodeOutcome,
    NotStarted,
    ReturnValue,
    RootCause,
    RunOutcome,
    Succeeded,
    Victim,
    WorkerOutcome,
)
from lllaunch.run.records import WorkerFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeGuard

    from lllaunch.events import NoProgress
    from lllaunch.run.causes import Cause
    from lllaunch.run.hang import Hang
    from lllaunch.run.outcome import AttemptState, RunState
    from lllaunch.run.postmortem import Explanation
    from lllaunch.watchdog.collectives import Disagreement
    from lllaunch.watchdog.findings import Finding
    from lllaunch.watchdog.progress import Progress
    from lllaunch.watchdog.stacks.frames import Frame, RankStack, Source

T = TypeVar("T")

_NOT_FINITE = ("nan", "inf", "-inf")

VERSION = 1
"""Version of result.json's schema; grows when a field changes its meaning."""

FATE_NAMES: Mapping[type[Fate], str] = {
    Succeeded: "succeeded",
    Failed: "failed",
    Victim: "victim",
    Ended: "ended",
    Lost: "lost",
    NotStarted: "not_started",
}
"""What result.json calls what became of a worker."""


def render_result(
    outcome: RunOutcome,
    host: Mapping[str, Any],
    redact: Callable[[str], str] = str,
    build: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the text of result.json.

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
        "no_progress": None if outcome.no_progress is None else _cause(outcome.no_progress),
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
        "nodes": [dataclasses.asdict(node) for node in outcome.nodes],
        "detected": [each._asdict() for each in outcome.detected],
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
    """Return a path relative to the run's directory, None for an empty one."""
    if not path:
        return None
    relative = os.path.relpath(path, root) if root else path
    return path if relative.startswith(os.pardir) else relative


def _cause(cause: Cause | NoProgress) -> dict[str, Any]:
    if isinstance(cause, UnknownCause):
        return {"type": cause.name, "text": cause.text}
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
        "node": root.node or None,
        "time": _time(root.time_ns),
        "time_ns": root.time_ns,
        "cause": _cause(root.cause),
        "explanation": _explanation(root.explanation),
        "traceback": root.traceback or None,
        "stderr": _path(root.files.stderr, directory),
        "hang": None if root.hang is None else _hang(root.hang, directory),
        "frames": [dataclasses.asdict(frame) for frame in root.frames],
        "collectives": _collectives(root.collectives),
    }


def _hang(hang: Hang, directory: str) -> dict[str, Any]:
    return {
        "finding": _cause(hang.finding),
        "time": _time(hang.time_ns),
        "since": _time(hang.since_ns),
        "hung": list(hang.hung),
        "waiting": list(hang.waiting),
        "left": {str(rank): seconds for rank, seconds in hang.left.items()},
        "collectives": _collectives(hang.collectives),
        "stacks": [_stack(rank, stack, directory) for rank, stack in hang.stacks.items()],
    }


def _collectives(found: Disagreement | None) -> dict[str, Any] | None:
    return None if found is None else {"text": found.sentence(), **dataclasses.asdict(found)}


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
        "fate": FATE_NAMES[type(worker.fate)],
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
        "progress": _progress(worker),
    }


def _progress(worker: WorkerOutcome) -> dict[str, Any] | None:
    if worker.progress is None:
        return None
    step, total, *_ = worker.progress
    metrics = worker.progress.metrics.items()
    return {
        "step": step,
        "total": total,
        "time": _time(worker.progress_ns),
        # which are no numbers of JSON
        "metrics": {name: value if isfinite(value) else str(value) for name, value in metrics},
    }


def _fate(fate: Fate) -> dict[str, Any]:
    """Return the fields that only some fates have."""
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


# Reading


@dataclasses.dataclass(frozen=True)
class ResultFile:
    """What a result.json says. Each field is looked at when it is asked for: a list needs few.

    Attributes:
        fields: of the file.
        directory: of the run; paths in the file count from it.
    """

    fields: Fields
    directory: str

    @classmethod
    def from_json(cls, document: object, directory: str) -> ResultFile | None:
        """Return what a document says, None if it is no result.json of ours.

        Args:
            document: what a file holds.
            directory: of the run.
        """
        fields = Fields(document)
        ours = all(name in fields for name in ("state", "exit_code", "attempts"))
        return cls(fields, directory) if ours else None

    @property
    def state(self) -> str:
        """As `RunOutcome.state`; a later version may know more of them."""
        return self.fields.text("state")

    @property
    def exit_code(self) -> int | None:
        """Of the launcher."""
        return self.fields.integer("exit_code")

    @property
    def started_ns(self) -> int | None:
        """When the run began, nanoseconds since the epoch."""
        return self.fields.time_ns("started")

    @property
    def ended_ns(self) -> int | None:
        """When it was over, nanoseconds since the epoch."""
        return self.fields.time_ns("ended")

    @property
    def seconds(self) -> float | None:
        """How long it took."""
        return self.fields.seconds("seconds")

    @property
    def attempts(self) -> int | None:
        """How many attempts were made."""
        attempts = self.fields.value("attempts")
        return len(attempts) if isinstance(attempts, list) else None

    @property
    def plan_hash(self) -> str:
        """Identifies the plan."""
        return self.fields.text("plan_hash")

    @property
    def host(self) -> Fields:
        """Facts about the machine."""
        return self.fields.inner("host")

    @property
    def build(self) -> Fields:
        """What the code is that ran."""
        return self.fields.inner("build")

    @property
    def cause_type(self) -> str:
        """Name of the type of what ended the run: a limit, else its root cause; else empty."""
        limit = self.fields.inner("limit").text("type")
        limit = limit or self.fields.inner("no_progress").text("type")
        return limit or self.fields.inner("root_cause").inner("cause").text("type")

    @property
    def root_cause(self) -> str:
        """What ended the run, as text; empty if it succeeded."""
        no_progress = self.fields.inner("no_progress").text("text")
        return "; ".join(filter(None, (no_progress, self._first_failure)))

    @property
    def _first_failure(self) -> str:
        root = self.fields.inner("root_cause")
        if "cause" in root:
            rank, text = root.integer("rank"), root.inner("cause").text("text")
            who = root.inner("cause").text("subject")
            if rank is None:
                return f"{who} {text}" if who else text
            node = root.text("node")
            return f"rank {rank} on {node}: {text}" if node else f"rank {rank}: {text}"
        limit = self.fields.inner("limit").text("text")
        return limit or self.fields.text("error") or self.fields.text("signal")

    def value(self, rank: int = 0) -> Fields:
        """Return what is known of a worker's return value; its ``value`` only where that is short.

        Args:
            rank: the worker's.
        """
        return self.fields.inner("return_values").inner(str(rank))

    def return_value(self, rank: int = 0) -> ReturnValue | None:
        """Return what a worker returned or reported, None if that is nothing; unpickles nothing."""
        value = self.value(rank)
        return _read_value(value, self.directory) if value else None

    @cached_property
    def outcome(self) -> RunOutcome | None:
        """All of it, as the run itself told it; None if it cannot be understood.

        What result.json leaves out stays at its default.
        """
        fields, directory = self.fields, self.directory
        if not self.state or self.exit_code is None or self.attempts is None:
            return None
        attempts = tuple(
            _read_attempt(each, directory)
            for each in fields.objects("attempts")
            if each.integer("attempt") is not None
        )
        workers = attempts[-1].workers if attempts else ()
        root, limit = fields.inner("root_cause"), read_cause(fields.inner("limit"))
        return RunOutcome(
            state=cast("RunState", self.state),
            exit_code=self.exit_code,
            directory=directory,
            run_id=fields.text("run_id"),
            started_ns=self.started_ns or 0,
            ended_ns=self.ended_ns or 0,
            attempts=attempts,
            root_cause=_read_root(root, workers, directory) if root else None,
            signum=_read_signal(fields.text("signal")),
            limit=limit if _is_finding(limit) else None,
            no_progress=_read_no_progress(fields.inner("no_progress")),
            error=fields.text("error"),
            return_values={
                int(rank): _read_value(self.value(int(rank)), directory)
                for rank in fields.inner("return_values").document
                if rank.isdecimal()
            },
            plan_hash=self.plan_hash,
            importing=fields.texts("importing"),
            look=_read_hang(fields.inner("look"), workers, directory),
            nodes=tuple(
                node
                for each in fields.objects("nodes")
                if (node := _read_as(NodeOutcome, each)) is not None
            ),
        )


def _read_path(fields: Fields, name: str, directory: str) -> str:
    path = fields.text(name)
    return os.path.join(directory, path) if path else ""


def _read_signal(name: str) -> int | None:
    if name.startswith("signal ") and name[7:].isdecimal():
        return int(name[7:])
    found = signal.Signals.__members__.get(name)
    return None if found is None else found.value


def _read_as(kind: type[T], fields: Fields) -> T | None:
    """Return a dataclass of the fields that it knows; None if one that it needs is not there."""
    values = {}
    for each in dataclasses.fields(kind):  # type: ignore[arg-type]  # all are dataclasses
        written = str(each.type).removesuffix(" | None")
        value = _TYPES.get(written, _read_text)(fields, each.name)
        if value is not None or (each.name in fields and written != each.type):
            values[each.name] = value
        elif each.default is dataclasses.MISSING:
            return None
    return kind(**values)


def _read_text(fields: Fields, name: str) -> str | None:
    value = fields.value(name)
    return value if isinstance(value, str) else None


def _read_frame(fields: Fields, name: str) -> object:
    from lllaunch.watchdog.stacks.frames import Frame  # noqa: PLC0415 - most runs have none

    return _read_as(Frame, fields.inner(name))


# What fields of causes, findings, frames, ... are annotated with; all else is a text.
_TYPES: dict[str, Callable[[Fields, str], object]] = {
    "int": Fields.integer,
    "float": Fields.number,
    "bool": Fields.flag,
    "tuple[int, ...]": lambda fields, name: fields.wholes(name) if name in fields else None,
    "Frame": _read_frame,
}


def read_cause(fields: Fields) -> Cause | None:
    """Return a cause, or a finding of the watchdog; None if there is none."""
    if not fields:
        return None
    name = fields.text("type")
    kind = getattr(causes, name, None)
    if kind is None:
        from lllaunch.watchdog import findings  # noqa: PLC0415 - most runs have none

        kind = getattr(findings, name, None)
    known = isinstance(kind, type) and dataclasses.is_dataclass(kind)
    cause = cast("Cause | None", _read_as(kind, fields)) if known and kind else None
    return UnknownCause(name, fields.text("text")) if cause is None else cause


def _read_no_progress(fields: Fields) -> NoProgress | None:
    from lllaunch.events import NoProgress  # noqa: PLC0415 - a list does without

    return _read_as(NoProgress, fields) if fields else None


def _is_finding(cause: Cause | None) -> TypeGuard[Finding]:
    return type(cause).__module__ == "lllaunch.watchdog.findings"


def _read_explanation(fields: Fields) -> Explanation | None:
    from lllaunch.run.postmortem import Explanation  # noqa: PLC0415 - most runs have none

    return _read_as(Explanation, fields) if fields else None


def _read_attempt(fields: Fields, directory: str) -> AttemptOutcome:
    from lllaunch.events import Orphan  # noqa: PLC0415 - a list does without

    workers = tuple(
        _read_worker(each, directory)
        for each in fields.objects("workers")
        if each.integer("rank") is not None
    )
    leftovers = (_read_as(Orphan, each) for each in fields.objects("leftovers"))
    return AttemptOutcome(
        number=fields.integer("attempt") or 0,
        restart_count=fields.integer("restart_count") or 0,
        path=_read_path(fields, "directory", directory),
        state=cast("AttemptState", fields.text("state")),
        started_ns=fields.time_ns("started") or 0,
        ended_ns=fields.time_ns("ended") or 0,
        workers=workers,
        root_cause=_read_root_of_attempt(fields, workers),
        leftovers=tuple(each for each in leftovers if each is not None),
    )


def _read_root_of_attempt(fields: Fields, workers: Sequence[WorkerOutcome]) -> RootCause | None:
    """Return the first failure of an attempt; of all but the last one little is kept."""
    root, hang = fields.inner("root_cause"), None
    cause = read_cause(root.inner("cause"))
    if cause is None:
        return None
    if _is_finding(cause):
        from lllaunch.run.hang import Hang  # noqa: PLC0415 - most runs have none

        hung = tuple(worker.rank for worker in workers if isinstance(worker.fate, Failed))
        hang = Hang(cause, 0, named=_among_all(_suspects(cause), workers), hung=hung)
    number = fields.integer("attempt") or 0
    return RootCause(number, root.integer("rank"), None, cause, 0, hang=hang)


def _suspects(finding: Finding) -> tuple[int, ...]:
    from lllaunch.watchdog.findings import suspects  # noqa: PLC0415 - most runs have none

    return suspects(finding)


def _among_all(local_ranks: Sequence[int], workers: Sequence[WorkerOutcome]) -> tuple[int, ...]:
    numbers = {worker.local_rank: worker.rank for worker in workers}
    return tuple(sorted(numbers.get(rank, rank) for rank in local_ranks))


def _read_worker(fields: Fields, directory: str) -> WorkerOutcome:
    rank = fields.integer("rank") or 0
    local_rank = fields.integer("local_rank")
    return WorkerOutcome(
        local_rank=rank if local_rank is None else local_rank,
        rank=rank,
        fate=_read_fate(fields),
        files=WorkerFiles(
            stdout=_read_path(fields, "stdout", directory),
            stderr=_read_path(fields, "stderr", directory),
            error=_read_path(fields, "error_file", directory),
            stacks=_read_path(fields, "stacks", directory),
        ),
        pid=fields.integer("pid"),
        exitcode=fields.integer("exitcode"),
        started_ns=fields.time_ns("started"),
        ended_ns=fields.time_ns("ended"),
        max_rss=fields.integer("max_rss") or 0,
        cpu_seconds=fields.number("cpu_seconds") or 0.0,
        traceback="its error.json has it" if fields.text("error_file") else "",
        progress=_read_progress(fields.inner("progress")),
        progress_ns=fields.inner("progress").time_ns("time") or 0,
    )


def _read_progress(fields: Fields) -> Progress | None:
    step = fields.number("step")
    if step is None:
        return None
    from lllaunch.watchdog.progress import Progress  # noqa: PLC0415 - most runs have none

    metrics = {}
    for name, value in fields.inner("metrics").document.items():
        if isinstance(value, (int, float)) or value in _NOT_FINITE:
            metrics[name] = float(value)
    return Progress(step, fields.number("total"), metrics=metrics)


def _read_fate(fields: Fields) -> Fate:
    kind, at_ns = fields.text("fate"), fields.time_ns("ended") or 0
    cause = read_cause(fields.inner("cause"))
    explanation = _read_explanation(fields.inner("explanation"))
    if kind == "failed" and cause is not None:
        return Failed(cause, at_ns, explanation)
    if kind == "victim" and cause is not None:
        after = fields.seconds("seconds_after_root_cause") or 0.0
        return Victim(cause, at_ns, round(after * 1e9), explanation)
    code = fields.integer("exitcode")
    if kind == "ended" and code is not None:
        signals = map(_read_signal, fields.texts("signals_sent"))
        sent = tuple(each for each in signals if each is not None)
        signum = -code if code < 0 else sent[-1] if sent else 0
        return Ended(signum, code, sent, fields.wholes("waited_for"))
    if kind == "lost":
        known = fields.text("why") in ("spawner", "kernel", "error")
        return Lost(cast("Any", fields.text("why")) if known else "unknown")
    plain: dict[str, Fate] = {"succeeded": Succeeded(), "not_started": NotStarted()}
    return plain.get(kind, Lost("unknown"))


def _read_root(fields: Fields, workers: Sequence[WorkerOutcome], directory: str) -> RootCause:
    return RootCause(
        attempt=fields.integer("attempt") or 0,
        rank=fields.integer("rank"),
        local_rank=fields.integer("local_rank"),
        cause=read_cause(fields.inner("cause")) or UnknownCause("", ""),
        time_ns=fields.integer("time_ns") or 0,
        explanation=_read_explanation(fields.inner("explanation")),
        traceback=fields.text("traceback"),
        files=WorkerFiles(stderr=_read_path(fields, "stderr", directory)),
        hang=_read_hang(fields.inner("hang"), workers, directory),
        frames=read_frames(fields),
        node=fields.text("node"),
        collectives=_read_collectives(fields.inner("collectives")),
    )


def _read_hang(fields: Fields, workers: Sequence[WorkerOutcome], directory: str) -> Hang | None:
    """Return what the watchdog found; None if that is nothing, or a kind that is not known."""
    finding = read_cause(fields.inner("finding"))
    if not _is_finding(finding):
        return None
    from lllaunch.run.hang import Hang  # noqa: PLC0415 - most runs have none

    stacks = {}
    for each in fields.objects("stacks"):
        rank = each.integer("rank")
        if rank is not None:
            stacks[rank] = read_stack(each, rank, directory)

    def in_state(letters: str) -> set[int]:
        return {rank for rank, stack in stacks.items() if stack.state and stack.state in letters}

    def also(name: str, letters: str) -> tuple[int, ...]:
        named = _among_all(getattr(finding, name, ()), workers)
        return tuple(sorted({*named, *in_state(letters)}))

    left = fields.inner("left")
    return Hang(
        finding=finding,
        time_ns=fields.time_ns("time") or 0,
        since_ns=fields.time_ns("since"),
        named=_among_all(_suspects(finding), workers),
        hung=fields.wholes("hung"),
        waiting=fields.wholes("waiting"),
        asleep=also("asleep", "D"),
        stopped=also("stopped", "Tt"),
        left={int(rank): left.seconds(rank) or 0.0 for rank in left.document if rank.isdecimal()},
        stacks=stacks,
        collectives=_read_collectives(fields.inner("collectives")),
    )


def _read_collectives(fields: Fields) -> Disagreement | None:
    if not fields:
        return None
    from lllaunch.watchdog.collectives import disagreement_of  # noqa: PLC0415 - as above

    return disagreement_of(fields)


def read_stack(fields: Fields, rank: int, directory: str) -> RankStack:
    """Return where a worker stood, as far as it is understood.

    Args:
        fields: what is told of it.
        rank: its rank among all workers, as all ranks of a `Hang` are.
        directory: of the run.
    """
    from lllaunch.watchdog.stacks.frames import LockWait, RankStack  # noqa: PLC0415 - as above

    locks = (_read_as(LockWait, each) for each in fields.objects("locks"))
    return RankStack(
        rank=rank,
        path=_read_path(fields, "path", directory),
        frames=read_frames(fields),
        state=fields.text("state"),
        wchan=fields.text("wchan"),
        source=cast("Source", fields.text("source")),
        locks=tuple(each for each in locks if each is not None),
    )


def read_frames(fields: Fields) -> tuple[Frame, ...]:
    """Return the ``frames`` of a part of a document, as far as they are understood."""
    if not fields.value("frames"):
        return ()
    from lllaunch.watchdog.stacks.frames import Frame  # noqa: PLC0415 - as above

    frames = (_read_as(Frame, each) for each in fields.objects("frames"))
    return tuple(each for each in frames if each is not None)


def _read_value(fields: Fields, directory: str) -> ReturnValue:
    return ReturnValue(
        path=_read_path(fields, "path", directory),
        size=fields.integer("size") or 0,
        type_name=fields.text("type"),
        json=json.dumps(fields.value("value")) if "value" in fields else None,
    )
