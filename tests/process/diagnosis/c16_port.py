import os
import sys

import torch.distributed as dist


def set_up() -> None:
    os.environ["MASTER_PORT"] = sys.argv[1]
    dist.init_process_group("gloo")


set_up()
