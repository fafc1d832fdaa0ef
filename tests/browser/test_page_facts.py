"""Pages of runs and of sweeps say what their files say, and what matters first."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.browsing import Shown, Window, tables

from tests.browser.conftest import Open
from tests.browser.played import Played

Play = Callable[[str], Played]


@pytest.fixture
def hung(played: Play) -> Played:
    return played("hung")


def table(window: Window, caption: str) -> list[dict[str, Shown]]:
    """The table that is called so, whatever else its caption says."""
    (found,) = (rows for name, rows in tables(window).items() if name.startswith(caption))
    return found


def samples(run: Played) -> list[Any]:
    return [json.loads(line) for line in (run.directory / "samples.jsonl").open()]


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
