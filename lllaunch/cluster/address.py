"""How many nodes there are and where they meet: as it is written, and as it can be reached.

What is written in configs and by schedulers is read without looking anything up. Host names are
compared with nothing: a machine may have many, and none that others know (pytorch#73656, #85300,
#150532).
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import itertools
import math
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from lllaunch.clock import boot_id
from lllaunch.errors import ConfigError, Diagnostic, Unfit, package_missing
from lllaunch.text import duration

MOST_NODES = 100_000
"""More than any cluster has; a slip of the finger is told from a large one."""

_COUNT = "a number of nodes (1, 2, ... or '1:4' for 1 to 4 of them)"
_ENDPOINT = "an endpoint (host:port, [IPv6 address]:port)"
_CONF = "settings of torch's rendezvous, a mapping or text such as 'k=v,k=v'"
_PORTS = range(1, 2**16)
_HOST_LIST = "a list of hosts such as gpu[01-03,7],login1"
_RANGE = r"[0-9]{1,18}(?:-[0-9]{1,18})?"
_BRACKETS = rf"\[{_RANGE}(?:,{_RANGE})*\]"
_PART = re.compile(rf"{_BRACKETS}|[^\s\[\],]+")
_WORD = re.compile(rf"(?:{_BRACKETS}|[^\s\[\],])+")
_HOSTS = re.compile(rf"{_WORD.pattern}(?:,{_WORD.pattern})*")
# no more of a huge range is made than shows that it is one
_ENOUGH = MOST_NODES + 1
_LONGEST = 300
_HOST = re.compile(r"[^\s/:@\[\],;]+")
_NAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
# What torch would take among its settings, and has a place of its own here.
_ELSEWHERE = {
    "rank": "launch.node_rank says it",
    "is_host": "the node with launch.node_rank 0 is the host",
    "backend": "launch.rdzv.backend says it",
    "endpoint": "launch.rdzv.endpoint says it",
    "run_id": "launch.rdzv.id says it",
    **dict.fromkeys(("nnodes", "min_nodes", "max_nodes"), "launch.nnodes says it"),
    "local_addr": "launch.rdzv.interface says which address is this node's",
    "store_type": "nodes meet at launch.rdzv.endpoint",
}
# torch makes whole numbers of these, and would fail later.
_WHOLE = frozenset(
    {
        *("last_call_timeout", "close_timeout", "heartbeat_timeout"),
        *("keep_alive_interval", "keep_alive_max_attempt"),
    }
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def expand_hosts(text: str) -> list[str]:
    """Returns the names in a list of hosts as Slurm writes it, in its order, or raises `Unfit`.

    The form is that of ``scontrol show hostnames``: numbers and ranges in brackets, as wide as the
    first number of a range is written; several brackets in a name count like an odometer.
    """
    text, names = text.strip(), list[str]()
    if not _HOSTS.fullmatch(text):
        raise Unfit(_HOST_LIST, detail=f"{text!r} is none", code="nodes")
    for word in _WORD.findall(text):
        parts = [
            [*itertools.islice(itertools.chain(*map(_numbers, part[1:-1].split(","))), _ENOUGH)]
            if part.startswith("[")
            else [part]
            for part in _PART.findall(word)
        ]
        if len(names) + math.prod(map(len, parts)) > MOST_NODES:
            detail = f"it has more than {MOST_NODES} names"
            raise Unfit(_HOST_LIST, detail=detail, code="nodes")
        names += ("".join(chosen) for chosen in itertools.product(*parts))
    return names


def _numbers(part: str) -> Iterator[str]:
    first, _, last = part.partition("-")
    if int(last or first) < int(first):
        raise Unfit(_HOST_LIST, detail=f"[{part}] runs backwards", code="nodes")
    return (f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1))


def parse_nnodes(value: object, expected: str = _COUNT) -> tuple[int, int]:
    """Reads a number of nodes or ``MIN:MAX``, at least 1 and in order, or raises `Unfit`."""
    if isinstance(value, int) and not isinstance(value, bool):
        parts = [value]
    else:
        texts = value.strip().split(":") if isinstance(value, str) else []
        if not 1 <= len(texts) <= 2 or not all(map(_is_number, texts)):
            raise Unfit(expected, code="nodes")
        parts = [int(text) for text in texts]
    least, most = parts[0], parts[-1]
    if least < 1:
        raise Unfit("a number of nodes, 1 or more", code="nodes")
    if most < least:
        hint = f"did you mean '{most}:{least}'?" if most else ""
        raise Unfit("MIN:MAX with a MAX that is not less than MIN", hint, code="nodes")
    if most > MOST_NODES:
        raise Unfit(f"a number of nodes, {MOST_NODES} at most", code="nodes")
    return least, most


def format_nnodes(least: int, most: int) -> int | str:
    """Writes how many nodes there may be, as `parse_nnodes` reads it."""
    return least if least == most else f"{least}:{most}"


def parse_endpoint(value: object) -> tuple[str, int | None]:
    """Reads ``host:port`` or ``[IPv6 address]:port``, either also without port, or raises `Unfit`.

    Returns the host without brackets.
    """
    if not isinstance(value, str):
        number = isinstance(value, int) and not isinstance(value, bool)
        raise Unfit(_ENDPOINT, "name the host, and quote it" if number else "", code="endpoint")
    text = value.strip()
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise Unfit(_ENDPOINT, code="endpoint")
    scheme = _SCHEME.match(text)
    if scheme:
        raise Unfit(_ENDPOINT, f"leave out {scheme[0]}", code="endpoint")
    if text.startswith("["):
        address, bracket, rest = text[1:].partition("]")
        if not bracket or not is_ipv6(address) or (rest and not rest.startswith(":")):
            raise Unfit(_ENDPOINT, code="endpoint")
        return address, parse_port(rest[1:]) if rest else None
    if text.count(":") > 1:
        hint = f"write [{text}] or [{text}]:PORT" if is_ipv6(text) else ""
        raise Unfit(_ENDPOINT, hint, code="endpoint")
    host, colon, port = text.partition(":")
    if not _HOST.fullmatch(host):
        raise Unfit(_ENDPOINT, code="endpoint")
    return host, parse_port(port) if colon else None


def format_endpoint(host: str, port: int | None) -> str:
    """Writes where nodes meet, as `parse_endpoint` reads it."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def parse_conf(value: object) -> dict[str, str | int | float | bool]:
    """Reads further settings of a rendezvous: a mapping, or ``k=v,k=v`` as torchrun has it.

    Raises:
        Unfit: it is neither, or has a setting that has a place of its own.
    """
    pairs: Any = value
    if value is None or isinstance(value, str):
        pairs = {}
        for text in value.split(",") if value and value.strip() else ():
            name, equals, item = (part.strip() for part in text.partition("="))
            if not name or not equals or not item:
                raise Unfit(_CONF, detail=f"{text!r} is no k=v", code="nodes")
            pairs[name] = item
    if not isinstance(pairs, dict):
        raise Unfit(_CONF, code="type")
    for name, item in pairs.items():
        wrong = ""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            wrong = f"{name!r} is no name"
        elif name in _ELSEWHERE:
            hint = f"leave {name} out: {_ELSEWHERE[name]}"
            raise Unfit("settings that have no place of their own", hint, code="nodes")
        elif not isinstance(item, (str, int, float)) or item == "":
            wrong = f"{name} is neither text nor a number"
        elif name in _WHOLE and not _is_number(str(item)):
            wrong = f"{name} is a whole number, of seconds or tries"
        if wrong:
            raise Unfit(_CONF, detail=wrong, code="nodes")
    return pairs


