"""Nodes meet: who they are, how they find each other, and what keeps them from it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launching import until

from cluster.clusters import LOSES, PORT, PRELOAD, Cluster, Clusters, Node
from cluster.networks import INTERFACE, Network


@pytest.mark.smoke
def test_two_nodes_run_one_group_and_node_0_writes_what_became_of_it(clusters: Clusters) -> None:
    cluster = clusters(2)
    first, second = cluster.start_all()
    assert cluster.ended() == [0, 0]
    workers = cluster.wait_for(4, 2)
    assert [each.host for each in workers] == ["host0", "host0", "host1", "host1"]
    assert {each.env["MASTER_ADDR"] for each in workers} == {"10.77.0.1"}
    assert {each.env["TORCHELASTIC_RUN_ID"] for each in workers} == {"run"}
    result = cluster.result()
    assert (result["state"], result["exit_code"]) == ("succeeded", 0)
    (attempt,) = result["attempts"]
    assert [(each["rank"], each["pid"]) for each in attempt["workers"]] == [
        (each.rank, each.pid) for each in workers
    ]
    nodes = [(each["node_rank"], each["hostname"], each["shared"]) for each in result["nodes"]]
    assert nodes == [(0, "host0", True), (1, "host1", True)]
    shown = cluster.verb("show", "run")
    assert "rank 3  succeeded" in shown
    assert "run/node_1/attempt_0/1" in shown
    assert "logs in run/node_0/attempt_0" in first.console
    assert "logs in run/node_1/attempt_0" in second.console


def test_nodes_with_file_systems_of_their_own_and_numbers_of_workers_of_their_own(
    clusters: Clusters,
) -> None:
    cluster = clusters(2, shared=False)
    cluster.start(0, nproc=1)
    second = cluster.start(1, nproc=3)
    assert cluster.ended() == [0, 0]
    workers = cluster.wait_for(4, 2)
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
    assert [[each.env[name] for name in names] for each in workers] == [
        ["0", "0", "1", "0", "0"],
        ["1", "0", "3", "1", "1"],
        ["2", "1", "3", "1", "2"],
        ["3", "2", "3", "1", "3"],
    ]
    assert {each.env["GROUP_WORLD_SIZE"] for each in workers} == {"2"}
    result = cluster.result()
    assert [each["nproc"] for each in result["nodes"]] == [1, 3]
    assert [each["shared"] for each in result["nodes"]] == [True, False]
    assert result["nodes"][1]["directory"] == str(cluster.directory(1) / "run" / "node_1")
    assert [each["rank"] for each in result["attempts"][0]["workers"]] == [0, 1, 2, 3]
    cluster.verb("show", "run")
    # the other node has its own part only
    assert not (cluster.directory(1) / "run" / "result.json").exists()
    assert cluster.result(1, "run/node_1")["state"] == "succeeded"
    assert "results in run/node_1" in second.console


@pytest.mark.skipif(not Network.has_ipv6(), reason="the kernel of this machine has no IPv6")
def test_nodes_meet_over_ipv6_and_over_the_interface_that_is_named(clusters: Clusters) -> None:
    cluster = clusters(2)
    # torch numbers nodes by their addresses: the first of the group is not node 0
    endpoint = f"[{cluster.network.address(1, 6)}]:{PORT}"
    for number, node_rank in ((0, 1), (1, 0)):
        override = f"launch.rdzv.interface={INTERFACE}"
        cluster.start(number, override, endpoint=endpoint, node_rank=node_rank)
    assert cluster.ended() == [0, 0]
    workers = cluster.wait_for(4, 2)
    assert [each.host for each in workers] == ["host0", "host0", "host1", "host1"]
    assert {each.env["MASTER_ADDR"] for each in workers} == {cluster.network.address(0, 6)}
    result = cluster.result()
    assert result["state"] == "succeeded"
    named = [(each["name"], each["group_rank"]) for each in result["nodes"]]
    assert named == [("node 0 (host1)", 1), ("node 1 (host0)", 0)]
    assert [each["rank"] for each in result["attempts"][0]["workers"]] == [0, 1, 2, 3]


def test_an_interface_that_the_others_cannot_reach_is_told_on_every_node(
    clusters: Clusters,
) -> None:
    cluster = clusters(2)
    nodes = cluster.start_all("launch.rdzv.interface=lo")
    assert cluster.ended() == [2, 2]
    for node in nodes:
        assert "leads to 127.0.0.1 on node 0 (host0)" in node.console
        assert "node 1 (host1) cannot reach" in node.console
        assert "launch.rdzv.interface" in node.console
    assert not cluster.seen()


def test_a_static_rendezvous_starts_its_group_again(clusters: Clusters) -> None:
    cluster = clusters(2)
    nodes = cluster.start_all("launch.max_restarts=1", backend="static", args=["hold"])
    before = cluster.wait_for(4, 2)
    cluster.write("fail.3")
    after = cluster.wait_for(4, 2, before)
    assert {each.env["TORCHELASTIC_RESTART_COUNT"] for each in after} == {"1"}
    cluster.go()
    assert cluster.ended() == [0, 0]
    assert [each["state"] for each in cluster.result()["attempts"]] == ["failed", "succeeded"]
    for node in nodes:
        assert "ValueError: rank 3 has had enough" in node.console


@pytest.mark.parametrize(
    ("endpoint", "said", "hint"),
    [
        ("nowhere.invalid:29400", "the name 'nowhere.invalid' does not resolve", "is it started"),
        ("127.0.0.1:29400", "127.0.0.1:29400: Connection refused", "is this machine itself"),
    ],
)
def test_a_node_that_reaches_nobody_says_where_it_looked_and_for_how_long(
    clusters: Clusters, endpoint: str, said: str, hint: str
) -> None:
    cluster = clusters(2)
    node = cluster.start(1, "launch.rdzv.join_timeout=2s", endpoint=endpoint)
    assert node.ended() == 1
    assert said in node.console
    assert hint in node.console
    assert re.search(r"tried for \d", node.console)
    assert cluster.result(1, "run/node_1")["exit_code"] == 1


def test_node_0_says_who_has_come_when_too_few_have(clusters: Clusters) -> None:
    cluster = clusters(2)
    node = cluster.start(0, "launch.rdzv.join_timeout=2s", nnodes=3)
    other = cluster.start(1, "launch.rdzv.join_timeout=2s", nnodes=3)
    assert cluster.ended() == [1, 1]
    # it gives up as well, and knows who has come if node 0 has not given up before
    assert re.search("of 3 nodes have come|nothing answers|see what that one says", other.console)
    assert re.search(r"of 3 nodes have come: host0 \(node_rank 0\)", node.console)
    assert "launch.rdzv.join_timeout" in node.console
    assert cluster.result()["state"] == "error"


def test_plans_that_differ_are_an_error_on_every_node_and_start_nothing(
    clusters: Clusters,
) -> None:
    cluster = clusters(2)
    first = cluster.start(0, "launch.env.COLOUR=green", args=["hold"])
    second = cluster.start(1, "launch.env.COLOUR=blue", args=["hold"])
    assert cluster.ended() == [2, 2]
    for node in (first, second):
        assert "launch.env.COLOUR" in node.console
        assert "node 0 (host0) -> node 1 (host1)" in node.console
        assert "green" in node.console
        assert "blue" in node.console
    assert not cluster.seen()
    assert not list(cluster.root.glob("run/*/attempt_*"))
    assert cluster.result()["exit_code"] == 2


ETCD_PORT = 2379


@pytest.fixture
def start_etcd(tmp_path: Path) -> Iterator[Callable[[Cluster, int], str]]:
    """Starts etcd on a machine, and returns its endpoint; it is ended with the test."""
    if shutil.which("etcd") is None:
        pytest.skip("there is no etcd (Debian: apt-get install etcd-server)")
    pytest.importorskip("etcd", reason="there is no python-etcd (pip install lllaunch[etcd])")
    started: list[subprocess.Popen[bytes]] = []

    def start(cluster: Cluster, number: int) -> str:
        address = cluster.network.address(number)
        url = f"http://{address}:{ETCD_PORT}"
        command = [*cluster.network.command(number), "etcd", "--enable-v2", "--data-dir"]
        with (tmp_path / "etcd.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(*command, str(tmp_path / "etcd")),
                    *("--listen-client-urls", url, "--advertise-client-urls", url),
                    *("--listen-peer-urls", f"http://{address}:{ETCD_PORT + 1}"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        started.append(process)
        ready = b"ready to serve client requests"
        until(lambda: ready in (tmp_path / "etcd.log").read_bytes(), "etcd")
        return f"{address}:{ETCD_PORT}"

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_nodes_meet_in_etcd_restart_together_and_go_on_without_node_0(
    clusters: Clusters, start_etcd: Callable[[Cluster, int], str]
) -> None:
    cluster = clusters(2)
    options = {"nnodes": "1:2", "endpoint": start_etcd(cluster, 1), "backend": "etcd-v2"}
    _, second = cluster.start_all("launch.max_restarts=1", args=["hold"], settings=LOSES, **options)
    first = cluster.wait_for(4, 2)
    # the nodes have come in any order
    cluster.write(f"fail.{next(each.rank for each in first if each.host == 'host1')}")
    both = cluster.wait_for(4, 2, first)
    assert {each.env["TORCHELASTIC_RESTART_COUNT"] for each in both} == {"1"}
    cluster.network.kill(0)
    alone = cluster.wait_for(2, 1, [*first, *both])
    assert {each.host for each in alone} == {"host1"}
    cluster.go()
    assert second.ended() == 0
    assert f"node 0 ({cluster.network.host(0)})" in second.console
    result = cluster.result(1, "run/node_1")
    assert result["state"] == "succeeded"
    assert result["attempts"][0]["state"] == "failed"


# all workers compute together; the one whose rank stands in a file fails while the others wait
COLLECTIVE = """
import os
from pathlib import Path

