"""What is looked at: trees of processes, through the seam where psutil stands."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from lllaunch.linux.proc import ProcessFacts
from lllaunch.watchdog.sampling import PsutilReader, Reading, Sampler, size_of, tree

WORKER, CHILD, GRANDCHILD, ORPHAN, OTHER = 100, 101, 102, 103, 200


def process(pid: int, ppid: int, session: int, state: str = "S") -> ProcessFacts:
    return ProcessFacts(pid, ppid, state, session, start=1)


EVERYTHING = [
    process(1, 0, 1),
    process(WORKER, 50, WORKER),
    process(CHILD, WORKER, WORKER),
    process(GRANDCHILD, CHILD, GRANDCHILD),
    process(ORPHAN, 1, WORKER),
    process(OTHER, 50, OTHER, "D"),
    process(300, WORKER, WORKER, "Z"),
]


class Reader(PsutilReader):
    """Processes that a test invents."""

    def __init__(self, readings: dict[int, Reading], shares: dict[int, int]) -> None:
        self.readings = readings
        self.shares = shares
        self.kept: set[int] = set()

    def read(self, pid: int) -> Reading | None:
        return self.readings.get(pid)

    def share(self, pid: int) -> int | None:
        return self.shares.get(pid)

    def written(self, pid: int) -> int:
        return 10 * pid

    def forget(self, others_than: Iterable[int]) -> None:
        self.kept = set(others_than)


def test_a_tree_holds_what_was_orphaned_and_what_left_the_session() -> None:
    assert tree(WORKER, EVERYTHING) == (WORKER, CHILD, GRANDCHILD, ORPHAN)
    assert tree(OTHER, EVERYTHING) == (OTHER,)


def test_a_workers_usage_is_that_of_its_tree() -> None:
    reader = Reader(
        {
            WORKER: Reading(1.0, 100, 0.0),
            CHILD: Reading(2.0, 200, 0.0),
            OTHER: Reading(9.0, 900, 0.0),
        },
        {},
    )
    sampler = Sampler(reader, lambda: EVERYTHING)
    # 999 has ended meanwhile, as have the processes that cannot be read
    usage = sampler.usage({0: WORKER, 1: OTHER, 2: 999})
    assert set(usage) == {0, 1}
    assert (usage[0].cpu, usage[0].rss, usage[0].state) == (3.0, 300, "S")
    assert (usage[1].cpu, usage[1].rss, usage[1].state) == (9.0, 900, "D")
    assert reader.kept == {WORKER, CHILD, GRANDCHILD, ORPHAN, OTHER}


def test_shared_memory_is_counted_once_but_not_where_reading_could_hang() -> None:
    reader = Reader(
        {
            WORKER: Reading(0.0, 100, 0.0),
            CHILD: Reading(0.0, 100, 0.0),
            OTHER: Reading(0.0, 70, 0.0),
        },
        # the others are gone by then
        {WORKER: 60, CHILD: 60},
    )
    sampler = Sampler(reader, lambda: EVERYTHING)
    usage = sampler.usage({0: WORKER, 1: OTHER})
    assert sampler.shared_out(usage[0]) == 120
    assert sampler.shared_out(usage[1]) == 70


def test_where_a_process_cannot_be_asked_the_plain_sum_counts() -> None:
    reader = Reader({WORKER: Reading(0.0, 100, 0.0), CHILD: Reading(0.0, 100, 0.0)}, {WORKER: 60})
    sampler = Sampler(reader, lambda: EVERYTHING)
    assert sampler.shared_out(sampler.usage({0: WORKER})[0]) == 200


def test_what_is_written_counts_where_it_is_asked_for() -> None:
    sampler = Sampler(Reader({WORKER: Reading(0.0, 1, 0.0)}, {}), lambda: EVERYTHING)
    usage = sampler.usage({0: WORKER, 1: OTHER}, writing={1})
    assert (usage[0].written, usage[1].written) == (0, 10 * OTHER)


def test_psutil_reads_this_process_and_not_one_that_is_gone() -> None:
    reader = PsutilReader()
    first = reader.read(os.getpid())
    assert first is not None
    assert first.rss > 0
    assert 0 < (reader.share(os.getpid()) or 0) <= first.rss
    assert reader.written(os.getpid()) > 0
    second = reader.read(os.getpid())
    assert second is not None
    assert second.cpu >= first.cpu
    assert second.start == first.start
    assert reader.read(2**22 + 1) is None
    assert reader.share(2**22 + 1) is None
    assert reader.written(2**22 + 1) == 0
    reader.forget([])
    assert reader.read(os.getpid()) is not None


def test_files_that_are_not_there_are_empty(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"12")
    assert size_of([str(tmp_path / name) for name in ("a", "b", "c")]) == 7
