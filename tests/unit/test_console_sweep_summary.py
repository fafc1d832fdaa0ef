"""What is shown when a sweep is over, as its user reads it, from what sweep.json holds."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from textwrap import dedent
from typing import Any

import pytest

from lllaunch.console.summary import (
    Setting,
    resume_override,
    summary_rows,
)
from lllaunch.console.table import objective_text, painted
from lllaunch.sweep.history import SweepHistory, SweepResult, summary_of
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    OverRecord,
    Result,
    Skipped,
    StartedRecord,
)
from lllaunch.sweep.objective import Direction
from lllaunch.sweep.policy import Summary

S = 1_000_000_000
SETTING = Setting("/home/ada/multirun/1", "/home/ada", total=3, common={"+exp=a"})


def ended(job: int, state: str, code: int, why: str = "", value: str | None = None) -> EndedRecord:
    return EndedRecord(job, 0, Result(state, code, why, 12.5, value))


def document(*records: Any, jobs: int = 3, code: int | None = 6) -> SweepResult:
    """What sweep.json says, made from a journal."""
    history = SweepHistory()
    told: list[Any] = [Header("id", "0.1.0")]
    for number in range(jobs):
        told.append(ComposedRecord(number, ("+exp=a", f"params.lr={number + 1}"), str(number), "f"))
    tries = [StartedRecord(record.job) for record in records if isinstance(record, EndedRecord)]
    for record in [*told, *tries, *records, *([] if code is None else [OverRecord(code)])]:
        history.add(S, record)
    return summary_of(history, 201 * S)


def shown(found: SweepResult, setting: Setting = SETTING) -> str:
    rows = summary_rows(found, setting)
    return "".join(f"{''.join(part.text for part in row)}\n" for row in rows)


def test_all_jobs_succeeded() -> None:
    records = [ended(number, "succeeded", 0) for number in range(3)]
    assert shown(document(*records, code=0)) == dedent("""
          job  overrides  state      tries  time
            0  lr=1       succeeded      1  12 s
            1  lr=2       succeeded      1  12 s
            2  lr=3       succeeded      1  12 s

        lllaunch: 3 of 3 jobs succeeded in 3 min 20 s; multirun/1/sweep.json
    """)


def test_failures_are_explained_and_how_to_go_on() -> None:
    records = [
        ended(0, "failed", 3, "rank 1: raised ValueError: no"),
        ended(1, "succeeded", 0, value="0.25"),
    ]
    found = shown(document(*records), SETTING._replace(total=4))
    verdict = "1 of 4 jobs succeeded, 1 failed, 2 not run in 3 min 20 s (exit code 6)"
    assert found.split("\n") == [
        "",
        "  job  overrides  state      tries  time  objective",
        "    0  lr=1       failed         1  12 s",
        "    1  lr=2       succeeded      1  12 s       0.25",
        "  and 2 jobs that were not run",
        "",
        "  job 0 (lr=1) failed: exit code 3: rank 1: raised ValueError: no",
        "    logs in multirun/1/0",
        "",
        f"lllaunch: {verdict}; multirun/1/sweep.json",
        "lllaunch: to run the rest, add to the same command: hydra.launcher.resume=multirun/1",
        "",
    ]


def test_jobs_that_failed_of_the_same_are_told_together() -> None:
    why = "rank 0: raised ValueError: no"
    records = [ended(number, "failed", 3, why) for number in range(5)]
    found = shown(document(*records, ended(5, "signalled", 137), jobs=6))
    logs = ", ".join(f"multirun/1/{number}" for number in range(3))
    assert f"  jobs 0-4 failed: exit code 3: {why}\n    logs in {logs} and 2 more\n" in found
    assert "  job 5 (lr=6) failed: SIGKILL (exit code 137)\n" in found
    assert "0 of 6 jobs succeeded, 6 failed" in found


def test_of_a_large_sweep_the_failures_are_shown() -> None:
    records = [ended(number, "succeeded", 0) for number in range(99)]
    found = shown(document(*records, ended(99, "failed", 3), jobs=100))
    assert found.count("succeeded") == 1
    assert "\n   99  lr=100     failed      1  12 s\n" in found
    few = shown(document(*(ended(n, "failed", 3, f"no {n}") for n in range(60)), jobs=60))
    assert "and 10 more failed, see sweep.json\n" in few
    assert "and 48 more jobs for other reasons, see sweep.json\n" in few


def test_what_the_sweep_counted_is_what_is_told() -> None:
    counts = Summary(succeeded=1, failed=0, cancelled=1, not_run=7, skipped=2)
    records = [ended(0, "succeeded", 0), ended(1, "signalled", 130)]
    found = shown(document(*records, code=130), SETTING._replace(counts=counts, cancelled={1}))
    assert "    1  lr=2       cancelled      1  12 s\n" in found
    assert "failed" not in found
    told = "3 of 11 jobs succeeded, 1 cancelled, 7 not run in 3 min 20 s (exit code 130)"
    assert told in found


def test_a_job_whose_end_is_not_known_is_no_success() -> None:
    found = shown(document(StartedRecord(0), Skipped(2, "no more jobs are started"), code=None))
    assert "  job 0 (lr=1) failed: its end is not known\n" in found
    assert "0 of 3 jobs succeeded, 1 failed, 2 not run in" in found


def test_nothing_was_even_composed() -> None:
    found = shown(document(jobs=0, code=130))
    assert found.startswith("\nlllaunch: 0 of 3 jobs succeeded, 3 not run in 3 min 20 s (exit ")


def test_the_lowest_and_the_highest_objective_are_named() -> None:
    values = ["0.5", "-3", "1e300"]
    records = [ended(job, "succeeded", 0, value=value) for job, value in enumerate(values)]
    found = shown(document(*records, code=0))
    told = "lllaunch: objective: lowest -3 of job 1 (lr=2), highest 1e+300 of job 2 (lr=3)\n"
    assert told in found


@pytest.mark.parametrize(
    ("direction", "told"),
    [("minimize", "best -3 of job 1 (lr=2)"), ("maximize", "best 0.5 of job 0 (lr=1)")],
)
def test_with_a_direction_the_best_objective_is_named(direction: Direction, told: str) -> None:
    records = [ended(job, "succeeded", 0, value=value) for job, value in enumerate(["0.5", "-3"])]
    found = shown(replace(document(*records, code=0), direction=direction))
    assert f"lllaunch: objective: {told}\n" in found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.123456789, "0.123457"),
        (7, "7"),
        ("good", "good"),
        ([0.5, 1], "[0.5, 1]"),
        (True, "true"),
        ("\x1b[2J", ""),
        ("x" * 25, ""),
        (None, ""),
    ],
)
def test_what_is_short_is_shown(value: object, expected: str) -> None:
    assert objective_text(value) == expected


def test_only_different_numbers_of_jobs_that_succeeded_are_compared() -> None:
    def compared(*values: object, last: str = "succeeded") -> bool:
        states = [*["succeeded"] * (len(values) - 1), last]
        records = [
            ended(job, state, 0, value=None if value is None else json.dumps(value))
            for job, (value, state) in enumerate(zip(values, states, strict=True))
        ]
        return "objective: " in shown(document(*records, jobs=len(values)))

    assert compared(3, -1.5, 7)
    assert not compared(1, 1.0)
    assert not compared("a", [1], True, 1, None, 10**400)
    assert not compared(1, 0, last="failed")


def test_the_table_fits_the_terminal_where_it_can() -> None:
    found = document(ended(0, "succeeded", 0))
    first, *others = found.jobs
    long = first._replace(overrides=("name=" + "漢" * 40,))
    found = replace(found, jobs=(long, *others))
    wide, narrow = shown(found), shown(found, SETTING._replace(columns=50))
    assert max(len(line) for line in narrow.split("\n")[1:5]) < 50
    assert "漢..." in narrow
    assert narrow.split("\n")[2].count("漢") < wide.split("\n")[2].count("漢") < 40


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("multirun/1-2_3", "hydra.launcher.resume=multirun/1-2_3"),
        ("a b", """'hydra.launcher.resume='"'"'a b'"'"''"""),
    ],
)
def test_the_resume_can_be_pasted_into_a_shell(directory: str, expected: str) -> None:
    assert resume_override(directory) == expected


def test_what_is_shown_has_no_colours_elsewhere_than_on_a_terminal() -> None:
    rows = summary_rows(document(ended(0, "failed", 3)), SETTING)
    assert "\x1b" not in "".join(painted(rows, io.StringIO()))
