"""Networks for tests; after each test no process is left on any of their machines."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from support.launching import WAIT

from cluster import slurm as slurms
from cluster.clusters import Cluster, Clusters
from cluster.networks import Network, what_is_missing

_missing = functools.cache(what_is_missing)

# Nodes give each other some seconds for a sign of life. Launchers of more than a few tests at once
# keep a small machine busy for longer than that, so the others wait.
_AT_A_TIME = max(2, (os.cpu_count() or 1) // 4)


def pytest_configure(config: pytest.Config) -> None:
    # pytest-xdist need not be there
    config.addinivalue_line("markers", "xdist_group(name): tests for one process of pytest-xdist")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here not in item.path.parents:
            continue
        # each of its steps has a bound of its own; before them it may wait for its turn
        item.add_marker(pytest.mark.timeout(900))
        if "slurm" in getattr(item, "fixturenames", ()):
            # a second process would bring up a second cluster
            item.add_marker(pytest.mark.xdist_group("slurm"))


@pytest.fixture
def turn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Only so many tests at a time, whichever processes of pytest-xdist they are in."""
    above = tmp_path_factory.getbasetemp()
    above = above.parent if "PYTEST_XDIST_WORKER" in os.environ else above
    with contextlib.ExitStack() as stack:
        places = [
            stack.enter_context((above / f"cluster-{number}").open("w"))
            for number in range(_AT_A_TIME)
        ]
        while not any(map(_taken, places)):
            time.sleep(0.1)
        yield


def _taken(place: IO[str]) -> bool:
    """Whether this process has it now, until it closes it."""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.fixture
def clusters(tmp_path: Path, turn: None) -> Iterator[Clusters]:
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
            left = [each for cluster in made for each in cluster.network.left(WAIT)]
    assert not left, f"left on machines: {left}"


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[slurms.Slurm]:
    """A real Slurm of four nodes, for all tests of this process."""
    if reason := slurms.what_is_missing():
        pytest.skip(f"there can be no Slurm: {reason}")
    with slurms.running() as cluster:
        yield cluster


@pytest.fixture
def slurm(
    slurm_cluster: slurms.Slurm, turn: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[slurms.Slurm]:
    """The Slurm, which has nothing to do; its commands are those on PATH."""
    monkeypatch.setenv("PATH", str(slurm_cluster.tools), prepend=os.pathsep)
    for name in [each for each in os.environ if each.startswith(("SLURM_", "SBATCH_"))]:
        monkeypatch.delenv(name)
    yield slurm_cluster
    slurm_cluster.reset()
