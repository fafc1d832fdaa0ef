"""The processes of jobs: forked, spoken to, ended, what is left of them, and what they fork from.

Nothing here returns into the code of the launcher that it was forked from.

A spawner that a job had for itself becomes the launcher's child when the job is killed. It ends its
workers and then itself; until then the job's lease is not given back. The launcher adopts other
orphans, too: of what it had started before, or what its program was started beside. Those it leaves
alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from lllaunch.documents import Plain, as_record
from lllaunch.errors import LaunchError, SpawnerDied, for_signal
from lllaunch.events import PreloadBroken, SpawnerEvent, SpawnerGone
from lllaunch.linux import proc
from lllaunch.linux.cgroup import shortage
from lllaunch.linux.process import (
    Subreaper,
    flush_c_streams,
    open_pidfd,
    process_ended,
    send_signal,
    set_lineage,
    set_parent_death_signal,
    wait,
    wait_readable,
)
from lllaunch.signal_source import QUIET, SignalException, SignalSource
from lllaunch.spawner import forks
from lllaunch.spawner.client import Branch, Spawner
from lllaunch.spawner.forks import flush_streams, fork
from lllaunch.spawner.interpreter import Shared
from lllaunch.spawner.orphans import Inherited, is_of, kill_below
from lllaunch.spawner.private_names import run_exit_functions
from lllaunch.spawner.protocol import Channel, Message, connected
from lllaunch.sweep.machine import SweepMachine
from lllaunch.sweep.pool import Lease
from lllaunch.sweep.protocol import (
    Adopted,
    Answer,
    Apart,
    BeginJob,
    JobMessage,
    JobNotRun,
    JobPrinted,
    JobProgressed,
    OutputPipe,
    Prepared,
    SpawnerKey,
)
from lllaunch.sweep.schedule import JobBroken


class SpawnerPool:
    """The warm spawners of a launcher: one for each environment that several jobs share.

    A job that begins gets a branch of one, which begins when what is to be preloaded has been. A
    job runs cold, with a spawner of its own, where there are enough for other environments, and
    where the one of its environment died or cannot preload: its own will say what is wrong. They
    outlive a sweep, for the next one of the same launcher, until `close`.
    """

    def __init__(
        self, environ: Mapping[str, str], limit: int = 8, prestarted: Spawner | None = None
    ) -> None:
        self._environ = dict(environ)
        self._limit = limit
        self._prestarted = prestarted
        # By what their jobs share. None: a job of this environment runs cold.
        self._pooled: dict[SpawnerKey, Spawner | None] = {}

    def spawners(self) -> list[Spawner]:
        """Those to wait for: they live, and `dispatch` has something to do when one is readable."""
        return [spawner for spawner in self._pooled.values() if spawner is not None]

    def marks(self) -> list[str]:
        """The marks of all that they start."""
        return [spawner.mark for spawner in self.spawners()]

    def pids(self) -> frozenset[int]:
        """Process ids of all of them."""
        return frozenset(spawner.pid for spawner in self._all())

    def _all(self) -> list[Spawner]:
        return self.spawners() + ([] if self._prestarted is None else [self._prestarted])

    def start(self, key: SpawnerKey) -> Spawner | None:
        """Return the spawner of an environment, started if need be; None if its jobs run cold."""
        shared = key.shared()
        if shared in self._pooled:
            return self._pooled[shared]
        if len(self.spawners()) >= self._limit:
            return None
        spawner, self._prestarted = self._prestarted or Spawner(), None
        try:
            spawner.configure(*self.shared(key))
        except OSError:
            # No process or descriptor is left. There may be later.
            spawner.close()
            return None
        self._pooled[shared] = spawner
        return spawner

    def lend(self, key: SpawnerKey, job: int) -> tuple[Branch, bool] | None:
        """Return a branch for a job that begins, and whether it is there soon; None for a cold job.

        ``job``: pidfd of its process.
        """
        spawner = self.start(key)
        if spawner is None:
            return None
        launcher = -1
        try:
            launcher = os.dup(job)
            return spawner.branch(launcher), spawner.ready
        except OSError:
            # No descriptor is left.
            if launcher >= 0:
                os.close(launcher)
            return None

    def shared(self, key: SpawnerKey) -> Shared:
        """Return what the workers of a spawner have in common."""
        return Shared(key.environ(self._environ), key.cwd, key.preload)

    def dispatch(self, ready: frozenset[int], tell: Callable[[SpawnerEvent], None]) -> None:
        """Take note of what spawners say."""
        for key, spawner in list(self._pooled.items()):
            if spawner is None or spawner.fileno() not in ready:
                continue
            facts = spawner.dispatch()
            if any(isinstance(fact, (SpawnerGone, PreloadBroken)) for fact in facts):
                self._pooled[key] = None
                spawner.close()
            for fact in facts:
                tell(fact)

    def leave(self) -> None:
        """In a forked job: these are the launcher's."""
        for spawner in self._all():
            spawner.forget()
        self._pooled, self._prestarted = {}, None

    def close(self) -> None:
        """End all of them; idempotent."""
        for spawner in self._all():
            spawner.close()
        self._pooled, self._prestarted = {}, None


