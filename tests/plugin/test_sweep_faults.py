"""Jobs that end in every way but the right one, and what a sweep makes of them."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launching import SLOW_SPAWNER, gone, text_of, until
from support.sweeping import SweepProject

from lllaunch.errors import ConfigError
from lllaunch.linux import proc
from lllaunch.sweep.directory import SweepDirectory
from lllaunch.sweep.journal import EndedRecord, OverRecord, StartedRecord
from lllaunch.sweep.leases import Leases
from lllaunch.sweep.machine import find_machine

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
        for number in range(10_000):
            print(number, flush=True)
            time.sleep(0.05)
    elif kind == "waits":
        while not (HERE / "go").exists():
            time.sleep(0.01)
    elif kind == "spoils":
        (HERE / "sweep" / str(number) / "result.json").mkdir()
    elif kind == "greedy":
        kept = []
        for _ in range(10_000):
            kept.append(bytearray(os.urandom(1 << 20)))
            time.sleep(0.005)
    return kind
"""

EXPERIMENT = """
limits:
  hangs: {preset: none, stall: 1s}
  hangs_once: {preset: none, stall: 1s}
  slow: {preset: none, timeout: 1s}
  slow_once: {preset: none, timeout: 1s}
  greedy: {preset: none, memory: 200MiB}
"""


@pytest.fixture
def project(tmp_path: Path) -> SweepProject:
    project = SweepProject(tmp_path)
    project.write("work.py", WORK)
    launch = (
        "{entrypoint: 'work:go', grace_period: 10, "
        "args: {kind: '${kind}', number: '${hydra:job.num}'}, "
        "watchdog: '${oc.select:limits.${kind},null}'}"
    )
    project.experiment("test", launch, EXPERIMENT + "kind: good\n")
    return project


def ends(project: SweepProject) -> dict[str, Any]:
    """How each job of sweep.json ended, by its kind."""
    found = {}
    for job in project.document()["jobs"]:
        (kind,) = [text.removeprefix("kind=") for text in job["overrides"] if "kind=" in text]
        found[kind] = job
    return found


def told(project: SweepProject) -> list[tuple[int, str, int | None]]:
    return [
        (record.retry, record.result.state, record.result.exit_code)
        for record in project.records()
        if isinstance(record, EndedRecord)
    ]


def test_killed_jobs_run_again_and_the_others_go_on(project: SweepProject) -> None:
    kinds = ["worker_once", "job_once", "spawner_once", "good"]
    ended = project.run("+exp=test", f"kind={','.join(kinds)}")
    assert ended.code == 0, ended.err
    assert set(project.states().values()) == {"succeeded"}
    # the death of a spawner is made good within the job, without giving its lease back
    assert project.tries() == {0: 2, 1: 2, 2: 1, 3: 1}
    starts = (project.root / "starts").read_text().split()
    assert [starts.count(kind) for kind in kinds] == [2, 2, 2, 1]
    for number in (0, 1):
        assert f"job {number}: attempt 0 was ended by a signal" in ended.err
    # attempts of one job are kept beside each other
    assert {path.name for path in (project.sweep / "0").glob("attempt_*")} == {
        "attempt_0",
        "attempt_1",
    }


def test_a_result_that_cannot_be_read_is_the_failure_of_its_job_alone(
    project: SweepProject,
) -> None:
    ended = project.run("+exp=test", "kind=spoils,good,good", "hydra.launcher.max_parallel=2")
    assert ended.code == 6, ended.err
    assert project.states() == {0: "error", 1: "succeeded", 2: "succeeded"}
    assert "result.json" in project.document()["jobs"][0]["root_cause"]
    assert "2 of 3 jobs succeeded, 1 failed" in ended.err


def test_a_journal_that_is_removed_ends_no_job_and_is_no_config_error(
    project: SweepProject,
) -> None:
    launcher = project.start("+exp=test", "kind=waits,good,good", "hydra.launcher.max_parallel=1")
    until(lambda: "waits" in text_of(project.root / "starts"), "the start of the first job")
    project.journal.unlink()
    (project.root / "go").touch()
    ended = launcher.finish()
    assert ended.code == 1, ended.err
    assert project.states() == {0: "succeeded", 1: "skipped", 2: "skipped"}
    assert project.document()["exit_code"] == 1
    last = ended.err.splitlines()[-1]
    assert "sweep.jsonl" in last
    assert "was removed, renamed or replaced while the sweep ran" in last
    assert "resume=" not in last


