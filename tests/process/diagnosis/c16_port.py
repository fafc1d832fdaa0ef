import os
import sys

import torch.distributed as dist


def set_up() -> None:
    first = os.environ["RANK"] == "0"
    dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=first)


set_up()
