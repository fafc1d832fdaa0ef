"""Sending a callable and its arguments to a worker, multiprocessing objects included.

Locks, queues and connections of `multiprocessing` pickle only while a process is being spawned:
they ask ``multiprocessing.context.get_spawning_popen()`` to take their descriptors along. `dump`
plays that part. The descriptors travel with the message (SCM_RIGHTS) and are known in the payload
by their index, as in multiprocessing's own forkserver. Tensors of torch follow the same way,
through the reducers that `torch.multiprocessing` registers.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from multiprocessing import context, spawn
from multiprocessing.reduction import ForkingPickler
from typing import Any

from lllaunch.errors import NotPicklable
from lllaunch.spawner import private_names
from lllaunch.spawner.protocol import Pickled

# Descriptors that came with the payload, in the worker.
_inherited: list[int] = []


# Of a function that does without its caller's state.
_NOTHING: dict[str, Any] = {"data": {}, "tracker": -1}


class _InheritedFd:
    """Stands in a payload for a descriptor that travels with it; what DupFd() returns."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        """The descriptor, in the worker; the caller owns a duplicate."""
        return os.dup(_inherited[self.index])


class _Spawning:
    """The part of a ``Popen`` that multiprocessing's reducers talk to while they pickle."""

    DupFd = _InheritedFd

    def __init__(self) -> None:
        self.fds: list[int] = []

    def duplicate_for_child(self, fd: int) -> int:
        """Take a descriptor along; its index in the payload."""
        # The owner may close its own before the message has left.
        self.fds.append(os.dup(fd))
        return len(self.fds) - 1


def dump(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    start_method: str | None,
    what: str,
) -> Pickled:
    """Pickle a call for a worker.

    ``start_method``: the start method that the worker's own multiprocessing shall use; None for a
    function that needs neither that nor the caller's main module. ``what``: names the worker in
    errors, such as ``worker 3``. Returns the target; its descriptors are the caller's to close.

    Raises:
        NotPicklable: the function or an argument cannot be sent; the error names which.
    """
    popen = _Spawning()
    context.set_spawning_popen(popen)  # type: ignore[arg-type]
    try:
        preparation = _NOTHING
        if start_method:
            data: dict[str, Any] = spawn.get_preparation_data("worker")
            data["start_method"] = start_method
            # Without the launcher's tracker a worker that attaches shared memory starts one of its
            # own, which unlinks the launcher's memory when the worker ends.
            tracker = private_names.tracker_fd()
            index = -1 if tracker is None else popen.duplicate_for_child(tracker)
            preparation = {"data": data, "tracker": index}
        try:
            # Two pickles: the second may need the main module that the first prepares.
            return Pickled(_dumps(preparation) + _dumps((function, args)), tuple(popen.fds))
        except Exception as error:
            _close(popen.fds)
            raise _unpicklable(function, args, what, error) from error
    finally:
        context.set_spawning_popen(None)


def _dumps(value: object) -> bytes:
    buffer = io.BytesIO()
    ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def _unpicklable(
    function: Callable[..., Any], args: tuple[Any, ...], what: str, error: Exception
) -> NotPicklable:
    """Find out which part cannot be pickled."""
    parts = [("the function", function), *((f"argument {i}", arg) for i, arg in enumerate(args))]
    for name, part in parts:
        popen = _Spawning()
        context.set_spawning_popen(popen)  # type: ignore[arg-type]
        try:
            _dumps(part)
        except Exception as reason:  # noqa: BLE001 - pickling runs user code
            kind = f"{name} ({type(part).__qualname__}) of {what}"
            return NotPicklable(kind, f"{type(reason).__name__}: {reason}")
        finally:
            _close(popen.fds)
    return NotPicklable(f"the call of {what}", f"{type(error).__name__}: {error}")


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
    fds.clear()


def load(target: Pickled) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Unpickle a call, in the worker; imports the caller's main module as ``__mp_main__``.

    While this runs, starting processes is refused by multiprocessing: that is how a main module
    without the ``if __name__ == "__main__"`` guard gets an explanation instead of a fork bomb.
    """
    _inherited[:] = target.fds
    stream = io.BytesIO(target.payload)
    with private_names.refusing_to_start_processes():
        preparation = pickle.load(stream)  # noqa: S301 - the launcher's own bytes
        if preparation["tracker"] >= 0:
            private_names.use_tracker(os.dup(_inherited[preparation["tracker"]]))
        spawn.prepare(preparation["data"])
        function, args = pickle.load(stream)  # noqa: S301
    _close(_inherited)
    return function, args
