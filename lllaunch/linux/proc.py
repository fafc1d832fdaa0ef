"""Reading /proc: who descends from whom, what a process is, and what it has used."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# What NVIDIA's driver of Linux, and that of Windows below it, have.
_GPU_DRIVER = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")


def has_gpu_driver() -> bool:
    """Whether there is an NVIDIA driver, as far as files tell."""
    return any(map(os.path.exists, _GPU_DRIVER))


class ProcessFacts(NamedTuple):
    """What /proc/PID/stat says."""

    pid: int
    ppid: int
    state: str  # one letter; ``Z`` is a zombie, ``D`` uninterruptible sleep
    session: int  # session id; the process id of the session's leader
    start: int  # start time in clock ticks since boot; with the pid it names one process for ever
    cpu: float = 0.0  # CPU seconds that it has used, and children of its that it has waited for
    rss: int = 0  # resident memory, bytes
    own_cpu: float = 0.0


def facts(pid: int) -> ProcessFacts | None:
    """What a process is, or None if there is no such process."""
    try:
        text = _read(f"/proc/{pid}/stat")
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
        cpu=sum(map(int, fields[11:15])) / _TICKS,
        rss=int(fields[21]) * _PAGE,
        own_cpu=sum(map(int, fields[11:13])) / _TICKS,
    )


def _read(path: str) -> bytes:
    """Read a file of /proc that the kernel writes in one go, for half of what `open` takes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def processes() -> list[ProcessFacts]:
    """All processes that can be seen, in no order."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [found for found in map(facts, pids) if found is not None]


class ProcessTable:
    """All processes, looked at again and again; of most of them only once.

    To list /proc takes less than a microsecond a process, to read one more than ten, and on a large
    machine there are thousands that nobody asks for. What a process is keeps the inode of its
    directory as long as it lives: another one of the same number has another.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], ProcessFacts] = {}  # by name and inode in /proc

    def look(self, again: Collection[int] = ()) -> list[ProcessFacts]:
        """Return all processes that can be seen, in no order; those ``again`` as they are now.

        Raises:
            OSError: /proc cannot be listed: no descriptor is left.
        """
        with os.scandir("/proc") as entries:
            keys = [(each.name, each.inode()) for each in entries if each.name.isdigit()]
        before, self._seen = self._seen, {}
        # their numbers may be given to others, which would then seem to be the parents
        gone = {int(name) for name, _ in before.keys() - keys}
        for key in keys:
            found, pid = before.get(key), int(key[0])
            if found is None or found.ppid in gone or pid in again:
                found = facts(pid)
            if found is not None:
                self._seen[key] = found
        return [*self._seen.values()]

    def is_there(self, pid: int) -> bool:
        """Whether there is such a process now."""
        return facts(pid) is not None

    def transferred(self, pid: int) -> tuple[int, int, int]:
        """Bytes that a process has read and written, and its writes; 0 if nobody can tell.

        That is rchar, wchar and syscw of proc_pid_io(5), whatever the files: system calls such as
        read and write, and not recv, send or what is read through a mapping. What its children did
        counts once it has waited for them.
        """
        try:
            fields = _read(f"/proc/{pid}/io").split(None, 8)
            return int(fields[1]), int(fields[3]), int(fields[7])
        except (OSError, ValueError, IndexError):
            return 0, 0, 0

    def share(self, pid: int) -> int | None:
        """Memory that only swapping or killing would free, bytes; None if it cannot be read.

        That is anonymous and shared memory, of what several processes share only this one's part
        (proc(5), smaps_rollup); pages of files are not among it, since the kernel drops them.
        """
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                fields = dict(line.split(":", 1) for line in file if line.startswith("Pss_"))
            return 1024 * sum(int(fields[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))
        except (OSError, KeyError, ValueError):
            return None


def children(pid: int) -> list[int]:
    """Process ids of the direct children, zombies included.

    Raises:
        OSError: nobody knows: no descriptor is left.
    """
    try:
        found = []
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        # It, or a thread of it, is gone, or the kernel was built without CONFIG_PROC_CHILDREN.
        return [process.pid for process in processes() if process.ppid == pid]
    return found


def descendants(
    roots: int | Iterable[int], among: Iterable[ProcessFacts] | None = None
) -> list[ProcessFacts]:
    """All live processes below some, parents before their children; zombies are left out."""
    return below(roots, by_parent(processes() if among is None else among))


def by_parent(among: Iterable[ProcessFacts]) -> dict[int, list[ProcessFacts]]:
    """Processes by the process ids of their parents."""
    found: dict[int, list[ProcessFacts]] = {}
    for process in among:
        found.setdefault(process.ppid, []).append(process)
    return found


def below(
    roots: int | Iterable[int], families: Mapping[int, Iterable[ProcessFacts]]
) -> list[ProcessFacts]:
    """As `descendants`, of processes that `by_parent` has sorted: for one that asks more often."""
    found: list[ProcessFacts] = []
    queue = [roots] if isinstance(roots, int) else [*roots]
    while queue:
        for process in families.get(queue.pop(0), ()):
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
        text = _read(f"/proc/{pid}/cmdline").strip(b"\0 ") or _read(f"/proc/{pid}/comm")
    except OSError:
        return "?"
    line = " ".join(text.replace(b"\0", b" ").decode(errors="replace").split())
    return line if len(line) <= width else line[: width - 1] + "…"


def read_text(path: str) -> str:
    """Returns the text of a small file of the kernel's, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
