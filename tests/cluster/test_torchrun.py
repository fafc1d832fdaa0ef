"""torchrun and lllaunch on machines of one group, and what their workers see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.clusters import PRELOAD, Cluster, Clusters, Node, Seen

# what only one of the two sets
OURS_ALONE = {
    "LLLAUNCH_CRASH_FILE",
    "LLLAUNCH_HEARTBEAT",
    "LLLAUNCH_RESULT_FILE",
    "LLLAUNCH_RUN",
}
# what is another one each time, and compared by form
DIFFERENT = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TMPDIR"}
CONTRACT = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
}


def test_every_worker_sees_the_same_variables_under_both(clusters: Clusters) -> None:
    theirs_cluster, ours_cluster = clusters(2), clusters(2)
    theirs_cluster.root /= "theirs"
    ours_cluster.root /= "ours"
    for number in range(2):
        theirs_cluster.torchrun(number, host=number == 0)
        ours_cluster.start(number, "launch.watchdog=none")
    assert theirs_cluster.ended() == ours_cluster.ended() == [0, 0]
    theirs, ours = theirs_cluster.wait_for(4, 2), ours_cluster.wait_for(4, 2)
    for rank in range(4):
        assert theirs[rank].env.keys() >= CONTRACT
        _same(theirs[rank], ours[rank])


def _same(theirs: Seen, ours: Seen) -> None:
    assert theirs.host == ours.host
    assert ours.env.keys() - theirs.env.keys() == OURS_ALONE
    # the first has it from this test
    assert theirs.env.keys() - ours.env.keys() <= {"TMPDIR"}
    common = theirs.env.keys() & ours.env.keys() - {"PWD"}
    differing = {name for name in common if theirs.env[name] != ours.env[name]}
    assert differing <= DIFFERENT
    for each in (theirs, ours):
        assert 0 < int(each.env["MASTER_PORT"]) < 2**16
        parts = Path(each.env["TORCHELASTIC_ERROR_FILE"]).parts
        assert parts[-3:] == ("attempt_0", each.env["LOCAL_RANK"], "error.json")


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


@pytest.mark.parametrize(("host", "failing"), [("torchrun", "lllaunch"), ("lllaunch", "torchrun")])
def test_a_failure_ends_both(clusters: Clusters, host: str, failing: str) -> None:
    cluster = clusters(2)
    # of machine 1, which does not hold the store
    rank = 2
    cluster.write(f"fail.{rank}")
    torchrun, ours = mixed(cluster, host)
    assert ours.ended() == 3
    assert torchrun.ended() == 1
    own = ours if failing == "lllaunch" else torchrun
    assert f"ValueError: rank {rank} is out of data" in own.console
    if failing == "lllaunch":
        assert re.search(f"Root cause: rank {rank}", ours.console)
    else:
        # its workers' connections broke, if they were not ended before
        assert "Root cause" in ours.console
