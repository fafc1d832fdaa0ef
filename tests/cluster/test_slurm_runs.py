"""Runs that a real Slurm has: submitted, left, put back into the queue, looked at and ended."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launching import Project, Running, text_of
from support.repositories import commit, git

from cluster.clusters import LOSES, SETTINGS
from cluster.slurm import WAIT, Slurm, patiently

# What most workers run: each says at its start what it finds, and steps until there is a file `go`.
# On SIGTERM it takes its time to save how far it came, which is when a second signal would hurt.
WORKER = """
import json, os, signal, socket, sys, time
from pathlib import Path

told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
rank, saved = os.environ["RANK"], Path("checkpoint.%s" % os.environ["RANK"])
step = int(saved.read_text()) if saved.exists() else 0
NAMES = ["RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "CUDA_VISIBLE_DEVICES"]
facts = {"host": socket.gethostname(), "pid": os.getpid(), "step": step}
facts |= {name: os.environ.get(name) for name in NAMES}
with open("starts", "a") as file:
    file.write(json.dumps(facts) + chr(10))
print("rank", rank, "begins after step", step, flush=True)
print("rank", rank, "complains", file=sys.stderr, flush=True)
while not Path("go").exists():
    step += 1
    time.sleep(0.05)
    if told:
        time.sleep(0.5)
        Path(f"{saved}.new").write_text(str(step))
        os.rename(f"{saved}.new", saved)
        sys.exit(143)
print("rank", rank, "ends after step", step, flush=True)
if "fails" in sys.argv:
    sys.exit("has had enough")
"""


class Run:
    """A run that goes to Slurm, from a project of its own, and what is known of it."""

    def __init__(
        self,
        slurm: Slurm,
        directory: Path,
        *overrides: str,
        launch: dict[str, Any] | None = None,
        script: str = WORKER,
    ) -> None:
        self.slurm = slurm
        self.root = directory
        self.path = directory / "run"
        project = Project(directory)
        if script:
            project.write("work.py", script)
        node = {"entrypoint": "work.py", "nproc": 1, "grace_period": "4s", **(launch or {})}
        project.experiment("test", json.dumps(node))
        words = ["-m", "lllaunch", "+exp=test", "hydra.run.dir=run", "cluster=slurm", *overrides]
        self.command = [sys.executable, *words]

    def start(self) -> Run:
        """Start the launcher, without a terminal; return the run."""
        self.launcher = Running(self.command, self.root)
        return self

    def submitted(self) -> Run:
        """Wait for a launcher that leaves; return the run."""
        done = self.launcher.finish(WAIT)
        assert done.code == 0, done.err
        assert f"submitted job {self.job}" in done.err
        return self

    @property
    def job(self) -> str:
        """Id of its batch job; empty as long as nobody has written it down."""
        return next((each["job"] or "" for each in reversed(self._lines(of="Submission"))), "")

    def starts(self) -> list[dict[str, Any]]:
        """Return what its workers found at their starts, but for one that is being written."""
        lines = text_of(self.root / "starts").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def until_starts(self, number: int) -> list[dict[str, Any]]:
        self.until(lambda: len(self.starts()) >= number, f"{number} starts")
        return self.starts()

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for something that its job does."""
        try:
            patiently(condition, what)
        except AssertionError as error:
            facts = (self.slurm.facts(self.job), self.told(), self.log)
            raise AssertionError(f"{error}: {facts}") from None

    def go(self) -> None:
        """Let its workers end."""
        (self.root / "go").touch()

    def history(self) -> list[dict[str, Any]]:
        return [each for each in self._lines() if each["type"] != "Submission"]

    def _lines(self, of: str = "") -> list[dict[str, Any]]:
        lines = text_of(self.path / "submission.jsonl").split("\n")[:-1]
        return [each for each in map(json.loads, lines) if not of or each["type"] == of]

    def told(self) -> list[str]:
        """Return its history in short: each event, and what it is about."""
        about = {"BatchSignalled": "signal", "BatchEnded": "exit_code", "Requeued": "cause"}
        kinds = [(each["type"], each) for each in self.history()]
        return [f"{kind} {each[about[kind]]}" if kind in about else kind for kind, each in kinds]

    @property
    def result(self) -> Any:
        return json.loads((self.path / "result.json").read_text())

    @property
    def log(self) -> str:
        return text_of(self.path / "launcher.log")

    def verb(self, *words: str) -> subprocess.CompletedProcess[str]:
        return Project(self.root).lllaunch(*words)

    def over(self) -> int:
        """Wait until it is over; return the exit code that `wait` has."""
        return self.verb("wait", "run").returncode

    def entry(self) -> dict[str, Any]:
        """Return what `ls` says of it."""
        (found,) = json.loads(self.verb("ls", "--json", "run").stdout)
        return dict(found)

    def show(self) -> str:
        done = self.verb("show", "run")
        assert done.returncode == 0, done.stderr
        return done.stdout


HELD = "+cluster.additional_parameters.hold=true"


# What is asked for, and what a launcher that follows ends with


def test_jobs_of_one_node_have_gpus_of_their_own_and_launchers_end_as_their_runs(
    slurm: Slurm, tmp_path: Path
) -> None:
    where = ["cluster.gpus_per_node=2", "cluster.nodelist=node1", "cluster.detach=false"]
    runs = []
    for name in ("a", "b", "c", "fails"):
        launch = {"nproc": 2, "args": [name]}
        runs.append(Run(slurm, tmp_path / name, *where, launch=launch).start())
    # all at once: none ends before
    seen = [run.until_starts(2) for run in runs]
    for run in runs:
        run.go()
    devices = [{start["CUDA_VISIBLE_DEVICES"] for start in starts} for starts in seen]
    assert [len(each) for each in devices] == [1] * 4
    cards = [card for each in devices for text in each for card in text.split(",")]
    assert sorted(cards) == list("01234567")
    assert {start["host"] for starts in seen for start in starts} == {"node1"}
    assert all({start["RANK"] for start in starts} == {"0", "1"} for starts in seen)
    done = [run.launcher.finish(WAIT) for run in runs]
    assert [each.code for each in done] == [0, 0, 0, 3]
    for run, each in zip(runs, done, strict=True):
        assert f"job {run.job}: RUNNING (node1)" in each.err
        assert "rank 0 begins after step 0" in each.out
        assert run.told() == ["BatchStarted", f"BatchEnded {each.code}"]
    assert "has had enough" in done[-1].out


ALL_REDUCE = """
import os, socket, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, total = dist.get_rank(), torch.tensor([2.0 ** dist.get_rank()])
dist.all_reduce(total)
host = socket.gethostname()
address = socket.gethostbyname(host)
found = (rank, dist.get_world_size(), int(total), host, address, sys.argv[1])
with open("sums", "a") as file:
    file.write(" ".join(map(str, found)) + chr(10))
dist.destroy_process_group()
"""


@pytest.fixture
def loopback_names(slurm: Slurm) -> Iterator[Path]:
    """What lets nodes take their own name for an address that no other reaches, as Debian's do.

    Before each task, as Slurm's own processes here listen at the address that their name has.
    """
    hosts = slurm.root / "etc" / "hosts"
    for node in range(slurm.nodes):
        Path(f"{hosts}.node{node}").write_text(f"127.0.1.1 node{node}\n{hosts.read_text()}")
    prolog = slurm.root / "etc" / "prolog"
    prolog.write_text(f"#!/bin/sh\nmount --bind {hosts}.$(hostname) /etc/hosts\n")
    prolog.chmod(0o755)
    yield prolog
    for node in range(slurm.nodes):
        slurm.on(node, "sh", "-c", "grep -q 127.0.1.1 /etc/hosts && umount /etc/hosts || true")


def test_one_run_has_several_nodes(slurm: Slurm, tmp_path: Path, loopback_names: Path) -> None:
    prolog = f"cluster.srun_args=['--task-prolog={loopback_names}']"
    # gloo takes the name of its node by itself
    launch = {
        "nnodes": 4,
        "preload": ["torch"],
        "env": {"GLOO_SOCKET_IFNAME": "eth0"},
        "args": ["${hydra:runtime.output_dir}"],
    }
    run = Run(slurm, tmp_path, prolog, launch=launch, script=ALL_REDUCE).start().submitted()
    assert run.over() == 0, run.log
    found = sorted((tmp_path / "sums").read_text().split("\n")[:-1])
    ranks, worlds, sums, hosts, addresses, places = zip(*map(str.split, found), strict=True)
    assert (ranks, set(worlds), set(sums)) == (("0", "1", "2", "3"), {"4"}, {"15"})
    assert sorted(hosts) == ["node0", "node1", "node2", "node3"]
    assert set(addresses) == {"127.0.1.1"}
    # where a checkpoint is found, whichever node a rank is on
    assert set(places) == {str(run.path)}
    # the parts of nodes are no runs
    assert run.entry()["state"] == run.result["state"] == "succeeded"
    assert len(run.result["attempts"][0]["workers"]) == 4
    assert sorted(node["hostname"] for node in run.result["nodes"]) == sorted(hosts)
    assert run.told() == ["BatchStarted", "BatchEnded 0"]
    assert all(name in run.show() for name in hosts)


# Put back into the queue


@pytest.mark.parametrize(("seconds", "by"), [(0, "slurm"), (30, "lllaunch")])
def test_a_run_whose_place_another_takes_goes_on_from_its_checkpoint(
    slurm: Slurm, tmp_path: Path, seconds: int, by: str
) -> None:
    slurm.partition("main", GraceTime=seconds)
    where = ["cluster.nodelist=node0", "cluster.exclusive=true"]
    run = Run(slurm, tmp_path, *where, launch={"nproc": 2}).start().submitted()
    run.until_starts(2)
    gate = tmp_path / "leave"
    other = f"until [ -e {shlex.quote(str(gate))} ]; do sleep 0.2; done"
    slurm.sbatch("-p", "high", "-w", "node0", "--exclusive", "-o/dev/null", f"--wrap={other}")
    run.until(lambda: slurm.state(run.job) == "PENDING", "its return to the queue")
    entry = run.entry()
    assert (entry["state"], entry["batch_job"]) == ("queued", run.job)
    assert entry["queue"].startswith("PENDING")
    saved = {rank: int((tmp_path / f"checkpoint.{rank}").read_text()) for rank in "01"}
    gate.touch()
    again = run.until_starts(4)[2:]
    assert {start["RANK"]: start["step"] for start in again} == saved
    assert {start["TORCHELASTIC_RESTART_COUNT"] for start in again} == {"1"}
    run.go()
    assert run.over() == 0
    assert run.told() == [
        *("BatchStarted", "BatchSignalled SIGTERM", "Requeued preempted"),
        *("BatchStarted", "BatchEnded 0"),
    ]
    # where there is time for it, lllaunch asks to come back, and only once
    assert [each["by"] for each in run.history() if each["type"] == "Requeued"] == [by]
    assert slurm.facts(run.job)["Restarts"] == "1"
    assert run.entry()["attempts"] == 2
    assert "preempted" in run.show()


def test_a_run_goes_on_after_its_time_limit_as_often_as_it_may(
    slurm: Slurm, tmp_path: Path
) -> None:
    # Slurm tells it between 5 and 35 s after its start
    limit = ["cluster.timeout_min=1", "cluster.signal_delay_s=25"]
    goes_on = Run(slurm, tmp_path / "on", *limit)
    ends = Run(slurm, tmp_path / "ends", *limit, "cluster.max_num_timeout=0")
    for run in (goes_on, ends):
        run.start()
    for run in (goes_on, ends):
        run.submitted()
    first, second = goes_on.until_starts(2)
    assert 0 == first["step"] < second["step"]
    goes_on.go()
    assert goes_on.over() == 0
    assert goes_on.told() == [
        *("BatchStarted", "BatchSignalled SIGUSR2", "Requeued timeout"),
        *("BatchStarted", "BatchEnded 0"),
    ]
    assert ends.over() == 143
    assert ends.told() == ["BatchStarted", "BatchSignalled SIGUSR2", "BatchEnded 143"]
    said = "the run does not go back into the queue: it reached its time limit once"
    assert f"{said}, and cluster.requeue.timeout is 0" in ends.log
    assert slurm.facts(ends.job)["Restarts"] == "0"
    assert len(ends.starts()) == 1


@pytest.mark.parametrize(
    ("lost", "left", "by", "conf"),
    # of the first nobody is left to ask for it
    [("1", "0", "lllaunch", LOSES), ("0", "1", "slurm", LOSES), ("1", "0", "slurm", SETTINGS)],
    ids=["another", "first", "slurm-sees-it-first"],
)
def test_a_run_that_loses_a_node_goes_on_with_others(
    slurm: Slurm, tmp_path: Path, lost: str, left: str, by: str, conf: dict[str, int]
) -> None:
    launch = {"nnodes": 2, "rdzv": {"conf": conf}}
    run = Run(slurm, tmp_path, launch=launch).start().submitted()
    hosts = {start["RANK"]: start["host"] for start in run.until_starts(2)}
    slurm.cut_power(int(hosts[lost].removeprefix("node")))
    again = run.until_starts(4)[2:]
    assert hosts[lost] not in {start["host"] for start in again}
    assert len({start["host"] for start in again}) == 2
    # the one that was left was told
    saved = int(text_of(tmp_path / f"checkpoint.{left}"))
    assert saved > 0
    assert [start["step"] for start in again if start["RANK"] == left] == [saved]
    run.go()
    assert run.over() == 0
    assert run.told()[-2:] == ["BatchStarted", "BatchEnded 0"]
    (back,) = (each for each in run.history() if each["type"] == "Requeued")
    assert (back["cause"], back["by"]) == ("node_failure", by)
    assert run.entry()["attempts"] == 2
    assert "a node was lost" in run.show()


# Ended by somebody


@pytest.mark.parametrize("how", ["scancel", "stop"])
def test_a_run_that_somebody_has_ended_does_not_come_back(
    slurm: Slurm, tmp_path: Path, how: str
) -> None:
    running = Run(slurm, tmp_path / "running").start()
    queued = Run(slurm, tmp_path / "queued", HELD).start()
    running.submitted().until_starts(1)
    queued.submitted()
    assert (running.entry()["state"], queued.entry()["state"]) == ("running", "queued")
    assert "queued" in queued.show()
    for run, state in ((running, "signalled"), (queued, "cancelled")):
        if how == "scancel":
            slurm.call("scancel", run.job)
        else:
            done = run.verb("stop", run.job)
            assert done.returncode == 0, done.stderr
            assert f"{state}, exit code 143" in done.stdout
        assert run.over() == 143
        entry = run.entry()
        assert (entry["state"], entry["exit_code"]) == (state, 143)
        assert "cancelled" in run.show()
        facts = slurm.facts(run.job)
        assert (facts["JobState"], facts["Restarts"]) == ("CANCELLED", "0")
        assert not [each for each in run.told() if each.startswith("Requeued")]
    # it had its time to save
    assert int(text_of(running.root / "checkpoint.0")) > 0
    assert running.told()[0] == "BatchStarted"
    assert queued.starts() == []


# The code


def test_a_run_that_waits_runs_the_code_of_its_submission(slurm: Slurm, tmp_path: Path) -> None:
    script, helper = tmp_path / "work.py", tmp_path / "helper.py"
    (tmp_path / ".gitignore").write_text("data\nrun/\n__pycache__/\n")
    (tmp_path / "data").write_text("ignored")
    text = "import helper\nprint('script', 0, helper.VERSION, open('data').read())\n"
    script.write_text(text)
    helper.write_text("VERSION = 'committed'\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    script.write_text(text.replace("0", "1"))
    helper.write_text("VERSION = 'edited'\n")
    run = Run(slurm, tmp_path, HELD, script="").start().submitted()
    script.write_text("raise SystemExit('this is too new')")
    helper.unlink()
    slurm.call("scontrol", "release", run.job)
    assert run.over() == 0, run.log
    said = text_of(run.path / "attempt_0" / "0" / "stdout.log")
    assert said == "script 1 edited ignored\n"
    assert run.result["build"]["snapshot"]["path"] == str(run.path / "code")


# In a terminal


def test_ctrl_c_asks_whether_to_leave_to_cancel_or_to_follow(slurm: Slurm, tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    runs = [Run(slurm, tmp_path / name) for name in ("left", "cancelled")]
    options: dict[str, Any] = {"encoding": "utf-8", "timeout": WAIT}
    terminals = [
        pexpect.spawn(run.command[0], run.command[1:], cwd=str(run.root), **options) for run in runs
    ]
    left, cancelled = terminals

    def answer(terminal: Any, word: str) -> None:
        terminal.sendintr()
        terminal.expect(r"leave the job, cancel, or follow on\? \[L/c/f\] ")
        terminal.sendline(word)

    try:
        for each in terminals:
            each.expect("rank 0 begins after step 0")
        answer(left, "f")
        answer(cancelled, "c")
        cancelled.expect(pexpect.EOF)
        cancelled.close()
        assert cancelled.exitstatus == 143
        assert runs[1].entry()["state"] == "signalled"
        assert slurm.until_over(runs[1].job) == "CANCELLED"
        answer(left, "l")
        left.expect("left; .*lllaunch logs -f run")
        left.expect(pexpect.EOF)
        left.close()
        assert left.exitstatus == 0
        assert runs[0].entry()["state"] == "running"
        runs[0].go()
        assert runs[0].over() == 0
    finally:
        for each in terminals:
            each.close(force=True)
