"""A run of several nodes: a launcher on each machine of a network, and what they leave."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

from support.launching import WAIT, Project, Running, until

from cluster.networks import INTERFACE, Network

PORT = 29400
# However busy this machine is, no node is lost that is there; and where one is to be lost, that
# takes some seconds without a sign of life.
SETTINGS = {"keep_alive_interval": 1, "keep_alive_max_attempt": 60, "last_call_timeout": 2}
LOSES = {**SETTINGS, "keep_alive_max_attempt": 5}
# Workers that import torch share one import.
PRELOAD = "launch.preload=[torch.distributed]"

# What all workers here run, if a test says nothing else: they write down what they see, and do as
# files in the working directory say.
WORKER = """
import json, os, socket, sys, time
from pathlib import Path

rank, host = os.environ["RANK"], socket.gethostname()
seen = Path("seen", f"{host}.{os.environ['LOCAL_RANK']}.{os.getpid()}")
seen.parent.mkdir(exist_ok=True)
facts = {"host": host, "pid": os.getpid(), "at": time.time(), "env": dict(os.environ)}
Path(f"{seen}.new").write_text(json.dumps(facts))
os.rename(f"{seen}.new", f"{seen}.json")
while "hold" in sys.argv and not Path("go").exists():
    if Path(f"fail.{rank}").exists():
        os.rename(f"fail.{rank}", f"failed.{rank}")
        raise ValueError(f"rank {rank} has had enough")
    time.sleep(0.02)
