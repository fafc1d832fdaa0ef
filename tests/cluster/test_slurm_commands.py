"""What `lllaunch.cluster.slurm` says to a real Slurm, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.launching import text_of, until

from cluster.slurm import Slurm
from lllaunch.cluster import slurm as commands
from lllaunch.cluster.address import expand_hosts
from lllaunch.cluster.slurm import QueuedJob, SlurmFailed, SubmitFailed
from lllaunch.spec import Cluster, Requeue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / 'it\'s 50% "done" ü'
    path.mkdir()
    return path


def batch(folder: Path, *command: str, array: tuple[int, int] | None = None, **given: Any) -> str:
    settings = {"mem_gb": 0.1, **given.pop("settings", {})}
    return commands.batch_text(
        Cluster(settings, **given),
        command=command,
        directory=str(folder),
        output=str(folder / ("out-%a" if array else "out")),
        name="a name",
        array=array,
    )


def submit(folder: Path, *command: str, **given: Any) -> str:
    return commands.submit(batch(folder, *command, **given), str(folder / "job.sh"))


@pytest.mark.smoke
def test_a_job_runs_once_on_each_node_with_what_was_asked_for(slurm: Slurm, folder: Path) -> None:
    show = (
        "echo $SLURM_NODEID of $SLURM_NTASKS, $SLURM_CPUS_PER_TASK, $CUDA_VISIBLE_DEVICES, "
        "$SUBMITIT_EXECUTOR, $GIVEN, $1, $PWD; echo error >&2"
    )
    settings = {"cpus_per_task": 3, "gpus_per_node": 2, "timeout_min": 5}
    setup = ["GIVEN=yes", "export GIVEN"]
    words = ("bash", "-c", show, "bash", "a 'b' $c")
    job = submit(folder, *words, nodes=2, settings={**settings, "setup": setup})
    assert slurm.until_over(job) == "COMPLETED"
    lines = sorted((folder / "out").read_text().splitlines())
    assert lines == [
        *(f"{node} of 2, 3, 0,1, , yes, a 'b' $c, {folder}" for node in range(2)),
        *("error", "error"),
    ]
    assert (folder / "job.sh").stat().st_mode & 0o777 == 0o700


def test_the_queue_knows_a_job_by_its_directory(slurm: Slurm, folder: Path) -> None:
    job = submit(folder, "sleep", "600", nodes=2, requeue=Requeue(0, 0, 0))
    slurm.until_state(job, "RUNNING")
    found = commands.queued()
    nodes = found[job].nodes
    assert found[job].start_time is not None
    expected = QueuedJob(job, "RUNNING", "None", nodes, str(folder), "a name")
    assert found == {job: expected._replace(start_time=found[job].start_time)}
    assert len(expand_hosts(nodes)) == 2
    assert commands.queued(job) == found
    # one that nobody knows
    assert commands.queued("4") == {}
    facts = commands.job_facts(job)
    assert facts is not None
    assert commands.ending(facts, 0) is None
    assert commands.job_facts("4_1") is None
    with pytest.raises(SlurmFailed, match="Requested operation is presently disabled"):
        commands.requeue(job)
    commands.cancel([job])
    assert slurm.until_over(job) == "CANCELLED"
    commands.cancel([job, "4"])


def test_what_comes_after_a_command_comes_whatever_became_of_it(slurm: Slurm, folder: Path) -> None:
    settings = {"teardown": ["echo after $status"]}
    show = "trap 'exit 6' TERM; echo started; for i in {1..6000}; do sleep 0.1; done"
    job = submit(folder, "bash", "-c", show, settings=settings)
    until(lambda: "started" in text_of(folder / "out"), "its start")
    commands.cancel([job])
    until(lambda: "after " in text_of(folder / "out"), "what comes after")


@pytest.mark.parametrize(
    ("said", "settings"),
    [
        ("Requested node configuration is not available", {"gres": "gpu:99"}),
        ("unrecognized option '--nope", {"additional_parameters": {"nope": 1}}),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    slurm: Slurm, folder: Path, said: str, settings: dict[str, Any]
) -> None:
    text = batch(folder, "true", settings=settings)
    with pytest.raises(SubmitFailed) as caught:
        commands.submit(text, str(folder / "job.sh"))
    error = caught.value
    assert (error.exit_code, error.unsure) == (2, False)
    assert said in error.said
    assert "\n" not in str(error)
    tested = commands.test_only(text)
    assert tested is not None
    # it does not always say which
    assert said in tested or "Requested node configuration" in tested
    assert commands.queued() == {}
    assert commands.test_only(batch(folder, "true", array=(3, 1))) is None
