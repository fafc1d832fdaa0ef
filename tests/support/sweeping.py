"""Sweeps with real jobs, started and ended as their users do."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lllaunch.linux import proc
from lllaunch.linux.gpus import PRETEND
from lllaunch.sweep.journal import ComposedRecord, Record, StartedRecord, read_journal
from support.launching import Finished, Project, Running, environment, until

MARK = "LLLAUNCH_TEST_MARK"
"""A variable of every process that a test starts, however far from the test that is."""

_DIRECTORY = "LLLAUNCH_TEST_PROJECT"


class SweepProject(Project):
    """A project whose sweeps go to ``sweep/``, on four GPUs that nobody else pretends to have."""

    def __init__(self, root: Path, gpus: int = 4) -> None:
        super().__init__(root)
        self.sweep = root / "sweep"
        self.name = uuid.uuid4().hex[:12]
        self.gpus = [f"{letter}-{self.name}" for letter in "abcdefgh"[:gpus]]

    def environment(self) -> dict[str, str]:
        return environment() | {PRETEND: ",".join(self.gpus), _DIRECTORY: self.name}

    def start(
        self, *args: str, env: Mapping[str, str] | None = None, python: tuple[str, ...] = ()
    ) -> Running:
        """Starts ``python -m lllaunch -m``, or something else; env is on top of the environment."""
        command = [sys.executable, *(python or ("-m", "lllaunch", "-m")), "hydra.sweep.dir=sweep"]
        environ = self.environment() | dict(env or {})
        return Running([*command, *args], self.root, environ)

    def run(self, *args: str, **options: Any) -> Finished:
        """Runs a sweep to its end; arguments as for `start`."""
        return self.start(*args, **options).finish()

    # What is on the disk

    @property
    def journal(self) -> Path:
        return self.sweep / "sweep.jsonl"

    def records(self) -> list[Record]:
        """The journal; empty while there is none."""
        if not self.journal.exists():
            return []
        return [entry.record for entry in read_journal(str(self.journal))]

    def document(self) -> Any:
        return json.loads((self.sweep / "sweep.json").read_text())

    def states(self) -> dict[int, str]:
        """What sweep.json says became of each job."""
        return {job["job"]: job["state"] for job in self.document()["jobs"]}

    def tries(self) -> dict[int, int]:
        """How often each job was started."""
        return {job["job"]: job["tries"] for job in self.document()["jobs"]}

    def result(self, job: int) -> Any:
        return json.loads((self.sweep / str(job) / "result.json").read_text())

    def log(self, job: int, rank: int = 0, stream: str = "stdout", attempt: int = 0) -> str:
        path = self.sweep / str(job) / f"attempt_{attempt}" / str(rank) / f"{stream}.log"
        return path.read_text() if path.exists() else ""

    def numbers(self) -> dict[tuple[str, ...], int]:
        """The number of each job that the journal tells of, by its overrides."""
        found: dict[tuple[str, ...], int] = {}
        for record in self.records():
            if isinstance(record, ComposedRecord):
                assert found.setdefault(record.overrides, record.job) == record.job
        return found

    def started(self) -> list[int]:
        return [record.job for record in self.records() if isinstance(record, StartedRecord)]

    def succeeded(self) -> set[int]:
        """Jobs whose result.json says so."""
        found = set()
        for path in self.sweep.glob("*/result.json"):
            if json.loads(path.read_text())["state"] == "succeeded":
                found.add(int(path.parent.name))
        return found

    # Its processes

    def processes(self) -> list[proc.ProcessFacts]:
        """All that live of what was started here."""
        return list(marked(_DIRECTORY, self.name))

    def all_gone(self) -> None:
        """Waits until nothing of what was started here lives."""
        until(lambda: not self.processes(), "the end of all that was started")


def marked(name: str, value: str) -> Iterator[proc.ProcessFacts]:
    """Live processes that were started with a variable, whoever's children they are now."""
    for process in proc.processes():
        if process.state in "ZX":
            continue
        if proc.environment_holds(process.pid, f"{name}={value}".encode()):
            yield process


def end_all(processes: list[proc.ProcessFacts]) -> None:
    """Ends processes that a test left behind."""
    for process in processes:
        if proc.same_process(process):
            os.kill(process.pid, signal.SIGKILL)


def settled(name: str, value: str, seconds: float = 30.0) -> list[proc.ProcessFacts]:
    """What is left of the processes with a variable when they had some time to end."""
    deadline = time.monotonic() + seconds
    while (left := list(marked(name, value))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
