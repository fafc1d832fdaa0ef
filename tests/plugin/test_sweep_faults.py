"""Jobs that end in every way but the right one, and what a sweep makes of them."""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from typing import Any

import pytest
from support.launching import SLOW_SPAWNER, WAIT, Running, gone, text_of, until
from support.sweeping import SweepProject

from lllaunch.errors import ConfigError
from lllaunch.linux import proc
from lllaunch.sweep.journal import OverRecord, StartedRecord
from lllaunch.sweep.machine import Leases, find_machine
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.session import SweepSession

# What a worker needs to be killed, to hang, to fail: once, or whenever it runs.
WORK = """
import ctypes, json, os, signal, sys, time
from pathlib import Path

HERE = Path(__file__).parent

def first(kind):
    '''Whether this job runs for the first time; tells the test that it runs.'''
    with open(HERE / "starts", "a") as file:
        file.write(f"{kind}\\n")
    return (HERE / "starts").read_text().split().count(kind) == 1

def job_process(number):
    lines = (HERE / "sweep" / "sweep.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [r for r in records if r["type"] == "started" and r["job"] == number][-1]["pid"]

def for_ever():
    while True:
        signal.pause()

def wait_for_a_signal(number):
    def stop(signum, frame):
        (HERE / f"told-{number}").write_text(str(signum))
        raise SystemExit(7)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, stop)
    signal.signal(signal.SIGUSR1, lambda *_: (HERE / f"usr1-{number}").touch())
    (HERE / f"runs-{number}").touch()
    for_ever()

def go(kind, number):
    again = not first(kind)
    if kind.endswith("once") and again:
        return kind
    kind = kind.removesuffix("_once")
    if kind == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "job":
        os.kill(job_process(number), signal.SIGKILL)
        for_ever()
    elif kind == "spawner":
        os.kill(os.getppid(), signal.SIGKILL)
        for_ever()
    elif kind == "fails":
        raise ValueError("the reason")
    elif kind == "hangs":
        print("about to hang", flush=True)
        for_ever()
    elif kind == "slow":
        while True:
            print("goes on", flush=True)
            time.sleep(0.05)
    elif kind == "careful":
        wait_for_a_signal(number)
    elif kind == "greedy":
        kept = []
        for _ in range(1_000):
            kept.append(bytearray(os.urandom(1 << 20)))
            time.sleep(0.005)
        for_ever()
    return kind
"""

# Who is slow or greedy ends of that limit, whatever else the machine does; who hangs does so once,
# and has time enough to do something before and afterwards.
EXPERIMENT = """
limits:
  hangs_once: {preset: none, stall: 5s}
  slow: {preset: none, timeout: 1s}
  greedy: {preset: none, memory: 200MiB}
"""


@pytest.fixture
def project(tmp_path: Path) -> SweepProject:
    project = SweepProject(tmp_path)
    project.write("work.py", WORK)
    launch = (
        "{entrypoint: 'work:go', grace_period: 50, "
        "args: {kind: '${kind}', number: '${hydra:job.num}'}, "
        "watchdog: '${oc.select:limits.${kind},null}'}"
    )
    project.experiment("test", launch, EXPERIMENT + "kind: good\nx: 0\n")
    return project


def ends(project: SweepProject) -> dict[str, Any]:
    """How each job of sweep.json ended, by its kind."""
    found = {}
    for job in project.document()["jobs"]:
        (kind,) = [text.removeprefix("kind=") for text in job["overrides"] if "kind=" in text]
        found[kind] = job
    return found


@pytest.mark.smoke
def test_a_job_is_tried_again_as_often_as_its_cause_allows_and_the_others_go_on(
    project: SweepProject,
) -> None:
    expected = {
        "worker_once": ("succeeded", 2, 0),
        "job_once": ("succeeded", 2, 0),
        # the death of a spawner is made good within the job, without giving its lease back
        "spawner_once": ("succeeded", 1, 0),
        "hangs_once": ("succeeded", 2, 0),
        "greedy": ("failed", 1, 4),
        "slow": ("failed", 2, 4),
        "fails": ("failed", 2, 3),
        "fails_once": ("succeeded", 2, 0),
        "good": ("succeeded", 1, 0),
    }
    retries = "hydra.launcher.retries={failure: 1, timeout: 1}"
    ended = project.run("+exp=test", f"kind={','.join(expected)}", retries)
    assert ended.code == 6
    found = ends(project)
    assert {
        kind: (job["state"], job["tries"], job["exit_code"]) for kind, job in found.items()
    } == expected
    assert "6 of 9 jobs succeeded, 3 failed" in ended.err
    starts = (project.root / "starts").read_text().split()
    assert [starts.count(kind) for kind in expected] == [2, 2, 2, 2, 1, 2, 2, 2, 1]
    for number in (0, 1):
        assert f"job {number}: attempt 0 was ended by a signal" in ended.err
    assert "job 3: attempt 0 hung" in ended.err
    # attempts of one job are kept beside each other
    attempts = [project.sweep / "3" / f"attempt_{number}" for number in range(2)]
    assert all(path.is_dir() for path in attempts)
    assert "signal.pause()" in ended.err
    assert project.result(4)["root_cause"]["cause"]["type"] == "OverMemory"
    assert found["fails"]["root_cause"] == "rank 0: raised ValueError: the reason"
    assert "sweep/6" in ended.err


