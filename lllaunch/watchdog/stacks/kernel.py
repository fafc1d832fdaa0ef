"""What the kernel tells of a process: state, what it waits in, its threads. Of any program.

Nothing here touches the memory of a process in uninterruptible sleep: its command line is read
under the lock of its memory map, which it may be holding, and whoever reads it would hang too.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import NamedTuple

from lllaunch.linux import proc

# Threads that are looked at one by one.
_MAX_THREADS = 256
# Lines of /proc/PID/status that are told.
_TOLD = ("State", "Threads", "VmRSS", "SigBlk", "SigCgt")
_ASLEEP = "D"
COMMAND_WIDTH = 200


class ProcStatus(NamedTuple):
    """What /proc/PID/status says of a process and its main thread."""

    lines: tuple[str, ...]  # those worth telling, as ``Name: value``
    state: str
    threads: int
    pending: int  # signals that wait for the process or its main thread, as a bit mask
    blocked: int
    caught: int


class ProcessLook(NamedTuple):
    """One process at one moment."""

    pid: int
    ppid: int
    command: str  # its command line, or its name in parentheses if that could not be asked
    state: str
    wchan: str  # kernel function that its main thread waits in, or an empty string
    status: tuple[str, ...]
    stack: tuple[str, ...]
    no_stack: str  # why there are none, or an empty string
    # where its other threads are, a line for all that are in the same place
    threads: tuple[str, ...]
    python: bool


def bit(signum: int) -> int:
    """A signal in the masks of `ProcStatus`."""
    return 1 << (signum - 1)


def parse_status(text: str) -> ProcStatus:
    """Read the text of /proc/PID/status; what is missing counts as zero."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.strip()

    def mask(name: str) -> int:
        try:
            return int(fields.get(name, "0"), 16)
        except ValueError:
            return 0

    threads = fields.get("Threads", "")
    return ProcStatus(
        lines=tuple(
            f"{name}: {' '.join(fields[name].split())}" for name in _TOLD if name in fields
        ),
        state=fields.get("State", "")[:1],
        threads=int(threads[:9]) if threads.isdecimal() else 0,
        pending=mask("SigPnd") | mask("ShdPnd"),
        blocked=mask("SigBlk"),
        caught=mask("SigCgt"),
    )


def status(pid: int) -> ProcStatus | None:
    """What /proc/PID/status says, or None if the process is gone."""
    text = proc.read_text(f"/proc/{pid}/status")
    return parse_status(text) if text else None


def look(process: proc.ProcessFacts) -> ProcessLook | None:
    """Look at a process.

    Returns None if it is gone.
    """
    pid = process.pid
    now = status(pid)
    if now is None:
        return None
    stack, no_stack = _kernel_stack(pid)
    return ProcessLook(
        pid=pid,
        ppid=process.ppid,
        command=_command(pid, now.state),
        state=now.state,
        wchan=_wchan(f"/proc/{pid}/wchan"),
        status=now.lines,
        stack=stack,
        no_stack=no_stack,
        threads=_threads(pid) if now.threads > 1 else (),
        python=runs_python(pid),
    )


def runs_python(pid: int) -> bool:
    """Whether a process runs Python's interpreter, by the name of its program."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:
        return False


def _command(pid: int, state: str) -> str:
    if state != _ASLEEP:
        return proc.command(pid, COMMAND_WIDTH)
    return f"({proc.read_text(f'/proc/{pid}/comm').strip() or '?'})"


def _wchan(path: str) -> str:
    name = proc.read_text(path).strip()
    # The kernel writes 0 for a process that does not wait.
    return "" if name == "0" else name


def _kernel_stack(pid: int) -> tuple[tuple[str, ...], str]:
    try:
        with open(f"/proc/{pid}/stack", encoding="ascii", errors="replace") as file:
            lines = tuple(line.removeprefix("[<0>] ") for line in file.read().splitlines())
    except PermissionError:
        return (), "only root may read it"
    except FileNotFoundError:
        return (), "this kernel does not tell it"
    except OSError as error:
        return (), error.strerror or str(error)
    return lines, "" if lines else "it is empty: the process runs"


def _threads(pid: int) -> tuple[str, ...]:
    """Where the threads but the main one are; those in the same place share a line."""
    try:
        tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return ()
    places: Counter[str] = Counter()
    others = sorted(tid for tid in tids if tid != pid)
    for tid in others[:_MAX_THREADS]:
        name, state = parse_task(proc.read_text(f"/proc/{pid}/task/{tid}/stat"))
        if state:
            wchan = _wchan(f"/proc/{pid}/task/{tid}/wchan") or "-"
            places[f"{state} {wchan} ({name})"] += 1
    lines = [f"{count} x {place}" for place, count in places.most_common()]
    if len(others) > _MAX_THREADS:
        lines.append(f"and {len(others) - _MAX_THREADS} more")
    return tuple(lines)


def parse_task(text: str) -> tuple[str, str]:
    """The name and the state letter in the text of a stat file; empty if it is not one."""
    # The name, in parentheses, may hold anything, parentheses too.
    start, end = text.find("("), text.rfind(")")
    if not 0 <= start < end:
        return "", ""
    return text[start + 1 : end], text[end + 1 :].strip()[:1]
