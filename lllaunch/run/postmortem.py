"""What can be said about a worker's death beyond its status, and how sure that is.

Pure: `explain` looks at an `Evidence` and nothing else. The memory counters in it are read by
`lllaunch.linux.cgroup` when the attempt starts and when the worker's end becomes known.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.documents import signal_name
from lllaunch.linux.cgroup import UNKNOWN, Memory
from lllaunch.run.result import Explanation, Sure
from lllaunch.text import size, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.run.records import Disk

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


class Evidence(NamedTuple):
    """All that is known about how one worker ended.

    Attributes:
        sent: signals that the launcher had sent it before it ended.
        max_rss: its peak resident memory, bytes; 0 where not known.
        before: memory of the machine when the attempt started; ``after``, when its end was known.
        unexplained: how many workers of the attempt died of a SIGKILL that the launcher did not
            send, this one included if it did.
        said: what it raised, or an empty string.
        disk: the file system of its logs, where it could not say why it failed.
        misfit: what gloo aborted it for, as `misfit_of` returns it.
    """

    exitcode: int
    sent: tuple[int, ...] = ()
    max_rss: int = 0
    before: Memory = UNKNOWN
    after: Memory = UNKNOWN
    unexplained: int = 1
    said: str = ""
    disk: Disk | None = None
    master_port: str = ""
    misfit: tuple[int, int] | None = None

    @property
    def kills(self) -> tuple[int | None, int | None]:
        """OOM kills in its cgroup and on the machine meanwhile, None where they are not known."""
        grown = (
            None if before is None or after is None else max(0, after - before)
            for before, after in (
                (self.before.cgroup_kills, self.after.cgroup_kills),
                (self.before.machine_kills, self.after.machine_kills),
            )
        )
        return next(grown), next(grown)

    @property
    def bound(self) -> tuple[int, str]:
        """The memory that the worker could have had at most, and what to call it."""
        limit, total = self.after.limit, self.after.total
        if limit is not None and (total is None or limit < total):
            return limit, "the cgroup's limit"
        return (total, "the machine's memory") if total is not None else (0, "")

    @property
    def share(self) -> float:
        """The part of that which it had."""
        return self.max_rss / self.bound[0] if self.bound[0] else 0.0

    @property
    def peak(self) -> str:
        """What it had at most, in words that follow others; empty if unknown."""
        if not self.max_rss:  # the spawner's is not known
            return ""
        bound, name = self.bound
        of = f"; {name} is {size(bound)}" if bound else ""
        return f" Its peak memory was {size(self.max_rss)}{of}."


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


def explain(evidence: Evidence) -> Explanation | None:
    """Return what probably ended the worker, or None where its status says all."""
    if evidence.exitcode >= 0:
        below = _of_processes_below(evidence)
        if below is None and evidence.disk is not None and evidence.disk.full:
            text = "It could not write down why: the file system of its logs is full."
            return Explanation("itself", "likely", text)
        below = below or _of_port(evidence)
        return below or (None if evidence.said else _of_status(evidence.exitcode))
    signum = -evidence.exitcode
    if signum in evidence.sent:
        return Explanation("launcher", "certain", f"The launcher sent it {signal_name(signum)}.")
    if signum == signal.SIGKILL:
        return _of_sigkill(evidence)
    if signum == signal.SIGBUS:
        return _of_sigbus(evidence.after)
    if signum in _ASKED:
        text = (
            "The launcher did not send it: another process did (a user's kill, a job scheduler) or "
            "the worker itself."
        )
        return Explanation("outside", "likely", text)
    if evidence.misfit is not None:
        return of_misfit(evidence.misfit)
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


def _of_processes_below(evidence: Evidence) -> Explanation | None:
    """A worker that failed when the kernel had killed something for want of memory."""
    killed, _ = evidence.kills
    if not killed:
        return None
    text = f"The kernel's OOM killer struck in this cgroup during the attempt ({times(killed)}): "
    bound, name = evidence.bound
    limit = f" ({name} is {size(bound)})" if bound else ""
    if _SAYS_KILLED.search(evidence.said) and killed > evidence.unexplained:
        return Explanation("oom", "certain", f"{text}it was a process that the worker had{limit}.")
    return Explanation("oom", "possible", f"{text}perhaps a process that the worker had{limit}.")


def _of_port(evidence: Evidence) -> Explanation | None:
    """A worker that tried to listen where somebody else listens."""
    taken = _PORT_TAKEN.search(evidence.said)
    used = _PORT.search(evidence.said)
    if taken is None or used is None or not evidence.master_port:
        return None
    text = f"Somebody else listens on port {used[1]}"
    if used[1] == evidence.master_port:
        return Explanation(
            "itself", "certain", f"{text}, the MASTER_PORT that the launcher gave it."
        )
    given = f"the launcher had given it MASTER_PORT={evidence.master_port}"
    return Explanation("itself", "certain", f"{text}; {given}.")


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


def _of_sigkill(evidence: Evidence) -> Explanation:
    """SIGKILL that the launcher did not send: the kernel's OOM killer, or another process?"""
    peak, (in_cgroup, on_machine) = evidence.peak, evidence.kills
    sure: Sure
    if in_cgroup:
        sure = "certain" if in_cgroup >= evidence.unexplained else "likely"
        text = "The kernel's OOM killer struck in this cgroup during the attempt"
        return Explanation("oom", sure, f"{text} ({times(in_cgroup)}).{peak}")
    if in_cgroup is None and on_machine is None:
        # only the size of the worker speaks
        if evidence.share >= _NEAR_LIMIT:
            text = "Probably the kernel's OOM killer, whose counters cannot be read here."
            return Explanation("oom", "possible", f"{text}{peak}")
        text = (
            "The launcher did not send it: another process did, or the kernel's OOM killer, whose "
            "counters cannot be read here."
        )
        return Explanation("outside", "possible", f"{text}{peak}")
    if in_cgroup is None and on_machine:
        text = "The kernel's OOM killer struck on this machine during the attempt"
        sure = "likely" if evidence.share >= _NOTABLE else "possible"
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
    return Explanation("outside", sure, text + (peak if evidence.share >= _NOTABLE else ""))


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
