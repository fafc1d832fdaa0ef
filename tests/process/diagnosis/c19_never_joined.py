import os
import sys

import torch.distributed as dist


def join() -> None:
    dist.init_process_group("gloo")


if os.environ["RANK"] == "1":
    sys.exit(0)
join()
