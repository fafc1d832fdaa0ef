"""A real Slurm on this machine, for tests; what brings it up stands beside the project."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.launching import gone, until

SCRIPTS = Path(__file__).parents[3] / "shared" / "slurm"
COMMANDS = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun")
_DAEMONS = ("munged", "slurmctld", "slurmd", "sinfo")

# How long Slurm may take for what it does by itself: it ends a job within 7 s, puts one back in 13.
WAIT = 90.0


def what_is_missing() -> str:
    """Return why there can be no Slurm here, empty if there can."""
    if not (SCRIPTS / "up.sh").exists():
        return f"{SCRIPTS}/up.sh is not there"
    if os.geteuid() != 0:
        return "its nodes are namespaces, which needs root"
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        return "there is no `ip` or no `nsenter`: apt-get install iproute2 util-linux"
    return ""


class NotUp(Exception):
    """Slurm could not be installed here; says why."""


class Slurm:
    """A cluster: ``node0`` and so on, and ``login``, where the commands are given.

    Args:
        nodes: how many.
        gpus: how many each has; they are made up.
    """

    def __init__(self, nodes: int = 4, gpus: int = 8) -> None:
        self.nodes = nodes
        self._gpus = gpus
        # sockets below it have a length
        self.root = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
        self.tools = self.root / "tools"

    def up(self) -> None:
        """Bring it up, or bring back nodes that are down."""
        with open("/tmp/lllaunch-slurm.lock", "w") as lock:
            # Debian's packages are installed by one at a time
            fcntl.flock(lock, fcntl.LOCK_EX)
            installed = all(map(shutil.which, _DAEMONS))
            done = self._script("up.sh")
        if done.returncode:
            text = f"up.sh ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
            assert not installed, text
            raise NotUp(text)
        self._write_tools()

    def down(self) -> None:
        """Take it down; nothing is left of it."""
        self._script("down.sh", CLEAN="1")
        shutil.rmtree(self.root, ignore_errors=True)

    def _script(self, name: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SLURM_")},
            "SLURM_ROOT": str(self.root),
            "NODES": str(self.nodes),
            "GPUS": str(self._gpus),
            **variables,
        }
        # not a pipe, which its daemons would keep open
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [SCRIPTS / name],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=300,
                check=False,
            )
            output.seek(0)
            return subprocess.CompletedProcess(done.args, done.returncode, output.read(), "")

    def _write_tools(self) -> None:
        """Write Slurm's commands as they are called from outside: they enter ``login``.

        In a job, which inherits PATH, they are themselves.
        """
        self.tools.mkdir(exist_ok=True)
        for name in COMMANDS:
            real = shutil.which(name)
            script = f'#!/bin/sh\n[ -n "$SLURM_JOB_ID" ] || set -- {self.root}/enter {real} "$@"\n'
            script += f'[ -n "$SLURM_JOB_ID" ] && set -- {real} "$@"\nexec "$@"\n'
            path = self.tools / name
            if not path.exists():
                path.write_text(script)
                path.chmod(0o755)

    # Commands

    def command(self, *words: str) -> list[str]:
        """Return what a command is on the login node."""
        return [str(self.root / "enter"), *words]

    def call(self, *words: str, timeout: float = 30.0, **options: Any) -> str:
        """Call a command on the login node; return what it writes to standard output."""
        return _call(self.command(*words), timeout, **options)

    def on(self, node: int, *words: str, timeout: float = 30.0, **options: Any) -> str:
        """Call a command on a node; return what it writes to standard output."""
        return _call([str(self.root / "on"), f"node{node}", *words], timeout, **options)

    def sbatch(self, *words: str, **options: Any) -> str:
        """Submit a job; return its id."""
        return self.call("sbatch", "--parsable", *words, **options).strip()

    # What becomes of jobs

    def facts(self, id: str) -> dict[str, str]:  # noqa: A002
        """Return what ``scontrol show job`` says of a job, empty if it does not know it."""
        done = subprocess.run(
            self.command("scontrol", "--oneliner", "show", "job", id),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return dict(re.findall(r"([\w:/]+)=(\S*)", done.stdout.split("\n")[0]))

    def state(self, id: str) -> str:  # noqa: A002
        """Return a job's state, empty if Slurm does not know it."""
        return self.facts(id).get("JobState", "")

    def until_state(self, id: str, *states: str, timeout: float = WAIT) -> str:  # noqa: A002
        """Wait until a job is in one of some states; return it."""
        said: list[str] = []

        def look() -> str:
            said.append(self.state(id))
            return said[-1] if said[-1] in states else ""

        try:
            found: str = _patiently(look, f"job {id}: {', '.join(states)}", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {said[-1]}: {self.facts(id)}") from None
        return found

    def until_over(self, id: str, timeout: float = WAIT) -> str:  # noqa: A002
        """Wait until a job has ended; return its state."""
        states = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL")
        return self.until_state(id, *states, timeout=timeout)

    def queue(self) -> list[str]:
        """Return the ids and states of all jobs in the queue."""
        return self.call("squeue", "-h", "-r", "-o", "%i %T").splitlines()

    # What is done to the cluster

    def configure(self, **settings: object) -> None:
        """Change settings in ``slurm.conf``, until the end of the test."""
        path = self.root / "etc" / "slurm.conf"
        before = self.root / "etc" / "slurm.conf.before"
        if not before.exists():
            shutil.copy(path, before)
        text = path.read_text()
        for name, value in settings.items():
            text = re.sub(rf"^{name}=.*\n", "", text, flags=re.MULTILINE)
            text = f"{name}={value}\n{text}"
        path.write_text(text)
        self._read_again()

    def _read_again(self) -> None:
        """Let Slurm read its settings: those that only a restart of it changes, too."""
        with self.without_controller():
            pass
        self.call("scontrol", "reconfigure")

    @contextlib.contextmanager
    def without_controller(self) -> Iterator[None]:
        """Nobody answers within the block; jobs go on."""
        pid = int((self.root / "run" / "slurmctld.pid").read_text())
        os.kill(pid, signal.SIGTERM)
        _patiently(lambda: gone(pid), "the end of slurmctld", WAIT)
        try:
            yield
        finally:
            self.call("slurmctld", "-f", str(self.root / "etc" / "slurm.conf"))
            _patiently(self._answers, "an answer of slurmctld", WAIT)

    def _answers(self) -> bool:
        words = self.command("scontrol", "ping")
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode == 0 and "UP" in done.stdout

    def partition(self, name: str, **settings: object) -> None:
        """Change a partition, such as its ``GraceTime``, until the end of the test."""
        changes = [f"{key}={value}" for key, value in settings.items()]
        self.call("scontrol", "update", f"partition={name}", *changes)
        (self.root / "etc" / "partition.changed").touch()

    def cut_power(self, node: int) -> None:
        """End all of a node at once. Slurm sees it after some 15 s; `up` brings it back."""
        pid = int((self.root / "run" / f"node{node}.hold").read_text())
        os.kill(pid, signal.SIGKILL)
        until(lambda: gone(pid), f"the end of node{node}")

    def reset(self) -> None:
        """Cancel what is left, and take changes back."""
        if self.queue():
            self.call("scancel", "--user", str(os.getuid()))
        self._restore()
        _patiently(lambda: not self.queue(), "an empty queue", WAIT)
        if len(self._idle()) < self.nodes:
            self.up()

    def _idle(self) -> list[str]:
        """Return the nodes that jobs can have."""
        return self.call("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N").split()

    def _restore(self) -> None:
        path, before = (self.root / "etc" / name for name in ("slurm.conf", "slurm.conf.before"))
        changed = self.root / "etc" / "partition.changed"
        if before.exists():
            before.replace(path)
            self._read_again()
        elif changed.exists():
            self.call("scontrol", "reconfigure")
        changed.unlink(missing_ok=True)


def _call(words: list[str], timeout: float, **options: Any) -> str:
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=timeout, check=False, **options
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    output: str = done.stdout
    return output


def _patiently(look: Callable[[], Any], what: str, timeout: float) -> Any:
    """Wait as `until` does, and leave the two cores of a small machine to others meanwhile."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout:g} s in vain for {what}"
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def running(nodes: int = 4, gpus: int = 8) -> Iterator[Slurm]:
    """Bring up a cluster, and take it down at the end."""
    cluster = Slurm(nodes, gpus)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
