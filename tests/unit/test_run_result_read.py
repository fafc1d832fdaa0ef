"""A result.json that is read back tells what the end of its run told."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lllaunch.console.report import report_lines
from lllaunch.console.wording import StyledText
from lllaunch.events import Orphan
from lllaunch.run.causes import (
    ExitedNonZero,
    HungInKernel,
    KilledBySignal,
    NotPicklableReturn,
    OutOfMemory,
    PreloadFailure,
    Raised,
    SpawnerLost,
    StartFailure,
    UnknownCause,
)
from lllaunch.run.hang import Hang
from lllaunch.run.outcome import (
    AttemptOutcome,
    Ended,
    Failed,
    Fate,
    Lost,
    NotStarted,
    ReturnValue,
    RootCause,
    RunOutcome,
    Succeeded,
    Victim,
    WorkerOutcome,
)
from lllaunch.run.postmortem import Explanation
from lllaunch.run.records import WorkerFiles
from lllaunch.run.result import ResultFile, render_result
from lllaunch.watchdog.collectives import Call, Disagreement, Party
from lllaunch.watchdog.findings import (
    Asked,
    HeartbeatLost,
    NotFinite,
    OverMemory,
    ProgressMissing,
    Spinning,
    Stalled,
    TimedOut,
    TimerExpired,
    Unchanged,
)
from lllaunch.watchdog.progress import Progress
from lllaunch.watchdog.stacks.frames import Frame, RankStack

T0 = 1_700_000_000_000_000_000
S = 1_000_000_000
RUN = "/home/ada/net/outputs/1"
WHY = Explanation("outside", "likely", "Somebody else killed it.")


def files(rank: int, attempt: int = 0) -> WorkerFiles:
    place = f"{RUN}/attempt_{attempt}/{rank}"
    return WorkerFiles(place, f"{place}/stdout.log", f"{place}/stderr.log", f"{place}/error.json")


def attempt(root: RootCause | None, *workers: WorkerOutcome, **more: Any) -> AttemptOutcome:
    number = 0 if root is None else root.attempt
    state = "succeeded" if root is None else "failed"
    path = f"{RUN}/attempt_{number}"
    return AttemptOutcome(number, number, path, state, T0, T0 + 3 * S, workers, root, **more)


def outcome(*attempts: AttemptOutcome, state: Any = "failed", code: int = 3, **more: Any):
    last = attempts[-1].root_cause if attempts else None
    return RunOutcome(state, code, RUN, "id", T0, T0 + 9 * S, attempts, last, plan_hash="f", **more)


def failed(cause: Any, rank: int | None = 1, **more: Any) -> RootCause:
    named = files(rank) if rank is not None else WorkerFiles()
    return RootCause(0, rank, rank, cause, T0 + S, files=named, **more)


OTHERS = (
    WorkerOutcome(0, 0, Succeeded(), files(0), 10, 0, T0, T0 + S, 4096, 0.5),
    WorkerOutcome(
        *(2, 2, Ended(15, -15, (15,)), files(2), 12, -15, T0, T0 + 2 * S),
        progress=Progress(1200.0, None, metrics={"loss": 0.5}),
        progress_ns=T0 + S,
    ),
    WorkerOutcome(3, 3, Ended(15, 7, (15, 9)), files(3), 13, 7, T0, T0 + 2 * S),
    WorkerOutcome(4, 4, Victim(Raised("E: lost", 1), T0 + 2 * S, S, WHY), traceback="T"),
    WorkerOutcome(5, 5, Lost("kernel"), pid=15),
    WorkerOutcome(6, 6, NotStarted()),
    WorkerOutcome(7, 7, Ended(64, -64, (64,), waited_for=(1,)), exitcode=-64),
)
CAUSES = (
    Raised("ValueError: no\nand more", 1),
    ExitedNonZero(7),
    KilledBySignal(11, core_dumped=True),
    OutOfMemory(5 << 30, 6 << 30),
    StartFailure("nope", "No such file or directory", 2),
    NotPicklableReturn("a lock"),
    HungInKernel(),
)


def of_cause(cause: Any, **more: Any) -> RunOutcome:
    root = failed(cause, **more)
    own = WorkerOutcome(1, 1, Failed(cause, T0 + S, WHY), files(1), 11, 1, T0, T0 + S)
    return outcome(attempt(root, OTHERS[0], own, *OTHERS[1:]))


def hang(finding: Any, **more: Any) -> Hang:
    frames = (Frame("/home/ada/net/train.py", 40, "sync", "all_reduce(x)"),)
    stacks = {
        1: RankStack(1, f"{RUN}/attempt_0/1/stacks.txt", frames, "S", "", "faulthandler"),
        2: RankStack(2, "", (), "D", "nfs_wait"),
        3: RankStack(3, "", (), "T"),
    }
    more = {"stacks": stacks, "asleep": (2,), "stopped": (3,), **more}
    return Hang(finding, T0 + 2 * S, T0, **more)


CALL = Call(4, "all_reduce", ((128, 10),), ("float32",), T0)
ABSENT = Disagreement(
    "absent", (Party((1,), CALL, "default_pg", ("/a/train.py:12",)), Party((0, 2), CALL)), (1,)
)


FINDINGS = (
    hang(TimerExpired(1, 77, "train.py#40", 10.0, 9), named=(1,), hung=(1,), waiting=(0, 2)),
    hang(Stalled((1,), 60.0, "rank", (2,), (3,)), named=(1,), hung=(1,)),
    hang(HeartbeatLost((0,), 60.0), named=(0,), hung=(1,), waiting=(0,)),
    hang(TimedOut(60.0), hung=(1,)),
    hang(ProgressMissing(60.0, 1200.0), hung=(1,)),
    hang(Unchanged("step", 1200.0, 60.0)),
    hang(NotFinite(1, "loss", "nan", 1200.0), named=(1,), hung=(1,)),
    hang(OverMemory(1, 2 << 30, 1 << 30), named=(1,), hung=(1,)),
    hang(Stalled((0, 1, 2), 60.0), named=(0, 1, 2)),
    hang(Spinning((0, 1, 2), 60.0, 21), named=(0, 1, 2)),
    hang(Stalled((0, 1, 2), 60.0), named=(0, 1, 2), hung=(1,), collectives=ABSENT),
)


def of_finding(found: Hang) -> RunOutcome:
    finding = found.finding
    rank = 1 if found.hung and not isinstance(finding, TimedOut) else None
    root = failed(finding, rank, hang=found)
    # where nobody stands out all are ended
    fate = Failed(finding, T0 + S) if found.blamed else Ended(9, -9, (9,))
    own = WorkerOutcome(1, 1, fate, files(1), 11, -9, T0, T0 + S)
    return outcome(attempt(root, OTHERS[0], own, *OTHERS[1:]), code=4)


def on_second_node(found: RunOutcome) -> RunOutcome:
    """The same with local ranks that are not the ranks among all workers."""
    last = found.attempts[-1]
    workers = tuple(replace(each, local_rank=each.rank - 1) for each in last.workers if each.rank)
    return replace(found, attempts=(*found.attempts[:-1], replace(last, workers=workers)))


def twice(found: RunOutcome) -> RunOutcome:
    """Another attempt like the first."""
    last = found.attempts[-1]
    root = last.root_cause
    assert root is not None
    second = replace(last, number=1, path=f"{RUN}/attempt_1", root_cause=replace(root, attempt=1))
    return replace(found, attempts=(last, second), root_cause=second.root_cause)


OUTCOMES = [
    *map(of_cause, CAUSES),
    of_cause(CAUSES[0], traceback="Traceback ...\nValueError: no", explanation=WHY),
    of_cause(CAUSES[1], hang=FINDINGS[0]),
    *map(of_finding, FINDINGS),
    *(twice(of_finding(found)) for found in FINDINGS),
    on_second_node(of_finding(hang(TimedOut(60.0), hung=(1,)))),
    twice(of_cause(CAUSES[2])),
    outcome(attempt(failed(SpawnerLost(9, -9, "gone"), None), *OTHERS)),
    outcome(attempt(failed(PreloadFailure("torch", "no"), None), *OTHERS)),
    outcome(attempt(failed(CAUSES[1])), limit=TimedOut(9.0, "run"), code=4),
    outcome(attempt(None, leftovers=(Orphan(9, "sleep", True),)), state="succeeded", code=0),
    outcome(
        attempt(None, OTHERS[0]),
        state="succeeded",
        code=0,
        return_values={0: ReturnValue(f"{RUN}/attempt_0/0/return.json", 3, "json", "0.1")},
    ),
    outcome(attempt(failed(CAUSES[1])), state="signalled", code=130, signum=2),
    outcome(state="signalled", code=192, signum=64),
    outcome(
        attempt(None, OTHERS[0], OTHERS[1]),
        state="signalled",
        code=130,
        signum=2,
        look=hang(Asked(2, 9.0), asleep=(2,)),
    ),
    outcome(state="error", code=1, error="disk full\nreally"),
]


def shown(found: RunOutcome) -> list[StyledText]:
    return report_lines(found, "/home/ada/net")


@pytest.mark.parametrize("found", OUTCOMES)
def test_what_is_read_back_is_told_and_written_alike(found: RunOutcome):
    data = render_result(found, {})
    result = ResultFile.from_json(json.loads(data), RUN)
    assert result is not None
    back = result.outcome
    assert back is not None
    assert shown(back) == shown(found)
    assert json.loads(render_result(back, {})) == json.loads(data)


def changed(**change: Any) -> RunOutcome:
    """What is read of a result.json in which something is another thing."""
    document = json.loads(render_result(OUTCOMES[0], {}))
    result = ResultFile.from_json({**document, **change}, RUN)
    assert result is not None
    assert result.outcome is not None
    return result.outcome


def test_a_cause_of_another_version_keeps_its_text():
    cause = {"type": "Bored", "text": "was bored", "of": "waiting"}
    found = changed(root_cause={"rank": 1, "cause": cause, "new": {"field": 1}})
    assert found.root_cause is not None
    assert found.root_cause.cause == UnknownCause("Bored", "was bored")
    assert any("rank 1" in line.text and "was bored" in line.text for line in shown(found))
    document = json.loads(render_result(found, {}))
    assert document["root_cause"]["cause"] == {"type": "Bored", "text": "was bored"}
    # one of ours that lacks what it must have
    found = changed(root_cause={"rank": 1, "cause": {"type": "ExitedNonZero", "text": "exited"}})
    assert found.root_cause is not None
    assert found.root_cause.cause == UnknownCause("ExitedNonZero", "exited")


def test_fields_that_an_older_version_did_not_write_are_at_their_defaults():
    document = json.loads(render_result(OUTCOMES[0], {}))
    for name in ("importing", "look", "host", "build", "plan_hash", "limit"):
        document.pop(name, None)
    for worker in document["attempts"][0]["workers"]:
        for name in ("stacks", "max_rss", "cpu_seconds"):
            worker.pop(name)
    result = ResultFile.from_json(document, RUN)
    assert result is not None
    assert result.outcome is not None
    assert result.outcome.importing == ()
    assert shown(result.outcome) == shown(OUTCOMES[0])


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        ({"fate": "evaporated"}, Lost("unknown")),
        ({"fate": "lost", "why": "moon"}, Lost("unknown")),
        ({"fate": "ended", "exitcode": None}, Lost("unknown")),
        ({"fate": "failed"}, Lost("unknown")),
        ({"fate": "not_started"}, NotStarted()),
    ],
)
def test_a_fate_that_is_not_known_is_said_to_be(fate: dict[str, Any], expected: Fate):
    workers = [{"rank": 0, "local_rank": 0}, {"rank": 1, **fate}, {"no": "rank"}, 7]
    found = changed(attempts=[{"attempt": 0, "state": "failed", "workers": workers}, {}, None])
    (only,) = found.attempts
    assert [worker.rank for worker in only.workers] == [0, 1]
    assert only.workers[1].fate == expected
    assert shown(found)


def test_what_is_of_another_kind_is_left_out():
    found = changed(
        signal="SIGNOTHING",
        limit={"type": "Raised", "text": "", "message": "m", "exitcode": 1},
        return_values={"x": 1, "3": {"path": "p", "value": [1]}},
        started=5,
        run_id=None,
        error=7,
        root_cause=[1],
    )
    assert (found.signum, found.limit, found.run_id, found.error) == (None, None, "", "")
    assert (found.started_ns, found.root_cause) == (0, None)
    assert found.return_values == {3: ReturnValue(f"{RUN}/p", 0, "", "[1]")}


@pytest.mark.parametrize(
    "change", [{"attempts": 5}, {"exit_code": "three"}, {"exit_code": True}, {"state": None}]
)
def test_what_does_not_say_how_a_run_ended_is_not_understood(change: dict[str, Any]):
    document = json.loads(render_result(OUTCOMES[0], {}))
    result = ResultFile.from_json({**document, **change}, RUN)
    assert result is not None
    assert result.outcome is None
    assert result.root_cause == "rank 1: raised ValueError: no"
    for other in ({}, [], None, {"state": "failed", "exit_code": 3}):
        assert ResultFile.from_json(other, RUN) is None
