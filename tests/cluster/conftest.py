"""Networks for tests; after each test no process is left on any of their machines."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

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
