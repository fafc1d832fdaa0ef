"""Failures that the console must explain: what runs, and how it is made to fail.

Used by the tests, which hold the words, and by benchmarks/diagnosis.py, which compares launchers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lllaunch.linux.cgroup import hierarchies
from support.launching import Project, Running, text_of, until

SCRIPTS = Path(__file__).parents[1] / "process" / "diagnosis"
NPROC = 4
# far more than any of them takes: it bounds a hang
SECONDS = 240.0

# Short enough for a test; half an hour in a user's config.
WATCHED = {"watchdog": {"stall": "4s"}, "grace_period": "5s"}
TORCH = {"preload": ["torch"]}
HUNG = WATCHED | TORCH


@dataclass(frozen=True)
class Case:
    """One failure; cause, rank and place are what a report must match for each to be named."""

    number: int
    title: str
    script: str
    cause: str
    rank: str = ""
    place: str = ""
    node: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    disturb: Callable[[Running], None] | None = None

    @property
    def name(self) -> str:
        """Its number and the name of its script."""
        return f"{self.number}-{self.script.removesuffix('.py').partition('_')[2]}"


def spawner_of(running: Running) -> int:
    """The process between a launcher and its workers, 0 if there is none."""
    below = running.below()
    children = {each.pid for each in below if each.ppid == running.pid}
    return next((each.ppid for each in below if each.ppid in children), 0)


def _marked(running: Running, name: str) -> None:
    """Wait until the script says that it is there."""
    until((running.directory / name).exists, f"the workers to write {name}")


def kill_a_worker(running: Running) -> None:
    _marked(running, "rank-2")
    os.kill(int((running.directory / "rank-2").read_text()), signal.SIGKILL)


def kill_the_spawner(running: Running) -> None:
    """Kill it twice: once the workers are started again for free."""
    first = until(lambda: spawner_of(running), "the workers to run")
    os.kill(first, signal.SIGKILL)
    second = until(
        lambda: (found := spawner_of(running)) not in (0, first) and found, "another spawner"
    )
    os.kill(second, signal.SIGKILL)


def interrupt_the_hang(running: Running) -> None:
    """Press Ctrl-C when the workers have hung for a while."""
    for rank in range(NPROC):
        _marked(running, f"joined-{rank}")
    last = max(path.stat().st_mtime for path in running.directory.glob("joined-*"))
    until(lambda: time.time() - last > 3, "some seconds without output")
    os.kill(running.pid, signal.SIGINT)


def interrupt_the_import(running: Running) -> None:
    """Press Ctrl-C while torch is imported for the workers."""
    until(lambda: "logs in" in text_of(running.directory / "console"), "the attempt to begin")
    os.kill(running.pid, signal.SIGINT)


CASES = (
    Case(
        *(1, "exception without @record", "c01_exception.py"),
        *(r"raised KeyError: 3", r"rank 1 \(attempt 0\) raised", r"line 7, in look_up"),
    ),
    Case(
        *(2, "import error in all ranks", "c02_import.py"),
        r"ModuleNotFoundError: No module named 'flash_attention_that_is_not_there'",
        # a rank that is slow is ended before it comes to it
        r"rank \d \(attempt 0\) raised",
        r"helpers_mod\.py(:|\", line )3",
    ),
    Case(
        *(3, "sys.exit(3) in rank 2", "c03_sys_exit.py", r"called sys\.exit\(3\)"),
        *(r"rank 2 \(attempt 0\) called", r"c03_sys_exit\.py:8 in check_data"),
    ),
    Case(
        *(4, "SIGSEGV in native code", "c04_segfault.py"),
        *(r"died of SIGSEGV\n.*native\s+code", r"rank 1 \(attempt 0\) died"),
        r"c04_segfault\.py:7 in native_kernel: ctypes\.string_at\(0\)",
    ),
    Case(
        *(5, "kill -9 from outside", "c05_killed.py"),
        r"Why \(certain\): The launcher did not send it, and the kernel counts no OOM\s+kill",
        *(r"rank 2 \(attempt 0\) died of SIGKILL", ""),
        disturb=kill_a_worker,
    ),
    Case(
        *(6, "OOM by cgroup", "c06_oom.py"),
        r"out of memory\n    Why \(certain\): The kernel's OOM killer struck in this cgroup"
        r"[^|]*limit is 300 MiB",
        r"rank 2 \(attempt 0\) died of SIGKILL",
    ),
    Case(
        *(7, "rank 2 missing from an all_reduce", "c07_missing_rank.py"),
        r"Rank 2 never came to all_reduce #2 of default_pg \(float32 \[1\]\), at\s+"
        r"c07_missing_rank\.py:10; ranks 0-1, 3 wait in it since [\d:]{8}, at\s+"
        r"c07_missing_rank\.py:18\.[^|]*"
        r"\[0-1,3\] step \(c07_missing_rank\.py:18\) → all_reduce \(",
        r"rank 2 \(attempt 0\) stalled",
        r"rank 2 is in fetch_shard \(c07_missing_rank\.py:10\); ranks 0-1, 3 wait for it",
        HUNG,
    ),
    Case(
        *(8, "two locks, two threads", "c08_locks.py"),
        r"2 threads of rank 1 wait for a lock, perhaps a deadlock:",
        r"rank 1 \(attempt 0\) stalled",
        r"MainThread: c08_locks\.py:19 in consume: with cache_lock:\n"
        r" +.*: c08_locks\.py:12 in producer: with queue_lock:",
        WATCHED,
    ),
    Case(
        *(9, "SIGSTOP", "c09_stopped.py"),
        r"It was stopped by a signal \(SIGSTOP, Ctrl-Z, a debugger\), and nobody let it\s+go on",
        r"rank 3 \(attempt 0\) stalled",
        r"rank 3 is stopped by a signal, in write_checkpoint \(c09_stopped\.py:8\)",
        WATCHED,
    ),
    Case(
        *(10, "ValueError, 50 ms later ConnectionError elsewhere", "c10_victim.py"),
        r"raised ValueError: invalid literal for int\(\)",
        r"(?s)rank 1 \(attempt 0\) raised.*rank 0 +failed \d+ ms after the root cause: ConnectionE",
        r"line 9, in parse",
    ),
    Case(
        *(11, "spawner killed", "c05_killed.py"),
        r"(?s)the process that forks workers \(pid \d+\) died, SIGKILL; restarting\n"
        r"lllaunch: why \(certain\): The launcher did not send it.*"
        r"the process that forks workers \(pid \d+\) died, SIGKILL\n    Why \(certain\)",
        *(r"all workers \(attempt 1\) were lost", ""),
        disturb=kill_the_spawner,
    ),
    Case(
        *(12, "disk of the log directory full", "c12_disk.py"),
        r"\[Errno 28\] No space left on device: its logs are on small/attempt_0/\d",
        r"rank \d \(attempt 0\) exited",
        r"\(1\.0 MiB, 0 B free\)",
    ),
    Case(
        *(13, "memory limit of the watchdog", "c13_memory.py"),
        r"used too much memory: \d+ MiB, the limit is 100 MiB",
        *(r"rank 3 \(attempt 0\) used", r"c13_memory\.py:\d+ in load_next"),
        {"watchdog": {"memory": "100MiB"}, "grace_period": "5s"},
    ),
    Case(
        *(14, "DataLoader worker SIGKILLed", "c14_dataloader.py"),
        # torch's handler of SIGCHLD raises it, where the loader waits for data or anywhere else
        r"(caused\s+by|raised)\s+RuntimeError:\s+DataLoader\s+worker\s+\(pid\s+\d+\)\s+is\s+killed\s+"
        r"by\s+signal:\s+Killed",
        *(r"rank 1 \(attempt 0\) raised", r"line 19, in train"),
        TORCH,
    ),
    Case(
        *(15, "native code that holds the GIL", "c15_gil.py", r"stalled"),
        *(r"rank 1 \(attempt 0\) stalled", r"c15_gil\.py:8 in decode_video: libc\.sleep\(1000\)"),
        WATCHED,
    ),
    Case(
        *(16, "MASTER_PORT in use", "c16_port.py"),
        r"EADDRINUSE[^|]*Somebody else listens on port \d+; the launcher had given\s+it\s+"
        r"MASTER_PORT=\d+",
        *(r"rank 0 \(attempt 0\) raised", r"c16_port\.py:9 in set_up"),
        TORCH,
    ),
    Case(
        *(17, "shapes of an all_reduce differ", "c17_shapes.py"),
        r"The ranks do not agree on the size of a collective\s+operation:\s+rank\s+\d\s+received\s+"
        r"2500 bytes where its own call has 2000\.\s+"
        r"Rank 2 called all_reduce #4 with \[5000\][^,]*, the others with\s+\[4000\]",
        r"Root cause: rank 2 \(attempt 0\) called a collective operation in another way",
        r"at\s+c17_shapes\.py:14",
        TORCH,
    ),
    Case(
        *(18, "rank 1 exits 0 early", "c18_early.py"),
        r"ended with success after .*, (.* before|just when) the connections of ranks 0, 2-3 broke",
        r"rank 1 \(attempt 0\) ended with success",
        r"it left while they were in all_reduce #4 of default_pg \(float32 \[4\]\), at "
        r"c18_early\.py:9",
        TORCH,
    ),
    Case(
        *(19, "rank 1 exits 0 before init_process_group", "c19_never_joined.py"),
        *(r"and never joined", r"rank 1 \(attempt 0\) ended with success after"),
        r"ranks 0, 2-3 wait in init_process_group \(c19_never_joined\.py:8\)",
        HUNG,
    ),
    Case(
        *(20, "Ctrl-C on a hang, default config", "c07_missing_rank.py"),
        r"ended by SIGINT[^|]*Where the workers stood when SIGINT came after .* without output",
        r"rank 2 is in fetch_shard",
        r"fetch_shard \(c07_missing_rank\.py:10\); ranks 0-1, 3 wait for it",
        *(TORCH, {"MARKED": "1"}, interrupt_the_hang),
    ),
    Case(
        *(21, "Ctrl-C while torch is imported", "c07_missing_rank.py"),
        r"ended by SIGINT after .*, while torch was being imported \(exit code 130\)",
        *("", "", TORCH, {}, interrupt_the_import),
    ),
    Case(
        *(22, "a fatal signal with faulthandler on", "c22_faulthandler.py"),
        *(r"died of SIGSEGV\n.*native\s+code", r"rank 1 \(attempt 0\) died"),
        r"c04_segfault\.py:7 in native_kernel: ctypes\.string_at\(0\)",
    ),
)


def prepare(case: Case, place: Path) -> dict[str, Any]:
    """Put the scripts into a directory; the launch node of a case."""
    for script in SCRIPTS.glob("*.py"):
        shutil.copy(script, place)
    return {"entrypoint": case.script, "nproc": NPROC, **case.node}


@contextmanager
def surroundings(
    case: Case, place: Path, memory: int = 300 << 20
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """What a case needs around the launcher; ``memory`` is the limit of the one that is about it.

    Yields:
        Words before the launcher's command line, and settings of the launch node.
    """
    if case.number == 6:
        with limited_memory(memory) as words:
            yield words, {}
    elif case.number == 12:
        with small_disk(place / "small"):
            yield [], {"log_dir": "small"}
    elif case.number == 16:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            yield [], {"args": [str(taken.getsockname()[1])]}
    else:
        yield [], {}


def can_mount() -> bool:
    """Whether this process may mount a file system."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


