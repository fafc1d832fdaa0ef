"""The parts of a sweep's launcher that need no process: messages, lines, the journal's records."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lllaunch.sweep.schedule as v
from lllaunch.documents import Fields
from lllaunch.run.result import ResultFile
from lllaunch.sweep import protocol
from lllaunch.sweep.history import believed
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    Journal,
    Record,
    Result,
    Skipped,
    StartedRecord,
    read_journal,
)
from lllaunch.sweep.leases import Leases
from lllaunch.sweep.loop import Sweep
from lllaunch.sweep.machine import SweepMachine
from lllaunch.sweep.policy import SweepPolicy
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.processes import ForkFailed, JobProcess
from lllaunch.sweep.protocol import (
    LONGEST,
    Answer,
    Broken,
    JobPrinted,
    OutputPipe,
    Prepared,
    SpawnerKey,
)
from lllaunch.sweep.session import JobRecords


@pytest.mark.parametrize(
    "answer",
    [
        Broken(2, "why", ("a=1",), "dir"),
        Prepared(),
        Prepared(Need(2, 3), ("a=1", "b=ü"), "dir", "f" * 64, {"a": [1]}),
        Prepared(
            warm=SpawnerKey(("torch", "x"), "/", (("A", None), ("B", "\udcff"))), patience=1.5
        ),
    ],
)
def test_an_answer_survives_the_socket(answer: Answer) -> None:
    got = protocol.decode(json.loads(json.dumps(protocol.encode(answer))))
    assert got == answer
    assert type(got) is type(answer)


def test_the_payload_stays_in_the_job() -> None:
    got = protocol.decode(protocol.encode(Prepared(payload=object())))
    assert got == Prepared()


@pytest.mark.parametrize("lease", [Lease(), Lease(("a", "GPU-1"), (0, 7))])
def test_a_lease_survives_the_socket(lease: Lease) -> None:
    assert protocol.decode_lease(json.loads(json.dumps(protocol.encode_lease(lease)))) == lease


@pytest.fixture
def pipe() -> Iterator[OutputPipe]:
    found = OutputPipe(3, 1)
    yield found
    found.close()


def test_lines_are_told_whole(pipe: OutputPipe) -> None:
    told: list[JobPrinted] = []
    for block in (b"a", b"b\nc\n\nd", b"\r", b"e"):
        os.write(pipe.write_end, block)
        assert pipe.read(told.append)
    assert [one.line for one in told] == [b"ab", b"c", b""]
    # somebody else may still have it open
    pipe.finish(told.append)
    assert told[-1] == JobPrinted(3, 1, b"d\re")
    assert pipe.fileno() == -1


def test_half_a_line_of_who_was_killed_is_not_told(pipe: OutputPipe) -> None:
    told: list[JobPrinted] = []
    os.write(pipe.write_end, b"whole\nha")
    pipe.finish(told.append, cut=True)
    assert [one.line for one in told] == [b"whole"]


def test_the_end_of_a_pipe_closes_it(pipe: OutputPipe) -> None:
    told: list[JobPrinted] = []
    os.write(pipe.write_end, b"rest")
    pipe.close_write_end()
    assert pipe.read(told.append)
    assert not pipe.read(told.append)
    assert pipe.fileno() == -1
    pipe.finish(told.append)
    assert [one.line for one in told] == [b"rest"]


def test_an_endless_line_is_told_in_parts(pipe: OutputPipe) -> None:
    told: list[JobPrinted] = []
    block = bytes(1 << 15)
    for _ in range(LONGEST // len(block)):
        os.write(pipe.write_end, block)
        pipe.read(told.append)
    assert [len(one.line) for one in told] == [LONGEST]


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({}, ""),
        ({"limit": None, "root_cause": None}, ""),
        ({"limit": {"type": "TimedOut"}, "root_cause": {"cause": {"type": "Other"}}}, "TimedOut"),
        ({"root_cause": {"cause": {"type": "OutOfMemory"}}}, "OutOfMemory"),
        ({"root_cause": {"cause": "text"}, "limit": {"type": 3}}, ""),
    ],
)
def test_the_kind_of_a_result(document: dict[str, object], kind: str) -> None:
    assert ResultFile(Fields(document), "/run").cause_type == kind


class Written:
    """JobRecords with a journal in a directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.journal = Journal.create(str(place / "sweep.jsonl"), Header("id", "0"))
        self.writer = JobRecords(self.journal)

    def records(self) -> list[Record]:
        return [entry.record for entry in read_journal(self.journal.path)][1:]

    def result(self, directory: str, **fields: object) -> None:
        (self.place / directory).mkdir()
        text = json.dumps({"ended": "9999", **fields})
        (self.place / directory / "result.json").write_text(text)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    found = Written(tmp_path)
    yield found
    found.journal.close()


