"""What fails on one node ends all, and every node says where it began."""

from __future__ import annotations

import re

from cluster.clusters import PRELOAD, Clusters
from lllaunch.results.store import look
from lllaunch.results.timeline import read_timeline

HANGS = """
import os, torch.distributed as dist

dist.init_process_group("gloo")
import torch

if dist.get_rank() == 2:
    open("reached", "w").close()
    import threading
    threading.Event().wait()
dist.all_reduce(torch.ones(1))
"""


def test_a_failure_on_one_node_is_restarted_and_told_on_all(clusters: Clusters) -> None:
    cluster = clusters(2)
    nodes = cluster.start_all("launch.max_restarts=1", args=["hold"])
    before = cluster.wait_for(4, 2)
    cluster.write("fail.2")
    after = cluster.wait_for(4, 2, before)
    assert {each.env["TORCHELASTIC_RESTART_COUNT"] for each in after} == {"1"}
    cluster.write("fail.3")
    assert cluster.ended() == [3, 3]
    result = cluster.result()
    for attempt, rank in zip(result["attempts"], (2, 3), strict=True):
        root = attempt["root_cause"]
        assert (root["rank"], root["cause"]["type"]) == (rank, "Raised")
        fates = {each["rank"]: each["fate"] for each in attempt["workers"]}
        assert fates.pop(rank) == "failed"
        assert set(fates.values()) == {"ended"}
    assert result["root_cause"]["cause"]["message"] == "ValueError: rank 3 has had enough"
    for number, node in enumerate(nodes):
        # the node that it is on need not name itself
        where = " on node 1 (host1)" if number == 0 else ""
        assert f"Root cause: rank 3{where} (attempt 1) raised ValueError" in node.console
        own = cluster.result(name=f"run/node_{number}")
        assert [each["restart_count"] for each in own["attempts"]] == [0, 1]
    report = cluster.verb("report", "run")
    assert "rank 3" in report


def test_a_hang_is_named_on_all_nodes_with_the_stacks_of_all(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.write("hangs.py", HANGS)
    nodes = cluster.start_all(
        "launch.watchdog={stall: 10s, warmup: 0s}", PRELOAD, script="hangs.py"
    )
    assert cluster.ended() == [4, 4]
    assert (cluster.root / "reached").exists()
    for node in nodes:
        assert "rank 2" in node.console
        assert "hangs.py:10" in node.console
        assert "All stacks: run/node_*/attempt_0/*/stacks.txt" in node.console
        said = " ".join(node.console.split())
        assert "Rank 2 never came to all_reduce #1 of default_pg" in said
        assert "ranks 0-1, 3 wait in it since" in said
        assert re.search(r" \[0-1,3\] .*all_reduce", node.console)
        assert re.search(r" \[2\] .*hangs\.py:10", node.console)
    assert "only waited for rank 2" in nodes[0].console
    result = cluster.result()
    assert (result["state"], result["exit_code"]) == ("failed", 4)
    stacks = sorted(path.name for path in cluster.root.glob("run/*/attempt_0/*/stacks*"))
    assert len(stacks) == 4, stacks
    found = look(str(cluster.root / "run"))
    assert found is not None
    timeline = read_timeline(found)
    assert timeline.nodes == ("node 0 (host0)", "node 1 (host1)")
    assert [[lane.rank for lane in each.lanes] for each in timeline.attempts] == [[0, 1], [2, 3]]
    lanes = [lane for attempt in timeline.attempts for lane in attempt.lanes]
    # what each says of it depends on which node has noticed first
    hangs = [lane.rank for lane in lanes for span in lane.spans if span.kind == "hang"]
    assert sorted(hangs) == [0, 1, 2, 3]
    assert all("rendezvous" in {span.kind for span in each.spans} for each in timeline.attempts)


SPINS = """
import hashlib, os
import torch
import torch.distributed as dist


def spins():
    hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 10**9)


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 2:
    spins()
dist.all_reduce(torch.ones(1))
"""


def test_a_rank_that_spins_is_named_though_the_other_node_only_waits(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.write("spins.py", SPINS)
    limits = "launch.watchdog={preset: none, stall: 10s, spin: 10s}"
    nodes = cluster.start_all(limits, PRELOAD, script="spins.py")
    assert cluster.ended() == [4, 4]
    result = cluster.result()
    assert result["root_cause"]["cause"]["type"] == "Spinning"
    for node in nodes:
        assert "no output, no heartbeat and less than 1 KiB/s of I/O for" in node.console
        assert "rank 2 on node 1 (host1) is in spins (spins.py:8)" in node.console


SHOWS = """
import os, sys, time, lllaunch

shown = f"shown.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
if os.environ["RANK"] == "1":
    lllaunch.progress(7, total=100)
    open(shown, "w").close()
    time.sleep(600)
while not os.path.exists(shown):
    time.sleep(0.01)
sys.exit(5)
"""


def test_all_nodes_know_the_step_that_one_has_seen_and_end_alike(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.write("shows.py", SHOWS)
    nodes = cluster.start_all(
        *("launch.max_restarts=9", "launch.restart.max_without_progress=2"),
        script="shows.py",
        nproc=1,
    )
    assert cluster.ended() == [7, 7]
    text = "no progress in 2 attempts, which all ended at step 7: trying again is no use"
    for number, node in enumerate(nodes):
        own = cluster.result(name=f"run/node_{number}")
        assert (own["exit_code"], len(own["attempts"])) == (7, 3)
        assert own["no_progress"]["text"] == text
        assert text.capitalize() in node.console
    result = cluster.result()
    assert (result["exit_code"], result["no_progress"]["step"]) == (7, 7)


def test_a_preflight_that_fails_on_one_node_is_told_on_all(clusters: Clusters) -> None:
    cluster = clusters(2)
    nodes = cluster.start_all(
        "launch.preflight=[sh,-c,'echo rank $RANK; exit $RANK']", args=["hold"], nproc=1
    )
    assert cluster.ended() == [3, 3]
    said = "could not be started: preflight failed: sh -c 'echo rank $RANK; exit $RANK'"
    who = "Root cause: all workers"
    for node, where in zip(nodes, (" on node 1 (host1)", ""), strict=True):
        assert f"{who}{where} (attempt 0) {said} exited with status 1\n" in node.console
    log = "run/node_1/attempt_0/preflight.log"
    assert f"    The preflight's output is in {log}\n" in nodes[0].console
    assert "| rank 1" in nodes[1].console
    result = cluster.result()
    assert result["root_cause"]["cause"]["type"] == "PreflightFailure"
    assert result["root_cause"]["node"] == "node 1 (host1)"
