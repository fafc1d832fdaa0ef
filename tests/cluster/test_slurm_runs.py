"""Runs that a real Slurm has: submitted, left, put back into the queue, looked at and ended."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.launching import text_of

from cluster.clusters import LOSES
from cluster.slurm import WAIT, Slurm, patiently, verb

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
        directory: the project's; the run's is ``run`` in it.
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
    assert [each["by"] for each in run.history() if each["type"] == "Requeued"] == ["slurm"]
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
    signalled.until(lambda: len(signalled.history()) > 1, "the first signal")
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
TWO_NODES = {"nnodes": 2, "rdzv": {"conf": LOSES}}


def lose(run: Run, rank: str) -> str:
    """Cut the power of the node that has a rank; return its name."""
    (name,) = (start["host"] for start in run.starts() if start["RANK"] == rank)
    run.slurm.cut_power(int(name.removeprefix("node")))
    return str(name)


def goes_on_without(run: Run, lost: str, other: str) -> None:
    """Wait for a second start, without the node that was lost; the rank `other` was elsewhere."""
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
    assert git(tmp_path, "status", "--short") == status


def test_what_was_reviewed_runs_from_its_snapshot(slurm: Slurm, tmp_path: Path) -> None:
    script = "import os\nprint(os.environ['A'])\n"
    launch = {"env": {"A": "yes"}, "locked": True, "redirects": "all"}
    run = Run(slurm, tmp_path, "cluster.detach=false", launch=launch, script=script)
    allowed = {"entrypoints": ["work.py"], "env": ["A"]}
    (tmp_path / "conf" / "lllaunch.yaml").write_text(json.dumps({"allow": allowed}))
    (tmp_path / ".gitignore").write_text("run/\n__pycache__/\n")
    git(tmp_path, "init", "-q")
    planned = verb(tmp_path, "plan", "+exp=test", "cluster=slurm", "cluster.detach=false", "--lock")
    assert planned.returncode == 0, planned.stderr
    done = run.start().finished()
    assert done.returncode == 0, done.stderr
    assert (run.path / "attempt_0" / "0" / "stdout.log").read_text() == "yes\n"
    # the snapshot has lock and allowlist, and is another tree than that of the run's directory
    assert (run.path / "code" / "conf" / "locks" / "test.yaml").exists()


# In a terminal


def test_ctrl_c_asks_whether_to_leave_to_cancel_or_to_follow(slurm: Slurm, tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
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
