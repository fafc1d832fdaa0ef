"""Real runs and sweeps, and large ones that are made up, each with its page; made once.

What is given to the real ones are secrets as well, which no page may show.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from support.launching import Project

from benchmarks.generated import write_run, write_sweep

if TYPE_CHECKING:
    import pytest

SECRETS = {"API_KEY": "Skey+Zq7/01xW9vK", "RANK_TOKEN": "Stoken+Zq7/02xW9vK"}
NAMES = ("hung", "succeeded", "swept", "large run", "large sweep")

TRAIN = """\
import os, sys, time

import lllaunch

rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def load_next_shard():
    time.sleep(1000)


def wait_for_others():
    time.sleep(1000)


print("<b>bold</b> & given", os.environ["RANK_TOKEN"], sys.argv, flush=True)
for step in range(1, 25):
    lllaunch.progress(step, 100, loss=1 / step)
    time.sleep(0.05)
if rank == 1 and attempt == 0:
    raise ValueError("<script>no & no</script>")
load_next_shard() if rank == 2 else wait_for_others()
"""
HUNG = """\
# @package _global_
launch:
  entrypoint: train.py
  nproc: 3
  args: {lr: 0.1, key: "${oc.env:API_KEY}"}
  env: {RANK_TOKEN: "${oc.env:RANK_TOKEN}"}
  max_restarts: 1
  samples: 1s
  watchdog: {stall: 10s}  # far longer than workers of a loaded machine are still
"""
FUNCTIONS = """\
import os


def same(value):
    return {"rank": int(os.environ["RANK"]), "value": value}


def search(lr, size):
    if lr == 1 and size > 1:
        raise FloatingPointError("the weights are <infinite> & not finite")
    return round((lr - 0.25) ** 2 + size / 100, 6)
"""
SUCCEEDED = "{entrypoint: 'functions:same', nproc: 2, args: {value: [1, <two>]}}"
SWEPT = """\
# @package _global_
launch:
  entrypoint: functions:search
  args: ${params}
  env: {RANK_TOKEN: "${oc.env:RANK_TOKEN}"}
params: {lr: 1, size: 1}
hydra: {launcher: {direction: minimize}}
"""


class Played(NamedTuple):
    """Something that ran, and its page."""

    directory: Path
    page: Path

    def read(self, name: str) -> Any:
        """One of its JSON files."""
        return json.loads((self.directory / name).read_text())


def _run(project: Project, code: int, *argv: str, **env: str) -> None:
    ended = project.lllaunch(*argv, env={**SECRETS, **env})
    assert ended.returncode == code, ended.stderr


def _hung(project: Project) -> None:
    project.write("train.py", TRAIN)
    project.write("conf/exp/hung.yaml", HUNG)
    _run(project, 4, "+exp=hung", "hydra.run.dir=left", "+note='<b>'")


def _succeeded(project: Project) -> None:
    project.write("functions.py", FUNCTIONS)
    project.experiment("succeeded", SUCCEEDED)
    _run(project, 0, "+exp=succeeded", "hydra.run.dir=left")


def _swept(project: Project) -> None:
    project.write("functions.py", FUNCTIONS)
    project.write("conf/exp/swept.yaml", SWEPT)
    argv = ("-m", "+exp=swept", "params.lr=0.1,0.3,1", "params.size=1,2,4")
    gpus = {"LLLAUNCH_PRETEND_GPUS": "0,1"}
    _run(project, 6, *argv, "hydra.sweep.dir=left", **gpus)


def _large_run(project: Project) -> None:
    write_run(project.root / "left")


def _large_sweep(project: Project) -> None:
    write_sweep(project.root / "left")


_MADE: dict[str, Callable[[Project], None]] = dict(
    zip(NAMES, (_hung, _succeeded, _swept, _large_run, _large_sweep), strict=True)
)


def play(name: str, root: Path) -> Played:
    """Make one of `NAMES` and its page, unless that has been done."""
    place = root / f"played {name}"
    page = place / "page.html"
    with _alone(root / f"{name}.lock"):
        project = Project(place)
        if page.exists():
            return Played(place / "left", page)
        _MADE[name](project)
        directory = place / "left"
        argv = ("report", directory.name, "--format", "html", "--output", page.name)
        ended = project.lllaunch(*argv, env=SECRETS)
        assert ended.returncode == 0, ended.stderr
    return Played(directory, page)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Other processes of the tests make the same at the same time."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def common_directory(factory: pytest.TempPathFactory, worker: str) -> Path:
    """A directory that all processes of the tests have in common."""
    base = factory.getbasetemp()
    return base if worker == "master" else base.parent
