"""Reading /proc: who descends from whom, and what a process is."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple


class ProcessFacts(NamedTuple):
    """What /proc/PID/stat says.

    Attributes:
        pid: process id.
        ppid: its parent's.
        state: one letter; ``Z`` is a zombie, ``D`` uninterruptible sleep.
        session: session id; the process id of the session's leader.
        start: start time in clock ticks since boot; with the pid it names one process for ever.
    """

    pid: int
    ppid: int
    state: str
    session: int
    start: int


def facts(pid: int) -> ProcessFacts | None:
    """What a process is, or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command's name, in parentheses, may hold anything, so count from the last one.
    fields = text[text.rfind(b")") + 2 :].split()
    return ProcessFacts(
        pid=pid,
        ppid=int(fields[1]),
        state=fields[0].decode(),
        session=int(fields[3]),
        start=int(fields[19]),
    )


def processes() -> list[ProcessFacts]:
    """All processes that can be seen, in no order."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [found for found in map(facts, pids) if found is not None]


def children(pid: int) -> list[int]:
    """Process ids of the direct children, zombies included."""
    try:
        found = []
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except FileNotFoundError:
        # Either the process is gone, or the kernel was built without CONFIG_PROC_CHILDREN.
        return [process.pid for process in processes() if process.ppid == pid]
    except OSError:
        return []
    return found


def descendants(root: int, among: Iterable[ProcessFacts] | None = None) -> list[ProcessFacts]:
    """All live processes below ``root``, parents before their children; zombies are left out."""
    by_parent: dict[int, list[ProcessFacts]] = {}
    for process in processes() if among is None else among:
        by_parent.setdefault(process.ppid, []).append(process)
    found: list[ProcessFacts] = []
    queue = [root]
    while queue:
        for process in by_parent.get(queue.pop(0), ()):
            queue.append(process.pid)
            if process.state not in "ZX":
                found.append(process)
    return found


def same_process(known: ProcessFacts) -> bool:
    """Whether the process of that number is still the one that was seen."""
    now = facts(known.pid)
    return now is not None and now.start == known.start and now.state not in "ZX"


def environment_holds(pid: int, assignment: bytes) -> bool:
    """Whether ``NAME=value`` was in the environment that the process was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return assignment in file.read().split(b"\0")
    except OSError:
        return False


def command(pid: int, width: int = 80) -> str:
    """The command line of a process, shortened to ``width``; its name if it has none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            text = file.read(4096).replace(b"\0", b" ").strip()
        if not text:
            with open(f"/proc/{pid}/comm", "rb") as file:
                text = file.read().strip()
    except OSError:
        return "?"
    line = " ".join(text.decode(errors="replace").split())
    return line if len(line) <= width else line[: width - 1] + "…"


def read_text(path: str) -> str:
    """Returns the text of a small file, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