def test_a_job_is_tried_again_as_often_as_its_cause_allows(project: SweepProject) -> None:
    kinds = ["worker", "job", "spawner", "fails", "fails_once", "slow", "slow_once", "good"]
    retries = "hydra.launcher.retries={signal: 0, failure: 1, timeout: 1}"
    ended = project.run("+exp=test", f"kind={','.join(kinds)}", retries)
    assert ended.code == 6
    found = ends(project)
    assert {
        kind: (job["state"], job["tries"], job["exit_code"]) for kind, job in found.items()
    } == {
        "worker": ("failed", 1, 3),
        "job": ("signalled", 1, 137),
        "spawner": ("failed", 1, 3),
        "fails": ("failed", 2, 3),
        "fails_once": ("succeeded", 2, 0),
        "slow": ("failed", 2, 4),
        "slow_once": ("succeeded", 2, 0),
        "good": ("succeeded", 1, 0),
    }
    assert "SIGKILL" in found["worker"]["root_cause"]
    assert found["fails"]["root_cause"] == "rank 0: raised ValueError: the reason"
    assert "3 of 8 jobs succeeded, 5 failed" in ended.err
    for number in (0, 1, 2, 3, 5):
        assert f"sweep/{number}" in ended.err


def test_a_job_that_hangs_is_found_and_tried_once_more(project: SweepProject) -> None:
    ended = project.run("+exp=test", "kind=hangs,hangs_once,greedy,good")
    assert ended.code == 6
    found = ends(project)
    assert {
        kind: (job["state"], job["tries"], job["exit_code"]) for kind, job in found.items()
    } == {
        "hangs": ("failed", 2, 4),
        "hangs_once": ("succeeded", 2, 0),
        "greedy": ("failed", 1, 4),
        "good": ("succeeded", 1, 0),
    }
    assert project.result(0)["root_cause"]["cause"]["type"] == "Stalled"
    assert "signal.pause()" in ended.err
    assert "for_ever" in (project.sweep / "0" / "attempt_0" / "0" / "stacks.txt").read_text()
    assert "about to hang" in project.log(0, attempt=1)
    assert "job 0: attempt 0 hung" in ended.err


def test_a_job_that_cannot_run_does_not_keep_the_others_from_it(project: SweepProject) -> None:
    # what arguments and variables are made of is not looked at before jobs are started
    project.experiment(
        "mixed",
        "{entrypoint: echo, env: {FLAG: '${flag}'}}",
        "flag: text\n",
    )
    ended = project.run("+exp=mixed", "+x=1,2", "flag=text,true")
    assert ended.code == 6
    assert project.states()[0] == "succeeded"
    found = {job["job"]: job for job in project.document()["jobs"]}
    assert sorted(found) == [0, 1, 2, 3]
    for number in (1, 3):
        assert found[number]["tries"] == 0
        assert found[number]["exit_code"] == 2
    assert project.started() == [0, 2]
    assert "launch.env.FLAG: expected text, got true" in ended.err
    # a run is not begun that cannot be
    assert not list(project.sweep.glob("[13]/attempt_0"))


def test_a_program_that_is_not_there_keeps_a_sweep_from_starting(project: SweepProject) -> None:
    project.experiment(
        "mixed", "{entrypoint: '${program}', nproc: '${n}'}", "program: echo\nn: 1\n"
    )
    ended = project.run("+exp=mixed", "program=echo,no-such-program", "n=1,many")
    assert ended.code == 2
    assert "got 'many'" in ended.err
    assert "no-such-program" in ended.err
    assert not project.sweep.exists()


def test_a_config_that_hydra_cannot_compose_is_the_jobs_own_failure(project: SweepProject) -> None:
    project.experiment(
        "mixed", "{entrypoint: echo, args: ['${list.${which}}']}", "which: a\nlist: {a: 1, b: 2}\n"
    )
    ended = project.run("+exp=mixed", "which=a,c,b")
    assert ended.code == 6
    assert project.states() == {0: "succeeded", 1: "error", 2: "succeeded"}
    assert "list.c" in ended.err
    assert "Traceback" not in ended.err


