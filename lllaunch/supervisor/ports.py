"""A port for MASTER_PORT that nobody else gets while it is held.

Ports that the kernel hands out to clients (``ip_local_port_range``) can be taken at any moment, so
one outside that range is chosen. It stays bound with SO_REUSEADDR: another plain bind fails, so
that two runs never get the same. The process of torch's store takes it over listening
(`lllaunch.spawner.store`). Without that it does not listen, and rank 0's store, which sets
SO_REUSEADDR itself, can bind beside it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

_RANGE_FILE = "/proc/sys/net/ipv4/ip_local_port_range"
_FIRST, _LAST = 10_000, 65_535
_TRIES = 200


def _draw(below: int) -> int:
    """A random number; `random` would add to every start what it imports."""
    return int.from_bytes(os.urandom(8), "big") % below


def candidates(ephemeral: tuple[int, int], draw: Callable[[int], int] = _draw) -> Iterator[int]:
    """Ports to try, at random and outside the kernel's range for clients."""
    low, high = ephemeral
    below = range(_FIRST, max(_FIRST, min(low, _LAST + 1)))
    above = range(max(_FIRST, min(high + 1, _LAST + 1)), _LAST + 1)
    # A range that takes everything leaves nothing better than trying.
    parts = [part for part in (below, above) if part] or [range(_FIRST, _LAST + 1)]
    total = sum(map(len, parts))
    for _ in range(_TRIES):
        index = draw(total)
        first = len(parts[0])
        yield parts[0][index] if index < first else parts[1][index - first]


def _ephemeral_range() -> tuple[int, int]:
    try:
        with open(_RANGE_FILE) as file:
            low, high = file.read().split()
    except (OSError, ValueError):
        return 32_768, 60_999
    return int(low), int(high)


class HeldPort:
    """A free port, held until `close`."""

    def __init__(self, *, listens: bool = False) -> None:
        self._sockets: list[socket.socket] = []
        self.port = 0
        self.listener: socket.socket | None = None  # the socket that takes them, or None
        for port in candidates(_ephemeral_range()):
            if self._hold(port):
                self.port = port
                if listens:
                    self.listener = self._sockets[0]
                    self.listener.listen(socket.SOMAXCONN)
                return
        raise OSError("no free port was found for MASTER_PORT")

    def _hold(self, port: int) -> bool:
        families = [socket.AF_INET] + ([socket.AF_INET6] if socket.has_ipv6 else [])
        for family in families:
            if not self._bind(family, port):
                self.close()
                return False
        for sock in self._sockets:
            # Bound without it, so that no other run got the port in between; from now on the store
            # may bind beside us.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return True

    def _bind(self, family: int, port: int) -> bool:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            # A kernel without IPv6.
            return family == socket.AF_INET6
        self._sockets.append(sock)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            sock.bind(("", port))
        except OSError as error:
            # IPv6 may be there but switched off on this host.
            return family == socket.AF_INET6 and error.errno in _NO_ADDRESS
        return True

    def close(self) -> None:
        """Let the port go; idempotent."""
        while self._sockets:
            self._sockets.pop().close()


# EADDRNOTAVAIL, EAFNOSUPPORT.
_NO_ADDRESS = (99, 97)
