"""Forking, so that nothing is said twice and no handler runs in the wrong process; workers.

A worker is forked by `start`: what fails in the child before the worker's code runs is written into
the report pipe, which closes when the program is executed or the worker's Python code starts.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from lllaunch.linux.cgroup import shortage
from lllaunch.linux.process import set_open_files_limit, set_parent_death_signal
from lllaunch.spawner.evidence import CRASH_FILE, SOCKET
from lllaunch.spawner.interpreter import Preloaded, importing
from lllaunch.spawner.private_names import (
    forget_exit_functions,
    take_over_multiprocessing,
    x_options,
)
from lllaunch.spawner.protocol import Forked, Module, Pickled, Program, Script, SpawnRequest

# Python ignores these itself, and a Python worker started by exec would have them so.
_IGNORED_BY_PYTHON = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
_CANNOT_BE_SET = frozenset({signal.SIGKILL, signal.SIGSTOP})
BATCH_JOB = "LLLAUNCH_JOB"
"""Set in a cluster's batch job that lllaunch has submitted, to the job's id."""
NOTICE = signal.SIGUSR2
"""Announces the end of a batch job to all of its processes; only the launcher acts on it."""
STOP_AND_CONTINUE = frozenset({signal.SIGTSTP, signal.SIGCONT})
"""What a process blocks whose parent stops and continues it, so that neither is ever missed."""


def ignored_at_start() -> frozenset[signal.Signals]:
    """Signals that were ignored when this process was executed, by ``nohup`` for instance.

    In a batch job of ours the one that announces its end is always among them: a worker that does
    not handle it would end of it.
    """
    ignored = frozenset(
        signum
        for signum in signal.valid_signals()
        if isinstance(signum, signal.Signals)
        and signum not in _IGNORED_BY_PYTHON
        and signal.getsignal(signum) is signal.SIG_IGN
    )
    return ignored | {NOTICE} if BATCH_JOB in os.environ else ignored


def ignore_all() -> None:
    """Ignore every signal that can be ignored but SIGCHLD: only the socket commands the spawner."""
    for signum in signal.valid_signals() - _CANNOT_BE_SET - {signal.SIGCHLD}:
        # The C library keeps two real-time signals to itself.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_IGN)
    # of those that came since the interpreter was started, nothing is left
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def reset(
    ignored: frozenset[signal.Signals],
    python: bool,
    blocked: frozenset[signal.Signals] = frozenset(),
) -> None:
    """Give a new worker the dispositions and the mask that it would have in a shell.

    ``ignored``: signals that stay ignored. ``blocked``: the mask; that of a shell is empty.
    """
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - _CANNOT_BE_SET:
        keep = signum in ignored or (python and signum in _IGNORED_BY_PYTHON)
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_IGN if keep else signal.SIG_DFL)
    if python and signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if python and faulthandler.is_enabled():
        # Its handlers were among those that were just reset.
        faulthandler.disable()
        faulthandler.enable(2)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def leave_terminal(parent: int) -> None:
    """In a fork, all signals blocked: begin a session of its own, which no terminal signals.

    A Ctrl-C between the fork and this was for the whole process group, and so for the launcher,
    which tells its jobs itself. It is dropped; what the parent has sent is not.
    """
    with contextlib.suppress(OSError):
        os.setsid()
    for signum in signal.sigpending():
        came = signal.sigtimedwait({signum}, 0)
        if came is not None and came.si_pid == parent:
            os.kill(os.getpid(), signum)


def fork() -> int:
    """Forks this process with every signal blocked.

    One that came before the child has dispositions of its own would run our handlers in it.

    Raises:
        OSError: no process can be made.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if pid == 0:
        reseed()
    return pid


def reseed() -> None:
    """Give every global generator of random numbers a seed of its own, in a forked child.

    It would repeat in all children what it yields in one. The standard library's reseeds itself
    after a fork. CUDA's generators get their seeds when CUDA is initialised, each process its own,
    unless one was asked for before: torch then keeps that request, and the next one replaces it.
    """
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    # One that is half imported, or takes no seed, is left alone: nothing may be raised between a
    # fork and what ends the child.
    with contextlib.suppress(Exception):
        if numpy_random is not None:
            # without a seed it would import what takes 25 ms
            numpy_random.seed(list(memoryview(os.urandom(16)).cast("I")))
    with contextlib.suppress(Exception):
        if torch is not None:
            torch.seed()


def disown() -> None:
    """In a fork: forget what is the other process's to do: its exit functions and its children.

    Its objects are frozen, so that its open files are not flushed a second time at the end.
    """
    forget_exit_functions()
    take_over_multiprocessing()
    gc.freeze()


