"""``stacks`` of a run on several nodes: whoever is asked, the workers of all are shown."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from support.launching import WAIT

from cluster.clusters import PRELOAD, SETTINGS, Cluster, Clusters

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
