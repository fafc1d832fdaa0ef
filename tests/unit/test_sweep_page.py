"""The page of a sweep: what stands on it is what is known, from whatever files a sweep has left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.left import SECOND, T0
from support.pages import Seen

from lllaunch.pages.sweep_page import SweepFacts, sweep_page
from lllaunch.results.report import Case, CodeLine
from lllaunch.results.store import ListEntry
from lllaunch.results.sweeps import JobTry, SweepTimeline, SweepView
from lllaunch.results.view import Log
from lllaunch.sweep.history import JobHistory, SweepResult
from lllaunch.sweep.objective import Direction
from lllaunch.sweep.pool import Lease

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=\"alert('2')\"> &amp; \x1b[31m\x00\ud800"
)


TWO = Lease(("0", "1"))


class Page(Seen):
    """A page of a sweep.

    Attributes:
        rows: texts of the cells of each row of each table.
    """

    def __init__(self, page: str) -> None:
        self._found: list[list[tuple[str, str | None]]] = []
        super().__init__(page)
        assert self.open == []
        self.rows = [[text for text, _ in row] for row in self._found]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        if tag == "tr":
            self._found.append(self._rows[-1])


def job(number: int, *overrides: str, cause: str = "", **more: Any) -> JobHistory:
    given = {"state": "succeeded", "seconds": 2.0, "tries": 1, "exit_code": 0, **more}
    value = given.pop("returned", given.pop("objective", None))
    given.setdefault("directory", str(number))
    ended = T0 + (number + 1) * SECOND if given["state"] == "succeeded" else 0
    return JobHistory(
        number,
        overrides,
        started_ns=ended and ended - 2 * SECOND,
        ended_ns=ended,
        root_cause=cause,
        return_value=None if value is None else json.dumps(value),
        **given,
    )


def swept(
    *jobs: JobHistory,
    state: str = "failed",
    cases: Sequence[Case] = (),
    tries: Sequence[JobTry] = (),
    slots: Lease = TWO,
    problem: str = "",
    path: str = "multirun/1",
    **more: Any,
) -> SweepFacts:
    entry = ListEntry("sweep", path, state, exit_code=6, started_ns=T0, seconds=100.0)
    sweep = SweepView(path, SweepResult(jobs, **more))
    timeline = SweepTimeline(T0, T0 + 100 * SECOND, over=True, tries=tuple(tries), slots=slots)
    # what would be read of a journal
    sweep.__dict__.update(timeline=timeline, entry=entry, _state=state)
    return SweepFacts(sweep, {case.job: case for case in cases}, problem=problem)


def grid(**more: Any) -> SweepFacts:
    """Four learning rates on two sizes."""
    jobs = []
    for number in range(8):
        lr, size = (0.1, 0.01, 0.001, 1e-4)[number // 2], ("small", "big")[number % 2]
        overrides = (f"params.lr={lr}", f"model=size_{size}")
        if number == 5:
            why = {"state": "failed", "exit_code": 3, "cause": "rank 0: raised ValueError: no"}
            jobs.append(job(number, *overrides, **why))
        else:
            value = number / 8 + 0.25
            jobs.append(job(number, *overrides, objective=value))
    return swept(*jobs, **more)


def cell(page: Page, number: int, title: str) -> str:
    """What a table says of a job."""
    (head,) = (row for row in page.rows if row[:1] == ["Job"])
    (row,) = (row for row in page.rows if row[:1] == [str(number)])
    return row[head.index(title)]


def test_the_verdict_stands_first() -> None:
    page = Page(sweep_page(grid(direction="minimize", resumes=2), "0.1"))
    start = page.shown.index("Failed")
    assert "7 of 8 jobs succeeded, 1 failed" in page.shown[start : start + 50]
    assert "best 0.25 of job 0 (lr=0.1 model=size_small) · exit code 6" in page.shown
    assert page.shown.index("jobs succeeded") < page.shown.index("What failed")
    assert "Took1 min 40 s" in page.shown
    assert "Resumed2 times" in page.shown
    assert page.tags.count("h1") == page.tags.count("main") == 1
    assert len(page.values("id")) == len({*page.values("id")})
    # without a direction nothing is called best
    text = Page(sweep_page(grid(), "0.1")).shown
    assert "lowest 0.25 of job 0" in text
    assert "highest 1.125 of job 7" in text
    assert "best" not in text.lower()


def test_each_job_has_a_row_with_a_column_for_each_key() -> None:
    page = Page(sweep_page(grid(), "0.1"))
    (head,) = (row for row in page.rows if row[:1] == ["Job"])
    titles = ["lr", "model", "State", "Objective", "Time", "Tries", "Exit", "What happened"]
    assert head == ["Job", *titles]
    assert [row[0] for row in page.rows if row is not head] == [str(number) for number in range(8)]
    assert [cell(page, 3, title) for title in titles] == [
        *("0.01", "size_big", "✓ succeeded", "0.625", "2.0 s", "1", "0", "")
    ]
    assert cell(page, 5, "State") == "✕ failed"
    assert cell(page, 5, "What happened") == "rank 0: raised ValueError: no"
    assert "./3/" in page.values("href")
    elsewhere = Page(sweep_page(grid(), "0.1", "../multi run/1"))
    assert "./../multi%20run/1/3/" in elsewhere.values("href")
    assert "#job-5" in page.values("href")
    assert "job-5" in page.values("id")


@pytest.mark.parametrize(("direction", "best"), [("minimize", 0), ("maximize", 7)])
def test_the_objective_is_drawn_against_each_parameter(direction: Direction, best: int) -> None:
    page = Page(sweep_page(grid(direction=direction), "0.1"))
    # a point for each job in both charts, and one in each legend
    assert page.count("circle", "best") == 2 * 2
    assert page.count("circle", "failed") == 2 * 2
    assert page.count("circle", "point") == 2 * (8 + 2)
    (value,) = {
        title for title in page.titles if title.startswith(f"job {best}: ") and "lr" in title
    }
    assert value == f"job {best}: {best / 8 + 0.25:.6g}, lr={(0.1, 0.0001)[best > 0]}"
    # where numbers span decades steps are factors
    assert all(f">{tick}<" in sweep_page(grid(), "0.1") for tick in ("0.001", "0.01"))


def test_failures_of_one_cause_stand_together_with_the_end_of_a_log() -> None:
    why = {"state": "failed", "exit_code": 3}
    jobs = [
        job(number, f"x={number}", cause=f"rank {number}: bad seed {number}", **why)
        for number in range(5)
    ]
    jobs.append(job(5, "x=5", state="signalled", exit_code=143))
    case = Case(
        *("x=1", "failed", 1),
        explanation=("Why (likely): it was so", "the last words"),
        place=CodeLine("train.py", 12),
        logs=(
            Log("stdout", "1/0/stdout.log", ("not this",)),
            Log("stderr", "1/0/stderr.log", ("the last words",)),
        ),
    )
    text = Page(sweep_page(swept(*jobs, cases=[case]), "0.1")).shown
    assert "6 jobs, 2 causes." in text
    assert "5 jobs: bad seed 1" in text
    assert "1 job: SIGTERM (exit code 143)" in text
    assert "At train.py:12 of job 1." in text
    assert "the last words" in text
    assert "not this" not in text
    assert "Why (likely): it was so" in text


def tried(
    number: int, gpus: Sequence[str], begin: float, end: float, fate: str = "succeeded"
) -> JobTry:
    start, stop = (T0 + int(at * SECOND) for at in (begin, end))
    return JobTry(
        number,
        state="succeeded",
        exit_code=0,
        return_value="0.5",
        started_ns=start,
        lease=Lease(tuple(gpus)),
        end_ns=stop,
        fate=fate,
    )


def test_what_ran_when_on_which_gpu_and_what_was_idle() -> None:
    tries = [tried(0, "0", 0, 50), tried(1, "0", 50, 100, "failed"), tried(2, "1", 0, 25)]
    page = Page(sweep_page(swept(job(0), tries=tries, slots=Lease(("0", "1", "2"))), "0.1"))
    assert "GPUs were in use 42 % of the time" in page.shown
    assert all(f"GPU {gpu}" in page.shown for gpu in range(3))
    assert "job 1: failed after 50 s, 0.5" in page.titles
    # spans, and one in the legend
    assert page.count("rect", "succeeded") == 2 + 1
    assert page.count("rect", "failed") == 1 + 1


def is_safe(page: str) -> None:
    """Whether nothing that is said is obeyed."""
    seen = Page(page)
    assert seen.tags.count("script") == 1
    assert "img" not in seen.tags
    names = {name for name, _ in seen.attributes}
    assert not [name for name in names if name.startswith("on") or name == "style"]
    assert all(link.startswith(("#", "./")) for link in seen.values("href"))
    assert "\x1b" not in page
    assert "\x00" not in page
    page.encode()


def test_whatever_stands_in_overrides_is_text() -> None:
    hostile = [
        job(0, f"x={HOSTILE}", f"{HOSTILE}=1", returned=HOSTILE),
        job(1, f"+y@{HOSTILE}='{HOSTILE}'", objective=2.0, directory="javascript:alert(1)"),
        job(2, "x=1", state="failed", cause=HOSTILE, directory=f"{HOSTILE}\udcff"),
    ]
    logs = (Log("stderr", HOSTILE, (HOSTILE,)),)
    case = Case(HOSTILE, "failed", 2, message=HOSTILE, explanation=(HOSTILE,), logs=logs)
    facts = swept(
        *hostile,
        cases=[case],
        tries=[tried(0, [HOSTILE], 0, 1, HOSTILE)],
        path=HOSTILE,
        command=(HOSTILE,),
        lllaunch=HOSTILE,
    )
    facts.__dict__["common"] = (HOSTILE,)
    page = sweep_page(facts, "0.1")
    is_safe(page)
    assert "<script>alert(1)</script><img" in Page(page).shown


names = st.text("ab=.+~'\"<&;/:\x1b\ud800\u202e 1e-", max_size=12)
numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(names, max_size=3), numbers, names), max_size=14),
    st.sampled_from([None, "minimize", "maximize"]),
)
def test_whatever_jobs_are_like_there_is_a_page(
    made: list[tuple[list[str], float | None, str]], direction: Direction | None
) -> None:
    jobs = [
        job(
            number, *overrides, objective=value, state="failed" if text else "succeeded", cause=text
        )
        for number, (overrides, value, text) in enumerate(made)
    ]
    page = sweep_page(swept(*jobs, direction=direction), "0.1")
    is_safe(page)
    assert len(Page(page).rows) == (len(jobs) + 1 if jobs else 0)


@pytest.mark.slow
def test_of_very_many_jobs_those_are_shown_that_tell_most() -> None:
    jobs = [
        job(number, f"x={number}", f"y={number % 7}", objective=float(number * 7919 % 10_007))
        for number in range(6000)
    ]
    jobs[4321] = job(4321, "x=4321", state="failed", cause="why")
    tries = [
        tried(number, str(number % 2), number / 60, number / 60 + 0.01) for number in range(6000)
    ]
    page = sweep_page(swept(*jobs, tries=tries, direction="maximize"), "0.1")
    assert len(page.encode()) < 2_000_000
    seen = Page(page)
    best = max(jobs, key=lambda each: each.objective or 0.0)
    assert cell(seen, 4321, "What happened") == "why"
    assert cell(seen, best.job, "State") == "✓ succeeded"
    assert "of 6000 jobs: those that went wrong, and the best" in seen.shown
    assert "1000 of 5999 jobs are drawn" in seen.shown


# What is known of a sweep, from whatever files it has left
