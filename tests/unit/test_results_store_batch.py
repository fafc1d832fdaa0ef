"""Runs that were submitted to a cluster, as commands tell of them; its queue is a table here."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from lllaunch.cluster import slurm
from lllaunch.cluster.slurm import JobFacts, QueuedJob, SlurmFailed
from lllaunch.documents import isoformat
from lllaunch.pages.run_page import run_page
from lllaunch.pages.sweep_page import sweep_facts, sweep_page
from lllaunch.results.locate import NoSuchRun, entry_now, jobs_of, locate
from lllaunch.results.report import load
from lllaunch.results.store import ListEntry, plain
from lllaunch.results.sweeps import view_sweep
from lllaunch.results.view import view_run
from lllaunch.run.submission import (
    LOG,
    BatchEnded,
    BatchSignalled,
    BatchStarted,
    QueueEvent,
    Requeued,
    Submission,
    append,
    read_history,
)
from lllaunch.verbs import logs, ls, show, stop

STARTED = BatchStarted("7", ("node0", "node1"))
BEFORE = "2024-05-01T10:00:00.000000Z"
RESULT = {
    "version": 1,
    "state": "succeeded",
    "exit_code": 0,
    "started": BEFORE,
    "ended": "2999-05-01T10:00:00.000000Z",
    "attempts": [],
}


class FakeSlurm:
    """What the commands of Slurm answer."""

    def __init__(self) -> None:
        self.jobs: dict[str, QueuedJob] = {}
        self.ended: dict[str, str] = {}
        self.answers = True
        self.asked: list[Any] = []
        self.cancelled: list[tuple[list[str], str | None]] = []
        self.then: list[Any] = []

    def queued(self, job: str = "") -> dict[str, QueuedJob]:
        self.asked.append(job)
        if self.then and len(self.asked) > 1:
            self.then.pop(0)()
        if not self.answers:
            raise SlurmFailed("squeue", "no answer")
        return {id_: each for id_, each in self.jobs.items() if job in {"", id_}}

    def job_facts(self, job: str) -> JobFacts | None:
        self.asked.append(job)
        return JobFacts(self.ended[job]) if job in self.ended else None

    def cancel(self, ids: Collection[str], *, signal: str | None = None) -> None:
        self.cancelled.append((sorted(ids), signal))
        for id_ in ids if signal is None else ():
            self.jobs.pop(id_, None)

    def add(self, job: str, state: str, reason: str = "None", where: object = "/d") -> None:
        nodes = "node[0-1]" if state == "RUNNING" else ""
        self.jobs[job] = QueuedJob(job, state, reason, nodes, str(where), "name")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSlurm:
    fake = FakeSlurm()
    for name in ("queued", "job_facts", "cancel"):
        monkeypatch.setattr(slurm, name, getattr(fake, name))
    monkeypatch.setattr(slurm, "available", lambda: True)
    monkeypatch.setattr(stop, "_BETWEEN", 0.01)
    monkeypatch.setattr(logs, "_PAUSE", 0.01)
    monkeypatch.setattr(logs, "_CLUSTER_PAUSE", 0.0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return fake


def submitted(path: str, *events: QueueEvent, job: str = "7", ago: float = 1000.0) -> str:
    """A run that was submitted, of which the cluster has made what its events say."""
    os.makedirs(os.path.join(path, ".hydra"))
    for name in (".lllaunch.lock", "plan.yaml"):
        Path(path, name).touch()
    Path(path, ".hydra", "overrides.yaml").write_text("- a=1\n")
    Submission(job, os.path.abspath(path), time_ns=int(time.time_ns() - ago * 1e9)).write(path)
    for event in events:
        append(path, event)
    return path


def ended(path: str, **more: object) -> None:
    Path(path, "result.json").write_text(json.dumps({**RESULT, **more}))


def entry(path: str) -> ListEntry:
    return entry_now(locate(path))


@pytest.mark.parametrize(
    ("events", "job", "state", "queue"),
    [
        ([], ("PENDING", "Priority"), "queued", "PENDING (Priority)"),
        ([], ("PENDING", "None"), "queued", "PENDING"),
        # its launcher has not come to say so
        ([], ("RUNNING", "None"), "queued", "RUNNING (node[0-1])"),
        ([STARTED], ("RUNNING", "None"), "running", "RUNNING (node[0-1])"),
        ([STARTED, BatchSignalled("SIGUSR2")], ("COMPLETING", ""), "running", "COMPLETING"),
        ([STARTED, Requeued("timeout", "lllaunch")], ("COMPLETING", ""), "queued", "COMPLETING"),
        # taken back by Slurm, without a word
        ([STARTED], ("PENDING", "BeginTime"), "queued", "PENDING (BeginTime)"),
    ],
)
def test_what_is_in_the_queue(
    fake: FakeSlurm, events: list[QueueEvent], job: tuple[str, str], state: str, queue: str
) -> None:
    fake.add("7", *job)
    # of an earlier start
    path = submitted("run", *events)
    ended(path, ended=BEFORE)
    found = entry(path)
    assert (found.state, found.queue, found.batch_job) == (state, queue, "7")
    assert (found.exit_code, found.overrides) == (None, ("a=1",))
    assert found.seconds is not None


def test_one_that_runs_without_a_sign_of_its_launcher(fake: FakeSlurm) -> None:
    fake.add("7", "RUNNING")
    path = submitted("run")
    now = time.time()
    fake.jobs["7"] = fake.jobs["7"]._replace(start_time=now - 50)
    assert entry(path).queue == "RUNNING (node[0-1])"
    fake.jobs["7"] = fake.jobs["7"]._replace(start_time=now - 70)
    hint = "no sign of its launcher for a minute: see launcher.log"
    assert entry(path).queue == f"RUNNING (node[0-1]), {hint}"
    append(path, STARTED)
    assert entry(path).queue == "RUNNING (node[0-1])"


def test_what_the_cluster_did_not_take(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    said = "sbatch: error: Unable to contact slurm controller"
    path = submitted("run", job="", ago=1.0)
    Submission("", os.path.abspath(path), time_ns=time.time_ns(), refused=said).write(path)
    fake.answers = False
    found = entry(path)
    assert (found.state, found.exit_code, found.root_cause) == ("not_submitted", 1, said)
    assert show.show([path]) == 0
    shown = capsys.readouterr().out
    assert "not submitted (exit code 1)" in shown
    assert said in shown
    assert "latest" not in shown


CANCELLED = "its batch job was cancelled before it started"
KILLED = "its batch job was cancelled, and was killed"
PREEMPTED = Requeued("preempted", "slurm")


@pytest.mark.parametrize(
    ("events", "slurm_says", "state", "code", "cause"),
    [
        ([], "", "died", None, "its batch job ended before the run started in it"),
        ([], "CANCELLED", "cancelled", 143, CANCELLED),
        ([STARTED], "", "died", None, ""),
        ([STARTED], "NODE_FAIL", "died", None, "Slurm says of its batch job: NODE_FAIL"),
        ([STARTED], "CANCELLED", "signalled", 143, f"{KILLED} before its end"),
        ([STARTED, PREEMPTED], "CANCELLED", "signalled", 143, f"{CANCELLED} again"),
        ([BatchEnded(143, CANCELLED)], "", "cancelled", 143, CANCELLED),
        ([STARTED, BatchEnded(1, "was preempted")], "", "error", 1, "was preempted"),
        ([STARTED, BatchEnded(3)], "", "failed", 3, ""),
    ],
)
def test_what_left_the_queue_without_a_result(
    fake: FakeSlurm, events: Any, slurm_says: str, state: str, code: int | None, cause: str
) -> None:
    fake.ended = {"7": slurm_says} if slurm_says else {}
    path = submitted("run", *events)
    # of a start before the last one, or of an earlier run
    ended(path, ended=BEFORE)
    found = entry(path)
    assert (found.state, found.exit_code, found.root_cause) == (state, code, cause)


def test_a_run_that_is_just_being_submitted(fake: FakeSlurm) -> None:
    path = submitted("run", job="", ago=1)
    assert (entry(path).state, entry(path).queue) == ("queued", "being submitted")
    # who submitted it was killed before it wrote the id down
    fake.add("12", "PENDING", "Priority", os.path.abspath(path))
    assert (entry(path).batch_job, entry(path).queue) == ("12", "PENDING (Priority)")
    path = submitted("long ago", job="")
    assert (entry(path).state, entry(path).exit_code) == ("not_submitted", 1)
    assert entry(path).root_cause == "its submission failed, or was broken off"


def test_where_slurm_does_not_answer(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    fake.answers = False
    path = submitted("run", STARTED)
    assert (entry(path).state, entry(path).queue) == ("unknown", "no answer")
    assert stop.stop([path]) == 2
    assert "is on a cluster, and Slurm cannot be asked" in capsys.readouterr().err
    assert show.show([path]) == 0
    assert "Slurm cannot be asked, and its files do not say" in capsys.readouterr().out
    fake.then = [lambda: append(path, BatchEnded(0))]
    ended(path)
    assert stop.wait([path]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("run: succeeded")
    assert err.count("Slurm cannot be asked; waiting") == 1


def test_a_list_asks_the_cluster_once(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(5):
        submitted(f"outputs/{number}", job=str(number))
        fake.add(str(number), "PENDING", "Priority")
    ended(submitted("outputs/over", STARTED, BatchEnded(0), job="9"))
    assert ls.ls([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["when", "path", "state", "job", "code"]
    assert sum("queued     0 PENDING (Priority)" in line for line in lines) == 1
    assert sum("  succeeded  9 " in line for line in lines) == 1
    assert fake.asked == [""]
    assert ls.ls(["--json", "--state", "queued", "--limit", "1"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["queue"] == "PENDING (Priority)"
    assert one["batch_job"] in "01234"
    assert ls.ls(["--json", "--state", "succeeded"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["batch_job"], one["queue"]) == ("9", None)


# A sweep


def summed_up(path: Path, state: str, jobs: int, code: int | None = None) -> Path:
    """A sweep of which there is a summary."""
    path.mkdir(parents=True)
    known = [
        {"job": job, "state": state, "directory": str(job), "overrides": []} for job in range(jobs)
    ]
    document = {"version": 1, "exit_code": code, "jobs": known}
    (path / "sweep.json").write_text(json.dumps(document))
    return path


def test_jobs_of_a_sweep_tell_their_own_states(fake: FakeSlurm, tmp_path: Path) -> None:
    path = summed_up(tmp_path / "multirun" / "1", "composed", jobs=4, code=0)
    run = submitted(str(path / "0"), STARTED, BatchEnded(0), job="7_0")
    ended(run, return_values={"0": {"value": 0.5}})
    submitted(str(path / "1"), STARTED, job="7_1")
    submitted(str(path / "2"), job="7_2")
    fake.add("7_1", "RUNNING", where=path / "submitted" / "0")
    fake.add("7_2", "PENDING", "Priority", path / "submitted" / "0")
    assert fake.asked == []
    # without arrays nothing below it is looked at
    assert view_sweep(str(path)).entry.counts == {"not_run": 4}
    (path / "submitted" / "0").mkdir(parents=True)
    Submission("7", str(path / "submitted" / "0")).write(str(path / "submitted" / "0"))
    found = view_sweep(str(path)).entry
    assert (found.state, found.exit_code) == ("running", None)
    assert found.queue == "1 PENDING, 1 RUNNING"
    assert found.counts == {"succeeded": 1, "running": 1, "queued": 1, "not_run": 1}
    jobs = [*jobs_of(found)]
    assert [job.state for job in jobs] == ["succeeded", "running", "queued", "not_run"]
    assert [job.number for job in jobs] == [0, 1, 2, 3]
    assert [job.batch_job for job in jobs] == ["7_0", "7_1", "7_2", ""]
    facts = sweep_facts(view_sweep(str(path)))
    assert list(facts.values) == [0.5, None, None, None]
    page = sweep_page(facts, "0.1")
    assert "1 of 4 jobs succeeded, 1 running, 1 queued, 1 not run" in page
    assert "1 PENDING, 1 RUNNING" in page
    # by id: one, and all of an array
    assert os.path.realpath(locate("7_0").path) == str(path / "0")
    fake.jobs.clear()
    assert os.path.realpath(locate("7").path) == str(path)
    fake.ended = {"7_1": "CANCELLED", "7_2": "CANCELLED"}
    found = view_sweep(str(path)).entry
    assert (found.state, found.exit_code, found.queue) == ("failed", 6, "")


def test_jobs_that_never_started_were_cancelled(
    fake: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = summed_up(tmp_path / "multirun" / "1", "started", jobs=2, code=143)
    (path / "submitted").mkdir()
    for job in range(2):
        submitted(str(path / str(job)), BatchEnded(143, CANCELLED), job=f"7_{job}")
    found = view_sweep(str(path)).entry
    assert found.counts == {"cancelled": 2}
    assert show.show([str(path)]) == 0
    out = capsys.readouterr().out
    assert "2 cancelled" in out
    assert "failed" not in out.partition("lllaunch:")[0]


def placed(path: str, *events: tuple[float, QueueEvent]) -> str:
    """A run that was submitted, of which events are told so many seconds after."""
    submitted(path, ago=0)
    start = time.time_ns() - 1000 * 10**9
    Submission("7", os.path.abspath(path), time_ns=start).write(path)
    lines = Path(path, "submission.jsonl").read_text().splitlines()
    for at, event in events:
        append(path, event)
        line = json.loads(Path(path, "submission.jsonl").read_text().splitlines()[-1])
        lines.append(json.dumps({**line, "time_ns": start + round(at * 1e9)}))
    Path(path, "submission.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return path


def test_the_time_of_a_requeued_run_is_that_of_all_its_starts(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = [(100.0, STARTED), (400.0, PREEMPTED), (500.0, STARTED)]
    path = placed("run", *ends)
    fake.add("7", "RUNNING")
    found = entry(path)
    assert found.started_ns is not None
    assert time.time() - found.started_ns / 1e9 == pytest.approx(900, abs=30)
    assert found.seconds == pytest.approx(800, abs=30)
    fake.jobs.clear()
    path = placed("over", *ends, (600.0, BatchEnded(3)))
    now = time.time()
    times = {"started": isoformat(int((now - 500) * 1e9)), "ended": isoformat(int(now * 1e9))}
    ended(path, state="failed", exit_code=3, **times)
    found = entry(path)
    assert found.seconds == pytest.approx(400)
    # all say how often it started, and why
    again = "2; put back into the queue: preempted"
    assert stop.wait(["over"]) == 3
    assert f"after 6 min 40 s; starts: {again}" in capsys.readouterr().out
    assert plain(found, "")["submission"]["starts"] == 2
    [case] = load(locate(path)).cases
    assert f"Starts of its batch job: {again}" in case.explanation
    assert again in run_page(view_run(locate(path)), "0.1")


def test_of_a_cancelled_run_that_is_said_and_not_which_node_has_ended(fake: FakeSlurm) -> None:
    path = placed("run", (100.0, STARTED), (200.0, BatchEnded(143, "it was cancelled")))
    root = {"node": "node 1", "cause": {"type": "Lost", "text": "was ended by SIGTERM"}}
    now = isoformat(time.time_ns())
    ended(path, state="signalled", exit_code=143, signal="SIGTERM", root_cause=root, ended=now)
    assert entry(path).root_cause == "it was cancelled"


def test_a_sweep_whose_launcher_has_left_took_as_long_as_its_jobs(
    fake: FakeSlurm, tmp_path: Path
) -> None:
    path = summed_up(tmp_path / "multirun" / "1", "started", jobs=1)
    document = json.loads((path / "sweep.json").read_text())
    began = time.time_ns() - 1000 * 10**9
    document |= {"started": isoformat(began), "ended": isoformat(began), "seconds": 84.0}
    (path / "sweep.json").write_text(json.dumps(document))
    (path / "submitted").mkdir()
    placed(str(path / "0"), (100.0, STARTED), (161.0, BatchEnded(0)))
    found = view_sweep(str(path)).entry
    assert (found.state, found.seconds) == ("succeeded", pytest.approx(161, abs=1))


# By id


def test_a_run_by_the_id_of_its_batch_job(fake: FakeSlurm, tmp_path: Path) -> None:
    path = submitted("outputs/a", STARTED, BatchEnded(0), job="123")
    ended(path)
    assert locate("123").path == "outputs/a"
    submitted(str(tmp_path / "far" / "away"), job="124")
    with pytest.raises(NoSuchRun, match="is the batch job of no run that was started here"):
        locate("124")
    # what is called so comes first
    os.makedirs("outputs/124")
    Path("outputs/124/plan.yaml").touch()
    ended("outputs/124")
    assert locate("124").path == "outputs/124"
    with pytest.raises(NoSuchRun, match="does not exist"):
        locate("nothing")


# Verbs


def test_show_tells_the_way_through_the_queue(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    back = Requeued("preempted", "lllaunch")
    path = submitted("run", STARTED, back, STARTED, back, STARTED)
    fake.add("7", "RUNNING")
    assert show.show([path]) == 0
    out = capsys.readouterr().out
    lines = {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in out.splitlines()}
    assert lines["batch job"] == "7: RUNNING (node[0-1])"
    assert lines["nodes"] == "node0, node1"
    assert lines["starts"] == "3; put back into the queue: preempted (2 times)"
    assert "waited for 16 min" in lines["submitted"] or "waited for 1" in lines["submitted"]
    assert show.show(["--json", path]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["batch_job"]) == ("running", "7")
    assert found["submission"]["starts"] == 3
    assert [back["cause"] for back in found["submission"]["requeues"]] == ["preempted"] * 2


def test_a_report_of_what_waits_or_was_cancelled(fake: FakeSlurm) -> None:
    path = submitted("run", STARTED, Requeued("timeout", "lllaunch"))
    ended(path)
    fake.add("7", "PENDING")
    report = load(locate(path))
    assert not report.finished
    assert report.cases[0].message == "still waiting in the queue of its cluster"
    path = submitted("other", BatchEnded(143, CANCELLED), job="8")
    assert load(locate(path)).cases[0].message == CANCELLED


def test_stop_takes_a_run_from_the_queue_and_says_so(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    path = submitted("run")
    fake.add("7", "PENDING")
    assert stop.stop([path, "--now"]) == 0
    assert capsys.readouterr().out == f"run: cancelled, exit code 143: {CANCELLED}\n"
    assert fake.cancelled == [(["7"], None)]
    # it is known without the cluster from then on
    fake.answers = False
    assert entry(path).state == "cancelled"
    assert stop.wait([path]) == 143
    assert stop.stop([path]) == 0
    assert f"is over: cancelled, exit code 143: {CANCELLED}" in capsys.readouterr().out


def test_stop_of_one_that_puts_itself_back_stops_it_again(fake: FakeSlurm) -> None:
    path = submitted("run", STARTED)
    fake.add("7", "RUNNING")

    def back() -> None:
        append(path, Requeued("preempted", "lllaunch"))
        fake.add("7", "PENDING")

    fake.then = [lambda: None, back]
    assert stop.stop([path, "--now"]) == 0
    assert fake.cancelled == [(["7.0"], "KILL"), (["7"], None), (["7"], None)]
    assert [type(event).__name__ for _, event in read_history(path)][-1] == "BatchEnded"


def test_logs_wait_for_a_run_that_is_queued(
    fake: FakeSlurm, capfd: pytest.CaptureFixture[str]
) -> None:
    path = submitted("outputs/run")
    fake.add("7", "PENDING", "Resources")
    assert logs.logs([path]) == 2
    assert "'logs -f' waits for it" in capfd.readouterr().err

    def over() -> None:
        append(path, STARTED)
        os.makedirs(os.path.join(path, "attempt_0", "0"))
        Path(path, "attempt_0", "0", "stdout.log").write_text("hello\n")
        Path(path, LOG).write_text("from the launcher\n")
        append(path, BatchEnded(0))
        ended(path)

    fake.then = [lambda: None, lambda: None, over]
    assert logs.logs(["7", "-f"]) == 0
    out, err = capfd.readouterr()
    assert out == "hello\n"
    assert err == "lllaunch: job 7: PENDING (Resources)\n"
    assert logs.logs([path, "--launcher"]) == 0
    assert capfd.readouterr().out == "from the launcher\n"


# What its launcher did not come to write down


def broken_off(path: Path, *, job: str = "") -> Path:
    """A sweep whose launcher was killed while it submitted an array of two tasks."""
    array = summed_up(path, "started", jobs=2) / "submitted" / "0"
    array.mkdir(parents=True)
    tasks = [[{"job": number, "directory": str(path / str(number))}] for number in range(2)]
    (array / "tasks.json").write_text(json.dumps({"tasks": tasks}))
    Submission(job, str(array), time_ns=time.time_ns()).write(str(array))
    for number in range(2):
        (path / str(number)).mkdir()
    return array


def test_jobs_that_were_written_down_but_not_submitted(fake: FakeSlurm, tmp_path: Path) -> None:
    broken_off(tmp_path / "sweep")
    found = view_sweep(str(tmp_path / "sweep")).entry
    assert (found.state, found.counts, found.queue) == ("died", {"not_run": 2}, "")


@pytest.mark.parametrize("job", ["7", ""], ids=["id known", "by its directory"])
def test_jobs_whose_submission_was_not_written_down(
    fake: FakeSlurm, tmp_path: Path, job: str
) -> None:
    array = broken_off(tmp_path / "sweep", job=job)
    for index in range(2):
        fake.add(f"7_{index}", "PENDING", "Priority", array)
    found = view_sweep("sweep").entry
    assert (found.state, found.counts, found.queue) == ("queued", {"queued": 2}, "2 PENDING")
    assert stop.stop(["sweep"]) == 0
    assert fake.cancelled == [(["7_0", "7_1"], None)]
    found = view_sweep("sweep").entry
    assert (found.state, found.counts) == ("failed", {"cancelled": 2})


def test_stop_of_one_of_a_pack_ends_no_other(
    fake: FakeSlurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array = tmp_path / "sweep" / "submitted" / "0"
    array.mkdir(parents=True)
    paths = [submitted(str(tmp_path / "sweep" / name), STARTED, job="7_0") for name in "ab"]
    task = [{"job": number, "directory": path} for number, path in enumerate(paths)]
    (array / "tasks.json").write_text(json.dumps({"tasks": [task]}))
    fake.add("7_0", "RUNNING", where=array)
    assert stop.stop([paths[0]]) == 2
    said = capsys.readouterr().err
    assert "shares its batch job with 1 other; stop the sweep, or end all of these with" in said
    assert fake.cancelled == []
    # alone in it by then
    append(paths[1], BatchEnded(0))
    assert stop.stop([paths[0]]) == 0
    assert fake.cancelled == [(["7_0"], None)]
