"""The slots of a machine: which are free, and which a job gets. Pure.

Slots are bits of an integer: GPUs in the order in which the launcher sees them, cores by number.
That makes a run of neighbours quick to find, also among hundreds of cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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


T = TypeVar("T")

_NOTHING = Lease()


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


def _gaps(mask: int) -> Iterator[tuple[int, int]]:
    """Yields the runs of neighbouring bits, lowest first: the first bit and how many."""
    while mask:
        low = mask & -mask
        # Adding the lowest bit carries through its run, and no further.
        run = mask & ~(mask + low)
        yield low.bit_length() - 1, run.bit_count()
        mask ^= run


def _choose(mask: int, count: int) -> int:
    """Returns ``count`` bits of a mask that has as many.

    The lowest ones of the tightest run that is long enough, so that long runs stay whole; the
    lowest ones of all if no run is.
    """
    tight = [(length, first) for first, length in _gaps(mask) if length >= count]
    if tight:
        return ((1 << count) - 1) << min(tight)[1]
    chosen = 0
    for _ in range(count):
        chosen |= (mask ^ chosen) & -(mask ^ chosen)
    return chosen


class _Row(Generic[T]):
    """Slots of one kind."""

    def __init__(self, bits: Mapping[T, int]) -> None:
        self._bits = bits
        self._names = {bit: name for name, bit in bits.items()}
        self.free = self.mask(bits)
        # Held by other launchers.
        self.taken = 0

    def mask(self, names: Iterable[T]) -> int:
        """Returns the bits of slots; names of none are left out."""
        mask = 0
        for name in names:
            if name in self._bits:
                mask |= 1 << self._bits[name]
        return mask

    def take(self, count: int) -> tuple[T, ...]:
        """Choose free slots; they are free no longer."""
        chosen = _choose(self.free, count) if count else 0
        self.free ^= chosen
        return tuple(
            self._names[bit] for first, n in _gaps(chosen) for bit in range(first, first + n)
        )

    def give(self, names: Iterable[T], lost: Iterable[T]) -> None:
        """Slots are held by nobody of ours any longer; some of them are held by others."""
        gone = self.mask(lost)
        self.free |= self.mask(names) & ~gone
        self.taken |= gone

    def regain(self, names: Iterable[T]) -> None:
        """Slots are no longer held by others."""
        back = self.mask(names) & self.taken
        self.taken ^= back
        self.free |= back


class Pool:
    """All slots that a sweep may use.

    Raises:
        ValueError: a slot is named twice.
    """

    def __init__(self, slots: Lease) -> None:
        self.size = Need(len(slots.gpus), len(slots.cpus))
        self._gpus = _Row({name: bit for bit, name in enumerate(slots.gpus)})
        self._cpus = _Row({core: core for core in slots.cpus})
        if self.free != self.size:
            raise ValueError(f"a slot is named twice: {slots}")

    @property
    def free(self) -> Need:
        """Slots that nobody holds, as far as is known."""
        return Need(self._gpus.free.bit_count(), self._cpus.free.bit_count())

    @property
    def ours(self) -> Need:
        """Slots that no other launcher holds, as far as is known: free, or held by jobs."""
        gpus, cpus = self._gpus.taken, self._cpus.taken
        return Need(self.size.gpus - gpus.bit_count(), self.size.cpus - cpus.bit_count())

    def take(self, need: Need) -> Lease:
        """Lease free slots, of which there must be enough."""
        return Lease(self._gpus.take(need.gpus), self._cpus.take(need.cpus))

    def give(self, lease: Lease, lost: Lease = _NOTHING) -> None:
        """A lease has ended."""
        self._gpus.give(lease.gpus, lost.gpus)
        self._cpus.give(lease.cpus, lost.cpus)

    def regain(self, slots: Lease) -> None:
        """Other launchers no longer hold slots."""
        self._gpus.regain(slots.gpus)
        self._cpus.regain(slots.cpus)
