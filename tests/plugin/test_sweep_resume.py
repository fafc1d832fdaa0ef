"""A sweep whose launcher is killed loses no finished job, and a resume does the rest."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.launching import text_of, until
from support.project import quiet_environment
from support.sweeping import Running, SweepProject

from lllaunch.sweep.journal import EndedRecord, Resumed

# the same lines are measured where others run them

KILLS = 24
JOBS = 20
MOST_KILLS_OF_A_SWEEP = 9
RESUME = "hydra.launcher.resume=sweep"

QUICK = """
import os, time

def go(x):
    fd = os.open("starts", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{x}\\n".encode())
    time.sleep(0.02)
    return x * x
"""


@pytest.fixture
def project(tmp_path: Path) -> SweepProject:
    return quick(tmp_path)


def quick(root: Path) -> SweepProject:
    project = SweepProject(root)
    project.write("work.py", QUICK)
    project.experiment("quick", "{entrypoint: 'work:go', args: {x: '${x}'}}", "x: 0\n")
    return project


def starts(project: SweepProject) -> Counter[int]:
    return Counter(map(int, text_of(project.root / "starts").split()))


# SIGKILL at any moment


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_finished_job_is_lost_however_often_the_launcher_is_killed(tmp_path: Path) -> None:
    # several at a time: they wait as often as they work
    shares = [KILLS // 3, KILLS // 3, KILLS - 2 * (KILLS // 3)]
    with ThreadPoolExecutor(len(shares)) as pool:
        runs = [
            pool.submit(_kill_and_resume, tmp_path / str(seed), seed, kills)
            for seed, kills in enumerate(shares)
        ]
    assert sum(run.result() for run in runs) == KILLS


def _kill_and_resume(root: Path, seed: int, kills: int) -> int:
    """Sweeps as many times as it takes to kill so many launchers; returns how many were killed."""
    chance = random.Random(seed)
    killed = sweeps = 0
    while killed < kills:
        sweeps += 1
        most = min(kills - killed, MOST_KILLS_OF_A_SWEEP)
        killed += _one_sweep(quick(root / str(sweeps)), chance, most)
    return killed


def _one_sweep(project: SweepProject, chance: random.Random, most: int) -> int:
    killed = 0
    numbers: dict[tuple[str, ...], int] = {}
    finished: dict[int, int] = {}
    while True:
        begun = project.journal.exists()
        before = text_of(project.journal).count("\n")
        command = ("+exp=quick", f"x=range({JOBS})", *[RESUME] * begun)
        # a process that is killed has nothing to tell of its coverage
        launcher = project.start(*command, env=quiet_environment())
        if killed == most:
            ended = launcher.finish()
            assert ended.code == 0, ended.err
            break
        if not _kill_somewhere(project, launcher, before, chance):
            # it was through before its moment came
            assert launcher.process.returncode == 0, launcher.err
            break
        killed += 1
        project.all_gone()
        # the journal can be read, numbers are kept
        known = project.numbers()
        assert numbers.items() <= known.items()
        numbers = known
        # what had finished before this launcher was not started again by it
        count = starts(project)
        assert {x: count[x] for x in finished} == finished
        done = project.succeeded()
        assert set(finished) <= done
        finished = {x: count[x] for x in done}
    _all_succeeded(project)
    count = starts(project)
    assert {x: count[x] for x in finished} == finished
    assert sorted(count) == list(range(JOBS))
    return killed


def _kill_somewhere(
    project: SweepProject, launcher: Running, before: int, chance: random.Random
) -> bool:
    """SIGKILL at a random moment; whether the launcher lived to get it."""
    if chance.random() < 0.2:
        # on its way to the journal
        time.sleep(chance.uniform(0.0, 0.7))
    else:
        lines = before + chance.randint(0, 7)
        until(
            lambda: (
                launcher.process.poll() is not None or text_of(project.journal).count("\n") >= lines
            ),
            f"{lines} records",
        )
        time.sleep(chance.uniform(0.0, 0.12))
    if launcher.process.poll() is not None:
        return False
    launcher.kill()
    return launcher.process.returncode == -signal.SIGKILL


def _all_succeeded(project: SweepProject) -> None:
    for x in range(JOBS):
        result = project.result(x)
        assert result["state"] == "succeeded"
        assert result["return_values"]["0"]["value"] == x * x
    assert len(list(project.sweep.rglob("result.json"))) == JOBS
    document = project.document()
    assert document["exit_code"] == 0
    assert document["counts"] == {"succeeded": JOBS}
    assert [job["job"] for job in document["jobs"]] == list(range(JOBS))
    assert [job["return_value"] for job in document["jobs"]] == [x * x for x in range(JOBS)]
    assert set(map(tuple, (job["overrides"] for job in document["jobs"]))) == {
        ("+exp=quick", f"x={x}") for x in range(JOBS)
    }
    ends = Counter(record.job for record in project.records() if isinstance(record, EndedRecord))
    assert set(ends) == set(range(JOBS))


# What a resume takes, and what it refuses


def test_a_resume_runs_what_is_new_and_what_has_failed(project: SweepProject) -> None:
    project.write("work.py", QUICK.replace("return", "assert x != 2\n    return"))
    assert project.run("+exp=quick", "x=1,2").code == 6
    project.write("work.py", QUICK)
    # one that is new stands before the others
    ended = project.run("+exp=quick", "x=5,2,1,3", RESUME)
    assert ended.code == 0, ended.err
    assert starts(project) == {1: 1, 2: 2, 3: 1, 5: 1}
    assert project.numbers() == {
        ("+exp=quick", "x=1"): 0,
        ("+exp=quick", "x=2"): 1,
        # its place on the command line was taken
        ("+exp=quick", "x=5"): 2,
        ("+exp=quick", "x=3"): 3,
    }
    assert project.result(2)["return_values"]["0"]["value"] == 25
    assert (project.sweep / "1" / "attempt_1").exists()
    assert sum(isinstance(record, Resumed) for record in project.records()) == 1
    assert project.document()["resumes"] == 1
    # and when there is nothing left to do, nothing is done
    again = project.run("+exp=quick", "x=5,2,1,3", RESUME)
    assert again.code == 0, again.err
    assert sum(starts(project).values()) == 5
    assert "4 of 4 jobs succeeded" in again.err


def test_a_resume_whose_finished_jobs_have_changed_is_refused(project: SweepProject) -> None:
    assert project.run("+exp=quick", "x=1,2").code == 0
    kept = _files(project)
    project.experiment(
        "quick", "{entrypoint: 'work:go', nproc: 2, args: {x: '${x}'}, tee: none}", "x: 0\n"
    )
    refused = project.run("+exp=quick", "x=1,2,3", RESUME)
    assert refused.code == 2
    assert "launch.nproc: new, 2" in refused.err
    assert "tee" not in refused.err  # that changes nothing of the outcome
    assert _files(project) == kept
    assert sum(starts(project).values()) == 2
    # what has failed or is new may change
    (project.sweep / "0" / "result.json").unlink()
    (project.sweep / "1" / "result.json").unlink()
    assert project.run("+exp=quick", "x=1,2,3", RESUME).code == 0
    assert project.result(0)["return_values"].keys() == {"0", "1"}


# An lllaunch of later, which has one more setting.
LATER = """
from lllaunch.config import plan

make = plan.plan_node
plan._DEFAULTS = {**plan._DEFAULTS, "brand_new": False}
plan.plan_node = lambda spec: {"launch": {**make(spec)["launch"], "brand_new": %s}}
"""


def test_a_new_setting_with_a_default_runs_no_job_again(project: SweepProject) -> None:
    assert project.run("+exp=quick", "x=1,2").code == 0
    path = str(project.root / "later")
    project.write("later/sitecustomize.py", LATER % False)
    resumed = project.run("+exp=quick", "x=1,2,3", RESUME, env={"PYTHONPATH": path})
    assert resumed.code == 0
    assert starts(project) == {1: 1, 2: 1, 3: 1}
    project.write("later/sitecustomize.py", LATER % True)
    refused = project.run("+exp=quick", "x=1,2,3", RESUME, env={"PYTHONPATH": path})
    assert refused.code == 2
    assert "launch.brand_new: new, true" in refused.err


def _files(project: SweepProject) -> dict[str, bytes]:
    """What the sweep wrote beside its jobs; its lock names whoever held it last."""
    files = [path for path in project.sweep.iterdir() if path.is_file()]
    return {path.name: path.read_bytes() for path in files if not path.name.endswith(".lock")}


def test_a_sweep_that_is_not_there_is_not_resumed(project: SweepProject) -> None:
    ended = project.run("+exp=quick", "x=1", RESUME)
    assert ended.code == 2
    assert "hydra.launcher.resume" in ended.err
    assert not project.journal.exists()


OWN = """
import hydra

@hydra.main(version_base="1.3", config_path=None)
def train(cfg):
    with open("starts", "a") as file:
        file.write(f"{cfg.x}\\n")
    return cfg.x

train()
"""


def test_an_app_of_ones_own_names_the_directory_twice(project: SweepProject) -> None:
    project.write("train.py", OWN)
    own, ours = ("train.py", "-m"), "hydra/launcher=lllaunch"
    assert project.run(ours, "+x=1,2", python=own).code == 0
    # as a user forgets it: Hydra's own directory, of this moment
    refused = project.run(ours, "+x=1,2,3", RESUME, "hydra.sweep.dir=other", python=own)
    assert refused.code == 2
    assert "hydra.launcher.resume" in refused.err
    assert "hydra.sweep.dir=sweep" in refused.err
    assert not (project.root / "other" / "sweep.jsonl").exists()
    assert sum(starts(project).values()) == 2
    ended = project.run(ours, "+x=1,2,3", RESUME, python=own)
    assert ended.code == 0, ended.err
    assert starts(project) == {1: 1, 2: 1, 3: 1}


def test_nobody_is_told_to_resume_what_cannot_be_resumed(project: SweepProject) -> None:
    project.write("train.py", OWN.replace("file.write", "assert cfg.x != 1; file.write"))
    batches = ("hydra/launcher=lllaunch", "+x=1,2", "hydra.sweeper.max_batch_size=1")
    ended = project.run(*batches, python=("train.py", "-m"))
    assert ended.code == 1
    refused = project.run(*batches, RESUME, python=("train.py", "-m"))
    assert refused.code == 2
    assert "cannot be resumed in batches" in refused.err
    assert RESUME not in ended.err


PICKY = """
import pathlib

def go(x):
    if x == 2 and not pathlib.Path("mended").exists():
        raise ValueError(x)
"""


def test_a_resume_is_told_the_directory_and_no_more(project: SweepProject) -> None:
    project.write("work.py", PICKY)
    ended = project.run("+exp=quick", "x=1,2,3", "hydra.launcher.max_parallel=1")
    assert ended.code == 6
    assert "to run the rest: python -m lllaunch -m hydra.launcher.resume=sweep" in ended.err
    (project.root / "mended").touch()
    python = ("-m", "lllaunch", "-m", RESUME)
    ended = project.run(python=python)
    assert ended.code == 0, ended.err
    assert project.states() == {0: "succeeded", 1: "succeeded", 2: "succeeded"}
    assert project.tries() == {0: 1, 1: 2, 2: 1}


WAITING = """
import pathlib, time

def go(x):
    pathlib.Path(f"runs-{x}").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
"""


def test_of_two_resumes_at_once_one_is_refused(project: SweepProject) -> None:
    project.write("work.py", WAITING)
    first = project.start("+exp=quick", "x=1,2")
    with _ended(first):
        until((project.root / "runs-1").exists, "a job")
        journal = project.journal.read_bytes
        # of a sweep that still runs
        refused = project.run("+exp=quick", "x=1,2", RESUME)
        assert refused.code == 2
        assert str(first.pid) in refused.err
        first.kill()
    project.all_gone()
    second = project.start("+exp=quick", "x=1,2", RESUME)
    with _ended(second):
        until(lambda: len(project.started()) == 4, "both jobs")
        before = journal()
        refused = project.run("+exp=quick", "x=1,2", RESUME)
        assert refused.code == 2
        assert str(second.pid) in refused.err
        assert journal() == before
        (project.root / "go").touch()
        assert second.finish().code == 0
    assert project.states() == {0: "succeeded", 1: "succeeded"}


@contextlib.contextmanager
def _ended(launcher: Running) -> Iterator[None]:
    try:
        yield
    finally:
        launcher.kill()
