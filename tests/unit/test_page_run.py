"""The page of a run: its numbers are those of result.json, and whatever a run left makes a page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.left import SECOND, T0, LeftRun, ended_by_launcher, write_lines
from support.pages import Seen
from support.timelines import event, sample

from benchmarks.generated import HUNG, write_run
from lllaunch.pages.run_page import run_page
from lllaunch.results.locate import locate
from lllaunch.results.store import read_run
from lllaunch.results.view import RunView
from lllaunch.run.result import (
    Failed,
    Hang,
    Raised,
    Reached,
    ReturnValue,
    RootCause,
    Succeeded,
    Victim,
)
from lllaunch.watchdog.evidence import Frame, RankStack
from lllaunch.watchdog.findings import Asked

EVIL = "<script>alert(1)</script>&amp;\"'\x1b[31m\x00\ud800"


def started(seconds: float, rank: int) -> bytes:
    return event(seconds, "Started", attempt=0, local_rank=rank, pid=100 + rank)


def page_of(path: Path, hide: Callable[[str], str] = str) -> str:
    found = locate(str(path))
    page = run_page(RunView(found, *read_run(found, None, hide), hide), "1.2.3")
    seen = Seen(page)
    assert seen.open == []
    assert seen.tags.count("script") == 1
    assert seen.tags.count("h1") == 1
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", page)
    return page


@pytest.fixture
def left(tmp_path: Path) -> LeftRun:
    return LeftRun(tmp_path / "run")


def failed(left: LeftRun, message: str = "ValueError: no", trace: str = "", **more: Any) -> Any:
    """A run of three workers whose second has failed, and what stands in its result.json."""
    cause = Raised(message, 1)
    workers = (
        left.worker(0, ended_by_launcher(-15, 15), exitcode=-15, max_rss=3 << 30, cpu_seconds=12.5),
        left.worker(
            *(1, Failed(cause=cause)),
            exitcode=1,
            max_rss=123_456_789,
            progress=Reached(1200, 5000, T0 + 20 * SECOND, {"loss": 0.25}),
        ),
        left.worker(2, Victim(cause=cause, seconds_after_root_cause=1.0), exitcode=1),
    )
    root = RootCause(0, 1, 1, cause, T0 + 21 * SECOND, traceback=trace, stderr=workers[1].stderr)
    build = {"commit": "c0ffee" * 6, "dirty": True, "changed": 2, "versions": {"torch": "2.9"}}
    attempt = left.attempt(*workers, root=root)
    return left.ends("failed", 3, attempt, root_cause=root, build=build, **more)


TRACE = """Traceback (most recent call last):
  File "/home/me/train.py", line 41, in step
    raise ValueError("no")
