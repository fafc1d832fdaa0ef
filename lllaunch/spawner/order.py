"""One order to start one worker, and how it crosses the wire."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lllaunch.spawner.targets import Function, Module, Pickled, Program, Script, Target
from lllaunch.spawner.wire import Message

_BY_KIND: dict[str, type[Program | Script | Module]] = {
    "program": Program,
    "script": Script,
    "module": Module,
}


@dataclass(frozen=True)
class Order:
    """What to start and how.

    Attributes:
        key: number by which the client knows the worker; unique per spawner.
        rank: local rank, for messages.
        target: what it runs.
        env: variables that differ from the spawner's own.
        cwd: working directory.
        stdout: file for standard output, appended to; empty: the launcher's.
        stderr: file for standard error, likewise.
        fresh: run in a fresh interpreter instead of a fork of the spawner.
    """

    key: int
    rank: int
    target: Target
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    stdout: str = ""
    stderr: str = ""
    fresh: bool = False

    def encode(self) -> tuple[dict[str, Any], bytes, tuple[int, ...]]:
        """The message: header, payload, descriptors."""
        header: dict[str, Any] = {
            "op": "spawn",
            "key": self.key,
            "rank": self.rank,
            "cwd": self.cwd,
            "env": self.env,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "fresh": self.fresh,
        }
        target = self.target
        if isinstance(target, Pickled):
            return header | {"kind": "pickled"}, target.payload, target.fds
        if isinstance(target, Function):
            named = {"kind": "function", "module": target.module, "qualname": target.qualname}
            return header | named, target.call, ()
        kind = type(target).__name__.lower()
        name = target.name if isinstance(target, Module) else target.path
        return header | {"kind": kind, "name": name, "argv": list(target.argv)}, b"", ()

    @classmethod
    def decode(cls, message: Message) -> Order:
        """The order that a message holds."""
        header = message.header
        target: Target
        if header["kind"] == "pickled":
            target = Pickled(message.payload, tuple(message.fds))
        elif header["kind"] == "function":
            target = Function(header["module"], header["qualname"], message.payload)
        else:
            target = _BY_KIND[header["kind"]](header["name"], tuple(header["argv"]))
        return cls(
            header["key"],
            header["rank"],
            target,
            header["cwd"],
            header["env"],
            header["stdout"],
            header["stderr"],
            header["fresh"],
        )
