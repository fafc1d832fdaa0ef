"""What can be said about a worker's death beyond its status, and how sure that is.

Pure. The memory counters in a record are read by `lllaunch.linux.cgroup` when the attempt starts
and when the worker's end becomes known.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from lllaunch.documents import signal_name
from lllaunch.run.result import Explanation, Sure
from lllaunch.text import size, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.linux.cgroup import Memory
    from lllaunch.run.records import AttemptRecord, WorkerRecord

# Below this share of the limit a process is an unlikely choice of the OOM killer, which prefers
# the largest; above the second, a process that died of SIGKILL makes one think of memory.
_NOTABLE = 0.25
_NEAR_LIMIT = 0.8

# What is said of a process below that was killed: torch's DataLoader, subprocess, a shell.
_SAYS_KILLED = re.compile(r"killed by signal: Killed|SIGKILL|exit (?:code|status) (?:137|-9)\b")

# What gloo says when another rank sends more than fits.
_OTHER_SIZE = re.compile(r"(\d+) vs (\d+)\. Received data size doesn't match expected size")
_PORT_TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
_PORT = re.compile(r"\bport:? (\d{1,5})\b")

# /dev/shm with less free than this is full: one tensor handed between processes needs more.
_SHM_FULL = 16 << 20


def _kills(before: Memory, after: Memory) -> tuple[int | None, int | None]:
    """OOM kills in the cgroup and on the machine meanwhile, None where they are not known."""
    grown = (
        None if earlier is None or later is None else max(0, later - earlier)
        for earlier, later in (
            (before.cgroup_kills, after.cgroup_kills),
            (before.machine_kills, after.machine_kills),
        )
    )
    return next(grown), next(grown)


def _bound(memory: Memory) -> tuple[int, str]:
    """The memory that a worker could have had at most, and what to call it."""
    limit, total = memory.limit, memory.total
    if limit is not None and (total is None or limit < total):
        return limit, "the cgroup's limit"
    return (total, "the machine's memory") if total is not None else (0, "")


def _unexplained(record: AttemptRecord) -> int:
    """How many workers died of a SIGKILL that the launcher did not send."""
    return sum(
        each.exited is not None and each.exited.exitcode == -signal.SIGKILL and not each.was_asked
        for each in record.workers
    )


_BY_SIGNAL: dict[int, str] = {
    signal.SIGSEGV: "It touched memory that is not its own: usually a bug in native code "
    "(an extension, a driver) or a C stack that overflowed.",
    signal.SIGABRT: "It aborted itself: a failed assertion in native code, an uncaught C++ "
    "exception, or heap corruption; see its last lines of stderr.",
    signal.SIGILL: "It ran an instruction that this processor does not have: a library built for "
    "another machine.",
    signal.SIGFPE: "An integer division by zero, or an overflow of one, in native code.",
    signal.SIGSYS: "It made a system call that a seccomp filter (of its container) forbids.",
    signal.SIGPIPE: "It wrote to a pipe or socket whose other end was closed.",
    signal.SIGXCPU: "It used up the CPU time that a limit allows (ulimit -t).",
    signal.SIGXFSZ: "It wrote a file beyond the size that a limit allows (ulimit -f).",
    signal.SIGTRAP: "It ran into a breakpoint or a failed check in native code.",
    signal.SIGALRM: "An alarm that it had set for itself ran out, and it did not handle it.",
}

_ASKED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1}

_BY_STATUS: dict[int, str] = {
    126: "By a shell's convention 126 is 'found, but not executable': look at the file's mode and "
    "its #! line.",
    127: "By a shell's convention 127 is 'command not found'.",
}


def explain(worker: WorkerRecord, record: AttemptRecord) -> Explanation | None:
    """Return what probably ended a worker, or None where its status says all."""
    exitcode = worker.exited.exitcode if worker.exited else 0
    said = worker.error.message if worker.error else ""
    if exitcode >= 0:
        below = _of_processes_below(said, worker, record)
        if below is None and worker.disk is not None:
            text = "It could not write down why: the file system of its logs is full."
            return Explanation("itself", "likely", text)
        below = below or _of_port(said, record.master_port)
        return below or (None if said else _of_status(exitcode))
    signum = -exitcode
    if worker.was_asked and any(each.signum == signum for each in worker.sent):
        return Explanation("launcher", "certain", f"The launcher sent it {signal_name(signum)}.")
    if signum == signal.SIGKILL:
        return _of_sigkill(worker, record)
    if signum == signal.SIGBUS:
        return _of_sigbus(worker.memory)
    if signum in _ASKED:
        text = (
            "The launcher did not send it: another process did (a user's kill, a job scheduler) or "
            "the worker itself."
        )
        return Explanation("outside", "likely", text)
    if worker.misfit is not None:
        return of_misfit(worker.misfit)
    text = _BY_SIGNAL.get(signum, "")
    return Explanation("itself", "likely", text) if text else None


def misfit_of(lines: Sequence[str]) -> tuple[int, int] | None:
    """Return what gloo aborted a worker for: bytes that came, and that its call has room for."""
    found = (_OTHER_SIZE.search(line) for line in lines)
    return next(((int(sizes[1]), int(sizes[2])) for sizes in found if sizes), None)


def of_misfit(misfit: tuple[int, int], *, whose_known: bool = False) -> Explanation:
    """Return why gloo aborted a worker; ``whose_known`` if it is said which rank differs."""
    received, fitting = misfit
    text = (
        "The ranks do not agree on the size of a collective operation: it received "
        f"{received} bytes where its own call has {fitting}."
    )
    if not whose_known:
        text += (
            " Either it or the rank that sent them has another shape or type, or is in another "
            "operation."
        )
    return Explanation("itself", "likely", text)


def _of_processes_below(
    said: str, worker: WorkerRecord, record: AttemptRecord
) -> Explanation | None:
    """A worker that failed when the kernel had killed something for want of memory."""
    killed, _ = _kills(record.memory, worker.memory)
    if not killed:
        return None
    text = f"The kernel's OOM killer struck in this cgroup during the attempt ({times(killed)}): "
    bound, name = _bound(worker.memory)
    limit = f" ({name} is {size(bound)})" if bound else ""
    if _SAYS_KILLED.search(said) and killed > _unexplained(record):
        return Explanation("oom", "certain", f"{text}it was a process that the worker had{limit}.")
    return Explanation("oom", "possible", f"{text}perhaps a process that the worker had{limit}.")


def _of_port(said: str, master_port: str) -> Explanation | None:
    """A worker that tried to listen where somebody else listens."""
    used = _PORT.search(said)
    if _PORT_TAKEN.search(said) is None or used is None or not master_port:
        return None
    given = f"; the launcher had given it MASTER_PORT={master_port}."
    if used[1] == master_port:
        given = ", the MASTER_PORT that the launcher gave it."
    return Explanation("itself", "certain", f"Somebody else listens on port {used[1]}{given}")


def _of_status(status: int) -> Explanation | None:
    if status in _BY_STATUS:
        return Explanation("itself", "possible", _BY_STATUS[status])
    signum = status - 128
    if 0 < signum < signal.NSIG and signum in set(signal.Signals):
        text = f"By a shell's convention {status} is 128 + {signum}: a child of it died of "
        killed = signum == signal.SIGKILL
        hint = " That alone is no proof of a lack of memory." if killed else ""
        return Explanation("itself", "possible", f"{text}{signal_name(signum)}.{hint}")
    return None


def _of_sigkill(worker: WorkerRecord, record: AttemptRecord) -> Explanation:
    """SIGKILL that the launcher did not send: the kernel's OOM killer, or another process?"""
    in_cgroup, on_machine = _kills(record.memory, worker.memory)
    bound, name = _bound(worker.memory)
    peak, share = "", 0.0
    if worker.exited is not None and worker.exited.max_rss:  # the spawner's is not known
        of = f"; {name} is {size(bound)}" if bound else ""
        peak = f" Its peak memory was {size(worker.exited.max_rss)}{of}."
        share = worker.exited.max_rss / bound if bound else 0.0
    sure: Sure
    if in_cgroup:
        sure = "certain" if in_cgroup >= _unexplained(record) else "likely"
        text = "The kernel's OOM killer struck in this cgroup during the attempt"
        return Explanation("oom", sure, f"{text} ({times(in_cgroup)}).{peak}")
    if in_cgroup is None and on_machine is None:
        # only the size of the worker speaks
        if share >= _NEAR_LIMIT:
            text = "Probably the kernel's OOM killer, whose counters cannot be read here."
            return Explanation("oom", "possible", f"{text}{peak}")
        text = (
            "The launcher did not send it: another process did, or the kernel's OOM killer, whose "
            "counters cannot be read here."
        )
        return Explanation("outside", "possible", f"{text}{peak}")
    if in_cgroup is None and on_machine:
        text = "The kernel's OOM killer struck on this machine during the attempt"
        sure = "likely" if share >= _NOTABLE else "possible"
        return Explanation("oom", sure, f"{text} ({times(on_machine)}).{peak}")
    # neither the launcher nor, by its own counters, the kernel
    text = "The launcher did not send it, and the kernel counts no OOM kill"
    if on_machine:
        text += f" in this cgroup (but {on_machine} on this machine)"
    text += (
        ": another process did (kill -9, a job scheduler, a memory watchdog such as "
        "systemd-oomd), or the worker itself."
    )
    sure = "certain" if in_cgroup is not None and not on_machine else "likely"
    return Explanation("outside", sure, text + (peak if share >= _NOTABLE else ""))


def _of_sigbus(after: Memory) -> Explanation:
    general = (
        "A page of mapped memory could not be had: shared memory (/dev/shm) or a disk was full, "
        "or a mapped file was cut short."
    )
    if after.shm_free is None or after.shm_total is None:
        return Explanation("itself", "possible", general)
    space = f"/dev/shm has {size(after.shm_free)} of {size(after.shm_total)} free"  # noqa: S108 - a message
    if after.shm_free < _SHM_FULL:
        text = f"Shared memory is full: {space}. Give it more (docker: --shm-size), or use fewer "
        return Explanation("itself", "likely", f"{text}data loader workers.")
    return Explanation("itself", "possible", f"{general} Now {space}.")
