"""What GPUs do, and who holds their memory, read by a process of its own.

A call into a driver that hangs sleeps in the kernel, and nothing ends it. In a thread it would keep
the launcher from ever ending: a process is over when the last of its threads is. So a small process
asks NVML, a line for each time that it is told to, and is killed in the end; the launcher reads the
lines, and waits for nothing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from lllaunch.linux.gpus import (
    GpusUnknown,
    GpuUse,
    Nvml,
    asking,
    gpus_in_use,
    memory_holders,
)
from lllaunch.linux.process import set_parent_death_signal, wait_readable

logger = logging.getLogger(__name__)

# A reading takes some milliseconds a GPU: so long before it is wanted it is asked for, seconds.
_AHEAD = 0.5
# One that is killed ends within this, seconds, unless it hangs in the kernel.
_KILLED_WITHIN = 0.5
_MOST_BYTES = 1 << 20
# A wait for memory of less is not worth a line, seconds.
_SILENT_SECONDS = 2.0
# Between two looks at who holds memory, seconds.
_SHORTEST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0


class GpuReading(NamedTuple):
    """What the GPUs of some workers do."""

    # names of the GPUs that each of them sees, in the order in which they were named
    seen: Sequence[tuple[str, ...]]
    gpus: Mapping[str, GpuUse]


class _DriverProcess:
    """A process that calls a function which asks the driver, and that ends with this one.

    If it cannot be started, that is said, and it is as if it had ended.
    """

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        module, name = function.__module__, function.__name__
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import below; "
            f"from {module} import {name}; below({os.getpid()}) and {name}(*{args!r})"
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # what the terminal sends is for the launcher
                start_new_session=True,
            )
        except OSError as error:
            logger.warning("nobody looks at GPUs: %s", error.strerror or error)
        else:
            os.set_blocking(self.fileno(), False)

    def fileno(self) -> int:
        """Readable when it has written something."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def _lines(self) -> list[bytes] | None:
        """Return the lines that it wrote since the last call, without waiting.

        Returns None if it has ended: there is no driver, or nothing more to tell.
        """
        try:
            while data := os.read(self.fileno(), _MOST_BYTES):
                self._said += data
        except BlockingIOError:
            *lines, self._said = self._said.split(b"\n")
            return lines
        return None

    def close(self) -> None:
        """End it; one that hangs in the kernel is left there. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_WITHIN)


class GpuMeter(_DriverProcess):
    """Reads what GPUs do in a process of its own, which it starts.

    ``visible``: values of ``CUDA_VISIBLE_DEVICES`` of those who see them, None where it is not set.
    """

    def __init__(self, visible: Sequence[str | None]) -> None:
        super().__init__(serve, list(visible))
        self._asked = False

    def take(self, wanted_in: float) -> GpuReading | None:
        """Return what was read since the last call, and ask for the next; waits for nothing.

        ``wanted_in``: seconds until the next call. Returns None if there is none: nobody had asked
        yet, or the driver has not answered.
        """
        if self._process is None:
            return None
        answers = self._lines() if self._asked else []
        if answers is None:
            # there is no driver, or it does not know this one
            self.close()
            return None
        if answers or not self._asked:
            # one request at a time, of less than a pipe takes
            assert self._process.stdin is not None
            wait = max(0.0, wanted_in - _AHEAD)
            try:
                os.write(self._process.stdin.fileno(), f"{wait:.3f}\n".encode())
                self._asked = True
            except OSError:
                self.close()
        if not answers:
            return None
        seen, gpus = json.loads(answers[0])
        use = {name: GpuUse(*each) for name, each in gpus.items()}
        return GpuReading([tuple(names) for names in seen], use)


class HeldMemory(NamedTuple):
    """Which processes that have ended still hold memory on GPUs."""

    pids: tuple[int, ...]  # none if the driver does not answer
    gpus: tuple[int, ...]
    seconds: float  # for so long
    given_up: bool


class GpuMemoryWait(_DriverProcess):
    """Waits until processes hold no memory on GPUs, for an event loop.

    ``seconds``: how long is waited at most.
    """

    def __init__(self, pids: Collection[int], seconds: float) -> None:
        super().__init__(tell_holders, sorted(pids))
        # whether there is nothing to wait for any more, as far as `events` has told
        self.over = self._process is None
        self._began = time.monotonic()
        self._until = self._began + seconds
        self._told = False
        # By process id, the GPUs; nothing as long as nobody has answered.
        self._held: dict[str, list[int]] = {}

    @classmethod
    def begin(cls, pids: Collection[int], seconds: float) -> GpuMemoryWait | None:
        """Begin to wait; returns None if nobody can look."""
        wait = cls(pids, seconds)
        return None if wait.over else wait

    def next_in(self) -> float:
        """Return the seconds until `events` has something to tell though nothing is readable."""
        moment = self._until
        if self._held and not self._told:
            moment = min(moment, self._began + _SILENT_SECONDS)
        return max(0.0, moment - time.monotonic())

    def events(self) -> list[HeldMemory]:
        """Return what is to be said, without waiting."""
        lines, now = self._lines(), time.monotonic()
        if lines is None:
            # nothing is held, or nobody looks
            self.over = True
            return []
        if lines:
            self._held = json.loads(lines[-1])
        late = now >= self._until
        if late or (self._held and not self._told and now - self._began >= _SILENT_SECONDS):
            self.over, self._told = late, True
            gpus = {gpu for each in self._held.values() for gpu in each}
            pids = tuple(sorted(map(int, self._held)))
            return [HeldMemory(pids, tuple(sorted(gpus)), now - self._began, late)]
        return []


def below(parent: int) -> bool:
    """In that process: end with the launcher; return whether it is still there."""
    set_parent_death_signal(signal.SIGKILL)
    return os.getppid() == parent


def serve(
    visible: Sequence[str | None], source: int = 0, sink: int = 1, nvml: Nvml | None = None
) -> None:
    """Answer requests: each is a number of seconds to wait, and each answer one line of JSON.

    ``source``: descriptor that requests come from; its end ends this. ``sink``: descriptor for the
    answers.
    """
    # kept, so that the driver is not loaded for each reading
    with contextlib.suppress(OSError, GpusUnknown), asking(nvml) as driver:
        while request := os.read(source, 64):
            if wait_readable(source, float(request)):
                break
            os.write(sink, json.dumps(gpus_in_use(visible, driver)).encode() + b"\n")


def tell_holders(pids: Collection[int], sink: int = 1, nvml: Nvml | None = None) -> None:
    """Tell, in a process of its own, which of some processes hold memory, until none does.

    ``sink``: descriptor that gets a line of JSON for each look: the GPUs, by process id.
    """
    pause = _SHORTEST_PAUSE
    while True:
        held = {}
        with contextlib.suppress(GpusUnknown):
            held = memory_holders(pids, nvml)
        if not held:
            return
        os.write(sink, json.dumps(held).encode() + b"\n")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
