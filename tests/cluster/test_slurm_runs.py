"""Runs that a real Slurm has: submitted, left, put back into the queue, looked at and ended."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from support.launching import text_of

from cluster.slurm import Slurm

# Each of its steps has a bound of its own, and the first test brings the cluster up.
pytestmark = pytest.mark.timeout(400)

# Far more than anything here takes: it bounds a hang. A node that loses power is missed after some
# 15 s, and a job that goes back into the queue starts 7 s later.
WAIT = 90.0

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
        # one that is told twice saves afterwards
        while Path("twice").exists() and len(told) < 2:
            time.sleep(0.02)
        time.sleep(0.5)
        Path(f"{saved}.new").write_text(str(step))
        os.rename(f"{saved}.new", saved)
        sys.exit(143)
print("rank", rank, "ends after step", step, flush=True)
if len(sys.argv) > 1 and sys.argv[1] == "fails":
    sys.exit("has had enough")
"""


class Run:
    """A run that goes to Slurm, from a project of its own, and what is known of it.

    Args:
        slurm: where it goes.
        directory: the project's; the run's is ``run`` in it.
        overrides: of the command line.
        launch: the ``launch`` node, apart from ``entrypoint: work.py``.
        script: what ``work.py`` is; empty if it is there.
    """

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
        (directory / "conf" / "exp").mkdir(parents=True, exist_ok=True)
        if script:
            (directory / "work.py").write_text(script)
        node = {"entrypoint": "work.py", "nproc": 1, "grace_period": "4s", **(launch or {})}
        experiment = f"# @package _global_\n{json.dumps({'launch': node})}\n"
        (directory / "conf" / "exp" / "test.yaml").write_text(experiment)
        words = ["-m", "lllaunch", "+exp=test", "hydra.run.dir=run", "cluster=slurm", *overrides]
        self.command = [sys.executable, *words]

    def start(self, **environ: str) -> Run:
        """Start the launcher, without a terminal; return the run."""
        self._launcher = subprocess.Popen(
            self.command,
            cwd=self.root,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self

    def submitted(self) -> Run:
        """Wait for a launcher that leaves; return the run."""
        done = self.finished()
        assert done.returncode == 0, done.stderr
        assert f"submitted job {self.job}" in done.stderr
        return self

    def finished(self) -> subprocess.CompletedProcess[str]:
        """Wait for the end of the launcher."""
        try:
            out, err = self._launcher.communicate(timeout=WAIT)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            out, err = self._launcher.communicate()
            raise AssertionError(f"the launcher did not end\n{out}\n{err}") from None
        return subprocess.CompletedProcess(self.command, self._launcher.returncode, out, err)

    @property
    def job(self) -> str:
        """Id of its batch job; empty as long as nobody has written it down."""
        document = json.loads(text_of(self.path / "submission.json") or "{}")
        return document.get("job") or ""

    def starts(self) -> list[dict[str, Any]]:
        """Return what its workers found at their starts, but for one that is being written."""
        lines = text_of(self.root / "starts").split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def until_starts(self, number: int) -> list[dict[str, Any]]:
        until(lambda: len(self.starts()) >= number, f"{number} starts", self)
        return self.starts()

    def go(self) -> None:
        """Let its workers end."""
        (self.root / "go").touch()

    def history(self) -> list[dict[str, Any]]:
        lines = text_of(self.path / "submission.jsonl").split("\n")[:-1]
        return [json.loads(line) for line in lines]

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

    def over(self) -> int:
        """Wait until it is over; return the exit code that `wait` has."""
        return verb(self.root, "wait", "run").returncode

    def entry(self) -> dict[str, Any]:
        """Return what `ls` says of it."""
        (found,) = json.loads(verb(self.root, "ls", "--json", "run").stdout)
        assert isinstance(found, dict)
        return found

    def show(self) -> str:
        done = verb(self.root, "show", "run")
        assert done.returncode == 0, done.stderr
        return done.stdout


def verb(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call a command in a project."""
    return subprocess.run(
        [sys.executable, "-m", "lllaunch", *words],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )


def until(condition: Callable[[], Any], what: str, run: Run | None = None) -> Any:
    """Wait for something that a job does."""
    deadline = time.monotonic() + WAIT
    while not (found := condition()):
        if time.monotonic() > deadline:
            facts = run and (run.slurm.facts(run.job), run.told(), run.log)
            raise AssertionError(f"waited {WAIT:g} s in vain for {what}: {facts}")
        time.sleep(0.1)
    return found


HELD = "+cluster.additional_parameters.hold=true"


# What is asked for, and what a launcher that follows ends with


def test_jobs_of_one_node_have_gpus_of_their_own_and_launchers_end_as_their_runs(
    slurm: Slurm, tmp_path: Path
) -> None:
    where = ["cluster.gpus_per_node=2", "cluster.nodelist=node1", "cluster.detach=false"]
    given: list[list[str]] = [[], [], [], ["fails"]]
    runs = [
        Run(slurm, tmp_path / str(number), *where, launch={"nproc": 2, "args": args}).start()
        for number, args in enumerate(given)
    ]
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
    done = [run.finished() for run in runs]
    assert [each.returncode for each in done] == [0, 0, 0, 3]
    for run, each in zip(runs, done, strict=True):
        assert f"job {run.job}: RUNNING (node1)" in each.stderr
        # of two that fail one may be ended before it says so
        assert re.search(r"rank [01] ends after step", each.stdout)
        assert run.told() == ["BatchStarted", f"BatchEnded {each.returncode}"]
    assert "has had enough" in done[-1].stdout


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


def test_a_run_whose_place_another_takes_goes_on_from_its_checkpoint(
    slurm: Slurm, tmp_path: Path
) -> None:
    where = ["cluster.nodelist=node0", "cluster.exclusive=true"]
    run = Run(slurm, tmp_path, *where, launch={"nproc": 2}).start().submitted()
    run.until_starts(2)
    gate = tmp_path / "leave"
    other = f"until [ -e {shlex.quote(str(gate))} ]; do sleep 0.2; done"
    slurm.sbatch("-p", "high", "-w", "node0", "--exclusive", "-o/dev/null", f"--wrap={other}")
    until(lambda: slurm.state(run.job) == "PENDING", "its return to the queue", run)
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
    assert [each["by"] for each in run.history() if each["type"] == "Requeued"] == ["slurm"]
    assert {"attempt_0", "attempt_1"} <= {path.name for path in run.path.iterdir()}
    assert "begins after step" in text_of(run.path / "attempt_1" / "0" / "stdout.log")
    assert run.entry()["attempts"] == 2
    assert "preempted" in run.show()


def test_a_run_that_is_told_to_end_asks_to_come_back_once(slurm: Slurm, tmp_path: Path) -> None:
    slurm.partition("main", GraceTime=30)
    # each time that a job asks for it, what its directory says until then is kept
    tools = tmp_path / "tools"
    tools.mkdir()
    wrapper = tools / "scontrol"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = requeue ] && cat {tmp_path}/*/run/submission.jsonl'
        f" >{tmp_path}/asked.$2.$$\n"
        # and a signal comes that late
        '[ "$2" = show ] && [ -e twice ] && kill -TERM $PPID\n'
        f'exec {slurm.tools}/scontrol "$@"\n'
    )
    wrapper.chmod(0o755)
    graced, signalled = (
        Run(
            *(slurm, tmp_path / f"node{node}"),
            *("cluster.exclusive=true", f"cluster.nodelist=node{node}"),
            launch={"grace_period": "20s"},
        )
        for node in (0, 1)
    )
    (signalled.root / "twice").touch()
    for run in (graced, signalled):
        run.start(PATH=f"{tools}:{os.environ['PATH']}")
    for run in (graced, signalled):
        run.submitted().until_starts(1)
    slurm.sbatch("-p", "high", "-w", "node0", "--exclusive", "-o/dev/null", "--wrap=true")
    slurm.call("scancel", "--signal=USR2", signalled.job)
    until(lambda: len(signalled.history()) > 1, "the first signal", signalled)
    slurm.call("scancel", "--signal=TERM", signalled.job)
    for run, name in ((graced, "SIGTERM"), (signalled, "SIGUSR2")):
        first, second = run.until_starts(2)
        assert (first["step"], second["step"]) == (0, int(text_of(run.root / "checkpoint.0")))
        assert second["step"] > 0
        run.go()
        assert run.over() == 0
        assert run.told() == [
            *("BatchStarted", f"BatchSignalled {name}", "Requeued preempted"),
            *("BatchStarted", "BatchEnded 0"),
        ]
        (back,) = (each for each in run.history() if each["type"] == "Requeued")
        assert back["by"] == "lllaunch"
        (asked,) = tmp_path.glob(f"asked.{run.job}.*")
        assert back in [json.loads(line) for line in asked.read_text().splitlines()]
        assert slurm.facts(run.job)["Restarts"] == "1"


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


# Nodes notice that one is lost before Slurm does.
NOTICES = {"keep_alive_interval": 1, "keep_alive_max_attempt": 3, "last_call_timeout": 2}
TWO_NODES = {"nnodes": 2, "rdzv": {"conf": NOTICES}}


def lose(run: Run, rank: str) -> str:
    """Cut the power of the node that has a rank; return its name."""
    (name,) = (start["host"] for start in run.starts() if start["RANK"] == rank)
    run.slurm.cut_power(int(name.removeprefix("node")))
    return str(name)


def goes_on_without(run: Run, lost: str, other: str) -> None:
    """Wait for the second start of a run, and let it end.

    Args:
        run: of two nodes.
        lost: a node that it had.
        other: rank of the worker that was not there.
    """
    again = run.until_starts(4)[2:]
    assert lost not in {start["host"] for start in again}
    assert len({start["host"] for start in again}) == 2
    # the one that was left was told
    saved = int(text_of(run.root / f"checkpoint.{other}"))
    assert saved > 0
    assert [start["step"] for start in again if start["RANK"] == other] == [saved]
    assert run.entry()["attempts"] == 2
    run.go()
    assert run.over() == 0
    assert run.told()[-2:] == ["BatchStarted", "BatchEnded 0"]
    assert run.entry()["attempts"] == 2
    assert "a node was lost" in run.show()


def test_a_run_that_loses_a_node_goes_on_with_others(slurm: Slurm, tmp_path: Path) -> None:
    run = Run(slurm, tmp_path, launch=TWO_NODES).start().submitted()
    run.until_starts(2)
    goes_on_without(run, lose(run, "1"), "0")
    (back,) = (each for each in run.history() if each["type"] == "Requeued")
    assert (back["cause"], back["by"]) == ("node_failure", "lllaunch")


def test_slurm_takes_back_a_run_that_loses_its_first_node_and_none_that_may_not(
    slurm: Slurm, tmp_path: Path
) -> None:
    alone = "cluster.exclusive=true"
    run = Run(slurm, tmp_path / "run", alone, launch=TWO_NODES)
    never = "cluster.requeue.node_failure=0"
    other = Run(slurm, tmp_path / "never", alone, never, launch=TWO_NODES)
    for each in (run, other):
        each.start()
    for each in (run, other):
        each.submitted().until_starts(2)
    lost = lose(run, "0")
    lose(other, "1")
    assert other.over() == 3
    assert other.told() == ["BatchStarted", "BatchEnded 3"]
    assert "it lost a node once, and cluster.requeue.node_failure is 0" in other.log
    # nobody is left to ask for it
    goes_on_without(run, lost, "1")
    (back,) = (each for each in run.history() if each["type"] == "Requeued")
    assert (back["cause"], back["by"]) == ("node_failure", "slurm")
    # though Slurm takes back what loses a node
    assert slurm.until_over(other.job) == "CANCELLED"
    assert slurm.facts(other.job)["Restarts"] == "0"


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
    for run in (running, queued):
        if how == "scancel":
            slurm.call("scancel", run.job)
        else:
            done = verb(run.root, "stop", run.job)
            assert done.returncode == 0, done.stderr
            assert "signalled, exit code 143" in done.stdout
        assert run.over() == 143
        entry = run.entry()
        assert (entry["state"], entry["exit_code"]) == ("signalled", 143)
        assert "cancelled" in run.show()
        facts = slurm.facts(run.job)
        assert (facts["JobState"], facts["Restarts"]) == ("CANCELLED", "0")
        assert not [each for each in run.told() if each.startswith("Requeued")]
    # it had its time to save
    assert int(text_of(running.root / "checkpoint.0")) > 0
    assert running.told()[0] == "BatchStarted"
    assert queued.starts() == []


# Nothing that could run


def test_what_cannot_be_submitted_is_said_and_not_in_the_queue(
    slurm: Slurm, tmp_path: Path
) -> None:
    wrong = Run(slurm, tmp_path / "wrong", "cluster.partition=gpux").start()
    typo = Run(slurm, tmp_path / "typo", "+cluster.partion=main").start()
    bare = Run(slurm, tmp_path / "bare").start(PATH=str(tmp_path))
    said = {
        wrong: "invalid partition specified: gpux",
        typo: "cluster.partion: unknown setting; did you mean 'partition'?",
        bare: "there is no sbatch on PATH",
    }
    for run, text in said.items():
        done = run.finished()
        assert (done.returncode, text in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
        assert not (run.path / "submission.json").exists()
        assert not (run.path / "plan.yaml").exists()
    assert slurm.queue() == []
    # and what was wrong can be put right in the same place
    Run(slurm, tmp_path / "wrong", HELD).start().submitted()


# The launcher is killed by its worker.
KILLS = """
import os, pathlib, signal, time
status = pathlib.Path(f"/proc/{os.getppid()}/status").read_text()
os.kill(int(status.partition("PPid:")[2].split()[0]), signal.SIGKILL)
time.sleep(600)
"""


def test_what_cannot_run_in_its_job_ends_it_and_says_why(slurm: Slurm, tmp_path: Path) -> None:
    other = Run(slurm, tmp_path / "other", HELD).start()
    missing = Run(slurm, tmp_path / "missing", HELD).start()
    killed = Run(slurm, tmp_path / "killed", script=KILLS).start()
    for run in (other, missing, killed):
        run.submitted()
    plan = other.path / "plan.yaml"
    assert plan.read_text().count("grace_period: 4s") == 1
    plan.write_text(plan.read_text().replace("grace_period: 4s", "grace_period: 4.0"))
    (missing.root / "work.py").unlink()
    for run in (other, missing):
        slurm.call("scontrol", "release", run.job)
    assert other.over() == 5, other.log
    assert missing.over() == 2, missing.log
    assert "work.py" in missing.log
    for run, code in ((other, 5), (missing, 2)):
        assert run.told() == ["BatchStarted", f"BatchEnded {code}"]
        assert run.entry()["state"] == "error"
        assert "it could not be started; launcher.log says why" in run.show()
        assert slurm.facts(run.job)["Restarts"] == "0"
        assert run.starts() == []
    assert killed.over() == 1
    entry = killed.entry()
    assert (entry["state"], entry["exit_code"]) == ("died", None)
    assert "FAILED" in killed.show()
    assert killed.told() == ["BatchStarted"]


def test_a_launcher_that_dies_as_it_submits_loses_nothing(slurm: Slurm, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    sbatch = tools / "sbatch"
    sbatch.write_text(
        f'#!/bin/sh\n[ "$1" = --test-only ] && exec {slurm.tools}/sbatch "$@"\n'
        f'{slurm.tools}/sbatch "$@" >{tmp_path}/id\nkill -9 $PPID\n'
    )
    sbatch.chmod(0o755)
    run = Run(slurm, tmp_path).start(PATH=f"{tools}:{os.environ['PATH']}")
    assert run.finished().returncode == -signal.SIGKILL
    assert json.loads((run.path / "submission.json").read_text())["job"] is None
    run.until_starts(1)
    id_ = (tmp_path / "id").read_text().strip()
    entry = run.entry()
    assert (entry["state"], entry["batch_job"]) == ("running", id_)
    assert slurm.queue() == [f"{id_} RUNNING"]
    run.go()
    assert run.over() == 0
    assert run.entry()["state"] == "succeeded"


# The code


VERSIONED = """
import sys
from pathlib import Path
import helper
print("script", 0, helper.VERSION, Path("data/value").read_text().strip())
"""


def git(root: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", *identity, *words], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_run_that_waits_runs_the_code_of_its_submission(slurm: Slurm, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    script, helper = tmp_path / "work.py", tmp_path / "helper.py"
    (tmp_path / ".gitignore").write_text("data/\nrun/\n__pycache__/\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "value").write_text("ignored")
    script.write_text(VERSIONED)
    helper.write_text("VERSION = 'committed'\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    script.write_text(VERSIONED.replace("0", "1"))
    helper.write_text("VERSION = 'edited'\n")
    run = Run(slurm, tmp_path, HELD, script="").start().submitted()
    script.write_text("raise SystemExit('this is too new')")
    helper.unlink()
    status = git(tmp_path, "status", "--short")
    slurm.call("scontrol", "release", run.job)
    assert run.over() == 0, run.log
    said = text_of(run.path / "attempt_0" / "0" / "stdout.log")
    assert said == "script 1 edited ignored\n"
    build = run.result["build"]
    assert build["commit"] == git(tmp_path, "rev-parse", "HEAD")
    assert build["dirty"]
    assert build["snapshot"]["path"] == str(run.path / "code")
    assert "+VERSION = 'edited'" in Path(build["snapshot"]["diff"]).read_text()
    assert git(tmp_path, "status", "--short") == status


def test_what_was_reviewed_runs_from_its_snapshot_alone_and_in_a_sweep(
    slurm: Slurm, tmp_path: Path
) -> None:
    script = "import os, sys\nprint(os.environ['A'], sys.argv[1])\n"
    launch = {"env": {"A": "yes"}, "args": ["${oc.select:x,0}"], "locked": True, "redirects": "all"}
    run = Run(slurm, tmp_path, "cluster.detach=false", launch=launch, script=script)
    allowed = {"entrypoints": ["work.py"], "env": ["A"]}
    (tmp_path / "conf" / "lllaunch.yaml").write_text(json.dumps({"allow": allowed}))
    (tmp_path / ".gitignore").write_text("run/\nsweep/\n__pycache__/\n")
    git(tmp_path, "init", "-q")

    def lllaunch(*words: str) -> str:
        command = [sys.executable, "-m", "lllaunch", *words]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=WAIT
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    what = ["+exp=test", "cluster=slurm", "cluster.detach=false"]
    lllaunch("plan", *what, "--lock")
    done = run.start().finished()
    assert done.returncode == 0, done.stderr
    assert (run.path / "attempt_0" / "0" / "stdout.log").read_text() == "yes 0\n"
    # the snapshot has lock and allowlist, and is another tree than that of the run's directory
    assert (run.path / "code" / "conf" / "locks" / "test.yaml").exists()
    lllaunch("plan", "-m", *what, "+x=1,2", "--lock")
    lllaunch("-m", *what, "+x=1,2", "hydra.sweep.dir=sweep")
    found = [tmp_path / "sweep" / job / "attempt_0" / "0" / "stdout.log" for job in "01"]
    assert [path.read_text() for path in found] == ["yes 1\n", "yes 2\n"]


# Looked at


def test_logs_follow_a_run_from_the_queue_to_its_end(slurm: Slurm, tmp_path: Path) -> None:
    run = Run(slurm, tmp_path, HELD, "cluster.nodelist=node2", launch={"nproc": 2})
    run.start().submitted()
    follower = subprocess.Popen(
        [sys.executable, "-m", "lllaunch", "logs", "-f", "run"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert follower.stderr is not None
        assert f"job {run.job}: PENDING (JobHeldUser)" in follower.stderr.readline()
        slurm.call("scontrol", "release", run.job)
        run.until_starts(2)
        assert "node2" in run.show()
        run.go()
        assert verb(tmp_path, "wait", "latest").returncode == 0
        out, err = follower.communicate(timeout=WAIT)
    finally:
        follower.kill()
        follower.communicate()
    assert (follower.returncode, err) == (0, "")
    lines = [line for line in out.splitlines() if line]
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"[rank{rank}]:")]
        words = ["begins after step", "complains", "ends after step"]
        assert len(own) == 3
        assert all(any(f"rank {rank} {word}" in line for line in own) for word in words)
    assert len(lines) == 6
    done = verb(tmp_path, "logs", "--rank", "1", "--stderr", run.job)
    assert (done.returncode, done.stdout) == (0, "rank 1 complains\n")
    assert "node2" in run.show()


def test_ctrl_c_asks_whether_to_leave_to_cancel_or_to_follow(slurm: Slurm, tmp_path: Path) -> None:
    runs = [Run(slurm, tmp_path / name) for name in ("left", "cancelled")]
    options: dict[str, Any] = {"encoding": "utf-8", "timeout": WAIT}
    terminals = [
        pexpect.spawn(run.command[0], run.command[1:], cwd=str(run.root), **options) for run in runs
    ]
    left, cancelled = terminals
    question = r"leave the job, cancel, or follow on\? \[L/c/f\] "
    try:
        for each in terminals:
            each.expect("rank 0 begins after step 0")
        left.sendintr()
        left.expect(question)
        left.sendline("f")
        cancelled.sendintr()
        cancelled.expect(question)
        cancelled.sendline("c")
        cancelled.expect(pexpect.EOF)
        cancelled.close()
        assert cancelled.exitstatus == 143
        assert runs[1].entry()["state"] == "signalled"
        assert slurm.until_over(runs[1].job) == "CANCELLED"
        left.sendintr()
        left.expect(question)
        left.sendline("l")
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