"""


class Seen(NamedTuple):
    """What a worker has written down: its machine, and when it came, seconds since the epoch."""

    host: str
    pid: int
    at: float
    env: Mapping[str, str]

    @property
    def rank(self) -> int:
        return int(self.env["RANK"])

    @property
    def round(self) -> tuple[str, str]:
        """What the workers of one attempt have in common, and no others."""
        return self.env["MASTER_PORT"], self.env["WORLD_SIZE"]


class Node(Running):
    """A launcher on a machine; `console` is what it prints."""

    def __init__(self, name: str, *launcher: Any) -> None:
        super().__init__(*launcher)
        self.name = name

    @property
    def console(self) -> str:
        return self.out + self.err

    def ended(self) -> int:
        """Return the exit status, negative for a signal."""
        return self.finish(WAIT).code


class Cluster:
    """Launchers on the machines of a network."""

    def __init__(self, network: Network, root: Path, *, shared: bool = True) -> None:
        self.network = network
        self.root = root
        self.shared = shared
        self.endpoint = f"{network.address(0)}:{PORT}"
        self.nodes: list[Node] = []

    def directory(self, number: int) -> Path:
        """Return where the launchers of a machine run."""
        found = self.root if self.shared else self.root / f"of {number}"
        found.mkdir(parents=True, exist_ok=True)
        return found

    def write(self, name: str, text: str = "") -> None:
        """Write a file into the working directory of every machine."""
        for directory in {self.directory(number) for number in range(self.network.size)}:
            (directory / name).write_text(dedent(text))

    # Starting

    def start(
        self,
        number: int,
        *overrides: str,
        nnodes: int | str = 2,
        nproc: int = 2,
        args: Sequence[str] = (),
        script: str = "worker.py",
        node_rank: int | None = None,
        endpoint: str | None = None,
        settings: Mapping[str, int] = SETTINGS,
        backend: str = "c10d",
    ) -> Node:
        """Start lllaunch on a machine, whose number its node has unless `node_rank` says another.

        The nodes meet at machine 0 unless `endpoint` says another; `settings` are of torch's
        rendezvous.
        """
        conf = ", ".join(f"{name}: {value}" for name, value in settings.items())
        node = [
            f"launch.entrypoint={script}",
            f"launch.args=[{','.join(args)}]",
            f"launch.nproc={nproc}",
            f"launch.nnodes='{nnodes}'",
            f"launch.node_rank={number if node_rank is None else node_rank}",
            f"launch.rdzv.endpoint='{endpoint or self.endpoint}'",
            f"launch.rdzv.backend={backend}",
            "launch.rdzv.id=run",
            "launch.grace_period=5",
            *([f"+launch.rdzv.conf={{{conf}}}"] if backend != "static" else []),
        ]
        return self.run(number, "lllaunch", *node, "hydra.run.dir=run", *overrides)

    def torchrun(self, number: int, *, script: str = "worker.py", host: bool = False) -> Node:
        """Start torchrun on a machine, with two workers; `host` says whether it holds the store."""
        conf = {**SETTINGS, "is_host": int(host)}
        return self.run(
            number,
            "torch.distributed.run",
            "--nnodes=2",
            "--nproc-per-node=2",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.endpoint}",
            "--rdzv-id=run",
            "--rdzv-conf=" + ",".join(f"{name}={value}" for name, value in conf.items()),
            f"--local-addr={self.network.address(number)}",
            script,
            # it leaves a directory of logs behind
            environ={"TMPDIR": str(self.root)},
        )

    def run(
        self, number: int, module: str, *args: str, environ: Mapping[str, str] | None = None
    ) -> Node:
        """Start a module on a machine."""
        if not (self.directory(number) / "worker.py").exists():
            self.write("worker.py", WORKER)
        command = [*self.network.command(number), sys.executable, "-m", module, *args]
        # gloo takes the address of the host's name, which here has none
        env = {"GLOO_SOCKET_IFNAME": INTERFACE, **(environ or {})}
        name = f"{self.network.host(number)} ({module})"
        node = Node(name, command, self.directory(number), env)
        self.nodes.append(node)
        return node

    def start_all(self, *overrides: str, **options: Any) -> list[Node]:
        """Start lllaunch on all machines; parameters as of `start`."""
        options = {"nnodes": self.network.size, **options}
        return [self.start(number, *overrides, **options) for number in range(self.network.size)]

    # What is seen

    def seen(self) -> list[Seen]:
        """Return what all workers so far have written down, in the order in which they came."""
        found = []
        for number in {0} if self.shared else range(self.network.size):
            for path in (self.directory(number) / "seen").glob("*.json"):
                found.append(Seen(**json.loads(path.read_text())))
        return sorted(found, key=lambda each: each.at)

    def wait_for(self, count: int, hosts: int, before: Sequence[Seen] = ()) -> list[Seen]:
        """Wait for so many workers of an attempt on so many machines; return them by rank."""
        known = {(each.host, each.pid) for each in before}

        def new() -> list[Seen]:
            found = [each for each in self.seen() if (each.host, each.pid) not in known]
            last = [each for each in found if each.round == found[-1].round]
            complete = len(last) == count == int(last[0].env["WORLD_SIZE"]) if last else False
            return last if complete and len({each.host for each in last}) == hosts else []

        def dead() -> bool:
            return all(node.process.poll() is not None for node in self.nodes)

        found = until(lambda: new() or dead(), f"{count} workers on {hosts} machines")
        assert found is not True, f"all launchers have ended before {count} workers came"
        by_rank: list[Seen] = sorted(found, key=lambda each: each.rank)
        assert [each.rank for each in by_rank] == list(range(count))
        return by_rank

    def go(self) -> None:
        """Let workers that hold end."""
        self.write("go")

    def ended(self, *nodes: Node) -> list[int]:
        """Return the exit statuses of launchers, of all without arguments."""
        return [node.ended() for node in nodes or self.nodes]

    def result(self, number: int = 0, name: str = "run") -> Any:
        """Return result.json of the run, or of a directory of it."""
        return json.loads((self.directory(number) / name / "result.json").read_text())

    def verb(self, *args: str) -> str:
        """Run a verb where machine 0 runs; return what it printed."""
        done = Project(self.directory(0)).lllaunch(*args)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # The end

    def close(self) -> None:
        """End what still runs, and show what all launchers have printed."""
        for node in self.nodes:
            if node.process.poll() is None:
                node.kill()
            print(f"--- {node.name}: exit status {node.process.returncode}\n{node.console}")


Clusters = Callable[..., Cluster]
