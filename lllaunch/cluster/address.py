"""Addresses of this machine, and whether an endpoint can be reached; no reverse look-ups.

Host names are compared with nothing: a machine may have many, and none that others know
(pytorch#73656, #85300, #150532).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from lllaunch.clock import boot_id
from lllaunch.cluster.membership import is_loopback
from lllaunch.cluster.values import format_endpoint
from lllaunch.errors import ConfigError, Diagnostic, PackageMissing
from lllaunch.text import duration

# Addresses that nobody has (RFC 5737, RFC 3849); nothing is sent to them.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_ATTEMPT_SECONDS = 5.0
_PAUSE_SECONDS = 1.0


def network_name() -> str:
    """Return what all processes have in common that reach each other over loopback."""
    try:
        namespace = os.readlink("/proc/self/ns/net")
    except OSError:
        namespace = socket.gethostname()
    return f"{boot_id()} {namespace}"


def interface_addresses(name: str) -> list[str]:
    """Return the addresses of a network interface, IPv4 first.

    Raises:
        ConfigError: there is no such interface, or it has no address.
    """
    try:
        import psutil  # noqa: PLC0415 - only where an interface is named
    except ModuleNotFoundError:
        raise PackageMissing("psutil", "launch.rdzv.interface") from None

    known = {
        interface: [
            each.address.partition("%")[0]
            for family in (socket.AF_INET, socket.AF_INET6)
            for each in found
            if each.family == family and not each.address.startswith("fe80:")
        ]
        for interface, found in psutil.net_if_addrs().items()
    }
    if not known.get(name):
        usable = ", ".join(sorted(each for each, addresses in known.items() if addresses))
        expected = "a network interface of this machine that has an address"
        hint, key = f"there are {usable}", "launch.rdzv.interface"
        raise ConfigError((Diagnostic("nodes", key, repr(name), "", hint, expected=expected),))
    return known[name]


def local_address(host: str, port: int, interface: str | None) -> str:
    """Return the address by which other nodes reach this machine.

    It is that of an ``interface``, or of the one that leads to the endpoint.

    Raises:
        ConfigError: the interface is not there.
    """
    if interface is not None:
        found = interface_addresses(interface)
        of_endpoint = [each for each in found if (":" in each) == (":" in host)]
        return (of_endpoint or found)[0]
    if is_loopback(host):
        return host if ":" in host else "127.0.0.1"
    found_by_name: list[Any] = []
    with contextlib.suppress(OSError):
        found_by_name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    targets = [(family, (str(address[0]), port)) for family, *_, address in found_by_name]
    towards = next(_sources(targets), "")
    if towards and not is_loopback(towards):
        return towards
    # A host's own name often leads to 127.0.1.1: node 0 is asked for the way out instead.
    ways_out = [(family, (address, 9)) for family, address in _ELSEWHERE]
    found_out = next((each for each in _sources(ways_out) if not is_loopback(each)), "")
    return found_out or towards or "127.0.0.1"


def _sources(targets: list[tuple[socket.AddressFamily, tuple[str, int]]]) -> Iterator[str]:
    """Yield addresses that the kernel would send from; a UDP socket that connects sends nothing."""
    for family, address in targets:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(address)
            yield str(sock.getsockname()[0]).partition("%")[0]


def await_endpoint(
    host: str,
    port: int,
    seconds: float,
    say: Callable[[str], object],
    given_up: Callable[[], bool] = lambda: False,
) -> str:
    """Wait until something listens at an endpoint; return why nothing does, else nothing.

    ``say``: gets a line for people if that takes longer than a moment. ``given_up``: asked between
    tries; whether nobody waits any more.
    """
    at, began, said = format_endpoint(host, port), time.monotonic(), False
    while (why := _try(host, port)) is not None and not given_up():
        waited = time.monotonic() - began
        if waited >= seconds:
            return f"nothing answers at {at}: {why}; tried for {duration(waited)}"
        if not said and waited > _ATTEMPT_SECONDS:
            said = True
            say(f"waiting for node 0 at {at}, up to {duration(seconds)}: {why}")
        time.sleep(min(_PAUSE_SECONDS, max(0.05, seconds - waited)))
    return ""


def _try(host: str, port: int) -> str | None:
    """Return why nothing can be reached, None if something listens."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return f"the name {host!r} does not resolve ({error.strerror})"
    reasons = []
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as sock:
                sock.settimeout(_ATTEMPT_SECONDS)
                sock.connect(address)
                return None
        except OSError as error:
            timed_out = isinstance(error, TimeoutError)
            text = "no answer" if timed_out else os.strerror(error.errno or errno.EIO)
            at = str(address[0])
            reasons.append(text if at == host else f"{at}: {text}")
    return "; ".join(dict.fromkeys(reasons)) or "it has no address"
