"""torchrun and lllaunch on machines of one group, and what their workers see."""

from __future__ import annotations

import pytest

from cluster.clusters import PRELOAD, Cluster, Clusters, Node

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