@contextmanager
def small_disk(path: Path, mebibytes: int = 1) -> Iterator[None]:
    """A file system of a few mebibytes."""
    path.mkdir()
    size = f"size={mebibytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def memory_cgroup() -> Path | None:
    """A directory in which a cgroup with a limit of memory can be made, or None."""
    for version, directories in hierarchies("memory"):
        parent = Path(directories[0])
        limit = "memory.max" if version == 2 else "memory.limit_in_bytes"
        # several processes of one pytest look at the same time
        probe = parent / f"lllaunch-probe-{uuid.uuid4().hex}"
        try:
            probe.mkdir()
        except OSError:
            continue
        found = (probe / limit).exists()
        probe.rmdir()
        if found:
            return parent
    return None


@contextmanager
def limited_memory(limit: int) -> Iterator[list[str]]:
    """A cgroup of so many bytes; yields the words that start a command in it."""
    parent = memory_cgroup()
    assert parent is not None
    cgroup = parent / f"lllaunch-test-{uuid.uuid4().hex}"
    cgroup.mkdir()
    try:
        second = (cgroup / "memory.max").exists()
        (cgroup / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(limit))
        yield ["sh", "-c", f'echo 0 > {cgroup}/cgroup.procs && exec "$@"', "sh"]
    finally:
        until(lambda: not (cgroup / "cgroup.procs").read_text(), "the cgroup to be empty")
        cgroup.rmdir()


class Ended(NamedTuple):
    """What the console of a launcher shows, and its exit status; None if it was ended for time."""

    said: str
    status: int | None


def run_of(case: Case, place: Path) -> Ended:
    """What becomes of a case under lllaunch, in an empty directory."""
    node = prepare(case, place)
    with surroundings(case, place) as (words, more):
        Project(place).experiment("test", json.dumps(node | more))
        directory = "small" if "log_dir" in more else "run"
        ours = [sys.executable, "-m", "lllaunch", "+exp=test", f"hydra.run.dir={directory}"]
        return perform(case, place, [*words, *ours], SECONDS)


def perform(case: Case, place: Path, command: list[str], seconds: float) -> Ended:
    """Run a launcher on a case that was prepared in a directory.

    It is interrupted when it takes longer than so many seconds.
    """
    console = place / "console"
    with console.open("wb") as file:
        running = Running(command, place, case.environ, stdout=file, stderr=file)
    status: int | None = None
    try:
        if case.disturb is not None:
            case.disturb(running)
        status = running.process.wait(seconds)
    except subprocess.TimeoutExpired:
        running.signal(signal.SIGTERM)
        running.process.wait(60)
    finally:
        running.kill()
    return Ended(console.read_text(errors="replace"), status)
