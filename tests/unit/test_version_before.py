"""The directory of a run that 0.1.0 has left is read whole; one of a later version is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lllaunch.errors import ConfigError
from lllaunch.results.history import decode
from lllaunch.results.live import LiveReader
from lllaunch.results.locate import locate
from lllaunch.results.report import load
from lllaunch.results.store import read_run, sample_of
from lllaunch.results.view import view_run
from lllaunch.run.submission import account_of, read_history, read_submission
from lllaunch.spec import Requeue

GOLDEN = Path(__file__).parent / "golden" / "run_version_1"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Its first attempt hung, in its second one rank 1 raised; it was no batch job's."""
    left = shutil.ignore_patterns("submission*")
    return Path(shutil.copytree(GOLDEN, tmp_path / "run", ignore=left))


def test_every_line_of_its_events_says_something() -> None:
    lines = (GOLDEN / "events.jsonl").read_bytes().splitlines()
    found = [decode(line) for line in lines]
    assert None not in found
    assert len(found) == 26


def test_its_timeline_has_both_attempts(run: Path) -> None:
    first, second = view_run(locate(str(run))).timeline.attempts
    assert [(each.number, each.state, len(each.lanes)) for each in (first, second)] == [
        (0, "failed", 2),
        (1, "failed", 2),
    ]
    assert [mark.kind for mark in first.marks] == ["finding", "stacks", "signal", "root_cause"]
    assert [span.kind for span in first.lanes[0].spans][:3] == ["spawn", "run", "hang"]
    assert [lane.fate for lane in second.lanes] == ["ended", "failed"]
    assert [mark.text for mark in second.lanes[1].marks] == ["raised ValueError: no data"]


def test_lists_and_views_say_what_became_of_it(run: Path) -> None:
    entry, result = read_run(locate(str(run)))
    assert result is not None
    assert (entry.state, entry.exit_code, entry.attempts) == ("failed", 3, 2)
    assert entry.root_cause == "rank 1: raised ValueError: no data"
    view = LiveReader().run(str(run))
    assert view is not None
    assert [(row.number, row.state) for row in view.rows] == [(0, "ended"), (1, "failed")]


def test_its_samples_and_what_was_submitted(run: Path) -> None:
    sample = sample_of(str(run))
    assert sample is not None
    assert {rank: each.step for rank, each in sample.by_rank.items()} == {0: 4, 1: 4}
    submission = read_submission(str(GOLDEN))
    assert submission is not None
    assert (submission.job, submission.requeue) == ("123_4", Requeue(1, 2, 3))
    assert submission.retries == {"oom": 2}
    assert len(read_history(str(GOLDEN))) == 5
    account = account_of(str(GOLDEN))
    assert (account.starts, account.requeues) == (2, 1)


def test_a_result_of_a_later_version_is_refused_by_all_who_show_it(run: Path) -> None:
    path = run / "result.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    why = "is of version 2; this lllaunch reads version 1"
    entry, result = read_run(locate(str(run)))
    assert (entry.state, entry.root_cause, result) == ("unknown", f"result.json: {why}", None)
    view = LiveReader().run(str(run))
    assert view is not None
    assert view.subject is not None
    assert (view.subject.state, view.subject.text) == ("unknown", f"result.json: {why}")
    with pytest.raises(ConfigError, match=why):
        load(locate(str(run)))
    view_ = view_run(locate(str(run)))
    assert view_.problem == f"its result.json {why}"
    assert view_.result is None
