"""Signals to a process that manages workers: for its event loop, or an exception."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType
    from typing import NoReturn


logger = logging.getLogger(__name__)

# Comma-separated names; torch's variable.
SIGNALS_TO_HANDLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
# Shows where the workers stand and goes on, as in other programs (Ctrl-\), unless it is listed
# among the signals that end a run.
STACKS_ON = signal.SIGQUIT
# What they mean is the experiment's affair: the workers get them, and the run goes on; unless they
# are listed there, too.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
QUIET = (STACKS_ON, *PASSED_ON)
# Those to a launcher that end a process which does not handle them.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *QUIET)

_seen = False  # whether there was a Ctrl-C that nobody has taken note of


def remember_interrupts() -> None:
    """Remember SIGINT from now on, until a run or a sweep waits for signals itself.

    Python raises KeyboardInterrupt wherever the main thread happens to be. In a finalizer or in the
    callback of a weak reference, which any import may call, it is printed and forgotten: the user's
    first Ctrl-C would be lost. Nothing is changed where somebody else handles it.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(_signum: int, _frame: FrameType | None) -> NoReturn:
    global _seen  # noqa: PLW0603 - a signal is the process's
    _seen = True
    raise KeyboardInterrupt


class SignalException(Exception):
    """A death signal arrived.

    Whoever catches it ends the workers, for instance with ``PContext.close(e.sigval)``. Swallowing
    it keeps the process alive.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.sigval))


def named_signals(text: str) -> list[signal.Signals]:
    """The signals of a comma-separated list; unknown names are logged and left out."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in signal.Signals.__members__:
            logger.warning("%s: %r is not a signal's name", SIGNALS_TO_HANDLE, name)
    return [signal.Signals[name] for name in names if name in signal.Signals.__members__]


