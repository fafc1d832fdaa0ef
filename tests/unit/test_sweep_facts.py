"""What a page tells of a sweep, from whatever files it has left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lllaunch.pages.sweep_facts import (
    SweepFacts,
    SweepJob,
    cause_key,
    common_overrides,
    failure_groups,
    read_sweep_facts,
)
from lllaunch.pages.sweep_page import sweep_page
from lllaunch.results.cases import Case, Log
from lllaunch.results.store import look
from lllaunch.sweep.directory import SweepDirectory
from lllaunch.sweep.history import SweepHistory, summary_of, write_summary
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    OverRecord,
    PlannedRecord,
    Record,
    Result,
    Resumed,
    Skipped,
    StartedRecord,
    encode,
    read_journal,
)
from lllaunch.sweep.pool import Lease

S = 10**9
T0 = 1_700_000_000 * S
SECRET = "hunter2hunter2"


class Written:
    """A sweep's directory, made of records."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.time = T0

    def add(self, *records: Record) -> None:
        with (self.place / "sweep.jsonl").open("ab") as file:
            for record in records:
                file.write(encode(record, self.time))
                self.time += S

    def over(self, code: int) -> None:
        self.add(OverRecord(code))
        history = SweepHistory(read_journal(str(self.place / "sweep.jsonl")))
        write_summary(str(self.place / "sweep.json"), summary_of(history, self.time))

    def facts(self, hide: Any = str) -> SweepFacts:
        found = look(str(self.place))
        assert found is not None
        facts = read_sweep_facts(found, hide=hide)
        # whatever there is, there is a page of it
        assert sweep_page(facts, "0.1").startswith("<!DOCTYPE html>")
        return facts


@pytest.fixture
def written(tmp_path: Path) -> Written:
    made = Written(tmp_path / "sweep")
    made.place.mkdir()
    slots = Lease(("0", "1"), (0,))
    made.add(Header("id", "0.1", ("x=0,1,2", "y=1"), direction="minimize", slots=slots))
    made.add(*(ComposedRecord(job, (f"x={job}", "y=1"), str(job), "f") for job in range(4)))
    return made


def ended(job: int, state: str = "succeeded", why: str = "", value: object = None) -> EndedRecord:
    code = 0 if state == "succeeded" else 3
    text = None if value is None else json.dumps(value)
    return EndedRecord(job, 0, Result(state, code, why, 2.0, text))


def started(job: int, gpu: str = "0") -> StartedRecord:
    return StartedRecord(job, 0, Lease((gpu,)))


def states(facts: SweepFacts) -> list[str]:
    return [job.state for job in facts.jobs]


def test_a_sweep_that_is_over(written: Written) -> None:
    written.add(started(0), ended(0, value=0.5), started(1), ended(1, "failed", "rank 0: no"))
    written.add(started(2, "1"), ended(2, value=0.25), started(3), ended(3, value="a text"))
    written.over(6)
    facts = written.facts()
    assert (facts.entry.state, facts.entry.exit_code) == ("failed", 6)
    assert states(facts) == ["succeeded", "failed", "succeeded", "succeeded"]
    assert [job.objective for job in facts.jobs] == [0.5, None, 0.25, None]
    assert facts.jobs[3].returned == "a text"
    assert facts.objectives.best is not None
    assert facts.objectives.best.job == 2
    assert facts.objectives.best.name == "x=2"
    assert facts.common == ("y=1",)
    assert [each.name for each in facts.parameters] == ["x"]
    assert [(group.cause, group.jobs) for group in facts.failures] == [("rank 0: no", (1,))]
    assert len(facts.timeline.tries) == 4
    assert (facts.direction, facts.version, facts.command) == (
        "minimize",
        "0.1",
        ("x=0,1,2", "y=1"),
    )
    # since the beginning, and it ended when its end was written down
    assert facts.jobs[2].ended_ns > facts.jobs[0].ended_ns > T0


def test_a_sweep_that_goes_on_tells_what_runs_and_what_waits(written: Written) -> None:
    written.add(started(0), ended(0, value=0.5), started(1))
    lock = SweepDirectory.claim(str(written.place))
    try:
        facts = written.facts()
    finally:
        lock.release()
    assert facts.entry.state == "running"
    assert states(facts) == ["succeeded", "running", "waiting", "waiting"]
    assert facts.failures == ()
    assert facts.timeline.tries[-1].fate == "running"


def test_jobs_that_are_not_composed_yet_are_counted(tmp_path: Path) -> None:
    made = Written(tmp_path)
    made.add(Header("id", "0.1", ("x=range(9)",)), PlannedRecord(9))
    made.add(ComposedRecord(0, ("x=0",), "0", "f"))
    made.add(started(0), ended(0, value=1.0))
    assert "1 of 9 jobs succeeded, 8 not run" in sweep_page(made.facts(), "0.1")
    lock = SweepDirectory.claim(str(tmp_path))
    try:
        assert "1 of 9 jobs succeeded, 8 waiting" in sweep_page(made.facts(), "0.1")
    finally:
        lock.release()


def test_a_sweep_whose_launcher_was_killed(written: Written) -> None:
    written.add(started(0), ended(0, value=0.5), started(1))
    facts = written.facts()
    assert facts.entry.state == "died"
    assert states(facts) == ["succeeded", "died", "not_run", "not_run"]
    assert [group.jobs for group in facts.failures] == [(1,)]


