"""Measures what it costs to show how far a run or a sweep is, below the output.

    python benchmarks/pictures.py                     about 8 minutes
    python benchmarks/pictures.py --rounds 3 --seconds 5   less

Everything runs on a terminal that is read all the time. Four things are measured, with the line or
the table and without it, in turns:

- *start*: seconds that a run with one empty worker takes
- *lines*: what the launcher's own process uses of one core while the first of 8 workers writes 60
  lines a second and says how far it is
- *rest*: the same while 8 workers do nothing
- *sweep*: what the launcher of a sweep of 200 jobs uses of one core while 8 of them run and say
  how far they are, and the first writes 60 lines a second

torchrun is the peer of the last two: it shows the same lines and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from launch import table
from workplace import environment, machine

from lllaunch.linux.gpus import PRETEND

LIMIT_SECONDS = 120.0
SCRIPTS = {
    "empty": "",
    "lines": """
import os, sys, time
try:
    from lllaunch import progress
except ImportError:
    progress = print
open(f"here.{os.environ['RANK']}", "w").close()
number = 0
while not os.path.exists("go"):
    time.sleep(1 / 60)
    number += 1
    if os.environ["RANK"] == "0":
        progress(number, 1_000_000)
        print(f"iteration {number} of the training, loss 0.12345", flush=True)
""",
    "sweep": """
import os, sys, time
from lllaunch import progress
job = int(sys.argv[2])
open(f"here.{job}", "w").close()
number = 0
while True:
    time.sleep(1 / 60 if job == 0 else 1.0)
    number += 1
    progress(number, 1_000_000)
    if job == 0:
        print(f"iteration {number} of the training, loss 0.12345", flush=True)
""",
    "rest": """
import os, time
open(f"here.{os.environ['RANK']}", "w").close()
while not os.path.exists("go"):
    time.sleep(0.5)
""",
}
WITH, WITHOUT, PEER = "with it", "without it", "torchrun"
JOBS, GPUS = 200, 8


def command(script: str, way: str, nproc: int, number: int) -> list[str]:
    """What runs a script in one of the ways."""
    if way == PEER:
        options = ["--standalone", f"--nproc-per-node={nproc}", "--redirects=3", "--tee=3"]
        options += ["--local-ranks-filter=0", f"--log-dir=logs/{number}"]
        return [sys.executable, "-m", "torch.distributed.run", *options, f"{script}.py"]
    live = "true" if way == WITH else "false"
    if script == "sweep":
        swept = [f"+launch.args.job=range({JOBS})", f"hydra.launcher.console.live={live}"]
        more = [f"launch.entrypoint={script}.py", f"hydra.sweep.dir=sweeps/{number}"]
        return [sys.executable, "-m", "lllaunch", "-m", *swept, *more]
    node = [
        f"launch.entrypoint={script}.py",
        f"launch.nproc={nproc}",
        f"launch.console.live={live}",
    ]
    return [sys.executable, "-m", "lllaunch", *node, f"hydra.run.dir=runs/{number}"]


class Place:
    """A directory with the scripts, where launchers run on terminals."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._number = 0
        # nobody else leases GPUs of these names
        gpus = ",".join(f"{os.getpid()}-{gpu}" for gpu in range(GPUS))
        self._environ = environment(root) | {"TERM": "xterm-256color", PRETEND: gpus}
        for name, text in SCRIPTS.items():
            (root / f"{name}.py").write_text(text)

    @contextlib.contextmanager
    def running(self, script: str, way: str, nproc: int) -> Iterator[subprocess.Popen[bytes]]:
        """A launcher on a terminal of its own, which somebody reads."""
        self._number += 1
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        process = subprocess.Popen(
            command(script, way, nproc, self._number),
            cwd=self.root,
            env=self._environ,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        reader = threading.Thread(target=drain, args=(master,))
        reader.start()
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
            reader.join()
            os.close(master)

    def start(self, way: str) -> float:
        """Seconds that a run with one empty worker takes."""
        began = time.perf_counter()
        with self.running("empty", way, 1) as process:
            code = process.wait(LIMIT_SECONDS)
            seconds = time.perf_counter() - began
        assert code == 0, (way, code)
        return seconds

    def used(self, script: str, way: str, seconds: float) -> float:
        """Percent of a core that a launcher uses while its workers run."""
        with self.running(script, way, 8) as process:
            until(lambda: len(list(self.root.glob("here.*"))) == 8)
            # what is imported once is no matter of every second
            time.sleep(7.0)
            before, began = cpu(process.pid), time.perf_counter()
            time.sleep(seconds)
            share = (cpu(process.pid) - before) / (time.perf_counter() - began)
            (self.root / "go").touch()
            if script == "sweep":
                # its other jobs are not waited for
                process.send_signal(signal.SIGTERM)
            code = process.wait(LIMIT_SECONDS)
        assert code == (128 + signal.SIGTERM if script == "sweep" else 0), (way, code)
        for path in (self.root / "go", *self.root.glob("here.*")):
            path.unlink()
        return 100 * share


def drain(master: int) -> None:
    """Take what is written to a terminal until nobody has it any more."""
    with contextlib.suppress(OSError):
        while os.read(master, 1 << 16):
            pass


def until(holds: Callable[[], bool]) -> None:
    """Wait for something."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def cpu(pid: int) -> float:
    """Seconds of CPU that all threads of a process have used."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in threads) / 1e9


def row(name: str, values: dict[str, list[float]], unit: str) -> list[str]:
    """A line of the table; the ratio is of the medians, with the line to without it."""
    middles = {way: statistics.median(found) for way, found in values.items()}
    cells = []
    for way in (WITH, WITHOUT, PEER):
        found = values.get(way)
        low_high = "" if not found else f" ({min(found):.3g} to {max(found):.3g})"
        cells.append("" if not found else f"{middles[way]:.3g} {unit}{low_high}")
    return [name, *cells, f"{middles[WITH] / middles[WITHOUT]:.2f}", str(len(values[WITH]))]


def in_turns(
    ways: Sequence[str], rounds: int, measure: Callable[[str], float]
) -> dict[str, list[float]]:
    """Measure each way as often, one after the other, so that what disturbs disturbs all."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            found[way].append(measure(way))
    return found


def main() -> None:
    """Measure everything and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--starts", type=int, default=40, help="how many runs are started each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    options = parser.parse_args()
    both, three = (WITH, WITHOUT), (WITH, WITHOUT, PEER)
    lines = [["", WITH, WITHOUT, PEER, "ratio", "runs"]]
    with tempfile.TemporaryDirectory() as directory:
        place = Place(Path(directory))
        place.start(WITH)  # bytecode
        lines.append(row("start", in_turns(both, options.starts, place.start), "s"))
        for script, name in (("lines", "60 lines/s"), ("rest", "8 workers at rest")):
            found = in_turns(
                three,
                options.rounds,
                lambda way, script=script: place.used(script, way, options.seconds),  # type: ignore[misc]
            )
            lines.append(row(name, found, "%"))
        found = in_turns(
            both, options.rounds, lambda way: place.used("sweep", way, options.seconds)
        )
        lines.append(row(f"sweep of {JOBS} jobs, 60 lines/s", found, "%"))
    print(machine())
    print()
    print(table(lines))


if __name__ == "__main__":
    main()
