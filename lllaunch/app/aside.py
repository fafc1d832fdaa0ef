"""What is composed aside: in forks, so that what it sets and imports is gone with them."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import IO, TypeVar

from lllaunch.errors import LaunchError
from lllaunch.linux.process import set_parent_death_signal
from lllaunch.spawner import forks
from lllaunch.spawner.forks import flush_streams, fork

A = TypeVar("A")
T = TypeVar("T")


class ComposerKilled(LaunchError):
    """A process that composes jobs ended without an answer."""

    def __str__(self) -> str:
        return "jobs were composed, and the process that did so was killed or failed"


def map_in_forks(
    function: Callable[[A], T], items: Sequence[A], processes: int
) -> Generator[T, None, None]:
    """Call a function with each of some items, in several forks of this process.

    Close what this returns: in a finalizer an exception of a signal's handler would be lost.

    ``function``: what it returns can be pickled. Raises `ComposerKilled` if it has raised
    something, which standard error shows, or if its process was killed.
    """
    with contextlib.ExitStack() as stack:
        pipes = [
            stack.enter_context(_fork(function, items[place::processes]))
            for place in range(min(processes, len(items)))
        ]
        for place in range(len(items)):
            try:
                answer = pickle.load(pipes[place % processes])  # noqa: S301 - of our own fork
            except (EOFError, pickle.UnpicklingError):
                raise ComposerKilled from None
            yield answer


def in_fork(work: Callable[[], T], seconds: float) -> T | None:
    """Return what a function returns in a process of its own; None if it takes longer, or dies."""
    with _fork(lambda _: work(), [None]) as answers:
        if select.select([answers], [], [], seconds)[0]:
            with contextlib.suppress(EOFError, pickle.UnpicklingError):
                answer: T | None = pickle.load(answers)  # noqa: S301 - of our own fork
                return answer
    return None


@contextlib.contextmanager
def _fork(function: Callable[[A], object], items: Sequence[A]) -> Iterator[IO[bytes]]:
    """The pipe that a fork writes what the function returns to; it is gone afterwards."""
    flush_streams()
    read, write = os.pipe2(os.O_CLOEXEC)
    parent, ignored = os.getpid(), forks.ignored_at_start()
    pid = fork()
    if pid == 0:
        # never returns into the code that was forked
        try:
            os.close(read)
            # Ctrl-C is for the launcher, which ends the fork then, or takes it along
            forks.leave_terminal(parent)
            set_parent_death_signal(signal.SIGKILL)
            if os.getppid() == parent:
                forks.reset(ignored, python=True)  # lifts the mask, too
                answers = os.fdopen(write, "wb")
                for item in items:
                    pickle.dump(function(item), answers)
                    answers.flush()
        except BaseException:  # noqa: BLE001 - see above
            traceback.print_exc()
            flush_streams()
        finally:
            # closes the pipe, when all is said on standard error, too
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        try:
            yield file
        finally:
            # one that has answered all is ending; the others are not wanted any more
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
