"""Runs that are slow and healthy, to see whether the watchdog calls one of them a hang.

    python benchmarks/alarms.py                 all of them; some five minutes
    python benchmarks/alarms.py --only debugger

Each has four workers, makes twenty short steps that its launcher is told of, and then does for a
minute or more what looks like a hang from outside. It runs under the preset `default`, which also
reports a stall that is long beside the steps before it, and under `strict`. The table says how many
findings of the watchdog the console showed, and how the run ended.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from launch import table
from support.launching import until
from workplace import machine

from lllaunch.linux import proc

PRESETS = ("default", "strict")
SECONDS = 75.0
_ATTACH, _DETACH = 16, 17  # of ptrace
WORKER = """
import os, socket, sys, threading, time
import torch
import torch.distributed as dist
import lllaunch

RANK, SECONDS = int(os.environ["RANK"]), float(sys.argv[2])


def compute(seconds: float) -> None:
    square, end = torch.ones(300, 300), time.monotonic() + seconds
    while time.monotonic() < end:
        square @ square


def compiles() -> None:
    compute(SECONDS)


def saves() -> None:
    if RANK == 0:
        with open("checkpoint", "wb", 0) as file:
            for _ in range(int(SECONDS)):
                file.write(bytes(1 << 20))
                os.fsync(file.fileno())
                time.sleep(1)


def downloads() -> None:
    if RANK == 0:
        ours, theirs = socket.socketpair()

        def send() -> None:
            for _ in range(int(SECONDS)):
                time.sleep(1)
                theirs.send(bytes(1 << 16))
            theirs.close()

        threading.Thread(target=send, daemon=True).start()
        while ours.recv(1 << 20):
            pass


def straggles() -> None:
    for _ in range(int(SECONDS / 3)):
        time.sleep(3 if RANK == 1 else 0.1)
        dist.barrier()


def evaluates() -> None:
    if RANK == 0:
        compute(SECONDS)


def barriers() -> None:
    end = time.monotonic() + SECONDS
    goes_on = torch.ones(1)
    while goes_on:
        dist.barrier()
        goes_on.fill_(time.monotonic() < end)
        dist.broadcast(goes_on, 0)


def waits() -> None:
    open(f"pid-{RANK}", "w").write(str(os.getpid()))
    while not os.path.exists("goes-on"):
        compute(0.2)


dist.init_process_group("gloo")
for step in range(20):
    lllaunch.progress(step)
    dist.barrier()
    time.sleep(0.3)
globals()[sys.argv[1]]()
dist.barrier()
"""


def _pids(place: Path) -> list[int]:
    files = [place / f"pid-{rank}" for rank in range(4)]
    for file in files:
        until(lambda file=file: file.exists() and file.read_text(), "the workers", 240.0)
    return [int(file.read_text()) for file in files]


def _goes_on(place: Path) -> None:
    (place / "goes-on").touch()


def debug(place: Path, launcher: int) -> None:
    """Stop a worker as a debugger does."""
    del launcher
    pid, libc = _pids(place)[1], ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(_ATTACH, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(pid, 0x40000000)  # __WALL
    time.sleep(SECONDS)
    libc.ptrace(_DETACH, pid, None, None)
    _goes_on(place)


def stop_one(place: Path, launcher: int) -> None:
    """SIGSTOP, and SIGCONT later."""
    del launcher
    pid = _pids(place)[1]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(SECONDS)
    os.kill(pid, signal.SIGCONT)
    _goes_on(place)


def stop_all(place: Path, launcher: int) -> None:
    """Stop the launcher and all below it, as a machine that is suspended."""
    _pids(place)
    everybody = [launcher, *(each.pid for each in proc.descendants(launcher))]
    for signum in (signal.SIGSTOP, signal.SIGCONT):
        for pid in everybody:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        time.sleep(SECONDS if signum == signal.SIGSTOP else 1.0)
    _goes_on(place)


def crowd(place: Path, launcher: int) -> None:
    """Let eight others compute on the only core of the workers."""
    del launcher
    for pid in _pids(place):
        os.sched_setaffinity(pid, {0})
    burn = "import os\nos.sched_setaffinity(0, {0})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", burn]) for _ in range(8)]
    time.sleep(SECONDS)
    for other in others:
        other.kill()
        other.wait()
    _goes_on(place)


Disturb = Callable[[Path, int], None]
CASES: dict[str, tuple[str, str, Disturb | None]] = {
    "compile": ("all ranks compile", "compiles", None),
    "save": ("rank 0 saves, slowly", "saves", None),
    "download": ("rank 0 downloads", "downloads", None),
    "straggler": ("rank 1 takes 3 s a step, the others 0.1 s", "straggles", None),
    "evaluation": ("rank 0 evaluates, the others wait", "evaluates", None),
    "barrier": ("a barrier in a loop, without output", "barriers", None),
    "debugger": ("a debugger stops rank 1", "waits", debug),
    "stop": ("SIGSTOP and SIGCONT of rank 1", "waits", stop_one),
    "suspended": ("a machine that is suspended", "waits", stop_all),
    "crowded": ("an oversubscribed core", "waits", crowd),
}


def run(name: str, preset: str) -> tuple[int, int]:
    """How many findings the console shows, and the exit code."""
    _, function, disturb = CASES[name]
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "work.py").write_text(WORKER)
        node = {"entrypoint": "work.py", "args": [function, SECONDS], "nproc": 4}
        node |= {"preload": ["torch"], "watchdog": preset}
        (place / "conf" / "exp").mkdir(parents=True)
        text = "# @package _global_\n" + json.dumps({"launch": node})
        (place / "conf" / "exp" / "test.yaml").write_text(text)
        command = [sys.executable, "-m", "lllaunch", "+exp=test", "hydra.run.dir=run"]
        with (place / "console").open("wb") as console:
            process = subprocess.Popen(
                command, cwd=place, stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
            try:
                if disturb is not None:
                    disturb(place, process.pid)
                code = process.wait(600)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
        said = (place / "console").read_text(errors="replace")
    print(f"{name} under {preset}: {code}\n{said}", file=sys.stderr)
    return len(re.findall(r"^lllaunch: watchdog: ", said, re.MULTILINE)), code


def rows(names: Sequence[str], jobs: int) -> list[list[str]]:
    """The table, without its head."""
    with ThreadPoolExecutor(jobs) as pool:
        made = {
            (name, preset): pool.submit(run, name, preset) for name in names for preset in PRESETS
        }
    found = {key: future.result() for key, future in made.items()}
    return [
        [CASES[name][0], *(str(cell) for preset in PRESETS for cell in found[name, preset])]
        for name in names
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--jobs", type=int, default=5, help="runs at a time (default: 5)")
    args = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    head = [
        "for 75 s",
        *(f"{preset}: {what}" for preset in PRESETS for what in ("findings", "exit")),
    ]
    print(table([head, *rows(args.only, args.jobs)]))
    print("\nOn: " + ", ".join(f"{name} {value}" for name, value in machine().items()) + ".")


if __name__ == "__main__":
    main()
