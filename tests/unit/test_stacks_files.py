"""What is written of processes, when they may be asked, and the lines that they are at."""

from __future__ import annotations

import os
from pathlib import Path

from lllaunch.linux.proc import ProcessFacts
from lllaunch.spawner.evidence import SIGNUM
from lllaunch.watchdog.collector import Process, StackCollector, Written, survey
from lllaunch.watchdog.evidence import Frame, RankStack
from lllaunch.watchdog.frames import quoted, with_code

OURS, OTHERS = 1 << (SIGNUM - 1), 1 << (SIGNUM - 2) | 1 << SIGNUM


def test_a_section_tells_what_is_known_and_what_is_not() -> None:
    process = Process(facts(os.getpid(), 6, 7))
    assert process.section("worker").endswith("it was gone, or no time was left for it\n")
    process.examine()
    assert process.python
    process.tell("faulthandler", "", "it is stopped")
    process.tell("py-spy", "Current thread\n  File\n")
    text = process.section("worker")
    assert text.startswith(f"\nworker: process {os.getpid()} (parent 6): ")
    assert "\n  State: R (running)\n" in text
    assert text.endswith(
        "  Python stacks, written by itself: none, it is stopped\n"
        "  Python stacks, read by py-spy:\n"
        "\nCurrent thread\n  File\n"
    )


def test_a_full_disk_is_one_problem_of_its_file_alone(tmp_path: Path) -> None:
    collector = StackCollector({}, Written("why\n", {}))
    good = tmp_path / "stacks.txt"
    assert not collector._append("/dev/full", "text")
    assert not collector._append(str(tmp_path / "no" / "directory"), "text")
    assert collector._append(str(good), "one\n")
    assert collector._append(str(good), "\udcff two\n")
    assert not collector._append("", "text")
    assert collector.problem == "/dev/full: No space left on device"
    assert good.read_text() == "one\n? two\n"
    collector.close()


def facts(pid: int, ppid: int, session: int) -> ProcessFacts:
    return ProcessFacts(pid, ppid, "S", session, 1)


def test_only_processes_below_us_that_lead_a_session_are_workers() -> None:
    me = os.getpid()
    everything = [
        facts(me, 1, me),
        facts(10, me, 10),
        facts(11, 10, 10),
        # Its parent died, and its session tells whose it was.
        facts(12, 1, 10),
        facts(20, me, me),
        facts(30, 1, 30),
    ]
    workers = {0: 10, 1: 20, 2: 30, 3: 40, 4: me}
    (case,) = survey(workers, lambda: everything)
    assert (case.rank, case.worker.facts.pid) == (0, 10)
    assert [process.facts.pid for process in case.below] == [11, 12]


def test_lines_of_code_are_read_only_from_what_the_worker_runs(tmp_path: Path) -> None:
    script, later = tmp_path / "a.py", tmp_path / "later.py"
    script.write_text("first\n  second = 2  \n")
    later.write_text("changed\n")
    os.utime(later, (2000, 2000))
    os.utime(script, (900, 900))
    os.mkfifo(tmp_path / "fifo.py")
    os.utime(tmp_path / "fifo.py", (900, 900))

    def line(path: str, number: int) -> str:
        return quoted(Frame(path, number, "f"), 1000.0).code

    assert line(str(script), 2) == "second = 2"
    assert line(str(script), 1) == "first"
    assert [line(str(script), number) for number in (0, -1, 3)] == [""] * 3
    for path in (str(later), str(tmp_path / "fifo.py"), "a.py", "<string>", "/no.py", "/\0.py"):
        assert line(path, 1) == ""
    (stack,) = with_code([RankStack(0, frames=(Frame(str(script), 2, "f"),))], 1000.0)
    assert stack.frames == (Frame(str(script), 2, "f", "second = 2"),)
