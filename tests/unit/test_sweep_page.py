"""The page of a sweep: what stands on it is what is known, whatever that is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.generated import write_sweep
from lllaunch.pages.sweep_facts import SweepFacts, SweepJob, failure_groups, read_sweep_facts
from lllaunch.pages.sweep_page import sweep_page
from lllaunch.pages.swept import swept_parameters
from lllaunch.results.cases import Case, CodeLine, Log
from lllaunch.results.store import ListEntry, look
from lllaunch.results.tries import JobTry, SweepTimeline
from lllaunch.sweep.objective import Direction
from lllaunch.sweep.pool import Lease

S = 10**9
T0 = 1_700_000_000 * S
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=\"alert('2')\"> &amp; \x1b[31m\x00\ud800"
)


TWO = Lease(("0", "1"))


class Page(HTMLParser):
    """A page as a browser reads it.

    Attributes:
        text: of all that is shown.
        rows: texts of the cells of each row of each table.
        tags: of all elements.
        links: where they lead.
        ids: of all elements.
        titles: what is shown where somebody points.
        classes: of circles, lines and areas of charts.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.titles: list[str] = []
        self.classes: list[tuple[str, str]] = []
        self.handlers: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        self.handlers += [name for name in found if name.startswith("on") or name == "style"]
        if tag == "a":
            self.links.append(found.get("href") or "")
        if found.get("id"):
            self.ids.append(found["id"] or "")
        if tag in {"circle", "path", "rect"}:
            self.classes.append((tag, found.get("class") or ""))
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")
        elif tag == "title":
            self.titles.append("")
        if tag not in {"meta", "input", "br"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"script", "style"} & {*self._open}:
            return
        if "title" in self._open:
            self.titles[-1] += data
        else:
            self.text += data
        if {"td", "th"} & {*self._open}:
            self.rows[-1][-1] += data

    def count(self, tag: str, kind: str) -> int:
        return sum(each == tag and kind in classes.split() for each, classes in self.classes)


def job(number: int, *overrides: str, **more: Any) -> SweepJob:
    given = {"state": "succeeded", "seconds": 2.0, "tries": 1, "exit_code": 0, **more}
    given.setdefault("directory", str(number))
    if given["state"] == "succeeded":
        given.setdefault("ended_ns", T0 + (number + 1) * S)
    return SweepJob(number, overrides=overrides, **given)


def swept(
    *jobs: SweepJob,
    state: str = "failed",
    direction: Direction | None = None,
    cases: Sequence[Case] = (),
    tries: Sequence[JobTry] = (),
    slots: Lease = TWO,
    **more: Any,
) -> SweepFacts:
    timeline = SweepTimeline(T0, T0 + 100 * S, over=True, tries=tuple(tries), slots=slots)
    return SweepFacts(
        directory="multirun/1",
        entry=ListEntry("sweep", "multirun/1", state, exit_code=6, started_ns=T0, seconds=100.0),
        jobs=jobs,
        parameters=swept_parameters([each.overrides for each in jobs]),
        common=("+exp=a",),
        timeline=timeline,
        direction=direction,
        failures=tuple(failure_groups(jobs, {case.job: case for case in cases})),
        **more,
    )


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
            jobs.append(job(number, *overrides, objective=value, returned=f"{value:.6g}"))
    return swept(*jobs, **more)


def cell(page: Page, number: int, title: str) -> str:
    """What a table says of a job."""
    (head,) = (row for row in page.rows if row[:1] == ["Job"])
    (row,) = (row for row in page.rows if row[:1] == [str(number)])
    return row[head.index(title)]


def test_the_verdict_stands_first() -> None:
    page = Page(sweep_page(grid(direction="minimize"), "0.1"))
    start = page.text.index("Failed")
    assert "7 of 8 jobs succeeded, 1 failed" in page.text[start : start + 50]
    assert "best 0.25 of job 0 (lr=0.1 model=size_small) · exit code 6" in page.text
    assert page.text.index("jobs succeeded") < page.text.index("What failed")
    assert "Took1 min 40 s" in page.text
    assert page.tags.count("h1") == page.tags.count("main") == 1
    assert len(page.ids) == len({*page.ids})


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
    assert "./3/" in page.links
    elsewhere = Page(sweep_page(grid(), "0.1", "../multi run/1"))
    assert "./../multi%20run/1/3/" in elsewhere.links
    assert "#job-5" in page.links
    assert "job-5" in page.ids


