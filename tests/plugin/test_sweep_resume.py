"""A sweep whose launcher is killed loses no finished job, and a resume does the rest."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest
from support.launching import text_of, until
from support.sweeping import SweepProject

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
    project = SweepProject(tmp_path)
    project.write("work.py", QUICK)
    project.experiment("quick", "{entrypoint: 'work:go', args: {x: '${x}'}}", "x: 0\n")
    return project


def starts(project: SweepProject) -> Counter[int]:
    return Counter(map(int, text_of(project.root / "starts").split()))


@pytest.mark.smoke
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
    assert project.document()["resumes"] == 1
    # and when there is nothing left to do, nothing is done
    again = project.run("+exp=quick", "x=5,2,1,3", RESUME)
    assert again.code == 0, again.err
    assert sum(starts(project).values()) == 5
    assert "4 of 4 jobs succeeded" in again.err


def test_a_resume_whose_finished_jobs_have_changed_is_refused(project: SweepProject) -> None:
    assert project.run("+exp=quick", "x=1,2").code == 0
    kept = project.journal.read_bytes()
    project.experiment(
        "quick", "{entrypoint: 'work:go', nproc: 2, args: {x: '${x}'}, tee: none}", "x: 0\n"
    )
    refused = project.run("+exp=quick", "x=1,2,3", RESUME)
    assert refused.code == 2
    assert "launch.nproc: new, 2" in refused.err
    assert "tee" not in refused.err  # that changes nothing of the outcome
    assert project.journal.read_bytes() == kept
    assert sum(starts(project).values()) == 2
    # what has failed or is new may change
    (project.sweep / "0" / "result.json").unlink()
    (project.sweep / "1" / "result.json").unlink()
    assert project.run("+exp=quick", "x=1,2,3", RESUME).code == 0
    assert project.result(0)["return_values"].keys() == {"0", "1"}


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


def test_a_sweep_that_runs_is_not_resumed(project: SweepProject) -> None:
    project.experiment("quick", "{entrypoint: sleep, args: ['1000']}", "x: 0\n")
    first = project.start("+exp=quick", "x=1,2")
    until(lambda: len(project.started()) == 2, "both jobs")
    before = project.journal.read_bytes()
    refused = project.run("+exp=quick", "x=1,2", RESUME)
    assert refused.code == 2
    assert str(first.pid) in refused.err
    assert project.journal.read_bytes() == before
    first.signal(signal.SIGTERM)
    assert first.finish().code == 143
