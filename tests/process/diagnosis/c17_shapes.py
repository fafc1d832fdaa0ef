import os

import torch
import torch.distributed as dist


def gradients(step: int) -> torch.Tensor:
    odd = os.environ["RANK"] == "2" and step == 3
    return torch.ones(5000 if odd else 4000)


dist.init_process_group("gloo")
for step in range(6):
    dist.all_reduce(gradients(step))
