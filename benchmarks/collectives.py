"""What it costs a worker that it can be asked for its collectives.

    python benchmarks/collectives.py

Each number is the median of several processes that do the same with and without it, by turns. With
it the recorder keeps 2000 operations and torch's server listens; without it neither is so (torch
2.13 keeps 2000 unless it is told otherwise). A
collective is an all_reduce of four floats in a gloo group of one: what is left of one when nothing
has to be sent, so the difference is what the recorder takes. Times are CPU times of the main
thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from launch import table
from workplace import machine

_PROGRAM = """
import json, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from lllaunch.spawner.evidence import arm
from lllaunch.spawner.evidence import serve

def memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) for name in ("VmRSS", "VmSize", "Threads")}

arm()
before, begun = memory(), time.thread_time()
if sys.argv[1]:
    serve(sys.argv[1])
took = time.thread_time() - begun
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=0, world_size=1)
data = torch.ones(4)
for _ in range(2000):
    dist.all_reduce(data)
begun = time.thread_time()
for _ in range(5000):
    dist.all_reduce(data)
each = (time.thread_time() - begun) / 5000
time.sleep(0.2)
after = memory()
print(json.dumps({"serve": took, "each": each, **{name: after[name] for name in after}}))
os._exit(0)
"""
_IMPORT = """
import sys, time
from lllaunch.spawner.evidence import serve
if sys.argv[1]:
    serve(sys.argv[1])
begun = time.thread_time()
import torch
print(time.thread_time() - begun)
"""


def _run(program: str, on: bool) -> str:
    # as a worker has it
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000" if on else "0"}
    with tempfile.TemporaryDirectory() as place:
        arguments = [f"{place}/0" if on else "", f"{place}/store"]
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout


def _median(values: list[float]) -> float:
    return statistics.median(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=9, help="processes of each kind (default: 9)")
    times = parser.parse_args().times
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.chdir(Path(__file__).parents[1])
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    imports: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(times):
        for on in (False, True):
            found[on].append(json.loads(_run(_PROGRAM, on)))
            imports[on].append(float(_run(_IMPORT, on)))

    def row(title: str, name: str, factor: float, unit: str) -> list[str]:
        off, on = (
            _median([each[name] for each in found[which]]) * factor for which in (False, True)
        )
        return [title, f"{off:.2f} {unit}", f"{on:.2f} {unit}", f"{on - off:+.2f} {unit}"]

    lines = [
        ["", "without", "with", "difference"],
        row("at the start of a worker whose torch is preloaded", "serve", 1e3, "ms"),
        row("one all_reduce", "each", 1e6, "us"),
        row("resident memory", "VmRSS", 1 / 1024, "MiB"),
        row("address space", "VmSize", 1 / 1024, "MiB"),
        row("threads", "Threads", 1, ""),
    ]
    off, on = (_median(imports[which]) for which in (False, True))
    lines.append(["import torch", f"{off:.2f} s", f"{on:.2f} s", f"{on - off:+.2f} s"])
    print(table(lines))
    print("\nOn: " + ", ".join(f"{name} {value}" for name, value in machine().items()) + ".")


if __name__ == "__main__":
    main()
