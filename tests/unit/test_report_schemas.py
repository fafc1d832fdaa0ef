"""result.json and sweep.json: their published schemas say exactly what is written, and what is read
back tells what the end of the run told.
"""

from __future__ import annotations

import json
import math
import re
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace
from support.left import ended_by_launcher, own, placed

from lllaunch.console.report import report_lines
from lllaunch.documents import Plain, Said
from lllaunch.errors import ExitCode, for_signal
from lllaunch.events import Orphan
from lllaunch.linux.cgroup import Memory
from lllaunch.run import result as causes
from lllaunch.run.execute import host_facts
from lllaunch.run.repository import Snapshot, build_facts
from lllaunch.run.result import (
    AnyWorker,
    AttemptResult,
    Explanation,
    Failed,
    Hang,
    Lost,
    NodeResult,
    NotStarted,
    Reached,
    ReturnValue,
    RootCause,
    RunResult,
    RunState,
    Succeeded,
    Victim,
    as_result,
    encode_result,
    plain_result,
    read_result,
)
from lllaunch.spec import Detected
from lllaunch.supervisor.machine import NoProgress
from lllaunch.sweep.history import SweepHistory, summary_of
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
from lllaunch.watchdog.evidence import Call, Disagreement, Frame, LockWait, Party, RankStack

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

CAUSES = {
    causes.Raised("ValueError: no", 1),
    causes.DeviceOutOfMemory("OutOfMemoryError: no", 1),
    causes.ExitedNonZero(1),
    causes.CalledExit(1, "1", "/a.py", 3, "main"),
    causes.KilledBySignal(11, core_dumped=True),
    causes.OutOfMemory(4096, None),
    causes.OutOfMemory(4096, 8192),
    causes.OutOfMemory(4096, 8192, "RuntimeError: killed"),
    causes.LeftEarly(1.5, 12, (0, 2), "all_reduce", "/a.py", 3, "", "/b.py", 4),
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
    causes.Differed(),
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
    findings.GaveUp(600.0),
    findings.Straggler(1, 5, 5, 0.9),
    findings.FoundElsewhere("node 1 (b)", "stalled"),
}
FATES: tuple[AnyWorker, ...] = (
    Succeeded(),
    Failed(cause=causes.ExitedNonZero(1), explanation=WHY),
    Failed(cause=causes.ExitedNonZero(1)),
    Victim(cause=causes.ExitedNonZero(1), seconds_after_root_cause=0.5, explanation=WHY),
    ended_by_launcher(-9, 15, 9, 63, waited_for=(0,)),
    Lost(why="kernel"),
    NotStarted(),
)


RESULT, SWEEP = (
    json.loads((SCHEMAS / f"{name}.schema.json").read_text()) for name in ("result", "sweep")
)


def told(outcome: RunResult) -> Any:
    host = host_facts(Memory(total=1 << 34, limit=None))
    return plain_result(replace(outcome, host=host, build=build_facts("/")))


def run(state: RunState = "failed", code: int = 3, **more: Any) -> RunResult:
    return RunResult(state, code, "/run", "id", T0, T0 + 10**9, plan_hash="ab", **more)


PROGRESS = Reached(1200.0, 5000.0, T0, {"loss": math.nan, "lr": 0.1})


def failed_for(cause: Any, hang: Hang | None = None) -> RunResult:
    fates: Sequence[AnyWorker] = FATES
    rank: int | None = 1
    if hang is not None:
        # where nobody stands out all are ended
        ended = ended_by_launcher(-9, 9)
        fates = [Failed(cause=cause) if rank in hang.blamed else ended for rank in range(4)]
        rank = 1 if hang.blamed and hang.named else None
    more = {"pid": 7, "max_rss": 1, "cpu_seconds": 0.5, "stderr": "/var/log/err"}
    workers = tuple(
        placed(
            rank,
            fate,
            **more,
            exitcode=-9 if rank or hang else 0,
            started_ns=T0,
            ended_ns=T0 + 5000,
            stdout="/run/attempt_0/1/stdout.log",
            progress=PROGRESS if rank else None,
        )
        for rank, fate in enumerate(fates)
    )
    frames = (Frame("a.py", 3, "f"),)
    root = RootCause(
        *(0, rank, rank, cause, T0, WHY, "Traceback", "/var/log/err", hang, frames),
        collectives=DISAGREEMENT,
    )
    attempt = AttemptResult(
        0, 0, "/run/attempt_0", "failed", T0, T0 + 9000, workers, root, (Orphan(9, "x", True),)
    )
    return run(attempts=(attempt, attempt), root_cause=root)


