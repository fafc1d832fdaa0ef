"""What a sweep refuses, what it then leaves behind, and what it never writes or believes."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from support.sweeping import SweepProject

PLANTED = "hf_planted0Cafe1234xyz"


@pytest.fixture
def project(tmp_path: Path) -> SweepProject:
    found = SweepProject(tmp_path)
    found.experiment("x", "{entrypoint: env, args: ['-0'], tee: none}", "params: {lr: 1}")
    return found


def test_a_sweep_that_is_refused_leaves_nothing(project: SweepProject) -> None:
    for args in (
        (f"+params.api_key={PLANTED}",),
        ("launch.nproc=1,99",),
        ("params.lr=interval(0,1)",),
        ("hydra.launcher.nporc=2",),
        ("launch.nnodes=1,2", "+launch.rdzv.endpoint=h"),
        ("hydra.sweeper.max_batch_size=3",),
    ):
        ended = project.run("+exp=x", *args)
        assert ended.code == 2, ended.err
        assert "Traceback" not in ended.err
        assert PLANTED not in ended.err
        assert not project.sweep.exists(), args


@pytest.mark.parametrize("node", ["launch.env", "hydra.job.env_set"])
def test_no_job_chooses_its_gpus_against_its_lease(project: SweepProject, node: str) -> None:
    override = f"+{node}.CUDA_VISIBLE_DEVICES='7'"
    ended = project.run("+exp=x", override)
    assert ended.code == 2, ended.err
    assert f"{node}.CUDA_VISIBLE_DEVICES: '7' is set for each job" in ended.err
    # where there is none to lease it is the user's affair
    assert project.run("+exp=x", override, "hydra.launcher.gpus=0").code == 2
    none = {"LLLAUNCH_PRETEND_GPUS": ""}
    assert project.run("+exp=x", override, env=none).code == 0


def test_a_name_made_from_the_moment_does_not_keep_a_sweep_from_being_resumed(
    project: SweepProject,
) -> None:
    project.experiment(
        "now",
        "{entrypoint: echo, args: ['${params.name}'], env: {NAME: '${params.name}'}}",
        "params: {name: '${now:%H%M%S%f}'}",
    )
    assert project.run("+exp=now", "+x=1,2").code == 0
    names = project.log(0)
    ended = project.run("+exp=now", "+x=1,2,3", "hydra.launcher.resume=sweep")
    assert ended.code == 0, ended.err
    assert project.tries() == {0: 1, 1: 1, 2: 1}
    assert project.log(0) == names


APP = """
import hydra

@hydra.main(version_base="1.3", config_path=None)
def main(cfg):
    return cfg.sort_key

main()
"""


def test_jobs_that_differ_in_what_only_sounds_secret_are_not_mixed_up(
    project: SweepProject,
) -> None:
    project.write("app.py", APP)
    ours = ("hydra/launcher=lllaunch", "hydra/sweeper=lllaunch")
    for values, more in (("name,date", ()), ("size,date", ("hydra.launcher.resume=sweep",))):
        ended = project.run(*ours, f"+sort_key={values}", *more, python=("app.py", "-m"))
        assert ended.code == 0, ended.err
    assert project.tries() == {0: 1, 1: 1, 2: 1}
    returned = [job["return_value"] for job in project.document()["jobs"]]
    assert [str(value).strip('"') for value in returned] == ["name", "date", "size"]


def test_the_journal_does_not_help_to_guess_a_literal_secret(project: SweepProject) -> None:
    project.write("app.py", APP)
    values = [f"{PLANTED}-{letter}" for letter in "ab"]
    given = ("+sort_key=name", f"+api_key={','.join(values)}")
    ours = ("hydra/launcher=lllaunch", "hydra/sweeper=lllaunch")
    for more in ((), ("hydra.launcher.resume=sweep",)):
        ended = project.run(*ours, *given, *more, python=("app.py", "-m"))
        assert ended.code == 0, ended.err
        assert project.tries() == {0: 1, 1: 1}
    journal = project.journal.read_text()
    assert len(set(re.findall("<hidden [0-9a-f]+>", journal))) == 4
    for value in values:
        for text in (value, f"api_key={value}", f"+api_key={value}"):
            assert hashlib.sha256(text.encode()).hexdigest()[:8] not in journal
