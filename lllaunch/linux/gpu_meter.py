"""What GPUs do, read by a process of its own: a driver that hangs keeps nobody waiting.

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
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lllaunch.linux.gpus import GpusUnknown, GpuUse, Nvml, gpus_in_use
from lllaunch.linux.process import set_parent_death_signal, wait_readable

logger = logging.getLogger(__name__)

# A reading takes some milliseconds a GPU: so long before it is wanted it is asked for, seconds.
_AHEAD = 0.5
# One that is killed ends within this, seconds, unless it hangs in the kernel.
_KILLED_WITHIN = 0.5
_MOST_BYTES = 1 << 20


class GpuReading(NamedTuple):
    """What the GPUs of some workers do."""

    # names of the GPUs that each of them sees, in the order in which they were named
    seen: Sequence[tuple[str, ...]]
    gpus: Mapping[str, GpuUse]


class DriverProcess:
    """A process that calls a function which asks the driver, and that ends with this one.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        module, name = function.__module__, function.__name__
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import below; "
            f"from {module} import {name}; below({os.getpid()}) and {name}(*{args!r})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # what the terminal sends is for the launcher
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._said = b""
        os.set_blocking(self.fileno(), False)

    @classmethod
    def start(cls, function: Callable[..., object], *args: object) -> DriverProcess | None:
        """Start one; None if it cannot be started, which is said."""
        try:
            return cls(function, *args)
        except OSError as error:
            logger.warning("nobody looks at GPUs: %s", error.strerror or error)
            return None

    def fileno(self) -> int:
        """Readable when `lines` has something to tell."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, data: bytes) -> None:
        """Write to its standard input; less than a pipe takes at any time.

        Raises:
            OSError: it has ended.
        """
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), data)

    def lines(self) -> list[bytes] | None:
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
        """End it, once; one that hangs in the kernel is left there."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILLED_WITHIN)


class GpuMeter:
    """Reads what GPUs do in a process of its own, which it starts.

    ``visible``: values of ``CUDA_VISIBLE_DEVICES`` of those who see them, None where it is not set.
    """

    def __init__(self, visible: Sequence[str | None]) -> None:
        self._asked = False
        self._process = DriverProcess.start(serve, list(visible))

    def take(self, wanted_in: float) -> GpuReading | None:
        """Return what was read since the last call, and ask for the next; waits for nothing.

        ``wanted_in``: seconds until the next call. Returns None if there is none: nobody had asked
        yet, or the driver has not answered.
        """
        reading = self._answer()
        if not self._asked and self._process is not None:
            wait = max(0.0, wanted_in - _AHEAD)
            try:
                # one request at a time
                self._process.ask(f"{wait:.3f}\n".encode())
                self._asked = True
            except OSError:
                self.close()
        return reading

    def _answer(self) -> GpuReading | None:
        if self._process is None or not self._asked:
            return None
        lines = self._process.lines()
        if lines is None:
            # there is no driver, or it does not know this one
            self.close()
            return None
        self._asked = not lines
        return _decode(lines[0]) if lines else None

    def close(self) -> None:
        """End the process; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.close()


def below(parent: int) -> bool:
    """In that process: end with the launcher; return whether it is still there."""
    set_parent_death_signal(signal.SIGKILL)
    return os.getppid() == parent


def _decode(line: bytes) -> GpuReading:
    seen, gpus = json.loads(line)
    return GpuReading(
        [tuple(names) for names in seen], {name: GpuUse(*use) for name, use in gpus.items()}
    )


def serve(
    visible: Sequence[str | None], source: int = 0, sink: int = 1, nvml: Nvml | None = None
) -> None:
    """Answer requests: each is a number of seconds to wait, and each answer one line of JSON.

    ``source``: descriptor that requests come from; its end ends this. ``sink``: descriptor for the
    answers.
    """
    if nvml is None:
        try:
            import pynvml  # noqa: PLC0415 - only in the process that asks it
        except ModuleNotFoundError:
            return
        nvml = pynvml
    assert nvml is not None
    with contextlib.suppress(nvml.NVMLError, OSError, GpusUnknown):
        # kept, so that the driver is not loaded for each reading
        nvml.nvmlInit()
        while request := os.read(source, 64):
            if wait_readable(source, float(request)):
                break
            os.write(sink, json.dumps(gpus_in_use(visible, nvml)).encode() + b"\n")
        nvml.nvmlShutdown()