def begun(written: Written, directory: str = "", attempt: int = 0) -> JobProcess:
    """A job that the journal takes for one that runs."""
    job = JobProcess(5)
    job.answer = Prepared(Need(1), ("a=1",), directory, "f", {"a": 1})
    job.answered = job.begun = True
    job.lease, job.pid, job.attempt = Lease(("g",)), 77, attempt
    written.writer.starts(job, job.answer)
    return job


def test_a_job_is_composed_and_started_once_an_attempt(written: Written) -> None:
    inside = str(written.place / "5")
    for attempt in (0, 1):
        begun(written, inside, attempt)
    assert written.records() == [
        ComposedRecord(5, ("a=1",), "5", "f", {"a": 1}),
        StartedRecord(5, 0, Lease(("g",)), 77),
        StartedRecord(5, 1, Lease(("g",)), 77),
    ]


def test_a_directory_outside_stays_absolute(written: Written) -> None:
    outside = str(written.place.parent / "elsewhere")
    begun(written, outside)
    composed = written.records()[0]
    assert isinstance(composed, ComposedRecord)
    assert composed.directory == outside


@pytest.mark.parametrize(
    ("code", "state", "cause"),
    [
        (0, "succeeded", None),
        (1, "error", "failure"),
        (2, "error", None),
        (143, "signalled", "signal"),
    ],
)
def test_an_end_without_a_result(
    written: Written, code: int, state: str, cause: str | None
) -> None:
    job = begun(written)
    assert written.writer.ended(job, code) == v.JobEnded(5, code, cause)  # type: ignore[arg-type]
    assert written.records()[-1] == EndedRecord(5, 0, Result(state, code))


def test_an_end_with_a_result(written: Written) -> None:
    job = begun(written, "5")
    written.result("5", state="failed", exit_code=4, limit={"type": "Stalled", "text": "stalled"})
    assert written.writer.ended(job, 4) == v.JobEnded(5, 4, "hang", "stalled")
    assert written.records()[-1] == EndedRecord(5, 0, Result("failed", 4, "stalled"))


@pytest.mark.parametrize(
    ("state", "code", "value", "objective"),
    [("succeeded", 0, 0.25, 0.25), ("succeeded", 0, True, None), ("failed", 3, 0.25, None)],
)
def test_an_end_tells_the_objective(
    written: Written, state: str, code: int, value: object, objective: float | None
) -> None:
    job = begun(written, "5")
    values = {"0": {"value": value}, "1": {"value": 7.0}}
    written.result("5", state=state, exit_code=code, return_values=values)
    end = written.writer.ended(job, code)
    assert end.objective == objective


def test_who_is_killed_after_its_success_has_succeeded(written: Written) -> None:
    job = begun(written, "5")
    written.result("5", state="succeeded", exit_code=0)
    assert written.writer.ended(job, 137) == v.JobEnded(5, 0)


def test_who_is_killed_later_than_its_failure_was_killed(written: Written) -> None:
    job = begun(written, "5")
    written.result("5", state="failed", exit_code=3, error="no")
    assert written.writer.ended(job, 137) == v.JobEnded(5, 137, "signal", "no")
    assert written.records()[-1] == EndedRecord(5, 0, Result("signalled", 137, "no"))


def test_the_result_of_an_earlier_attempt_does_not_count(written: Written) -> None:
    written.result("5", state="succeeded", exit_code=0)
    job = begun(written, "5", attempt=1)
    assert written.writer.ended(job, 1) == v.JobEnded(5, 1, "failure")
    assert written.records()[-1] == EndedRecord(5, 1, Result("error", 1))