def test_a_job_that_cannot_run_does_not_keep_the_others_from_it(project: SweepProject) -> None:
    # what arguments and variables are made of is not looked at before jobs are started
    project.experiment(
        "mixed",
        "{entrypoint: echo, env: {FLAG: '${flag}'}, args: ['${list.${which}}']}",
        "flag: text\nwhich: a\nlist: {a: 1, b: 2}\n",
    )
    ended = project.run("+exp=mixed", "which=a,c", "flag=text,true")
    assert ended.code == 6
    found = {job["job"]: job for job in project.document()["jobs"]}
    # the second one is wrong, and Hydra cannot compose the others
    codes = {number: job["exit_code"] for number, job in found.items()}
    assert codes == {0: 0, 1: 2, 2: 2, 3: 2}
    assert [found[number]["tries"] for number in range(4)] == [1, 0, 0, 0]
    assert project.started() == [0]
    assert "launch.env.FLAG: expected text, got true" in ended.err
    assert "list.c" in ended.err
    assert "Traceback" not in ended.err
    # a run is not begun that cannot be
    assert not list(project.sweep.glob("[123]/attempt_0"))


def two_run(project: SweepProject, *args: str) -> Running:
    """Starts a sweep, and waits until two of its jobs run."""
    args = ("+exp=test", "kind=careful", *args, "hydra.launcher.max_parallel=2")
    # as in `srun --pty bash`, where Slurm sends nothing
    launcher = project.start(*args, env={"SLURM_STEP_ID": "0"})
    until(lambda: all((project.root / f"runs-{n}").exists() for n in (0, 1)), "two jobs")
    return launcher


def test_ctrl_c_lets_running_jobs_end_and_starts_no_other(project: SweepProject) -> None:
    launcher = two_run(project, "x=range(6)")
    launcher.signal(signal.SIGINT)
    ended = launcher.finish()
    assert ended.code == 130
    assert project.started() == [0, 1]
    assert [text_of(project.root / f"told-{n}") for n in (0, 1)] == [str(int(signal.SIGINT))] * 2
    assert "SIGINT received: no new jobs start; forwarded to 2 running jobs" in ended.err
    assert "0 of 6 jobs succeeded, 2 cancelled, 4 not run" in ended.err
    # they were not tried again, and nothing is said to have failed
    assert sum(project.tries().values()) == 2
    assert " failed" not in ended.err


def test_ctrl_backslash_shows_where_the_workers_of_all_jobs_stand_and_the_sweep_goes_on(
    project: SweepProject,
) -> None:
    launcher = two_run(project, "x=range(3)")
    launcher.signal(signal.SIGUSR1)
    passed_on = [project.root / f"usr1-{n}" for n in (0, 1)]
    until(lambda: all(path.exists() for path in passed_on), "SIGUSR1 in the workers")
    launcher.signal(signal.SIGQUIT)
    stacks = [project.sweep / str(n) / "attempt_0" / "0" / "stacks.txt" for n in (0, 1)]
    until(lambda: all("in for_ever" in text_of(path) for path in stacks), "the stacks of both")
    until(lambda: launcher.err.count("in for_ever: signal.pause()") == 2, "both to be shown")
    assert launcher.process.poll() is None
    assert not any((project.root / f"told-{n}").exists() for n in (0, 1))
    launcher.signal(signal.SIGTERM)
    ended = launcher.finish()
    assert ended.code == 143
    assert "0 of 3 jobs succeeded, 2 cancelled, 1 not run" in ended.err


# Writes down who it is, waits for the test, and ends.
PATIENT = """
import os, subprocess, time

child = subprocess.Popen(["sleep", "1000"])
with open(f"pids-{os.environ['JOB']}-{os.environ['RANK']}", "w") as file:
    file.write(f"{os.getpid()} {child.pid}\\n")
while not os.path.exists("go"):
    time.sleep(0.01)
child.kill()
"""
# A stop of a job takes hours, as far as it can see.
AWAY = """
import signal, time

away = 0.0
monotonic, sigwait = time.monotonic, signal.sigwait

def return_later(signals):
    global away
    found = sigwait(signals)
    away += 10_000.0
    return found

time.monotonic = lambda: monotonic() + away
signal.sigwait = return_later
"""


def states(pids: list[int]) -> set[str]:
    return {facts.state for pid in pids if (facts := proc.facts(pid)) is not None}