ValueError: no"""


def test_the_numbers_are_those_of_the_result(left: LeftRun) -> None:
    result = failed(left, trace=TRACE)
    page = page_of(left.path)
    seen = Seen(page)
    assert "Rank 1 raised ValueError: no" in seen.text
    assert "at /home/me/train.py:41 in step" in seen.text
    assert f"exit code {result['exit_code']}" in seen.text
    assert f'title="{result["seconds"]} s"' in page
    assert result["build"]["commit"] in seen.text
    assert "with changes (2 changed)" in seen.text
    rows = seen.tables["All workers"]
    for worker, row in zip(result["attempts"][0]["workers"], rows, strict=True):
        values = [value and float(value) for _, value in row]
        text = [text for text, _ in row]
        progress = worker["progress"] or {"step": None}
        took = 19.0 + worker["rank"]
        assert values[0] == worker["rank"]
        assert worker["fate"] in text[1]
        assert values[3:] == [
            worker["exitcode"],
            took,
            worker["max_rss"] or None,
            worker["cpu_seconds"],
            progress["step"],
            worker["pid"],
        ]


def test_what_failed_and_where_stands_first(left: LeftRun) -> None:
    left.log(1, "stderr", b"careful\n" + TRACE.encode())
    failed(left, trace=TRACE)
    page = page_of(left.path)
    ids = re.findall('<section id="([a-z]+)"', page)
    assert ids == ["cause", "time", "logs", "plan", "environment"]
    assert [f"#{id_}" for id_ in ids] == re.findall('<a href="(#[a-z]+)">', page)
    assert page.index("Rank 1 raised") < page.index("<main")
    assert '<span class="hot">Root cause: rank 1 (attempt 0) raised ValueError: no</span>' in page
    assert "careful" in page


def test_whatever_stands_in_the_files_is_text(left: LeftRun) -> None:
    failed(left, message=f"{EVIL}\nmore {EVIL}", error=EVIL)
    left.log(1, "stderr", EVIL.encode(errors="replace") + b"\xff\xfe\x00\x1b]0;title\x07")
    left.log(1, "stdout", b"</pre><b>\n" * 500)
    (left.path / "plan.yaml").write_bytes(f"{EVIL}: {EVIL}".encode(errors="replace"))
    (left.path / ".hydra").mkdir()
    (left.path / ".hydra" / "overrides.yaml").write_text(json.dumps([f"+exp={EVIL}"]))
    metrics = {"</title><b>": 1.0, EVIL: 2.0}
    worker = {"cpu": 1.0, "rss": 5, "step": 1, "metrics": metrics}
    write_lines(left.path / "samples.jsonl", [sample(at, {"0": worker}) for at in (1, 2, 3)])
    page = page_of(left.path)
    assert "<b>" not in page
    assert "alert(1)" in Seen(page).text


def test_a_run_without_an_end_says_how_far_it_came(left: LeftRun) -> None:
    (left.path / "events.jsonl").write_bytes(b'{"type": "StartWor\n\xff\n')
    assert "its launcher was killed" in Seen(page_of(left.path)).text
    ranks = {"0": {"cpu": 0.5, "rss": 1 << 30, "step": 7}}
    write_lines(left.path / "events.jsonl", [event(0, "StartWorkers", attempt=0), started(1, 0)])
    write_lines(left.path / "samples.jsonl", [sample(2, ranks), sample(4, ranks)])
    seen = Seen(page_of(left.path))
    (row,) = seen.tables["All workers"]
    assert [value and float(value) for _, value in row[-2:]] == [1 << 30, 7]


def stack(rank: int, function: str) -> RankStack:
    frames = (Frame("/home/me/train.py", 40 + rank, function, "wait()"),)
    return RankStack(rank=rank, path="", frames=frames)


def test_a_run_that_a_signal_ended_says_where_it_stood(left: LeftRun) -> None:
    look = Hang(Asked(15, 90.0), T0 + SECOND, standing=(stack(0, "load"),))
    attempt = left.attempt(left.worker(0, ended_by_launcher(-15)), state="stopped")
    left.ends("signalled", 143, attempt, signum=15, look=look)
    text = Seen(page_of(left.path)).text
    for said in ("Ended by SIGTERM", "Rank 0 was here", "exit code 143", "train.py:40 in load"):
        assert said in text


def test_a_run_that_succeeded_has_its_values(left: LeftRun) -> None:
    value = ReturnValue(f"{left.path}/attempt_0/0/return.json", 14, "json", '{"loss": 0.5}')
    attempt = left.attempt(left.worker(0, Succeeded(), exitcode=0), state="succeeded")
    left.ends("succeeded", 0, attempt, return_values={0: value})
    seen = Seen(page_of(left.path))
    assert "Succeeded in 5.0 s" in seen.text
    assert "What happened" not in seen.text
    (row,) = seen.tables["Return values"]
    assert [text for text, _ in row] == ["0", '{"loss": 0.5}', "json", "14 B"]


def test_secrets_are_taken_out_of_all(left: LeftRun) -> None:
    secret = "hunter2!"
    failed(left, message=f"said {secret}", trace=f"{TRACE} {secret}")
    left.log(1, "stderr", f"token {secret}\n".encode())
    (left.path / "plan.yaml").write_text(f"launch: {{args: [{secret}]}}\n")
    finding = {"type": "Stalled", "ranks": [0], "seconds": 5.0, "scope": "rank"}
    write_lines(
        left.path / "events.jsonl",
        [
            event(0, "StartWorkers", attempt=0),
            started(1, 0),
            event(9, "WatchdogFired", finding={**finding, "type": secret, "text": secret}),
        ],
    )
    ranks = {"0": {"metrics": {secret: 1.0}}}
    write_lines(left.path / "samples.jsonl", [sample(1, ranks)])
    assert secret in page_of(left.path)
    assert secret not in page_of(left.path, lambda text: text.replace(secret, "***"))


@pytest.mark.slow
def test_of_many_ranks_a_page_stays_small(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 256)
    page = page_of(tmp_path / "run")
    assert len(page.encode()) < 2_000_000
    seen = Seen(page)
    assert f"Rank {HUNG} stalled" in seen.text
    assert len(seen.tables["All workers, the newest attempt first"]) == 512
    # who is to blame has a lane of its own, those that look alike share one
    assert page.count('class="lane"') <= 12
    assert f">rank {HUNG}<" in page
