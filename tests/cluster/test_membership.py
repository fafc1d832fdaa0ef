"""Nodes come, leave, are lost, cut off and stopped; the others notice, and go on or say why not."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from cluster.clusters import LOSES, PORT, SETTINGS, Cluster, Clusters, Node

ELASTIC = "1:2"


def blames(node: Node, name: str, what: str) -> bool:
    """Return whether a launcher says that all ended for what happened to a node."""
    found = re.search(r"Root cause: (.*) \(attempt \d+\) (.*)", node.console)
    assert found, f"{node.name} names no root cause"
    return found[1] == name and found[2].startswith(what)


def nodes_of(cluster: Cluster) -> dict[int, str]:
    """Return what result.json says of nodes, by their numbers."""
    return {each["node_rank"]: each["said"] for each in cluster.result()["nodes"]}


def test_an_elastic_run_takes_nodes_in_and_goes_on_without_those_that_leave(
    clusters: Clusters,
) -> None:
    cluster = clusters(4)

    def start(number: int) -> Node:
        return cluster.start(number, nnodes="1:4", nproc=1, args=["hold"])

    nodes = {0: start(0)}
    alone = cluster.wait_for(1, 1)
    nodes |= {number: start(number) for number in (1, 2)}
    three = cluster.wait_for(3, 3, alone)
    nodes[3] = start(3)
    four = cluster.wait_for(4, 4, alone + three)
    nodes[2].signal(signal.SIGTERM)
    assert nodes[2].ended() == 128 + signal.SIGTERM
    fewer = cluster.wait_for(3, 3, alone + three + four)
    assert {each.host for each in fewer} == {"host0", "host1", "host3"}
    nodes[2] = start(2)
    again = cluster.wait_for(4, 4, alone + three + four + fewer)
    cluster.go()
    assert cluster.ended(*nodes.values()) == [0, 0, 0, 0]
    # none of this was a restart that counts
    assert {each.env["TORCHELASTIC_RESTART_COUNT"] for each in again} == {"0"}
    result = cluster.result()
    assert result["state"] == "succeeded"
    assert [each["node_rank"] for each in result["nodes"]] == [0, 1, 2, 3]
    last = result["attempts"][-1]
    assert last["state"] == "succeeded"
    assert sorted(each["pid"] for each in last["workers"]) == sorted(each.pid for each in again)
    assert len({each["attempt"] for each in result["attempts"]}) == len(result["attempts"])


@pytest.mark.parametrize(("leaves", "stays"), [(1, 0), (0, 1)])
def test_a_node_that_leaves_ends_a_run_that_needs_it(
    clusters: Clusters, leaves: int, stays: int
) -> None:
    cluster = clusters(2)
    # none goes on without node 0, however few are enough
    nodes = cluster.start_all(nnodes=2 if leaves else ELASTIC, args=["hold"])
    cluster.wait_for(4, 2)
    nodes[leaves].signal(signal.SIGTERM)
    assert nodes[leaves].ended() == 128 + signal.SIGTERM
    assert nodes[stays].ended() == 3
    assert blames(nodes[stays], f"node {leaves} (host{leaves})", "was ended by SIGTERM")
    result = cluster.result()
    if leaves:
        assert result["state"] == "failed"
        assert result["root_cause"]["cause"]["type"] == "NodeGone"
        assert nodes_of(cluster)[1] == "was ended by SIGTERM"
    else:
        assert result["state"] == "signalled"


def test_a_link_that_is_cut_is_noticed_on_both_sides_and_the_node_can_come_again(
    clusters: Clusters,
) -> None:
    cluster = clusters(2)
    first, second = cluster.start_all(nnodes=ELASTIC, args=["hold"], settings=LOSES)
    both = cluster.wait_for(4, 2)
    cluster.network.cut(1)
    fewer = cluster.wait_for(2, 1, both)
    assert {each.host for each in fewer} == {"host0"}
    assert second.ended() == 3
    assert blames(second, "node 0 (host0)", "gave no sign of life")
    cluster.network.mend(1)
    again = cluster.start(1, nnodes=ELASTIC, args=["hold"], settings=LOSES)
    whole = cluster.wait_for(4, 2, both + fewer)
    assert {each.env["TORCHELASTIC_RESTART_COUNT"] for each in whole} == {"0"}
    cluster.go()
    assert cluster.ended(first, again) == [0, 0]
    assert "node 1 (host1) gave no sign of life" in first.console
    result = cluster.result()
    assert [each["state"] for each in result["attempts"]][-1] == "succeeded"
    assert nodes_of(cluster) == {0: "", 1: ""}


@pytest.mark.smoke
def test_the_loss_of_a_node_ends_a_run_that_needs_it(clusters: Clusters) -> None:
    cluster = clusters(2)
    first, _ = cluster.start_all(args=["hold"], settings=LOSES)
    cluster.wait_for(4, 2)
    cluster.network.kill(1)
    assert first.ended() == 3
    assert blames(first, "node 1 (host1)", "gave no sign of life")
    result = cluster.result()
    assert result["state"] == "failed"
    assert result["root_cause"]["cause"]["type"] == "NodeGone"
    assert nodes_of(cluster)[1].startswith("gave no sign of life")
    shown = cluster.verb("show", "run")
    assert "node 1 (host1)" in shown


def test_a_node_that_was_lost_can_come_again_for_a_restart(clusters: Clusters) -> None:
    cluster = clusters(2)
    first, _ = cluster.start_all("launch.max_restarts=1", args=["hold"], settings=LOSES)
    before = cluster.wait_for(4, 2)
    # no goodbye of the kernel's either
    cluster.network.cut(1)
    cluster.network.kill(1)
    first.said("node 1 (host1) gave no sign of life")
    cluster.network.mend(1)
    second = cluster.start(1, "launch.max_restarts=1", args=["hold"], settings=LOSES)
    after = cluster.wait_for(4, 2, before)
    assert {each.env["TORCHELASTIC_RESTART_COUNT"] for each in after} == {"1"}
    cluster.go()
    assert cluster.ended(first, second) == [0, 0]
    assert [each["state"] for each in cluster.result()["attempts"]] == ["failed", "succeeded"]


@pytest.mark.parametrize("goodbye", [True, False], ids=["killed", "without-power"])
def test_the_loss_of_node_0_ends_the_others(clusters: Clusters, goodbye: bool) -> None:
    cluster = clusters(2)
    # the first of the group is not node 0: torch numbers nodes by their addresses
    endpoint = f"{cluster.network.address(1)}:{PORT}"
    cluster.start(1, nnodes=ELASTIC, args=["hold"], settings=LOSES, endpoint=endpoint, node_rank=0)
    other = cluster.start(
        0, nnodes=ELASTIC, args=["hold"], settings=LOSES, endpoint=endpoint, node_rank=1
    )
    cluster.wait_for(4, 2)
    if not goodbye:
        cluster.network.cut(1)
    cluster.network.kill(1)
    assert other.ended() == 3
    said = "closed the connection: its launcher is gone" if goodbye else "gave no sign of life"
    assert blames(other, "node 0 (host1)", said)
    own = cluster.result(name="run/node_1")
    assert own["root_cause"]["cause"]["type"] == "NodeGone"
    assert own["state"] == "failed"


@pytest.mark.parametrize("what", ["link", "supervisor"])
def test_what_stands_still_for_a_moment_is_not_lost(clusters: Clusters, what: str) -> None:
    cluster = clusters(2)
    first, _ = cluster.start_all(args=["hold"])
    cluster.wait_for(4, 2)
    cluster.network.cut(1) if what == "link" else first.signal(signal.SIGSTOP)
    # as long as some signs of life take
    time.sleep(3 * SETTINGS["keep_alive_interval"])
    cluster.network.mend(1) if what == "link" else first.signal(signal.SIGCONT)
    time.sleep(2 * SETTINGS["keep_alive_interval"])
    cluster.go()
    assert cluster.ended() == [0, 0]
    for rank in (0, 1):
        events = (cluster.root / "run" / f"node_{rank}" / "events.jsonl").read_text()
        assert "NodesAgreed" not in {json.loads(line)["type"] for line in events.splitlines()}
    assert len(cluster.seen()) == 4
