"""What the user is told while the watchdog works, attempts are paused, and requests are refused."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from lllaunch.console.console import Console
from lllaunch.events import Exited, SpawnerGone, Started
from lllaunch.run.events import EventLog
from lllaunch.run.group import Attempt
from lllaunch.run.observer import RunObserver
from lllaunch.spec import Entrypoint, LaunchSpec
from lllaunch.supervisor.machine import (
    Finish,
    GroupStarted,
    KillWorkers,
    Pause,
    SignalProcess,
    SignalReceived,
    SignalWorkers,
    StacksTaken,
    StartGrace,
    StartWorkers,
    TakeStacks,
    WatchdogFired,
    WorkersStuck,
    WorkerState,
)
from lllaunch.timer.service import Rejected
from lllaunch.watchdog.findings import OverMemory, Stalled, TimedOut, TimerExpired
from lllaunch.watchdog.sampling import Sample, WorkerSample
from lllaunch.watchdog.stacks.frames import Blame, Frame, RankStack
from lllaunch.workers.log_files import LogsDest

T0 = 1_700_000_000_000_000_000


def attempt(number: int = 0, nproc: int = 2) -> Attempt:
    path = f"/run/attempt_{number}"
    dest = LogsDest(error_files=dict.fromkeys(range(nproc), ""))
    return Attempt(number, path, dest, {rank: {"RANK": str(10 + rank)} for rank in range(nproc)})


START = (
    StartWorkers(0, 0),
    attempt(),
    GroupStarted(frozenset({0, 1})),
    Started(0, 500, T0),
    Started(1, 501, T0),
)


def told(tmp_path, *events: object, **more: Any) -> list[str]:
    """What is said after an attempt began, without the launcher's name."""
    stream = io.StringIO()
    log = EventLog(str(tmp_path / "events.jsonl"), pytest.fail)
    spec = LaunchSpec(
        Entrypoint("script", "/a/train.py", "train.py"), nproc=2, log_dir="/run", cwd="/", **more
    )
    watcher = RunObserver(spec, log, Console(stream, cwd="/run"))
    for event in (*START, *events):
        watcher.begin(event) if isinstance(event, Attempt) else watcher.observe(event)
    log.close()
    return [line.removeprefix("lllaunch: ") for line in stream.getvalue().splitlines()[1:]]


TIMER = TimerExpired(1, 501, "train.py#40", 10.0, 9)
ASKED = SignalProcess(1, 501, 9)
SLEEPS = (Frame("/run/train.py", 40, "sync"),)
STACKS = StacksTaken(
    (
        RankStack(0, "/run/attempt_0/0/stacks.txt"),
        RankStack(1, "/run/attempt_0/1/stacks.txt", SLEEPS),
    ),
    Blame((1,), (0,)),
    TIMER,
)


def test_timer_that_expires(tmp_path):
    lines = told(
        tmp_path,
        WatchdogFired(TIMER, "hang", asked=ASKED),
        TakeStacks(frozenset({0, 1}), TIMER),
        STACKS,
        ASKED,
        SignalWorkers(15, "hang"),
        StartGrace(),
        KillWorkers("grace"),
    )
    assert lines == [
        "watchdog: rank 11 hung: its timer 'train.py#40' ran out after 10 s; taking stacks",
        (
            "watchdog: rank 11 is in sync (train.py:40); rank 10 waits for it; "
            "stacks in attempt_0/*/stacks.txt"
        ),
        "watchdog: SIGKILL to process 501 of rank 11, as its timer asks",
        "watchdog: SIGTERM to 2 workers; SIGKILL follows in 30 s",
        "the grace period is over, killing 2 workers",
    ]
    types = [json.loads(line)["type"] for line in (tmp_path / "events.jsonl").open()]
    assert types[4:9] == [
        "WatchdogFired",
        "TakeStacks",
        "StacksTaken",
        "SignalProcess",
        "SignalWorkers",
    ]


def test_only_what_the_attempt_ends_for_is_told(tmp_path):
    stall = Stalled((0, 1), 600.0)
    facts = WatchdogFired(stall, "hang"), WatchdogFired(TIMER, "hang")
    lines = told(tmp_path, *facts, StacksTaken((), Blame(), stall))
    assert lines == [
        (
            "watchdog: all workers stalled: no output, no CPU use and no heartbeat for 10 min;"
            " taking stacks"
        )
    ]


def test_finding_while_the_attempt_ends_anyway_is_not_told(tmp_path):
    lines = told(tmp_path, SignalWorkers(15, "failure"), WatchdogFired(TIMER, "hang"))
    assert lines == []


def test_signal_for_another_reason_than_the_watchdog_s_is_not_its(tmp_path):
    # The kernel killed one for want of memory; workers hang in the kernel.
    assert told(tmp_path, Exited(0, 500, -9, T0), SignalWorkers(15, "oom")) == []
    assert told(tmp_path, WorkersStuck(), SignalWorkers(15, "hang")) == []


def test_signal_to_the_launcher_while_stacks_are_taken(tmp_path):
    lines = told(
        tmp_path,
        WatchdogFired(TIMER, "hang"),
        SignalReceived(2),
        SignalWorkers(2, "signal"),
        StartGrace(),
    )
    assert lines[1:] == [
        (
            "SIGINT received, forwarded to 2 workers; "
            "SIGKILL follows in 30 s, or now on a second signal"
        )
    ]


