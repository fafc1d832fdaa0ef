"""What a sweep's console says where there is no terminal, and in the end, from sweep.json."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import lllaunch.sweep.schedule as v
from lllaunch.console.sweep import Board, SweepConsole
from lllaunch.console.views import Setting, summary_rows
from lllaunch.results.sweeps import entry_of_job
from lllaunch.spec import ConsolePolicy
from lllaunch.sweep.history import JobHistory, SweepHistory, SweepResult, summary_of
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    OverRecord,
    Result,
    Skipped,
    StartedRecord,
)
from lllaunch.sweep.objective import Direction
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.protocol import JobPrinted, Tick
from lllaunch.testing import FakeClock
from lllaunch.words import done_text, jobs_text, resume_override


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
        self.console.began(Board(str(place / "m"), 3, lambda n: (f"a.x={n}", "b=1"), **more))
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
        composed = v.JobComposed(number, Need(1), (f"a.x={number}", "b=1"), str(number))
        self.observe(composed, v.StartJob(number, Lease(("0",))), Tick())


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path, common={"b=1"})


def test_a_sweep_begins(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = SweepConsole(stream, cwd=str(tmp_path), machine="8 GPUs, 2 cores")
    assert not console.live
    console.began(Board(str(tmp_path / "multirun"), 20))
    console.began(Board("/elsewhere", 1, resumed=1))
    # of several batches the first begins it
    for batch in range(2):
        console.began(Board("/m", 1), batch)
    machine = "8 GPUs, 2 cores"
    assert stream.getvalue().split("\n") == [
        f"lllaunch: sweep of 20 jobs in multirun, {machine}",
        f"lllaunch: sweep of 1 job in /elsewhere, {machine}; 1 of them had succeeded before",
        f"lllaunch: sweep in /m, whose jobs the sweeper chooses as it goes on, {machine}",
        "",
    ]


def test_now_and_then_a_line_says_how_far_the_sweep_is(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ConsolePolicy(interval=300.0), common={"b=1"})
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
        "lllaunch: 5 min: 1/3 done, 2 waiting, objective 0.5 (job 0)",
    ]
    # the launcher had something else to do
    sweep.clock.advance(1000.0)
    assert sweep.console.tick_in() == 0.0
    sweep.observe(Tick(), Tick())
    assert sweep.new().count("1/3 done") == 1
    assert Sweep(tmp_path, ConsolePolicy(interval=None)).console.tick_in() is None


def test_a_quiet_sweep_says_what_fails_and_nothing_else(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ConsolePolicy(quiet=True, interval=1.0))
    assert sweep.console.tick_in() is None
    sweep.start(0)
    sweep.observe(v.JobEnded(0, 0), v.Settle(0, v.JobState.SUCCEEDED, 1, 0))
    done = JobHistory(0, ("a.x=0",), "0", state="succeeded", exit_code=0)
    sweep.console.finished(SweepResult((done,), exit_code=0))
    assert sweep.new() == ""
    sweep.start(1)
    sweep.observe(v.JobEnded(1, 3), v.Settle(1, v.JobState.FAILED, 1, 3))
    assert sweep.new() == "lllaunch: job 1 failed after 0 ms: exit code 3; logs in m/1\n"
    failed = JobHistory(1, ("a.x=1",), "1", state="failed", exit_code=3)
    sweep.console.finished(SweepResult((done, failed), exit_code=6))
    assert "1 of 2 jobs succeeded, 1 failed" in sweep.new()


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
        ended: Any = structs.asdict(Result(state, 3, "no", 1.0))
        return JobHistory(number, (f"a.x={number}",), str(number), tries=1, **ended)

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


S = 1_000_000_000
SETTING = Setting("/home/ada/multirun/1", "/home/ada", total=3, common={"+exp=a"})


def ended(job: int, state: str, code: int, why: str = "", value: str | None = None) -> EndedRecord:
    return EndedRecord(job, 0, Result(state, code, why, 12.5, value))


def document(*records: Any, jobs: int = 3, code: int | None = 6) -> SweepResult:
    """What sweep.json says, made from a journal."""
    history = SweepHistory()
    told: list[Any] = [Header("id", "0.1.0")]
    for number in range(jobs):
        told.append(ComposedRecord(number, ("+exp=a", f"params.lr={number + 1}"), str(number), "f"))
    tries = [StartedRecord(record.job) for record in records if isinstance(record, EndedRecord)]
    for record in [*told, *tries, *records, *([] if code is None else [OverRecord(code)])]:
        history.add(S, record)
    return summary_of(history, 201 * S)


def shown(found: SweepResult, setting: Setting = SETTING) -> str:
    jobs = (entry_of_job(job, setting.directory, "failed") for job in found.jobs)
    rows = summary_rows(found, jobs, setting)
    return "".join(f"{''.join(part.text for part in row)}\n" for row in rows)


def test_failures_are_explained_and_how_to_go_on() -> None:
    records = [
        ended(0, "failed", 3, "rank 1: raised ValueError: no"),
        ended(1, "succeeded", 0, value="0.25"),
    ]
    found = shown(document(*records), SETTING._replace(total=4))
    verdict = "1 of 4 jobs succeeded, 1 failed, 2 not run in 3 min 20 s (exit code 6)"
    assert found.split("\n") == [
        "",
        "  job  overrides  state      time  value",
        "    0  lr=1       failed     12 s",
        "    1  lr=2       succeeded  12 s   0.25",
        "  and 2 jobs that were not run",
        "",
        "  job 0 (lr=1) failed: exit code 3: rank 1: raised ValueError: no",
        "    logs in multirun/1/0",
        "",
        f"lllaunch: {verdict}; multirun/1/sweep.json",
        "lllaunch: to run the rest, add to the same command: hydra.launcher.resume=multirun/1",
        "",
    ]


def test_jobs_that_failed_of_the_same_are_told_together() -> None:
    why = "rank 0: raised ValueError: no"
    records = [ended(number, "failed", 3, why) for number in range(5)]
    found = shown(document(*records, ended(5, "signalled", 137), jobs=6))
    logs = ", ".join(f"multirun/1/{number}" for number in range(3))
    assert f"  jobs 0-4 failed: exit code 3: {why}\n    logs in {logs} and 2 more\n" in found
    assert "  job 5 (lr=6) failed: SIGKILL (exit code 137)\n" in found
    assert "0 of 6 jobs succeeded, 6 failed" in found
    # another rank came first in each
    ranks = [ended(n, "failed", 3, f"rank {n}: raised ValueError: no") for n in range(2)]
    found = shown(document(*ranks, jobs=2), SETTING._replace(total=2))
    assert "  jobs 0-1 failed: exit code 3: raised ValueError: no\n" in found


def test_a_job_that_a_signal_ended_is_one_that_failed_and_the_signal_is_named_once() -> None:
    jobs = [ended(number, "signalled", 143, "SIGTERM") for number in range(2)]
    found = shown(document(*jobs, jobs=2), SETTING._replace(total=2))
    assert "  jobs 0-1 failed: SIGTERM (exit code 143)\n" in found
    assert "0 of 2 jobs succeeded, 2 failed" in found
    # as ls and top have it
    counts = {"signalled": 1, "error": 1, "succeeded": 3}
    assert jobs_text(counts) == "3 of 5 jobs succeeded, 2 failed"
    assert done_text(counts) == "3/5 done, 2 failed"


def test_of_a_large_sweep_the_failures_are_shown() -> None:
    records = [ended(number, "succeeded", 0) for number in range(99)]
    found = shown(document(*records, ended(99, "failed", 3), jobs=100))
    assert found.count("succeeded") == 1
    assert "\n   99  lr=100     failed  12 s\n" in found
    few = shown(document(*(ended(n, "failed", 3, f"no {n}") for n in range(60)), jobs=60))
    assert "and 10 more failed, see sweep.json\n" in few
    assert "and 48 more jobs for other reasons, see sweep.json\n" in few


def test_jobs_that_were_cancelled_or_not_even_composed_are_counted() -> None:
    records = [ended(0, "succeeded", 0), ended(1, "signalled", 130)]
    found = shown(document(*records, code=130), SETTING._replace(total=9, cancelled={1}))
    assert "    1  lr=2       cancelled  12 s\n" in found
    assert "failed" not in found
    told = "1 of 9 jobs succeeded, 1 cancelled, 7 not run in 3 min 20 s (exit code 130)"
    assert told in found


def test_a_job_whose_end_is_not_known_is_no_success() -> None:
    found = shown(document(StartedRecord(0), Skipped(2, "no more jobs are started"), code=None))
    assert "  job 0 (lr=1) failed: no result\n" in found
    assert "0 of 3 jobs succeeded, 1 failed, 2 not run in" in found


@pytest.mark.parametrize(
    ("direction", "told"),
    [
        ("minimize", "best -3 of job 1 (lr=2)"),
        ("maximize", "best 1e+300 of job 2 (lr=3)"),
        (None, "lowest -3 of job 1 (lr=2), highest 1e+300 of job 2 (lr=3)"),
    ],
)
def test_the_best_objective_is_named(direction: Direction | None, told: str) -> None:
    values = ["0.5", "-3", "1e300"]
    records = [ended(job, "succeeded", 0, value=value) for job, value in enumerate(values)]
    found = shown(structs.replace(document(*records, code=0), direction=direction))
    assert f"lllaunch: objective: {told}\n" in found


def test_the_resume_can_be_pasted_into_a_shell() -> None:
    assert resume_override("multirun/1-2_3") == "hydra.launcher.resume=multirun/1-2_3"
    assert resume_override("a b") == """'hydra.launcher.resume='"'"'a b'"'"''"""
