"""Nodes meet in a store that none of them holds, and that outlives node 0."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launching import until

from cluster.clusters import LOSES, Cluster, Clusters

PORT = 2379


@pytest.fixture
def start_etcd(tmp_path: Path) -> Iterator[Callable[[Cluster, int], str]]:
    """Starts etcd on a machine, and returns its endpoint; it is ended with the test."""
    if shutil.which("etcd") is None:
        pytest.skip("there is no etcd (Debian: apt-get install etcd-server)")
    pytest.importorskip("etcd", reason="there is no python-etcd (pip install lllaunch[etcd])")
    started: list[subprocess.Popen[bytes]] = []

    def start(cluster: Cluster, number: int) -> str:
        address = cluster.network.address(number)
        url = f"http://{address}:{PORT}"
        command = [*cluster.network.command(number), "etcd", "--enable-v2", "--data-dir"]
        with (tmp_path / "etcd.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(*command, str(tmp_path / "etcd")),
                    *("--listen-client-urls", url, "--advertise-client-urls", url),
                    *("--listen-peer-urls", f"http://{address}:{PORT + 1}"),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        started.append(process)
        ready = b"ready to serve client requests"
        until(lambda: ready in (tmp_path / "etcd.log").read_bytes(), "etcd")
        return f"{address}:{PORT}"

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