# The launcher ended before the job could ask to end with it.
_ALONE = 127


class Work(NamedTuple):
    """What the processes of jobs do."""

    prepare: Callable[[int], Answer]
    execute: Callable[[Prepared, Lease, Spawner | None], int]
    machine: SweepMachine
    warm: SpawnerPool  # forgotten in the job, but for what they are made of
    pins: bool = False
    captures: bool = False  # whether what they print goes to the onlooker, else to our own streams
    # by which the launcher knows what jobs leave: of what they start themselves, and of what their
    # spawners do; each sweep has its own
    marks: tuple[str, str] = ("", "")
    # descriptors that a job's spawner keeps open until all that it started has ended, as it does
    # the locks of the lease
    locks: tuple[int, ...] = ()
    ignored: frozenset[signal.Signals] = frozenset()  # signals that the launcher was started with


def become(
    work: Work,
    number: int,
    parent: int,
    sock: socket.socket,
    streams: Iterable[int],
    leave: Callable[[], None],
) -> NoReturn:
    """In the forked process, all signals blocked: be the job, then end.

    ``streams``: descriptors for standard output and error; none to keep the launcher's. ``leave``:
    closes what is the launcher's own.
    """
    code = 1
    try:
        try:
            forks.leave_terminal(parent)
            set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(_ALONE)
            forks.disown()
            leave()
            own, Inherited.lineage = work.marks
            set_lineage(own)
            _set_streams(streams)
            # lifts the mask, too; a run takes SIGTSTP when it has something to stop
            forks.reset(work.ignored, python=True, blocked=forks.STOP_AND_CONTINUE)
            SignalSource.twice = True
            for signum in {*QUIET}.difference(work.ignored):
                # before there are workers, and after, they do nothing
                signal.signal(signum, lambda *_: None)
            code = _work(work, number, Channel(sock))
        except BaseException as error:  # noqa: BLE001 - it must not return into the launcher
            code = _code_of(error)
        with contextlib.suppress(Exception):
            run_exit_functions()
        flush_streams()  # nobody may read it any more
        flush_c_streams()
    finally:
        os._exit(code)


def _work(work: Work, number: int, channel: Channel) -> int:
    _send(channel, Apart())
    try:
        answer = work.prepare(number)
    except LaunchError as error:
        answer = JobBroken(number, error.exit_code, str(error))
    except Exception as error:  # noqa: BLE001 - whatever the caller's code raises
        traceback.print_exc()
        why = traceback.format_exception_only(error)[-1].strip()
        answer = JobBroken(number, 1, why)
    _send(channel, answer)
    if not isinstance(answer, Prepared):
        return answer.exit_code
    messages: list[Message] = []
    while not messages and not channel.closed:
        wait_readable(channel)
        messages = channel.receive()
    if not messages:
        return 0  # It is not wanted any more.
    begin, fds = as_record(messages[0].header, BeginJob), messages[0].fds
    branch = fds.pop(0) if begin.mark else -1
    Inherited.held = (*work.locks, *fds)
    os.environ.update(work.machine.environment(begin.lease))
    if work.pins and begin.lease.cpus:
        os.sched_setaffinity(0, begin.lease.cpus)
    spawner = None if branch < 0 else _adopt(work, answer, begin, branch, channel)
    _launchers.append((channel, number))
    try:
        code = int(work.execute(answer, begin.lease, spawner))
    except Exception as error:
        _send(channel, JobNotRun(str(error) or type(error).__name__))
        raise
    finally:
        if spawner is not None:
            spawner.close()
    # The system would take it modulo 256.
    return code if 0 <= code <= 255 else 1


