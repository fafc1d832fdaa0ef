"""Calls functions in processes of their own, so that what they set and import is gone with them."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import IO, Any, NoReturn, TypeVar

from lllaunch.errors import LaunchError
from lllaunch.linux.process import set_parent_death_signal
from lllaunch.spawner import signals
from lllaunch.spawner.forks import flush_streams, fork

A = TypeVar("A")
T = TypeVar("T")


class AsideFailed(LaunchError):
    """A process ended without an answer."""

    def __str__(self) -> str:
        return "jobs were composed, and the process that did so was killed or failed"


def aside_each(
    function: Callable[[A], T], items: Sequence[A], processes: int
) -> Generator[T, None, None]:
    """Calls a function with each of some items, in several forks of this process.

    Close what this returns: in a finalizer an exception of a signal's handler would be lost.

    Args:
        function: what it returns can be pickled.
        items: what it is called with.
        processes: how many forks, at least 1.

    Yields:
        what it returned, in the order of the items.

    Raises:
        LaunchError: it raised that.
        AsideFailed: it raised something else, which standard error shows, or its process was
            killed.
    """
    with contextlib.ExitStack() as stack:
        pipes = [
            stack.enter_context(_fork(function, items[place::processes]))
            for place in range(min(processes, len(items)))
        ]
        for place in range(len(items)):
            yield _answer_of(pipes[place % processes])


@contextlib.contextmanager
def _fork(function: Callable[[A], object], items: Sequence[A]) -> Iterator[IO[bytes]]:
    """The pipe that a fork writes its answers to; the fork is gone afterwards."""
    flush_streams()
    read, write = os.pipe2(os.O_CLOEXEC)
    parent, ignored = os.getpid(), signals.ignored_at_start()
    pid = fork()
    if pid == 0:
        try:
            os.close(read)
            _become(parent, ignored)
            _answer(function, items, write)
        finally:
            os._exit(1)
    os.close(write)
    try:
        with os.fdopen(read, "rb") as file:
            yield file
    finally:
        # one that has answered all is ending; the others are not wanted any more
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _become(parent: int, ignored: frozenset[signal.Signals]) -> None:
    """In the fork: ends with the process that forked it, and only that tells it to."""
    signals.leave_terminal(parent)  # Ctrl-C is for the launcher, which ends the fork then
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signals.reset(ignored, python=True)  # lifts the mask, too


def _answer_of(pipe: IO[bytes]) -> Any:
    try:
        answer, error = pickle.load(pipe)  # noqa: S301 - of our own fork
    except (EOFError, pickle.UnpicklingError):
        raise AsideFailed from None
    if error is not None:
        raise error
    return answer


def _answer(function: Callable[[A], object], items: Sequence[A], write: int) -> NoReturn:
    """In the fork: never returns into the code that was forked."""
    try:
        # closed by the end of the process, when all is said on standard error, too
        file = os.fdopen(write, "wb")
        for item in items:
            try:
                answer: tuple[object, LaunchError | None] = (function(item), None)
            except LaunchError as error:
                answer = (None, error)
            file.write(pickle.dumps(answer))
            file.flush()
    except BrokenPipeError:
        # nobody wants the rest
        os._exit(0)
    except BaseException:  # noqa: BLE001 - see above
        traceback.print_exc()
        flush_streams()
        os._exit(1)
    os._exit(0)
