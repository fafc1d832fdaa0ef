"""What a path is, and what is read there: whole, unfinished, damaged and hostile directories."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lllaunch.console.report import report_lines
from lllaunch.documents import Fields
from lllaunch.errors import ConfigError, OutputError
from lllaunch.results.announce import announce, announce_error
from lllaunch.results.cases import Report
from lllaunch.results.report import LOG_LINES
from lllaunch.results.report import load as load_found
from lllaunch.results.store import NoSuchRun, locate
from lllaunch.results.text import render_json, render_text
from lllaunch.run.causes import ExitedNonZero, KilledBySignal, Raised
from lllaunch.run.hang import Hang
from lllaunch.run.outcome import (
    AttemptOutcome,
    Ended,
    Failed,
    RootCause,
    RunOutcome,
    Succeeded,
    WorkerOutcome,
)
from lllaunch.run.postmortem import Explanation
from lllaunch.run.records import WorkerFiles
from lllaunch.run.result import ResultFile, render_result
from lllaunch.sweep.history import SweepHistory, summary_of, write_summary
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    Journal,
    OverRecord,
    Result,
    Resumed,
    Skipped,
    StartedRecord,
    read_journal,
)
from lllaunch.verbs.report import main
from lllaunch.watchdog.findings import TimedOut, TimerExpired
from lllaunch.watchdog.stacks.frames import Frame, RankStack

T0 = 1_700_000_000_000_000_000
SECOND = 10**9
HOST = {"hostname": "node"}


def load(path: str, *arguments: Any, **more: Any) -> Report:
    return load_found(locate(path), *arguments, **more)


class Place:
    """A run's directory that holds what a run would have left."""

    def __init__(self, path: Path, ended_ns: int = T0 + 5 * SECOND) -> None:
        self.path, self.ended_ns = path, ended_ns
        path.mkdir(parents=True)
        (path / "plan.yaml").write_text("launch: {}\n")

    def log(self, rank: int, stream: str, text: str) -> None:
        directory = self.path / "attempt_0" / str(rank)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{stream}.log").write_text(text)

    def workers(self, count: int, first: int = 0) -> tuple[WorkerOutcome, ...]:
        """One failed, the others were ended."""
        return tuple(
            WorkerOutcome(
                rank,
                rank,
                Failed(ExitedNonZero(1), T0) if rank == first else Ended(15, -15),
                self.files(rank),
                7 + rank,
            )
            for rank in range(count)
        )

    def files(self, rank: int) -> WorkerFiles:
        place = f"{self.path}/attempt_0/{rank}"
        return WorkerFiles(place, f"{place}/stdout.log", f"{place}/stderr.log")

    def ends(self, state: Any, code: int, root: RootCause | None = None, **more: Any) -> Path:
        attempts = more.pop("attempts", None)
        if attempts is None:
            path = f"{self.path}/attempt_0"
            workers = self.workers(2, 1)
            attempts = (AttemptOutcome(0, 0, path, "failed", T0, T0 + 1, workers, root),)
        outcome = RunOutcome(
            *(state, code, str(self.path), "id", T0, self.ended_ns, attempts, root),
            plan_hash="ab12",
            **more,
        )
        (self.path / "result.json").write_bytes(render_result(outcome, HOST))
        return self.path


def raised(trace: str = "", rank: int = 1) -> RootCause:
    return RootCause(0, rank, rank, Raised("ValueError: no\nmore", 1), T0, traceback=trace)


def only(report: Report) -> Any:
    (case,) = report.cases
    return case


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "run")


# What a path is


