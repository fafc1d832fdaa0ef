"""Nodes meet in a store that none of them holds, and that outlives node 0."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launching import until

from cluster.clusters import LOSES, Cluster, Clusters

PORT = 2379


def missing() -> str:
    """Return what is missing for etcd, or nothing."""
    if shutil.which("etcd") is None:
        return "there is no etcd (Debian: apt-get install etcd-server)"
    if importlib.util.find_spec("etcd") is None:
        return "there is no python-etcd (pip install lllaunch[etcd])"
    return ""


@pytest.fixture
def start_etcd(tmp_path: Path) -> Iterator[Callable[[Cluster, int], str]]:
    """Starts etcd on a machine, and returns its endpoint; it is ended with the test."""
    if reason := missing():
        pytest.skip(reason)
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


def test_nodes_meet_in_etcd_and_restart_together(
    clusters: Clusters, start_etcd: Callable[[Cluster, int], str]
) -> None:
    cluster = clusters(2)
    endpoint = start_etcd(cluster, 0)
    cluster.write("fail.3")
    cluster.start_all("launch.max_restarts=1", args=["hold"], endpoint=endpoint, backend="etcd-v2")
    cluster.wait_for(4, 2)
    first = cluster.seen()
    second = cluster.wait_for(4, 2, first)
    assert {each.env["TORCHELASTIC_RESTART_COUNT"] for each in second} == {"1"}
    cluster.go()
    assert cluster.ended() == [0, 0]
    result = cluster.result()
    assert [each["state"] for each in result["attempts"]] == ["failed", "succeeded"]
    assert [len(each["workers"]) for each in result["attempts"]] == [4, 4]
    assert [each["state"] for each in result["nodes"]] == ["succeeded", "succeeded"]


def test_with_etcd_the_others_go_on_without_node_0(
    clusters: Clusters, start_etcd: Callable[[Cluster, int], str]
) -> None:
    cluster = clusters(2)
    endpoint = start_etcd(cluster, 1)
    _, second = cluster.start_all(
        nnodes="1:2", args=["hold"], endpoint=endpoint, backend="etcd-v2", settings=LOSES
    )
    both = cluster.wait_for(4, 2)
    cluster.network.kill(0)
    alone = cluster.wait_for(2, 1, both)
    assert {each.host for each in alone} == {"host1"}
    cluster.go()
    assert second.ended() == 0
    assert f"node 0 ({cluster.network.host(0)})" in second.console
    assert cluster.result(1, "run/node_1")["state"] == "succeeded"
