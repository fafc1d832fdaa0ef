"""Destinations that fail or block, files that cannot be followed, and stop() through it all."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.launching import until
from support.tails import Sink, append

from lllaunch.linux.process import Inotify
from lllaunch.multiprocessing.tail_log import TailLog
from lllaunch.workers.tail import Follower


class Failing(io.StringIO):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def write(self, text: str) -> int:
        if self.times:
            self.times -= 1
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


def test_destination_that_raises_is_reported_once_and_stops_no_other(
    tmp_path: Path, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    failing = Failing(times=2)
    follower = Follower()
    follower.add(str(bad), b"", failing)
    follower.add(str(good), b"", sink)
    follower.start()
    for n in range(2):
        append(bad, b"%d\n" % n)
        append(good, b"%d\n" % n)
        sink.wait_for(f"{n}\n")
    while failing.times:
        append(bad, b"x\n")
    append(bad, b"again\n")
    follower.stop()
    assert sink.getvalue() == "0\n1\n"
    assert failing.getvalue().endswith("again\n")
    assert caplog.text.count("cannot be shown") == 1


def test_full_pipe_that_does_not_block_gets_everything(log: Path) -> None:
    data = b"".join(b"%07d\n" % n for n in range(100_000))
    append(log, data)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    got = bytearray()

    def read() -> None:
        while chunk := os.read(read_end, 65536):
            got.extend(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with open(write_end, "w", encoding="utf-8") as pipe:
        TailLog("t", {0: str(log)}, pipe, {0: ""}).start().stop()
    reader.join()
    os.close(read_end)
    assert bytes(got) == data


def test_stop_ends_although_a_worker_never_stops_writing(log: Path, sink: Sink) -> None:
    command = [sys.executable, "-c", "import os\nwhile True: os.write(1, b'y' * 99 + b'\\n')"]
    with open(log, "ab") as file:
        worker = subprocess.Popen(command, stdout=file)
    try:
        tail = TailLog("t", {0: str(log)}, sink).start()
        sink.wait_for("y\n")
        tail.stop()
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.wait()


def test_what_is_no_file_is_refused_once_and_stops_no_other(
    tmp_path: Path, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "fifo")
    append(tmp_path / "file", b"line\n")
    files = {0: str(tmp_path / "fifo"), 1: str(tmp_path / "file"), 2: str(tmp_path / "file" / "x")}
    TailLog("t", files, sink).start().stop()
    assert sink.getvalue() == "[t1]:line\n"
    assert caplog.text.count("not a regular file") == 1
    assert caplog.text.count("cannot be followed") == 2


LINE = b"x" * 100_000 + b"\n"


class Blocked:
    """A pipe that has taken the beginning of the first of twenty lines; a block holds several."""

    def __init__(self, log: Path) -> None:
        log.write_bytes(LINE * 20)
        self._read_end, write_end = os.pipe()
        self._pipe = open(write_end, "w", encoding="utf-8")  # noqa: SIM115 - closed by `read`
        self.follower = Follower()
        self.follower.add(str(log), b"", self._pipe)
        self.follower.start()
        until(lambda: not select.select([], [write_end], [], 0)[1], "the pipe to be full")

    def read(self) -> bytes:
        """All that is shown until the follower's thread has ended."""
        assert self.follower._thread is not None
        shown = b""
        while self.follower._thread.is_alive() or select.select([self._read_end], [], [], 0)[0]:
            if select.select([self._read_end], [], [], 0.01)[0]:
                shown += os.read(self._read_end, 1 << 20)
        self._pipe.close()
        os.close(self._read_end)
        return shown


def test_a_stop_that_a_signal_interrupts_begins_no_further_line(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = Blocked(log)

    def interrupted() -> None:
        raise InterruptedError

    monkeypatch.setattr(blocked.follower, "_wait", interrupted)
    with pytest.raises(InterruptedError):
        blocked.follower.stop()
    assert blocked.read() == LINE


@pytest.mark.parametrize(("beside", "level"), [(False, "WARNING"), (True, "DEBUG")])
def test_a_stop_gives_up_on_a_destination_that_takes_nothing_and_begins_no_further_line(
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    beside: bool,
    level: str,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setattr("lllaunch.workers.tail._STOP_PATIENCE_S", 0.05)
    blocked = Blocked(log)
    if beside:
        # what is said there would wait as well
        monkeypatch.setattr(sys, "stderr", blocked._pipe)
    blocked.follower.stop()
    assert blocked.follower.stopped()
    blocked.follower.stop()
    (said,) = [each for each in caplog.records if "takes no output" in each.getMessage()]
    assert said.levelname == level
    # The reader comes back: the thread ends by itself.
    assert blocked.read() == LINE


# What wakes the tail: the kernel, and a look every second only where the kernel cannot tell


class NoInotify:
    """A C library without it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass


class NoInstances(NoInotify):
    def inotify_init1(self, flags: int) -> int:
        ctypes.set_errno(errno.EMFILE)
        return -1


def no_watches(self: Inotify, path: str) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


@pytest.mark.parametrize(
    ("where", "name", "instead", "said"),
    [
        (ctypes, "CDLL", NoInotify, "inotify_init1"),
        (ctypes, "CDLL", NoInstances, os.strerror(errno.EMFILE)),
        (Inotify, "watch", no_watches, "No space left"),
    ],
)
def test_where_the_kernel_does_not_tell_files_are_polled_with_one_warning(
    tmp_path: Path,
    sink: Sink,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: object,
    name: str,
    instead: object,
    said: str,
) -> None:
    monkeypatch.setattr(where, name, instead)
    there, later = tmp_path / "there", tmp_path / "later"
    append(there, b"there\n")
    monkeypatch.setattr("lllaunch.workers.tail._POLL_S", 0.01)
    follower = Follower()
    for path in (there, later):
        follower.add(str(path), b"", sink)
    follower.start()
    append(later, b"later\n")
    sink.wait_for("later\n")
    append(there, b"again\n")
    sink.wait_for("again\n")
    follower.stop()
    assert caplog.text.count(said) == 1


def test_lost_events_mean_looking_at_everything(
    tmp_path: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Inotify.read

    def lossy(self: Inotify) -> tuple[list[int], bool]:
        real(self)
        return [], True

    monkeypatch.setattr(Inotify, "read", lossy)
    tail = TailLog("t", {n: str(tmp_path / str(n)) for n in range(3)}, sink).start()
    for n in range(3):
        append(tmp_path / str(n), b"line\n")
        sink.wait_for(f"[t{n}]:line\n")
    tail.stop()
