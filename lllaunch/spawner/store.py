"""The process that serves torch's store on one node, so that ranks may end in any order.

Under torchrun the agent holds the store. The launcher does without torch: it only listens at
MASTER_PORT, and the first connection starts this process, which takes the listening socket over.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
from typing import NoReturn

# In the events about it, instead of a local rank.
RANK = -2
# An error of it is no worker's.
ENVIRONMENT = {"TORCHELASTIC_ERROR_FILE": os.devnull}


def available() -> bool:
    """Whether this process can be started; torch's variable forbids it, as for torch's agents."""
    forbidden = os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1"
    return not forbidden and importlib.util.find_spec("torch") is not None


def serve(listener: socket.socket) -> NoReturn:
    """Serve a ``TCPStore`` until this process is killed."""
    # A signal that a scheduler sends to all processes of a job must not end it before the workers.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    # Takes seconds where it is not preloaded.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415

    port = listener.getsockname()[1]
    _store = TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    while True:
        signal.pause()
