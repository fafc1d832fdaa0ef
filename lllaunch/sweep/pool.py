"""The slots of a machine: which are free, and which a job gets. Pure.

Neighbours are GPUs in the order in which the launcher sees them, and cores by number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Generic, TypeVar

from lllaunch.documents import Record


class Need(Record, frozen=True):
    """What a job asks for, all of its workers together."""

    gpus: int = 0
    cpus: int = 0


class Lease(Record, frozen=True):
    """What a job holds while it runs."""

    # the GPUs, as CUDA_VISIBLE_DEVICES names them in the launcher's environment
    gpus: tuple[str, ...] = ()
    cpus: tuple[int, ...] = ()


def need_of(
    nproc: int, per_proc: tuple[int | None, int | None], gpus_there: bool, cpus_there: int
) -> Need:
    """Returns what a job needs.

    ``per_proc``: number of GPUs and of CPU slots for each worker, such as
    `lllaunch.spec.Resources`. None for GPUs: one where there are GPUs; None for CPU slots: one for
    a worker that needs no GPU, and all there are for more workers than that: like a run of its own,
    the job then shares the cores among its workers.
    """
    gpus, cpus = per_proc
    if gpus is None:
        gpus = int(gpus_there)
    if cpus is None:
        return Need(nproc * gpus, 0 if gpus else min(nproc, cpus_there))
    return Need(nproc * gpus, nproc * cpus)


def never_fits(need: Need, size: Need) -> str:
    """Returns why a job can never run, as the predicate of a sentence; empty if it can.

    ``size``: all slots that the sweep may use, whoever holds them now.
    """
    lacking: list[str] = []
    for wanted, there, word in (
        (need.gpus, size.gpus, "GPU"),
        (need.cpus, size.cpus, "CPU slot"),
    ):
        if wanted > there:
            of_which = "of which it has" if lacking else "of which the sweep has"
            plural = "" if wanted == 1 else "s"
            lacking.append(f"{wanted} {word}{plural}, {of_which} {there}")
    if not lacking:
        return ""
    hint = "; launch.resources.cpus_per_proc=0 asks for none" if need.cpus > size.cpus else ""
    return f"needs {', and '.join(lacking)}{hint}"


def fits(need: Need, room: Need) -> bool:
    """Whether there is room for a job."""
    return need.gpus <= room.gpus and need.cpus <= room.cpus


def without(room: Need, kept: Need) -> Need:
    """Returns the room that is left when some is kept; never less than none."""
    return Need(max(0, room.gpus - kept.gpus), max(0, room.cpus - kept.cpus))


T = TypeVar("T")


class _Row(Generic[T]):
    """Slots of one kind, each with its place in the row."""

    def __init__(self, places: Mapping[T, int]) -> None:
        self._places = places
        self.free = set(places)
        self.taken: set[T] = set()  # by other launchers

    def take(self, count: int) -> tuple[T, ...]:
        """Choose free slots, the first neighbours if there are as many; they are free no longer."""
        free = sorted(self.free, key=self._places.__getitem__)
        places = [self._places[slot] for slot in free]
        runs = (
            first
            for first in range(len(free) - count + 1)
            if count and places[first + count - 1] == places[first] + count - 1
        )
        first = next(runs, 0)
        chosen = tuple(free[first : first + count])
        self.free.difference_update(chosen)
        return chosen

    def give(self, slots: Collection[T], lost: Collection[T]) -> None:
        """Slots are held by nobody of ours any longer; some of them are held by others."""
        self.free |= {*slots} - {*lost}
        self.taken |= {*lost}

    def regain(self, slots: Collection[T]) -> None:
        """Slots are no longer held by others."""
        back = self.taken & {*slots}
        self.taken -= back
        self.free |= back


class Pool:
    """All slots that a sweep may use."""

    def __init__(self, slots: Lease) -> None:
        self.size = Need(len(slots.gpus), len(slots.cpus))
        self._gpus = _Row({name: place for place, name in enumerate(slots.gpus)})
        self._cpus = _Row({core: core for core in slots.cpus})

    @property
    def free(self) -> Need:
        """Slots that nobody holds, as far as is known."""
        return Need(len(self._gpus.free), len(self._cpus.free))

    @property
    def ours(self) -> Need:
        """Slots that no other launcher holds, as far as is known: free, or held by jobs."""
        taken = Need(len(self._gpus.taken), len(self._cpus.taken))
        return without(self.size, taken)

    def take(self, need: Need) -> Lease:
        """Lease free slots, of which there must be enough."""
        return Lease(self._gpus.take(need.gpus), self._cpus.take(need.cpus))

    def give(self, lease: Lease, lost: Lease = Lease()) -> None:  # noqa: B008 - frozen
        """A lease has ended."""
        self._gpus.give(lease.gpus, lost.gpus)
        self._cpus.give(lease.cpus, lost.cpus)

    def regain(self, slots: Lease) -> None:
        """Other launchers no longer hold slots."""
        self._gpus.regain(slots.gpus)
        self._cpus.regain(slots.cpus)
