"""The processes of jobs, as the sweep's launcher sees them: forked, told to begin, ended, reaped.

A job is forked when it is to be composed, and composes itself: what that sets globally, imports and
allocates is gone with the process. It says what it needs, waits for its lease, and runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lllaunch.errors import LaunchError
from lllaunch.linux.process import (
    open_pidfd,
    process_ended,
    send_signal,
    wait_pidfd,
    wait_readable,
)
from lllaunch.spawner.forks import flush_streams, fork
from lllaunch.spawner.protocol import Channel
from lllaunch.sweep.inside import Place, Work, become
from lllaunch.sweep.output import JobPrinted, OutputPipe
from lllaunch.sweep.prepared import Answer, Prepared, decode, encode_lease
from lllaunch.sweep.resources import Lease

if TYPE_CHECKING:
    from lllaunch.sweep.leases import Leases
    from lllaunch.sweep.warmth import Warmth

# How long a process that was killed may take to be gone.
_REAP_SECONDS = 5.0


@dataclass(eq=False)
class ForkFailed(LaunchError):
    """The process of a job could not be made.

    Attributes:
        number: of the job.
        reason: what the system said.
    """

    number: int
    reason: str

    def __str__(self) -> str:
        return f"job {self.number} could not be started: {self.reason}"


class JobProcess:
    """The process of a job.

    Attributes:
        number: of the job.
        pid: process id.
        pidfd: readable when it has ended.
        branch_pidfd: of the branch that it has adopted; -1 if there is none.
        answer: what composing yielded, as the launcher takes it; None if `answered` is not set.
        answered: whether the job has said that.
        told: whether that has been dealt with.
        apart: whether the job has said that it has closed what is the launcher's.
        lease: what it holds; None until it is to start.
        begun: whether it was let begin.
        attempt: number of the job's attempt.
        exit_code: how it ended, 128+N if signal N ended it; None if it lives.
        deadline: when it is given up, on the monotonic clock; None if it is not being ended.
        lingers: whether it has ended, and something that it started has not.
        why: why it could not run, for people; empty if it could, or was killed.
    """

    def __init__(self, number: int, pipes: Iterable[OutputPipe] = ()) -> None:
        self.number = number
        self.pid, self.pidfd = 0, -1
        self.branch_pidfd = -1
        self.pipes = tuple(pipes)
        self.channel: Channel | None = None
        self.answer: Answer | None = None
        self.answered = self.told = self.apart = False
        self.lease: Lease | None = None
        self.begun = False
        self.attempt = 0
        self.exit_code: int | None = None
        self.deadline: float | None = None
        self.lingers = False
        self.why = ""

    @classmethod
    def fork(
        cls,
        number: int,
        work: Work,
        leave: Callable[[], None],
        *,
        captures: bool = False,
        ignored: frozenset[signal.Signals] = frozenset(),
    ) -> JobProcess:
        """Fork the process of a job, from the main thread; it composes itself at once.

        Args:
            number: of the job.
            work: what it does.
            leave: closes what is the launcher's own; called in the job.
            captures: whether its output goes to pipes, else to where the launcher's goes.
            ignored: signals that the launcher was started with as ignored.

        Raises:
            ForkFailed: the system has no process or no descriptor left.
        """
        with contextlib.ExitStack() as undo:
            try:
                job = cls._make(number, captures, undo)
                ours, theirs = socket.socketpair()
                undo.callback(ours.close)
                undo.callback(theirs.close)
                job._fork(work, leave, ours, theirs, ignored)
            except OSError as error:
                raise ForkFailed(number, error.strerror or str(error)) from error
            undo.pop_all()
        theirs.close()
        for pipe in job.pipes:
            pipe.close_write_end()
        return job

    @classmethod
    def _make(cls, number: int, captures: bool, undo: contextlib.ExitStack) -> JobProcess:
        pipes = []
        for stream in (1, 2) if captures else ():
            pipes.append(OutputPipe(number, stream))
            undo.callback(pipes[-1].close)
        return cls(number, pipes)

    def _fork(
        self,
        work: Work,
        leave: Callable[[], None],
        ours: socket.socket,
        theirs: socket.socket,
        ignored: frozenset[signal.Signals],
    ) -> None:
        ends = tuple(pipe.write_end for pipe in self.pipes)
        place = Place(self.number, theirs, os.getpid(), ends, ignored)
        flush_streams()
        self.pid = fork()
        if self.pid == 0:
            become(work, place, lambda: self._leave(ours, leave))
        try:
            pidfd = open_pidfd(self.pid)
        except OSError:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise
        assert pidfd is not None  # our own child, not waited for
        self.pidfd = pidfd
        self.channel = Channel(ours)

    def _leave(self, ours: socket.socket, leave: Callable[[], None]) -> None:
        ours.close()
        for pipe in self.pipes:
            os.close(pipe.fileno())
        leave()

    def receive(self) -> None:
        """Take note of what the job says; `answered` and `branch_pidfd` tell."""
        if self.channel is None:
            return
        for message in self.channel.receive():
            if "answer" in message.header:
                self.answer, self.answered = decode(message.header), True
            elif "apart" in message.header:
                self.apart = True
            elif "why" in message.header:
                self.why = message.header["why"]
            elif self.branch_pidfd < 0:
                self.branch_pidfd = open_pidfd(message.header["spawner"]) or -1
        if self.channel.closed:
            self._close_channel()

    def await_apart(self) -> None:
        """Wait until the job has closed what it was forked with, or has ended: moments."""
        while not self.apart and self.channel is not None:
            wait_readable(self.channel)
            self.receive()

    def begin(self, leases: Leases, warm: Warmth | None) -> None:
        """Let the job run, with its lease and the locks of that, and with a warm spawner."""
        assert self.lease is not None
        self.begun = True
        if self.channel is None:
            return
        if warm is not None and isinstance(self.answer, Prepared) and self.answer.warm is not None:
            warm.give(self.answer.warm, self.channel, self.pidfd)
        # It was forked before they were taken.
        locks = leases.descriptors(self.lease)
        self.channel.queue(encode_lease(self.lease), fds=locks)

    def signal(self, signum: int) -> None:
        """Send a signal to the job's process, if it lives."""
        if self.exit_code is None and self.pidfd >= 0:
            send_signal(self.pidfd, signum)

    def awaited(self, prints: bool = True) -> list[int]:
        """The descriptors that are readable when there is something to do for this job.

        Args:
            prints: whether what it prints is wanted now.
        """
        fds = [pipe.fileno() for pipe in self.pipes if prints]
        if self.channel is not None:
            fds.append(self.channel.fileno())
        # That of an ended process stays readable.
        fds.append(self.pidfd if self.exit_code is None else self.branch_pidfd)
        return [fd for fd in fds if fd >= 0]

    def branch_ended(self) -> bool:
        """Whether the branch that the job had adopted has ended, if there was one."""
        if self.branch_pidfd >= 0 and process_ended(self.branch_pidfd):
            os.close(self.branch_pidfd)
            self.branch_pidfd = -1
        return self.branch_pidfd < 0

    def kill_branch(self) -> None:
        """SIGKILL the branch: its workers die with it."""
        if self.branch_pidfd >= 0:
            send_signal(self.branch_pidfd, signal.SIGKILL)

    def reap(self) -> bool:
        """Whether the process has ended; `exit_code` tells how."""
        if self.exit_code is None and process_ended(self.pidfd):
            self.receive()
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.exit_code = code if code >= 0 else 128 - code
        return self.exit_code is not None

    def end(
        self, tell: Callable[[JobPrinted], None] | None = None, *, by_itself: bool = False
    ) -> None:
        """Kill and reap the process, and close everything.

        Args:
            tell: gets what it has printed; None to drop that.
            by_itself: it ends by itself now, and may.
        """
        if self.pidfd >= 0:
            if by_itself:
                wait_pidfd(self.pidfd, _REAP_SECONDS)
            self.signal(signal.SIGKILL)
            wait_pidfd(self.pidfd, _REAP_SECONDS)
            self.reap()
        self.close(tell)

    def close(self, tell: Callable[[JobPrinted], None] | None = None) -> None:
        """Close all descriptors; idempotent.

        Args:
            tell: gets what is still in the pipes; None to drop it.
        """
        for pipe in self.pipes:
            if tell is not None:
                pipe.finish(tell)
            pipe.close()
        self._close_channel()
        for fd in (self.pidfd, self.branch_pidfd):
            if fd >= 0:
                os.close(fd)
        self.pidfd = self.branch_pidfd = -1

    def _close_channel(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None
