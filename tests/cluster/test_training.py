"""Training on several nodes that goes on after one of them is lost."""

from __future__ import annotations

import json
from typing import Any

from support.launching import until

from cluster.clusters import PRELOAD, WAIT, Clusters

# Each attempt says where it began; the second node is lost when some steps are saved.
TRAIN = """
import json, os, time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 30
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
saved = Path("checkpoint.pt")
first = 0
if saved.exists():
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    first = state["step"]
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
if rank == 0:
    with open("attempts", "a") as file:
        print(json.dumps({"world": world, "first": first}), file=file)
for step in range(first, STEPS):
    inputs = torch.ones(8, 4) * (rank + 1)
    loss = ((ddp(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        torch.save({"model": model.state_dict(), "step": step + 1}, "checkpoint.new")
        os.rename("checkpoint.new", saved)
    while step >= 9 and world == 2:
        time.sleep(0.1)
if rank == 0:
    Path("end").write_text(str(step + 1))
"""


def test_training_goes_on_from_its_checkpoint_when_a_node_is_lost(clusters: Clusters) -> None:
    cluster = clusters(2)
    cluster.write("train.py", TRAIN)
    first, _ = cluster.start_all(PRELOAD, script="train.py", nnodes="1:2", nproc=1)

    def saved() -> Any:
        seen = cluster.root / "attempts"
        lines = [json.loads(line) for line in seen.open()] if seen.exists() else []
        here = any(each["world"] == 2 for each in lines)
        return here and (cluster.root / "checkpoint.pt").exists() and lines

    until(saved, "a checkpoint of both nodes", WAIT)
    cluster.network.kill(1)
    assert first.ended() == 0
    assert (cluster.root / "end").read_text() == "30"
    attempts = [json.loads(line) for line in (cluster.root / "attempts").open()]
    assert attempts[-1]["world"] == 1
    assert 0 < attempts[-1]["first"] <= 10
    result = cluster.result()
    assert result["state"] == "succeeded"
    (lost,) = (each for each in result["nodes"] if each["node_rank"] == 1)
    assert lost["state"] == "lost"
