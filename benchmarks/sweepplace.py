"""Running a sweep once and measuring it: time by the clock, the launcher's memory by /proc."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workplace import environment

_MIB = 2**20
_PAUSE_SECONDS = 0.05
_LIMIT_SECONDS = 3600.0
_JOBLIB = "hydra-joblib-launcher"

_FILES = {
    # Each process of a job leaves a byte, so that it can be seen that all work was done.
    "work.py": """
import argparse
import torch

def work(seed):
    torch.manual_seed(seed)
    torch.rand(8, 8).sum().item()
    with open("done", "ab") as file:
        file.write(b".")

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    work(parser.parse_args().seed)
""",
    "trivial.py": """
def work(seed):
    return seed
""",
    "conf/exp/work.yaml": """# @package _global_
launch: {entrypoint: work.py, args: {seed: "${seed}"}, preload: [torch]}
seed: 0
""",
    "conf/exp/trivial.yaml": """# @package _global_
launch: {entrypoint: "trivial:work", args: {seed: "${seed}"}}
seed: 0
""",
    # What users of Hydra's own launchers write: in the job's process, or in processes that it
    # starts and waits for.
    "app.py": """
import subprocess
import sys

import hydra

@hydra.main(version_base="1.3", config_path=".", config_name="app")
def main(cfg):
    if not cfg.processes:
        return __import__(cfg.module).work(cfg.seed)
    command = [sys.executable, f"{cfg.module}.py", "--seed", str(cfg.seed)]
    processes = [subprocess.Popen(command) for _ in range(cfg.processes)]
    if any([process.wait() for process in processes]):
        sys.exit(1)

main()
""",
    "app.yaml": "{seed: 0, module: work, processes: 0}",
}


@dataclass(frozen=True)
class Way:
    """A way to run a sweep.

    Attributes:
        name: as the table shows it.
        processes: of each job.
        command: makes the command from the number of jobs and the sweep's directory.
    """

    name: str
    processes: int
    command: Callable[[int, str], Sequence[str]]


@dataclass(frozen=True)
class Sample:
    """A launcher while it runs.

    Attributes:
        seconds: since its start.
        resident: its resident memory, MiB.
        share: its proportional share of that (PSS), MiB.
    """

    seconds: float
    resident: float
    share: float


@dataclass(frozen=True)
class Course:
    """A sweep from start to exit.

    Attributes:
        samples: when each of the shares of its jobs had begun that were asked for.
        seconds: from start to exit.
        peak: greatest resident memory of the launcher (VmHWM), MiB.
    """

    samples: tuple[Sample, ...]
    seconds: float
    peak: float


def lllaunch(experiment: str, nproc: int) -> Callable[[int, str], Sequence[str]]:
    """The command of a sweep of ours."""

    def command(jobs: int, directory: str) -> list[str]:
        own = [f"+exp={experiment}", f"launch.nproc={nproc}", *_swept(jobs, directory)]
        return [sys.executable, "-m", "lllaunch", "-m", *own]

    return command


def torchrun(nproc: int) -> Callable[[int, str], Sequence[str]]:
    """The command of a loop in a shell."""

    def command(jobs: int, directory: str) -> list[str]:  # noqa: ARG001 - torchrun has none
        run = f'"$0" -m torch.distributed.run --standalone --nproc-per-node={nproc} work.py'
        loop = f'for seed in $(seq {jobs}); do {run} --seed "$seed" || exit 1; done'
        return ["bash", "-c", loop, sys.executable]

    return command


def hydra(launcher: str, module: str, processes: int) -> Callable[[int, str], Sequence[str]]:
    """The command of a Hydra app with one of Hydra's own launchers."""

    def command(jobs: int, directory: str) -> list[str]:
        own = [f"module={module}", f"processes={processes}", *_swept(jobs, directory)]
        return [sys.executable, "app.py", "-m", f"hydra/launcher={launcher}", *own]

    return command


def _swept(jobs: int, directory: str) -> list[str]:
    return [f"seed=range({jobs})", f"hydra.sweep.dir={directory}"]


class SweepPlace:
    """A directory with what all ways run.

    Args:
        root: an empty directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sweeps = 0
        (root / "conf" / "exp").mkdir(parents=True)
        for name, text in _FILES.items():
            (root / name).write_text(text)
        self._environ = environment(root)

    def add_joblib(self) -> bool:
        """Makes Hydra's joblib launcher available; returns whether it is."""
        if importlib.util.find_spec("hydra_plugins.hydra_joblib_launcher") is not None:
            return True
        target = self._root / "packages"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        packages = [_JOBLIB] + ([] if importlib.util.find_spec("joblib") else ["joblib"])
        ended = subprocess.run([*pip, "--target", str(target), *packages], check=False)
        path = [str(target), self._environ.get("PYTHONPATH", "")]
        self._environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        return ended.returncode == 0

    def seconds(self, way: Way, jobs: int) -> float:
        """Seconds from a sweep's start to its exit."""
        done = self._root / "done"
        done.unlink(missing_ok=True)
        started = time.perf_counter()
        with self._running(way, jobs) as process:
            status = process.wait(_LIMIT_SECONDS)
        seconds = time.perf_counter() - started
        wanted = jobs * way.processes
        self._check(way, status == 0 and done.exists() and done.stat().st_size == wanted)
        return seconds

    def course(self, way: Way, jobs: int, shares: Sequence[float]) -> Course:
        """Looks at a launcher while it runs a sweep of jobs that do nothing.

        Args:
            way: how.
            jobs: how many.
            shares: of the jobs that shall have begun when a sample is taken; ascending.
        """
        samples: list[Sample] = []
        peak, started = 0.0, time.perf_counter()
        with self._running(way, jobs) as process:
            directory = self._root / self._directory
            while process.poll() is None:
                begun = _jobs_in(directory)
                sample, highest = _look(process.pid, time.perf_counter() - started)
                peak = max(peak, highest)
                while (
                    sample and len(samples) < len(shares) and begun >= shares[len(samples)] * jobs
                ):
                    samples.append(sample)
                time.sleep(_PAUSE_SECONDS)
        seconds = time.perf_counter() - started
        self._check(way, process.returncode == 0 and len(samples) == len(shares))
        return Course(tuple(samples), seconds, peak)

    @property
    def _directory(self) -> str:
        return f"sweeps/{self._sweeps}"

    @contextlib.contextmanager
    def _running(self, way: Way, jobs: int) -> Iterator[subprocess.Popen[bytes]]:
        self._sweeps += 1
        with (self._root / "output").open("wb") as output:
            process = subprocess.Popen(
                way.command(jobs, self._directory),
                cwd=self._root,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()

    def _check(self, way: Way, fine: bool) -> None:
        if not fine:
            output = (self._root / "output").read_text(errors="replace")
            raise SystemExit(f"{way.name} did not do what is measured:\n{output[-4000:]}")


def _jobs_in(directory: Path) -> int:
    """How many jobs of a sweep have a directory."""
    try:
        return sum(name.isdecimal() for name in os.listdir(directory))
    except FileNotFoundError:
        return 0


def _look(pid: int, seconds: float) -> tuple[Sample | None, float]:
    """A process's memory, None once it has ended, and the greatest that it was, MiB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None, 0.0
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", status + rollup, re.MULTILINE))
    if "Pss" not in found or "VmRSS" not in found:
        return None, 0.0
    resident, share, peak = (int(found[name]) * 1024 / _MIB for name in ("VmRSS", "Pss", "VmHWM"))
    return Sample(seconds, resident, share), peak
