"""A user's own Hydra app, which knows nothing of lllaunch, swept by it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.sweeping import Finished, SweepProject

OURS = "hydra/launcher=lllaunch"
TWO = "hydra.launcher.nproc=2"

TRAIN = """
import logging, os
import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

log = logging.getLogger(__name__)
OmegaConf.register_new_resolver("double", lambda x: 2 * x)

@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def train(cfg: DictConfig):
    log.info("rank %s of job %s", os.environ["RANK"], cfg.x)
    node = HydraConfig.get()
    written = os.stat(os.path.join(node.runtime.output_dir, ".hydra", "config.yaml"))
    return OmegaConf.to_container(cfg, resolve=True) | {
        "output_dir": node.runtime.output_dir,
        "num": node.job.num,
        "task": list(node.overrides.task),
        "here": os.getcwd(),
        "greeting": os.environ.get("GREETING"),
        "written": [written.st_ino, written.st_mtime_ns],
        "pid": os.getpid(),
    }

if __name__ == "__main__":
    train()
"""

CONFIG = """
x: 0
twice: ${double:${x}}
moment: ${now:%H%M%S%f}
mixed: r${oc.env:LOCAL_RANK}-${now:%S%f}
hydra:
  job:
    env_set: {GREETING: "hello ${hydra.job.num}"}
  callbacks:
    note: {_target_: notes.Note}
"""

# Hydra finds it beside the script.
NOTES = """
import json, os
from pathlib import Path
from hydra.experimental.callback import Callback

HERE = Path(__file__).parent

class Note(Callback):
    def note(self, what, config, **more):
        line = {"what": what, "pid": os.getpid(), "rank": os.environ.get("RANK")} | more
        with open(HERE / "notes.jsonl", "a") as file:
            file.write(json.dumps(line) + "\\n")

    def on_multirun_start(self, config, **_):
        self.note("multirun_start", config)

    def on_multirun_end(self, config, **_):
        self.note("multirun_end", config)

    def on_job_start(self, config, *, task_function, **_):
        self.note("job_start", config, num=config.hydra.job.num, function=task_function.__name__)

    def on_job_end(self, config, job_return, **_):
        value = job_return._return_value
        returned = str(value) if isinstance(value, Exception) else value
        status = job_return.status.name
        self.note("job_end", config, num=config.hydra.job.num, status=status, returned=returned)
"""


def app(project: SweepProject, *args: str, script: str = "train.py", **options: Any) -> Finished:
    return project.run(*args, python=(script, "-m"), **options)


def values(project: SweepProject, job: int) -> dict[int, Any]:
    """What each rank of a job returned."""
    found = project.result(job)["return_values"]
    return {int(rank): value["value"] for rank, value in found.items()}


def notes(project: SweepProject) -> list[Any]:
    return [json.loads(line) for line in (project.root / "notes.jsonl").read_text().splitlines()]


@pytest.fixture
def project(tmp_path: Path) -> SweepProject:
    project = SweepProject(tmp_path / "my project")
    project.write("train.py", TRAIN)
    project.write("configs/train.yaml", CONFIG)
    project.write("notes.py", NOTES)
    return project


def test_a_function_runs_in_every_rank_as_hydra_would_run_it(project: SweepProject) -> None:
    launcher = project.start(OURS, TWO, "hydra.job.chdir=true", "x=3,4", python=("train.py", "-m"))
    ended = launcher.finish()
    assert ended.code == 0, ended.err
    files = {path.name for path in project.sweep.iterdir() if not path.name.startswith(".")}
    assert files == {"0", "1", "multirun.yaml", "sweep.json", "sweep.jsonl"}
    assert not (project.root / "outputs").exists()
    pids = set()
    for job, x in enumerate([3, 4]):
        directory = project.sweep / str(job)
        found = values(project, job)
        assert sorted(found) == [0, 1]
        first, second = found[0], found[1]
        assert first["x"] == second["x"] == x
        assert first["twice"] == second["twice"] == 2 * x
        assert first["moment"] == second["moment"]
        assert first["mixed"].removeprefix("r0-") == second["mixed"].removeprefix("r1-")
        for rank, value in found.items():
            assert value["output_dir"] == value["here"] == str(directory)
            assert value["num"] == job
            assert value["task"] == [f"x={x}"]
            assert value["greeting"] == f"hello {job}"
            place = directory if rank == 0 else directory / "attempt_0" / str(rank)
            log = (place / "train.log").read_text()
            assert log.count("\n") == 1
            assert log.rstrip().endswith(f"[__main__][INFO] - rank {rank} of job {x}")
            pids.add(value["pid"])
        # nobody has written it again since the workers saw it
        written = (directory / ".hydra" / "config.yaml").stat()
        assert first["written"] == second["written"] == [written.st_ino, written.st_mtime_ns]
        assert yaml.safe_load((directory / ".hydra" / "config.yaml").read_text())["x"] == x
        assert yaml.safe_load((directory / ".hydra" / "overrides.yaml").read_text()) == [f"x={x}"]
    assert len(pids) == 4

    told = notes(project)
    order = [note["what"] for note in told]
    assert order[0] == "multirun_start"
    assert order[-1] == "multirun_end"
    assert Counter(order[1:-1]) == {"job_start": 2, "job_end": 2}
    assert told[0]["pid"] == told[-1]["pid"] == launcher.pid
    assert {note["rank"] for note in told} == {None}
    for note in told[1:-1]:
        if note["what"] == "job_start":
            assert note["function"] == "train"
        else:
            assert note["returned"] == values(project, note["num"])[0]
    assert sorted(note["num"] for note in told[1:-1]) == [0, 0, 1, 1]


FAILS = """
import os
import hydra

