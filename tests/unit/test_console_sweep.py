"""A sweep's console where there is no terminal: whole lines, to the right stream."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

import lllaunch.sweep.schedule as v
from lllaunch.console.stream import KEPT, Outlet
from lllaunch.console.sweep import Reported, SweepConsole
from lllaunch.console.table import cells, cut, decoded, padded
from lllaunch.spec import ConsolePolicy
from lllaunch.sweep.history import JobHistory, SweepResult
from lllaunch.sweep.journal import Result
from lllaunch.sweep.policy import Retries, SweepPolicy
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.protocol import JobAnswered, JobPrinted, Prepared, Tick
from lllaunch.testing import FakeClock
from lllaunch.text import coloured, plain
from lllaunch.workers.terminal import screen_of

MOMENT = 0.01  # seconds; enough for a bound that is only to be reached


class Sweep:
    """A console that writes to memory."""

    def __init__(self, place: Path, shows: ConsolePolicy | None = None, **more: Any) -> None:
        self.err, self.out, self.clock = io.StringIO(), io.StringIO(), FakeClock(100.0)
        self.place = place
        self.console = SweepConsole(
            self.err,
            out=self.out,
            cwd=str(place),
            clock=self.clock,
            machine="1 GPU, 2 cores",
            policy=shows,
        )
        self.console.began(str(place / "m"), 3, lambda n: (f"a.x={n}", "b=1"), **more)
        self.new()

    def new(self) -> str:
        """What was said since the last call."""
        text = self.err.getvalue()
        self.err.seek(0)
        self.err.truncate()
        return text

    def observe(self, *events: object) -> None:
        for event in events:
            self.console.observe(event)

    def start(self, number: int) -> None:
        answer = Prepared(Need(1), (f"a.x={number}", "b=1"), str(number))
        composed = [JobAnswered(number, answer), v.JobComposed(number, Need(1))]
        self.observe(*composed, v.StartJob(number, Lease(("0",))), Tick())


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path, common={"b=1"})


def with_policy(place: Path, policy: ConsolePolicy) -> Sweep:
    return Sweep(place, shows=policy, common={"b=1"})


def test_a_sweep_begins(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = SweepConsole(stream, cwd=str(tmp_path), machine="8 GPUs, 2 cores")
    assert not console.live
    console.began(str(tmp_path / "multirun"), 20, lambda _: ())
    console.began("/elsewhere", 1, lambda _: (), resumed=1)
    assert stream.getvalue().split("\n") == [
        "lllaunch: sweep of 20 jobs in multirun, 8 GPUs, 2 cores",
        "lllaunch: sweep of 1 job in /elsewhere, 8 GPUs, 2 cores; 1 of them had succeeded before",
        "",
    ]


def test_now_and_then_a_line_says_how_far_the_sweep_is(tmp_path: Path) -> None:
    sweep = with_policy(tmp_path, ConsolePolicy(interval=300.0))
    assert sweep.console.tick_in() == 300.0
    sweep.start(0)
    sweep.new()
    sweep.clock.advance(299.0)
    sweep.observe(Tick())
    assert sweep.new() == ""
    assert sweep.console.tick_in() == 1.0
    sweep.clock.advance(1.0)
    sweep.observe(v.JobEnded(0, 0, objective=0.5), v.Settle(0, v.JobState.SUCCEEDED, 1, 0))
    sweep.observe(Tick(), Tick())
    assert sweep.new().splitlines() == [
        "lllaunch: job 0 succeeded in 5 min",
        "lllaunch: 5 min: 1/3 jobs done, objective 0.5 (job 0)",
    ]
    # the launcher had something else to do
    sweep.clock.advance(1000.0)
    assert sweep.console.tick_in() == 0.0
    sweep.observe(Tick(), Tick())
    assert sweep.new().count("jobs done") == 1


@pytest.mark.parametrize(
    "policy", [ConsolePolicy(interval=None), ConsolePolicy(quiet=True, interval=1.0)]
)
def test_no_such_line_is_said_where_nobody_wants_it(tmp_path: Path, policy: ConsolePolicy) -> None:
    sweep = with_policy(tmp_path, policy)
    assert sweep.console.tick_in() is None
    sweep.start(0)
    sweep.new()
    sweep.clock.advance(1e6)
    sweep.observe(Tick())
    assert sweep.new() == ""


def test_a_quiet_sweep_says_what_fails_and_nothing_else(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    sweep.console = SweepConsole(sweep.err, cwd=str(tmp_path), policy=ConsolePolicy(quiet=True))
    sweep.console.began(str(tmp_path), 2, lambda _: ())
    sweep.start(0)
    sweep.observe(v.JobEnded(0, 0), v.Settle(0, v.JobState.SUCCEEDED, 1, 0))
    done = JobHistory(0, ("a.x=0",), "0", state="succeeded", result=Result("succeeded", 0))
    sweep.console.finished(SweepResult((done,), exit_code=0))
    assert sweep.new() == ""
    sweep.start(1)
    sweep.observe(v.JobEnded(1, 3), v.Settle(1, v.JobState.FAILED, 1, 3))
    assert sweep.new() == "lllaunch: job 1 failed after 0 ms: exit code 3; logs in 1\n"
    failed = JobHistory(1, ("a.x=1",), "1", state="failed", result=Result("failed", 3))
    sweep.console.finished(SweepResult((done, failed), exit_code=6))
    assert "1 of 2 jobs succeeded, 1 failed" in sweep.new()


@pytest.mark.parametrize(
    ("color", "environ", "expected"),
    [
        ("always", {}, True),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, True),
        (None, {}, False),
        (None, {"FORCE_COLOR": "1"}, True),
        (None, {"FORCE_COLOR": "1", "TERM": ""}, True),
        ("never", {"FORCE_COLOR": "1"}, False),
    ],
)
def test_colours_are_as_the_policy_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    color: Any,
    environ: dict[str, str],
    expected: bool,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    sweep = with_policy(tmp_path, ConsolePolicy(color=color))
    sweep.start(1)
    sweep.observe(v.JobEnded(1, 3), v.Settle(1, v.JobState.FAILED, 1, 3))
    assert ("\x1b[31m" in sweep.new()) == expected


def test_each_change_is_one_line(sweep: Sweep) -> None:
    sweep.start(1)
    assert sweep.new() == "lllaunch: job 1 started (x=1) on GPU 0\n"
    sweep.clock.advance(12.5)
    sweep.observe(v.JobEnded(1, 0), v.Settle(1, v.JobState.SUCCEEDED, 1, 0))
    assert sweep.new() == "lllaunch: job 1 succeeded in 12 s\n"


def test_a_failed_job_says_why(sweep: Sweep) -> None:
    sweep.start(1)
    sweep.new()
    ended = v.JobEnded(1, 3, "failure", "rank 1: raised ValueError: no")
    sweep.observe(ended, v.Settle(1, v.JobState.FAILED, 1, 3))
    why = "exit code 3: rank 1: raised ValueError: no"
    assert sweep.new() == f"lllaunch: job 1 failed after 0 ms: {why}; logs in m/1\n"


def test_the_policy_tells_how_often(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, policy=SweepPolicy(max_failures=1, retries=Retries(failure=5)))
    sweep.start(0)
    sweep.observe(v.JobEnded(0, 3, "failure"), v.Retry(0, 1, "failure"))
    assert "trying again (1 of 5)\n" in sweep.new()
    sweep.start(1)
    sweep.observe(v.JobEnded(1, 3), v.Settle(1, v.JobState.FAILED, 1, 3))
    assert sweep.new().endswith("lllaunch: 1 job has failed: no more are started\n")


def test_lines_of_jobs_go_where_the_jobs_wrote_them(sweep: Sweep) -> None:
    sweep.start(2)
    sweep.new()
    sweep.observe(
        JobPrinted(2, 1, b"50%\r100%\r"),
        JobPrinted(2, 2, b"caf\xe9 caf\xc3\xa9"),
        JobPrinted(2, 1, b""),
        JobPrinted(0, 1, b"composing"),
    )
    assert sweep.out.getvalue() == "[2] 100%\n[2] \n[0] composing\n"
    assert sweep.new() == "[2] caf\\xe9 café\n"


def test_the_summary_of_some_jobs(sweep: Sweep) -> None:
    def job(number: int, state: str) -> JobHistory:
        ended = Result(state, 3, "no", 1.0)
        return JobHistory(
            number, (f"a.x={number}",), str(number), state=state, tries=1, result=ended
        )

    jobs = (job(0, "failed"), job(1, "succeeded"), job(2, "succeeded"))
    result = SweepResult(jobs, exit_code=0, seconds=3.0)
    sweep.console.finished(result)
    assert "job 0 (x=0) failed: exit code 3: no\n" in sweep.new()
    for number in (1, 2):
        sweep.start(number)
        sweep.observe(v.JobEnded(number, 0), v.Settle(number, v.JobState.SUCCEEDED, 1, 0))
    sweep.console.finished(result, range(1, 3))
    ranged = sweep.new()
    assert "job 0" not in ranged
    sweep.console.finished(result, (2, 1))
    assert ranged.endswith(sweep.new())


def test_a_started_job_is_told_when_nothing_else_happens(sweep: Sweep) -> None:
    answer = Prepared(Need(1), ("a.x=0",), "0")
    composed = [JobAnswered(0, answer), v.JobComposed(0, Need(1))]
    sweep.observe(*composed, v.ComposeNext(), v.StartJob(0, Lease()), v.NoMoreJobs())
    assert sweep.new() == ""
    sweep.observe(Tick())
    assert sweep.new() == "lllaunch: job 0 started (x=0)\n"


def test_a_launcher_without_streams_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    monkeypatch.setattr("sys.stdout", None)
    with contextlib.closing(SweepConsole(live=True)) as console:
        assert not console.live
        console.began("/m", 1, lambda _: ())
        for event in (v.BeginSweep(1), JobPrinted(0, 1, b"x"), JobPrinted(0, 2, b"x"), Tick()):
            console.observe(event)


# Streams that take nothing


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    stream = os.fdopen(write, "w", encoding="utf-8")
    yield read, stream
    with contextlib.suppress(OSError):
        stream.close()
    with contextlib.suppress(OSError):
        os.close(read)


def fill(stream: TextIO) -> None:
    os.set_blocking(stream.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(stream.fileno(), b"." * 4096)
    os.set_blocking(stream.fileno(), True)


def taken(descriptor: int) -> str:
    found = b""
    with contextlib.suppress(BlockingIOError):
        while block := os.read(descriptor, 1 << 16):
            found += block
    return found.decode().lstrip(".")


def test_what_a_full_pipe_does_not_take_is_kept_in_order(pipe: tuple[int, TextIO]) -> None:
    read, stream = pipe
    fill(stream)
    flow = Outlet(stream, room=KEPT)
    for number in range(1000):
        flow.put(f"{number}\n", MOMENT)
    assert flow.pending
    assert taken(read) == ""
    flow.push()
    assert not flow.pending
    assert taken(read) == "".join(f"{number}\n" for number in range(1000))


def test_what_another_writer_is_in_the_way_of_is_kept(pipe: tuple[int, TextIO]) -> None:
    read, stream = pipe
    screen = screen_of(stream)
    entered, leave = threading.Event(), threading.Event()

    def write_slowly() -> None:
        with screen.turn():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=write_slowly)
    thread.start()
    assert entered.wait(10)
    flow = Outlet(stream, room=KEPT)
    flow.put("later\n", 0.0)
    leave.set()
    thread.join()
    assert flow.pending
    flow.push()
    assert taken(read) == "later\n"


def test_what_is_too_much_is_left_out_and_counted(pipe: tuple[int, TextIO]) -> None:
    read, stream = pipe
    fill(stream)
    flow = Outlet(stream, room=KEPT, elsewhere="the jobs' logs")
    line = "x" * 999 + "\n"
    for _ in range(KEPT // 1000 + 100):
        flow.put(line, 0.0)
    found = ""
    while flow.pending:
        found += taken(read)
        flow.push()
    found += taken(read)
    *lines, notice, end = found.split("\n")
    assert set(lines) == {line.rstrip()}
    assert KEPT // 1000 - 10 < len(lines) < KEPT // 1000 + 10
    left_out = KEPT // 1000 + 100 - len(lines)
    expected = f"lllaunch: {left_out} messages were not shown: the console took nothing"
    assert notice == f"{expected}; see the jobs' logs"
    assert end == ""


def test_a_reader_that_goes_away_is_forgotten(pipe: tuple[int, TextIO], tmp_path: Path) -> None:
    read, stream = pipe
    fill(stream)
    console = SweepConsole(stream, out=stream)
    console.began(str(tmp_path), 1, lambda _: ())
    os.close(read)
    console.observe(JobPrinted(0, 1, b"x"))
    console.observe(Tick())
    console.close()


def test_a_closed_stream_is_forgotten(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = SweepConsole(stream, out=stream)
    stream.close()
    console.began(str(tmp_path), 1, lambda _: ())
    console.observe(JobPrinted(0, 1, b"x"))
    console.close()
    console.close()


def test_both_streams_in_one_pipe_never_mix_within_a_line(
    pipe: tuple[int, TextIO], tmp_path: Path
) -> None:
    read, stream = pipe
    other = os.fdopen(os.dup(stream.fileno()), "w", encoding="utf-8")
    console = SweepConsole(stream, out=other, cwd=str(tmp_path))
    console.began(str(tmp_path), 1, lambda _: ())
    # A line that a pipe takes a part of.
    long = b"a" * 200_000
    console.observe(JobPrinted(0, 1, long))
    console.observe(JobPrinted(1, 2, b"b"))
    found = taken(read)
    console.observe(Tick())
    found += taken(read)
    while not found.endswith("[1] b\n"):
        console.observe(Tick())
        found += taken(read)
    other.close()
    assert found.split("\n")[1:] == [f"[0] {long.decode()}", "[1] b", ""]


def test_letters_that_a_stream_lacks_are_written_out() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    Outlet(stream, room=KEPT).put("é漢\n", MOMENT)
    assert raw.getvalue() == b"\\xe9\\u6f22\n"


# Cells


def test_wide_letters_take_two_columns_and_accents_none() -> None:
    assert cells("aé漢🙂e\u0301") == 7
    assert cut("漢漢漢漢漢漢", 9) == "漢漢漢..."
    assert cut("漢漢漢", 3) == "漢"
    assert padded("漢", 4) == "漢  "
    assert padded("漢", 4, right=True) == "  漢"
    assert padded("漢漢", 3) == "漢 "


def test_lines_cannot_steer_the_terminal() -> None:
    assert coloured("a\x1b[31mred\x1b[2J\x1b]0;title\x07b\x08\tc") == "a\x1b[31mredb\\x08\tc\x1b[0m"
    assert coloured("plain é") == "plain é"
    assert plain("a\x1b[1mb\tc\x1b(B\x9b") == "ab c\\x1b(B\\x9b"
    assert decoded(b"1\r\r2\r\r") == "2"


def test_a_failure_that_was_reported_is_not_reported_again() -> None:
    reported = Reported()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, b"yn"[1 - reported.is_new("ValueError: no")].to_bytes(1, "big"))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    assert os.read(read, 2) == b"y"
    os.close(read)
    # another process has
    assert not reported.is_new("ValueError: no")
    assert reported.is_new("KeyError: 3")


def test_a_sweep_of_several_batches_begins_once(tmp_path: Path) -> None:
    stream = io.StringIO()
    for batch in range(2):
        console = SweepConsole(stream, cwd=str(tmp_path), machine="8 GPUs")
        console.began(str(tmp_path / "m"), 1, lambda _: (), batch=batch)
    begun = "lllaunch: sweep in m, whose jobs the sweeper chooses as it goes on, 8 GPUs\n"
    assert stream.getvalue() == begun
