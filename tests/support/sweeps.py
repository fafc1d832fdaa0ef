"""Performing sweeps whose jobs are functions of a test."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

import lllaunch.sweep.schedule as v
from lllaunch.signal_source import QUIET, SignalSource
from lllaunch.spawner.client import Spawner
from lllaunch.sweep.history import SweepHistory
from lllaunch.sweep.journal import Header, Journal, read_journal
from lllaunch.sweep.local import LocalExecutor
from lllaunch.sweep.loop import Onlooker, Sweep
from lllaunch.sweep.machine import Leases, SweepMachine, find_machine
from lllaunch.sweep.pool import Lease, Need
from lllaunch.sweep.processes import SpawnerPool, Work
from lllaunch.sweep.protocol import Answer, Prepared
from lllaunch.sweep.schedule import Retries, SweepPolicy

# of this process only: tests may run side by side
NAMES = [f"{name}-{os.getpid()}" for name in "abcd"]
ONE = Prepared(0, Need(1))
NEVER_AGAIN = Retries(hang=0, signal=0)

Execute = Callable[[Prepared, Lease, "Spawner | None"], int]


def machine(gpus: int = 2) -> SweepMachine:
    return find_machine({"LLLAUNCH_PRETEND_GPUS": ",".join(NAMES[:gpus])})


def each(job: Prepared = ONE) -> Callable[[int], Answer]:
    return lambda number: structs.replace(job, number=number, payload=number)


class Played:
    """A sweep in a directory, and all that was observed of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.machine = machine()
        self.leases = Leases(self.machine)
        self.warm = SpawnerPool(os.environ)
        self.journal = Journal.create(str(place / "sweep.jsonl"), Header("id", "0"))
        self.seen: list[Any] = []
        self.react: Callable[[Any], None] = lambda _: None

    def observe(self, what: object) -> None:
        self.seen.append(what)
        self.react(what)

    def sweep(
        self,
        numbers: int | Sequence[int],
        prepare: Callable[[int], Answer],
        execute: Execute,
        policy: SweepPolicy | None = None,
        **options: Any,
    ) -> v.FinishSweep:
        numbers = range(numbers) if isinstance(numbers, int) else numbers
        policy = policy or SweepPolicy(retries=NEVER_AGAIN)
        warm, captures = options.pop("warm", self.warm), options.pop("captures", False)
        work = Work(prepare, execute, self.machine, warm, captures=captures)
        executor = LocalExecutor(work, self.leases, **options)
        with SignalSource(quiet=QUIET, stops=True) as signals:
            onlooker = Onlooker(self.observe)
            return Sweep(executor, policy, self.journal, onlooker, numbers, signals).run()

    def close(self) -> None:
        assert not self.leases._locks
        self.leases.close()
        self.warm.close()
        self.journal.close()

    def of(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.seen if isinstance(one, kind)]

    def ends(self) -> dict[int, tuple[str, int | None]]:
        return {one.number: (one.state.value, one.exit_code) for one in self.of(v.Settle)}

    def counts(self) -> dict[str, int]:
        """How many jobs ended in which way."""
        return Counter(state for state, _ in self.ends().values())

    def history(self) -> SweepHistory:
        return SweepHistory(read_journal(self.journal.path))

    def states(self) -> dict[int, str]:
        return {number: job.state for number, job in self.history().jobs.items()}

    def mark(self, name: str) -> None:
        (self.place / name).touch()

    def marked(self, name: str) -> bool:
        return (self.place / name).exists()