class SignalSource:
    """A context in which chosen signals are noted, for an event loop, instead of acted on.

    Handlers can be set in the main thread only; elsewhere this notes nothing. A signal that is
    ignored stays ignored, and one that cannot be handled is left as it is. Handlers and the wakeup
    descriptor that were there are put back, but not in the place of somebody else's that came
    later. If signals came, and none of them was told to anybody, they come again then: none is
    lost. A Ctrl-C before that came to nothing (`remember_interrupts`) is noted, too.

    ``signals``: which; None for those that TORCHELASTIC_SIGNALS_TO_HANDLE names, without it torch's
    but for ``quiet``. ``raises``: whether they raise `SignalException` in the main thread instead,
    always. ``quiet``: others, which are noted, never raise and never come again; but for those that
    are among them. ``stops``: whether SIGTSTP (Ctrl-Z) is noted, too. It is no reason to end: it
    never raises, and is not among those received; see ``stopping``. ``notice``: another one, which
    announces the end as SIGTERM does, and is taken for that; also if it is ignored. Which of the
    two come, in what order and how often differs from cluster to cluster, so all of them together
    are one SIGTERM, whatever ``signals`` are. ``noticed``: called with the first of these, in the
    main thread.
    """

    # whether signals may come twice, from who sends them to all processes (Slurm, to those of a
    # step) and from a launcher that forwards them: then one that repeats the first does not count.
    # Set in the jobs of a sweep
    twice = False

    def __init__(
        self,
        signals: Iterable[signal.Signals] | None = None,
        *,
        raises: bool = False,
        quiet: Iterable[signal.Signals] = (),
        stops: bool = False,
        notice: signal.Signals | None = None,
        noticed: Callable[[int], None] | None = None,
    ) -> None:
        given = os.environ.get(SIGNALS_TO_HANDLE)
        if signals is None and given is None:
            signals = {*named_signals(DEFAULT_SIGNALS)}.difference(quiet)
        ending = {*(named_signals(given or "") if signals is None else signals)}
        self.quiet = frozenset(quiet) - ending  # those
        # what is taken for SIGTERM
        self._announces = set() if notice is None else {notice, signal.SIGTERM}
        self._signals = {*ending, *self.quiet, *self._announces, *([signal.SIGTSTP] * stops)}
        self._notice, self._noticed = notice, noticed
        # the first of SIGTERM and the ``notice`` that came, if there is a ``notice``; else None
        self.announced: int | None = None
        self._stops, self.stopping, self._stop_was_blocked = stops, False, False
        self._before: dict[signal.Signals, Any] = {}
        # who raises needs no waking, and such contexts may end in any order
        self._wakes, self._raise, self._told = not raises, raises, False
        self._wakeup_before = self._read = self._write = -1
        self._first = 0
        self._noted: list[int] = []

    def fileno(self) -> int:
        """A descriptor that is readable when `received` has something to tell."""
        return self._read

    def __enter__(self) -> Self:
        if self._wakes:
            self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        if threading.current_thread() is not threading.main_thread():
            logger.debug("not in the main thread: signals are left to the program")
            return self
        if self._wakes:
            self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for signum in self._signals:
            if signal.getsignal(signum) is signal.SIG_IGN and signum != self._notice:
                # Started under nohup, for instance.
                continue
            try:
                self._before[signum] = signal.signal(signum, self._handle)
            except (OSError, ValueError):
                logger.warning("%s cannot be handled", signum.name)
        global _seen  # noqa: PLW0603 - as in `_interrupt`
        if self._wakes and signal.SIGINT in self._before and _seen:
            _seen = False
            self._noted.append(signal.SIGINT)
            os.write(self._write, b"\0")
        if self._stops and signal.SIGTSTP in self._before:
            mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
            self._stop_was_blocked = signal.SIGTSTP in mask
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            if self._wakes:
                signal.set_wakeup_fd(self._wakeup_before)
            if self._stop_was_blocked:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
            while self._before:
                signum, handler = self._before.popitem()
                if signal.getsignal(signum) == self._handle:
                    signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        if self._wakes:
            os.close(self._read)
            os.close(self._write)
        self._read = self._write = -1
        again = [] if self._told else [each for each in self._noted if each not in self.quiet]
        again += [signal.SIGTSTP] * self.stopping
        self._noted, self.stopping = [], False
        for number in again:
            signal.raise_signal(number)

    def leave(self) -> None:
        """In a forked process: end the context. What was noted is for the parent."""
        self._noted, self.stopping = [], False
        self.__exit__()

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self._stops and signum == signal.SIGTSTP:
            self.stopping = True
            return
        if signum in self._announces:
            if self.announced is not None:
                return
            self.announced = signum
            if self._noticed is not None:
                self._noticed(signum)
            signum = signal.SIGTERM
        # the quiet ones end nobody
        if signum not in self.quiet:
            if SignalSource.twice:
                repeats, self._first = self._first == signum, self._first or signum
                if repeats:
                    self._first = -1
                    return
            if self._raise:
                self._told = True
                received = signal.Signals(signum)
                raise SignalException(f"process {os.getpid()} received {received.name}", received)
        self._noted.append(signum)

    def received(self) -> list[int]:
        """Return the signals since the last call, in order; `stopping` may have changed, too."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        noted, self._noted = self._noted, []
        self._told = self._told or any(signum not in self.quiet for signum in noted)
        return noted

    def stop_until_continued(self) -> float:
        """Stop this process until SIGCONT, as SIGTSTP demands; return for how long, seconds.

        Where SIGCONT is blocked (`lllaunch.spawner.forks.STOP_AND_CONTINUE`), the process waits
        for it: one that came before it had stopped continues it, too. SIGTSTP is to be blocked in
        all other threads.
        """
        began = time.monotonic()
        # Either of the two takes back the other if that is pending: what is pending came last.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
        self.stopping = False
        if signal.SIGCONT in mask:
            signal.sigwait({signal.SIGCONT})
        else:
            os.kill(os.getpid(), signal.SIGSTOP)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return time.monotonic() - began

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """While code runs that nothing else wakes, signals raise `SignalException`."""
        before, self._raise = self._raise, True
        try:
            yield
        finally:
            self._raise = before