def _send(channel: Channel, message: JobMessage) -> None:
    channel.queue(Plain()(message))
    while channel.pending and not channel.closed:
        wait(writable=(channel,))
        channel.flush()


# In the process of a job that runs, its connection with the launcher, and its number.
_launchers: list[tuple[Channel, int]] = []


def tell_progress(step: float, total: float | None, eta: float | None) -> None:
    """In the process of a job, tell the sweep's launcher how far its workers are.

    One that does not listen is not waited for. In another process it does nothing.

    ``eta``: seconds that the rest will take about, or None.
    """
    for channel, number in _launchers:
        channel.flush()
        if not channel.pending and not channel.closed:
            channel.queue(Plain()(JobProgressed(number, step, total, eta)))


def _adopt(
    work: Work, answer: Prepared, begin: BeginJob, fd: int, channel: Channel
) -> Spawner | None:
    """Take a branch over, and bind it to the job's cores; None if there is none any more."""
    assert answer.warm is not None

    def adopted(pid: int) -> None:
        _send(channel, Adopted(pid))
        if work.pins and begin.lease.cpus:
            # It was forked from one that is not bound, and its workers are forked from it.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(pid, begin.lease.cpus)

    branch = Branch(socket.socket(fileno=fd), work.warm.shared(answer.warm), begin.mark)
    # While it is being forked, the run can be prepared. Preloads may take long, and a signal is
    # to end a job that waits for them.
    try:
        return Spawner.adopt(branch, answer.patience, adopted=adopted, later=begin.soon)
    except SpawnerDied:
        return None


def _set_streams(streams: Iterable[int]) -> None:
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


_PAUSE_SECONDS = 0.01
_MAX_ROUNDS = 500


class Remains:
    """The processes that this one has adopted from jobs; a subreaper until `close`."""

    def __init__(self, marks: Callable[[], Iterable[str]]) -> None:
        Subreaper.need()
        self._before = frozenset(proc.children(os.getpid()))
        self._marks = marks
        self.pidfds: dict[int, int] = {}

    def look(self, jobs: Collection[int]) -> bool:
        """Reap what has ended; whether something lives.

        ``jobs``: process ids of children that are not adopted.
        """
        try:
            children = {*proc.children(os.getpid())} - self._before - {*jobs}
        except OSError:  # nobody knows: no descriptor is left
            return True
        for pid in children - self.pidfds.keys():
            facts = proc.facts(pid)
            # each job has a session of its own
            ours = facts is not None and facts.session in jobs
            ours = ours or any(is_of(pid, mark) for mark in self._marks())
            pidfd = open_pidfd(pid) if ours else None
            if pidfd is not None:
                self.pidfds[pid] = pidfd
        for pid in [pid for pid, pidfd in self.pidfds.items() if process_ended(pidfd)]:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            os.close(self.pidfds.pop(pid))
        return bool(self.pidfds)

    def kill(self, jobs: Collection[int]) -> None:
        """End them all, and what they leave behind in turn; what cannot be ended is left."""
        for _ in range(_MAX_ROUNDS):
            if not self.look(jobs):
                return
            kill_below(self.pidfds, itself=True)
            time.sleep(_PAUSE_SECONDS)

    def leave_alone(self, pid: int) -> None:
        """A child does not end although it was killed: it is not waited for any more."""
        self._before |= {pid}

    def close(self) -> None:
        """Adopt no more, or, in a forked job, leave them to the launcher."""
        for pidfd in self.pidfds.values():
            os.close(pidfd)
        self.pidfds.clear()
        Subreaper.release()


# How long a process that was killed may take to be gone.
_REAP_SECONDS = 5.0


class ForkFailed(LaunchError):
    """The process of a job could not be made."""


