"""What is noted of a run as it happens, what the user is told, and what each worker gets."""

from __future__ import annotations

import io
import json
import os
import pickle
from types import NoneType
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace
from support.left import own

from lllaunch.clock import now_ns
from lllaunch.console.console import Console
from lllaunch.events import (
    Exited,
    Orphan,
    OrphansGone,
    Ready,
    SpawnerGone,
    Started,
    StartFailed,
)
from lllaunch.files import LineFile
from lllaunch.linux.cgroup import UNKNOWN, Memory
from lllaunch.run.execute import Attempt, _header, target_of, worker_environment
from lllaunch.run.judge import judge_attempt
from lllaunch.run.observer import RunObserver
from lllaunch.run.result import DiskFull, HungInKernel, Lost
from lllaunch.spawner.protocol import Function, Script
from lllaunch.spec import Entrypoint, LaunchSpec, Nodes
from lllaunch.supervisor.machine import (
    AbandonWorkers,
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
)
from lllaunch.timer.service import Rejected
from lllaunch.watchdog.evidence import Blame, Frame, RankStack
from lllaunch.watchdog.findings import TimerExpired
from lllaunch.watchdog.progress import Progress
from lllaunch.workers.log_files import LogsDest

T0 = 1_700_000_000_000_000_000


def attempt(path: str = "/run/attempt_3", nproc: int = 2, number: int = 3) -> Attempt:
    dest = LogsDest(
        stdouts={0: "", 1: "/dev/null"},
        stderrs={rank: f"{path}/{rank}/stderr.log" for rank in range(nproc)},
        error_files={rank: f"{path}/{rank}/error.json" for rank in range(nproc)},
    )
    facts = {rank: {"rank": str(10 + rank), "restart_count": "2"} for rank in range(nproc)}
    return Attempt(number, path, dest, facts)


def observer(hide=str, read=lambda: UNKNOWN) -> RunObserver:
    log = LineFile(os.devnull, pytest.fail)
    return RunObserver(spec(), log, Console(io.StringIO(), cwd="/run"), hide, read=read)


def test_facts_end_up_with_their_worker():
    recorder = observer()
    recorder.begin(attempt())
    for fact in (
        Ready(0.1),
        Started(0, 500, T0),
        StartFailed(1, "/bin/x", "no", 2, T0 + 1),
        Exited(0, 500, 1, T0 + 2),
        Exited(7, 500, 1, T0 + 3),  # nobody's
        OrphansGone((Orphan(9, "sleep", True),)),
    ):
        recorder.observe(fact)
    (found,) = recorder.records()
    assert (found.number, found.restart_count, found.ended_ns) == (3, 2, T0 + 2)
    assert [(each.local_rank, each.rank) for each in found.workers] == [(0, 10), (1, 11)]
    first, second = found.workers
    assert (first.started.pid, first.exited.exitcode) == (500, 1)
    assert second.start_failed.path == "/bin/x"
    assert (first.files.stdout, second.files.stdout) == ("", "")
    assert second.files.stderr == "/run/attempt_3/1/stderr.log"
    assert second.files.directory == "/run/attempt_3/1"
    assert found.leftovers == (Orphan(9, "sleep", True),)


def test_memory_is_read_at_the_start_and_at_failures_that_it_may_explain():
    counts = iter(range(100))
    recorder = observer(read=lambda: Memory(cgroup_kills=next(counts)))
    recorder.begin(attempt(nproc=6))
    recorder.observe(Exited(4, 504, -11, T0))
    recorder.observe(Exited(0, 500, 1, T0))
    recorder.observe(Exited(1, 501, -9, T0))
    recorder.observe(KillWorkers("signal"))
    recorder.observe(Exited(2, 502, -9, now_ns()))
    # it had ended before, and was reaped after
    recorder.observe(Exited(5, 505, 1, T0))
    recorder.progress = lambda ranks: {rank: Progress(7.0, idle=2.0) for rank in ranks}
    recorder.observe(SpawnerGone(400, -9))
    (found,) = recorder.records()
    assert found.memory.cgroup_kills == 0
    assert [each.memory.cgroup_kills for each in found.workers] == [1, 2, None, None, None, 3]
    assert found.died_memory.cgroup_kills == 4
    assert found.died == SpawnerGone(400, -9)
    known = [worker.progress for worker in found.workers if worker.live]
    assert [each.step for each in known] == [7.0] * len(known) != []
    assert found.died_ns > 0


