"""Directories as runs and sweeps leave them, for tests in which nothing runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lllaunch.documents import Fields
from lllaunch.run.outcome import AttemptOutcome, RootCause, RunOutcome, WorkerOutcome
from lllaunch.run.records import WorkerFiles
from lllaunch.run.result import render_result
from lllaunch.sweep.history import SweepHistory, summary_of, write_summary
from lllaunch.sweep.journal import Header, OverRecord, Record, encode, read_journal

T0 = 1_700_000_000_000_000_000
SECOND = 10**9


def write_lines(path: Path, records: Sequence[Fields]) -> None:
    """Write events or samples as `support.timelines` makes them."""
    path.write_text("".join(f"{json.dumps(dict(record.document))}\n" for record in records))


class LeftRun:
    """The directory of a run.

    Args:
        path: where it is made.
        ended_ns: when the run was over.
    """

    def __init__(self, path: Path, ended_ns: int = T0 + 5 * SECOND) -> None:
        self.path, self.ended_ns = path, ended_ns
        self.result = path / "result.json"
        path.mkdir(parents=True)
        (path / "plan.yaml").write_text("launch:\n  entrypoint: train.py\n  nproc: 3\n")

    def log(self, rank: int, stream: str, text: str | bytes) -> Path:
        """Write what a worker of the first attempt has printed."""
        path = self.path / "attempt_0" / str(rank) / f"{stream}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def worker(self, rank: int, fate: Any, **fields: Any) -> WorkerOutcome:
        """What became of a worker of the first attempt."""
        place = f"{self.path}/attempt_0/{rank}"
        files = WorkerFiles(place, f"{place}/stdout.log", f"{place}/stderr.log")
        ended_ns = T0 + (20 + rank) * SECOND
        known = {"started_ns": T0 + SECOND, "ended_ns": ended_ns, "pid": 4000 + rank, **fields}
        return WorkerOutcome(rank, rank, fate, files, **known)

    def attempt(
        self,
        *workers: WorkerOutcome,
        number: int = 0,
        state: Any = "failed",
        root: RootCause | None = None,
    ) -> AttemptOutcome:
        """One of the run's attempts."""
        path = f"{self.path}/attempt_{number}"
        return AttemptOutcome(number, number, path, state, T0, T0 + SECOND, workers, root)

    def ends(
        self,
        state: Any,
        code: int,
        *attempts: AttemptOutcome,
        build: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        """Write result.json, and return what stands in it."""
        outcome = RunOutcome(
            *(state, code, str(self.path), "id", T0, self.ended_ns, attempts),
            plan_hash="ab12",
            **more,
        )
        host = {"hostname": "node7", "cpus": 16, "memory": 64 << 30}
        text = render_result(outcome, host, build=build)
        self.result.write_bytes(text)
        return json.loads(text)


class LeftSweep:
    """The directory of a sweep.

    Args:
        path: where it is made.
        header: the first record of its journal.
        time_ns: of that record.
        step_ns: how much later each record is than the one before.

    Attributes:
        time_ns: of the next record.
    """

    def __init__(
        self, path: Path, header: Header, time_ns: int = T0, step_ns: int = SECOND
    ) -> None:
        self.path, self.time_ns, self._step_ns = path, time_ns, step_ns
        self.journal = path / "sweep.jsonl"
        path.mkdir(parents=True, exist_ok=True)
        self.add(header)

    def add(self, *records: Record) -> None:
        """Write to the journal."""
        with self.journal.open("ab") as file:
            for record in records:
                file.write(encode(record, self.time_ns))
                self.time_ns += self._step_ns

    def over(self, code: int) -> None:
        """End the sweep: its journal has an end, and there is a summary."""
        self.add(OverRecord(code))
        history = SweepHistory(read_journal(str(self.journal)))
        write_summary(str(self.path / "sweep.json"), summary_of(history, self.time_ns))