def test_what_is_wrong_with_all_jobs_starts_nothing(project: SweepProject) -> None:
    ended = project.run("+exp=test", "kind=good", "launch.nproc=1,lots", "launch.tee=al,all")
    assert ended.code == 2
    assert "nothing was started" in ended.err
    assert "got 'lots'" in ended.err
    assert "did you mean 'all'?" in ended.err
    assert not project.started()
    assert not (project.root / "starts").exists()


@pytest.mark.parametrize(("policy", "most"), [("stop", 1), ("{max_failures: 2}", 2)])
def test_enough_failures_end_a_sweep(project: SweepProject, policy: str, most: int) -> None:
    alone = "hydra.launcher.max_parallel=1"
    ended = project.run(
        "+exp=test", "kind=good,fails,fails,fails", alone, f"hydra.launcher.on_failure={policy}"
    )
    assert ended.code == 6
    assert (project.root / "starts").read_text().split() == ["good", *["fails"] * most]
    assert project.started() == list(range(1 + most))
    failed = "1 job has failed" if most == 1 else "2 jobs have failed"
    assert f"{failed}: no more are started" in ended.err
    assert f"1 of 4 jobs succeeded, {most} failed, {3 - most} not run" in ended.err
    # what was never started is run by a resume
    project.write("work.py", "def go(kind, number): return 1\n")
    again = project.run("+exp=test", "kind=good,fails,fails,fails", "hydra.launcher.resume=sweep")
    assert again.code == 0, again.err
    assert set(project.states().values()) == {"succeeded"}
    assert project.tries() == {n: 1 + (1 <= n <= most) for n in range(4)}
    assert project.started()[1 + most :] == [1, 2, 3]


CAREFUL = """
import os, signal, time
from pathlib import Path

HERE = Path(__file__).parent

def stop(signum, frame):
    (HERE / f"told-{NUMBER}").write_text(str(signum))
    if not STUBBORN:
        raise SystemExit(7)

def go(number, stubborn):
    global NUMBER, STUBBORN
    NUMBER, STUBBORN = number, stubborn
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, stop)
    (HERE / f"runs-{number}").touch()
    while True:
        time.sleep(60)
"""


@pytest.fixture
def careful(project: SweepProject) -> SweepProject:
    project.write("work.py", CAREFUL)
    launch = (
        "{entrypoint: 'work:go', grace_period: 50, "
        "args: {number: '${hydra:job.num}', stubborn: '${stubborn}'}}"
    )
    project.experiment("careful", launch, "stubborn: false\nx: 0\n")
    return project


def test_ctrl_c_lets_running_jobs_end_and_starts_no_other(careful: SweepProject) -> None:
    launcher = careful.start("+exp=careful", "x=range(6)", "hydra.launcher.max_parallel=2")
    until(lambda: all((careful.root / f"runs-{n}").exists() for n in (0, 1)), "two jobs")
    launcher.signal(signal.SIGINT)
    ended = launcher.finish()
    assert ended.code == 130
    assert careful.started() == [0, 1]
    assert [text_of(careful.root / f"told-{n}") for n in (0, 1)] == [str(int(signal.SIGINT))] * 2
    assert "SIGINT received: no new jobs start; forwarded to 2 running jobs" in ended.err
    assert "0 of 6 jobs succeeded, 2 cancelled, 4 not run" in ended.err
    assert careful.document()["exit_code"] == 130
    assert "succeeded" not in careful.states().values()
    # they were not tried again, and nothing is said to have failed
    assert sum(careful.tries().values()) == 2
    assert " failed" not in ended.err


def test_a_second_ctrl_c_kills(careful: SweepProject) -> None:
    many = ("x=range(6)", "hydra.launcher.max_parallel=2", "stubborn=true")
    launcher = careful.start("+exp=careful", *many)
    until(lambda: all((careful.root / f"runs-{n}").exists() for n in (0, 1)), "two jobs")
    launcher.signal(signal.SIGINT)
    until(lambda: all((careful.root / f"told-{n}").exists() for n in (0, 1)), "the signal")
    assert launcher.process.poll() is None
    launcher.signal(signal.SIGINT)
    ended = launcher.finish(30)
    assert ended.code == 130
    assert "SIGINT received again: 2 running jobs killed" in ended.err
    assert careful.started() == [0, 1]
    assert [state for _, state, _ in told(careful) if state == "succeeded"] == []