def test_without_a_direction_nothing_is_called_best() -> None:
    text = Page(sweep_page(grid(), "0.1")).text
    assert "lowest 0.25 of job 0" in text
    assert "highest 1.125 of job 7" in text
    assert "lowest so far" in text
    assert "highest so far" in text
    assert "best" not in text.lower()


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
    # and a line for each job that has yielded something
    assert "All parameters together" in page.text
    lines = [page.count("path", kind) for kind in ("q0", "q1", "q2", "q3", "q4", "best")]
    assert sum(lines) == 7 + 4


def test_objectives_that_are_too_large_to_be_drawn_are_counted_and_named() -> None:
    values = (1.0, 2.5, -1e300, 1e308)
    jobs = [job(at, f"x={at}", objective=value) for at, value in enumerate(values)]
    page = Page(sweep_page(swept(*jobs, direction="maximize"), "0.1"))
    assert "Best 1e+308 of job 3 (x=3); 4 jobs returned a number." in page.text
    assert "Not drawn: 2 of 1e+100 and more, or less than its negative." in page.text
    # neither a curve of the best so far nor a point of the best would tell the truth
    assert "so far" not in page.text
    assert page.count("circle", "best") == 0
    page = Page(sweep_page(swept(job(0, "x=1", objective=1e300), direction="minimize"), "0.1"))
    assert "Best 1e+300 of job 0 (x=1); 1 job returned a number." in page.text


def test_parameters_that_are_numbers_with_zero_are_drawn_in_steps() -> None:
    decays = ("0", "1e-4", "1e-3", "1e-2")
    jobs = [job(at, f"decay={decay}", objective=float(at)) for at, decay in enumerate(decays)]
    page = sweep_page(swept(*jobs), "0.1")
    assert all(f">{decay}<" in page for decay in decays)


def test_whole_numbers_near_each_other_have_no_fractions_between_them() -> None:
    jobs = [job(number, f"seed={number}", objective=float(number)) for number in range(3)]
    page = sweep_page(swept(*jobs), "0.1")
    assert ">1<" in page
    assert ">0.5<" not in page


def test_numbers_have_as_many_digits_as_are_compared() -> None:
    page = Page(sweep_page(swept(job(0, "lr=0.0029216335502727"), job(1, "lr=0.1")), "0.1"))
    assert [cell(page, number, "lr") for number in range(2)] == ["0.00292163", "0.1"]


def test_jobs_that_held_nothing_have_places_and_no_share_of_any() -> None:
    tries = [tried(0, "", 0, 50), tried(1, "", 10, 100)]
    page = Page(sweep_page(swept(job(0), tries=tries, slots=Lease()), "0.1"))
    assert "Which job was there when" in page.text
    assert "in use" not in page.text
    assert all(f"place {place}" in page.text for place in range(2))


def test_a_sweep_over_one_key_has_no_parallel_axes() -> None:
    jobs = [job(number, f"x={number}", objective=number**2) for number in range(4)]
    text = Page(sweep_page(swept(*jobs), "0.1")).text
    assert "All parameters together" not in text
    assert "Objective and parameters" in text


def test_a_sweep_without_objectives_has_a_table_and_no_charts_of_any() -> None:
    jobs = [job(number, f"x={number}", returned="text" * (number == 1)) for number in range(3)]
    page = Page(sweep_page(swept(*jobs, state="succeeded"), "0.1"))
    assert "Objective and parameters" not in page.text
    assert cell(page, 1, "Objective") == "text"
    assert "What failed" not in page.text


def test_failures_of_one_cause_stand_together_with_the_end_of_a_log() -> None:
    why = {"state": "failed", "exit_code": 3}
    jobs = [
        job(number, f"x={number}", cause=f"rank 0: bad seed {number}", **why) for number in range(5)
    ]
    jobs.append(job(5, "x=5", state="signalled", exit_code=143))
    case = Case(
        *("x=1", "failed", 1),
        explanation=("Why (likely): it was so",),
        place=CodeLine("train.py", 12),
        logs=(
            Log("stdout", "1/0/stdout.log", ("not this",)),
            Log("stderr", "1/0/stderr.log", ("the last words",)),
        ),
    )
    text = Page(sweep_page(swept(*jobs, cases=[case]), "0.1")).text
    assert "6 jobs, 2 causes." in text
    assert "5 jobs: rank 0: bad seed 1" in text
    assert "1 job: ended by a signal" in text
    assert "At train.py:12 of job 1." in text
    assert "The end of 1/0/stderr.log" in text
    assert "the last words" in text
    assert "not this" not in text
    assert "Why (likely): it was so" in text


def tried(
    number: int, gpus: Sequence[str], begin: float, end: float, fate: str = "succeeded"
) -> JobTry:
    start, stop = (T0 + int(at * S) for at in (begin, end))
    return JobTry(number, 0, start, stop, fate, Lease(tuple(gpus)), objective=0.5)


