"""The same training with bad luck: in the first attempt a worker is killed after an epoch.

The launcher ends the other worker and starts both again; they go on from the checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys

from train import main


def die_once(epoch: int) -> None:
    first_attempt = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first_attempt and epoch == 1 and os.environ["RANK"] == "1":
        print("the bad luck of rank 1: SIGKILL", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(after_epoch=die_once)