class JobProcess:
    """The process of a job.

    ``apart``: whether the job has said that it has closed what is the launcher's.
    """

    def __init__(
        self, number: int, pid: int, pidfd: int, channel: Channel, pipes: Sequence[OutputPipe]
    ) -> None:
        self.number, self.pid, self.pidfd = number, pid, pidfd
        self.channel, self.pipes = channel, pipes
        self.branch_pidfd = -1
        self.answer: Answer | None = None
        self.handled = self.apart = False
        self.lease: Lease | None = None
        self.attempt = 0
        # how it ended, 128+N if signal N ended it; None if it lives
        self.exit_code: int | None = None
        self._killed = False  # a signal ended it
        self.progress: JobProgressed | None = None
        # when it is given up, on the monotonic clock; None if it is not being ended
        self.deadline: float | None = None
        self.why = ""

    @classmethod
    def fork(cls, number: int, work: Work, leave: Callable[[], None]) -> JobProcess:
        """Fork the process of a job, from the main thread; it composes itself at once.

        ``leave``: closes what is the launcher's own; called in the job.

        Raises:
            ForkFailed: the system has no process or no descriptor left.
        """
        with contextlib.ExitStack() as undo:
            try:
                pipes = [
                    undo.enter_context(contextlib.closing(OutputPipe(number, stream)))
                    for stream in ((1, 2) if work.captures else ())
                ]
                ours, theirs = map(undo.enter_context, connected())

                def leave_all() -> None:
                    ours.close()
                    for pipe in pipes:
                        pipe.reader.close()
                    leave()

                parent, ends = os.getpid(), [pipe.writer.fileno() for pipe in pipes]
                flush_streams()
                pid = fork()
                if pid == 0:
                    become(work, number, parent, theirs, ends, leave_all)
                undo.callback(os.waitpid, pid, 0)
                undo.callback(os.kill, pid, signal.SIGKILL)
                pidfd = open_pidfd(pid)
            except OSError as error:
                why = shortage(error) or error.strerror or str(error)
                raise ForkFailed(f"job {number} could not be started: {why}") from error
            undo.pop_all()
        assert pidfd is not None  # our own child, not waited for
        theirs.close()
        for pipe in pipes:
            pipe.writer.close()
        return cls(number, pid, pidfd, Channel(ours), pipes)

    def receive(self) -> None:
        """Take note of what the job says; `answer` and `branch_pidfd` tell."""
        for message in self.channel.receive():
            match as_record(message.header, JobMessage):
                case Prepared() | JobBroken() as answer:
                    self.answer = answer
                case Apart():
                    self.apart = True
                case JobNotRun(why):
                    self.why = why
                case JobProgressed() as progress:
                    self.progress = progress
                case Adopted(pid):
                    self.branch_pidfd = open_pidfd(pid) or -1
        if self.channel.closed:
            self.channel.close()

    def signal(self, signum: int) -> None:
        """Send a signal to the job's process, if it lives."""
        if self.exit_code is None and self.pidfd >= 0:
            send_signal(self.pidfd, signum)

    def awaited(self, prints: bool = True) -> list[int]:
        """The descriptors that are readable when there is something to do for this job."""
        # That of an ended process stays readable.
        process = self.pidfd if self.exit_code is None else self.branch_pidfd
        fds = [*(pipe.fileno() for pipe in self.pipes if prints), self.channel.fileno(), process]
        return [fd for fd in fds if fd >= 0]

    def branch_ended(self) -> bool:
        """Whether the branch that the job had adopted has ended, if there was one."""
        if self.branch_pidfd >= 0 and process_ended(self.branch_pidfd):
            os.close(self.branch_pidfd)
            self.branch_pidfd = -1
        return self.branch_pidfd < 0

    def reap(self) -> bool:
        """Whether the process has ended; `exit_code` tells how."""
        if self.exit_code is None and process_ended(self.pidfd):
            self.receive()
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self._killed = code < 0
            if self._killed:
                from lllaunch.watchdog.scratch import remove_left  # noqa: PLC0415 - seldom

                remove_left(self.pid)
            self.exit_code = code if code >= 0 else 128 - code
        return self.exit_code is not None

    def end(self, tell: Callable[[JobPrinted], None] | None = None, seconds: float = 0.0) -> None:
        """Reap the process, kill it if it has not ended by then, and close everything."""
        if self.pidfd >= 0:
            wait_readable(self.pidfd, seconds)
            self.signal(signal.SIGKILL)
            wait_readable(self.pidfd, _REAP_SECONDS)
            self.reap()
        self.close(tell)

    def close(self, tell: Callable[[JobPrinted], None] | None = None) -> None:
        """Close all descriptors; idempotent."""
        for pipe in self.pipes:
            if tell is not None:
                pipe.finish(tell, cut=self._killed)
            pipe.close()
        self.channel.close()
        for fd in (self.pidfd, self.branch_pidfd):
            if fd >= 0:
                os.close(fd)
        self.pidfd = self.branch_pidfd = -1
