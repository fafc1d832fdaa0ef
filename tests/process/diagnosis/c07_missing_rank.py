import datetime as dt
import os
import time

import torch
import torch.distributed as dist


def fetch_shard() -> None:
    time.sleep(1000)


def step(number: int) -> None:
    if number == 1 and os.environ.get("MARKED"):
        open(f"joined-{os.environ['RANK']}", "w").close()
    if os.environ["RANK"] == "2" and number == 1:
        fetch_shard()
    dist.all_reduce(torch.ones(1))


dist.init_process_group("gloo", timeout=dt.timedelta(seconds=45))
for number in range(2):
    step(number)