FAILURE = Exited(1, 501, 7, T0 + 5)


def test_restart_after_a_pause_is_told_before_it(tmp_path):
    lines = told(
        tmp_path,
        FAILURE,
        Pause(10.0, 1),
        StartWorkers(1, 1, "failure", 1),
        attempt(1),
        Exited(0, 500, 3, T0 + 5),
        Pause(20.0, 2),
        StartWorkers(2, 2, "failure", 2),
        max_restarts=3,
    )
    assert lines == [
        "attempt 0: rank 11 exited with status 7; restarting in 10 s (1 of 3)",
        "attempt 1: 2 workers of train.py, logs in attempt_1",
        "attempt 1: rank 10 exited with status 3; restarting in 20 s (2 of 3)",
    ]


@pytest.mark.parametrize("reason", ["failure", "died", "oom", "hang", "timeout"])
def test_restarts_that_count_are_counted(tmp_path, reason):
    lines = told(tmp_path, FAILURE, StartWorkers(1, 1, reason, 1), max_restarts=2)
    assert lines == ["attempt 0: rank 11 exited with status 7; restarting (1 of 2)"]


def test_other_restarts_are_not_counted(tmp_path):
    lines = told(
        tmp_path,
        SpawnerGone(7, -9),
        StartWorkers(1, 1, "spawner"),  # on the house
        attempt(1),
        StartWorkers(2, 1, "membership"),
        attempt(2),
        SpawnerGone(8, -9),
        StartWorkers(3, 2, "spawner", 1),
        max_restarts=1,
    )
    ends = [line.rpartition("; ")[2] for line in lines if "restarting" in line]
    assert ends == ["restarting", "restarting", "restarting (1 of 1)"]


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (TIMER, "rank 11 hung: its timer 'train.py#40' ran out after 10 s"),
        (TimedOut(60.0), "all workers took too long: the attempt is limited to 1 min"),
        (
            OverMemory(0, 9 << 30, 8 << 30),
            "rank 10 used too much memory: 9.0 GiB, the limit is 8.0 GiB",
        ),
    ],
)
def test_restart_after_a_finding_names_it(tmp_path, finding, text):
    kind = "hang"
    fired = WatchdogFired(finding, kind)
    again = StartWorkers(1, 1, kind, 1)
    lines = told(tmp_path, fired, SignalWorkers(15, kind), again, max_restarts=1)
    assert lines[-1] == f"attempt 0: {text}; restarting (1 of 1)"


def test_end_of_the_run_s_time_between_attempts(tmp_path):
    fired = WatchdogFired(TimedOut(60.0, "run"), "timeout", whole_run=True)
    end = Finish(WorkerState.FAILED, "timeout")
    lines = told(tmp_path, FAILURE, SignalWorkers(15, "failure"), Pause(9.0, 1), fired, end)
    # The report says the rest.
    assert lines == ["attempt 0: rank 11 exited with status 7; restarting in 9.0 s (1 of 0)"]


def test_requests_that_were_refused_are_told_five_times(tmp_path):
    bad = Rejected(77, "it has no scope_id", '{"pid": 77}')
    many = Rejected(None, "12 more requests for timers could not be accepted", "")
    noise = Rejected(None, "it is not JSON (no)", "\\x1b[2J")
    lines = told(tmp_path, bad, many, noise, *[bad] * 20)
    text = 'warning: a timer request of process 77 was refused, it has no scope_id: {"pid": 77}'
    assert lines == [
        text,
        "warning: 12 more requests for timers could not be accepted",
        "warning: a timer request was refused, it is not JSON (no): \\x1b[2J",
        text,
        text,
        "warning: more timer requests were refused, see events.jsonl",
    ]
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 4 + 23


@pytest.mark.parametrize("possible", [True, False])
def test_a_sample_is_no_event_and_harms_nothing_where_it_cannot_be_written(
    tmp_path, monkeypatch, possible
):
    if not possible:
        # as where no descriptor is left to import it with
        monkeypatch.setitem(sys.modules, "lllaunch.run.samples", None)
    stream = io.StringIO()
    log = EventLog(str(tmp_path / "events.jsonl"), pytest.fail)
    spec = LaunchSpec(Entrypoint("script", "/a/t.py", "t.py"), nproc=2, log_dir="/run", cwd="/")
    console = Console(stream, cwd="/run")
    watcher = RunObserver(spec, log, console, samples=str(tmp_path / "samples.jsonl"))
    for event in START:
        watcher.begin(event) if isinstance(event, Attempt) else watcher.observe(event)
    before = (tmp_path / "events.jsonl").read_text()
    sample = Sample({1: WorkerSample(0.5, 1, 2.0, 3.0, 4)})
    for _ in range(2):
        assert watcher.observe(sample) is sample
    watcher.close()
    assert (tmp_path / "events.jsonl").read_text() == before
    if possible:
        lines = (tmp_path / "samples.jsonl").read_text().splitlines()
        assert [list(json.loads(line)["ranks"]) for line in lines] == [["11"], ["11"]]
    else:
        assert stream.getvalue().count("samples.jsonl") == 1