def test_that_the_disk_of_the_logs_was_full_is_known_also_of_who_was_sent_a_signal(
    tmp_path, monkeypatch
):
    full = os.statvfs_result((4096, 4096, 256, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    recorder = observer()
    recorder.begin(attempt(str(tmp_path), nproc=4))
    recorder.observe(Exited(0, 500, 1, T0))
    recorder.observe(SignalWorkers(15, "signal"))
    # one before, one after, and one that died of it
    recorder.observe(Exited(1, 501, 1, T0 + 5))
    recorder.observe(Exited(2, 502, 1, now_ns()))
    recorder.observe(Exited(3, 503, -15, now_ns()))
    (found,) = recorder.records()
    workers = judge_attempt(structs.replace(found, started_ns=T0 - 1)).workers
    causes = [getattr(worker, "cause", None) for worker in workers]
    assert [type(cause) for cause in causes] == [DiskFull, DiskFull, DiskFull, NoneType]


# What the user is told


def spec(**more: Any) -> LaunchSpec:
    entrypoint = Entrypoint("script", "/a/train.py", "train.py")
    return LaunchSpec(entrypoint, nproc=2, log_dir="/run", cwd="/", **more)


def told(tmp_path, *events: object, **more: Any) -> tuple[list[str], RunObserver]:
    stream = io.StringIO()
    log = LineFile(str(tmp_path / "events.jsonl"), pytest.fail)
    watcher = RunObserver(spec(**more), log, Console(stream, cwd="/run"))
    for event in events:
        watcher.begin(event) if isinstance(event, Attempt) else watcher.observe(event)
    log.close()
    return stream.getvalue().splitlines(), watcher


START = (
    StartWorkers(0, 0),
    attempt("/run/attempt_0", number=0),
    GroupStarted(frozenset({0, 1})),
    Started(0, 500, T0),
    Started(1, 501, T0),
)
FIRST = "lllaunch: attempt 0: 2 workers of train.py, logs in attempt_0"


def test_two_signals_are_told_once_each(tmp_path):
    lines, watcher = told(
        tmp_path,
        *START,
        SignalReceived(2),
        SignalWorkers(2, "signal"),
        StartGrace(),
        SignalReceived(15),
        KillWorkers("signal"),
        StartGrace(),
    )
    assert lines == [
        FIRST,
        (
            "lllaunch: SIGINT received, forwarded to 2 workers; "
            "SIGKILL follows in 30 s, or now on a second signal"
        ),
        "lllaunch: SIGTERM again, killing 2 workers",
    ]
    worker = watcher.records()[0].workers[0]
    assert [each.signum for each in worker.sent] == [2, 9]
    # not a countdown to the SIGKILL that has been sent
    assert watcher.console._follow().doing == "killing"


def test_workers_that_hang_in_the_kernel(tmp_path):
    _, watcher = told(
        tmp_path,
        *START,
        WorkersStuck(),
        KillWorkers("grace"),
        Exited(0, 500, -9, 2 * T0),
        AbandonWorkers(frozenset({1})),
    )
    found = judge_attempt(watcher.records()[0])
    assert found.root_cause.cause == HungInKernel()
    assert own(found.workers[1]) == Lost(why="kernel")


# What the user is told while the watchdog works, attempts are paused, and requests are refused


def said(tmp_path, *events: object, **more: Any) -> list[str]:
    """What is said after an attempt began, without the launcher's name."""
    lines, _ = told(tmp_path, *START, *events, **more)
    return [line.removeprefix("lllaunch: ") for line in lines[1:]]


def again(number: int) -> Attempt:
    return attempt(f"/run/attempt_{number}", number=number)


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
    lines = said(
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
    assert types[4:7] == ["WatchdogFired", "TakeStacks", "StacksTaken"]


FAILURE = Exited(1, 501, 7, T0 + 5)


def test_restart_after_a_pause_is_told_before_it(tmp_path):
    lines = said(
        tmp_path,
        FAILURE,
        Pause(10.0, 1),
        StartWorkers(1, 1, "failure", 1),
        again(1),
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


def test_other_restarts_are_not_counted(tmp_path):
    lines = said(
        tmp_path,
        SpawnerGone(7, -9),
        StartWorkers(1, 1, "spawner"),  # on the house
        again(1),
        StartWorkers(2, 1, "membership"),
        again(2),
        SpawnerGone(8, -9),
        StartWorkers(3, 2, "spawner", 1),
        max_restarts=1,
    )
    ends = [line.rpartition("; ")[2] for line in lines if "restarting" in line]
    assert ends == ["restarting", "restarting", "restarting (1 of 1)"]


def test_of_requests_that_were_refused_the_first_is_told(tmp_path):
    bad = Rejected(77, "it has no scope_id", '{"pid": 77}')
    noise = Rejected(None, "it is not JSON (no)", "\\x1b[2J")
    text = 'a timer request of process 77 was refused, it has no scope_id: {"pid": 77}'
    lines = said(tmp_path, bad, noise, *[bad] * 20)
    assert lines == [f"warning: {text} (further ones are in events.jsonl)"]
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 4 + 22
    assert "was refused, it is not JSON (no): \\x1b" in said(tmp_path, noise)[0]


# What each worker gets

FACTS = {"rank": "5", "local_rank": "1", "attempt": "2"}


def test_arguments_are_made_per_worker():
    args = ("--rank", "${worker:rank}", "${rank}", 3)
    assert target_of(spec(args=args), FACTS) == Script(
        "/a/train.py", ("--rank", "5", "${rank}", "3")
    )
    function = Entrypoint("function", "m", "m:f", "f")
    call = {"args": ({"a": "${worker:attempt}"},), "kwargs": {"k": "${worker:rank}"}}
    made = target_of(replace(spec(**call), entrypoint=function), FACTS)
    assert isinstance(made, Function)
    assert (made.module, made.qualname) == ("m", "f")
    assert pickle.loads(made.call) == (({"a": "2"},), {"k": "5"})


def test_variables_of_a_rank_are_stronger():
    made = spec(
        env={"A": "all ${worker:rank}", "B": "all", "C": "all"},
        derived_env={"C": "more"},
        env_per_rank={range(1, 3): {"B": "one"}, range(1): {"A": "no"}},
    )
    found = worker_environment(made, 1)
    assert (found["A"], found["B"], found["C"]) == ("all 1", "one", "more")


@pytest.mark.parametrize(
    ("template", "several", "ranks", "shown"),
    [
        (None, False, [3], ""),
        (None, True, [3], "[default3]:"),
        (None, True, [0, 1, 3], "[default 0-1,3]:"),
        # what is given is obeyed
        ("", True, [1, 2], ""),
        ("<${worker:local_rank}> ", False, [3], "<3> "),
        ("${worker:rank}/${worker:world_size} ", True, [0, 1, 2], "8-10/16 "),
        ("${worker:hostname}:${worker:role_rank} ", True, [0, 3], "h:8,11 "),
    ],
)
def test_a_line_is_headed_by_those_who_said_it(template, several, ranks, shown):
    facts = {
        n: {**dict.fromkeys(("rank", "role_rank"), str(8 + n)), "local_rank": str(n)}
        | {"world_size": "16", "hostname": "h"}
        for n in range(4)
    }
    made = spec(log_line_prefix=template)
    assert _header(made, facts, several, ranks) == shown


def test_the_interface_of_the_nodes_is_gloos_unless_somebody_has_said_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    nodes = Nodes(2, 2, 0, "c10d", "host0", 29500, interface="ib0")

    def told(**more: object) -> str | None:
        return worker_environment(spec(nodes=nodes, **more), 0).get("GLOO_SOCKET_IFNAME")

    assert told() == "ib0"
    assert told(env={"GLOO_SOCKET_IFNAME": "eth1"}) == "eth1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth2")
    assert told() is None