def test_ctrl_backslash_shows_where_the_workers_of_all_jobs_stand_and_the_sweep_goes_on(
    careful: SweepProject,
) -> None:
    many = ("x=range(3)", "hydra.launcher.max_parallel=2")
    launcher = careful.start("+exp=careful", *many)
    until(lambda: all((careful.root / f"runs-{n}").exists() for n in (0, 1)), "two jobs")
    launcher.signal(signal.SIGQUIT)
    stacks = [careful.sweep / str(n) / "attempt_0" / "0" / "stacks.txt" for n in (0, 1)]
    until(lambda: all("in go" in text_of(path) for path in stacks), "the stacks of both")
    until(lambda: launcher.err.count("in go: time.sleep(60)") == 2, "both to be shown")
    assert launcher.process.poll() is None
    assert not any((careful.root / f"told-{n}").exists() for n in (0, 1))
    launcher.signal(signal.SIGTERM)
    ended = launcher.finish()
    assert ended.code == 143
    assert "0 of 3 jobs succeeded, 2 cancelled, 1 not run" in ended.err


def test_ctrl_backslash_ends_a_sweep_where_that_is_listed_and_its_jobs_with_it(
    careful: SweepProject,
) -> None:
    listed = {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGQUIT"}
    launcher = careful.start("+exp=careful", "x=0,1", env=listed)
    until(lambda: all((careful.root / f"runs-{n}").exists() for n in (0, 1)), "two jobs")
    launcher.signal(signal.SIGQUIT)
    ended = launcher.finish()
    assert ended.code == 131
    assert [text_of(careful.root / f"told-{n}") for n in (0, 1)] == [str(int(signal.SIGTERM))] * 2
    assert "0 of 2 jobs succeeded, 2 cancelled" in ended.err


# What a shell does about its job, as far as Ctrl-Z and fg go.
SHELL = """
import os, signal, sys

def wait(pid):
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpgrp())
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        print("Stopped by", signal.Signals(os.WSTOPSIG(status)).name, flush=True)
        sys.stdin.readline()
        os.tcsetpgrp(0, pid)
        os.killpg(pid, signal.SIGCONT)

signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    try:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(sys.argv[1], sys.argv[1:])
    finally:
        os._exit(127)
sys.exit(wait(pid))
"""

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


# Seconds that a job may take, whatever it waits for; and how long it is stopped.
LIMIT = 15


class Terminal:
    """A terminal with a shell on it that runs one command."""

    def __init__(self, project: SweepProject, *command: str) -> None:
        self._shown = b""
        words = [sys.executable, "-c", SHELL, sys.executable, *command]
        self.shell, self._master = pty.fork()
        if self.shell == 0:
            try:
                os.chdir(project.root)
                os.execve(sys.executable, words, {**project.environment(), "TERM": "xterm"})
            finally:
                os._exit(127)
        os.set_blocking(self._master, False)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    @property
    def shown(self) -> str:
        # EIO: nobody has the terminal open any more
        with contextlib.suppress(BlockingIOError, OSError):
            while data := os.read(self._master, 1 << 16):
                self._shown += data
        return self._shown.decode(errors="replace")

    @property
    def launcher(self) -> int:
        (pid,) = [each.pid for each in proc.descendants(self.shell) if each.ppid == self.shell]
        return pid

    def finish(self) -> int:
        def ended() -> bool:
            # else the terminal is full in the end
            assert self.shown is not None
            return gone(self.shell)

        until(ended, "the end of the shell")
        return os.waitstatus_to_exitcode(os.waitpid(self.shell, 0)[1])

    def close(self) -> None:
        with contextlib.suppress(ChildProcessError):
            if not os.waitpid(self.shell, os.WNOHANG)[0]:
                os.kill(self.shell, signal.SIGKILL)
                os.waitpid(self.shell, 0)
        os.close(self._master)


@pytest.fixture
def patient(project: SweepProject) -> Iterator[Terminal]:
    project.write("work.py", PATIENT)
    # what a pause counts towards would end each of them
    launch = (
        "{entrypoint: work.py, nproc: 2, env: {JOB: '${hydra:job.num}'}, "
        f"watchdog: {{preset: none, timeout: {LIMIT}s, stall: {LIMIT}s, run_timeout: {LIMIT}s}}}}"
    )
    project.experiment("patient", launch, "x: 0\n")
    many = ("x=range(3)", "hydra.launcher.max_parallel=2", "hydra.sweep.dir=sweep")
    terminal = Terminal(project, "-m", "lllaunch", "-m", "+exp=patient", *many)
    yield terminal
    terminal.close()
    project.all_gone()


def states(pids: list[int]) -> set[str]:
    return {facts.state for pid in pids if (facts := proc.facts(pid)) is not None}


def stop(terminal: Terminal, pids: list[int]) -> None:
    """Types Ctrl-Z, and waits until processes and the launcher have stopped."""
    before = terminal.shown.count("Stopped by")
    terminal.type("\x1a")
    until(lambda: terminal.shown.count("Stopped by SIGSTOP") > before, "the shell")
    until(lambda: states(pids) == {"T"}, "all to be stopped")


def test_ctrl_z_stops_the_workers_of_all_jobs_and_no_time_passes_until_they_go_on(
    project: SweepProject, patient: Terminal
) -> None:
    files = [project.root / f"pids-{job}-{rank}" for job in range(2) for rank in range(2)]

    def running() -> bool:
        assert patient.shown is not None
        return all(text_of(file).endswith("\n") for file in files)

    until(running, "the workers")
    launcher = patient.launcher
    pids = [launcher, *(int(pid) for file in files for pid in file.read_text().split())]
    stop(patient, pids)
    time.sleep(LIMIT + 1)
    patient.type("fg\n")
    until(lambda: "T" not in states(pids), "all to go on")
    stop(patient, pids)
    (project.root / "go").touch()
    patient.type("fg\n")
    assert patient.finish() == 0, patient.shown
    assert "3 of 3 jobs succeeded" in patient.shown
    assert project.states() == dict.fromkeys(range(3), "succeeded")
    assert project.tries() == dict.fromkeys(range(3), 1)
    for job in range(3):
        events = (project.sweep / str(job) / "events.jsonl").read_text()
        assert "WatchdogFired" not in events
        assert "SignalReceived" not in events


def test_ctrl_c_ends_a_sweep_that_was_stopped_before(
    project: SweepProject, patient: Terminal
) -> None:
    file = project.root / "pids-0-0"

    def running() -> bool:
        assert patient.shown is not None
        return text_of(file).endswith("\n")

    until(running, "a worker")
    pids = [int(pid) for pid in file.read_text().split()]
    stop(patient, pids)
    patient.type("fg\n")
    until(lambda: "T" not in states(pids), "all to go on")
    patient.type("\x03")
    assert patient.finish() == 130, patient.shown
    assert project.document()["exit_code"] == 130


def test_a_sweep_that_was_stopped_and_is_killed_leaves_nothing(
    project: SweepProject, patient: Terminal
) -> None:
    file = project.root / "pids-0-0"

    def running() -> bool:
        assert patient.shown is not None
        return text_of(file).endswith("\n")

    until(running, "a worker")
    stop(patient, [int(pid) for pid in file.read_text().split()])
    os.kill(patient.launcher, signal.SIGKILL)
    patient.type("fg\n")
    assert patient.finish() == -signal.SIGKILL & 0xFF
    project.all_gone()


LOUD = """
import os, sys, time

def go(number):
    letter = "abcd"[number]
    for stream in (1, 2):
        for line in range(40):
            # no piece ends where a line does
            data = (letter * 9_999 + "\\n").encode() * 2
            for start in range(0, len(data), 3_001):
                os.write(stream, data[start:start + 3_001])
    os.write(1, letter.encode() * 5)
"""


def test_lines_of_parallel_jobs_never_mix(project: SweepProject) -> None:
    project.write("work.py", LOUD)
    launch = "{entrypoint: 'work:go', args: {number: '${hydra:job.num}'}, nproc: 2, tee: all, "
    launch += "collapse: false}"
    project.experiment("loud", launch, "x: 0\n")
    launcher = project.start("+exp=loud", "x=range(4)", "launch.resources.gpus_per_proc=0")
    ended = launcher.finish()
    assert ended.code == 0, ended.err[-2000:]
    for text, last in ((ended.out, 1), (ended.err, 0)):
        lines = [line for line in text.splitlines() if line.startswith("[")]
        expected = []
        for number, letter in enumerate("abcd"):
            for rank in (0, 1):
                head = f"[{number}] [default{rank}]:"
                expected += [head + letter * 9_999] * 80 + [head + letter * 5] * last
        assert sorted(lines) == sorted(expected)
        # and no line came without its job's number
        others = [line for line in text.splitlines() if not line.startswith("[")]
        assert not [line for line in others if "aaaa" in line or "dddd" in line]


def test_a_slow_reader_gets_every_line_whole(project: SweepProject) -> None:
    project.write(
        "long.py",
        """
        import os

        def go():
            os.write(1, b"y" * 3_000_000 + b"\\n")
            print("after")
        """,
    )
    project.experiment("long", "{entrypoint: 'long:go'}")
    command = [sys.executable, "-m", "lllaunch", "-m", "+exp=long", "+i=1,2,3,4"]
    with subprocess.Popen(
        [*command, "hydra.sweep.dir=sweep"],
        cwd=project.root,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as launcher:
        assert launcher.stdout is not None
        # much more than a pipe holds has been written when the first byte is read
        until(lambda: len(list(project.sweep.glob("*/attempt_0/0/return.json"))) >= 2, "two jobs")
        lines = launcher.stdout.read().splitlines()
        assert launcher.wait(60) == 0
    expected = [b"[%d] %s" % (n, b"y" * 3_000_000) for n in range(4)]
    expected += [b"[%d] after" % n for n in range(4)]
    assert sorted(lines) == sorted(expected)


# Sends the launcher a Ctrl-C while jobs are tried before the first of them starts.
INTERRUPTING = """
import os, signal, sys, weakref

class Thing:
    pass

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass

def waitpid(pid, options, _real=os.waitpid):
    if sys._getframe(1).f_code.co_filename.endswith("probes.py"):
        os.waitpid = _real
        if os.environ["WHERE"] == "finalizer":
            thing = Thing()
            watch = weakref.ref(thing, interrupt)
            del thing
        else:
            interrupt()
    return _real(pid, options)

os.waitpid = waitpid
"""


@pytest.mark.parametrize("where", ["plain", "finalizer"])
def test_ctrl_c_before_the_first_job_is_not_lost(project: SweepProject, where: str) -> None:
    project.write("sitecustomize.py", INTERRUPTING)
    environ = {"PYTHONPATH": str(project.root), "WHERE": where}
    ended = project.run("+exp=test", "kind=good,good", env=environ)
    assert ended.code == 130, ended.err
    assert project.started() == []


# Sends the launcher signals while it writes down how the sweep has ended.
LATE = """
import os, signal, sys

if sys.orig_argv[1:4] == ["-m", "lllaunch", "-m"]:
    import lllaunch.app.sweeping.launcher as launcher
    import lllaunch.sweep.session as session
    from lllaunch.sweep.session import JobRecords

    def twice(real):
        def write(*args):
            os.kill(os.getpid(), signal.SIGTERM)
            real(*args)
            os.kill(os.getpid(), signal.SIGINT)
        return write

    where = os.environ["WHERE"]
    if where == "journal":
        JobRecords.over = twice(JobRecords.over)
    elif where == "sweep.json":
        session.write_summary = twice(session.write_summary)
    else:
        launcher.tell_ci = twice(launcher.tell_ci)
"""


@pytest.mark.parametrize("where", ["journal", "sweep.json", "report"])
def test_signals_while_the_end_is_written_take_nothing_from_it(
    project: SweepProject, where: str
) -> None:
    project.write("sitecustomize.py", LATE)
    ci = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(project.root / "summary.md")}
    environ = {"PYTHONPATH": str(project.root), "WHERE": where} | ci
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
    try:
        until(lambda: text_of(tmp_path / "worker").endswith("\n"), "the worker")
        worker = int(text_of(tmp_path / "worker"))
        (job,) = [record.pid for record in project.records() if isinstance(record, StartedRecord)]
        assert job is not None
        launcher.kill()
        until(lambda: gone(job), "the end of the job's process")
        assert not gone(worker)
        assert leases.acquire(machine.everything._replace(cpus=()))
        with pytest.raises(ConfigError):
            SweepDirectory.claim(str(project.sweep))
        (tmp_path / "die").touch()
        until(lambda: not leases.acquire(machine.everything._replace(cpus=())), "the GPU")
        assert gone(worker)
        SweepDirectory.claim(str(project.sweep), patience=30.0).release()
    finally:
        (tmp_path / "die").touch()
        leases.close()
        project.all_gone()
