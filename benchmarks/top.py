"""Measures what ``top`` costs each second: a sweep of many jobs of which few run, or as many runs.

    python benchmarks/top.py                 1,000 jobs and 1,000 runs, 8 of them live
    python benchmarks/top.py --jobs 10000    more

Nothing runs: the directories are made up, and this process holds their locks. Before each look the
live ones write a sample, and now and then a job ends and another begins, as in a sweep. Shown are
the first look, the median of the later ones, and the median of looks where nothing has changed;
then what the app with keys takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from generated import write_sweep
from launch import table
from workplace import machine

from lllaunch.console.views import view_rows
from lllaunch.locks import lock_directory
from lllaunch.results.live import LiveReader, LiveView, Watched
from lllaunch.results.store import FoundDirectory
from lllaunch.sweep.journal import ComposedRecord, EndedRecord, Result, StartedRecord, encode
from lllaunch.sweep.pool import Lease
from lllaunch.verbs.top_app import TopApp


def hold(directory: Path, name: str, kind: str) -> None:
    """Hold a directory as its launcher would."""
    lock_directory(str(directory), name, "", "run" if kind == "run" else "sweep")


def begin(directory: Path, number: int, sample: int = 0) -> None:
    """Make the directory of a job that runs."""
    (directory / "attempt_0" / "0").mkdir(parents=True)
    (directory / "plan.yaml").write_text("launch: {}\n")
    events = [
        {"type": "StartWorkers", "attempt": 0},
        {"type": "GroupStarted", "ranks": [0], "base_rank": 0},
        {"type": "Started", "local_rank": 0, "pid": 1000 + number, "attempt": 0},
    ]
    lines = (json.dumps({"time": "", "time_ns": time.time_ns(), **event}) for event in events)
    (directory / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    write_sample(directory, sample)


def write_sample(directory: Path, step: int) -> None:
    """Add what a worker does."""
    worker = {"cpu": 1.0, "rss": 1 << 30, "output": 100 * step, "gpus": ["0"]}
    worker |= {"step": step, "total": 1000, "rate": 2.5, "eta": 60, "metrics": {"loss": 0.5}}
    gpus = {"0": {"use": 0.9, "memory": 1 << 34}}
    record = {"time": time.time(), "attempt": 0, "ranks": {"0": worker}, "gpus": gpus}
    with open(directory / "samples.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


class LiveSweep:
    """A sweep whose last jobs run."""

    def __init__(self, path: Path, jobs: int, live: int) -> None:
        write_sweep(path, jobs - live)
        os.unlink(path / "sweep.json")
        journal = path / "sweep.jsonl"
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[:-1]))
        self.path, self._next = path, jobs - live
        self._live: list[int] = []
        hold(path, ".lllaunch-sweep.lock", "sweep")
        for _ in range(live):
            self._begin()

    def _begin(self) -> None:
        number, self._next = self._next, self._next + 1
        begin(self.path / str(number), number)
        self._write(ComposedRecord(number, (f"seed={number}",), str(number), "0" * 64, {}))
        self._write(StartedRecord(number, 0, Lease((str(number % 8),)), 1000 + number))
        self._live.append(number)

    def _write(self, record: ComposedRecord | StartedRecord | EndedRecord) -> None:
        with open(self.path / "sweep.jsonl", "ab") as file:
            file.write(encode(record, time.time_ns()))

    def go_on(self, turn: int) -> None:
        """Let a second pass."""
        if turn % 5 == 4:
            number = self._live.pop(0)
            self._write(EndedRecord(number, 0, Result("succeeded", 0, "", 60.0, "0.5")))
            self._begin()
        for number in self._live:
            write_sample(self.path / str(number), turn)


class LiveRuns:
    """Runs below a directory, of which the last ones go on."""

    def __init__(self, path: Path, runs: int, live: int) -> None:
        write_sweep(path / "over", runs - live)
        # what is left are runs
        os.unlink(path / "over" / "sweep.json")
        os.unlink(path / "over" / "sweep.jsonl")
        past = time.time() - 3600
        for run in (path / "over").iterdir():
            for name in ("plan.yaml", "result.json", ""):
                os.utime(run / name, (past, past))
        self.path = path
        self._live = [path / "live" / str(number) for number in range(live)]
        for number, run in enumerate(self._live):
            begin(run, number)
            hold(run, ".lllaunch.lock", "run")

    def go_on(self, turn: int) -> None:
        """Let a second pass."""
        for run in self._live:
            write_sample(run, turn)


def measured(look: Callable[[], LiveView], go_on: Callable[[int], None], looks: int) -> list[float]:
    """Return CPU seconds: the first look, medians of later ones and of those without change."""

    def once() -> float:
        began = time.process_time()
        view_rows(look(), 120, 40, "/")
        return time.process_time() - began

    changed, unchanged = [], []
    for turn in range(looks):
        go_on(turn)
        changed.append(once())
        unchanged.append(once())
    return [changed[0], statistics.median(changed[1:]), statistics.median(unchanged)]


async def in_app(what: Watched, go_on: Callable[[int], None], looks: int) -> float:
    """Return CPU seconds of a second of the app with keys."""
    app = TopApp(what, LiveReader(), 1.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(2)
        began, used = time.monotonic(), time.process_time()
        for turn in range(looks):
            go_on(turn)
            await pilot.pause(1)
        return (time.process_time() - used) / (time.monotonic() - began)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--live", type=int, default=8)
    parser.add_argument("--looks", type=int, default=30)
    options = parser.parse_args()
    rows = [["", "first look", "each second", "nothing new", "with keys, of a core"]]
    with tempfile.TemporaryDirectory() as name:
        sweep = LiveSweep(Path(name) / "sweep", options.jobs, options.live)
        runs = LiveRuns(Path(name) / "runs", options.jobs, options.live)
        for title, place, what in (
            ("sweep", sweep, FoundDirectory(str(sweep.path), "sweep", frozenset())),
            ("runs", runs, (str(runs.path),)),
        ):
            reader = LiveReader()

            def look(what: Watched = what, reader: LiveReader = reader) -> LiveView:
                return reader.view(what)

            found = measured(look, place.go_on, options.looks)
            share = asyncio.run(in_app(what, place.go_on, 10))
            texts = [f"{1000 * seconds:.1f} ms" for seconds in found]
            name_ = f"{title}: {options.jobs:,}, {options.live} live"
            rows.append([name_, *texts, f"{100 * share:.1f} %"])
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    print()
    print(table(rows))


if __name__ == "__main__":
    main()
