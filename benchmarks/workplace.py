"""Running a launcher once and measuring it: times by the clock, memory by /proc."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

LAUNCHERS = ("lllaunch", "torchrun")

_MIB = 2**20
_PAUSE_SECONDS = 0.002
_LIMIT_SECONDS = 600.0

_SCRIPTS = {
    "with_nothing": "",
    "with_torch": "import torch\n",
    # Rank 0 fails once rank 1 is there, which sleeps. The time is written as late as can be.
    "fail": """
import os, sys, time
if os.environ["RANK"] == "1":
    open("sleeping", "w").close()
    time.sleep(1000)
while not os.path.exists("sleeping"):
    time.sleep(0.01)
with open("failed_at", "w") as file:
    file.write(str(time.time_ns()))
sys.exit(1)
""",
    # Workers that are there until they are told to go.
    "hold": """
import os, time
open("here." + os.environ["RANK"] + "." + str(os.getpid()), "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
""",
}
_SCRIPTS["hold_with_torch"] = _SCRIPTS["with_torch"] + _SCRIPTS["hold"]


def environment(root: Path) -> dict[str, str]:
    """The environment that launchers are compared in: with their bytecode, as after the first use.

    Args:
        root: where what they leave behind goes; torchrun leaves a directory of logs.
    """
    unwanted = ("PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return kept | {"TMPDIR": str(root)}


class Workplace:
    """A directory with the scripts and experiments that both launchers run.

    Args:
        root: an empty directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._runs = 0
        (root / "conf" / "exp").mkdir(parents=True)
        for name, text in _SCRIPTS.items():
            (root / f"{name}.py").write_text(text)
            preload = "[torch]" if "torch" in name else "[]"
            node = f"{{entrypoint: {name}.py, preload: {preload}}}"
            (root / "conf" / "exp" / f"{name}.yaml").write_text(
                f"# @package _global_\nlaunch: {node}\n"
            )
        self._environ = environment(root)

    def seconds(self, launcher: str, script: str, nproc: int) -> float:
        """Seconds from the launcher's start to its exit.

        Args:
            launcher: one of `LAUNCHERS`.
            script: ``with_nothing`` or ``with_torch``.
            nproc: number of workers.
        """
        started = time.perf_counter()
        with self._running(launcher, script, nproc) as process:
            status = process.wait(_LIMIT_SECONDS)
        self._check(launcher, status == 0)
        return time.perf_counter() - started

    def seconds_after_failure(self, launcher: str) -> float:
        """Seconds from the failure of one of two workers to the launcher's exit."""
        with self._running(launcher, "fail", 2) as process:
            status = process.wait(_LIMIT_SECONDS)
            ended = time.time_ns()
        self._check(launcher, status not in {0, None} and (self._root / "failed_at").exists())
        failed = int((self._root / "failed_at").read_text())
        self._clear("failed_at", "sleeping")
        return (ended - failed) / 1e9

    def memory(self, launcher: str, script: str) -> tuple[float, float]:
        """Memory of a launcher of two workers, MiB.

        Args:
            launcher: one of `LAUNCHERS`.
            script: ``hold`` or ``hold_with_torch``.

        Returns:
            the peak of the launcher's own resident memory (VmHWM), and, while the workers run, the
            proportional share (PSS) of all processes that are no workers.
        """
        with self._running(launcher, script, 2) as process:
            self._until(process, lambda: len(list(self._root.glob("here.*"))) == 2)
            workers = {int(path.suffix[1:]) for path in self._root.glob("here.*")}
            share = self._share(process.pid, workers)
            peak = _peak(process.pid)
            (self._root / "go").touch()
            while process.poll() is None:
                peak = max(peak, _peak(process.pid))
                time.sleep(_PAUSE_SECONDS)
        self._check(launcher, process.returncode == 0)
        self._clear("go", *(path.name for path in self._root.glob("here.*")))
        return peak / _MIB, share / _MIB

    def python(self, code: str) -> float:
        """Seconds that an interpreter with ``code`` takes."""
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=self._root, env=self._environ, check=True)
        return time.perf_counter() - started

    def _command(self, launcher: str, script: str, nproc: int) -> list[str]:
        if launcher == "torchrun":
            options = ["--standalone", f"--nproc-per-node={nproc}"]
            return [sys.executable, "-m", "torch.distributed.run", *options, f"{script}.py"]
        self._runs += 1
        overrides = [f"launch.nproc={nproc}", f"hydra.run.dir=runs/{self._runs}"]
        return [sys.executable, "-m", "lllaunch", f"+exp={script}", *overrides]

    @contextlib.contextmanager
    def _running(self, launcher: str, script: str, nproc: int) -> Iterator[subprocess.Popen[bytes]]:
        with (self._root / "output").open("wb") as output:
            process = subprocess.Popen(
                self._command(launcher, script, nproc),
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

    def _until(self, process: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
        while not condition():
            self._check("the launcher", process.poll() is None)
            time.sleep(_PAUSE_SECONDS)

    def _check(self, launcher: str, fine: bool) -> None:
        if not fine:
            output = (self._root / "output").read_text(errors="replace")
            raise SystemExit(f"{launcher} did not do what is measured:\n{output}")

    def _clear(self, *names: str) -> None:
        for name in names:
            (self._root / name).unlink()

    @staticmethod
    def _share(launcher: int, workers: set[int]) -> int:
        root = psutil.Process(launcher)
        processes = [
            each for each in (root, *root.children(recursive=True)) if each.pid not in workers
        ]
        return sum(each.memory_full_info().pss for each in processes)


def _peak(pid: int) -> int:
    """A process's VmHWM, bytes; 0 once it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) * 1024 if found else 0


def machine() -> dict[str, str]:
    """What the figures depend on."""
    code = "import json, torch, hydra; print(json.dumps([torch.__version__, hydra.__version__]))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    torch, hydra = json.loads(shown.stdout)
    return {
        "CPUs": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "Linux": os.uname().release.partition("-")[0],
        "Python": sys.version.split()[0],
        "torch": torch,
        "Hydra": hydra,
    }
