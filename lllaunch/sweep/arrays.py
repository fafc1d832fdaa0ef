"""Jobs of a sweep that go to a cluster: which of them share an allocation, and which an array.

A cluster takes jobs as arrays, each of tasks that ask for the same; a task runs one job, or with
``cluster.pack`` several. The planning is pure. Each array has a directory of its own below the
sweep's, which says what its tasks run before the array is submitted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import field

from lllaunch.documents import Record, decode_record, encode_record
from lllaunch.files import naming, read_bytes, write_atomic
from lllaunch.run.submission import Submission, read_submission
from lllaunch.spec import Cluster
from lllaunch.sweep.journal import ARRAYS
from lllaunch.sweep.pool import Need, need_of

TASKS = "tasks.json"
OUTPUT = "%a.log"
"""What a task says before it knows which run it is, in the directory of its array.

It becomes the log of the run's launcher then."""


class ArrayJob(Record, frozen=True):
    """A job of a sweep, as a task of an array finds it."""

    number: int = field(name="job")
    directory: str  # of its run, absolute


class ArrayTasks(Record, frozen=True):
    """What the tasks of an array run."""

    tasks: tuple[tuple[ArrayJob, ...], ...] = ()


class Array(NamedTuple):
    """Tasks that are submitted together."""

    cluster: Cluster
    tasks: tuple[tuple[ArrayJob, ...], ...]

    @property
    def jobs(self) -> Iterator[tuple[int, ArrayJob]]:
        """The jobs in order, each with the index of its task."""
        for index, task in enumerate(self.tasks):
            for job in task:
                yield index, job


def arrays_of(jobs: Iterable[tuple[ArrayJob, Cluster]], most: int) -> list[Array]:
    """Return the arrays that jobs make. Pure.

    ``most``: how many tasks an array has at most, 1 or more.
    """
    alike: list[tuple[Cluster, list[ArrayJob]]] = []
    for job, cluster in jobs:
        members = next((members for known, members in alike if known == cluster), None)
        if members is None:
            alike.append((cluster, members := []))
        members.append(job)
    found = []
    for cluster, members in alike:
        pack = cluster.pack
        tasks = [tuple(members[at : at + pack]) for at in range(0, len(members), pack)]
        for at in range(0, len(tasks), most):
            found.append(Array(cluster, tuple(tasks[at : at + most])))
    return found


def holder_of(directory: str, index: int) -> str:
    """Return what the task of an array is called that holds a snapshot of the code."""
    return f"{os.path.basename(directory)}_{index}"


def new_directory(sweep: str) -> str:
    """Make the directory of another array of a sweep; return it, absolute.

    Raises:
        OutputError: it cannot be made.
    """
    above = os.path.join(sweep, ARRAYS)
    with naming(above):
        os.makedirs(above, exist_ok=True)
        path = os.path.join(above, str(max(_numbers(above), default=-1) + 1))
        os.mkdir(path)
    return path


def write_tasks(directory: str, array: Array) -> None:
    """Write what the tasks of an array run.

    Raises:
        OutputError: it cannot be written.
    """
    data = encode_record(ArrayTasks(array.tasks)) + b"\n"
    write_atomic(os.path.join(directory, TASKS), data)


def read_tasks(directory: str) -> tuple[tuple[ArrayJob, ...], ...]:
    """Return what the tasks of an array run; nothing if that cannot be read."""
    try:
        return decode_record(read_bytes(os.path.join(directory, TASKS)), ArrayTasks).tasks
    except (OSError, ValueError, RecursionError):
        return ()


class KnownArray(NamedTuple):
    """An array that was made ready, and perhaps submitted."""

    directory: str
    submission: Submission
    tasks: tuple[tuple[ArrayJob, ...], ...]


def known_arrays(sweep: str) -> list[KnownArray]:
    """Return the arrays of a sweep, in the order in which they were made."""
    above = os.path.join(sweep, ARRAYS)
    try:
        directories = [os.path.join(above, str(number)) for number in sorted(_numbers(above))]
    except OSError:
        return []
    known = ((directory, read_submission(directory)) for directory in directories)
    return [
        KnownArray(directory, submission, read_tasks(directory))
        for directory, submission in known
        if submission is not None
    ]


def _numbers(above: str) -> list[int]:
    return [int(name) for name in os.listdir(above) if re.fullmatch(r"\d{1,9}", name)]


def need_in_task(launch: Mapping[str, Any], gpus: int, cpus: int) -> Need:
    """Return what a job needs of the machine of its task. Pure."""
    nproc, resources = launch.get("nproc"), launch.get("resources") or {}
    counts = {"gpu": gpus, "cpu": cpus, "auto": gpus or cpus}
    workers = nproc if isinstance(nproc, int) else counts.get(str(nproc), 1) or 1
    per_proc = (resources.get("gpus_per_proc"), resources.get("cpus_per_proc"))
    return need_of(workers, per_proc, gpus > 0, cpus)
