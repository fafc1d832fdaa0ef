"""What this launcher may lease: GPUs and cores, as many as it sees and was allowed; and the locks.

GPUs are counted by NVML, through the ``CUDA_VISIBLE_DEVICES`` of the launcher. Cores are those of
its affinity; where a cgroup gives it less time than that, there are only so many CPU slots.
``LLLAUNCH_PRETEND_GPUS=a,b,c,d`` puts made-up GPUs in the place of those that NVML finds (an empty
value: none), so that a sweep can be tried where there are none.

**Locks between launchers.** A slot's lock is a listening unix socket with an abstract name
(unix(7)), ``@lllaunch/gpu/UUID`` or ``@lllaunch/cpu/USER/CORE``. The kernel gives the name to one
socket at a time, and takes it back when the last process ends that has it open: a job is sent the
locks of its lease (SCM_RIGHTS), and its spawner keeps them until all workers have ended. A
connection to the socket ends when the name is free, so one waits without asking again and again.
docs/design/leases.md says why it is so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from lllaunch.errors import ConfigError, Diagnostic, LaunchError, Unfit
from lllaunch.linux.cgroup import Cores, find_cores
from lllaunch.linux.gpus import PRETEND, Gpu, GpusUnknown, Nvml, list_gpus
from lllaunch.sweep.pool import Lease
from lllaunch.text import shorten, spans
from lllaunch.words import counted

Limit: TypeAlias = int | Sequence[int | str] | None
"""How many slots of a kind, or which ones; None for all."""
T = TypeVar("T")

_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", re.ASCII)
_MOST_SHOWN = 80
VISIBLE = "CUDA_VISIBLE_DEVICES"


def choose_gpus(limit: Limit, visible: Sequence[Gpu], why_none: str) -> tuple[Gpu, ...]:
    """Takes the first GPUs, or those that are listed, in the order of the list.

    ``limit``: a list is of names or UUIDs (the beginning will do, as long as only one has it).
    ``why_none``: if there is nothing: why, a predicate.

    Raises:
        Unfit: not all of them are there.
    """
    if limit is None:
        return tuple(visible)
    if limit and not visible:
        message = f"asks for GPUs, but {why_none}"
        raise Unfit(message=message, hint="leave it out", code="gpus")
    if isinstance(limit, int):
        return tuple(visible[: _at_most(limit, len(visible), "GPUs that are visible")])
    chosen: list[Gpu] = []
    for name in (str(entry).strip() for entry in limit):
        found = [gpu for gpu in visible if gpu.name == name]
        if not found and name.startswith(("GPU-", "MIG-")):
            found = [gpu for gpu in visible if gpu.uuid.startswith(name)]
        if len(found) != 1:
            names = ", ".join(gpu.name for gpu in visible)
            number = "several of them" if found else "none of them"
            expected = f"names of visible GPUs ({names})"
            raise Unfit(expected, f"{_shown(name)} is {number}", code="gpus")
        chosen += found
    return tuple(dict.fromkeys(chosen))


def choose_cpus(limit: Limit, cores: Cores) -> tuple[int, ...]:
    """Takes the first cores, or those that are listed.

    ``limit``: a list is of cores and ranges of them (``"0-3"``); None is as many as the quota gives
    time for, rounded down, at least one.

    Raises:
        Unfit: not all of them may be used.
    """
    if limit is None:
        quota = len(cores.numbers) if cores.quota is None else int(cores.quota)
        return cores.numbers[: max(1, quota)]
    if isinstance(limit, int):
        hint = "for more jobs side by side: launch.resources.cpus_per_proc=0 and max_parallel"
        return cores.numbers[: _at_most(limit, len(cores.numbers), "cores that may be used", hint)]
    chosen: set[int] = set()
    for entry in limit:
        found = _RANGE.fullmatch(str(entry))
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if low > high:
            expected = "cores and ranges of them (0, 3, '0-3')"
            raise Unfit(expected, f"{_shown(entry)} is neither", code="cpus")
        # Not expanded before it is known to be there: a range may be very long.
        within = [core for core in cores.numbers if low <= core <= high]
        if len(within) != high - low + 1:
            which = str(low) if low == high else f"{low}-{high}"
            expected = f"cores that may be used ({spans(cores.numbers)})"
            raise Unfit(expected, f"{which} may not be used", code="cpus")
        chosen.update(within)
    return tuple(sorted(chosen))


def _shown(value: object) -> str:
    return shorten(repr(value), _MOST_SHOWN)


def _at_most(count: int, there: int, what: str, hint: str = "") -> int:
    if count > there:
        raise Unfit(f"at most {there}, the number of {what}", hint, code="number")
    return count


class SweepMachine(NamedTuple):
    """What a sweep's launcher may lease."""

    gpus: tuple[Gpu, ...] = ()
    cpus: tuple[int, ...] = ()
    # whether jobs are told which GPUs are theirs. Not where no GPU was found: there may be some
    # that NVML does not know
    masks_gpus: bool = False

    @property
    def everything(self) -> Lease:
        """All there is to lease."""
        return Lease(tuple(gpu.name for gpu in self.gpus), self.cpus)

    def environment(self, lease: Lease) -> dict[str, str]:
        """Returns the variables that show a job its GPUs and no others."""
        return {VISIBLE: ",".join(lease.gpus)} if self.masks_gpus else {}

    def __str__(self) -> str:
        gpus = [counted(len(self.gpus), "GPU")] if self.gpus else []
        return ", ".join([*gpus, counted(len(self.cpus), "core")])


