"""What a batch job does, without a cluster: `lllaunch job DIR`, where nobody answers for Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import WAIT, Project, environment, until

from lllaunch.run.directory import SUBMISSION
from lllaunch.run.submission import (
    BatchEnded,
    BatchSignalled,
    BatchStarted,
    QueueEvent,
    Requeued,
    Submission,
    append,
    read_history,
)

# It saves how far it is on SIGTERM, and goes on from there.
TRAIN = """
import json, os, signal, sys, time

ignored = signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(json.dumps({"ignored": ignored, "restart": restart}), flush=True)

def save(*_):
    open("saved", "w").close()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
with open("began.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("began.new", f"began-{restart}")
if os.path.exists("saved"):
    sys.exit(0)
time.sleep(600)
"""


class Batch:
    """A run's directory, as it was submitted, and the batch jobs in it."""

    def __init__(self, root: Path) -> None:
        self.root, self.run = root, root / "run"
        self.jobs: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        env = environment() | {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
        # no Slurm is asked
        env["PATH"] = os.path.dirname(sys.executable)
        with (self.root / "log").open("a") as log:
            job = subprocess.Popen(
                [sys.executable, "-m", "lllaunch", "job", str(self.run)],
                cwd=self.root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        self.jobs.append(job)
        return job

    def events(self) -> list[QueueEvent]:
        return [event for _, event in read_history(str(self.run))]

    @property
    def log(self) -> str:
        return (self.root / "log").read_text()

    def printed(self, attempt: int) -> dict[str, object]:
        path = self.run / f"attempt_{attempt}" / "0" / "stdout.log"
        found: dict[str, object] = json.loads(path.read_text().splitlines()[0])
        return found


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    project = Project(tmp_path)
    project.write("train.py", TRAIN)
    project.experiment("test", "{entrypoint: train.py, redirects: all, grace_period: 5m}")
    # what the submission leaves: a plan and the config
    done = project.lllaunch("+exp=test", "hydra.run.dir=run", "launch.entrypoint=/bin/true")
    assert done.returncode == 0, done.stderr
    found = Batch(tmp_path)
    plan = (found.run / "plan.yaml").read_text().replace("/bin/true", "train.py")
    (found.run / "plan.yaml").write_text(plan)
    for name in ("result.json", "events.jsonl", "latest"):
        (found.run / name).unlink()
    (found.run / "attempt_0" / "0").rename(tmp_path / "gone")
    (found.run / "attempt_0").rmdir()
    Submission("7", str(found.run)).write(str(found.run))
    yield found
    for job in found.jobs:
        job.kill()
        job.wait()


def saved(batch: Batch, signum: signal.Signals, *also: str) -> list[QueueEvent]:
    """Send a signal to a job whose worker runs, and to others; return what follows it."""
    job = batch.start()
    until(lambda: (batch.root / "began-0").exists() or job.poll() is not None, "the worker")
    os.kill(job.pid, signum)
    for name in also:
        os.kill(int((batch.root / name).read_text()), signum)
    assert job.wait(WAIT) != 0
    assert (batch.root / "saved").exists(), batch.log
    # the notice is for the launcher alone
    assert batch.printed(0) == {"ignored": True, "restart": "0"}
    started, signalled, *rest = batch.events()
    assert isinstance(started, BatchStarted)
    assert signalled == BatchSignalled(signum.name)
    return rest


@pytest.mark.smoke
def test_what_announces_the_end_lets_the_worker_save(batch: Batch) -> None:
    decided, ended = saved(batch, signal.SIGUSR2)
    # written down before it is asked for, which nobody answers here
    assert decided == Requeued("preempted", "lllaunch")
    assert isinstance(ended, BatchEnded)
    assert "scontrol" in ended.reason


def test_where_nobody_says_what_sigterm_is_about_it_may_have_been_cancelled(batch: Batch) -> None:
    # Slurm sends it to the worker, too
    (ended,) = saved(batch, signal.SIGTERM, "began-0")
    assert ended == BatchEnded(143, "it was ended by SIGTERM, and Slurm does not say why")


def test_a_job_whose_run_was_submitted_again_runs_nothing(batch: Batch) -> None:
    Submission("8", str(batch.run)).write(str(batch.run))
    job = batch.start()
    assert job.wait(WAIT) == 1
    assert "batch job 7 is not run: its run was submitted again as 8" in batch.log
    assert batch.events() == []
    assert not (batch.root / "began-0").exists()


def test_the_next_start_goes_on_counting(batch: Batch) -> None:
    append(str(batch.run), BatchStarted("7"))
    (batch.run / "attempt_0").mkdir()
    (batch.root / "saved").touch()
    job = batch.start()
    assert job.wait(WAIT) == 0, batch.log
    # it ended without a word, so a node was lost
    assert batch.events()[1] == Requeued("node_failure", "slurm")
    assert batch.events()[-1] == BatchEnded(0)
    assert batch.printed(1)["restart"] == "1"
    # another job of the same run has nothing to do, also if the first was killed in its last moment
    history = batch.run / SUBMISSION
    *rest, _ = history.read_text().splitlines(keepends=True)
    history.write_text("".join(rest))
    again = batch.start()
    assert again.wait(WAIT) == 0
    assert "the run has succeeded already" in batch.log
    assert not (batch.run / "attempt_2").exists()
    assert (batch.run / "result.json").exists()
    assert batch.events()[-1] == BatchEnded(0)


def test_a_plan_that_comes_to_another_one_is_not_run(batch: Batch) -> None:
    with (batch.run / "plan.yaml").open("a") as plan:
        plan.write("  locked: true\n")
    job = batch.start()
    assert job.wait(WAIT) in {2, 5}
    ended = batch.events()[-1]
    assert isinstance(ended, BatchEnded)
    assert ended.exit_code == job.returncode
    assert ended.reason


def test_out_of_a_batch_job_it_says_so(batch: Batch) -> None:
    done = Project(batch.root).lllaunch("job", str(batch.run))
    assert done.returncode == 2
    assert "is for the batch jobs that lllaunch submits, and this is none" in done.stderr
