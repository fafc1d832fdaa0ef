"""Starting ``python -m lllaunch``, or something else, as its user would."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
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


class Project:
    """A user's directory, with configs and scripts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    def experiment(self, name: str, launch: str, more: str = "") -> Path:
        """conf/exp/NAME.yaml with a launch node in YAML's flow form."""
        text = f"# @package _global_\nlaunch: {launch}\n{dedent(more)}"
        return self.write(f"conf/exp/{name}.yaml", text)

    def lllaunch(
        self, *args: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "lllaunch", *args, env=env)

    def python(
        self, *args: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *args],
            cwd=self.root,
            env=environment() | dict(env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )

    def run_dirs(self) -> list[Path]:
        """The output directories of all runs so far, oldest first."""
        found = {path.parent for path in self.root.rglob(".hydra")}
        return sorted(found, key=lambda path: path.stat().st_ctime_ns)

    def run_dir(self) -> Path:
        (only,) = self.run_dirs()
        return only


def environment() -> dict[str, str]:
    """The tests' own environment without what would change Hydra's output."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HYDRA_")}


def result(run_dir: Path) -> Any:
    return json.loads((run_dir / "result.json").read_text())


@dataclass
class Finished:
    """A launcher that ended."""

    code: int
    out: str
    err: str
    run_dir: Path

    @property
    def result(self) -> Any:
        return result(self.run_dir)

    def log(self, rank: int, stream: str = "stdout", attempt: int = 0) -> bytes:
        path = self.run_dir / f"attempt_{attempt}" / str(rank) / f"{stream}.log"
        # of a run that succeeded no empty one is kept
        return path.read_bytes() if path.exists() else b""

    def events(self) -> list[Any]:
        return [
            json.loads(line) for line in (self.run_dir / "events.jsonl").read_text().splitlines()
        ]


class Running:
    """A process whose output goes to files: who holds a pipe of it does not matter.

    Its variables are on top of this process's.
    """

    _numbers = itertools.count()

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        environ: Mapping[str, str] | None = None,
        **popen: Any,
    ) -> None:
        self.directory, self.run_dir = directory, directory / "run"
        number = next(self._numbers)
        self._files = {stream: directory / f"{stream}-{number}.txt" for stream in ("out", "err")}
        with self._files["out"].open("wb") as out, self._files["err"].open("wb") as err:
            options = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err} | popen
            env = environment() | dict(environ or {})
            self.process = subprocess.Popen(command, cwd=directory, env=env, **options)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def out(self) -> str:
        return self._files["out"].read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._files["err"].read_text(errors="replace")

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def kill(self) -> None:
        """SIGKILL to it alone."""
        self.process.kill()
        self.process.wait(WAIT)

    def said(self, text: str) -> None:
        """Waits until it has said something."""
        until(lambda: text in self.err or self.process.poll() is not None, text)
        assert text in self.err, f"{self.out}\n{self.err}"

    def finish(self, timeout: float = WAIT) -> Finished:
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end\n{self.out}\n{self.err}") from None
        return Finished(code, self.out, self.err, self.run_dir)

    def below(self) -> list[proc.ProcessFacts]:
        return proc.descendants(self.pid)

    def spawner(self) -> int:
        (child,) = [process.pid for process in self.below() if process.ppid == self.pid]
        return child


class Launcher(Running):
    """A launcher of an experiment that is written for it; others as for `Running`."""

    def __init__(
        self, directory: Path, launch: Mapping[str, Any], *overrides: str, **options: Any
    ) -> None:
        # JSON is YAML; interpolations of the config stay as they are
        Project(directory).experiment("test", json.dumps(launch))
        command = [sys.executable, "-m", "lllaunch", "+exp=test", "hydra.run.dir=run", *overrides]
        super().__init__(command, directory, **options)


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
