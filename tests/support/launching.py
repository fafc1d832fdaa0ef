"""Starting ``python -m lllaunch`` on an experiment written for one test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lllaunch.linux import proc

# Seconds. Only what hangs takes as long, on a machine that does much else, too.
WAIT = 240.0

# Lets a spawner end its workers only when the test says so, as a driver may take its time; and
# leaves jobs to spawners of their own, if that is wanted.
SLOW_SPAWNER = """
import os, sys, time

if any("lllaunch.spawner.server" in word for word in sys.orig_argv):
    from lllaunch.spawner import orphans

    def kill(*args, _real=orphans.kill_below, **options):
        while not os.path.exists(os.environ["LET_DIE"]):
            time.sleep(0.01)
        return _real(*args, **options)

    orphans.kill_below = kill
elif "COLD" in os.environ:
    from lllaunch.sweep.processes import SpawnerPool

    SpawnerPool.lend = lambda *_: None
"""


@dataclass
class Finished:
    """A launcher that ended."""

    code: int
    out: str
    err: str
    run_dir: Path

    @property
    def result(self) -> Any:
        return json.loads((self.run_dir / "result.json").read_text())

    def log(self, rank: int, stream: str = "stdout", attempt: int = 0) -> bytes:
        path = self.run_dir / f"attempt_{attempt}" / str(rank) / f"{stream}.log"
        # of a run that succeeded no empty one is kept
        return path.read_bytes() if path.exists() else b""

    def events(self) -> list[Any]:
        return [
            json.loads(line) for line in (self.run_dir / "events.jsonl").read_text().splitlines()
        ]


class Launcher:
    """A launcher process in a directory of its own.

    Args:
        directory: where it runs; gets ``conf/exp/test.yaml``.
        launch: the ``launch`` node.
        overrides: more of the command line.
        environ: variables on top of this process's.
        popen: more arguments of ``subprocess.Popen``.
    """

    def __init__(
        self,
        directory: Path,
        launch: Mapping[str, Any],
        *overrides: str,
        environ: Mapping[str, str] | None = None,
        **popen: Any,
    ) -> None:
        exp = directory / "conf" / "exp"
        exp.mkdir(parents=True, exist_ok=True)
        # JSON is YAML; interpolations of the config stay as they are.
        (exp / "test.yaml").write_text("# @package _global_\n" + json.dumps({"launch": launch}))
        self.run_dir = directory / "run"
        self.directory = directory
        command = [sys.executable, "-m", "lllaunch", "+exp=test", "hydra.run.dir=run", *overrides]
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | popen
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            **options,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def finish(self, timeout: float = WAIT) -> Finished:
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"the launcher did not end\n{out}\n{err}") from None
        return Finished(self.process.returncode, out or "", err or "", self.run_dir)

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def below(self) -> list[proc.ProcessFacts]:
        return proc.descendants(self.pid)

    def spawner(self) -> int:
        (child,) = [process.pid for process in self.below() if process.ppid == self.pid]
        return child


def launch(directory: Path, node: Mapping[str, Any], *overrides: str, **options: Any) -> Finished:
    """Run an experiment to its end."""
    return Launcher(directory, node, *overrides, **options).finish()


def run_script(
    path: Path, *args: object, timeout: float = WAIT
) -> subprocess.CompletedProcess[str]:
    """Run a Python script to its end; what it printed is captured."""
    return subprocess.run(
        [sys.executable, str(path), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def until(condition: Callable[[], Any], what: str, timeout: float = WAIT) -> Any:
    """Wait for something that another process does."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)
    return value


def text_of(path: Path) -> str:
    """The text of a file, empty while it is not there."""
    return path.read_text() if path.exists() else ""


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    facts = proc.facts(pid)
    return facts is None or facts.state in "ZX"
