"""What a batch job decides at the end of what it runs; Slurm's answers are made up here."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lllaunch.app import batch
from lllaunch.app.batch import run_in_job, run_task, spec_of
from lllaunch.app.own_worker import UserFunction
from lllaunch.cluster import slurm
from lllaunch.cluster.slurm import JobFacts, SlurmFailed
from lllaunch.errors import ConfigError, LaunchError, OutputError
from lllaunch.run.result import NodeGone, NodeResult, RootCause, RunResult
from lllaunch.run.submission import (
    BatchEnded,
    BatchJob,
    BatchStarted,
    QueueEvent,
    Requeued,
    Submission,
    append,
    read_history,
)
from lllaunch.spawner.protocol import Function
from lllaunch.spec import Cluster, Entrypoint, Requeue
from lllaunch.sweep.arrays import Array, ArrayJob, write_tasks


class FakeSlurm:
    """What Slurm says of the job, one answer for each question, and what it is told."""

    def __init__(self) -> None:
        self.restarts = [0]
        self.refuses = False
        self.down = False
        self.told: list[str] = []

    def job_facts(self, job: str) -> JobFacts:
        self.told.append(f"facts {job}")
        restarts = self.restarts.pop(0) if len(self.restarts) > 1 else self.restarts[0]
        return JobFacts("RUNNING", restarts=restarts)

    def has_down_node(self, nodelist: str) -> bool:
        assert nodelist == "node[0-1]"
        return self.down

    def requeue(self, job: str) -> None:
        self.told.append(f"requeue {job}")
        if self.refuses:
            raise SlurmFailed(f"scontrol requeue {job}", "Job is pending execution")

    def cancel(self, ids: list[str]) -> None:
        self.told.append(f"cancel {' '.join(ids)}")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    found = FakeSlurm()
    for name in ("job_facts", "has_down_node", "requeue", "cancel"):
        monkeypatch.setattr(slurm, name, getattr(found, name))
    monkeypatch.setattr(slurm, "TIMEOUT", slurm.TIMEOUT)
    monkeypatch.setattr(batch.time, "sleep", lambda _: None)
    for name in [each for each in os.environ if each.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[0-1]")
    before, mask = signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield found
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGTERM, before)


def told_to_end(batch: BatchJob, _: Submission) -> int:
    batch.signalled(signal.SIGTERM)
    batch.ran, batch.outcome = True, RunResult("signalled", 143, batch.directory, signum=15)
    return 143


def events(directory: Path) -> list[QueueEvent]:
    return [event for _, event in read_history(str(directory))]


def test_what_slurm_has_put_back_meanwhile_is_not_over(fake: FakeSlurm, tmp_path: Path) -> None:
    # when it decides, and after it was refused
    fake.restarts, fake.refuses = [0, 1], True
    assert run_in_job(str(tmp_path), "7", Submission("7", str(tmp_path)), told_to_end) == 143
    assert events(tmp_path)[-1] == Requeued("preempted", "lllaunch")


@pytest.mark.parametrize(("down", "cause"), [(False, "preempted"), (True, "node_failure")])
def test_a_node_that_is_down_is_why_slurm_has_put_a_job_back(
    fake: FakeSlurm, tmp_path: Path, down: bool, cause: str
) -> None:
    fake.restarts, fake.down = [1], down
    assert run_in_job(str(tmp_path), "7", Submission("7", str(tmp_path)), told_to_end) == 143
    assert events(tmp_path)[-1] == Requeued(cause, "slurm")  # type: ignore[arg-type]


@pytest.mark.parametrize(("state", "cause"), [("signalled", "preempted"), ("lost", "node_failure")])
def test_a_node_that_a_signal_has_ended_is_not_lost(
    fake: FakeSlurm, tmp_path: Path, state: Any, cause: str
) -> None:
    gone = RootCause(0, None, None, NodeGone("node 1", "was ended by SIGTERM"), 1)

    def left_alone(batch: BatchJob, _: Submission) -> int:
        batch.ran, batch.outcome = (
            True,
            RunResult(
                "failed",
                3,
                batch.directory,
                root_cause=gone,
                nodes=(NodeResult("node 0", state="failed"), NodeResult("node 1", state=state)),
            ),
        )
        return 3

    assert run_in_job(str(tmp_path), "7", Submission("7", str(tmp_path)), left_alone) == 3
    assert events(tmp_path)[-1] == Requeued(cause, "lllaunch")  # type: ignore[arg-type]


def test_a_job_that_ends_well_asks_slurm_nothing(fake: FakeSlurm, tmp_path: Path) -> None:
    def succeeds(batch: BatchJob, _: Submission) -> int:
        (tmp_path / ".lllaunch.lock").touch()
        batch.ran, batch.outcome = True, RunResult("succeeded", 0, batch.directory)
        return 0

    assert run_in_job(str(tmp_path), "7", Submission("7", str(tmp_path)), succeeds) == 0
    assert fake.told == []
    assert [path.name for path in tmp_path.iterdir()] == ["submission.jsonl"]


def test_what_slurm_does_not_put_back_is_over(fake: FakeSlurm, tmp_path: Path) -> None:
    fake.refuses = True
    with pytest.raises(SlurmFailed, match="Job is pending execution"):
        run_in_job(str(tmp_path), "7", Submission("7", str(tmp_path)), told_to_end)
    last = events(tmp_path)[-1]
    assert last == BatchEnded(143, "`scontrol requeue 7`: Job is pending execution")


@pytest.mark.parametrize(("nodes", "told"), [("1", []), ("2", ["cancel 7"])])
def test_nodes_do_not_wait_for_a_first_one_that_does_not_come(
    fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str, told: list[str]
) -> None:
    monkeypatch.setenv("SLURM_NNODES", nodes)
    submission = Submission("7", str(tmp_path), requeue=Requeue(node_failure=0))

    def fails(batch: BatchJob, _: Submission) -> int:
        raise OutputError(batch.directory, "is gone")

    with pytest.raises(OutputError, match="is gone"):
        run_in_job(str(tmp_path), "7", submission, fails)
    assert isinstance(events(tmp_path)[-1], BatchEnded)
    assert fake.told == told
    # it was lost then, and may not be
    append(str(tmp_path), BatchStarted("7"))
    with pytest.raises(LaunchError, match="lost a node once"):
        run_in_job(str(tmp_path), "7", submission, fails)
    assert fake.told == told * 2
    append(str(tmp_path), BatchEnded(0))
    assert run_in_job(str(tmp_path), "7", submission, fails) == 0
    assert fake.told == told * 3


def test_what_a_task_has_said_is_in_the_log_of_its_run(
    fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, log = tmp_path / "3", tmp_path / "0" / "1.log"
    own.mkdir()
    log.parent.mkdir()
    log.write_text("a module is missing\n")
    write_tasks(str(log.parent), Array(Cluster(), ((), (ArrayJob(3, str(own)),))))
    Submission("7", str(log.parent)).write(str(log.parent))
    monkeypatch.setattr(batch, "run_in_job", lambda *_: 0)
    redirected: list[str] = []
    monkeypatch.setattr(batch, "redirect", redirected.append)
    for _ in range(2):
        assert run_task(str(log.parent), "7_1") == 0
    # one file less for each job
    assert not log.exists()
    assert (own / "launcher.log").read_text() == "a module is missing\n"
    assert redirected == [str(own / "launcher.log")] * 2


def test_a_plan_tells_what_a_spawner_is_made_of_without_the_secrets_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "a secret")
    monkeypatch.chdir(tmp_path)
    plan, run = tmp_path / "run" / "plan.yaml", str(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "src").mkdir()
    here = "${hydra:runtime.cwd}/src"
    env = f"env: {{PYTHONPATH: '{here}', PYTHON_TOKEN: '${{oc.env:TOKEN}}'}}"
    plan.write_text(f"launch: {{entrypoint: os:getpid, preload: [json], cwd: '{here}', {env}}}\n")
    spec = spec_of(run)
    assert (spec.imports, spec.cwd) == (("json",), f"{tmp_path}/src")
    assert dict(spec.env) == {"PYTHON_TOKEN": "a secret", "PYTHONPATH": f"{tmp_path}/src"}
    # of a user's own app the plan names the function, which is not to be found by that name
    entrypoint = Entrypoint("function", "train", "train.py:main", "main")
    function = UserFunction(entrypoint, Function("train", "main", b""))
    (tmp_path / "run" / "function.pkl").write_bytes(pickle.dumps(function))
    (tmp_path / "run" / "function.pkl").chmod(0o600)
    plan.write_text("launch: {entrypoint: 'train.py:main'}\n")
    assert spec_of(run).imports == function.preload
    plan.write_text("launch: {entrypoint: os:getpid, cwd: 'x-${hydra:job.num}'}\n")
    with pytest.raises(ConfigError, match=r"launch.cwd: 'x-\${hydra:job.num}' cannot be resolved"):
        spec_of(run)


TASK = """
import sys
from lllaunch.verbs.rerun import job
code = job(["--array", sys.argv[1]])
print(code, "hydra" in sys.modules)
"""


@pytest.mark.parametrize(
    ("said", "code", "last"),
    [("redirects: all", 3, "3 False"), ("collapse: maybe", 2, "2 False")],
)
def test_a_plan_that_is_all_that_a_run_needs_is_run_without_hydra(
    tmp_path: Path, said: str, code: int, last: str
) -> None:
    run, array = tmp_path / "0", tmp_path / "submitted"
    run.mkdir()
    array.mkdir()
    launch = "entrypoint: sh, args: [-c, exit $0, '${oc.env:CODE}'], cwd: '${hydra:runtime.cwd}'"
    (run / "plan.yaml").write_text(f"launch: {{{launch}, {said}}}\n")
    write_tasks(str(array), Array(Cluster(), ((ArrayJob(0, str(run)),),)))
    Submission("7", str(array), cwd=str(tmp_path), plain=True).write(str(array))
    environ = {**os.environ, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "CODE": "4"}
    command = [sys.executable, "-c", TASK, str(array)]
    done = subprocess.run(command, env=environ, cwd=array, capture_output=True, check=True)
    assert done.stdout == done.stderr == b""
    lines = (run / "launcher.log").read_text().splitlines()
    assert lines[-1] == last
    assert any("launch.collapse: expected" in line for line in lines) == (code == 2)
    ended = events(run)[-1]
    assert isinstance(ended, BatchEnded)
    assert ended.exit_code == code
    result = run / "result.json"
    assert result.exists() == (code == 3)
    assert code == 2 or '"exitcode": 4' in result.read_text()
