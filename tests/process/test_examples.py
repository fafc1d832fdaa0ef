"""The repository's examples, as their users run them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.launching import Project, result

ROOT = Path(__file__).parents[2]


def python(*args: str, **env: str) -> str:
    """Runs Python in the repository's root and returns its standard output."""
    policy = yaml.safe_load((ROOT / "conf" / "lllaunch.yaml").read_text())
    # directories of runs are outside of the repository here
    policy["allow"]["paths"] = [f"{Path.cwd().resolve().parent}/*"]
    Path("allow.yaml").write_text(yaml.safe_dump(policy))
    ended = Project(ROOT).python(
        *args, env=env | {"LLLAUNCH_POLICY": os.path.abspath("allow.yaml")}
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture
def digits() -> None:
    """What the examples need that learn digits."""
    pytest.importorskip("sklearn")
    pytest.importorskip("tqdm")


def experiment(name: str, run_dir: Path, *overrides: str) -> Any:
    """Runs an experiment of conf/exp and returns its result."""
    python("-m", "lllaunch", f"+exp={name}", f"hydra.run.dir={run_dir}", *overrides)
    return result(run_dir)


def log(run_dir: Path, rank: int, attempt: int = 0) -> str:
    return (run_dir / f"attempt_{attempt}" / str(rank) / "stdout.log").read_text()


def values(found: Any) -> list[Any]:
    """The workers' return values, by rank."""
    return [value["value"] for _, value in sorted(found["return_values"].items())]


@pytest.mark.smoke
@pytest.mark.usefixtures("digits")
def test_resnet_runs_locked_as_shipped(tmp_path: Path) -> None:
    locked = {"LLLAUNCH_LOCKED": "1"}
    command = ("-m", "lllaunch", "+exp=resnet", f"hydra.run.dir={tmp_path / 'run'}")
    with pytest.raises(AssertionError, match=r'launch.args\[3\]: "0.1" -> "0.5"'):
        python(*command, "params.lr=0.5", **locked)
    assert "8 experiments, no problems" in python("-m", "lllaunch", "check", **locked)
    assert "test accuracy 0.9" in python(*command, **locked)


@pytest.mark.usefixtures("digits")
def test_resnet_goes_on_from_its_checkpoint_for_a_cause_of_its_policy(tmp_path: Path) -> None:
    # "resnet_restart", watched and with a policy
    found = experiment("resnet_watched", tmp_path)
    first, second = found["attempts"]
    assert first["root_cause"]["cause"]["type"] == "KilledBySignal"
    assert first["root_cause"]["rank"] == 1
    assert [attempt["restart_count"] for attempt in (first, second)] == [0, 1]
    epochs = [re.findall(r"^epoch (\d)", log(tmp_path, 0, attempt), re.M) for attempt in (0, 1)]
    assert epochs == [["1"], ["2", "3"]]
    assert "resuming after epoch 1" in log(tmp_path, 0, attempt=1)
    (value,) = values(found)
    assert value["accuracy"] >= 0.95
    assert os.listdir(tmp_path).count("checkpoint.pt") == 1


@pytest.mark.usefixtures("digits")
def test_resnet_gets_stuck_after_its_restart(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exit code 4"):
        experiment("resnet_stuck", tmp_path, "params.epochs=3")

    found = result(tmp_path)
    causes = [attempt["root_cause"] for attempt in found["attempts"]]
    told = [(cause["rank"], cause["cause"]["type"]) for cause in causes]
    assert told == [(1, "KilledBySignal"), (2, "Stalled")]
    hang = found["root_cause"]["hang"]
    assert hang["waiting"] == [0, 1, 3]
    assert hang["stacks"][2]["frames"][0]["function"] == "load_next_shard"


@pytest.mark.usefixtures("digits")
def test_resnet_runs_under_torchrun_unchanged(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    script = ("examples/resnet/train.py", "--epochs", "1")
    # torchrun leaves a directory of logs behind
    assert "epoch 1: loss" in python(*torchrun, *script, TMPDIR=str(tmp_path))


def test_module_shares_the_files_among_the_workers(tmp_path: Path) -> None:
    words = [value["words"] for value in values(experiment("module", tmp_path))]
    names = ("LICENSE", "CONTRIBUTING.md", "CHANGELOG.md")
    texts = [(ROOT / name).read_text().lower() for name in names]
    counts = [len(re.findall("[a-z]+", text)) for text in texts]
    assert words == [counts[0] + counts[2], counts[1]]


@pytest.mark.smoke
def test_program_reports_what_its_environment_says(tmp_path: Path) -> None:
    found = values(experiment("program", tmp_path))
    assert found == [
        {"rank": 0, "colour": "red"},
        {"rank": 1, "colour": "blue"},
        {"rank": 2, "colour": "blue"},
    ]
    assert "the blue one, 2 of 3; called with: greetings from" in log(tmp_path, 2)


@pytest.mark.usefixtures("digits")
def test_own_app_validates_a_fold_in_each_worker(tmp_path: Path) -> None:
    shown = python("examples/own_app/train.py", f"hydra.run.dir={tmp_path}")
    accuracies = values(result(tmp_path))
    assert len(accuracies) == 4
    assert min(accuracies) > 0.85
    assert f"mean accuracy {sum(accuracies) / 4:.3f}" in shown
    for rank in range(4):
        # rank 0 logs where a plain app does
        text = (tmp_path / (f"attempt_0/{rank}" if rank else "") / "train.log").read_text()
        assert f"fold {rank} of 4: {accuracies[rank]:.3f} told right" in text
