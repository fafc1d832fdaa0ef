"""Before a run is submitted: what its directory holds of an earlier one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig

from lllaunch.app import submitting
from lllaunch.app.batch import read_function
from lllaunch.app.own_worker import UserFunction
from lllaunch.app.submitting import replace_submission
from lllaunch.cluster import slurm
from lllaunch.cluster.slurm import QueuedJob, SubmitFailed
from lllaunch.errors import ConfigError, OutputError
from lllaunch.run.submission import BatchEnded, BatchStarted, Submission, append, read_submission
from lllaunch.spawner.protocol import Function
from lllaunch.spec import Cluster, Entrypoint


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> dict[str, QueuedJob]:
    """What is in the queue."""
    jobs: dict[str, QueuedJob] = {}
    monkeypatch.setattr(slurm, "available", lambda: True)
    monkeypatch.setattr(slurm, "queued", lambda ids=None: jobs)
    return jobs


@pytest.fixture
def directory(tmp_path: Path) -> str:
    Submission("7", str(tmp_path)).write(str(tmp_path))
    return str(tmp_path)


def queued(directory: str) -> QueuedJob:
    return QueuedJob("7", "PENDING", "Priority", "", directory, "a")


def test_one_that_is_not_over_is_not_replaced(queue: dict[str, QueuedJob], directory: str) -> None:
    queue["7"] = queued(directory)
    not_over = r"batch job 7, which is not over \(PENDING \(Priority\)\); stop it, .*\[in-use\]"
    with pytest.raises(ConfigError, match=not_over):
        replace_submission(directory)
    assert read_submission(directory) is not None


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize("there", [True, False])
def test_one_that_is_gone_from_the_queue_or_a_copy_elsewhere_is(
    there: bool, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "available", lambda: there)
    replace_submission(directory)
    assert read_submission(directory) is None


def test_nor_is_the_queue_asked_of_one_that_has_said_it_is_over(
    queue: dict[str, QueuedJob], directory: str
) -> None:
    queue["7"] = queued(directory)
    append(directory, BatchStarted("7"))
    append(directory, BatchEnded(0))
    replace_submission(directory)
    assert read_submission(directory) is None


@pytest.mark.usefixtures("queue")
def test_what_workers_called_goes_with_its_submission(directory: str) -> None:
    entrypoint = Entrypoint("function", "train", "train:main", "main")
    function = UserFunction(entrypoint, Function("train", "main", b""))
    path = Path(directory, "function.pkl")
    path.write_bytes(pickle.dumps(function))
    path.chmod(0o600)
    assert read_function(directory) == function
    replace_submission(directory)
    assert read_function(directory) is None


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("it was unpickled",))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(("mode", "owner"), [(0o620, 0), (0o602, 0), (0o600, 65534)])
def test_what_others_may_have_written_is_not_unpickled(
    tmp_path: Path, mode: int, owner: int
) -> None:
    path = tmp_path / "function.pkl"
    path.write_bytes(pickle.dumps(Trap()))
    path.chmod(mode)
    os.chown(path, owner, -1)
    with pytest.raises(OutputError, match="others than this user may have written it"):
        read_function(str(tmp_path))


def test_what_sbatch_said_of_a_refused_run_is_written_down(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "sbatch: error: Unable to contact slurm controller"

    def refuse(*_: object, **__: object) -> str:
        raise SubmitFailed("sbatch --parsable", said)

    monkeypatch.setattr(slurm, "available", lambda: False)
    monkeypatch.setattr(slurm, "expect_available", lambda: None)
    monkeypatch.setattr(slurm, "test_only", lambda _: None)
    monkeypatch.setattr(slurm, "submit", refuse)
    monkeypatch.setattr(submitting, "batch_text", lambda *_: "")
    monkeypatch.setattr(submitting, "make_ready", lambda *_: True)
    cluster = Cluster(snapshot="none")
    spec: Any = SimpleNamespace(
        cluster=cluster, output_dir=directory, log_dir=directory, runtime_cwd=directory
    )
    with pytest.raises(SubmitFailed):
        submitting.submit_run(spec, DictConfig({}), None, "a", bool)
    submission = read_submission(directory)
    assert submission is not None
    assert submission.refused == said
    # though Slurm does not answer, it is known not to be there
    replace_submission(directory)
    assert read_submission(directory) is None
