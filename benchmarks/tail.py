"""Measures how fast teed output of several workers is shown, and what it costs.

    python benchmarks/tail.py                8 ranks, 20 MB each
    python benchmarks/tail.py --megabytes 5  less

The files are there when it begins, as after a burst, and lines go into a file. Shown are the bytes
of all workers a second, the lines of all a second, and what a line costs of one core: of ranks that
write the same and that write lines of their own, each line by itself and with those that are the
same shown as one. Of each the fastest of several rounds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from launch import table
from workplace import machine

from lllaunch.workers.tail import Follower

_LINE = "step %8d of the training, everything is as it should be, loss 0.12345%s\n"


def header(ranks: Sequence[int]) -> bytes:
    """What stands before a line."""
    return b"[default%s]:" % b",".join(b"%d" % rank for rank in ranks)


def show(paths: dict[int, str], console: Path, *, collapse: bool) -> tuple[float, float]:
    """Show files; seconds by the clock and of CPU."""
    with open(console, "w", encoding="utf-8") as out:
        follower = Follower()
        if collapse:
            follower.add_collapsed([(paths, out)], header)
        else:
            for rank, path in paths.items():
                follower.add(path, header([rank]), out)
        began, used = time.perf_counter(), time.process_time()
        follower.start()
        follower.stop()
        return time.perf_counter() - began, time.process_time() - used


def row(directory: Path, options: argparse.Namespace, *, own: bool, collapse: bool) -> list[str]:
    """Measure one case."""
    count = options.megabytes * 1_000_000 // len(_LINE % (0, ""))
    paths = {}
    for rank in range(options.ranks):
        path = directory / f"{rank}.log"
        rest = f" {rank}" if own else ""
        path.write_text("".join(_LINE % (number, rest) for number in range(count)))
        paths[rank] = str(path)
    size = sum(os.path.getsize(path) for path in paths.values())
    console = directory / "console"
    rounds = [show(paths, console, collapse=collapse) for _ in range(options.rounds)]
    seconds, used = min(rounds)
    lines = count * options.ranks
    return [
        f"{options.ranks} ranks, {'lines of their own' if own else 'the same lines'}",
        "as one" if collapse else "each by itself",
        f"{size / seconds / 1e6:.0f} MB/s",
        f"{lines / seconds / 1e6:.2f} million",
        f"{used / lines * 1e6:.2f} µs",
        f"{os.path.getsize(console) / 1e6:.0f} MB",
    ]


def main() -> None:
    """Measure all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=20, help="of each rank")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        rows = [
            row(Path(directory), options, own=own, collapse=collapse)
            for own in (False, True)
            for collapse in (False, True)
        ]
    head = [
        "what is written",
        "shown",
        "a second",
        "lines a second",
        "CPU a line",
        "on the console",
    ]
    print(table([head, *rows]))
    on = ", ".join(f"{name} {value}" for name, value in machine().items())
    print(f"\nOn: {on}.")


if __name__ == "__main__":
    main()
