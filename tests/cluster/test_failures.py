"""What fails on one node ends all, and every node says where it began and where all stand."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from support.launching import WAIT

from cluster.clusters import PRELOAD, SETTINGS, Cluster, Clusters

HANGS = """
import torch.distributed as dist

dist.init_process_group("gloo")
import torch

if dist.get_rank() == 2:
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
    assert "rank 3" in cluster.verb("report", "run")


def test_a_hang_is_named_on_all_nodes_with_the_stacks_of_all(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.write("hangs.py", HANGS)
    nodes = cluster.start_all(
        "launch.watchdog={stall: 10s, warmup: 0s}", PRELOAD, script="hangs.py"
    )
    assert cluster.ended() == [4, 4]
    for node in nodes:
        assert "rank 2" in node.console
        assert "hangs.py:9" in node.console
        assert "All stacks: run/node_*/attempt_0/*/stacks.txt" in node.console
        said = " ".join(node.console.split())
        assert "Rank 2 never came to all_reduce #1 of default_pg" in said
        assert "ranks 0-1, 3 wait in it since" in said
    assert "only waited for rank 2" in nodes[0].console
    result = cluster.result()
    assert (result["state"], result["exit_code"]) == ("failed", 4)
    stacks = sorted(path.name for path in cluster.root.glob("run/*/attempt_0/*/stacks*"))
    assert len(stacks) == 4, stacks


# A node that is stopped for as long as it is asked is not lost.
PATIENT = {**SETTINGS, "keep_alive_max_attempt": 40}


def stacks(cluster: Cluster, number: int, *args: str, code: int = 0) -> tuple[str, str]:
    """Ask on a machine; return what was printed, and what was complained of."""
    done = subprocess.run(
        [*cluster.network.command(number), sys.executable, "-m", "lllaunch", "stacks", *args],
        cwd=cluster.directory(number),
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_any_node_tells_of_all_and_a_silent_one_is_named(clusters: Clusters) -> None:
    cluster = clusters(2)
    nodes = cluster.start_all(PRELOAD, args=["hold"], settings=PATIENT)
    cluster.wait_for(4, 2)
    for number in (0, 1):
        out, err = stacks(cluster, number, "run")
        assert err == ""
        assert out.startswith("run: attempt 0, 4 workers on 2 nodes\n")
        assert "worker.py" in out
        assert "Ranks 0-3 were here" in out or "[0-3] <module> (worker.py" in out
        found = json.loads(stacks(cluster, number, "run", "--json")[0])
        assert [each["rank"] for each in found["ranks"]] == [0, 1, 2, 3]
        names = [each["node"] for each in found["ranks"]]
        assert names == ["node 0 (host0)"] * 2 + ["node 1 (host1)"] * 2
        assert all(each["frames"] for each in found["ranks"])
        assert {(each["state"], each["why_not"]) for each in found["nodes"]} == {("RUNNING", "")}
    # of another node only that is asked
    out, _ = stacks(cluster, 0, "run", "--rank", "3")
    assert "Rank 3 on node 1 (host1), process " in out
    assert "Rank 2" not in out
    # whoever is on another machine hears where to ask
    _, err = stacks(cluster, 0, "run/node_1", code=1)
    assert "run/node_1: runs on host1, and this is host0; ask there: ssh host1 " in err
    # a launcher that stands still, for less than it takes to be given up
    nodes[1].signal(signal.SIGSTOP)
    out, err = stacks(cluster, 0, "run")
    nodes[1].signal(signal.SIGCONT)
    assert "node 1 (host1) did not answer: its workers are not shown" in err
    assert "run: attempt 0, 4 workers on 2 nodes\n" in out
    cluster.go()
    assert cluster.ended() == [0, 0]