import torch.distributed as dist

dist.init_process_group("gloo")
import torch

total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 4
rank = dist.get_rank()
if Path(f"fail.{rank}").exists():
    raise ValueError(f"rank {rank} is out of data")
dist.all_reduce(torch.ones(1))
Path(f"done.{rank}").touch()
dist.destroy_process_group()
"""


def mixed(cluster: Cluster, host: str) -> tuple[Node, Node]:
    """Start a torchrun and an lllaunch, as one group; return them in this order.

    The one that is the host has the store, on machine 0.
    """
    cluster.write("collective.py", COLLECTIVE)
    if host == "torchrun":
        torchrun = cluster.torchrun(0, host=True, script="collective.py")
        return torchrun, cluster.start(1, PRELOAD, script="collective.py")
    ours = cluster.start(0, PRELOAD, script="collective.py")
    return cluster.torchrun(1, script="collective.py"), ours


@pytest.mark.parametrize("host", ["torchrun", "lllaunch"])
def test_a_torchrun_and_an_lllaunch_form_one_group(clusters: Clusters, host: str) -> None:
    cluster = clusters(2)
    mixed(cluster, host)
    assert cluster.ended() == [0, 0]
    assert len(list(cluster.root.glob("done.*"))) == 4
    if host == "lllaunch":
        result = cluster.result()
        assert result["state"] == "succeeded"
        # nothing is known of what runs under torchrun
        assert [each["rank"] for each in result["attempts"][0]["workers"]] == [0, 1]


@pytest.mark.parametrize("host", ["torchrun", "lllaunch"])
def test_a_failure_ends_both(clusters: Clusters, host: str) -> None:
    cluster = clusters(2)
    # of machine 1, which does not hold the store
    cluster.write("fail.2")
    torchrun, ours = mixed(cluster, host)
    assert ours.ended() == 3
    assert torchrun.ended() == 1
    failing = torchrun if host == "lllaunch" else ours
    assert "ValueError: rank 2 is out of data" in failing.console
    # connections of its workers may have broken before torchrun's node ended them
    who = "rank 2" if failing is ours else ""
    assert f"Root cause: {who}" in ours.console
