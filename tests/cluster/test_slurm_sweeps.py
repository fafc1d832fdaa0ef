"""Sweeps on a real Slurm: submitted as arrays, followed or left, killed and gone on with."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.launching import Running, text_of, until
from support.repositories import commit, git
from support.sweeping import Finished, SweepProject

from cluster.slurm import WAIT, Slurm
from lllaunch.linux.gpus import PRETEND

# What each job runs. It notes when it starts and ends, and goes on where an earlier start had come.
WORK = """
import json, os, signal, sys, time
from pathlib import Path

def note(job, **more):
    line = {"job": job, "time": time.time(), **more}
    with open("notes.jsonl", "a") as file:
        file.write(json.dumps(line) + chr(10))

def main(job, does, x=0):
    saved = Path(f"step-{job}")
    step = int(saved.read_text()) if saved.exists() else 0
    started = 1 + sum(note["job"] == job and note["what"] == "start" for note in notes())
    facts = {"node": os.uname().nodename, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
    note(job, what="start", step=step, task=os.environ.get("SLURM_ARRAY_TASK_ID"), **facts)
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    if does == "wait":
        while not (Path("go").exists() or Path(f"go-{job}").exists()):
            time.sleep(0.05)
            step += 1
            if told:
                saved.write_text(str(step))
                note(job, what="saved", step=step)
                sys.exit(143)
    elif does == "some":
        time.sleep(0.5)
    note(job, what="end", step=step)
    if does == "fail" or (does == "once" and started == 1):
        raise ValueError(f"job {job} cannot")
    return x * 10

def notes():
    path = Path("notes.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
"""

EXPERIMENT = """
defaults:
  - override /cluster: slurm
  - _self_

x: 0
does: ok

launch:
  entrypoint: work:main
  args: {job: "${hydra:job.num}", does: "${does}", x: "${x}"}
  nproc: 1
  grace_period: 3s

cluster: {mem_gb: 0.1, timeout_min: 5, detach: false, snapshot: none}
"""


class Sweeps(SweepProject):
    """A project whose sweeps go to Slurm, and what is known of them."""

    def __init__(self, slurm: Slurm, root: Path) -> None:
        super().__init__(root, gpus=0)
        self.slurm = slurm
        self._running: list[Running] = []
        self.write("work.py", WORK)
        self.write("conf/exp/test.yaml", f"# @package _global_\n{EXPERIMENT}")

    # Launchers

    def start(
        self,
        *args: str,
        python: tuple[str, ...] = ("-m", "lllaunch", "-m", "+exp=test"),
        **options: Any,
    ) -> Running:
        self._running.append(super().start(*args, python=python, **options))
        return self._running[-1]

    def run(self, *args: str, code: int = 0, **options: Any) -> Finished:
        return finish(self.start(*args, **options), code)

    def resume(self, *args: str, **options: Any) -> Finished:
        return self.run("hydra.launcher.resume=sweep", *args, **options)

    def close(self) -> None:
        for each in self._running:
            if each.process.poll() is None:
                each.kill()

    def go(self, job: int | None = None) -> None:
        """Lets jobs end that wait; all of them, or one."""
        (self.root / ("go" if job is None else f"go-{job}")).touch()

    def tool(self, name: str, text: str) -> dict[str, str]:
        """Puts a script before one of Slurm's commands; ``$REAL`` is that. Returns a PATH."""
        path = self.write(f"tools/{name}", f"#!/bin/bash\nREAL={self.slurm.tools / name}\n{text}")
        path.chmod(0o755)
        return {"PATH": f"{path.parent}:{os.environ['PATH']}"}

    # What became of jobs

    def notes(self, what: str = "start") -> list[dict[str, Any]]:
        lines = text_of(self.root / "notes.jsonl").splitlines()
        return [note for note in map(json.loads, lines) if note["what"] == what]

    def starts(self) -> Counter[int]:
        """How often each job was started, as the jobs have noted it."""
        return Counter(note["job"] for note in self.notes())

    def history(self, job: int | str) -> list[dict[str, Any]]:
        lines = map(json.loads, text_of(self.sweep / str(job) / "submission.jsonl").splitlines())
        return [line for line in lines if line["type"] != "Submission"]

    def submitted(self) -> list[str]:
        """The id of each array that was submitted, as its directory has it."""
        paths = sorted(self.sweep.glob("submitted/*/submission.jsonl"))
        return [json.loads(path.read_text().splitlines()[-1])["job"] for path in paths]

    def values(self) -> dict[int, Any]:
        return {job["job"]: job.get("return_value") for job in self.document()["jobs"]}

    def listed(self) -> tuple[Any, dict[int, str]]:
        """The sweep and its jobs' states, as ``ls --jobs`` tells them."""
        done = self.lllaunch("ls", "--json", "--jobs")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        (sweep,) = [entry for entry in found if entry["kind"] == "sweep"]
        return sweep, {each["job"]: each["state"] for each in found if each["kind"] == "job"}

    def until_started(self, *jobs: int, times: int = 1) -> None:
        until(
            lambda: all(self.starts()[job] >= times for job in jobs),
            f"{times} starts of {jobs}: {self.starts()}",
            WAIT,
        )


def finish(launcher: Running, code: int = 0) -> Finished:
    """Waits for a launcher, which ends with an exit code."""
    ended = launcher.finish(WAIT)
    assert ended.code == code, ended.err
    return ended


@pytest.fixture
def sweeps(slurm: Slurm, tmp_path: Path) -> Iterator[Sweeps]:
    found = Sweeps(slurm, tmp_path / "it's a ü")
    yield found
    found.close()


def most_at_a_time(sweeps: Sweeps) -> int:
    """How many jobs were between their start and their end at the same time."""
    changes = [(note["time"], 1) for note in sweeps.notes()]
    changes += [(note["time"], -1) for note in sweeps.notes("end")]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


# Arrays


def test_more_jobs_than_an_array_may_have_are_several_arrays_that_share_one_limit(
    slurm: Slurm, sweeps: Sweeps
) -> None:
    slurm.configure(MaxArraySize=4)
    ended = sweeps.run("x=range(10)", "does=some", "cluster.array_parallelism=2")
    ids = sweeps.submitted()
    assert len(set(ids)) == 3
    lasts = [slurm.facts(f"{each}_{last}") for each, last in zip(ids, (3, 3, 1), strict=True)]
    assert [facts["ArrayJobId"] for facts in lasts] == ids
    assert sweeps.starts() == dict.fromkeys(range(10), 1)
    assert most_at_a_time(sweeps) <= 2
    assert sweeps.values() == {job: 10 * job for job in range(10)}
    assert sweeps.document()["exit_code"] == 0
    assert "sweep of 10 jobs in sweep, Slurm" in ended.err
    assert "objective" in ended.err
    assert "10 of 10 jobs succeeded" in ended.err


# The collector comes whenever it likes; here, before each signal.
COLLECTS = """
import gc, signal

def collect_and_send(*args, send=signal.pidfd_send_signal):
    gc.collect()
    send(*args)

signal.pidfd_send_signal = collect_and_send
"""


def test_one_job_that_cannot_run_keeps_all_from_being_submitted(
    slurm: Slurm, sweeps: Sweeps
) -> None:
    def refused(*args: str, **options: Any) -> str:
        ended = sweeps.run(*args, code=2, **options)
        assert slurm.queue() == []
        assert sweeps.submitted() == []
        assert not sweeps.starts()
        return ended.err

    said = refused("+launch.max_restarts=0,1,2,x,4")
    assert "+launch.max_restarts=x:" in said
    assert "nothing was started" in said
    sweeps.write("site/sitecustomize.py", COLLECTS)
    site = {"PYTHONPATH": str(sweeps.root / "site")}
    said = refused("x=1,2", "cluster.partition=nowhere", env=site)
    assert "invalid partition specified: nowhere" in said
    sweeps.write("conf/exp/here.yaml", "# @package _global_\nlaunch: {entrypoint: /bin/true}\n")
    said = refused("+exp=test,here", python=("-m", "lllaunch", "-m"))
    assert "cluster: is such that the job runs here, and the first one" in said
    said = refused("x=1,2", "hydra.sweep.subdir=same")
    assert "would run in the directory of job 0" in said


def test_each_job_may_ask_for_something_else(slurm: Slurm, sweeps: Sweeps) -> None:
    # what is swept is not in the config of the sweep itself
    sweeps.write("conf/cluster/other.yaml", "defaults: [slurm]\ncomment: other\n")
    text = EXPERIMENT.replace("  - override /cluster: slurm\n", "")
    sweeps.write("conf/exp/any.yaml", f"# @package _global_\n{text}")
    any_cluster = ("-m", "lllaunch", "-m", "+exp=any")
    sweeps.run("cluster=slurm,other", "x=1,2", python=any_cluster)
    assert [slurm.facts(each).get("Comment") for each in sweeps.submitted()] == [None, "other"]
    assert sweeps.values() == {0: 10, 1: 20, 2: 10, 3: 20}
    assert sweeps.starts() == dict.fromkeys(range(4), 1)
    # three of Hydra's, two streams and a value of the worker, and six of the run
    files = [each for each in (sweeps.sweep / "0").rglob("*") if each.is_file()]
    assert len({each.resolve() for each in files}) <= 12, files
    assert not [*sweeps.sweep.glob("submitted/*/*.log")]


# Packs


def test_a_pack_shares_the_gpus_of_its_allocation(sweeps: Sweeps) -> None:
    ended = sweeps.run(
        *("does=some,some,some,once,fail,some,some,some", "hydra.launcher.retries={failure:1}"),
        *("cluster.pack=4", "cluster.gpus_per_node=2", "launch.resources.gpus_per_proc=1"),
        *("launch.nproc=1", "cluster.cpus_per_task=2"),
        env={PRETEND: "0,1,2,3,4,5,6,7"},
        code=6,
    )
    assert "7 of 8 jobs succeeded" in ended.err
    assert sweeps.states() == {**dict.fromkeys(range(8), "succeeded"), 4: "failed"}
    # one that fails is tried again beside the others, which it ends not
    assert sweeps.starts() == {**dict.fromkeys(range(8), 1), 3: 2, 4: 2}
    assert len(sweeps.submitted()) == 1
    starts = sweeps.notes()
    assert Counter(note["task"] for note in starts) == {"0": 5, "1": 5}
    seen = {task: {note["gpus"] for note in starts if note["task"] == task} for task in "01"}
    # each has one of the two GPUs that its allocation has
    assert [len(gpus) for gpus in seen.values()] == [2, 2]
    assert {note["gpus"] for note in starts} <= {*"01234567"}


# Launchers that die, and launchers that leave

# Submits, and kills who has called it before that knows; later calls do nothing else.
KILLING = """
[ "$1" = --test-only ] && exec $REAL "$@"
[ -e killed ] && exec $REAL "$@"
touch killed
kill -KILL $PPID
# whoever goes on with the sweep does not look before it is known whether there is a job
until [ -e go-on ]; do sleep 0.05; done
exec $REAL "$@"
"""


def test_nothing_is_submitted_twice_whenever_launchers_are_killed(
    slurm: Slurm, sweeps: Sweeps
) -> None:
    slurm.configure(MaxArraySize=3)
    jobs = ("x=range(5)", "does=wait")
    path = sweeps.tool("sbatch", KILLING)
    killed = sweeps.start(*jobs, env=path)
    assert killed.process.wait(WAIT) == -signal.SIGKILL
    assert set(sweeps.listed()[1].values()) == {"not_run"}
    # its sbatch goes on
    second = sweeps.start("hydra.launcher.resume=sweep", *jobs)
    second.said("waiting")
    assert slurm.queue() == []
    (sweeps.root / "go-on").touch()
    sweeps.until_started(*range(5))
    second.kill()
    third = sweeps.start("hydra.launcher.resume=sweep", *jobs)
    third.said("5 jobs that an earlier launcher has submitted are followed")
    sweeps.go()
    finish(third)
    assert sweeps.starts() == dict.fromkeys(range(5), 1)
    for job in range(5):
        assert [line["type"] for line in sweeps.history(job)] == ["BatchStarted", "BatchEnded"]
    assert len(sweeps.submitted()) == 2
    assert sweeps.values() == {job: 10 * job for job in range(5)}


def test_a_sweep_that_was_left_is_looked_at_waited_for_and_collected(
    slurm: Slurm, sweeps: Sweeps
) -> None:
    jobs = ("does=wait,once,wait", "x=1", "cluster.array_parallelism=2")
    ended = sweeps.run(*jobs, "cluster.detach=null")
    assert "lllaunch wait sweep" in ended.err
    sweeps.until_started(0, 1, 2)
    until(lambda: sweeps.listed()[1][1] == "failed", "the end of job 1")
    sweep, states = sweeps.listed()
    assert (sweep["state"], states) == ("running", {0: "running", 1: "failed", 2: "running"})
    # where jobs of one are in the queue no other sweep begins
    ended = sweeps.run("does=ok,ok,ok", "x=1", code=2)
    assert "holds a sweep of which 2 batch jobs are not over" in ended.err
    sweeps.go()
    waited = sweeps.lllaunch("wait", "sweep")
    assert waited.returncode == 6, (waited.stdout, waited.stderr)
    sweep, states = sweeps.listed()
    assert (sweep["state"], sweep["exit_code"]) == ("failed", 6)
    assert states == {0: "succeeded", 1: "failed", 2: "succeeded"}
    # what has finished is collected, what has failed runs again
    sweeps.resume(*jobs)
    assert sweeps.starts() == {0: 1, 1: 2, 2: 1}
    assert sweeps.values() == {0: 10, 1: 10, 2: 10}
    assert sweeps.lllaunch("wait", "sweep").returncode == 0
    assert "3 of 3 jobs succeeded" in sweeps.lllaunch("show", "sweep").stdout


# Failures


@pytest.mark.smoke
def test_a_job_that_fails_is_tried_again_as_often_as_retries_say(sweeps: Sweeps) -> None:
    ended = sweeps.run("does=ok,once,fail", "hydra.launcher.retries={failure:1}", code=6)
    assert sweeps.states() == {0: "succeeded", 1: "succeeded", 2: "failed"}
    assert sweeps.starts() == {0: 1, 1: 2, 2: 2}
    assert "job 2 cannot" in sweeps.document()["jobs"][2]["root_cause"]
    types = [line["type"] for line in sweeps.history(1)]
    assert types == ["BatchStarted", "Requeued", "BatchStarted", "BatchEnded"]
    assert "2 of 3 jobs succeeded" in ended.err


def test_after_the_first_failure_nothing_starts_any_more(slurm: Slurm, sweeps: Sweeps) -> None:
    slurm.configure(MaxArraySize=4)
    stops = ("hydra.launcher.on_failure=stop", "cluster.array_parallelism=2")
    launcher = sweeps.start("does=wait,fail,wait,ok,ok,ok", *stops)
    # one runs in the place of the one that has failed, the others wait
    sweeps.until_started(0, 1)
    until(lambda: len(slurm.queue()) <= 2, "the end of those that wait", WAIT)
    sweeps.go()
    finish(launcher, 6)
    states = sweeps.states()
    assert (states[0], states[1]) == ("succeeded", "failed")
    assert {states[job] for job in (4, 5)} == {"skipped"}
    assert not {4, 5} & {*sweeps.starts()}
    assert "does=ok" in sweeps.document()["jobs"][5]["overrides"]


# Ends that Slurm brings about


def test_a_task_is_put_back_by_itself(slurm: Slurm, sweeps: Sweeps) -> None:
    launcher = sweeps.start(
        *("does=wait,wait,wait", "+cluster.exclusive=true", "cluster.cpus_per_task=1"),
        *("cluster.timeout_min=1", "cluster.signal_delay_s=45"),
    )
    sweeps.until_started(0, 1, 2)
    (array,) = until(lambda: [id_ for id_ in sweeps.submitted() if id_], "an id")
    node = slurm.facts(f"{array}_1")["NodeList"]
    sweeps.go(0)
    slurm.sbatch("-p", "high", "-w", node, "--exclusive", "-o/dev/null", "--wrap=sleep 1")
    until(lambda: {note["job"] for note in sweeps.notes("saved")} == {1}, "job 1's end", WAIT)
    sweeps.go(1)
    # the last one, whose id is that of the array, until its time is nearly over
    sweeps.until_started(1, 2, times=2)
    sweeps.go()
    finish(launcher)
    assert sweeps.starts() == {0: 1, 1: 2, 2: 2}
    causes = {
        job: [line["cause"] for line in sweeps.history(job) if line["type"] == "Requeued"]
        for job in range(3)
    }
    assert causes == {0: [], 1: ["preempted"], 2: ["timeout"]}
    assert all(note["step"] for note in sweeps.notes()[3:])


@pytest.mark.parametrize("lives", [True, False], ids=["followed", "left"])
def test_stop_ends_all_jobs_of_a_sweep(slurm: Slurm, sweeps: Sweeps, lives: bool) -> None:
    slurm.configure(MaxArraySize=2)
    detach = f"cluster.detach={str(not lives).lower()}"
    # of two arrays; one that lives waits for room, and would submit the second
    path = sweeps.tool("sbatch", FULL) if lives else None
    launcher = sweeps.start(
        "x=range(4)", "does=wait", "cluster.array_parallelism=2", detach, env=path
    )
    if lives:
        launcher.said("2 jobs not submitted yet, as the site takes no more now")
    else:
        assert launcher.finish(WAIT).code == 0
    sweeps.until_started(0, 1)
    (sweeps.root / "room").touch()
    stopped = sweeps.lllaunch("stop", "sweep")
    assert stopped.returncode == 0, stopped.stderr
    # what has ended may be completing for a moment
    until(lambda: not slurm.queue(), "an empty queue")
    # they had their time to save
    assert {note["job"] for note in sweeps.notes("saved")} == {0, 1}
    if lives:
        finish(launcher, 143)
    states = sweeps.listed()[1]
    assert [states[job] for job in (0, 1)] == ["signalled"] * 2
    assert not {*states.values()} & {"running", "queued", "succeeded"}
    assert set(sweeps.starts()) == {0, 1}
    assert sweeps.lllaunch("wait", "sweep").returncode not in {0, 2}


def test_ctrl_c_while_jobs_are_composed_submits_nothing(slurm: Slurm, sweeps: Sweeps) -> None:
    # what the site allows is asked for between composing and submitting
    path = sweeps.tool(
        "scontrol", 'touch composed\nuntil [ -e told ]; do sleep 0.05; done\nexec $REAL "$@"'
    )
    launcher = sweeps.start("x=range(5)", env=path)
    until((sweeps.root / "composed").exists, "all jobs composed")
    launcher.process.send_signal(signal.SIGTERM)
    (sweeps.root / "told").touch()
    assert launcher.finish(WAIT).code == 143
    assert slurm.queue() == []
    assert sweeps.submitted() == []
    assert sweeps.lllaunch("wait", "sweep").returncode == 143


# A user's own app

TRAIN = """
import os
import hydra

@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def train(cfg):
    assert cfg.lr < 3
    print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
    return {"lr": cfg.lr, "rank": os.environ["RANK"], "in_job": "SLURM_JOB_ID" in os.environ}

if __name__ == "__main__":
    train()
"""

APP = """
defaults:
  - override hydra/launcher: lllaunch
  - override hydra/sweeper: lllaunch
  - _self_
lr: 0.1
"""

SUBMITIT = """
defaults:
  - override hydra/launcher: lllaunch_slurm
  - override hydra/sweeper: lllaunch
  - _self_
lr: 0.1
hydra:
  launcher:
    partition: main
    timeout_min: 5
    cpus_per_task: 2
    mem_gb: 0.1
    tasks_per_node: 1
    comment: ${oc.env:COMMENT}
"""


def test_an_app_returns_on_slurm_what_it_returns_here(slurm: Slurm, sweeps: Sweeps) -> None:
    sweeps.write("train.py", TRAIN)
    sweeps.write("configs/train.yaml", APP)
    sweeps.write("configs/submitit.yaml", SUBMITIT)
    app = ("train.py", "-m")

    def swept(*args: str, env: Mapping[str, str] | None = None) -> dict[int, Any]:
        sweeps.run("lr=1,2", *args, python=app, env=env)
        values = sweeps.values()
        assert {value.pop("in_job") for value in values.values()} == {bool(args)}
        return values

    here = swept()
    assert here == {0: {"lr": 1, "rank": "0"}, 1: {"lr": 2, "rank": "0"}}
    there = swept(
        *("hydra/launcher=lllaunch", "hydra.launcher.cluster=slurm"),
        "+hydra.launcher.mem_gb=0.1",
    )
    assert there == here
    secret = {"COMMENT": "not to be written"}
    assert swept("--config-name=submitit", env=secret) == here
    (array,) = sweeps.submitted()[-1:]
    facts = slurm.facts(f"{array}_1")
    assert (facts["Partition"], facts["TimeLimit"], facts["NumCPUs"]) == ("main", "00:05:00", "2")
    assert "not to be written" not in (sweeps.sweep / "0" / "plan.yaml").read_text()
    # as under submitit, what waits for the app learns that a job has failed
    again = {"python": (*app, "--config-name=submitit"), "env": secret}
    ended = sweeps.run("lr=3", "hydra/sweeper=basic", code=1, **again)
    assert "job 0 (lr=3) failed (exit code 3)" in ended.err
    ended = sweeps.run("lr=3", "+hydra.launcher.detach=true", **again)
    assert "lllaunch wait sweep" in ended.err


# A site that takes few jobs, and one that is away for a while

FULL = """
[ "$1" = --test-only ] && exec $REAL "$@"
if [ -e first ] && [ ! -e room ]; then
  echo x >>refused
  echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2
  echo 'sbatch: error: Batch job submission failed: Job violates accounting/QOS policy' >&2
  exit 1
fi
touch first
exec $REAL "$@"
"""


def test_where_the_site_takes_no_more_jobs_the_launcher_goes_on_later(
    slurm: Slurm, sweeps: Sweeps
) -> None:
    slurm.configure(MaxArraySize=2)
    launcher = sweeps.start(
        "x=range(4)", "does=wait", "cluster.detach=true", env=sweeps.tool("sbatch", FULL)
    )
    launcher.said("2 jobs not submitted yet, as the site takes no more now")
    until(lambda: text_of(sweeps.root / "refused").count("x") > 2, "more tries")
    sweeps.until_started(0, 1)
    assert len(slurm.queue()) == 2
    sweeps.go(0)
    sweeps.go(1)
    until(lambda: not slurm.queue(), "the end of the first array", WAIT)
    (sweeps.root / "room").touch()
    # it leaves, as it was told to, as soon as all are submitted
    finish(launcher)
    sweeps.until_started(2, 3)
    assert len(sweeps.submitted()) == 2
    assert sweeps.starts() == dict.fromkeys(range(4), 1)


# The launcher, of little patience.
HASTY = """
import runpy, sys
from lllaunch.app import submitting
from lllaunch.cluster import slurm
slurm.PAUSES = (0.1,)
submitting._PATIENCE, submitting._LONGEST_PAUSE = 1.0, 0.5
runpy.run_module("lllaunch", run_name="__main__", alter_sys=True)
"""


def test_a_cluster_that_does_not_answer_is_asked_again_and_left_in_the_end(
    slurm: Slurm, sweeps: Sweeps
) -> None:
    jobs = ("x=1,2", "does=wait")
    launcher = sweeps.start(*jobs)
    sweeps.until_started(0, 1)
    with slurm.without_controller():
        launcher.said("Slurm does not answer")
    launcher.said("Slurm answers again")
    assert launcher.err.count("Slurm does not answer") == 1
    launcher.kill()
    sweeps.write("hasty.py", HASTY)
    python = ("hasty.py", "-m", "+exp=test")
    hasty = sweeps.start("hydra.launcher.resume=sweep", *jobs, python=python)
    hasty.said("2 jobs that an earlier launcher has submitted are followed")
    with slurm.without_controller():
        ended = finish(hasty, 1)
    assert "Slurm has not answered for 1.0 s, so its jobs are left" in ended.err
    assert "hydra.launcher.resume=" in ended.err
    with slurm.without_controller():
        launcher = sweeps.start("hydra.launcher.resume=sweep", *jobs)
        launcher.said("Slurm does not answer")
    launcher.said("2 jobs that an earlier launcher has submitted are followed")
    sweeps.go()
    finish(launcher)
    assert sweeps.starts() == {0: 1, 1: 1}
    assert sweeps.values() == {0: 10, 1: 20}


def test_all_jobs_run_the_code_of_the_submission_which_goes_with_the_last_of_them(
    slurm: Slurm, sweeps: Sweeps
) -> None:
    slurm.configure(MaxArraySize=2)
    sweeps.write("version.py", "VERSION = 'then'\n")
    sweeps.write(
        "which.py",
        "import os, lllaunch, version\n"
        "lllaunch.report([version.VERSION, os.path.basename(os.getcwd())])\n",
    )
    sweeps.write(".gitignore", "sweep\n*.txt\n")
    git(sweeps.root, "init", "-q")
    commit(sweeps.root)
    # all that follow wait in the queue for the first, and the code is another one by then
    sweep = sweeps.start(
        *("launch.entrypoint=which.py", "~launch.args", "x=1,2,3", "cluster.snapshot=temporary"),
        *("cluster.array_parallelism=1", "cluster.additional_parameters={begin: now+4}"),
    )
    holders = sweeps.sweep / "code.holders"
    until(lambda: (holders / "1_0").exists() or sweep.process.poll() is not None, "two arrays")
    sweeps.write("version.py", "VERSION = 'now'\n")
    finish(sweep)
    document = json.loads((sweeps.sweep / "sweep.json").read_text())
    assert [job["return_value"] for job in document["jobs"]] == [["then", "code"]] * 3
    until(lambda: not holders.exists(), "the end of the last job")
    until(lambda: not (sweeps.sweep / "code").exists(), "the end of the snapshot")
    assert (sweeps.sweep / "code.diff").exists()
