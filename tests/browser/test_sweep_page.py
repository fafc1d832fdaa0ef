"""The page of a sweep says what its files say, and what matters first."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from support.browsing import Shown, Window, tables

from lllaunch.text import duration
from tests.browser.conftest import Open
from tests.browser.played import Played

Play = Callable[[str], Played]
SWEEPS = ("swept", "large sweep")


@pytest.fixture
def swept(played: Play) -> Played:
    return played("swept")


def jobs_of(window: Window) -> list[dict[str, Shown]]:
    """The rows of the table of all jobs."""
    (found,) = (rows for name, rows in tables(window).items() if re.match(r"\d+ jobs", name))
    return found


def settings(job: Any) -> dict[str, float]:
    """The parameters that a job was swept with."""
    pairs = (override.split("=") for override in job["overrides"])
    return {key[len("params.") :]: float(value) for key, value in pairs if "params." in key}


@pytest.mark.parametrize("name", SWEEPS)
def test_each_job_has_the_numbers_of_the_summary(played: Play, opened: Open, name: str) -> None:
    sweep = played(name)
    rows = jobs_of(opened(sweep.page, scripts=False))
    wanted = sweep.read("sweep.json")["jobs"]

    def all_of(column: str) -> list[float | None]:
        return [row[column].value for row in rows]

    assert all_of("Job") == [job["job"] for job in wanted]
    assert all_of("Tries") == [job["tries"] for job in wanted]
    assert all_of("Exit") == [job["exit_code"] for job in wanted]
    assert all_of("Time") == pytest.approx([job["seconds"] for job in wanted], rel=1e-9)
    assert all_of("Objective") == [job.get("return_value") for job in wanted]
    for row, job in zip(rows, wanted, strict=True):
        assert row["State"].text.endswith(job["state"])
        assert row["Time"].text == duration(job["seconds"])
        assert {key: row[key].value for key in settings(job)} == settings(job)
        assert (row["What happened"].text == "") == (job["state"] == "succeeded")


@pytest.mark.parametrize("name", SWEEPS)
def test_the_verdict_counts_as_the_summary_does(played: Play, opened: Open, name: str) -> None:
    sweep = played(name)
    summary = sweep.read("sweep.json")
    window = opened(sweep.page, scripts=False)
    (verdict,) = window.texts(".verdict")
    counts = summary["counts"]

    assert window.texts("h1") == ["✕ Failed"]
    assert f"{counts['succeeded']} of {len(summary['jobs'])} jobs succeeded" in verdict
    assert f"{counts['failed']} failed" in verdict
    assert f"exit code {summary['exit_code']}" in verdict
    body = window.page.inner_text("main").lower()
    parts = ("what failed", "objective", "in time", "environment")
    places = [body.find(part) for part in parts]
    assert places == sorted(places)
    assert places[0] == 0


def test_the_best_is_the_best_by_its_direction(swept: Played, opened: Open) -> None:
    window = opened(swept.page)
    values = {job["job"]: job.get("return_value") for job in swept.read("sweep.json")["jobs"]}
    best = min((value, job) for job, value in values.items() if value is not None)

    (verdict,) = window.texts(".verdict .more")
    assert f"best {best[0]:g} of job {best[1]} " in verdict
    (point,) = window.texts("svg.scatter .point.best title")[:1]
    assert point.startswith(f"job {best[1]}: {best[0]:g}, ")
    (told,) = window.texts("svg.curves desc")
    assert told.startswith(f"best so far: {best[0]:g} of job {best[1]} after ")


def test_failures_are_grouped_by_their_cause(played: Play, opened: Open) -> None:
    sweep = played("large sweep")
    window = opened(sweep.page, scripts=False)
    failed = [job for job in sweep.read("sweep.json")["jobs"] if job["state"] == "failed"]
    causes = {job["root_cause"] for job in failed}
    summaries = window.texts("#failures summary")

    assert len(summaries) == len(causes) == 3
    assert sum(int(text.split()[0]) for text in summaries) == len(failed)


def test_of_a_failure_stands_what_was_raised_and_where(swept: Played, opened: Open) -> None:
    (text,) = opened(swept.page, scripts=False).texts("#failures")

    assert "the weights are <infinite> & not finite" in text
    assert "functions.py:10" in text


def test_each_try_is_drawn_on_what_it_held(swept: Played, opened: Open) -> None:
    window = opened(swept.page)
    journal = [json.loads(line) for line in (swept.directory / "sweep.jsonl").open()]
    # also of one that another sweep of this machine has held all the time
    held: dict[str, set[int]] = {f"GPU {gpu}": set() for gpu in journal[0]["slots"]["gpus"]}
    for record in journal:
        for gpu in record["lease"]["gpus"] if record["type"] == "started" else ():
            held[f"GPU {gpu}"].add(record["job"])
    drawn = {
        label: {int(number) for number in re.findall(r"job (\d+)", titles)}
        for label, titles in window.ask(
            "() => [...document.querySelectorAll('svg.lanes .lane')].map((lane) => ["
            "lane.querySelector('.label').textContent,"
            "[...lane.querySelectorAll('title')].map((one) => one.textContent).join()])"
        )
    }

    assert any(held.values())
    assert drawn == held


def test_jobs_are_sorted_and_filtered(swept: Played, opened: Open) -> None:
    window = opened(swept.page)
    table = window.page.locator("#jobs table")
    jobs = swept.read("sweep.json")["jobs"]

    def shown() -> list[int]:
        texts = window.texts("#jobs tbody tr:not([hidden]) th")
        return [int(text) for text in texts]

    table.get_by_role("button", name="Objective").press("Enter")
    good = [job for job in jobs if job["state"] == "succeeded"]
    bad = {job["job"] for job in jobs} - {job["job"] for job in good}
    ordered = [job["job"] for job in sorted(good, key=lambda job: job["return_value"])]
    assert shown()[: len(ordered)] == ordered
    assert set(shown()[len(ordered) :]) == bad
    window.page.locator("#jobs").get_by_label("Filter").press_sequentially("failed")
    assert set(shown()) == bad


def test_a_link_leads_to_a_job(swept: Played, opened: Open) -> None:
    window = opened(swept.page)
    href = window.page.locator(".verdict a").first.get_attribute("href")

    assert href
    assert window.page.locator(href).count() == 1
