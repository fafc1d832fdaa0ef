"""What is looked at: trees of processes, and what they have used."""

from __future__ import annotations

import os
from collections.abc import Collection

from lllaunch.linux.proc import ProcessFacts, ProcessTable
from lllaunch.watchdog.sampling import Sampler, Usage, WorkerSample, between

WORKER, CHILD, GRANDCHILD, ORPHAN, OTHER = 100, 101, 102, 103, 200


def process(
    pid: int, ppid: int, session: int, state: str = "S", cpu: float = 0.0, rss: int = 0
) -> ProcessFacts:
    return ProcessFacts(pid, ppid, state, session, 1, cpu, rss)


EVERYTHING = [
    process(1, 0, 1),
    process(WORKER, 50, WORKER, cpu=1.0, rss=100),
    process(CHILD, WORKER, WORKER, cpu=2.0, rss=200),
    process(GRANDCHILD, CHILD, GRANDCHILD),
    process(ORPHAN, 1, WORKER),
    process(OTHER, 50, OTHER, "D", cpu=9.0, rss=900),
    process(300, WORKER, WORKER, "Z"),
]


class Table(ProcessTable):
    """Processes that a test invents."""

    def __init__(self, processes: list[ProcessFacts], shares: dict[int, int] | None = None) -> None:
        self.processes = processes
        self.shares = shares or {}
        self.gone: set[int] = set()
        self.asked: list[set[int]] = []

    def look(self, again: Collection[int] = ()) -> list[ProcessFacts]:
        self.asked.append(set(again))
        return self.processes

    def is_there(self, pid: int) -> bool:
        return pid not in self.gone

    def share(self, pid: int) -> int | None:
        return self.shares.get(pid)

    def transferred(self, pid: int) -> tuple[int, int, int]:
        return pid, 10 * pid, 1


def test_a_workers_usage_is_that_of_its_tree() -> None:
    table = Table(EVERYTHING)
    sampler = Sampler(table)
    # 999 has ended meanwhile
    usage = sampler.usage({0: WORKER, 1: OTHER, 2: 999})
    assert set(usage) == {0, 1}
    assert (usage[0].cpu, usage[0].rss, usage[0].state) == (3.0, 300, "S")
    assert (usage[1].cpu, usage[1].rss, usage[1].state) == (9.0, 900, "D")
    assert usage[0].writes == len(usage[0].pids)
    assert usage[0].own_cpu.keys() == set(usage[0].pids)
    pids = WORKER + CHILD + GRANDCHILD + ORPHAN
    assert (usage[0].written, usage[0].io) == (10 * pids, 11 * pids)
    # those that have not started share their parent
    assert sampler.usage({0: WORKER, 1: WORKER}) == {0: usage[0], 1: usage[0]}
    # what is below the workers is read again, and nothing else
    assert table.asked == [{WORKER, OTHER, 999}, {WORKER, CHILD, GRANDCHILD, ORPHAN, OTHER}]


def test_shared_memory_is_counted_once_but_not_where_reading_could_hang() -> None:
    everything = [
        process(WORKER, 50, WORKER, rss=100),
        process(CHILD, WORKER, WORKER, rss=100),
        process(GRANDCHILD, CHILD, WORKER, rss=100),
        process(OTHER, 50, OTHER, "D", rss=70),
    ]
    table = Table(everything, shares={WORKER: 60, CHILD: 60, OTHER: 1})
    table.gone = {GRANDCHILD}
    sampler = Sampler(table)
    usage = sampler.usage({0: WORKER, 1: OTHER})
    assert sampler.shared_out(usage[0]) == 120
    assert sampler.shared_out(usage[1]) == 70
    # where one that is there cannot be asked the plain sum counts
    table.gone.clear()
    assert sampler.shared_out(usage[0]) == 300


# Samples


def test_a_sample_has_rates_since_the_one_before() -> None:
    used = Usage(5.0, 70, "R", (1,), written=50, io=150)
    assert between(100.0, Usage(0.0), 105.0, used, 10) == WorkerSample(1.0, 70, 20.0, 10.0, 10)
    more = Usage(6.0, 80, "R", (1,), written=50, io=1150)
    assert between(105.0, used, 115.0, more, 30) == WorkerSample(0.1, 80, 100.0, 0.0, 30)
    # what an orphan had used, which is gone, makes no rate negative
    gone = Usage(1.0, 1, "S", (1,), written=10, io=20)
    assert between(115.0, more, 125.0, gone, None) == WorkerSample(0.0, 1, 0.0, 0.0, None)


# The table itself, on a /proc that a test invents, and on the real one


def test_this_process_is_there_with_what_it_has_used() -> None:
    table, me = ProcessTable(), os.getpid()
    own = {each.pid: each for each in table.look()}[me]
    sum(range(3_000_000))
    later = {each.pid: each for each in table.look([me])}[me]
    assert later.start == own.start
    assert later.cpu > own.cpu
    assert 0 < later.own_cpu <= later.cpu
    assert 0 < (table.share(me) or 0) <= 2 * later.rss
    read, written, writes = table.transferred(me)
    assert read > 0
    assert written >= writes > 0
    nobody = 2**22 + 1
    assert [table.is_there(pid) for pid in (me, nobody)] == [True, False]
    assert table.share(nobody) is None
    assert table.transferred(nobody) == (0, 0, 0)
