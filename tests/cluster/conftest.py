"""Networks for tests; after each test no process is left on any of their machines."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import slurm as slurms
from cluster.clusters import Cluster, Clusters
from cluster.networks import Network, what_is_missing

_missing = functools.cache(what_is_missing)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    """What makes machines and launchers on them."""
    if reason := _missing():
        pytest.skip(f"no machines can be made of network namespaces: {reason}")
    with contextlib.ExitStack() as stack:
        made: list[Cluster] = []

        def make(size: int, *, shared: bool = True) -> Cluster:
            network = Network(size)
            stack.enter_context(network.made())
            made.append(Cluster(network, tmp_path, shared=shared))
            return made[-1]

        try:
            yield make
        finally:
            for cluster in made:
                cluster.close()
            left = [each for cluster in made for each in cluster.network.left(5.0)]
    assert not left, f"left on machines: {left}"


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[slurms.Slurm]:
    """A real Slurm of four nodes, for all tests of this process."""
    if reason := slurms.what_is_missing():
        pytest.skip(f"there can be no Slurm: {reason}")
    with contextlib.ExitStack() as stack:
        try:
            cluster = stack.enter_context(slurms.running())
        except slurms.NotUp as error:
            pytest.skip(f"Slurm could not be installed: {error}")
        yield cluster


@pytest.fixture
def slurm(slurm_cluster: slurms.Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[slurms.Slurm]:
    """The Slurm, which has nothing to do; its commands are those on PATH."""
    monkeypatch.setenv("PATH", str(slurm_cluster.tools), prepend=os.pathsep)
    for name in [each for each in os.environ if each.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    yield slurm_cluster
    slurm_cluster.reset()
