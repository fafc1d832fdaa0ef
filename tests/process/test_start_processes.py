"""What the plugin is for: a composed config becomes one call of start_processes an attempt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.launching import Project, launch
from support.sweeping import SweepProject

# Writes down what start_processes is called with, in the launcher or in the process of a job.
RECORDS = """
import dataclasses, json, sys

if "lllaunch" in sys.orig_argv:
    import lllaunch.run.execute as group
    def record(workers, targets, envs, *, real=group.start_processes, **more):
        names = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "SAID")
        called = {
            "name": workers.name,
            "targets": {rank: [each.path, *each.argv] for rank, each in targets.items()},
            "envs": {rank: [env[name] for name in names] for rank, env in envs.items()},
            "attempt": workers.attempt,
            "files": dataclasses.asdict(workers.dest),
            "fresh": more["fresh"],
            "preload": more["preload"],
            "cwd": more["cwd"],
        }
        with open("calls.jsonl", "a") as file:
            file.write(json.dumps(called) + chr(10))
        return real(workers, targets, envs, **more)

    group.start_processes = record
"""

LAUNCH = """{
  entrypoint: work.py, args: [--size, '${size}', '--place=${worker:local_rank}'], nproc: 2,
  env: {SAID: 'size ${size}'}, redirects: err, tee: {0: out}, start_method: spawn, preload: [math],
  max_restarts: 1,
}"""


@pytest.mark.parametrize(
    ("words", "path", "size"),
    [
        (("+exp=twice", "hydra.run.dir=out"), "out", 4),
        (("-m", "+exp=twice", "size=4,8", "hydra.sweep.dir=out"), "out/1", 8),
    ],
    ids=["run", "job of a sweep"],
)
def test_a_config_is_turned_into_one_call_of_start_processes_an_attempt(
    tmp_path: Any, words: tuple[str, ...], path: str, size: int
) -> None:
    project = Project(tmp_path)
    project.experiment("twice", LAUNCH, "size: 4\n")
    project.write("work.py", "raise SystemExit(3)\n")
    project.write("site/sitecustomize.py", RECORDS)
    ended = project.lllaunch(*words, env={"PYTHONPATH": str(tmp_path / "site")})
    assert ended.returncode in {3, 6}, ended.stderr
    calls = map(json.loads, (tmp_path / "calls.jsonl").read_text().splitlines())
    of_job = [call for call in calls if call["envs"]["0"][-1] == f"size {size}"]
    attempts = [tmp_path / path / f"attempt_{number}" for number in range(2)]
    assert of_job == [
        {
            "name": "default",
            "targets": {
                str(rank): ["work.py", "--size", str(size), f"--place={rank}"] for rank in range(2)
            },
            "envs": {
                str(rank): [str(rank), "2", str(attempt), f"size {size}"] for rank in range(2)
            },
            "attempt": attempt,
            "files": {
                "stdouts": {"0": f"{place}/0/stdout.log", "1": ""},
                "stderrs": {str(rank): f"{place}/{rank}/stderr.log" for rank in range(2)},
                "tee_stdouts": {"0": f"{place}/0/stdout.log"},
                "tee_stderrs": {},
                "error_files": {str(rank): f"{place}/{rank}/error.json" for rank in range(2)},
                "filtered_stdout": f"{place}/filtered_stdout.log",
                "filtered_stderr": f"{place}/filtered_stderr.log",
            },
            "fresh": True,
            "preload": ["math"],
            "cwd": str(tmp_path),
        }
        for attempt, place in enumerate(attempts)
    ]


# copies all, as libraries do that start programs; that is no reason not to share it
EARLY = """
import os
everything = dict(os.environ)
HOME = os.environ.get("HF_HOME")
with open(os.path.join(os.path.dirname(__file__), "imports"), "a") as file: file.write("x")
"""
WORK = """
import os, time
import early
print(early.HOME, os.environ["HF_HOME"], os.environ.get("SEED"), time.strftime("%Z"))
"""


def test_preloaded_modules_see_the_variables_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    (tmp_path / "work.py").write_text(WORK)
    node = {"entrypoint": "work.py", "nproc": 2, "preload": ["early"]}
    env = {"HF_HOME": "/models", "TZ": "JST-9", "SEED": "${worker:rank}-${worker:attempt}"}
    ended = launch(tmp_path, {**node, "env": env}, environ={"HF_HOME": "/other"})
    assert ended.code == 0, ended.err
    seen = [ended.log(rank).decode() for rank in range(2)]
    assert seen == [f"/models /models {rank}-0 JST\n" for rank in range(2)]
    assert (tmp_path / "imports").read_text() == "x"


@pytest.mark.parametrize(
    ("override", "imports", "seen"),
    [
        ("launch.env.SEED=1,2,3", "x", ["/models /models 1", "/models /models 3"]),
        # it was read when the first job's was there: the others' workers import it anew
        ("launch.env.HF_HOME=/a,/b,/c", "xxx", ["/a /a 0", "/c /c 0"]),
    ],
)
def test_jobs_share_what_is_preloaded_unless_it_has_read_what_differs(
    tmp_path: Path, override: str, imports: str, seen: list[str]
) -> None:
    project = SweepProject(tmp_path)
    project.write("early.py", EARLY)
    project.write("work.py", WORK)
    project.experiment(
        "a", "{entrypoint: work.py, preload: [early], env: {HF_HOME: /models, SEED: 0}}"
    )
    ended = project.run("+exp=a", override)
    assert ended.code == 0, ended.err
    assert [project.log(job).rpartition(" ")[0] for job in (0, 2)] == seen
    assert (tmp_path / "imports").read_text() == imports