def find_machine(
    environ: Mapping[str, str],
    gpus: Limit = None,
    cpus: Limit = None,
    *,
    nvml: Nvml | None = None,
    cores: Cores | None = None,
) -> SweepMachine:
    """Looks what there is and takes what the limits allow.

    ``gpus``: a list is of names as CUDA_VISIBLE_DEVICES has them or of UUIDs. ``cpus``: a list is
    of cores and ranges of them (``"0-3"``); None for as many as the cgroups of the launcher give it
    time for. A number may go beyond that.

    Raises:
        ConfigError: a limit cannot be met, or the names of pretended GPUs are wrong; all that is
            wrong is told.
    """
    problems: list[Diagnostic] = []

    def attempt(name: str, limit: Limit, choose: Callable[[], tuple[T, ...]]) -> tuple[T, ...]:
        try:
            return choose()
        except Unfit as unfit:
            value = limit if isinstance(limit, int) else list(limit or ())
            problems.append(unfit.at(f"hydra.launcher.{name}", _shown(value)))
            return ()

    none_wanted = gpus is not None and not gpus
    visible: tuple[Gpu, ...] = ()
    given, pretended = environ.get(VISIBLE), environ.get(PRETEND)
    why_none = "found no GPU" + ("" if given is None else f" with {VISIBLE}={_shown(given)}")
    try:
        if not none_wanted:
            visible = list_gpus(given, nvml, pretended)
    except GpusUnknown as unknown:
        why_none = str(unknown)
    except ValueError as error:
        problem = Diagnostic("gpus", PRETEND, _shown(pretended), "", expected=str(error))
        raise ConfigError((problem,)) from None
    available = find_cores() if cores is None else cores
    chosen_gpus = attempt("gpus", gpus, lambda: choose_gpus(gpus, visible, why_none))
    chosen_cpus = attempt("cpus", cpus, lambda: choose_cpus(cpus, available))
    if problems:
        raise ConfigError(tuple(problems))
    return SweepMachine(chosen_gpus, chosen_cpus, bool(visible) or none_wanted)


# Locks between launchers

# How many launchers may wait for one slot; the system allows 4096 usually (net.core.somaxconn).
_BACKLOG = 4096
# Seconds after which a slot is tried again whose holder cannot be connected to.
RETRY_AFTER = 1.0


class LeaseFailed(LaunchError):
    """Whether a slot is free cannot be found out."""


class Leases:
    """The slots that this launcher holds. Not shared between threads.

    ``lock_cpus``: whether cores are locked between the launchers of one user, too. Needed where
    jobs are pinned to them; else the kernel shares the cores out, and two sweeps side by side are
    slow, not wrong.
    """

    def __init__(self, machine: SweepMachine, lock_cpus: bool = False) -> None:
        # by each slot alone, as a lease
        self._addresses = {
            Lease((gpu.name,)): f"\0lllaunch/gpu/{gpu.uuid}".encode() for gpu in machine.gpus
        }
        for core in machine.cpus if lock_cpus else ():
            address = f"\0lllaunch/cpu/{os.getuid()}/{core}".encode()
            self._addresses[Lease((), (core,))] = address
        self._lock_cpus = lock_cpus
        self._locks: dict[Lease, socket.socket] = {}

    def acquire(self, lease: Lease) -> Lease | None:
        """Takes all slots of a lease, or none.

        Returns None if they were taken; else the first slot that somebody else was found to hold.

        Raises:
            LeaseFailed: the system refused for another reason.
        """
        taken: dict[Lease, socket.socket] = {}
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

    def watch(self, slot: Lease) -> socket.socket | None:
        """Return what is readable when a slot may be free that another launcher holds.

        It may be readable although somebody holds the slot, never the other way round. None: the
        slot is to be tried again after a while.

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
                return None
        # Nobody accepts: the kernel keeps the connection until the listening socket is gone.
        return connection

    def close(self) -> None:
        """Gives all slots back; idempotent."""
        for lock in self._locks.values():
            lock.close()
        self._locks = {}

    def _slots(self, lease: Lease) -> list[Lease]:
        slots = [Lease((name,)) for name in lease.gpus]
        if self._lock_cpus:
            slots += [Lease((), (core,)) for core in lease.cpus]
        # In the same order in every launcher, whatever CUDA_VISIBLE_DEVICES calls them there.
        return sorted(slots, key=self._addresses.__getitem__)


@contextlib.contextmanager
def _leasing(slot: Lease) -> Iterator[None]:
    """Let an `OSError` of the block be a `LeaseFailed`."""
    try:
        yield
    except OSError as error:
        name = f"GPU {slot.gpus[0]}" if slot.gpus else f"core {slot.cpus[0]}"
        raise LeaseFailed(f"{name} cannot be leased: {error.strerror or error}") from error
