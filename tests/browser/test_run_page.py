"""The page of a run says what its files say, and what matters first."""

from __future__ import annotations

import json
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


def test_each_attempt_has_the_numbers_of_its_result(hung: Played, opened: Open) -> None:
    rows = table(opened(hung.page), "Attempts")
    wanted = hung.read("result.json")["attempts"]

    assert all_of(rows, "Attempt") == [0, 1]
    assert all_of(rows, "Took") == pytest.approx([seconds(one) for one in wanted], abs=0.001)
    assert [row["State"].text.split()[-1] for row in rows] == [one["state"] for one in wanted]
    first, second = (row["Root cause"].text for row in rows)
    assert "Rank 1 raised ValueError: <script>no & no</script>" in first
    assert second.startswith("Rank 2 stalled")


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


@pytest.mark.parametrize("scripts", [True, False])
def test_verdict_and_root_cause_are_read_first(hung: Played, opened: Open, scripts: bool) -> None:
    window = opened(hung.page, scripts=scripts)
    cause = hung.read("result.json")["root_cause"]["cause"]["text"]
    parts = ("Failed", cause, "load_next_shard", "exit code 4", "All workers", "entrypoint")

    assert window.texts("h1") == ["✕ Failed"]
    assert (places := reading(window, *parts)) == sorted(places)
    (verdict,) = window.texts(".verdict")
    assert f"Rank 2 {cause}" in verdict
    assert "at train.py:9 in load_next_shard" in verdict


def test_the_facts_above_are_those_of_the_result(hung: Played, opened: Open) -> None:
    window = opened(hung.page)
    result = hung.read("result.json")
    names, values = window.texts("header dt"), window.texts("header dd")
    facts = dict(zip(names, values, strict=True))

    assert facts["Took"] == duration(result["seconds"])
    assert facts["Attempts"] == str(len(result["attempts"]))
    assert facts["Workers"] == "3"
    assert facts["Started"].startswith(result["started"][:19].replace("T", " "))
    assert facts["Progress"].startswith("step 24 of 100 (24 %)")
    # what people wrote is shown as they wrote it
    assert "+note='<b>'" in facts["Command line"] or "+note=<b>" in facts["Command line"]


def test_a_run_that_succeeded_says_so_and_what_it_returned(played: Play, opened: Open) -> None:
    run = played("succeeded")
    window = opened(run.page)
    result = run.read("result.json")

    assert window.texts("h1") == ["✓ Succeeded"]
    rows = tables(window)["Return values"]
    assert [json.loads(row["Value"].text) for row in rows] == [
        value["value"] for _, value in sorted(result["return_values"].items())
    ]


def test_the_plan_and_the_logs_are_there_without_what_is_secret(hung: Played, opened: Open) -> None:
    window = opened(hung.page, scripts=False)
    text = " ".join(window.texts("pre"))

    assert "entrypoint: train.py" in text
    # the log says the secret, and it is taken out where it stood
    assert "<b>bold</b> & given ${oc.env:RANK_TOKEN} [" in text


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
