"""Pages of runs and of sweeps say what their files say, and what matters first."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from support.browsing import Shown, Window, tables

from lllaunch.text import duration, size
from tests.browser.conftest import Open
from tests.browser.played import Played

Play = Callable[[str], Played]


@pytest.fixture
def hung(played: Play) -> Played:
    return played("hung")


def workers(result: Any) -> Iterator[tuple[Any, Any]]:
    """Attempts and workers as the page has them: the newest attempt first."""
    for attempt in sorted(result["attempts"], key=lambda one: -one["attempt"]):
        for worker in sorted(attempt["workers"], key=lambda one: one["rank"]):
            yield attempt, worker


def seconds(of: Any) -> float:
    begun, ended = (datetime.fromisoformat(of[name].rstrip("Z")) for name in ("started", "ended"))
    return (ended - begun).total_seconds()


def table(window: Window, caption: str) -> list[dict[str, Shown]]:
    """The table that is called so, whatever else its caption says."""
    (found,) = (rows for name, rows in tables(window).items() if name.startswith(caption))
    return found


def all_of(rows: list[dict[str, Shown]], column: str) -> list[float | None]:
    return [row[column].value for row in rows]


@pytest.mark.parametrize("name", ["hung", "succeeded", "large run"])
def test_each_worker_has_the_numbers_of_its_result(played: Play, opened: Open, name: str) -> None:
    run = played(name)
    rows = table(opened(run.page, scripts=False), "All workers")
    wanted = list(workers(run.read("result.json")))

    assert all_of(rows, "Rank") == [worker["rank"] for _, worker in wanted]
    if len({attempt["attempt"] for attempt, _ in wanted}) > 1:
        assert all_of(rows, "Attempt") == [attempt["attempt"] for attempt, _ in wanted]
    assert all_of(rows, "Exit") == [worker["exitcode"] for _, worker in wanted]
    assert all_of(rows, "Peak memory") == [worker["max_rss"] for _, worker in wanted]
    used = [worker["cpu_seconds"] for _, worker in wanted]
    assert all_of(rows, "CPU time") == pytest.approx(used, rel=1e-9)
    assert all_of(rows, "Pid") == [worker["pid"] for _, worker in wanted]
    assert all_of(rows, "Took") == pytest.approx(
        [seconds(worker) for _, worker in wanted], abs=0.01
    )
    steps = [(worker["progress"] or {}).get("step") for _, worker in wanted]
    # what nobody has told has no column
    known = {column for row in rows for column in row}
    assert (all_of(rows, "Step") if "Step" in known else [None] * len(rows)) == steps
    for row, (_, worker) in zip(rows, wanted, strict=True):
        assert row["Fate"].text.endswith(worker["fate"])
        assert row["Peak memory"].text == size(worker["max_rss"])
        assert row["CPU time"].text == duration(worker["cpu_seconds"])


def samples(run: Played) -> list[Any]:
    return [json.loads(line) for line in (run.directory / "samples.jsonl").open()]


@pytest.mark.parametrize(("name", "rows_shown", "blamed"), [("hung", 3, 2), ("large run", 24, 77)])
@pytest.mark.parametrize(
    ("caption", "field"),
    [
        ("Memory", "rss"),
        ("CPU, cores", "cpu"),
        ("Progress, steps", "step"),
        ("Read, per second", "read"),
    ],
)
def test_curves_have_the_least_greatest_and_last_of_the_samples(
    played: Play,
    opened: Open,
    name: str,
    rows_shown: int,
    blamed: int,
    caption: str,
    field: str,
) -> None:
    run = played(name)
    rows = table(opened(run.page), caption)
    values: dict[str, list[float]] = {}
    for sample in samples(run):
        for rank, worker in sample["ranks"].items():
            if field in worker:
                values.setdefault(f"rank {rank}", []).append(worker[field])

    assert len({row["Of"].text for row in rows}) == len(rows) == rows_shown
    assert f"rank {blamed}" in {row["Of"].text for row in rows}
    for row in rows:
        of = values[row["Of"].text]
        assert [row[column].value for column in ("Lowest", "Highest", "Last")] == pytest.approx(
            [min(of), max(of), of[-1]], rel=1e-9
        )


def reading(window: Window, *texts: str) -> list[int]:
    """Where texts stand in what is read out, in the order in which they are asked for."""
    body = window.page.inner_text("body").lower()
    places = [body.find(text.lower()) for text in texts]
    assert -1 not in places, list(zip(texts, places, strict=True))
    return places


@pytest.mark.smoke
def test_verdict_and_root_cause_are_read_first(hung: Played, opened: Open) -> None:
    window = opened(hung.page, scripts=False)
    cause = hung.read("result.json")["root_cause"]["cause"]["text"]
    parts = ("Failed", cause, "load_next_shard", "exit code 4", "All workers", "entrypoint")

    assert window.texts("h1") == ["✕ Failed"]
    assert (places := reading(window, *parts)) == sorted(places)
    (verdict,) = window.texts(".verdict")
    assert f"Rank 2 {cause}" in verdict
    assert "at train.py:9 in load_next_shard" in verdict
    # the log says the secret, and it is taken out where it stood
    assert "<b>bold</b> & given ${oc.env:RANK_TOKEN} [" in " ".join(window.texts("pre"))


def test_the_lanes_mark_what_happened(hung: Played, opened: Open) -> None:
    window = opened(hung.page)
    marks = window.texts("svg.lanes .mark title")
    events = [json.loads(line) for line in (hung.directory / "events.jsonl").open()]

    restarts = [one for one in events if one["type"] == "StartWorkers" and one["restart"]]
    assert len(restarts) == 1
    for kind in ("root-cause", "restart", "finding", "signal", "stacks"):
        assert window.texts(f"svg.lanes .mark.{kind} title"), kind
    assert all(marks)
    lanes = window.texts("svg.lanes .lane .label")
    assert [lane for lane in lanes if lane.startswith("rank")] == ["rank 0", "rank 1", "rank 2"] * 2


# Of a sweep


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
