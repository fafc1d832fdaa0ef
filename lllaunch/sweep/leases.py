"""Locks between launchers on one machine: who leases a GPU, or a core, holds a socket.

A slot's lock is a listening unix socket with an abstract name (unix(7)), ``@lllaunch/gpu/UUID`` or
``@lllaunch/cpu/USER/CORE``. The kernel gives a name to one socket at a time, whoever asks, and
takes it back when the last process that has the socket open ends, however it ends: no file is left
over, nothing needs rights, nothing grows stale. A connection to the socket ends when the name is
free: so one waits for a slot without asking again and again.

**What forked processes hold.** A job is a fork of the launcher. It closes all locks that it was
forked with, and is sent those of its own lease when it may begin (SCM_RIGHTS); it passes them on to
its spawner, which keeps them until all workers have ended. So if the launcher is killed, a GPU
becomes free when nothing uses it any more. Programs that are executed hold nothing: the sockets are
close-on-exec.

**No deadlock.** A lease is taken whole or not at all, always in the same order, and the first slot
that somebody else has ends the attempt: of several launchers that want each other's slots, the one
that got furthest goes on. Nobody queues, so a job that needs many GPUs may wait long beside a
launcher whose jobs need one.

Names hold within a network namespace: containers with networks of their own do not see each other's
locks. docs/design/leases.md says why it is so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from lllaunch.errors import LaunchError
from lllaunch.linux.process import Alarm
from lllaunch.sweep.machine import SweepMachine
from lllaunch.sweep.pool import Lease

# How many launchers may wait for one slot; the system allows 4096 usually (net.core.somaxconn).
_BACKLOG = 4096
# Seconds after which a slot is tried again whose holder cannot be connected to.
RETRY_AFTER = 1.0


@dataclass(eq=False)
class LeaseFailed(LaunchError):
    """Whether a slot is free cannot be found out."""

    slot: str
    reason: str

    def __str__(self) -> str:
        return f"{self.slot} cannot be leased: {self.reason}"


class Slot(NamedTuple):
    """One thing that only one launcher leases at a time."""

    kind: Literal["gpu", "cpu"]
    name: str

    @property
    def lease(self) -> Lease:
        """This slot alone, as a lease."""
        return Lease((self.name,)) if self.kind == "gpu" else Lease((), (int(self.name),))

    def __str__(self) -> str:
        return f"GPU {self.name}" if self.kind == "gpu" else f"core {self.name}"


SlotWatch: TypeAlias = socket.socket | Alarm
"""Waits until a slot may be free: its descriptor is readable then; try `Leases.acquire`.

It may be readable although somebody holds the slot, never the other way round. Close it then.
"""


class Leases:
    """The slots that this launcher holds. Not shared between threads.

    ``lock_cpus``: whether cores are locked between the launchers of one user, too. Needed where
    jobs are pinned to them; else the kernel shares the cores out, and two sweeps side by side are
    slow, not wrong.
    """

    def __init__(self, machine: SweepMachine, lock_cpus: bool = False) -> None:
        self._addresses = {Slot("gpu", gpu.name): _address("gpu", gpu.uuid) for gpu in machine.gpus}
        if lock_cpus:
            user = os.getuid()
            for core in machine.cpus:
                self._addresses[Slot("cpu", str(core))] = _address("cpu", f"{user}/{core}")
        self._lock_cpus = lock_cpus
        self._locks: dict[Slot, socket.socket] = {}

    def acquire(self, lease: Lease) -> Slot | None:
        """Takes all slots of a lease, or none.

        Returns None if they were taken; else the first that somebody else was found to hold.

        Raises:
            LeaseFailed: the system refused for another reason.
        """
        taken: dict[Slot, socket.socket] = {}
        with contextlib.ExitStack() as undo:
            for slot in self._slots(lease):
                with _leasing(slot):
                    lock = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                    try:
                        lock.bind(self._addresses[slot])
                    except OSError as error:
                        if error.errno == errno.EADDRINUSE:
                            return slot
                        raise
                    lock.listen(_BACKLOG)
                taken[slot] = lock
            undo.pop_all()
        self._locks.update(taken)
        return None

    def release(self, lease: Lease) -> None:
        """Gives the slots of a lease back, at once unless a forked job keeps them; idempotent."""
        for slot in self._slots(lease):
            lock = self._locks.pop(slot, None)
            if lock is not None:
                lock.close()

    def descriptors(self, lease: Lease) -> tuple[int, ...]:
        """The locks of a lease that is held, to be sent to a process that was forked before."""
        return tuple(self._locks[slot].fileno() for slot in self._slots(lease))

    def watch(self, slot: Slot) -> SlotWatch:
        """Waits for a slot that another launcher holds.

        Raises:
            LeaseFailed: no descriptor can be had.
        """
        with _leasing(slot):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.setblocking(False)
                connection.connect(self._addresses[slot])
            except OSError:
                # The holder has too many who wait already, or does not listen (yet), or we may not
                # connect.
                connection.close()
                alarm = Alarm()
                alarm.set(RETRY_AFTER)
                return alarm
        # Nobody accepts: the kernel keeps the connection until the listening socket is gone.
        return connection

    def close(self) -> None:
        """Gives all slots back; idempotent."""
        for lock in self._locks.values():
            lock.close()
        self._locks = {}

    def _slots(self, lease: Lease) -> list[Slot]:
        slots = [Slot("gpu", name) for name in lease.gpus]
        if self._lock_cpus:
            slots += [Slot("cpu", str(core)) for core in lease.cpus]
        # In the same order in every launcher, whatever CUDA_VISIBLE_DEVICES calls them there.
        return sorted(slots, key=self._addresses.__getitem__)


@contextlib.contextmanager
def _leasing(slot: Slot) -> Iterator[None]:
    """Let an `OSError` of the block be a `LeaseFailed`."""
    try:
        yield
    except OSError as error:
        raise LeaseFailed(str(slot), error.strerror or str(error)) from error


def _address(kind: str, name: str) -> bytes:
    return f"\0lllaunch/{kind}/{name}".encode()
