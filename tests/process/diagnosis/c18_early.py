import os

import torch
import torch.distributed as dist


def train(steps: int) -> None:
    for _ in range(steps):
        dist.all_reduce(torch.ones(4))


dist.init_process_group("gloo")
train(3 if os.environ["RANK"] == "1" else 10)
