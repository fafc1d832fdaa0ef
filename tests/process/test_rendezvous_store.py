"""A node whose store is there already: torch's own handler joins it, and so does ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

# in a process of its own, since a store ends with that
SCRIPT = """
from torch.distributed import TCPStore
from lllaunch.cluster.rendezvous import Rendezvous
from lllaunch.errors import RendezvousFailed
from lllaunch.spec import Nodes

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
store.set("torch.rendezvous.mine", "")
nodes = Nodes(1, 2, 0, "c10d", "127.0.0.1", store.port)
mine = Rendezvous(nodes, "127.0.0.1", "mine", "default", 1)
mine.connect(print)
print("joined", mine.greet())
try:
    Rendezvous(nodes, "127.0.0.1", "other", "default", 1).connect(print)
except RendezvousFailed as error:
    print(error)
"""


def test_node_0_joins_the_store_of_its_run_that_somebody_else_has_opened() -> None:
    command = [sys.executable, "-c", SCRIPT]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    first, *others = out.splitlines()
    assert first == "joined True"
    assert "the port is in use" in "\n".join(others)