@pytest.mark.parametrize("then", ["goes on", "is killed"])
def test_ctrl_z_stops_the_workers_of_all_jobs_and_no_time_passes_until_the_sweep(
    project: SweepProject, then: str
) -> None:
    project.write("work.py", PATIENT)
    project.write("sitecustomize.py", AWAY)
    # what a pause counts towards would end each of them
    launch = (
        "{entrypoint: work.py, nproc: 2, env: {JOB: '${hydra:job.num}'}, "
        "watchdog: {preset: none, timeout: 1000s, stall: 1000s, run_timeout: 1000s}}"
    )
    project.experiment("patient", launch, "x: 0\n")
    many = ("x=range(3)", "hydra.launcher.max_parallel=2")
    launcher = project.start("+exp=patient", *many, env={"PYTHONPATH": str(project.root)})
    files = [project.root / f"pids-{job}-{rank}" for job in range(2) for rank in range(2)]
    until(lambda: all(text_of(file).endswith("\n") for file in files), "the workers")
    pids = [launcher.pid, *(int(pid) for file in files for pid in file.read_text().split())]
    # before they can be stopped again they have looked at the time
    for last in (False, True):
        launcher.signal(signal.SIGTSTP)
        until(lambda: states(pids) == {"T"}, "all to be stopped")
        if last and then == "is killed":
            launcher.kill()
            project.all_gone()
            return
        launcher.signal(signal.SIGCONT)
        until(lambda: "T" not in states(pids), "all to go on")
    (project.root / "go").touch()
    ended = launcher.finish()
    assert ended.code == 0, ended.err
    assert project.states() == dict.fromkeys(range(3), "succeeded")
    assert project.tries() == dict.fromkeys(range(3), 1)
    for job in range(3):
        events = (project.sweep / str(job) / "events.jsonl").read_text()
        assert "WatchdogFired" not in events
        assert "SignalReceived" not in events


# Sends the launcher signals while it writes down how the sweep has ended.
LATE = """
import os, signal, sys

if sys.orig_argv[1:4] == ["-m", "lllaunch", "-m"]:
    import lllaunch.app.launcher as launcher
    import lllaunch.sweep.session as session
    from lllaunch.sweep.session import JobRecords

    def twice(real):
        def write(*args):
            os.kill(os.getpid(), signal.SIGTERM)
            real(*args)
            os.kill(os.getpid(), signal.SIGINT)
        return write

    JobRecords.over = twice(JobRecords.over)
    session.write_summary = twice(session.write_summary)
    launcher.tell_ci = twice(launcher.tell_ci)
"""


def test_signals_while_the_end_is_written_take_nothing_from_it(project: SweepProject) -> None:
    project.write("sitecustomize.py", LATE)
    ci = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(project.root / "summary.md")}
    environ = {"PYTHONPATH": str(project.root)} | ci
    ended = project.run("+exp=test", "kind=good,fails", env=environ)
    assert ended.code == 128 + signal.SIGTERM, ended.err
    assert project.states() == {0: "succeeded", 1: "failed"}
    # what became of the jobs stands there, and no signal did that
    assert project.document()["exit_code"] == 6
    assert isinstance(project.records()[-1], OverRecord)
    assert "1 of 2 jobs succeeded, 1 failed" in ended.err
    assert "the reason" in (project.root / "summary.md").read_text()
    assert "Traceback" not in ended.err.partition("1 of 2 jobs")[2]
    again = project.run("+exp=test", "kind=good,fails", "hydra.launcher.resume=sweep")
    assert again.code == 6, again.err
    assert project.tries() == {0: 1, 1: 2}


@pytest.mark.parametrize("more", [{}, {"COLD": "1"}], ids=["warm", "cold"])
def test_nobody_gets_what_workers_of_a_killed_launcher_still_use(
    tmp_path: Path, more: dict[str, str]
) -> None:
    project = SweepProject(tmp_path, gpus=1)
    project.write("sitecustomize.py", SLOW_SPAWNER)
    command = f"echo $$ > {tmp_path}/worker; exec sleep 1000"
    project.experiment("test", f"{{entrypoint: sh, args: ['-c', '{command}']}}")
    environ = {"PYTHONPATH": str(tmp_path), "LET_DIE": str(tmp_path / "die"), **more}
    launcher = project.start("+exp=test", env=environ)
    machine = find_machine(project.environment())
    leases = Leases(machine)
    begin = functools.partial(SweepSession.begin, str(project.sweep), command=(), version="0")
    try:
        until(lambda: text_of(tmp_path / "worker").endswith("\n"), "the worker")
        worker = int(text_of(tmp_path / "worker"))
        (job,) = [record.pid for record in project.records() if isinstance(record, StartedRecord)]
        assert job is not None
        launcher.kill()
        until(lambda: gone(job), "the end of the job's process")
        assert not gone(worker)
        assert leases.acquire(Lease(machine.everything.gpus))
        used = rf"still in use by jobs of a sweep whose launcher \(pid {launcher.pid} .*\(pids .*\)"
        with pytest.raises(ConfigError, match=used):
            begin(resume=True, patience=0.05)
        said: list[str] = []

        def let_die(line: str) -> None:
            said.append(line)
            (tmp_path / "die").touch()

        begin(resume=True, say=let_die, patience=WAIT).close()
        (line,) = said
        assert line.startswith("waiting for jobs that the killed launcher of")
        until(lambda: not leases.acquire(Lease(machine.everything.gpus)), "the GPU")
        assert gone(worker)
    finally:
        (tmp_path / "die").touch()
        leases.close()
        project.all_gone()