def hang_of(finding: Any, **more: Any) -> Hang:
    stack = RankStack(1, "/run/attempt_0/1/stacks.txt", (Frame("a.py", 3, "f"),), "S", "futex")
    locks = (LockWait("MainThread", Frame("a.py", 3, "f", "with lock:")),)
    standing = (
        replace(stack, source="py-spy", locks=locks),
        RankStack(2, state="D"),
        RankStack(3, state="T"),
    )
    asleep = {*getattr(finding, "asleep", ()), 2}
    stopped = {*getattr(finding, "stopped", ()), 3}
    known = {
        "named": findings.suspects(finding),
        "asleep": tuple(sorted(asleep)),
        "stopped": tuple(sorted(stopped)),
        **more,
    }
    return Hang(finding, T0, T0 - 5000, standing=standing, **known)


def elsewhere(outcome: RunResult) -> RunResult:
    """The same with local ranks that are not the ranks among all workers."""
    last = outcome.attempts[-1]
    workers = tuple(replace(each, local_rank=each.rank - 1) for each in last.workers if each.rank)
    return replace(outcome, attempts=(*outcome.attempts[:-1], replace(last, workers=workers)))


def outcomes() -> Iterator[RunResult]:
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
        NodeResult("node 0 (a)", "a", 0, 0, 2, "/run/node_0", True, "succeeded", 0, "", 0.0),
        NodeResult("node 1 (b)", "b", None, 1, 2, said="was ended by SIGTERM"),
    )
    detected = (Detected("nnodes", "2", "SLURM_JOB_NUM_NODES"),)
    yield run("succeeded", 0, nodes=nodes, detected=detected)
    yield run().with_error("launch.nproc: no", ExitCode.CONFIG)
    # nothing is known but that it was refused
    yield RunResult("error", 2, "", error="launch.nproc: no")


OUTCOMES = list(outcomes())
ALL = [told(outcome) for outcome in OUTCOMES]


def with_code() -> Any:
    """A document of a run that ran from a snapshot of its project."""
    snapshot = Snapshot("/run/code", "ab" * 20, "cd" * 20, "/home/a/project", True)
    return plain_result(run("succeeded", 0, build=snapshot.build(build_facts("/"))))


@pytest.mark.parametrize("document", [*ALL, with_code()])
def test_what_is_written_is_valid(document: Any) -> None:
    Draft202012Validator(RESULT).validate(document)


@pytest.mark.parametrize("found", OUTCOMES)
def test_what_is_read_back_is_told_and_written_alike(found: RunResult) -> None:
    document = json.loads(encode_result(found))
    back = as_result(document, found.directory)
    assert back is not None
    assert report_lines(back, "/home") == report_lines(found, "/home")
    assert json.loads(encode_result(back)) == document


def outcome(**change: Any) -> RunResult:
    """What is read of a result.json in which something is another thing."""
    document = json.loads(encode_result(failed_for(causes.ExitedNonZero(7))))
    found = as_result({**document, **change}, "/run")
    assert found is not None
    return found


def test_a_cause_of_another_version_keeps_its_text() -> None:
    cause = {"type": "Bored", "text": "was bored", "of": "waiting"}
    found = outcome(root_cause={"rank": 1, "cause": cause, "new": {"field": 1}})
    assert found.root_cause is not None
    assert found.root_cause.cause == causes.UnknownCause("Bored", "was bored")
    lines = report_lines(found, "/home")
    assert any("rank 1" in line.text and "was bored" in line.text for line in lines)
    assert plain_result(found)["root_cause"]["cause"] == {
        "type": "UnknownCause",
        "name": "Bored",
        "text": "was bored",
    }
    # one of ours that lacks what it must have
    found = outcome(root_cause={"rank": 1, "cause": {"type": "ExitedNonZero", "text": "exited"}})
    assert found.root_cause is not None
    assert found.root_cause.cause == causes.UnknownCause("ExitedNonZero", "exited")


