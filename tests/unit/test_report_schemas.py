"""result.json and sweep.json: their published schemas say exactly what is written, and what is read
back tells what the end of the run told.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

from lllaunch.console.report import report_lines
from lllaunch.events import NoProgress, Orphan
from lllaunch.exit_codes import ExitCode, for_signal
from lllaunch.linux.cgroup import Memory
from lllaunch.run import causes
from lllaunch.run.build import build_facts
from lllaunch.run.execute import host_facts
from lllaunch.run.hang import Hang
from lllaunch.run.outcome import (
    AttemptOutcome,
    AttemptState,
    Ended,
    Failed,
    Fate,
    Lost,
    NodeOutcome,
    NotStarted,
    ReturnValue,
    RootCause,
    RunOutcome,
    RunState,
    Succeeded,
    Victim,
    WorkerOutcome,
)
from lllaunch.run.postmortem import Explanation, Sure, Suspect
from lllaunch.run.records import WorkerFiles
from lllaunch.run.result import ResultFile, render_result
from lllaunch.run.snapshot import Snapshot, with_snapshot
from lllaunch.spec import Detected
from lllaunch.sweep.history import SweepHistory, render_summary, summary_of
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    JournalEntry,
    OverRecord,
    Result,
    Resumed,
    Skipped,
    StartedRecord,
)
from lllaunch.watchdog import findings
from lllaunch.watchdog.collectives import Call, Disagreement, Party
from lllaunch.watchdog.progress import Progress
from lllaunch.watchdog.stacks.frames import Frame, LockWait, RankStack, Source

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "schemas"
T0 = 1_700_000_000_000_000_000
DISAGREEMENT = Disagreement(
    "absent",
    (
        Party((1,), Call(4, "all_reduce", ((4,),), ("float32",), T0), "default_pg", ("/a.py:3",)),
        Party((0, 2), Call(4, "all_reduce", ((4,),), ("float32",), T0)),
    ),
    (1,),
)
WHY = Explanation("itself", "likely", "A bug.")
FILES = WorkerFiles("/run/attempt_0/1", "/run/attempt_0/1/stdout.log", "/var/log/err")

CAUSES = {
    causes.Raised("ValueError: no", 1),
    causes.DeviceOutOfMemory("OutOfMemoryError: no", 1),
    causes.ExitedNonZero(1),
    causes.CalledExit(1, "1", "/a.py", 3, "main"),
    causes.KilledBySignal(11, core_dumped=True),
    causes.OutOfMemory(4096, None),
    causes.OutOfMemory(4096, 8192),
    causes.OutOfMemory(4096, 8192, "RuntimeError: killed"),
    causes.LeftEarly(1.5, 12, (0, 2), "all_reduce", "/a.py", 3),
    causes.DiskFull(1, "/run/attempt_0/0", 4096, 0),
    causes.StartFailure("/bin/x", "No such file", 2),
    causes.SpawnerLost(7, None),
    causes.SpawnerLost(7, -9, "detail"),
    causes.PreloadFailure("m", "no"),
    causes.PreflightFailure("nvidia-smi -L", 9),
    causes.PreflightFailure("nvidia-smi -L", timeout=300.0),
    causes.PreflightFailure("nvidia-smi -L", reason="No such file or directory"),
    causes.NotPicklableReturn("no"),
    causes.HungInKernel(),
    causes.OnAnotherNode("node 1 (b)", "raised ValueError: no"),
    causes.NodeGone("node 1 (b)", "was ended by SIGTERM"),
    causes.NodesJoined(),
}
FINDINGS = {
    findings.TimerExpired(0, 7, "x", 10.0, 9),
    findings.Stalled((0, 1), 3.5, "rank", asleep=(0,), stopped=(1,)),
    findings.Silent(4.5),
    findings.Spinning((0, 1), 5.5, 3),
    findings.HeartbeatLost((0,), 4),
    findings.ProgressMissing(9.5, 1200.0),
    findings.ProgressMissing(9.5, first=True),
    findings.Unchanged("step", 1200.0, 9.5),
    findings.NotFinite(0, "loss", "nan", 1200.0),
    findings.NotFinite(0, "loss", "inf", exact=True, chosen=False),
    findings.TimedOut(10.0, "run"),
    findings.OverMemory(0, 5, 4, 0.5),
    findings.OverMemory(0, 6, 4),
    findings.Asked(2, 3.5),
    findings.Asked(3),
    findings.FoundElsewhere("node 1 (b)", "stalled"),
}
FATES: tuple[Fate, ...] = (
    Succeeded(),
    Failed(causes.ExitedNonZero(1), T0, WHY),
    Failed(causes.ExitedNonZero(1), T0),
    Victim(causes.ExitedNonZero(1), T0, 5, WHY),
    Ended(9, -9, (15, 9, 63), (0,)),
    Lost("kernel"),
    NotStarted(),
)


RESULT, SWEEP = (
    json.loads((SCHEMAS / f"{name}.schema.json").read_text()) for name in ("result", "sweep")
)


def told(outcome: RunOutcome) -> Any:
    host = host_facts(Memory(total=1 << 34, limit=None))
    return json.loads(render_result(outcome, host, build=build_facts("/")))


def run(state: RunState = "failed", code: int = 3, **more: Any) -> RunOutcome:
    return RunOutcome(state, code, "/run", "id", T0, T0 + 10**9, plan_hash="ab", **more)


PROGRESS = Progress(1200.0, 5000.0, 2.0, 1900.0, 3.0, {"loss": math.nan, "lr": 0.1})


def failed_for(cause: Any, hang: Hang | None = None) -> RunOutcome:
    fates: tuple[Fate, ...] = FATES
    rank: int | None = 1
    if hang is not None:
        # where nobody stands out all are ended
        ended = Ended(9, -9, (9,))
        fates = tuple(Failed(cause, T0) if rank in hang.blamed else ended for rank in range(4))
        rank = 1 if hang.blamed and hang.named else None
    workers = tuple(
        WorkerOutcome(
            *(rank, rank, fate, FILES, 7, -9 if rank or hang else None, T0, T0 + 5, 1, 0.5, "T"),
            progress=PROGRESS if rank else None,
            progress_ns=T0,
        )
        for rank, fate in enumerate(fates)
    )
    frames = (Frame("a.py", 3, "f"),)
    root = RootCause(
        0, rank, rank, cause, T0, WHY, "Traceback", FILES, hang, frames, collectives=DISAGREEMENT
    )
    attempt = AttemptOutcome(
        0, 0, "/run/attempt_0", "failed", T0, T0 + 9, workers, root, (Orphan(9, "x", True),)
    )
    return run(attempts=(attempt, attempt), root_cause=root)


def hang_of(finding: Any, **more: Any) -> Hang:
    stack = RankStack(1, "/run/attempt_0/1/stacks.txt", (Frame("a.py", 3, "f"),), "S", "futex")
    locks = (LockWait("MainThread", Frame("a.py", 3, "f", "with lock:")),)
    stacks = {
        1: replace(stack, source="py-spy", locks=locks),
        2: RankStack(2, state="D"),
        3: RankStack(3, state="T"),
    }
    asleep = {*getattr(finding, "asleep", ()), 2}
    stopped = {*getattr(finding, "stopped", ()), 3}
    known = {
        "named": findings.suspects(finding),
        "asleep": tuple(sorted(asleep)),
        "stopped": tuple(sorted(stopped)),
        **more,
    }
    return Hang(finding, T0, T0 - 5000, stacks=stacks, **known)


def elsewhere(outcome: RunOutcome) -> RunOutcome:
    """The same with local ranks that are not the ranks among all workers."""
    last = outcome.attempts[-1]
    workers = tuple(replace(each, local_rank=each.rank - 1) for each in last.workers if each.rank)
    return replace(outcome, attempts=(*outcome.attempts[:-1], replace(last, workers=workers)))


def outcomes() -> Iterator[RunOutcome]:
    for cause in CAUSES:
        yield failed_for(cause)
    for finding in FINDINGS:
        yield failed_for(finding, hang_of(finding, hung=(1,), waiting=(0,)))
        yield failed_for(finding, hang_of(finding))
    stalled = findings.Stalled((0, 1), 60.0)
    yield failed_for(stalled, hang_of(stalled, hung=(1,), collectives=DISAGREEMENT))
    # who has left is not told of former attempts
    left = failed_for(stalled, hang_of(stalled, waiting=(1,), left={2: 0.5}))
    yield replace(left, attempts=left.attempts[:1])
    yield elsewhere(failed_for(findings.TimedOut(60.0), hang_of(findings.TimedOut(60.0))))
    yield run("error", 1, error="internal error\nTraceback")
    yield run("signalled", for_signal(15), signum=15, importing=("torch",))
    yield run("signalled", for_signal(64), signum=64)
    yield run("signalled", for_signal(2), signum=2, look=hang_of(findings.Asked(2, 9.0)))
    yield run("failed", 4, limit=findings.TimedOut(3.0, "run"))
    yield run("failed", 7, no_progress=NoProgress(3, 1200.0, same=True))
    yield run("failed", 7, no_progress=NoProgress(2))
    values = {
        0: ReturnValue("/run/attempt_0/0/return.json", 4, "json", "null"),
        11: ReturnValue("/run/attempt_0/1/return.pkl", 4, "torch.Tensor"),
    }
    yield run("succeeded", 0, return_values=values)
    nodes = (
        NodeOutcome("node 0 (a)", "a", 0, 0, 2, "/run/node_0", True, "succeeded", 0, "", 0.0),
        NodeOutcome("node 1 (b)", "b", None, 1, 2, said="was ended by SIGTERM"),
    )
    detected = (Detected("nnodes", "2", "SLURM_JOB_NUM_NODES"),)
    yield run("succeeded", 0, nodes=nodes, detected=detected)
    # nothing is known but that it was refused
    yield RunOutcome("error", 2, "", error="launch.nproc: no")


OUTCOMES = list(outcomes())
ALL = [told(outcome) for outcome in OUTCOMES]


def with_code() -> Any:
    """A document of a run that ran from a snapshot of its project."""
    snapshot = Snapshot("/run/code", "ab" * 20, "cd" * 20, "/home/a/project", True)
    build = with_snapshot(build_facts("/"), snapshot)
    host = host_facts(Memory(total=1 << 34, limit=None))
    return json.loads(render_result(run("succeeded", 0), host, build=build))


@pytest.mark.parametrize("document", [*ALL, with_code()])
def test_what_is_written_is_valid(document: Any) -> None:
    Draft202012Validator(RESULT).validate(document)


@pytest.mark.parametrize("found", OUTCOMES)
def test_what_is_read_back_is_told_and_written_alike(found: RunOutcome) -> None:
    found = replace(found, detected=())  # which is for who reads the file
    document = json.loads(render_result(found, {}))
    result = ResultFile.from_json(document, found.directory)
    assert result is not None
    back = result.outcome
    assert back is not None
    assert report_lines(back, "/home") == report_lines(found, "/home")
    assert json.loads(render_result(back, {})) == document


def changed(**change: Any) -> ResultFile:
    """What is read of a result.json in which something is another thing."""
    document = json.loads(render_result(failed_for(causes.ExitedNonZero(7)), {}))
    result = ResultFile.from_json({**document, **change}, "/run")
    assert result is not None
    return result


def outcome(**change: Any) -> RunOutcome:
    """The same, where it is understood."""
    found = changed(**change).outcome
    assert found is not None
    return found


def test_a_cause_of_another_version_keeps_its_text() -> None:
    cause = {"type": "Bored", "text": "was bored", "of": "waiting"}
    found = outcome(root_cause={"rank": 1, "cause": cause, "new": {"field": 1}})
    assert found.root_cause is not None
    assert found.root_cause.cause == causes.UnknownCause("Bored", "was bored")
    lines = report_lines(found, "/home")
    assert any("rank 1" in line.text and "was bored" in line.text for line in lines)
    document = json.loads(render_result(found, {}))
    assert document["root_cause"]["cause"] == {"type": "Bored", "text": "was bored"}
    # one of ours that lacks what it must have
    found = outcome(root_cause={"rank": 1, "cause": {"type": "ExitedNonZero", "text": "exited"}})
    assert found.root_cause is not None
    assert found.root_cause.cause == causes.UnknownCause("ExitedNonZero", "exited")


def test_fields_that_an_older_version_did_not_write_are_at_their_defaults() -> None:
    document = json.loads(render_result(OUTCOMES[0], {}))
    for name in ("importing", "look", "host", "build", "plan_hash", "limit"):
        document.pop(name)
    for worker in document["attempts"][0]["workers"]:
        for name in ("stacks", "max_rss", "cpu_seconds"):
            worker.pop(name)
    result = ResultFile.from_json(document, "/run")
    assert result is not None
    assert result.outcome is not None
    assert report_lines(result.outcome, "/home") == report_lines(OUTCOMES[0], "/home")


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        ({"fate": "evaporated"}, Lost("unknown")),
        ({"fate": "ended", "exitcode": None}, Lost("unknown")),
        ({"fate": "failed"}, Lost("unknown")),
        ({"fate": "not_started"}, NotStarted()),
    ],
)
def test_a_fate_that_is_not_known_is_said_to_be(fate: dict[str, Any], expected: Fate) -> None:
    workers = [{"rank": 0, "local_rank": 0}, {"rank": 1, **fate}, {"no": "rank"}, 7]
    found = outcome(attempts=[{"attempt": 0, "state": "failed", "workers": workers}, {}, None])
    (only,) = found.attempts
    assert [worker.rank for worker in only.workers] == [0, 1]
    assert only.workers[1].fate == expected
    assert report_lines(found, "/home")


def test_what_is_of_another_kind_is_left_out() -> None:
    found = outcome(
        signal="SIGNOTHING",
        limit={"type": "Raised", "text": "", "message": "m", "exitcode": 1},
        return_values={"x": 1, "3": {"path": "p", "value": [1]}},
        started=5,
        error=7,
        root_cause=[1],
    )
    assert (found.signum, found.limit, found.error) == (None, None, "")
    assert (found.started_ns, found.root_cause) == (0, None)
    assert found.return_values == {3: ReturnValue("/run/p", 0, "", "[1]")}


@pytest.mark.parametrize(
    "change", [{"attempts": 5}, {"exit_code": "three"}, {"exit_code": True}, {"state": None}]
)
def test_what_does_not_say_how_a_run_ended_is_not_understood(change: dict[str, Any]) -> None:
    result = changed(**change)
    assert result.outcome is None
    assert result.root_cause == "rank 1: exited with status 7"
    others: list[Any] = [{}, [], None, {"state": "failed", "exit_code": 3}]
    for other in others:
        assert ResultFile.from_json(other, "/run") is None


# What the schema says, part by part


def resolved(part: Any, root: Any) -> Any:
    while "$ref" in part:
        part = root["$defs"][part["$ref"].removeprefix("#/$defs/")]
    return part


def closed_parts(part: Any, root: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    """All descriptions of objects with known fields, each with its place."""
    if isinstance(part, dict):
        if isinstance(part.get("properties"), dict):
            yield path, part
        for key, value in part.items():
            yield from closed_parts(value, root, f"{path}.{key}")
    elif isinstance(part, list):
        for index, value in enumerate(part):
            yield from closed_parts(value, root, f"{path}[{index}]")


def used(part: Any, value: Any, root: Any, path: str, found: dict[str, set[str]]) -> None:
    """Notes which fields a document has of each part of its schema that it fits."""
    if "$ref" in part:
        path = f"$.$defs.{part['$ref'].removeprefix('#/$defs/')}"
        part = resolved(part, root)
    for index, choice in enumerate(part.get("oneOf", ())):
        if Draft202012Validator({**choice, "$defs": root["$defs"]}).is_valid(value):
            used(choice, value, root, f"{path}.oneOf[{index}]", found)
    if isinstance(value, dict):
        if "properties" in part:
            found.setdefault(path, set()).update(value)
        for key, item in value.items():
            inner = part.get("properties", {}).get(key, part.get("additionalProperties"))
            if isinstance(inner, dict):
                used(inner, item, root, f"{path}.properties.{key}", found)
    if isinstance(value, list) and "items" in part:
        for item in value:
            used(part["items"], item, root, f"{path}.items", found)


@pytest.mark.parametrize(("root", "written"), [(RESULT, "result"), (SWEEP, "sweep")])
def test_every_field_of_the_schema_is_written_and_every_written_one_is_in_it(
    root: Any, written: str
) -> None:
    Draft202012Validator.check_schema(root)
    found: dict[str, set[str]] = {}
    for document in [*ALL, with_code()] if written == "result" else sweeps():
        used(root, document, root, "$", found)
    for path, part in closed_parts(root, root):
        assert part["additionalProperties"] is False, path
        assert found.get(path) == set(part["properties"]), path
        optional = set(part["properties"]) - set(part["required"])
        assert optional <= {"value", "return_value", "snapshot", "direction"}, path


def test_every_cause_is_in_the_schema_with_its_fields() -> None:
    members = {
        kind
        for module in (causes, findings)
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    } - {causes.UnknownCause}  # of another version's file, which is never written again
    assert members == {type(cause) for cause in CAUSES | FINDINGS}
    choices = [each["$ref"].rpartition("/")[2] for each in RESULT["$defs"]["cause"]["oneOf"]]
    assert sorted(choices) == sorted(kind.__name__ for kind in members)
    found = {each["$ref"].rpartition("/")[2] for each in RESULT["$defs"]["finding"]["oneOf"]}
    assert found == {kind.__name__ for kind in get_args(findings.Finding)}
    for kind in members:
        fields = {field.name for field in dataclasses.fields(kind)}
        part = RESULT["$defs"][kind.__name__]
        assert set(part["properties"]) == {"type", "text", *fields}
        assert part["properties"]["type"] == {"const": kind.__name__}


@pytest.mark.parametrize(
    ("part", "name", "values"),
    [
        (RESULT, "state", get_args(RunState)),
        (RESULT["$defs"]["attempt"], "state", get_args(AttemptState)),
        (RESULT["$defs"]["explanation"], "suspect", get_args(Suspect)),
        (RESULT["$defs"]["explanation"], "sure", get_args(Sure)),
        # an empty one is written as null
        (RESULT["$defs"]["stack"], "source", [each or None for each in get_args(Source)]),
    ],
)
def test_names_are_those_of_the_writer(part: Any, name: str, values: Any) -> None:
    assert set(part["properties"][name]["enum"]) == set(values)


def test_exit_codes_are_those_of_a_run() -> None:
    named, signals = RESULT["$defs"]["exit_code"]["oneOf"]
    # a run has no jobs, and one that is not the reviewed one writes nothing
    assert set(named["enum"]) == {int(code) for code in ExitCode if code not in {5, 6}}
    assert (signals["minimum"], signals["maximum"]) == (for_signal(1), for_signal(64))


# sweep.json


def sweeps() -> list[Any]:
    fingerprint = "ab" * 32
    returned = Result("succeeded", 0, "", 1.5, '{"a": [1]}')
    records = [
        Header("id", "0.1.0", ("x=1,2,3",)),
        *(ComposedRecord(job, (f"x={job}",), str(job), fingerprint) for job in range(6)),
        ComposedRecord(6, ("x=no",), "", None),
        StartedRecord(0),
        EndedRecord(0, 0, returned),
        StartedRecord(1),
        EndedRecord(1, 0, Result("failed", 3, "rank 0: exited with status 1", 0.5)),
        Skipped(1, "was tried often enough"),
        StartedRecord(2),
        StartedRecord(3),
        EndedRecord(3, 0, Result("signalled", 143)),
        Skipped(4, "the sweep was cancelled"),
        EndedRecord(6, 0, Result("error", 2, "launch.nproc: no")),
        Resumed("0.1.0"),
        OverRecord(6),
    ]
    history = SweepHistory(JournalEntry(T0 + number, each) for number, each in enumerate(records))
    found = [summary_of(history, T0 + 10**9), summary_of(SweepHistory(), T0)]
    return [json.loads(render_summary(document)) for document in found]


def test_what_is_written_of_sweeps_is_valid() -> None:
    for document in sweeps():
        Draft202012Validator(SWEEP).validate(document)
    states = {job["state"] for job in sweeps()[0]["jobs"]}
    assert states == set(SWEEP["$defs"]["state"]["enum"])