def flush_streams() -> None:
    """Writes what Python has buffered, which a fork would write again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, full, or closed
            stream.flush()


# Workers

# Appended to, so that `echo x > /dev/stdout` in a worker does not truncate what came before. A
# terminal must not become the one of the new session.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY


class ChildDefaults(NamedTuple):
    """What all children of one spawner have in common."""

    ignored: frozenset[signal.Signals]  # signals that stay ignored
    open_files: tuple[int, int]  # soft and hard limit of open files that the launcher started with
    base_path: tuple[str, ...]  # sys.path of a fresh interpreter without its first entry
    # command line that starts a fresh interpreter, without what it runs
    interpreter: tuple[str, ...]
    # file to write ``0`` to in order to join the workers' cgroup; empty if there is none
    cgroup: str
    preloaded: Preloaded


def failure_of(error: BaseException) -> dict[str, Any]:
    """Return what is told of an error that kept a worker from starting."""
    if isinstance(error, OSError):
        reason = shortage(error) or error.strerror or str(error)
        return {"path": str(error.filename or ""), "reason": reason, "errno": error.errno or 0}
    return {"path": "", "reason": f"{type(error).__name__}: {error}", "errno": 0}


def _prepare(
    request: SpawnRequest, around: ChildDefaults, spawner: int, others: Iterable[int]
) -> None:
    """Take over or execute what the worker is; returns if its Python code is to run here."""
    program = request.target if isinstance(request.target, Program) else None
    os.setsid()
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != spawner:
        # It died before the signal was set.
        os._exit(1)
    reset(around.ignored, python=program is None and not request.fresh)
    for fd in others:
        with contextlib.suppress(OSError):
            os.close(fd)
    if around.cgroup:
        # Without the cgroup the tree is ended process by process.
        with contextlib.suppress(OSError), open(around.cgroup, "w") as file:
            file.write("0")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for number, path in enumerate((request.stdout, request.stderr), start=1):
        if path:
            fd = os.open(path, _FLAGS, 0o666)
            os.dup2(fd, number)
            os.close(fd)
    set_open_files_limit(around.open_files)
    # That of a worker which this launcher runs below.
    os.environ.pop(SOCKET, None)
    os.environ.update(request.env)
    time.tzset()
    os.chdir(request.cwd)
    if program is not None:
        _execute(program.path, (program.path, *program.argv))
    elif request.fresh:
        _execute_interpreter(request, around)


def _execute(program: str, argv: tuple[str, ...]) -> NoReturn:
    try:
        os.execvpe(program, argv, os.environ)
    except OSError as error:
        raise OSError(error.errno, error.strerror, program) from error


def _execute_interpreter(request: SpawnRequest, around: ChildDefaults) -> NoReturn:
    target = request.target
    command = around.interpreter
    if (
        CRASH_FILE in request.env
        and isinstance(target, (Script, Module))
        and not ("PYTHONFAULTHANDLER" in os.environ or "faulthandler" in x_options())
    ):
        # None of our code runs in it, so its stacks can only go to its standard error.
        command += ("-X", "faulthandler")
    if isinstance(target, Script):
        command += (target.path, *target.argv)
    elif isinstance(target, Module):
        command += ("-m", target.name, *target.argv)
    else:
        fd = os.memfd_create("lllaunch-request", 0)
        with os.fdopen(os.dup(fd), "wb") as file:
            pickle.dump((target, list(around.base_path)), file)
        os.lseek(fd, 0, os.SEEK_SET)
        if isinstance(target, Pickled):
            for inherited in target.fds:
                os.set_inheritable(inherited, True)
        command += ("-c", f"{importing('lllaunch.spawner.worker', 'boot')}; boot({fd})")
    _execute(command[0], command)


def _renew_streams(request: SpawnRequest) -> None:
    """Replace the caller's streams, which may be about something else (a notebook, a test)."""
    for number, path, name, errors in (
        (1, request.stdout, "stdout", "strict"),
        (2, request.stderr, "stderr", "backslashreplace"),
    ):
        if path:
            raw = io.FileIO(number, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, "utf-8", errors, write_through=True))


def start(request: SpawnRequest, around: ChildDefaults, others: Iterable[int]) -> tuple[int, int]:
    """Fork the worker that ``request`` describes; its process id, and what to read a report from.

    ``others``: descriptors of the spawner's and of other workers' (their report pipes, what was
    sent along for them); the child closes them, since whoever waits for their end would wait for
    it too.
    """
    spawner = os.getpid()
    report, write = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError:
        os.close(report)
        os.close(write)
        raise
    if pid:
        os.close(write)
        return pid, report
    try:
        try:
            _prepare(request, around, spawner, (report, *others))
        except BaseException as error:  # noqa: BLE001 - the spawner tells the launcher why
            os.write(write, json.dumps(failure_of(error)).encode())
        else:
            # From here on the number of the report pipe may be that of a file of the user's.
            os.close(write)
            from lllaunch.spawner.worker import run  # noqa: PLC0415 - imported by the spawner by now

            reseed()
            take_over_multiprocessing()
            assert request.target is not None
            assert not isinstance(request.target, Program)
            if isinstance(request.target, Forked):
                _renew_streams(request)
            run(request.target, list(around.base_path))
    except BaseException:  # noqa: BLE001 - an error of our own; it has the worker's status
        # Standard error may be a file on a full disk.
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        # Whatever happened, this process must not go on as the spawner.
        os._exit(1)
