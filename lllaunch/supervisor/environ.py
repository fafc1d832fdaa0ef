"""The environment contract between launcher and workers, as torchrun sets it, and its port.

Source: torchrun of torch 2.13 ("Environment Variables" in its documentation).
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import socket
from collections.abc import Iterator, Mapping

from msgspec import Struct

from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.signal_source import DEFAULT_SIGNALS, SIGNALS_TO_HANDLE
from lllaunch.spec import THREADS, WORKER_NAMES

# On one node the store is reached over loopback, whatever the host's name resolves to.
LOOPBACK = "127.0.0.1"


class WorkerContext(Struct, frozen=True, kw_only=True):
    """Where one worker stands in its group."""

    local_rank: int
    rank: int
    group_rank: int = 0
    role_rank: int
    role_name: str
    local_world_size: int
    world_size: int
    group_world_size: int = 1
    role_world_size: int
    master_addr: str = ""
    master_port: int = 0
    restart_count: int = 0
    max_restarts: int
    run_id: str
    attempt: int = 0
    hostname: str = ""
    # whether workers join a store of the agent's instead of opening their own
    use_agent_store: bool = False

    def macro_values(self) -> dict[str, str]:
        """What ``${worker:NAME}`` stands for (`lllaunch.spec.WORKER_NAMES`)."""
        return {name: str(getattr(self, name)) for name in WORKER_NAMES}


def contract(place: WorkerContext, outer: Mapping[str, str]) -> dict[str, str]:
    """The variables of one worker."""
    env = {
        "LOCAL_RANK": str(place.local_rank),
        "RANK": str(place.rank),
        "GROUP_RANK": str(place.group_rank),
        "ROLE_RANK": str(place.role_rank),
        "ROLE_NAME": place.role_name,
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "WORLD_SIZE": str(place.world_size),
        "GROUP_WORLD_SIZE": str(place.group_world_size),
        "ROLE_WORLD_SIZE": str(place.role_world_size),
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": str(place.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(place.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(place.max_restarts),
        "TORCHELASTIC_RUN_ID": place.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(place.use_agent_store),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": outer.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        SIGNALS_TO_HANDLE: outer.get(SIGNALS_TO_HANDLE, DEFAULT_SIGNALS),
    }
    if THREADS in outer:
        env[THREADS] = outer[THREADS]
    elif place.local_world_size > 1:
        # As torchrun does: n workers with as many threads each as there are cores would fight.
        env[THREADS] = "1"
    return env


def virtual_rank(local_rank: int, outer: Mapping[str, str]) -> dict[str, str]:
    """The variables by which a worker sees its own GPU as device 0 and itself as local rank 0.

    Raises:
        ConfigError: CUDA_VISIBLE_DEVICES lists too few devices.
    """
    visible = outer.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(local_rank)}
    devices = [device.strip() for device in visible.split(",") if device.strip()]
    if local_rank >= len(devices):
        key, came = "launch.virtual_local_rank", f"CUDA_VISIBLE_DEVICES={visible!r}"
        expected = f"a device for local rank {local_rank}"
        raise ConfigError((Diagnostic("gpus", key, came, "", expected=expected),))
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": devices[local_rank]}


# The port


_RANGE_FILE = "/proc/sys/net/ipv4/ip_local_port_range"
_FIRST, _LAST = 10_000, 65_535
_DRAWS = 20_000


def candidates(ephemeral: tuple[int, int]) -> Iterator[int]:
    """Ports to try, at random and outside the kernel's range for clients."""
    low, high = ephemeral
    # a range that takes everything leaves nothing better than trying
    everything = low <= _FIRST and high >= _LAST
    for _ in range(_DRAWS):
        # `random` would add to every start what it imports
        port = _FIRST + int.from_bytes(os.urandom(8), "big") % (_LAST + 1 - _FIRST)
        if everything or not low <= port <= high:
            yield port


def _ephemeral_range() -> tuple[int, int]:
    try:
        with open(_RANGE_FILE) as file:
            low, high = file.read().split()
    except (OSError, ValueError):
        return 32_768, 60_999
    return int(low), int(high)


def store_can_be_served() -> bool:
    """Whether a process can serve torch's store; torch's variable forbids it, as for its agents."""
    forbidden = os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1"
    return not forbidden and importlib.util.find_spec("torch") is not None


class HeldPort:
    """A port for MASTER_PORT that nobody else gets while it is held, until `close`.

    Ports that the kernel hands out to clients (``ip_local_port_range``) can be taken at any moment,
    so one outside that range is chosen. It stays bound with SO_REUSEADDR: another plain bind fails,
    so that two runs never get the same. The process of torch's store takes it over listening
    (`lllaunch.cluster.rendezvous.serve_store`). Without that it does not listen, and rank 0's
    store, which sets SO_REUSEADDR itself, can bind beside it.
    """

    def __init__(self, *, listens: bool = False) -> None:
        found = filter(None, map(_bound, candidates(_ephemeral_range())))
        self._socket = next(found, None)
        if self._socket is None:
            raise OSError("no free port was found for MASTER_PORT")
        # Bound without it, so that no other run got the port in between; from now on the store may
        # bind beside us.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port = int(self._socket.getsockname()[1])
        self.listener = self._socket if listens else None  # takes the store's clients, or None
        if listens:
            self._socket.listen(socket.SOMAXCONN)

    def close(self) -> None:
        """Let the port go; idempotent."""
        if self._socket is not None:
            self._socket.close()


def _bound(port: int) -> socket.socket | None:
    """Return a socket that has a port of IPv6 and IPv4, None if that is taken."""
    # a kernel without IPv6, or where it is switched off, has the other one
    for family in (socket.AF_INET6, socket.AF_INET):
        with contextlib.suppress(OSError):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                sock.bind(("", port))
            except OSError as error:
                sock.close()
                if error.errno == errno.EADDRINUSE:
                    return None
                raise
            return sock
    return None