def parse_host(value: object) -> str:
    """Reads the name or the address of a host, or raises `Unfit`."""
    if isinstance(value, str):
        text = value.strip()
        bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        if is_ipv6(bare) or (len(text) <= _LONGEST and _HOST.fullmatch(text)):
            return bare
    raise Unfit("the name or the address of a host", code="endpoint")


def parse_port(text: str) -> int:
    """Reads the number of a port, 1 to 65535, or raises `Unfit`."""
    if not _is_number(text) or int(text) not in _PORTS:
        raise Unfit("a port from 1 to 65535", code="endpoint")
    return int(text)


def is_ipv6(text: str) -> bool:
    """Return whether a text is an IPv6 address; it may have a zone (``fe80::1%eth0``)."""
    with contextlib.suppress(ValueError):
        return bool(ipaddress.IPv6Address(text))
    return False


def _is_number(text: Any) -> bool:
    # not all of int's: digits of other scripts, underscores and signs are none here
    return isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 10


def is_loopback(host: str) -> bool:
    """Return whether a host, as it is written, is the machine itself; nothing is looked up."""
    if host.lower().rstrip(".") in ("localhost", "localhost.localdomain", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# Of this machine, and whether an endpoint can be reached; no reverse look-ups


# Addresses that nobody has (RFC 5737, RFC 3849); nothing is sent to them.
_NOWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
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
        raise package_missing("psutil", "launch.rdzv.interface") from None

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
    ways_out = [(family, (address, 9)) for family, address in _NOWHERE]
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
        socket.create_connection((host, port), _ATTEMPT_SECONDS).close()
    except socket.gaierror as error:
        return f"the name {host!r} does not resolve ({error.strerror})"
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return os.strerror(error.errno or errno.EIO)
    return None
