"""Measures how fast the output of several workers is shown, against torchrun.

    python benchmarks/tail.py                4 workers, 50 MB each
    python benchmarks/tail.py --megabytes 5  less

The workers write lines of 77 bytes, 64 KiB at a time, and the console is a file. Counted is the
time from the first worker's first line to the launcher's exit: as long as that is not over,
something is still to be shown. In each round torchrun (`--tee 3`) and lllaunch (`launch.tee=all`)
take turns. The table shows medians, and the median of the rounds' ratios, in brackets the least and
the greatest.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from launch import table
from workplace import environment, machine

_WORKER = """
import os, sys, time
mode, count = sys.argv[1], int(sys.argv[2])
rank = os.environ["RANK"] if mode == "own" else "x"
lines = [
    f"step {number:8d} of the training, everything is as it should be, loss 0.12345 {rank}\\n"
    for number in range(count)
]
with open("began." + os.environ["RANK"], "w") as file:
    file.write(repr(time.time()))
for first in range(0, count, 850):
    os.write(1, "".join(lines[first : first + 850]).encode())
"""
_WAYS = {
    "lines of their own": ("own", []),
    "the same lines": ("same", []),
    "the same lines, collapse: false": ("same", ["launch.collapse=false"]),
}
_LINE_BYTES = 77


def seconds(root: Path, command: Sequence[str]) -> float:
    """Seconds from the first line of a worker until a launcher ends."""
    with open(root / "console", "wb") as console:
        subprocess.run(
            [sys.executable, "-m", *command],
            cwd=root,
            env=environment(root),
            stdout=console,
            stderr=subprocess.STDOUT,
            check=True,
        )
    ended = time.time()
    return ended - min(float(path.read_text()) for path in root.glob("began.*"))


def shown(root: Path) -> int:
    """Lines of workers on the console, those of several workers counted once."""
    with open(root / "console", "rb") as console:
        return sum(b" of the training, " in line for line in console)


def rates(options: argparse.Namespace, way: str) -> list[str]:
    """Measure one way."""
    mode, overrides = _WAYS[way]
    count = options.megabytes * 1_000_000 // _LINE_BYTES
    megabytes = count * options.workers * _LINE_BYTES / 1e6
    theirs, ours = [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            (root / "worker.py").write_text(_WORKER)
            node = f"{{entrypoint: worker.py, nproc: {options.workers}, args: [{mode}, {count}]}}"
            (root / "conf" / "exp").mkdir(parents=True)
            (root / "conf" / "exp" / "tail.yaml").write_text(
                f"# @package _global_\nlaunch: {node}\n"
            )
            torchrun = ["--standalone", f"--nproc-per-node={options.workers}", "--tee=3"]
            script = ["worker.py", mode, str(count)]
            theirs.append(seconds(root, ["torch.distributed.run", *torchrun, *script]))
            assert shown(root) == count * options.workers
            ours.append(
                seconds(root, ["lllaunch", "+exp=tail", "launch.tee=all", "-q", *overrides])
            )
            lines = shown(root)
    ratios = [their / our for their, our in zip(theirs, ours, strict=True)]
    return [
        f"{options.workers} workers, {way}",
        *(f"{megabytes / statistics.median(each):.0f} MB/s" for each in (theirs, ours)),
        f"{statistics.median(ratios):.1f}x ({min(ratios):.1f}-{max(ratios):.1f})",
        f"{lines / count / options.workers:.0%}",
    ]


def main() -> None:
    """Measure all ways and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=50, help="of each worker")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = [rates(options, way) for way in _WAYS]
    head = ["what is written", "torchrun", "lllaunch", "ratio", "lines shown"]
    print(table([head, *rows]))
    on = ", ".join(f"{name} {value}" for name, value in machine().items())
    print(f"\nOn: {on}.")


if __name__ == "__main__":
    main()
