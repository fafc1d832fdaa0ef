"""What a worker runs: five kinds that cross to the spawner as plain data, and one that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Program:
    """An executable, looked up on the worker's PATH when it holds no slash, and its arguments."""

    path: str
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Script:
    """A Python file, run as ``python -u path argv...`` would."""

    path: str
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Module:
    """A Python module, run as ``python -u -m name argv...`` would."""

    name: str
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Function:
    """An importable function; ``call`` is the pickled ``(args, kwargs)``."""

    module: str
    qualname: str
    call: bytes


@dataclass(frozen=True)
class Pickled:
    """A callable of the calling process; ``payload`` is made by `lllaunch.spawner.pickling.dump`.

    Attributes:
        payload: the pickled ``(preparation, function, args)``.
        fds: descriptors that the payload refers to by index; they are duplicated on sending.
    """

    payload: bytes
    fds: tuple[int, ...] = ()


Target = Program | Script | Module | Function | Pickled


@dataclass(frozen=True)
class Forked:
    """A callable of the calling process, which forks its workers itself: start method ``fork``.

    It may be a closure; nothing of it is pickled.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
