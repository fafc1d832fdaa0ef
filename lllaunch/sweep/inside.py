"""The process of a job, from the fork to its end: it composes, waits for its lease, and runs.

Nothing here returns into the code of the launcher that it was forked from.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import select
import signal
import socket
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from lllaunch.errors import LaunchError, SpawnerDied
from lllaunch.exit_codes import for_signal
from lllaunch.linux.process import (
    flush_c_streams,
    set_lineage,
    set_parent_death_signal,
    wait_readable,
)
from lllaunch.multiprocessing.signals import STACKS_ON, SignalException
from lllaunch.spawner import signals
from lllaunch.spawner.forks import flush_streams
from lllaunch.spawner.orphans import Inherited
from lllaunch.spawner.protocol import Channel, Message
from lllaunch.sweep.machine import Machine, pin
from lllaunch.sweep.prepared import (
    Answer,
    Broken,
    Prepared,
    decode_lease,
    encode,
    is_lease,
)
from lllaunch.sweep.resources import Lease

if TYPE_CHECKING:
    from lllaunch.spawner.client import Spawner
    from lllaunch.sweep.warmth import Warmth

# The launcher ended before the job could ask to end with it.
_ALONE = 127


class Work(NamedTuple):
    """What the processes of jobs do.

    Attributes:
        prepare: composes the job of a number.
        execute: runs it with a lease, and with a warm spawner if there is one; its exit code.
        machine: whose slots are leased.
        pins: whether a job is bound to the cores of its lease.
        warm: the warm spawners, or None; forgotten in the job, but for what they are made of.
        marks: by which the launcher knows what jobs leave: of what they start themselves, and of
            what their spawners do.
        locks: descriptors that a job's spawner keeps open until all that it started has ended, as
            it does the locks of the lease.
    """

    prepare: Callable[[int], Answer]
    execute: Callable[[Prepared, Lease, Spawner | None], int]
    machine: Machine
    pins: bool = False
    warm: Warmth | None = None
    marks: tuple[str, str] = ("", "")
    locks: tuple[int, ...] = ()


class Place(NamedTuple):
    """What a job gets from the launcher at the fork.

    Attributes:
        number: of the job.
        sock: its end of the connection with the launcher.
        parent: process id of the launcher.
        streams: descriptors for standard output and error; empty to keep the launcher's.
        ignored: signals that the launcher was started with as ignored.
    """

    number: int
    sock: socket.socket
    parent: int
    streams: tuple[int, ...]
    ignored: frozenset[signal.Signals]


def become(work: Work, place: Place, leave: Callable[[], None]) -> NoReturn:
    """In the forked process, all signals blocked: be the job, then end.

    Args:
        work: what there is to do.
        place: what the launcher made for this job.
        leave: closes what is the launcher's own.
    """
    code = 1
    try:
        try:
            signals.leave_terminal(place.parent)
            set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != place.parent:
                os._exit(_ALONE)
            _disown()
            leave()
            _mark(*work.marks)
            _set_streams(place.streams)
            # lifts the mask, too; a run takes SIGTSTP when it has something to stop
            signals.reset(place.ignored, python=True, blocked=signals.STOP_AND_CONTINUE)
            if STACKS_ON not in place.ignored:
                # before there are workers, and after, it has nothing to show
                signal.signal(STACKS_ON, lambda *_: None)
            code = _work(work, place)
        except BaseException as error:  # noqa: BLE001 - it must not return into the launcher
            code = _code_of(error)
        _flush()
    finally:
        os._exit(code)


def _mark(own: str, spawners: str) -> None:
    if own:
        set_lineage(own)
        Inherited.lineage = spawners


def _work(work: Work, place: Place) -> int:
    channel = Channel(place.sock)
    _send(channel, {"apart": True})
    answer = _prepare(work, place.number)
    _send(channel, encode(answer))
    if not isinstance(answer, Prepared):
        return answer.exit_code
    begin = _await_begin(channel)
    if begin is None:
        return 0
    lease = decode_lease(begin[-1].header)
    Inherited.held = (*work.locks, *begin[-1].fds)
    os.environ.update(work.machine.environment(lease))
    if work.pins:
        pin(lease)
    cores = lease.cpus if work.pins else ()
    spawner = _adopt(work, answer, begin[0], channel, cores)
    try:
        code = int(work.execute(answer, lease, spawner))
    except Exception as error:
        # There may be no result.json that says so.
        _send(channel, {"why": str(error) or type(error).__name__})
        raise
    finally:
        if spawner is not None:
            spawner.close()
    # The system would take it modulo 256.
    return code if 0 <= code <= 255 else 1


def _prepare(work: Work, number: int) -> Answer:
    try:
        return work.prepare(number)
    except LaunchError as error:
        return Broken(error.exit_code, str(error))
    except Exception as error:  # noqa: BLE001 - whatever the caller's code raises
        traceback.print_exc()
        return Broken(1, traceback.format_exception_only(error)[-1].strip())


def _await_begin(channel: Channel) -> list[Message] | None:
    """Waits for the word to begin; None if it will not come.

    Returns:
        What the launcher said. The last is the lease, with the descriptors of its locks: they stay
        open until the end of this process. There may be a branch before it.
    """
    received: list[Message] = []
    while not received or not is_lease(received[-1].header):
        if channel.closed:
            return None
        wait_readable(channel)
        received += channel.receive()
    return received


def _send(channel: Channel, message: dict[str, object]) -> None:
    channel.queue(message)
    while channel.pending and not channel.closed:
        poll = select.poll()
        poll.register(channel, select.POLLOUT)
        poll.poll()
        channel.flush()


def _adopt(
    work: Work, answer: Prepared, message: Message, channel: Channel, cores: tuple[int, ...]
) -> Spawner | None:
    """Takes the branch over that a message gives, if it does; None if there is none any more.

    Args:
        work: what there is to do.
        answer: what composing yielded.
        message: the launcher's.
        channel: to the launcher.
        cores: that the branch is bound to; empty for none.
    """
    if work.warm is None or answer.warm is None or is_lease(message.header):
        return None
    from lllaunch.spawner.client import Spawner  # noqa: PLC0415 - only where one is warm

    def adopted(pid: int) -> None:
        # So that the launcher keeps the lease until that has ended, too.
        _send(channel, {"spawner": pid})
        if cores:
            # It was forked from one that is not bound, and its workers are forked from it.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(pid, cores)

    branch = work.warm.branch_of(answer.warm, message)
    # While it is being forked, the run can be prepared. Preloads may take long, and a signal is
    # to end a job that waits for them.
    soon = message.header["soon"]
    try:
        return Spawner.adopt(branch, answer.patience, adopted=adopted, later=soon)
    except SpawnerDied:
        return None


def _disown() -> None:
    """Forgets what is the launcher's to do at its end; its objects are never finalized here."""
    atexit._clear()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    gc.freeze()


def _set_streams(streams: tuple[int, ...]) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null > 0:
        os.close(null)
    for number, fd in enumerate(streams, 1):
        os.dup2(fd, number)
        os.close(fd)
        # The launcher's stream object may be about something else (a notebook, a test).
        raw = io.BufferedWriter(io.FileIO(number, "w", closefd=False))
        name, errors = ("stdout", "strict") if number == 1 else ("stderr", "backslashreplace")
        setattr(sys, name, io.TextIOWrapper(raw, "utf-8", errors, line_buffering=True))


def _code_of(error: BaseException) -> int:
    """Returns the exit code of a job whose code raised, and prints why."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    if isinstance(error, KeyboardInterrupt):
        return for_signal(signal.SIGINT)
    if isinstance(error, SignalException):
        return for_signal(error.sigval)
    if isinstance(error, LaunchError):
        print(error, file=sys.stderr)
        return error.exit_code
    traceback.print_exception(error)
    return 1


def _flush() -> None:
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    flush_streams()  # nobody may read it any more
    flush_c_streams()