@hydra.main(version_base="1.3", config_path=None)
def train(cfg):
    if cfg.x == 2 and os.environ["RANK"] == "1":
        raise ValueError("the reason")
    return cfg.x

train()
raise SystemExit("workers must not come here" if "RANK" in os.environ else 0)
"""


def test_a_job_that_fails_lets_hydras_sweeper_end_with_1_when_all_have_run(
    project: SweepProject,
) -> None:
    project.write("train.py", FAILS)
    note = "+hydra.callbacks.note._target_=notes.Note"
    ended = app(project, OURS, TWO, "+x=1,2,3", note)
    assert ended.code == 1
    assert project.states() == {0: "succeeded", 1: "failed", 2: "succeeded"}
    assert "job 1 (+x=2) failed (exit code 3)" in ended.err
    # Hydra's advice is about a traceback of the app: there is none to be shown
    told = [line for line in ended.err.splitlines() if not line.startswith("[")]
    assert "Traceback" not in "\n".join(told)
    ends = {note["num"]: note["status"] for note in notes(project) if note["what"] == "job_end"}
    assert ends == {0: "COMPLETED", 1: "FAILED", 2: "COMPLETED"}


MAIN = """
import os
import lllaunch

@lllaunch.main(version_base="1.3", config_path="configs", config_name="train")
def train(cfg):
    with open(os.environ["STARTS"], "a") as file:
        file.write(f"{cfg.x} {os.environ['RANK']}\\n")
    if cfg.x == 2:
        raise ValueError("the reason")
    return cfg.x

if __name__ == "__main__":
    train()
"""


@pytest.mark.smoke
def test_an_app_of_lllaunch_main_sweeps_with_it(project: SweepProject) -> None:
    project.write("train.py", MAIN)
    project.write("configs/train.yaml", "x: 0\n")
    starts = project.root / "starts"
    ended = app(project, "x=1,2", "launch.nproc=1,2", env={"STARTS": str(starts)})
    assert ended.code == 6
    assert project.states() == {0: "succeeded", 1: "succeeded", 2: "failed", 3: "failed"}
    good = [line for line in starts.read_text().splitlines() if line.startswith("1 ")]
    assert sorted(good) == ["1 0", "1 0", "1 1"]
    # one that fails ends the other, perhaps before that could write
    assert [len(project.result(job)["attempts"][0]["workers"]) for job in range(4)] == [1, 2, 1, 2]


MODULE = """
import os
import hydra
from .more import rank

@hydra.main(version_base="1.3", config_path=None)
def train(cfg):
    return [cfg.x, rank(os.environ)]

if __name__ == "__main__":
    train()
"""


def test_workers_find_the_function_of_a_module(tmp_path: Path) -> None:
    project = SweepProject(tmp_path)
    project.write("pkg/more.py", "def rank(environ):\n    return environ['RANK']\n")
    project.write("pkg/train.py", MODULE)
    ended = project.run(OURS, TWO, "+x=1,2", python=("-m", "pkg.train", "-m"))
    assert ended.code == 0, ended.err
    for job, x in enumerate([1, 2]):
        assert values(project, job) == {rank: [x, str(rank)] for rank in (0, 1)}


# as hydra-zen does it
TWICE = """
from hydra import initialize
from hydra._internal.callbacks import Callbacks
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import run_job
from hydra.types import HydraContext, RunMode

def train(cfg):
    with open("ran", "a") as file:
        file.write(f"{cfg.x}\\n")

def launch(x, mode, launcher):
    with initialize(config_path=None, version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        words = [f"hydra/launcher={launcher}", f"x={x}"]
        config = hydra.compose_config("made", words, run_mode=mode)
        callbacks = Callbacks(config)
        context = HydraContext(config_loader=hydra.config_loader, callbacks=callbacks)
        if mode == RunMode.RUN:
            callbacks.on_run_start(config=config, config_name="made")
            run_job(train, config, "hydra.run.dir", None, hydra_context=context)
        else:
            callbacks.on_multirun_start(config=config, config_name="made")
            sweeper = Plugins.instance().instantiate_sweeper(
                config=config, hydra_context=context, task_function=train
            )
            sweeper.sweep(list(config.hydra.overrides.task))

if __name__ == "__main__":
    ConfigStore.instance().store(name="made", node={"x": 0})
    launch(1, RunMode.RUN, "basic")
    launch(2, RunMode.MULTIRUN, "lllaunch")
"""


def test_workers_do_not_run_what_the_script_has_launched_before(tmp_path: Path) -> None:
    project = SweepProject(tmp_path)
    project.write("twice.py", TWICE)
    ended = project.run(python=("twice.py",))
    assert ended.code == 0, ended.err
    assert (project.root / "ran").read_text().split() == ["1", "2"]


FORKED = """
import os, random
import hydra, numpy, torch
from omegaconf import OmegaConf

OmegaConf.register_new_resolver("drawn", lambda: float(numpy.random.rand()))

def made():
    def draw(cfg):
        return [cfg.drawn, random.random(), numpy.random.rand(), torch.rand(1).item()]
    return draw

hydra.main(version_base="1.3", config_path=None)(made())()
"""


def test_no_random_number_comes_twice_in_ranks_and_jobs_that_are_forked(
    project: SweepProject,
) -> None:
    project.write("forked.py", FORKED)
    ended = app(
        project, OURS, "+launch.nproc=2", "+drawn=${drawn:}", "+x=1,2,3", script="forked.py"
    )
    assert ended.code == 0, ended.err
    drawn = [value for job in range(3) for value in values(project, job).values()]
    assert len(drawn) == 6
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 6, drawn
