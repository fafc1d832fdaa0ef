"""What the journal and the results of jobs amount to: histories, results, sweep.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lllaunch.errors import OutputError
from lllaunch.run.events import isoformat
from lllaunch.sweep.history import (
    RETURN_LIMIT,
    JobHistory,
    SweepHistory,
    SweepResult,
    read_result,
    read_results,
    render_summary,
    result_of,
    summary_of,
    write_summary,
)
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    JournalEntry,
    OverRecord,
    Record,
    Result,
    Resumed,
    Skipped,
    StartedRecord,
)
from lllaunch.sweep.pool import Lease

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND
HEADER = Header("day-time", "0.1.0", ("lr=1,2",))
LEASE = Lease(("0",), (1, 2))
GOOD = Result("succeeded", 0, "", 2.5, "0.25")
BAD = Result("failed", 3, "rank 1: ValueError: no", 1.0)


def composed(job: int) -> ComposedRecord:
    return ComposedRecord(job, (f"lr={job}",), str(job), "f" * 64, {"lr": job})


def history(*records: Record) -> SweepHistory:
    return SweepHistory(JournalEntry(T0 + i * SECOND, record) for i, record in enumerate(records))


def test_a_job_goes_from_composed_to_its_end() -> None:
    known = history(HEADER)
    seen = []
    for record in (
        composed(0),
        StartedRecord(0, 0, LEASE),
        EndedRecord(0, 0, BAD),
        StartedRecord(0, 1, LEASE),
    ):
        known.add(T0 + SECOND, record)
        seen.append((known.jobs[0].state, known.jobs[0].tries, known.jobs[0].result))
    assert seen == [
        ("composed", 0, None),
        ("started", 1, None),
        ("failed", 1, BAD),
        ("started", 2, None),
    ]
    known.add(T0 + 9 * SECOND, EndedRecord(0, 1, GOOD))
    assert known.jobs[0] == JobHistory(
        job=0,
        overrides=("lr=0",),
        directory="0",
        fingerprint="f" * 64,
        state="succeeded",
        retry=1,
        tries=2,
        lease=LEASE,
        composed_ns=T0 + SECOND,
        started_ns=T0 + SECOND,
        ended_ns=T0 + 9 * SECOND,
        result=GOOD,
    )


def test_a_job_composed_again_begins_anew_but_its_tries_count() -> None:
    known = history(HEADER, composed(0), StartedRecord(0), EndedRecord(0, 0, BAD), Resumed("0.1.0"))
    again = composed(0)._replace(fingerprint="e" * 64)
    known.add(T0, again)
    job = known.jobs[0]
    assert (job.state, job.tries, job.result, job.fingerprint) == ("composed", 1, None, "e" * 64)
    assert known.resumes == 1


def test_what_a_launcher_says_of_the_whole_sweep_lasts_until_another_says_more() -> None:
    first, second = Lease(("0", "1"), (0, 1)), Lease(("1", "2"), (1, 5))
    known = history(HEADER._replace(direction="minimize", slots=first), Resumed("0.1.0"))
    assert (known.direction, known.slots) == ("minimize", first)
    known.add(T0, Resumed("0.2.0", (), "maximize", second))
    assert (known.direction, known.slots) == ("maximize", Lease(("0", "1", "2"), (0, 1, 5)))
    document = summary_of(known, T0).to_json()
    assert document["direction"] == "maximize"
    assert SweepResult.from_json(document).direction == "maximize"
    # of one that was written before there was such a field
    del document["direction"]
    assert SweepResult.from_json(document).direction is None


@pytest.mark.parametrize(
    ("state", "value", "expected"),
    [
        ("succeeded", "0.5", 0.5),
        ("succeeded", "3", 3.0),
        ("succeeded", "true", None),
        ("succeeded", "NaN", None),
        ("succeeded", '"0.5"', None),
        ("succeeded", None, None),
        ("failed", "0.5", None),
    ],
)
def test_the_objective_is_a_number_of_a_job_that_succeeded(
    state: str, value: str | None, expected: float | None
) -> None:
    result = Result(state, return_value=value)
    assert result.objective == expected
    assert JobHistory(0, result=result).objective == expected
    assert JobHistory(0).objective is None


def test_skipping_tells_why_and_does_not_hide_a_failure() -> None:
    known = history(
        HEADER,
        composed(0),
        StartedRecord(0),
        EndedRecord(0, 0, BAD),
        Skipped(0, "stop"),
        composed(1),
    )
    known.add(T0, Skipped(1, "stop"))
    assert [(job.state, job.reason) for job in known.jobs.values()] == [
        ("failed", "stop"),
        ("skipped", "stop"),
    ]


def test_a_sweep_is_over_until_it_goes_on() -> None:
    known = history(HEADER, composed(0), OverRecord(6))
    assert known.exit_code == 6
    known.add(T0, Resumed("0.1.0"))
    assert known.exit_code is None


def test_a_launcher_of_several_batches_ends_as_the_last_bad_one() -> None:
    def codes(*records: Record) -> list[int | None]:
        known, found = history(HEADER), []
        for record in records:
            known.add(T0, record)
            found.append(known.exit_code)
        return found

    batches = (composed(0), OverRecord(0), composed(1), OverRecord(6), composed(2), OverRecord(0))
    assert codes(*batches) == [None, 0, None, 6, None, 6]
    assert codes(*batches, Resumed("0.1.0"), OverRecord(0))[-1] == 0
    assert codes(OverRecord(6), composed(0), OverRecord(130))[-1] == 130
    ending = summary_of(history(HEADER, OverRecord(6)), T0)
    assert ending.exit_code == 6


def test_sweep_json_counts_and_lists_every_job() -> None:
    known = history(
        HEADER,
        *(composed(1), StartedRecord(1), EndedRecord(1, 0, BAD), Skipped(1, "stop")),
        *(
            composed(0),
            StartedRecord(0),
            EndedRecord(0, 0, BAD),
            StartedRecord(0, 1),
            EndedRecord(0, 1, GOOD),
        ),
        *(composed(2), StartedRecord(2)),
        *(composed(3), Skipped(3, "stop")),
        OverRecord(6),
    )
    document = json.loads(render_summary(summary_of(known, T0 + 20 * SECOND)))
    found = dict(document)
    jobs = found.pop("jobs")
    assert found == {
        "version": 1,
        "sweep": "day-time",
        "lllaunch": "0.1.0",
        "command": ["lr=1,2"],
        "exit_code": 6,
        "started": isoformat(T0),
        "ended": isoformat(T0 + 20 * SECOND),
        "seconds": 20.0,
        "resumes": 0,
        "direction": None,
        "counts": {"failed": 1, "skipped": 1, "started": 1, "succeeded": 1},
    }
    assert [job["job"] for job in jobs] == [0, 1, 2, 3]
    assert jobs[0] == {
        "job": 0,
        "overrides": ["lr=0"],
        "directory": "0",
        "fingerprint": "f" * 64,
        "state": "succeeded",
        "tries": 2,
        "started": isoformat(T0 + 8 * SECOND),
        "ended": isoformat(T0 + 9 * SECOND),
        "exit_code": 0,
        "root_cause": "",
        "seconds": 2.5,
        "reason": None,
        "return_value": 0.25,
    }
    states = [(job["state"], job["exit_code"], job["reason"]) for job in jobs[1:]]
    assert states == [("failed", 3, "stop"), ("started", None, None), ("skipped", None, "stop")]
    assert SweepResult.from_json(document).to_json() == document
    assert jobs[1]["root_cause"] == "rank 1: ValueError: no"
    assert all("return_value" not in job for job in jobs[1:])


def test_sweep_json_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    path.write_text("old")
    document = summary_of(history(HEADER), T0)
    write_summary(str(path), document)
    assert json.loads(path.read_text())["jobs"] == []
    with pytest.raises(OutputError) as caught:
        write_summary(str(tmp_path / "no" / "sweep.json"), document)
    assert caught.value.path == str(tmp_path / "no" / "sweep.json")


def result_json(directory: Path, **fields: Any) -> Path:
    directory.mkdir(exist_ok=True)
    whole = {
        "version": 1,
        "state": "succeeded",
        "exit_code": 0,
        "signal": None,
        "limit": None,
        "error": None,
        "ended": isoformat(T0),
        "seconds": 2.5,
        "root_cause": None,
        "return_values": {},
    }
    (directory / "result.json").write_text(json.dumps(whole | fields))
    return directory


def test_a_result_is_read_in_short(tmp_path: Path) -> None:
    value = {"path": "attempt_0/0/return.json", "size": 9, "type": "json", "value": {"a": [1.0]}}
    directory = result_json(tmp_path / "0", return_values={"0": value, "1": {"value": 7}})
    assert result_of(read_result(str(directory))) == Result(
        *("succeeded", 0, "", 2.5, '{"a": [1.0]}')
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"root_cause": {"rank": 1, "cause": {"text": "ValueError: a\nb"}}},
            "rank 1: ValueError: a",
        ),
        ({"root_cause": {"rank": None, "cause": {"text": "the spawner died"}}}, "the spawner died"),
        ({"limit": {"text": "took longer than 1 h"}}, "took longer than 1 h"),
        ({"error": "\n'/x': No space left\nmore"}, "'/x': No space left"),
        ({"signal": "SIGTERM"}, "SIGTERM"),
        ({"error": "x" * 1000}, "x" * 297 + "..."),
    ],
)
def test_the_root_cause_is_one_line(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    directory = result_json(tmp_path / "0", state="failed", exit_code=3, **fields)
    result = result_of(read_result(str(directory)))
    assert result is not None
    assert (result.state, result.exit_code, result.root_cause) == ("failed", 3, text)


def test_a_long_return_value_stays_in_result_json(tmp_path: Path) -> None:
    value = {"value": "x" * RETURN_LIMIT}
    directory = result_json(tmp_path / "0", return_values={"0": value})
    result = result_of(read_result(str(directory)))
    assert result is not None
    assert result.return_value is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"state": 3}', '{"state": "succeeded"}', "[" * 9999]
)
def test_what_is_no_result_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    assert result_of(read_result(str(tmp_path))) is None


def test_results_are_read_where_they_are(tmp_path: Path) -> None:
    result_json(tmp_path / "0")
    (tmp_path / "far").mkdir()
    result_json(tmp_path / "far" / "away", state="failed", exit_code=3)
    (tmp_path / "2").mkdir()
    jobs = [
        JobHistory(0, directory="0", started_ns=T0 - 1),
        JobHistory(1, directory=str(tmp_path / "far" / "away"), started_ns=T0 - 1),
        JobHistory(2, directory="2", started_ns=T0 - 1),
        JobHistory(3, directory="3", started_ns=T0 - 1),
        JobHistory(4, directory="0/result.json", started_ns=T0 - 1),
    ]
    found = read_results(str(tmp_path), jobs)
    assert {number: result.state for number, result in found.items()} == {
        0: "succeeded",
        1: "failed",
    }


def test_the_result_of_a_job_that_was_never_started_is_somebody_elses(tmp_path: Path) -> None:
    for name in "012":
        result_json(tmp_path / name, started=isoformat(T0 - SECOND))
    jobs = [
        JobHistory(0, directory="0"),
        JobHistory(1, directory="1", started_ns=T0),
        JobHistory(2, directory="2", composed_ns=T0),
    ]
    assert set(read_results(str(tmp_path), jobs)) == {1}


def test_a_result_counts_though_the_journal_has_lost_that_the_job_was_started(
    tmp_path: Path,
) -> None:
    result_json(tmp_path / "0", started=isoformat(T0 + SECOND))
    result_json(tmp_path / "1")  # does not say when the run began
    known = history(HEADER)
    for number in (0, 1):
        known.add(T0, composed(number))
    found = read_results(str(tmp_path), known.jobs.values())
    assert {number: result.state for number, result in found.items()} == {0: "succeeded"}


def test_a_result_counts_though_the_clock_was_set_back_while_the_job_ran(tmp_path: Path) -> None:
    result_json(tmp_path / "0")  # it ended at T0, says its result.json
    jobs = [JobHistory(0, directory="0", started_ns=T0 + 3600 * SECOND)]
    assert read_results(str(tmp_path), jobs)[0].state == "succeeded"


def test_of_jobs_in_one_directory_the_last_one_has_the_result(tmp_path: Path) -> None:
    result_json(tmp_path / "one")
    result_json(tmp_path)  # is of no job
    jobs = [
        JobHistory(0, directory="one", started_ns=T0 - 1 * SECOND),
        JobHistory(1, directory="one", started_ns=T0 - 3 * SECOND, result=BAD),
        JobHistory(2, directory="one", started_ns=T0 - 2 * SECOND),
        JobHistory(3, directory="", started_ns=T0 - 1 * SECOND, result=GOOD),
        JobHistory(4, directory="", started_ns=T0 - 1 * SECOND),
    ]
    found = read_results(str(tmp_path), jobs)
    assert {number: result.state for number, result in found.items()} == {
        0: "succeeded",
        1: "failed",
        3: "succeeded",
    }


def test_a_result_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(OutputError) as caught:
        read_result(str(tmp_path))
    assert caught.value.path == str(tmp_path / "result.json")


def test_jobs_that_the_sweep_did_not_come_to_are_in_its_summary() -> None:
    known = history(
        HEADER, composed(0), StartedRecord(0, 0, LEASE), EndedRecord(0, 0, BAD), OverRecord(6)
    )
    document = summary_of(known, T0 + 9 * SECOND)
    asked: list[int] = []

    def overrides(number: int) -> tuple[str, ...]:
        asked.append(number)
        return (f"lr={number}",)

    whole = document.with_others(range(3), overrides)
    assert asked == [1, 2]  # thousands that it has come to are not looked up
    assert whole.jobs[0] == document.jobs[0]
    assert [(job.job, job.state, job.reason) for job in whole.jobs[1:]] == [
        (1, "skipped", "not_run"),
        (2, "skipped", "not_run"),
    ]
    assert whole.jobs[2].overrides == ("lr=2",)
    assert whole.counts == {"failed": 1, "skipped": 2}
    assert replace(whole, jobs=()) == replace(document, jobs=())
    assert document.with_others([0], overrides) == document
