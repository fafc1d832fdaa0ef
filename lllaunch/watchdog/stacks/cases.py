"""What has been learnt of one process and of one rank while stacks are taken."""

from __future__ import annotations

from lllaunch.linux.proc import ProcessFacts
from lllaunch.watchdog.stacks import text
from lllaunch.watchdog.stacks.dumps import Dump
from lllaunch.watchdog.stacks.facts import Frame, RankStack, Source
from lllaunch.watchdog.stacks.kernel import Look, look
from lllaunch.watchdog.stacks.parse import (
    faulthandler_frames,
    faulthandler_threads,
    pyspy_frames,
    users_part,
)
from lllaunch.watchdog.stacks.pyspy import Spied

# Processes of one rank that are looked at; the rest is counted.
MAX_PROCESSES = 32


class ProcessCase:
    """One process.

    Attributes:
        facts: what it is.
        seen: what the kernel tells of it; None before `examine`, or when it is gone.
        stacks: what faulthandler or py-spy wrote of it.
        source: which of them.
    """

    def __init__(self, facts: ProcessFacts) -> None:
        self.facts = facts
        self.seen: Look | None = None
        self.stacks = ""
        self.source: Source = ""
        self._notes: list[str] = []

    def examine(self) -> None:
        """Ask the kernel."""
        self.seen = look(self.facts)

    def answered(self, dump: Dump) -> None:
        """It was asked for its stacks, or could not be."""
        if dump.text:
            self.stacks, self.source = dump.text, "faulthandler"
            self._notes.append("Python stacks, written by itself (faulthandler):")
        elif self.python:
            self._notes.append(f"Python stacks, written by itself: none, {dump.why_not}")

    def spied(self, spied: Spied) -> None:
        """py-spy was asked about it."""
        if spied.text:
            self.stacks, self.source = spied.text, "py-spy"
            self._notes.append("Python stacks, read by py-spy:")
        else:
            self._notes.append(f"Python stacks, read by py-spy: none, {spied.why_not}")

    @property
    def python(self) -> bool:
        """Whether it runs Python."""
        return self.seen is not None and self.seen.python

    @property
    def wants_spy(self) -> bool:
        """Whether only py-spy may tell its stacks, and can be let near it."""
        return self.python and not self.stacks and self.seen is not None and self.seen.state != "D"

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Frames of its main thread."""
        if self.source == "faulthandler":
            return faulthandler_frames(self.stacks)
        return pyspy_frames(self.stacks) if self.source == "py-spy" else ()

    @property
    def innermost(self) -> list[tuple[str, Frame]]:
        """The call that each of its threads is in, by name, the main thread first."""
        if self.source != "faulthandler":
            return []
        threads, cut = faulthandler_threads(self.stacks)
        names = ["MainThread" if index == 0 and not cut else "" for index in range(len(threads))]
        return [
            (name or thread.name or "another thread", users_part(thread.frames)[0])
            for name, thread in zip(names, reversed(threads), strict=True)
            if thread.frames
        ]

    def section(self, role: str) -> str:
        """Its part of stacks.txt."""
        if self.seen is None:
            return f"\n{role}: process {self.facts.pid}: it was gone, or no time was left for it\n"
        return text.section(self.seen, role, self.stacks, tuple(self._notes))


class RankCase:
    """One rank: its worker and the processes below it.

    Args:
        rank: local rank.
        path: its stacks.txt, empty for none.
        processes: the worker, and all below it.
    """

    def __init__(self, rank: int, path: str, processes: tuple[ProcessFacts, ...]) -> None:
        self.rank = rank
        self.path = path
        self.worker = ProcessCase(processes[0])
        self.below = [ProcessCase(facts) for facts in processes[1:MAX_PROCESSES]]
        self.unseen = len(processes) - 1 - len(self.below)

    def worker_text(self) -> str:
        """The worker's part of stacks.txt."""
        return self.worker.section(f"worker of local rank {self.rank}")

    def below_text(self) -> str:
        """The part about the processes below the worker; may be empty."""
        parts = [process.section("below it") for process in self.below]
        if self.unseen:
            parts.append(f"\nand {self.unseen} more processes below it\n")
        return "".join(parts)

    def stack(self, path: str) -> RankStack:
        """What is known by now.

        A worker that is no Python program (a shell script) stands where the first process below it
        stands that is one.

        Args:
            path: its stacks.txt as far as it is written.
        """
        chosen = self.worker
        if chosen.seen is not None and not chosen.python:
            chosen = next((process for process in self.below if process.frames), chosen)
        seen, frames = self.worker.seen, chosen.frames
        if seen is None:
            return RankStack(self.rank, path)
        return RankStack(
            self.rank, path, frames, seen.state, seen.wchan, chosen.source if frames else "kernel"
        )
