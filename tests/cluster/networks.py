"""Machines that are network namespaces of this one: each has an interface, all meet at a bridge."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

from support.launching import WAIT, gone, until

from lllaunch.linux import proc

# Each node's only interface, beside loopback.
INTERFACE = "eth0"

_numbers = itertools.count()


class NotAllowed(Exception):
    """No network can be made here; says what is missing."""


def _ip(*args: str, commands: Sequence[str] = ()) -> str:
    done = subprocess.run(
        ["ip", *args],
        input="".join(f"{command}\n" for command in commands),
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    if done.returncode:
        raise NotAllowed(f"`ip {' '.join(args)}` said: {done.stderr.strip()}")
    return done.stdout


def what_is_missing() -> str:
    """Return why no network can be made here, empty if one can."""
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            return f"there is no `{program}`: apt-get install {package}"
    try:
        with Network(2).made():
            return ""
    except NotAllowed as error:
        return f"network namespaces need root with CAP_SYS_ADMIN and CAP_NET_ADMIN: {error}"


class Network:
    """Some machines that reach each other, by their numbers from 0."""

    def __init__(self, size: int) -> None:
        self.size = size
        # several test processes make networks at once
        self._name = f"lllaunch-{os.getpid()}-{next(_numbers)}"
        self._switch = f"{self._name}-switch"

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """Make the machines, and take them away afterwards."""
        try:
            self._make()
            yield
        finally:
            self._remove()

    def _make(self) -> None:
        nodes = range(self.size)
        namespaces = [self._switch, *map(self.namespace, nodes)]
        _ip("-batch", "-", commands=[f"netns add {name}" for name in namespaces])
        _ip("-n", self._switch, "-batch", "-", commands=["link add bridge type bridge"])
        cables = (f"link add {_port(n)} type veth peer name {INTERFACE}" for n in nodes)
        ends = (f" netns {self.namespace(n)}" for n in nodes)
        plugs = (f"link set {_port(n)} master bridge up" for n in nodes)
        commands = [*map("".join, zip(cables, ends, strict=True)), *plugs, "link set bridge up"]
        _ip("-n", self._switch, "-batch", "-", commands=commands)
        for number in nodes:
            commands = [
                "link set lo up",
                f"addr add {self.address(number)}/24 dev {INTERFACE}",
                f"link set {INTERFACE} up",
            ]
            if self.has_ipv6():
                commands.append(f"addr add {self.address(number, 6)}/64 dev {INTERFACE} nodad")
            _ip("-n", self.namespace(number), "-batch", "-", commands=commands)

    def _remove(self) -> None:
        existing = _ip("netns", "list").split()
        for name in (self._switch, *map(self.namespace, range(self.size))):
            if name in existing:
                _ip("netns", "delete", name)

    def namespace(self, number: int) -> str:
        """Return what `ip` calls a machine."""
        return f"{self._name}-{number}"

    @staticmethod
    def address(number: int, version: int = 4) -> str:
        """Return the address of a machine, of IPv4 or IPv6."""
        return f"10.77.0.{number + 1}" if version == 4 else f"fd77::{number + 1}"

    @staticmethod
    def has_ipv6() -> bool:
        """Return whether this machine speaks IPv6."""
        return os.path.exists("/proc/sys/net/ipv6")

    @staticmethod
    def host(number: int) -> str:
        """Return the host name of a machine; nothing resolves it."""
        return f"host{number}"

    def command(self, number: int) -> list[str]:
        """Return what stands before a command for a machine to run it, as the same process."""
        rename = f'echo {self.host(number)} >/proc/sys/kernel/hostname; exec "$@"'
        inside = ["unshare", "--uts", "sh", "-c", rename, "sh"]
        return ["ip", "netns", "exec", self.namespace(number), *inside]

    def cut(self, number: int) -> None:
        """Pull a machine's cable: nothing comes through, and nobody is told."""
        _ip("-n", self._switch, "link", "set", _port(number), "down")

    def mend(self, number: int) -> None:
        """Plug a machine's cable in again."""
        _ip("-n", self._switch, "link", "set", _port(number), "up")

    def processes(self, number: int) -> list[int]:
        """Return the ids of all processes of a machine."""
        return [int(pid) for pid in _ip("netns", "pids", self.namespace(number)).split()]

    def kill(self, number: int) -> None:
        """End all processes of a machine at once, as if it had lost its power."""
        pids: set[int] = set()
        # who is stopped starts nothing, and says nothing when the others are gone
        while new := set(self.processes(number)) - pids:
            for pid in new:
                _send(pid, signal.SIGSTOP)
            pids |= new
        for pid in pids:
            _send(pid, signal.SIGKILL)
        until(lambda: all(map(gone, pids)), f"the end of all of {self.host(number)}")

    def left(self, seconds: float) -> Iterator[str]:
        """Yield what still runs on machines after a while; it is ended."""
        deadline = time.monotonic() + seconds
        for number in range(self.size):
            while (pids := self.processes(number)) and time.monotonic() < deadline:
                time.sleep(0.02)
            for pid in pids:
                yield f"{self.host(number)}: {pid} {proc.command(pid)}"
                _send(pid, signal.SIGKILL)


def _port(number: int) -> str:
    """Return the name of the bridge's end of a machine's cable."""
    return f"port{number}"


def _send(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)
