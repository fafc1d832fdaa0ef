"""What a path is, and what is read there: whole, unfinished, damaged and hostile directories."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from support.left import T0, LeftRun, LeftSweep, ended_by_launcher

from lllaunch.console.report import report_lines
from lllaunch.errors import ConfigError
from lllaunch.pages.run_page import run_page
from lllaunch.results.locate import NoSuchRun, locate
from lllaunch.results.report import (
    LOG_LINES,
    Report,
    announce,
    announce_error,
    commands,
    render_json,
    render_junit,
    render_text,
    run_case,
    summary,
)
from lllaunch.results.report import load as load_found
from lllaunch.results.view import blamed, view_run
from lllaunch.run.result import (
    ExitedNonZero,
    Explanation,
    Failed,
    Hang,
    KilledBySignal,
    NodeResult,
    Raised,
    RootCause,
    Succeeded,
    as_result,
)
from lllaunch.sweep.journal import (
    ComposedRecord,
    EndedRecord,
    Header,
    Result,
    Resumed,
    Skipped,
    StartedRecord,
)
from lllaunch.verbs import show
from lllaunch.verbs.report import report as main
from lllaunch.watchdog.evidence import Frame, RankStack
from lllaunch.watchdog.findings import TimedOut, TimerExpired


def load(path: str, *arguments: Any, **more: Any) -> Report:
    return load_found(locate(path), *arguments, **more)


HEADER = "Traceback (most recent call last):"


def raised(trace: str = "", rank: int = 1) -> RootCause:
    return RootCause(0, rank, rank, Raised("ValueError: no\nmore", 1), T0, traceback=trace)


def ended(run: LeftRun, state: Any, code: int, root: RootCause | None = None, **more: Any) -> str:
    """Ends a run of two workers, of which the second failed."""
    workers = (run.worker(0, ended_by_launcher(-15)), run.worker(1, Failed(cause=ExitedNonZero(1))))
    run.ends(state, code, run.attempt(*workers, root=root), root_cause=root, **more)
    return str(run.path)


def only(report: Report) -> Any:
    (case,) = report.cases
    return case


@pytest.fixture
def run(tmp_path: Path) -> LeftRun:
    return LeftRun(tmp_path / "run")


@pytest.fixture
def sweep(tmp_path: Path) -> LeftSweep:
    made = LeftSweep(tmp_path / "sweep", Header("id", "0.1"))
    made.add(*(ComposedRecord(job, ("+exp=a", f"x={job}"), str(job), "ab") for job in range(5)))
    return made


# What a path is


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


def test_a_failed_run_is_told_with_its_place_and_its_logs(run: LeftRun) -> None:
    run.log(1, "stdout", "".join(f"line {number}\n" for number in range(LOG_LINES + 50)))
    run.log(1, "stderr", "warning\nTrace\n")
    run.log(0, "stderr", "of another rank")
    why = Explanation("itself", "likely", "A bug.")
    trace = f'{HEADER}\n  File "{run.path}/src/train.py", line 12, in f\nValueError: no\nmore'
    root = replace(raised(trace), explanation=why)
    report = load(ended(run, "failed", 3, root), [str(run.path)])
    case = only(report)
    assert (report.kind, report.finished, report.exit_code) == ("run", True, 3)
    assert report.verdict == "FAILED after 5.0 s (exit code 3)"
    assert (case.outcome, case.kind) == ("failed", "Raised")
    assert case.message == "rank 1: raised ValueError: no"
    assert case.place == ("src/train.py", 12)
    # what the terminal says
    assert case.explanation[0] == "Root cause: rank 1 (attempt 0) raised ValueError: no"
    assert {"  Why (likely): A bug.", "  ValueError: no"} < {*case.explanation}
    assert "rank 0  ended by the launcher (SIGTERM)" in case.text
    assert (case.plan_hash, case.run_id, case.hostname) == ("ab12", "id", "node7")
    err, out = case.logs
    assert (out.path, len(out.lines), out.cut) == ("attempt_0/1/stdout.log", LOG_LINES, True)
    assert out.lines[-1] == f"line {LOG_LINES + 49}"
    assert (err.lines, err.cut) == (("warning", "Trace"), False)


def test_a_crash_is_placed_by_what_faulthandler_wrote(run: LeftRun) -> None:
    crashed = (
        Frame("/lib/python3.11/site-packages/x.py", 1, "g"),
        Frame(f"{run.path}/a.py", 3, "f"),
    )
    root = RootCause(0, 1, 1, KilledBySignal(11), T0, frames=crashed)
    case = only(load(ended(run, "failed", 3, root), [str(run.path)]))
    assert (case.message, case.place) == ("rank 1: died of SIGSEGV", ("a.py", 3))


def hung(run: LeftRun, **more: Any) -> RootCause:
    """A timer of the second rank has run out, the first stood in the kernel."""
    finding = TimerExpired(1, 7, "sync", 10.0, 9)
    library = Frame("/lib/python3.11/x.py", 1, "wait")
    stack = RankStack(1, "", (library, Frame(f"{run.path}/t.py", 40, "sync", "x")))
    stacks = {0: RankStack(0, state="S", wchan="futex"), 1: stack}
    hang = Hang(finding, T0, None, (1,), (1,), (0,), standing=tuple(stacks.values()))
    return RootCause(0, None, None, finding, T0, hang=hang, **more)


def test_a_hang_is_told_with_where_the_ranks_stood(run: LeftRun) -> None:
    run.log(1, "stderr", "of the one that hung")
    case = only(load(ended(run, "failed", 4, hung(run)), [str(run.path)]))
    assert (case.kind, case.place) == ("TimerExpired", ("t.py", 40))
    assert case.message == "rank 1: hung: its timer 'sync' ran out after 10 s"
    assert "    [0] no Python frames are known (state S in futex)" in case.explanation
    assert "t.py:40 in sync: x" in case.text
    assert case.logs[0].lines == ("of the one that hung",)


def test_a_run_out_of_time_before_its_next_attempt_tells_both(run: LeftRun) -> None:
    case = only(load(ended(run, "failed", 4, raised(), limit=TimedOut(3.0, "run"))))
    assert (case.kind, case.message) == ("TimedOut", "rank 1: raised ValueError: no")
    assert "The run's time limit (3.0 s) was over before the next attempt." in case.explanation


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
    run: LeftRun, state: str, code: int, more: dict[str, Any], kind: str, message: str
) -> None:
    case = only(load(ended(run, state, code, **more)))
    assert (case.kind, case.message, case.exit_code) == (kind, message, code)
    assert case.outcome == ("failed" if state == "failed" else "error")


def test_a_run_that_succeeded_tells_no_failure(run: LeftRun) -> None:
    run.log(0, "stderr", "a warning")
    done = run.attempt(run.worker(0, Succeeded()), number=1, state="succeeded")
    run.ends("succeeded", 0, run.attempt(root=raised()), done)
    report = load(str(run.path))
    case = only(report)
    assert (case.outcome, case.kind, case.message, case.logs) == ("succeeded", "", "", ())
    assert (case.attempts, case.explanation) == (2, ())
    assert report.verdict == "succeeded in 5.0 s after 1 restart"


def test_a_node_that_was_not_heard_of_is_told(
    run: LeftRun, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run.attempt(run.worker(0, Succeeded()), state="succeeded")
    nodes = (NodeResult("node 0", state="succeeded", exit_code=0), NodeResult("node 1"))
    run.ends("succeeded", 0, done, nodes=nodes)
    path = str(run.path)
    said = "node 1 left no result"
    assert load(path).verdict == f"succeeded in 5.0 s; {said}"
    assert show.show([path]) == 0
    assert re.search("^node 1 +not heard of", capsys.readouterr().out, re.MULTILINE)
    page = run_page(view_run(locate(path)), "0.1")
    assert "Node 1 left no result" in page


def test_what_turns_the_direction_of_text_is_escaped_in_every_form(run: LeftRun) -> None:
    root = RootCause(0, 1, 1, Raised("abc\u202edef", 1), T0, traceback="Trace\nabc\u202edef")
    run.log(1, "stderr", "ghi\u2066jkl\n")
    report = load(ended(run, "failed", 3, root))
    forms = [render(report) for render in (render_text, render_json, render_junit, summary)]
    for text in [*forms, "\n".join(commands(report))]:
        assert "\u202e" not in text
        assert "\u2066" not in text
        assert "abc" in text


def test_overrides_are_told_without_secrets(run: LeftRun) -> None:
    overrides = run.path / ".hydra" / "overrides.yaml"
    overrides.parent.mkdir()
    given = [
        *("+exp=a", "launch.env.API_TOKEN=hf_abcabcabcabcabcabc1", "x.tokens=3"),
        "launch.env={DB_PASSWORD: aB3dE5gH7jK9mN1p, A: b}",
        "launch.env.HF_TOKEN=${oc.env:HF_TOKEN}",
    ]
    # some of them need quotes, as Hydra writes them
    overrides.write_text(yaml.safe_dump(given, width=1000))
    case = only(load(ended(run, "succeeded", 0)))
    assert case.overrides == (
        *("+exp=a", "launch.env.API_TOKEN=${oc.env:API_TOKEN}", "x.tokens=3"),
        "launch.env={DB_PASSWORD: ${oc.env:DB_PASSWORD}, A: b}",
        "launch.env.HF_TOKEN=${oc.env:HF_TOKEN}",
    )
    overrides.write_text("- a\n b: [")
    assert only(load(str(run.path))).overrides == ()


# Hostile directories


def test_no_file_outside_of_the_directory_and_no_pipe_is_read(run: LeftRun, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("aB3dE5gH7jK9mN1p")
    stdout = run.log(1, "stdout", "x")
    stdout.unlink()
    stdout.symlink_to(tmp_path / "secret")
    os.mkfifo(stdout.with_name("stderr.log"))
    path = ended(run, "failed", 3, raised())
    assert only(load(path)).logs == ()
    document = json.loads(run.result.read_text())
    for name in ("../secret", str(tmp_path / "secret"), "\x00", "attempt_0"):
        document["attempts"][0]["workers"][1]["stdout"] = name
        run.result.write_text(json.dumps(document))
        assert only(load(path)).logs == ()


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


@pytest.mark.slow
def test_no_document_of_another_make_is_an_error_of_ours(run: LeftRun) -> None:
    why = Explanation("itself", "likely", "A bug.")
    root = hung(run, explanation=why, traceback="Trace")
    ended(run, "failed", 4, root, limit=TimedOut(3.0, "run"))
    document = json.loads(run.result.read_text())
    messages: set[str] = set()
    for junk in JUNK:
        for _ in changed(document, junk):
            try:
                result = as_result(document, str(run.path))
            except ValueError as error:
                messages.add(str(error))
                continue
            assert result is not None
            blamed(result)
            "".join(line.text for line in report_lines(result, "/"))
            report = Report("run", "x", (run_case(result, ["/"]),))
            for render in (render_text, render_json, render_junit, summary):
                render(report).encode()
            commands(report)
    # each says where
    assert {each for each in messages if "$." not in each} <= {"expected names in Unicode"}


# A sweep


def failed_job(sweep: LeftSweep, job: int, text: str) -> None:
    """A job that starts and fails, and leaves its files."""
    sweep.add(StartedRecord(job))
    run = LeftRun(sweep.path / str(job), sweep.time_ns)
    run.log(1, "stderr", text)
    ended(run, "failed", 3, raised())
    sweep.add(EndedRecord(job, 0, Result("failed", 3, "rank 1: raised ValueError: no", 5.0)))


def test_jobs_are_told_by_their_own_results_and_by_the_sweep_where_there_is_none(
    sweep: LeftSweep,
) -> None:
    failed_job(sweep, 0, "why")
    sweep.add(StartedRecord(1), EndedRecord(1, 0, Result("succeeded", 0, "", 2.0)))
    sweep.add(EndedRecord(2, 0, Result("error", 2, "launch.nproc: no")))
    sweep.add(Skipped(3, "cancelled"), StartedRecord(4))
    sweep.over(6)
    report = load(str(sweep.path))
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
    assert first.logs[0].path == "0/attempt_0/1/stderr.log"
    assert first.logs[0].lines == ("why",)
    assert report.title(first) == "job 0 (x=0)"
    document = json.loads(render_json(report))
    assert document["counts"] == {"succeeded": 1, "failed": 1, "error": 2, "skipped": 1}
    assert document["cases"][0]["logs"] == {"stderr": "0/attempt_0/1/stderr.log"}
    assert report.verdict.startswith("1 of 5 jobs succeeded, 3 failed, 1 not run in ")


@pytest.mark.parametrize("subdir", ["0", "m/0", "../elsewhere/a/b/0"])
@pytest.mark.parametrize("form", ["text", "junit", "github", "html"])
def test_secrets_of_a_job_are_taken_out_of_its_logs_wherever_it_is(
    subdir: str,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_s3cretvalue")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    sweep = LeftSweep(tmp_path / "sweep", Header("id", "0.1"))
    sweep.add(ComposedRecord(0, ("x=0",), subdir, "ab"), StartedRecord(0))
    run = LeftRun(sweep.path / subdir, sweep.time_ns)
    run.log(1, "stderr", "failed with hf_s3cretvalue")
    (run.path / "plan.yaml").write_text("launch: {env: {A: '${oc.env:HF_TOKEN}'}}\n")
    ended(run, "failed", 3, raised())
    sweep.add(EndedRecord(0, 0, Result("failed", 3, "rank 1: raised ValueError: no", 5.0)))
    sweep.over(6)
    assert main([str(sweep.path), "--format", form]) == 0
    summary = tmp_path / "summary.md"
    told = capsys.readouterr().out + (summary.read_text() if summary.exists() else "")
    assert "s3cret" not in told
    assert ("${oc.env:HF_TOKEN}" in told) or form != "junit"


def test_a_result_from_before_the_job_was_started_is_not_its_own(sweep: LeftSweep) -> None:
    ended(LeftRun(sweep.path / "0", T0), "failed", 3, raised())
    sweep.add(StartedRecord(0), EndedRecord(0, 0, Result("failed", 3, "rank 7: exited", 5.0)))
    sweep.over(6)
    case = load(str(sweep.path)).cases[0]
    assert (case.message, case.plan_hash) == ("rank 7: exited", "")
    # nor is one that is damaged a reason to tell nothing
    (sweep.path / "0" / "result.json").write_text("{")
    assert load(str(sweep.path)).cases[0].message == "rank 7: exited"


def test_a_sweep_that_goes_on_is_told_as_its_journal_has_it(sweep: LeftSweep) -> None:
    failed_job(sweep, 0, "why")
    report = load(str(sweep.path))
    assert (report.finished, report.exit_code, report.seconds) == (False, None, None)
    assert report.verdict == ("died: 0 of 5 jobs succeeded, 1 failed, 4 not run")
    sweep.over(6)
    assert load(str(sweep.path)).finished
    # of an hour ago, whatever the clock of the file system can tell apart
    os.utime(sweep.path / "sweep.json", (0, 0))
    sweep.add(Resumed("0.1"), StartedRecord(0))
    report = load(str(sweep.path))
    assert not report.finished
    assert report.cases[0].kind == "unfinished"


# Forms, and the verb


def test_an_output_is_written_whole_or_named(
    run: LeftRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    path = ended(run, "failed", 3, raised())
    target = tmp_path / "new" / "junit.xml"
    assert main([path, "--format", "junit", "--output", str(target), "--name", "nightly"]) == 0
    assert 'classname="nightly"' in target.read_text()
    assert [each.name for each in target.parent.iterdir()] == ["junit.xml"]
    assert capsys.readouterr() == ("", "")
    assert main([path]) == 0
    assert "failed after 5.0 s" in capsys.readouterr().out
    assert main([path, "--output", str(tmp_path / "file" / "x")]) == 1
    assert f"lllaunch: '{tmp_path}/file/x': " in capsys.readouterr().err


# GitHub Actions


def test_in_github_actions_a_run_is_announced(
    run: LeftRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = f'{HEADER}\n  File "{run.path}/src/t.py", line 12, in f'
    path = ended(run, "failed", 3, raised(trace))
    summary = tmp_path / "summary.md"
    summary.write_text("before")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(run.path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    announce(path)
    out = capsys.readouterr().out
    assert out.startswith(
        "::error file=src/t.py,line=12,title=lllaunch%3A run failed::Root cause: rank 1"
    )
    assert summary.read_text().startswith("before\n### lllaunch: FAILED after 5.0 s")
    announce_error("launch.nproc: 0\nis wrong")
    assert capsys.readouterr().out == "::error title=lllaunch::launch.nproc: 0%0Ais wrong\n"
    summary.write_bytes(b"x" * 1024 * 1024)
    announce(path)
    assert summary.stat().st_size == 1024 * 1024


def test_elsewhere_nothing_is_announced(
    run: LeftRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    for _ in range(2):
        announce(ended(run, "failed", 3))
        announce_error("x")
        monkeypatch.setenv("GITHUB_ACTIONS", "false")
    assert capsys.readouterr() == ("", "")
    assert not summary.exists()


def test_nothing_that_goes_wrong_with_an_announcement_is_raised(
    run: LeftRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    announce(str(tmp_path / "gone"))
    assert "no report for GitHub Actions: NoSuchRun: " in capsys.readouterr().err
    path = ended(run, "failed", 3, raised())
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    announce(path)
    assert "no report for GitHub Actions: OutputError: " in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    sys.stdout.close()
    announce(path)
    announce_error("x")
    assert "ValueError" in capsys.readouterr().err
