"""Directories as runs and sweeps leave them, and workers as they end, where nothing runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from lllaunch.documents import signal_name
from lllaunch.run.repository import Host
from lllaunch.run.result import (
    AttemptResult,
    Ended,
    RootCause,
    RunResult,
    WorkerResult,
    encode_result,
)
from lllaunch.sweep.history import SweepHistory, summary_of, write_summary
from lllaunch.sweep.journal import Header, OverRecord, Record, encode, read_journal

T = TypeVar("T", bound=WorkerResult)


def ended_by_launcher(code: int, *signums: int, waited_for: tuple[int, ...] = ()) -> Ended:
    """A worker that the launcher ended."""
    return Ended(exitcode=code, sent=tuple(map(signal_name, signums)), waited_for=waited_for)


def placed(rank: int, worker: T, **fields: Any) -> T:
    """The worker of a rank that ended so."""
    return replace(worker, local_rank=rank, rank=rank, **fields)


def own(worker: WorkerResult) -> WorkerResult:
    """A worker with nothing but how it ended."""
    names = worker.__struct_fields__[len(WorkerResult.__struct_fields__) :]
    fields = {name: getattr(worker, name) for name in names}
    if isinstance(worker, Ended):
        fields["exitcode"] = worker.exitcode
    return type(worker)(**fields)


T0 = 1_700_000_000_000_000_000
SECOND = 10**9


def write_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Write events or samples as `support.timelines` makes them."""
    path.write_bytes(b"".join(b"%s\n" % line for line in lines))


class LeftRun:
    """The directory of a run."""

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

    def worker(self, rank: int, fate: Any, **fields: Any) -> WorkerResult:
        """What became of a worker of the first attempt."""
        place = f"{self.path}/attempt_0/{rank}"
        logs = {"stdout": f"{place}/stdout.log", "stderr": f"{place}/stderr.log"}
        ended_ns = T0 + (20 + rank) * SECOND
        known = {"started_ns": T0 + SECOND, "ended_ns": ended_ns, "pid": 4000 + rank}
        return placed(rank, fate, **{**logs, **known, **fields})

    def attempt(
        self,
        *workers: WorkerResult,
        number: int = 0,
        state: Any = "failed",
        root: RootCause | None = None,
    ) -> AttemptResult:
        """One of the run's attempts."""
        path = f"{self.path}/attempt_{number}"
        return AttemptResult(number, number, path, state, T0, T0 + SECOND, workers, root)

    def ends(
        self,
        state: Any,
        code: int,
        *attempts: AttemptResult,
        build: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        """Write result.json, and return what stands in it."""
        outcome = RunResult(
            *(state, code, str(self.path), "id", T0, self.ended_ns, attempts),
            plan_hash="ab12",
            host=Host("node7", cpus=16, memory=64 << 30),
            build=build,
            **more,
        )
        text = encode_result(outcome)
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
