"""Jobs and launchers that share a machine: nobody gets what somebody else holds."""

from __future__ import annotations

import json
import os
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.launching import until
from support.sweeping import SweepProject

from lllaunch.sweep.journal import StartedRecord

# Each worker tells what it sees, and when it was there.
WORK = """
import json, os, time

def go(seconds):
    begin = time.monotonic_ns()
    time.sleep(seconds)
    told = {
        "job": os.environ["JOB"],
        "rank": os.environ["RANK"],
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "cores": sorted(os.sched_getaffinity(0)),
        "begin": begin,
        "end": time.monotonic_ns(),
    }
    fd = os.open("told", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (json.dumps(told) + "\\n").encode())
    os.close(fd)
"""

LAUNCH = (
    "{entrypoint: 'work:go', args: {seconds: '${seconds}'}, "
    "env: {JOB: '${hydra:job.num}'}, nproc: '${n}'}"
)


class Told(NamedTuple):
    """What a worker was, and when."""

    job: str
    rank: str
    gpus: str | None
    cores: list[int]
    begin: int
    end: int

    def beside(self, other: Told) -> bool:
        return self.begin < other.end and other.begin < self.end


def sharing(root: Path) -> SweepProject:
    project = SweepProject(root)
    project.write("work.py", WORK)
    project.experiment("test", LAUNCH, "seconds: 0.0\nn: 1\nx: 0\n")
    return project


@pytest.fixture
def project(tmp_path: Path) -> SweepProject:
    return sharing(tmp_path)


@pytest.fixture
def two(tmp_path: Path) -> list[SweepProject]:
    """Two launchers' directories, on the same GPUs."""
    first, second = (sharing(tmp_path / name) for name in ("first", "second"))
    second.gpus = first.gpus
    return [first, second]


def told(project: SweepProject) -> list[Told]:
    lines = (project.root / "told").read_text().splitlines()
    return [Told(**json.loads(line)) for line in lines]


def leases(project: SweepProject) -> dict[int, Any]:
    return {
        record.job: record.lease
        for record in project.records()
        if isinstance(record, StartedRecord)
    }


def test_a_launcher_waits_for_a_gpu_that_another_holds(two: list[SweepProject]) -> None:
    first, second = two
    del first.gpus[1:]
    holder = first.start("+exp=test", "seconds=1000")
    until(first.started, "the first one's job")
    waiter = second.start("+exp=test", "x=1,2")
    waiter.said("held by another launcher")
    assert not second.started()
    # a lease dies with its holder
    holder.kill()
    assert waiter.finish().code == 0
    assert len(told(second)) == 2


def test_jobs_see_what_their_resources_say_of_what_the_launcher_sees(
    project: SweepProject,
) -> None:
    a, _, c, d = project.gpus
    visible = {"CUDA_VISIBLE_DEVICES": f"{d},{a},{c}"}
    jobs = ("x=1,2", "launch.resources.gpus_per_proc=0,2", "hydra.launcher.gpus=2")
    ended = project.run("+exp=test", *jobs, env=visible)
    assert ended.code == 0, ended.err
    seen = {worker.job: worker.gpus for worker in told(project)}
    assert seen == {"0": "", "1": f"{d},{a}", "2": "", "3": f"{d},{a}"}
    needs = [(len(lease.gpus), len(lease.cpus)) for _, lease in sorted(leases(project).items())]
    assert needs == [(0, 1), (2, 0)] * 2
    # as a default for all jobs, and chosen by name
    default = "hydra.launcher.resources={gpus_per_proc: 2}"
    chosen = f"hydra.launcher.gpus=[{c},{d}]"
    assert project.run("+exp=test", "x=1", default, chosen, env=visible).code == 0
    assert told(project)[-1].gpus == f"{c},{d}"


CORES = sorted(os.sched_getaffinity(0))


def test_jobs_are_bound_to_their_cores(project: SweepProject) -> None:
    count = min(len(CORES), 3)
    limits = (f"hydra.launcher.cpus={count}", "hydra.launcher.pin_cpus=true")
    none = {"LLLAUNCH_PRETEND_GPUS": ""}
    ended = project.run("+exp=test", "x=range(4)", "seconds=0.1", *limits, env=none)
    assert ended.code == 0, ended.err
    workers = told(project)
    for worker in workers:
        assert tuple(worker.cores) == leases(project)[int(worker.job)].cpus
        assert len(worker.cores) == 1
    for one, other in combinations(workers, 2):
        assert not (one.beside(other) and set(one.cores) & set(other.cores))
    assert {core for worker in workers for core in worker.cores} <= set(CORES[:count])


def test_cores_are_slots_where_there_are_no_gpus(project: SweepProject) -> None:
    none = {"LLLAUNCH_PRETEND_GPUS": ""}
    # unless that is asked for, a job of two workers runs as it would alone
    one = ("+exp=test", "hydra.launcher.cpus=1", "n=2")
    assert project.run(*one, "x=range(3)", env=none).code == 0
    for worker, other in combinations(told(project), 2):
        assert worker.job == other.job or not worker.beside(other)
    # counted, not bound
    assert all(worker.cores == CORES for worker in told(project))
    too_many = project.run(*one, "+launch.resources.cpus_per_proc=1", env=none)
    assert too_many.code == 2
    assert "needs 2 CPU slots, of which the sweep has 1; launch.resources.cpus" in too_many.err


@pytest.mark.parametrize(
    ("overrides", "env", "threads"),
    [
        (("+launch.resources.cpus_per_proc=2",), {"LLLAUNCH_PRETEND_GPUS": ""}, "2"),
        # as under torchrun, where no core is leased
        ((), {}, "none"),
        # whoever says it is believed
        ((), {"LLLAUNCH_PRETEND_GPUS": "", "OMP_NUM_THREADS": "7"}, "7"),
    ],
)
def test_workers_compute_on_the_cores_that_they_lease(
    project: SweepProject, overrides: tuple[str, ...], env: dict[str, str], threads: str
) -> None:
    project.experiment(
        "threads", "{entrypoint: sh, args: ['-c', 'printenv OMP_NUM_THREADS || echo none']}"
    )
    ended = project.run("+exp=threads", *overrides, env=env)
    assert ended.code == 0, ended.err
    assert project.log(0) == f"{threads}\n"