def test_a_success_counts_though_the_clock_was_set_back_while_the_job_ran(written: Written) -> None:
    job = begun(written, "5")
    past = "1970-01-01T00:00:00.000000Z"
    written.result("5", state="succeeded", exit_code=0, ended=past)
    assert written.writer.ended(job, 0) == v.JobEnded(5, 0)
    assert written.records()[-1] == EndedRecord(5, 0, Result("succeeded", 0))


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (Broken(2, "wrong\nnow"), v.JobEnded(5, 2, why="wrong\nnow")),
    ],
)
def test_who_cannot_or_need_not_be_composed_again_is_not_tried_again(
    written: Written, answer: Answer, end: v.JobEnded
) -> None:
    job = JobProcess(5)
    job.answer, job.answered = answer, True
    assert written.writer.ended(job, 0) == end
    record = written.records()[-1]
    assert isinstance(record, EndedRecord)
    assert record.result.state == ("error" if end.exit_code else "succeeded")


def test_a_death_while_composed_again_is_a_signal(written: Written) -> None:
    assert written.writer.ended(JobProcess(5), 137) == v.JobEnded(
        5, 137, "signal", "its process ended (exit code 137) while it was composed again"
    )


def test_what_is_settled_before_its_start(written: Written) -> None:
    written.writer.composed(1, Prepared(overrides=("a=1",)))
    written.writer.settled(v.Settle(1, v.JobState.NOT_RUN))
    assert written.records() == [ComposedRecord(1, ("a=1",), "", None), Skipped(1, "not_run")]
    written.writer.composed(2, Prepared(overrides=("a=2",)))
    written.writer.settled(v.Settle(2, v.JobState.FAILED, exit_code=2, why="needs 9 GPUs"))
    assert written.records()[2:] == [
        ComposedRecord(2, ("a=2",), "", None),
        EndedRecord(2, 0, Result("error", 2, "needs 9 GPUs")),
    ]


SUCCEEDED, FAILED = Result("succeeded", 0), Result("failed", 3)


@pytest.mark.parametrize(
    ("exit_code", "result", "expected"),
    [
        (0, SUCCEEDED, 0),
        (3, FAILED, 3),
        # all was done and said before it was killed
        (137, SUCCEEDED, 0),
        (137, FAILED, 137),
        (137, None, 137),
        # what a resume would run again has not succeeded
        (0, None, 1),
        (0, FAILED, 3),
        (0, Result("failed", None), 1),
        (1, SUCCEEDED, 0),
    ],
)
def test_a_job_has_succeeded_if_its_result_says_so(
    exit_code: int, result: Result | None, expected: int
) -> None:
    assert believed(exit_code, result) == expected


def sweep_of_nothing() -> Sweep:
    machine = SweepMachine()
    given = (machine, SweepPolicy(), Leases(machine), None)
    return Sweep(*given, lambda _: Prepared(), lambda *_: 0, lambda _: None, ())


def test_a_sweep_is_for_the_main_thread() -> None:
    sweep = sweep_of_nothing()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            sweep.run()
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(raised) == 1


def test_an_answer_that_was_read_on_the_way_is_not_waited_for() -> None:
    sweep = sweep_of_nothing()
    assert sweep._next_in() is None
    job = sweep._jobs[0] = JobProcess(0)
    job.answered = True
    assert sweep._next_in() == 0
    job.handled = True
    assert sweep._next_in() is None


def test_ticks_bound_the_wait() -> None:
    sweep = sweep_of_nothing()
    sweep._tick_at = 0.0
    assert sweep._next_in() == 0
    sweep._tick_at = sweep._clock() + 60.0
    seconds = sweep._next_in()
    assert seconds is not None
    assert 0 < seconds <= 60


ENVIRONS = st.dictionaries(
    st.sampled_from(["A", "B", "C", "CUDA_VISIBLE_DEVICES"]), st.sampled_from(["", "0", "1"])
)


@given(ENVIRONS, ENVIRONS)
def test_a_key_tells_the_environment_but_for_the_gpus(
    environ: dict[str, str], outer: dict[str, str]
) -> None:
    key = SpawnerKey.of(["m"], "/", environ, outer)
    assert "CUDA_VISIBLE_DEVICES" not in dict(key.changes)
    made = key.environ(outer)
    assert made.pop("CUDA_VISIBLE_DEVICES", None) == outer.get("CUDA_VISIBLE_DEVICES")
    environ.pop("CUDA_VISIBLE_DEVICES", None)
    assert made == environ
    # jobs of one environment have one key
    assert SpawnerKey.of(["m"], "/", key.environ(outer), outer) == key


def test_an_error_names_the_job() -> None:
    assert str(ForkFailed(3, "no")) == "job 3 could not be started: no"