def test_what_ran_when_on_which_gpu_and_what_was_idle() -> None:
    tries = [tried(0, "0", 0, 50), tried(1, "0", 50, 100, "failed"), tried(2, "1", 0, 25)]
    page = Page(sweep_page(swept(job(0), tries=tries, slots=Lease(("0", "1", "2"))), "0.1"))
    assert "GPUs were in use 42 % of the time" in page.text
    assert all(f"GPU {gpu}" in page.text for gpu in range(3))
    assert "job 1: failed after 50 s, 0.5" in page.titles
    # spans, and one in the legend
    assert page.count("rect", "succeeded") == 2 + 1
    assert page.count("rect", "failed") == 1 + 1


def test_gpus_on_which_the_same_ran_are_one_row() -> None:
    tries = [tried(0, "0123", 0, 50), tried(1, "0123", 50, 100)]
    page = Page(sweep_page(swept(job(0), tries=tries, slots=Lease(tuple("01234"))), "0.1"))
    assert "GPU 0-3" in page.text
    assert page.count("rect", "succeeded") == 2 + 1
    assert "GPUs were in use 80 % of the time" in page.text


@pytest.mark.parametrize(
    ("state", "word"),
    [
        ("running", "Still running"),
        ("died", "Died"),
        ("signalled", "Interrupted"),
        ("queued", "Waiting in the queue"),
        ("unknown", "Not known to be over"),
    ],
)
def test_sweeps_that_are_not_over_have_a_page(state: str, word: str) -> None:
    others = [job(1, "x=1", state="waiting"), job(2, "x=2", state="running", cause="step 3 of 9")]
    facts = swept(job(0, "x=0", objective=1.0), *others, state=state, resumes=2)
    text = Page(sweep_page(facts, "0.1")).text
    assert word in text
    assert "1 of 3 jobs succeeded, 1 running, 1 waiting" in text
    assert "step 3 of 9" in text
    assert "Resumed2 times" in text


def test_nothing_at_all_has_a_page() -> None:
    facts = swept(state="unknown", problem="'sweep.jsonl' is damaged in line 3")
    assert "is damaged in line 3" in Page(sweep_page(facts, "0.1")).text


def is_safe(page: str) -> None:
    """Whether nothing that is said is obeyed."""
    seen = Page(page)
    assert seen.tags.count("script") == 1
    assert "img" not in seen.tags
    assert seen.handlers == []
    assert all(link.startswith(("#", "./")) for link in seen.links)
    assert "\x1b" not in page
    assert "\x00" not in page
    page.encode()


def test_whatever_stands_in_overrides_is_text() -> None:
    hostile = [
        job(0, f"x={HOSTILE}", f"{HOSTILE}=1", objective=1.0, returned=HOSTILE),
        job(1, f"+y@{HOSTILE}='{HOSTILE}'", objective=2.0, directory="javascript:alert(1)"),
        job(2, "x=1", state="failed", cause=HOSTILE, directory=f"{HOSTILE}\udcff"),
    ]
    logs = (Log("stderr", HOSTILE, (HOSTILE,)),)
    case = Case(HOSTILE, "failed", 2, message=HOSTILE, explanation=(HOSTILE,), logs=logs)
    facts = swept(*hostile, cases=[case], tries=[tried(0, [HOSTILE], 0, 1, HOSTILE)])
    facts = replace(
        facts, command=(HOSTILE,), version=HOSTILE, directory=HOSTILE, common=(HOSTILE,)
    )
    page = sweep_page(facts, "0.1")
    is_safe(page)
    assert "<script>alert(1)</script><img" in Page(page).text


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


def test_a_thousand_jobs_stay_small(tmp_path: Path) -> None:
    write_sweep(tmp_path / "s", jobs=1000)
    found = look(str(tmp_path / "s"))
    assert found is not None
    facts = read_sweep_facts(found)
    page = sweep_page(facts, "0.1")
    assert len(page.encode()) < 2_000_000
    seen = Page(page)
    assert len([row for row in seen.rows if row[:1] != ["Job"]]) == 1000
    count = re.search(r"(\d+) of 1000 jobs succeeded, (\d+) failed", seen.text)
    assert count is not None
    states = [row[4] for row in seen.rows if row[:1] != ["Job"]]
    assert states.count("✓ succeeded") == int(count[1])
    assert states.count("✕ failed") == int(count[2])


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
    assert cell(seen, best.number, "State") == "✓ succeeded"
    assert "of 6000 jobs: those that went wrong, and the best" in seen.text
    assert "1000 of 5999 jobs are drawn" in seen.text
    assert any(re.fullmatch(r"jobs \d[-\d, ]+", title) for title in seen.titles)
