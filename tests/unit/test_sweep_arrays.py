"""Which jobs of a sweep share an allocation and an array, and what an array's directory says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.run.submission import Submission
from lllaunch.spec import Cluster, Requeue
from lllaunch.sweep.arrays import (
    TASKS,
    Array,
    ArrayJob,
    arrays_of,
    known_arrays,
    need_in_task,
    new_directory,
    read_tasks,
    write_tasks,
)
from lllaunch.sweep.journal import ARRAYS
from lllaunch.sweep.pool import Need


def job(number: int) -> ArrayJob:
    return ArrayJob(number, f"/sweep/{number}")


# Planning


kinds = st.lists(st.sampled_from([(1, 1), (2, 1), (1, 4), (2, 3)]), max_size=60)


@given(kinds, st.integers(1, 12))
def test_each_job_is_in_one_task_of_its_kind(chosen: list[tuple[int, int]], most: int) -> None:
    clusters = [Cluster({"mem_gb": mem}, pack=pack) for mem, pack in chosen]
    jobs = [(job(number), cluster) for number, cluster in enumerate(clusters)]
    found = arrays_of(jobs, most)
    assert sorted(each.number for array in found for _, each in array.jobs) == [*range(len(jobs))]
    for array in found:
        assert 1 <= len(array.tasks) <= most
        assert all(clusters[each.number] == array.cluster for _, each in array.jobs)
        assert all(each in array.tasks[index] for index, each in array.jobs)
    for mem, pack in set(chosen):
        alike = [each for each in found if each.cluster == Cluster({"mem_gb": mem}, pack=pack)]
        # in order, and no allocation is asked for but by the last that has room for more
        ordered = [each.number for array in alike for _, each in array.jobs]
        assert ordered == sorted(ordered)
        *full, last = [len(task) for array in alike for task in array.tasks]
        assert set(full) <= {pack}
        assert 1 <= last <= pack
        assert all(len(array.tasks) == most for array in alike[:-1])


# Files


@pytest.mark.parametrize("text", ["{", "[]", '{"tasks": 3}', '{"tasks": [3, {}]}', "[" * 10_000])
def test_a_damaged_file_holds_no_tasks(tmp_path: Path, text: str) -> None:
    (tmp_path / TASKS).write_text(text)
    assert read_tasks(str(tmp_path)) == ()


def test_what_a_later_version_adds_to_a_task_is_passed_over(tmp_path: Path) -> None:
    task = {"job": 4, "directory": "/sweep/3", "warm": "of another version"}
    (tmp_path / TASKS).write_text(json.dumps({"tasks": [[], [task]]}))
    assert read_tasks(str(tmp_path)) == ((), (ArrayJob(4, "/sweep/3"),))


def test_arrays_are_found_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    sweep = str(tmp_path / "sweep")
    assert known_arrays(sweep) == []
    limits = {"requeue": Requeue(1, 2, 3), "signal_delay": 30.0, "retries": {"failure": 1}}
    made = []
    for number in range(12):
        directory = new_directory(sweep)
        assert directory == str(tmp_path / "sweep" / ARRAYS / str(number))
        tasks = ((job(number),),)
        write_tasks(directory, Array(Cluster({}), tasks))
        # its id is written when it is known
        id_ = f"{100 + number}" if number % 2 else ""
        submission = Submission(id_, directory, time_ns=7, host="host", **limits)
        submission.write(directory)
        made.append((directory, submission, tasks))
    # made ready, and never submitted; and what is no array at all
    new_directory(sweep)
    (tmp_path / "sweep" / ARRAYS / "notes").mkdir()
    assert [tuple(each) for each in known_arrays(sweep)] == made


# What a job needs in its task


@pytest.mark.parametrize(
    ("launch", "gpus", "cpus", "expected"),
    [
        ({"nproc": 3}, 0, 4, Need(cpus=3)),
        ({"nproc": 2}, 4, 8, Need(gpus=2)),
        # counted where it runs
        ({"nproc": "gpu"}, 4, 8, Need(gpus=4)),
        ({"nproc": "auto"}, 4, 8, Need(gpus=4)),
        ({"nproc": "auto"}, 0, 8, Need(cpus=8)),
        ({"nproc": "cpu"}, 0, 8, Need(cpus=8)),
        ({"nproc": 2, "resources": None}, 0, 8, Need(cpus=2)),
        ({"nproc": 2, "resources": {"gpus_per_proc": 2}}, 8, 8, Need(gpus=4)),
        ({"nproc": 2, "resources": {"cpus_per_proc": 3}}, 0, 8, Need(cpus=6)),
        ({"nproc": 1, "resources": {"gpus_per_proc": 0, "cpus_per_proc": 2}}, 8, 8, Need(cpus=2)),
        # no more than there are
        ({"nproc": 16}, 0, 4, Need(cpus=4)),
    ],
)
def test_what_a_job_needs_of_the_allocation_that_it_shares(
    launch: dict[str, Any], gpus: int, cpus: int, expected: Need
) -> None:
    assert need_in_task(launch, gpus, cpus) == expected