def test_fields_that_an_older_version_did_not_write_are_at_their_defaults() -> None:
    document = json.loads(encode_result(OUTCOMES[0]))
    for name in ("importing", "look", "host", "build", "plan_hash", "limit"):
        document.pop(name)
    for worker in document["attempts"][0]["workers"]:
        for name in ("stacks", "max_rss", "cpu_seconds"):
            worker.pop(name)
    result = as_result(document, "/run")
    assert result is not None
    assert report_lines(result, "/home") == report_lines(OUTCOMES[0], "/home")


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        ({"fate": "evaporated"}, Lost(why="unknown")),
        ({"fate": "ended", "exitcode": None}, Lost(why="unknown")),
        ({"fate": "failed"}, Lost(why="unknown")),
        ({"fate": "not_started"}, NotStarted()),
        ({}, Lost(why="unknown")),
    ],
)
def test_a_fate_that_is_not_known_is_said_to_be(fate: dict[str, Any], expected: AnyWorker) -> None:
    workers = [{"rank": 0, "local_rank": 0}, {"rank": 1, **fate}]
    found = outcome(attempts=[{"attempt": 0, "state": "failed", "workers": workers}])
    (only,) = found.attempts
    assert [worker.rank for worker in only.workers] == [0, 1]
    assert own(only.workers[1]) == expected
    assert report_lines(found, "/home")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"exit_code": "three"}, "result.json: expected int, got str at $.exit_code"),
        ({"exit_code": True}, "result.json: expected int, got bool at $.exit_code"),
        ({"attempts": 5}, "result.json: expected array, got int at $.attempts"),
        ({"state": None}, "result.json: expected str, got null at $.state"),
        (
            {"signal": "SIGNOTHING"},
            "result.json: expected the name of a signal, got 'SIGNOTHING' at $.signal",
        ),
        ({"started": 5}, "result.json: expected a time in UTC, got 5 at $.started"),
        ({"root_cause": [1]}, "result.json: expected object | null, got array at $.root_cause"),
        ({"version": 2}, "result.json: is of version 2; this lllaunch reads version 1"),
    ],
)
def test_what_is_wrong_is_one_message(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    document = json.loads(encode_result(failed_for(causes.ExitedNonZero(7))))
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**document, **change}))
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        read_result(str(path), str(tmp_path))


def test_what_another_program_wrote_is_none_of_ours() -> None:
    others: list[Any] = [{}, [], None, {"state": "failed", "exit_code": 3}]
    for other in others:
        assert as_result(other, "/run") is None


# The files of the version before

GOLDEN = Path(__file__).parent / "golden"
# sizes of a call that were guessed from bytes
GONE = "elements"


@pytest.mark.parametrize("name", ["result_version_1.json", "run_version_1/result.json"])
def test_a_result_of_the_version_before_is_read_whole(name: str) -> None:
    document = json.loads((GOLDEN / name).read_text())
    found = read_result(str(GOLDEN / name), "/run")
    assert found is not None

    def missing(old: Any, new: Any) -> bool:
        """Whether what was written is not written now, or is something else."""
        if isinstance(old, dict):
            kept = {key: each for key, each in old.items() if key != GONE}
            return any(key not in new or missing(each, new[key]) for key, each in kept.items())
        if isinstance(old, list):
            return len(old) != len(new) or any(map(missing, old, new))
        return bool(old != new)

    # the nanoseconds that no time of the file has
    document.pop("seconds")
    assert not missing(document, plain_result(found))
    assert report_lines(found, "/home")


# What the schemas say


def test_every_cause_is_written_by_these_tests() -> None:
    members = {
        kind
        for module in (causes, findings)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Said) and kind not in (Said, NoProgress)
    }
    assert members == {type(cause) for cause in CAUSES | FINDINGS}


def test_the_schemas_are_those_of_the_records() -> None:
    generator = runpy.run_path(str(SCHEMAS.parents[1] / "generate_schemas.py"))
    for path, text in generator["schemas"]().items():
        assert path.read_text() == text, "run docs/generate_schemas.py"


def test_a_field_that_is_not_in_the_schema_or_missing_is_not_valid() -> None:
    document = ALL[0]
    assert not Draft202012Validator(RESULT).is_valid({**document, "more": 1})
    assert not Draft202012Validator(RESULT).is_valid({**document, "state": "fine"})
    document = {name: value for name, value in document.items() if name != "seconds"}
    assert not Draft202012Validator(RESULT).is_valid(document)


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
    return [Plain()(document) for document in found]


def test_what_is_written_of_sweeps_is_valid() -> None:
    for document in sweeps():
        Draft202012Validator(SWEEP).validate(document)
    states = {job["state"] for job in sweeps()[0]["jobs"]}
    assert states == set(SWEEP["$defs"]["JobHistory"]["properties"]["state"]["enum"])