def test_a_sweep_that_was_interrupted_and_resumed(written: Written) -> None:
    written.add(
        started(0), ended(0, value=0.5), started(1), Skipped(2, "cancelled"), OverRecord(130)
    )
    written.add(Resumed("0.2", ("x=0,1,2",), "maximize"))
    again = (ComposedRecord(1, ("x=1", "y=1"), "1", "f"), started(1), ended(1, value=3.0))
    written.add(*again, started(2), ended(2, value=1))
    written.over(0)
    facts = written.facts()
    assert (facts.resumes, facts.direction) == (1, "maximize")
    assert facts.jobs[1].tries == 2
    assert facts.objectives.best is not None
    assert facts.objectives.best.job == 1
    assert len(facts.timeline.resumed_ns) == 1


def test_torn_files_leave_what_there_is(written: Written) -> None:
    written.add(started(0), ended(0, value=0.5))
    written.over(0)
    with (written.place / "sweep.jsonl").open("ab") as file:
        file.write(b'{"time_ns": 17, "type": "started", "job"')
    assert written.facts().jobs[0].objective == 0.5
    (written.place / "sweep.json").write_text('{"version": 7, "jobs": [{"job": 0}]}')
    facts = written.facts()
    assert "version 7" in facts.problem
    (written.place / "sweep.json").write_text("[")
    (written.place / "sweep.jsonl").write_bytes(b"\0\xff\n{}\n")
    assert written.facts().jobs == ()


@pytest.mark.parametrize("junk", [None, 3, "x" * 5000, [{}], {"a": [1]}, True, -1e300])
def test_a_sweep_json_of_any_make_has_a_page(written: Written, junk: object) -> None:
    written.add(started(0), ended(0, value=0.5), started(1), ended(1, "failed", "why"))
    written.over(6)
    path = written.place / "sweep.json"
    document = json.loads(path.read_text())
    for name in document:
        path.write_text(json.dumps({**document, name: junk}))
        written.facts()
    for name in document["jobs"][0]:
        jobs = [{**job, name: junk} for job in document["jobs"]]
        path.write_text(json.dumps({**document, "jobs": jobs}))
        written.facts()


def test_secrets_are_taken_out_of_all_that_people_and_workers_wrote(written: Written) -> None:
    def hide(text: str) -> str:
        return text.replace(SECRET, "***")

    secret = (f"name={SECRET}", "x=9", f"env.API_TOKEN={SECRET}other")
    written.add(ComposedRecord(4, secret, "4", "f"))
    written.add(started(4), ended(4, "failed", f"rank 0: {SECRET}"), started(0))
    written.add(ended(0, value=SECRET))
    place = written.place / "4"
    place.mkdir()
    (place / "result.json").write_text(
        json.dumps({"version": 1, "state": "failed", "error": f"no {SECRET}", "exit_code": 3})
    )
    written.over(6)
    found = look(str(written.place))
    assert found is not None
    facts = read_sweep_facts(found, hide=hide)
    page = sweep_page(facts, "0.1")
    assert SECRET not in page
    assert SECRET not in repr(facts.jobs) + repr(facts.timeline) + repr(facts.failures)
    assert "rank 0: ***" in page


def test_what_jobs_share_is_told_once() -> None:
    assert common_overrides([("a=1", "b=2", "c=3"), ("c=3", "a=1", "b=4")]) == ("a=1", "c=3")
    assert common_overrides([("a=1",)]) == ()
    assert common_overrides([]) == ()


# Failures


def failing(number: int, cause: str, state: str = "failed") -> SweepJob:
    return SweepJob(number, state, cause=cause)


def test_failures_of_one_cause_stand_together_and_the_most_first() -> None:
    jobs = [
        failing(0, "rank 1: OSError: no space left on port 29511"),
        failing(1, "rank 0: raised ValueError: bad seed 3"),
        SweepJob(2, "succeeded"),
        failing(3, "rank 7: raised ValueError: bad seed 18"),
        failing(4, "", "signalled"),
        failing(5, "ranks 0-3, 7: raised ValueError: bad seed 1e-5"),
    ]
    case = Case("x", "failed", job=3, logs=(Log("stderr", "3/stderr.log", ("why",)),))
    cases = {1: Case("y", "failed", job=1), 3: case}
    first, *others = failure_groups(jobs, cases)
    # that of which something is known is the example
    assert first.jobs == (1, 3, 5)
    assert first.example is case
    # it was another rank in each of them
    assert first.cause == "raised ValueError: bad seed 18"
    (same,) = failure_groups([failing(number, "rank 3: exited") for number in (1, 3)], {})
    assert same.cause == "rank 3: exited"
    assert [group.cause for group in others] == [jobs[0].cause, "ended by a signal"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("rank 0: SIGKILL", "rank 12: SIGKILL", True),
        ("CUDA error at 0x7f31", "CUDA error at 0x9a00", True),
        ("loss is 1e9 in step 3", "loss is 2.5 in step 900", True),
        ("ValueError: a", "ValueError: b", False),
        ("rank 0: ValueError: a", "ValueError: a", True),
    ],
)
def test_causes_that_differ_in_numbers_alone_are_one(one: str, other: str, same: bool) -> None:
    assert (cause_key(one) == cause_key(other)) == same
