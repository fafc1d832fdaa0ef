"""The program of a scenario's workers: it does what its act says, and keeps a ledger of that.

It is copied into the project of a scenario and imports nothing of lllaunch: what it writes into the
ledger is what the checks believe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import re
import signal
import struct
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

LEDGER = "FAULTS_LEDGER"
"""The variable with the directory that holds acts, ledger, counters and locks."""

_LIFE_SECONDS = 300.0


def pieces(act: dict[str, Any], key: str, stream: str) -> list[bytes]:
    """What a worker writes to a stream, write by write."""
    mark = "@" if stream == "out" else "%"
    written = []
    count = act["lines"] if stream == "out" else act["errors"]
    # what Python says of an exception begins a line
    newline = act["newline"] or (stream == "err" and act["end"] == "raise")
    for number in range(count):
        end = "\n" if newline or number < count - 1 else ""
        body = "x" * (act["width"] * (1 + number % 3))
        line = f"{mark}{key}.{stream}.{number}:{body}{mark}{end}".encode()
        cut = len(line) * (number % 5) // 5 if act["torn"] else 0
        written += [part for part in (line[:cut], line[cut:]) if part]
    return written


class Ledger:
    """Where a worker and its descendants write what happens to them, a line at a time."""

    def __init__(self, directory: str, key: str) -> None:
        self.directory = directory
        self.key = key
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(os.path.join(directory, "ledger.jsonl"), flags, 0o644)

    def write(self, what: str, **more: Any) -> None:
        """Add a line; it is there as a whole or not at all."""
        entry = {"what": what, "time": time.time_ns(), "pid": os.getpid(), "key": self.key, **more}
        os.write(self._fd, json.dumps(entry).encode() + b"\n")

    def lock(self, name: str) -> int:
        """Take what only one may have at a time; the descriptor that holds it."""
        path = os.path.join(self.directory, f"lock-{name}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.write("taken", lock=name, holder=os.pread(fd, 200, 0).decode())
        else:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{self.key} {os.getpid()}".encode(), 0)
        return fd


class Worker:
    """One worker."""

    def __init__(self, job: str) -> None:
        directory = os.environ[LEDGER]
        acts = json.loads(Path(directory, "acts.json").read_text())
        rank = int(os.environ["RANK"])
        self.attempt = _attempt()
        attempts = acts.get(job) or acts["*"]
        self.act = attempts[min(self.attempt, len(attempts) - 1)][rank]
        self.ledger = Ledger(directory, f"{job}.{self.attempt}.{rank}.{os.getpid()}")
        log = os.readlink("/proc/self/fd/1")
        self.ledger.write("start", job=job, attempt=self.attempt, rank=rank, log=log)
        run = os.path.dirname(os.path.dirname(os.path.dirname(log))).replace("/", "_")
        self._locks = [self.ledger.lock(f"job-{run}.{rank}")]
        # the workers of a job share its GPUs
        devices = "" if rank else os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self._locks += [self.ledger.lock(f"gpu-{name}") for name in devices.split(",") if name]
        counters = os.path.join(directory, f"bytes-{self.ledger.key}")
        self._counters = os.open(counters, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._ballast = None
        if self.act["ballast"]:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
            self._ballast = mmap.mmap(-1, self.act["ballast"] << 20, flags)

    def perform(self) -> int:
        """Do all of the act; the exit status."""
        self._be_polite(self.act["polite"])
        for kind in self.act["kin"]:
            self._make_kin(kind)
        self._write("err", 2)
        self._write("out", 1)
        time.sleep(self.act["after"])
        return self._end(self.act["end"])

    def _be_polite(self, how: str) -> None:
        if how != "die":
            for signum in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signum, signal.SIG_IGN if how == "ignore" else self._obey)

    def _obey(self, signum: int, frame: FrameType | None) -> NoReturn:
        self.ledger.write("signal", signum=signum)
        signal.signal(signum, signal.SIG_IGN)
        if self.act["polite"] == "slow":
            time.sleep(0.2)
        code = 0 if self.act["polite"] == "success" else 7
        self.ledger.write("end", code=code)
        sys.exit(code)

    def _write(self, stream: str, fd: int) -> None:
        count = 0
        for piece in pieces(self.act, self.ledger.key, stream):
            view = memoryview(piece)
            while view:
                try:
                    done = os.write(fd, view)
                except OSError as e:
                    self.ledger.write("refused", stream=stream, errno=e.errno)
                    return
                count += done
                os.pwrite(self._counters, struct.pack("<q", count), 8 * (fd - 1))
                view = view[done:]
            if self.act["pause"]:
                time.sleep(self.act["pause"])

    def _end(self, how: str) -> int:
        if how == "wait":
            time.sleep(_LIFE_SECONDS)
            how = "0"
        # from here on no signal changes how it ends
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if how == "raise":
            self.ledger.write("end", code=1)
            raise RuntimeError(f"of its own accord: {self.ledger.key}")
        if how.startswith("SIG"):
            signum = signal.Signals[how]
            self.ledger.write("end", code=-signum)
            signal.signal(signum, signal.SIG_DFL) if signum != signal.SIGKILL else None
            os.kill(os.getpid(), signum)
        self.ledger.write("end", code=int(how))
        return int(how)

    def _make_kin(self, kind: str) -> None:
        """A descendant: ``child``, ``daemon`` (a session of its own), ``bare`` (no environment)."""
        # Python swallows what a handler raises while it forks
        polite = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, polite)
        pid = os.fork()
        if pid == 0:
            try:
                self._be_kin(kind)
            finally:
                os._exit(0)
        if kind != "child":
            os.waitpid(pid, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, polite)

    def _be_kin(self, kind: str) -> None:
        if kind != "child":
            os.setsid()
            if os.fork():
                return
        for fd in (*self._locks, self._counters):
            os.close(fd)
        action = signal.SIG_IGN if self.act["deaf"] else signal.SIG_DFL
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, action)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        self.ledger.write("kin", kind=kind)
        if kind == "bare":
            os.execve("/bin/sleep", ["sleep", str(_LIFE_SECONDS)], {})
        time.sleep(_LIFE_SECONDS)


def _attempt() -> int:
    """The number of the attempt, from the file that the output goes to."""
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            found = re.search(r"/attempt_(\d+)/", os.readlink(f"/proc/self/fd/{fd}"))
            if found:
                return int(found[1])
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def main(job: object = "a") -> None:
    """What a worker runs, whatever the form of its entrypoint."""
    if code := Worker(str(job)).perform():
        sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
