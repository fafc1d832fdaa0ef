"""A port for MASTER_PORT that nobody else gets while it is held.

Ports that the kernel hands out to clients (``ip_local_port_range``) can be taken at any moment, so
one outside that range is chosen. It stays bound, not listening, with SO_REUSEADDR: another plain
bind fails, so that two runs never get the same, while rank 0's store, which sets SO_REUSEADDR
itself, can listen on it.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

_RANGE_FILE = "/proc/sys/net/ipv4/ip_local_port_range"
_FIRST, _LAST = 10_000, 65_535
_TRIES = 2000


def candidates(ephemeral: tuple[int, int], rng: random.Random) -> Iterator[int]:
    """Ports to try, in random order and outside the kernel's range for clients.

    Args:
        ephemeral: first and last port of that range.
        rng: source of the order.
    """
    low, high = ephemeral
    ports = [port for port in range(_FIRST, _LAST + 1) if not low <= port <= high]
    if not ports:
        # A range that takes everything leaves nothing better than trying.
        ports = list(range(_FIRST, _LAST + 1))
    rng.shuffle(ports)
    yield from ports[:_TRIES]


def _ephemeral_range() -> tuple[int, int]:
    try:
        with open(_RANGE_FILE) as file:
            low, high = file.read().split()
    except (OSError, ValueError):
        return 32_768, 60_999
    return int(low), int(high)


class HeldPort:
    """A free port, held until `close`.

    Attributes:
        port: its number.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.port = 0
        for port in candidates(_ephemeral_range(), random.SystemRandom()):
            if self._hold(port):
                self.port = port
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
