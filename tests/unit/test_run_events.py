"""events.jsonl: whole lines, without secrets, and no reason to end a run."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lllaunch.events import Exited, OrphansGone
from lllaunch.files import LineFile
from lllaunch.run.directory import encode
from lllaunch.run.execute import read_history
from lllaunch.secret_names import redactor, redactor_for
from lllaunch.spawner.protocol import Function, Script
from lllaunch.spec import Entrypoint, LaunchSpec
from lllaunch.supervisor.machine import (
    CleanUp,
    Finish,
    RestartHistory,
    SignalProcess,
    StartWorkers,
    WatchdogFired,
)
from lllaunch.watchdog.findings import TimerExpired

AT = 1_700_000_000_123_456_789


@dataclass(frozen=True)
class Thing:
    value: Any


def test_examples_in_the_docs_are_what_is_written():
    page = Path(__file__).parents[2] / "docs" / "reference" / "files.md"
    examples = [line for line in page.read_text().splitlines() if line.startswith('{"time": "')]
    at = json.loads(examples[0])["time_ns"]
    exited = Exited(1, 4711, -9, at, 104857600, 12.5, out_of_memory=True)
    finding = TimerExpired(1, 4711, "train.py#40", 10.0, 9)
    fired = WatchdogFired(finding, "hang", asked=SignalProcess(1, 4711, 9))
    assert [encode(each, at).decode() for each in (exited, fired)] == [
        f"{example}\n" for example in examples
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (signal.SIGTERM, "SIGTERM"),
        ((1, 2.5, None, True), [1, 2.5, None, True]),
        (float("nan"), "nan"),
        ({3: "x"}, {"3": "x"}),
        (frozenset({2, 1}), [1, 2]),
        (b"12345", "<5 bytes>"),
        (ValueError("no"), "ValueError: no"),
        pytest.param("a\nb\udcff", "a\nb\udcff", id="broken"),
    ],
)
def test_values_become_json_on_one_line(value, expected):
    line = encode(Thing(value), AT)
    assert line.count(b"\n") == 1
    assert json.loads(line)["value"] == expected


def test_variables_and_arguments_are_not_written():
    secret = "hunter2-hunter2"
    event = Thing(
        {
            "target": Script("/a/train.py", ("--token", secret)),
            "function": Function("m", "f", secret.encode()),
            "env": {"X": secret},
        }
    )
    line = encode(event, AT)
    assert secret.encode() not in line
    assert json.loads(line)["value"]["target"] == {
        "type": "Script",
        "path": "/a/train.py",
        "argv": "<2 not shown>",
    }


def test_secrets_are_replaced_by_their_source():
    spec = LaunchSpec(
        Entrypoint("script", "/t.py", "t.py"),
        nproc=1,
        log_dir="/r",
        cwd="/",
        env={"API_TOKEN": "hunter2-hunter2", "SHORT_KEY": "a"},
        env_per_rank={range(1, 2): {"OTHER_KEY": "hunter2"}},
        withheld=(
            (("env", "API_TOKEN"), "hunter2-hunter2", "${oc.env:API_TOKEN}"),
            (("env_per_rank", 1, "OTHER_KEY"), "hunter2", "${oc.env:OTHER}"),
            (("env", "SHORT_KEY"), "a", "${oc.env:SHORT_KEY}"),
        ),
    )
    redact = redactor_for(spec)
    assert redact("a hunter2-hunter2 b hunter2") == "a ${oc.env:API_TOKEN} b ${oc.env:OTHER}"
    assert b"hunter2" not in encode(Thing(["x hunter2"]), AT, redact)
    assert redactor({})("anything") == "anything"


def test_torn_line_of_a_former_run_is_ended(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"time": "20')
    log = LineFile(str(path), pytest.fail)
    for _ in range(2):
        log.append(encode(OrphansGone(), AT))
    log.close()
    lines = path.read_text().splitlines()
    assert lines[0] == '{"time": "20'
    assert [json.loads(line)["type"] for line in lines[1:]] == ["OrphansGone", "OrphansGone"]


# What the attempts of a batch job came to, for the next one


def finish(step: float | None, *ended_at: float | None, times: tuple[int, ...] = ()) -> bytes:
    history = RestartHistory(times, step, ended_at)
    return encode(Finish("FAILED", "failure", history=history), AT)


def test_what_attempts_came_to_is_read_back_without_when_they_were(tmp_path):
    path = tmp_path / "events.jsonl"
    start = StartWorkers(1, 1, "failure", history=RestartHistory((5,), 1.0, ()))
    path.write_bytes(encode(start, AT) + finish(7.5, None, 7.0, times=(5, 6)))
    assert read_history(str(path)) == RestartHistory((), 7.5, (None, 7.0))


def test_of_a_launcher_that_was_killed_the_last_start_tells(tmp_path):
    path = tmp_path / "events.jsonl"
    start = StartWorkers(1, 1, "failure", history=RestartHistory((5,), 1.0, (1.0,)))
    path.write_bytes(finish(None) + encode(start, AT) + encode(CleanUp(), AT) + b'{"history": {')
    assert read_history(str(path)) == RestartHistory((), 1.0, (1.0,))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b'{"type": "Finish", "history": null}\n',
        b'{"type": "Finish", "history": {"ended_at": 3}}\n',
        b'{"type": "Finish", "history": {"ended_at": ["x"]}}\n',
        b'\xff "history": {\n',
    ],
)
def test_what_says_nothing_of_it_is_passed_over(tmp_path, text):
    path = tmp_path / "events.jsonl"
    assert read_history(str(path)) is None
    path.write_bytes(text)
    assert read_history(str(path)) is None
