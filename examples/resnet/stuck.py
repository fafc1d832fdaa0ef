"""The same training with worse luck: one worker is killed, and after the restart another hangs.

The ranks that work wait in a collective operation for the one that does not come.
"""

from __future__ import annotations

import os
import time

from train import arguments, main
from unlucky import die_once


def load_next_shard() -> None:
    time.sleep(1000)  # a file system that does not answer


def get_stuck(epoch: int) -> None:
    die_once(epoch)
    late = epoch == arguments(None).epochs * 2 // 3
    if late and os.environ["RANK"] == "2":
        load_next_shard()


if __name__ == "__main__":
    main(after_epoch=get_stuck)