def test_a_run_and_a_sweep_are_found_by_their_directories_and_their_files(place: Place) -> None:
    run = place.ends("succeeded", 0)

    def located(path: Path) -> tuple[str, str, str]:
        found = locate(str(path))
        return found.kind, found.path, found.document

    for path in (run, run / "result.json", run / "plan.yaml"):
        assert located(path) == ("run", str(run), str(run / "result.json"))
    copy = run / "kept.json"
    (run / "result.json").rename(copy)
    assert located(copy) == ("run", str(run), str(copy))
    swept = run.parent / "sweep"
    swept.mkdir()
    (swept / "sweep.jsonl").touch()
    for path in (swept, swept / "sweep.jsonl"):
        assert located(path) == ("sweep", str(swept), str(swept / "sweep.json"))
    (run.parent / "swept.json").write_text('{"jobs": []}')
    assert located(run.parent / "swept.json")[0] == "sweep"
    # a run whose launcher has only begun
    (run.parent / "begun" / "attempt_0").mkdir(parents=True)
    assert located(run.parent / "begun")[0] == "run"


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        (
            {"x/a": ""},
            "x",
            "'x' is not the directory of a run or a sweep; 'python -m lllaunch ls x",
        ),
        ({"x/.hydra/a": ""}, "x", "'x' holds no plan.yaml; the run was refused before it began"),
        ({"x/multirun.yaml": ""}, "x", "'x' holds no sweep.jsonl; the sweep was refused"),
        ({"result.json": "[1]"}, "result.json", "'result.json' is not a JSON object"),
        ({"x/result.json": "{"}, "x", "'x/result.json' is not JSON: "),
        ({"x/result.json": '{"version": 2}'}, "x", "is of version 2; this lllaunch reads"),
        ({"x/result.json": "{}"}, "x", "'x/result.json' has no version"),
        ({"x/sweep.json": '{"version": "1"}'}, "x", "is of version '1'"),
        ({"x/result.json": "[" * 100_000}, "x", "'x/result.json' is not JSON: "),
    ],
)
def test_what_is_no_run_is_told_with_what_was_expected(
    files: Mapping[str, str],
    path: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises((ConfigError, NoSuchRun)) as caught:
        load(path)
    assert message in str(caught.value)
    assert main([path]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("lllaunch: ")
    assert "Traceback" not in told.err


# A run


def test_a_failed_run_is_told_with_its_place_and_its_logs(place: Place) -> None:
    lines = "".join(f"line {number}\n" for number in range(LOG_LINES + 50))
    place.log(1, "stdout", lines)
    place.log(1, "stderr", "warning\nTrace\n")
    place.log(0, "stderr", "of another rank")
    why = Explanation("itself", "likely", "A bug.")
    trace = f'Trace\n  File "{place.path}/src/train.py", line 12, in f\nValueError: no\nmore'
    root = RootCause(0, 1, 1, Raised("ValueError: no\nmore", 1), T0, why, trace)
    report = load(str(place.ends("failed", 3, root)), [str(place.path)])
    case = only(report)
    assert (report.kind, report.finished, report.exit_code) == ("run", True, 3)
    assert report.verdict() == "failed after 5.0 s (exit code 3)"
    assert (case.outcome, case.kind) == ("failed", "Raised")
    assert case.message == "rank 1: raised ValueError: no"
    assert case.place == ("src/train.py", 12)
    assert case.explanation == ("Why (likely): A bug.",)
    assert case.traceback == tuple(trace.split("\n"))
    assert (case.plan_hash, case.run_id, case.hostname) == ("ab12", "id", "node")
    out, err = case.logs
    assert (out.path, len(out.lines), out.cut) == ("attempt_0/1/stdout.log", LOG_LINES, True)
    assert out.lines[-1] == f"line {LOG_LINES + 49}"
    assert (err.lines, err.cut) == (("warning", "Trace"), False)


def test_a_crash_is_placed_by_what_faulthandler_wrote(place: Place) -> None:
    place.log(1, "stderr", f'Fatal Python error\n  File "{place.path}/a.py", line 3 in f\n')
    root = RootCause(0, 1, 1, KilledBySignal(11), T0)
    case = only(load(str(place.ends("failed", 3, root)), [str(place.path)]))
    assert (case.message, case.place) == ("rank 1: died of SIGSEGV", ("a.py", 3))


def test_a_hang_is_told_with_where_the_ranks_stood(place: Place) -> None:
    place.log(1, "stderr", "of the one that hung")
    finding = TimerExpired(1, 7, "sync", 10.0, 9)
    frames = (
        Frame("/lib/python3.11/x.py", 1, "wait"),
        Frame(f"{place.path}/t.py", 40, "sync", "x"),
    )
    stacks = {0: RankStack(0, state="S", wchan="futex"), 1: RankStack(1, "", frames)}
    hang = Hang(finding, T0, None, (1,), (1,), (0,), stacks=stacks)
    root = RootCause(0, None, None, finding, T0, hang=hang)
    case = only(load(str(place.ends("failed", 4, root)), [str(place.path)]))
    assert (case.kind, case.place) == ("TimerExpired", ("t.py", 40))
    assert case.message == "rank 1: hung: its timer 'sync' ran out after 10 s"
    assert case.explanation == (
        "Only waited for that: rank 0",
        "Rank 0 stood in the kernel: S futex",
        "Rank 1 stood at (innermost first):",
        "  /lib/python3.11/x.py:1 in wait",
        f"  {place.path}/t.py:40 in sync: x",
    )
    assert case.logs[-1].lines == ("of the one that hung",)


def test_a_run_out_of_time_before_its_next_attempt_tells_both(place: Place) -> None:
    case = only(load(str(place.ends("failed", 4, raised(), limit=TimedOut(3.0, "run")))))
    assert (case.kind, case.message) == ("TimedOut", "rank 1: raised ValueError: no")
    assert "Then the run took too long: the run is limited to 3.0 s" in case.explanation


@pytest.mark.parametrize(
    ("state", "code", "more", "kind", "message"),
    [
        ("signalled", 143, {"signum": 15}, "signal", "ended by SIGTERM"),
        ("error", 1, {"error": "internal error\nTraceback"}, "error", "internal error"),
        ("error", 2, {"error": "launch.preload: no"}, "config", "launch.preload: no"),
        ("failed", 3, {}, "failed", "workers failed"),
    ],
)
def test_other_ends_have_kinds_of_their_own(
    place: Place, state: str, code: int, more: dict[str, Any], kind: str, message: str
) -> None:
    case = only(load(str(place.ends(state, code, **more))))
    assert (case.kind, case.message, case.exit_code) == (kind, message, code)
    assert case.outcome == ("failed" if state == "failed" else "error")


def test_a_run_that_succeeded_tells_no_failure(place: Place) -> None:
    place.log(0, "stderr", "a warning")
    done = (WorkerOutcome(0, 0, Succeeded(), place.files(0), exitcode=0),)
    attempts = (
        AttemptOutcome(0, 0, f"{place.path}/attempt_0", "failed", T0, T0, (), raised()),
        AttemptOutcome(1, 1, f"{place.path}/attempt_1", "succeeded", T0, T0, done),
    )
    report = load(str(place.ends("succeeded", 0, attempts=attempts)))
    case = only(report)
    assert (case.outcome, case.kind, case.message, case.logs) == ("succeeded", "", "", ())
    assert (case.attempts, case.explanation) == (2, ())
    assert report.verdict() == "succeeded in 5.0 s"


def test_a_run_without_a_result_or_with_that_of_an_earlier_one_is_not_over(place: Place) -> None:
    report = load(str(place.path))
    assert (report.finished, report.exit_code) == (False, None)
    died = "no result.json: its launcher was killed, or the machine went down"
    assert (report.verdict(), only(report).outcome) == (died, "error")
    assert died in render_text(report)
    place.ends("succeeded", 0)
    events = place.path / "events.jsonl"
    event = {"time": "2023-11-14T22:13:21.000000Z", "type": "Started"}
    events.write_text(json.dumps(event) + "\n")
    assert load(str(place.path)).finished
    with events.open("a") as file:
        file.write(json.dumps({**event, "time": "2023-11-14T22:13:26.000000Z"}) + '\n{"torn')
    assert not load(str(place.path)).finished


def test_overrides_are_told_without_secrets(place: Place) -> None:
    (place.path / ".hydra").mkdir()
    given = [
        *("+exp=a", "launch.env.API_TOKEN=abcdef", "x.tokens=3"),
        "launch.env={DB_PASSWORD: hunter22, A: b}",
        "launch.env.HF_TOKEN=${oc.env:HF_TOKEN}",
    ]
    (place.path / ".hydra" / "overrides.yaml").write_text(json.dumps(given))
    case = only(load(str(place.ends("succeeded", 0))))
    assert case.overrides == (
        *("+exp=a", "launch.env.API_TOKEN=${oc.env:API_TOKEN}", "x.tokens=3"),
        "launch.env={DB_PASSWORD: ${oc.env:DB_PASSWORD}, A: b}",
        "launch.env.HF_TOKEN=${oc.env:HF_TOKEN}",
    )
    (place.path / ".hydra" / "overrides.yaml").write_text("- a\n b: [")
    assert only(load(str(place.path))).overrides == ()


# Hostile directories


def test_a_result_that_is_no_file_is_an_error_that_names_it(place: Place) -> None:
    (place.path / "result.json").mkdir()
    with pytest.raises(OutputError, match=r"result\.json': is not a regular file"):
        load(str(place.path))


def test_no_file_outside_of_the_directory_and_no_pipe_is_read(place: Place, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter22")
    place.log(1, "stdout", "x")
    stdout = place.path / "attempt_0" / "1" / "stdout.log"
    stdout.unlink()
    stdout.symlink_to(tmp_path / "secret")
    os.mkfifo(place.path / "attempt_0" / "1" / "stderr.log")
    run = place.ends("failed", 3, raised())
    assert only(load(str(run))).logs == ()
    document = json.loads((run / "result.json").read_text())
    for name in ("../secret", str(tmp_path / "secret"), "\x00", "attempt_0", 7, ["x"]):
        document["attempts"][0]["workers"][1]["stdout"] = name
        (run / "result.json").write_text(json.dumps(document))
        assert only(load(str(run))).logs == ()


JUNK = (None, 7, -1, 1.5, True, "text", "\ud800\x1b[31m", [], {}, [{}], {"a": 1}, [[1]], 10**400)


def changed(document: Any, junk: Any, path: tuple[Any, ...] = ()) -> Any:
    """All documents in which one value is another one."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(pairs):
        if (*path, key) != ("version",):
            document[key] = junk
            yield document
            document[key] = value
            if isinstance(value, (dict, list)):
                yield from changed(value, junk, (*path, key))


def test_no_document_of_another_make_is_an_error_of_ours(place: Place) -> None:
    finding = TimerExpired(1, 7, "sync", 10.0, 9)
    frames = (Frame(f"{place.path}/t.py", 40, "sync", "x"),)
    hang = Hang(finding, T0, None, (1,), (1,), (0,), stacks={1: RankStack(1, "", frames)})
    why = Explanation("itself", "likely", "A bug.")
    root = RootCause(0, None, None, finding, T0, why, "Trace", hang=hang)
    run = place.ends("failed", 4, root, limit=TimedOut(3.0, "run"))
    document = json.loads((run / "result.json").read_text())
    from lllaunch.results.cases import Tree
    from lllaunch.results.github import commands, summary
    from lllaunch.results.junit import render_junit
    from lllaunch.results.report import blamed, run_case

    for junk in JUNK:
        for _ in changed(document, junk):
            result = ResultFile(Fields(document), str(place.path))
            outcome = result.outcome
            if outcome is not None:
                blamed(outcome)
                "".join(line.text for line in report_lines(outcome, "/"))
            report = Report("run", "x", (run_case(result, Tree(["/"])),))
            for render in (render_text, render_json, render_junit, summary):
                render(report).encode()
            commands(report)


# A sweep


class Swept:
    """A sweep's directory, and its journal."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.time = T0
        self.journal = Journal.create(str(path / "sweep.jsonl"), Header("id", "0.1"), self.now)

    def now(self) -> int:
        self.time += SECOND
        return self.time

    def add(self, *records: Any) -> None:
        for record in records:
            self.journal.append(record)

    def over(self, code: int) -> None:
        self.add(OverRecord(code))
        history = SweepHistory(read_journal(self.journal.path))
        write_summary(str(self.path / "sweep.json"), summary_of(history, self.time - 1))


@pytest.fixture
def swept(tmp_path: Path) -> Any:
    made = Swept(tmp_path / "sweep")
    made.add(*(ComposedRecord(job, ("+exp=a", f"x={job}"), str(job), "ab") for job in range(5)))
    yield made
    made.journal.close()


def failed_job(swept: Swept, job: int, text: str) -> None:
    """A job that starts and fails, and leaves its files."""
    swept.add(StartedRecord(job))
    place = Place(swept.path / str(job), swept.now())
    place.log(1, "stderr", text)
    place.ends("failed", 3, raised())
    swept.add(EndedRecord(job, 0, Result("failed", 3, "rank 1: raised ValueError: no", 5.0)))


def test_jobs_are_told_by_their_own_results_and_by_the_sweep_where_there_is_none(
    swept: Swept,
) -> None:
    failed_job(swept, 0, "why")
    swept.add(StartedRecord(1), EndedRecord(1, 0, Result("succeeded", 0, "", 2.0)))
    swept.add(EndedRecord(2, 0, Result("error", 2, "launch.nproc: no")))
    swept.add(Skipped(3, "cancelled"), StartedRecord(4))
    swept.over(6)
    report = load(str(swept.path))
    assert (report.kind, report.finished, report.exit_code) == ("sweep", True, 6)
    assert report.common == ("+exp=a",)
    told = [(case.name, case.outcome, case.kind, case.message) for case in report.cases]
    assert told == [
        ("x=0", "failed", "Raised", "rank 1: raised ValueError: no"),
        ("x=1", "succeeded", "", ""),
        ("x=2", "error", "config", "launch.nproc: no"),
        ("x=3", "skipped", "not_run", "cancelled"),
        (
            "x=4",
            "error",
            "unfinished",
            "no result.json: still running, or its launcher was killed",
        ),
    ]
    first = report.cases[0]
    assert (first.directory, first.logs_in, first.plan_hash) == ("0", "0/attempt_0", "ab12")
    assert first.logs[-1].path == "0/attempt_0/1/stderr.log"
    assert first.logs[-1].lines == ("why",)
    assert report.title(first) == "job 0 (x=0)"
    document = json.loads(render_json(report))
    assert document["counts"] == {"succeeded": 1, "failed": 1, "error": 2, "skipped": 1}
    assert document["cases"][0]["logs"] == {"stderr": "0/attempt_0/1/stderr.log"}
    assert report.verdict().startswith(
        "1 of 5 jobs succeeded, 1 failed, 2 ended with an error, 1 not run in "
    )


def test_a_result_from_before_the_job_was_started_is_not_its_own(swept: Swept) -> None:
    Place(swept.path / "0", T0).ends("failed", 3, raised())
    swept.add(StartedRecord(0), EndedRecord(0, 0, Result("failed", 3, "rank 7: exited", 5.0)))
    swept.over(6)
    case = load(str(swept.path)).cases[0]
    assert (case.message, case.plan_hash) == ("rank 7: exited", "")
    # nor is one that is damaged a reason to tell nothing
    (swept.path / "0" / "result.json").write_text("{")
    assert load(str(swept.path)).cases[0].message == "rank 7: exited"


def test_a_sweep_that_goes_on_is_told_as_its_journal_has_it(swept: Swept) -> None:
    failed_job(swept, 0, "why")
    report = load(str(swept.path))
    assert (report.finished, report.exit_code, report.seconds) == (False, None, None)
    assert report.verdict() == ("died: 0 of 5 jobs succeeded, 1 failed, 4 not run")
    swept.over(6)
    assert load(str(swept.path)).finished
    swept.add(Resumed("0.1"), StartedRecord(0))
    report = load(str(swept.path))
    assert not report.finished
    assert report.cases[0].kind == "unfinished"


def test_a_damaged_journal_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "sweep.jsonl").write_text("no\n{}\n")
    with pytest.raises(ConfigError, match=r"sweep\.jsonl"):
        load(str(tmp_path))


# Forms, and the verb


@pytest.mark.parametrize("wrong", [[], ["a", "b"], ["a", "--format", "html"], ["a", "--form=text"]])
def test_a_wrong_option_is_told_in_one_line(
    wrong: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # where there is no run that could be meant
    monkeypatch.chdir(tmp_path)
    assert main(wrong) == 2
    told = capsys.readouterr().err
    assert told.startswith("lllaunch: ")
    assert told.count("\n") == 1


def test_an_output_is_written_whole_or_named(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    run = str(place.ends("failed", 3, raised()))
    target = tmp_path / "new" / "junit.xml"
    assert main([run, "--format", "junit", "--output", str(target), "--name", "nightly"]) == 0
    assert 'classname="nightly"' in target.read_text()
    assert [each.name for each in target.parent.iterdir()] == ["junit.xml"]
    assert capsys.readouterr() == ("", "")
    assert main([run]) == 0
    assert "failed after 5.0 s" in capsys.readouterr().out
    assert main([run, "--output", str(tmp_path / "file" / "x")]) == 1
    assert f"lllaunch: '{tmp_path}/file/x': " in capsys.readouterr().err


# GitHub Actions


def test_in_github_actions_a_run_is_announced(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = f'  File "{place.path}/src/t.py", line 12, in f'
    run = str(place.ends("failed", 3, raised(trace)))
    summary = tmp_path / "summary.md"
    summary.write_text("before")
    environ = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(place.path),
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    announce(run, environ)
    out = capsys.readouterr().out
    assert out.startswith("::error file=src/t.py,line=12,title=lllaunch%3A run failed::rank 1")
    assert summary.read_text().startswith("before\n### lllaunch: failed after 5.0 s")
    announce_error("launch.nproc: 0\nis wrong", environ)
    assert capsys.readouterr().out == "::error title=lllaunch::launch.nproc: 0%0Ais wrong\n"
    summary.write_bytes(b"x" * 1024 * 1024)
    announce(run, environ)
    assert summary.stat().st_size == 1024 * 1024


def test_elsewhere_nothing_is_announced(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    for environ in ({}, {"GITHUB_ACTIONS": "false"}):
        announce(str(place.ends("failed", 3)), {**environ, "GITHUB_STEP_SUMMARY": str(summary)})
        announce_error("x", environ)
    assert capsys.readouterr() == ("", "")
    assert not summary.exists()


def test_nothing_that_goes_wrong_with_an_announcement_is_raised(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    ci = {"GITHUB_ACTIONS": "true"}
    announce(str(tmp_path / "gone"), ci)
    assert "no report for GitHub Actions: NoSuchRun: " in capsys.readouterr().err
    run = str(place.ends("failed", 3, raised()))
    announce(run, {**ci, "GITHUB_STEP_SUMMARY": str(tmp_path)})
    assert "no report for GitHub Actions: OutputError: " in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    sys.stdout.close()
    announce(run, ci)
    announce_error("x", ci)
    assert "ValueError" in capsys.readouterr().err
