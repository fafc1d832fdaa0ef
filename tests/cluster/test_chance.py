"""Two and three nodes to which chance lets anything happen: all end, and agree on how.

More of them: ``CHANCE=120 FAULTS_SEED=text python -m pytest tests/cluster/test_chance.py``.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from collections.abc import Callable

import pytest
from support.launching import until

from cluster.clusters import LOSES, Cluster, Clusters, Node, Seen
from lllaunch.errors import ExitCode

# Another one each time.
SEED = os.environ.get("FAULTS_SEED") or secrets.token_hex(4)


class Chance:
    """What happens to the nodes of a cluster; how those end that were `hit` is their own affair."""

    def __init__(self, cluster: Cluster, dice: random.Random) -> None:
        self.cluster, self.dice = cluster, dice
        self.hit: set[int] = set()
        self.nodes: dict[int, Node] = {}

    def start(self, number: int, nnodes: int | str) -> None:
        said = {"nnodes": nnodes, "nproc": 1, "args": ["hold"], "settings": LOSES}
        self.nodes[number] = self.cluster.start(
            number, "launch.max_restarts=2", "launch.rdzv.join_timeout=25s", **said
        )

    def let_happen(self) -> None:
        """Do something to one of the nodes."""
        number = self.dice.choice([*self.nodes])
        of_worker = (self._fails, self._kills_worker)
        of_node = (self._kills, self._terminates, self._loses, self._stops, self._cuts)
        fault: Callable[[int], None] = self.dice.choice([*of_worker, *of_node])
        print(f"{fault.__name__} {number}")
        fault(number)
        if fault in of_node:
            self.hit.add(number)

    def _workers(self, number: int) -> list[Seen]:
        host, there = self.cluster.network.host(number), self.cluster.network.processes(number)
        return [each for each in self.cluster.seen() if each.host == host and each.pid in there]

    def _fails(self, number: int) -> None:
        for worker in self._workers(number):
            self.cluster.write(f"fail.{worker.rank}")

    def _kills_worker(self, number: int) -> None:
        for worker in self._workers(number):
            os.kill(worker.pid, signal.SIGKILL)

    def _kills(self, number: int) -> None:
        if self.nodes[number].process.poll() is None:
            self.nodes[number].kill()

    def _terminates(self, number: int) -> None:
        if self.nodes[number].process.poll() is None:
            self.nodes[number].signal(signal.SIGTERM)

    def _loses(self, number: int) -> None:
        self.cluster.network.kill(number)

    def _stops(self, number: int) -> None:
        self._signal_all(number, signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.5, 12.0))
        self._signal_all(number, signal.SIGCONT)

    def _signal_all(self, number: int, signum: signal.Signals) -> None:
        for pid in self.cluster.network.processes(number):
            os.kill(pid, signum)

    def _cuts(self, number: int) -> None:
        self.cluster.network.cut(number)
        if self.dice.random() < 0.7:
            time.sleep(self.dice.uniform(0.5, 12.0))
            self.cluster.network.mend(number)


@pytest.mark.parametrize("number", range(int(os.environ.get("CHANCE", "2"))))
def test_whatever_happens_to_nodes_all_end_and_agree(clusters: Clusters, number: int) -> None:
    dice = random.Random(f"{SEED}-{number}")
    size = dice.choice((2, 3))
    nnodes = dice.choice((size, size, f"1:{size}"))
    print(f"FAULTS_SEED={SEED}, scenario {number}: {nnodes} nodes")
    cluster = clusters(size, shared=dice.random() < 0.5)
    chance = Chance(cluster, dice)
    late = dice.choice((None, None, size - 1))
    for node in range(size):
        if node != late:
            chance.start(node, nnodes)
    if late is not None:
        time.sleep(dice.uniform(0.0, 8.0))
        chance.start(late, nnodes)
    until(lambda: cluster.seen() or _ended(chance), "the first worker")
    for _ in range(dice.choice((1, 1, 2))):
        time.sleep(dice.uniform(0.0, 3.0))
        chance.let_happen()
    cluster.go()
    codes = {node: each.ended() for node, each in chance.nodes.items()}
    print(codes, "hit:", chance.hit)
    known = {*map(int, ExitCode), 128 + signal.SIGTERM, -signal.SIGKILL}
    assert set(codes.values()) <= known
    assert "internal error" not in "".join(each.console for each in chance.nodes.values())
    # one that comes late to a run that needs it no more finds nobody
    came = {each.host for each in cluster.seen()} if isinstance(nnodes, str) else None
    others = [
        node
        for node in codes.keys() - chance.hit
        if came is None or cluster.network.host(node) in came
    ]
    assert len({codes[node] for node in others}) <= 1
    if codes[0] >= 0:
        assert cluster.result()["exit_code"] == codes[0]
    assert all(int(each.env["TORCHELASTIC_RESTART_COUNT"]) <= 2 for each in cluster.seen())


def _ended(chance: Chance) -> bool:
    return all(each.process.poll() is not None for each in chance.nodes.values())
