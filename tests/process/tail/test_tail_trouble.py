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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT, until

from lllaunch.linux import inotify
from lllaunch.multiprocessing.tail_log import TailLog
from lllaunch.workers.tail import Follower
from lllaunch.workers.terminal import Destination

Append = Callable[[Path, bytes], None]


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
    tmp_path: Path, sink: Any, caplog: pytest.LogCaptureFixture, append: Append
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


def test_full_pipe_that_does_not_block_gets_everything(log: Path, append: Append) -> None:
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


def test_stop_gives_up_on_a_destination_that_takes_nothing(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, append: Append
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setattr("lllaunch.workers.tail._STOP_PATIENCE_S", 0.2)
    append(log, b"x" * 4_000_000 + b"\n")
    read_end, write_end = os.pipe()
    pipe = open(write_end, "w", encoding="utf-8")  # noqa: SIM115 - closed below
    follower = Follower()
    follower.add(str(log), b"", pipe)
    follower.start()
    follower.stop()
    assert follower.stopped()
    follower.stop()
    assert "takes no output" in caplog.text
    # The reader comes back: the thread ends by itself and leaves nothing behind.
    got = 0
    while got < 4_000_001:
        got += len(os.read(read_end, 1 << 20))
    assert follower._thread is not None
    follower._thread.join(WAIT)
    assert not follower._thread.is_alive()
    pipe.close()
    os.close(read_end)


def test_stop_from_within_the_destination_does_not_deadlock(log: Path, append: Append) -> None:
    class Stopping(io.StringIO):
        tail: TailLog

        def write(self, text: str) -> int:
            self.tail.stop()
            return super().write(text)

    out = Stopping()
    out.tail = TailLog("t", {0: str(log)}, out)
    append(log, b"line\n")
    out.tail.start().stop()
    assert out.getvalue() == "[t0]:line\n"


def test_stop_ends_although_a_worker_never_stops_writing(log: Path, sink: Any) -> None:
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
    tmp_path: Path, sink: Any, caplog: pytest.LogCaptureFixture, append: Append
) -> None:
    os.mkfifo(tmp_path / "fifo")
    append(tmp_path / "file", b"line\n")
    files = {0: str(tmp_path / "fifo"), 1: str(tmp_path / "file"), 2: str(tmp_path / "file" / "x")}
    TailLog("t", files, sink).start().stop()
    assert sink.getvalue() == "[t1]:line\n"
    assert caplog.text.count("not a regular file") == 1
    assert caplog.text.count("cannot be followed") == 2


def test_forked_child_can_write_although_a_thread_held_the_lock(tmp_path: Path) -> None:
    with open(tmp_path / "shown", "w", encoding="utf-8") as shown:
        destination = Destination(shown)
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            with destination.screen.turn():
                held.set()
                release.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            try:
                Destination(shown).write([b"child\n"])
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        release.set()
        thread.join()
    assert (tmp_path / "shown").read_text() == "child\n"


def test_file_that_cannot_be_read_is_given_up(
    log: Path,
    sink: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    append: Append,
) -> None:
    def broken(descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    append(log, b"line\n")
    monkeypatch.setattr(os, "pread", broken)
    TailLog("t", {0: str(log)}, sink).start().stop()
    assert "Input/output error" in caplog.text
    assert sink.getvalue() == ""


LINE = b"x" * 100_000 + b"\n"


class Blocked:
    """A pipe that has taken the beginning of the first of twenty lines; a block holds several.

    Attributes:
        follower: who shows them, and waits.
    """

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


def test_a_stop_that_gives_up_begins_no_further_line(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lllaunch.workers.tail._STOP_PATIENCE_S", 0.05)
    blocked = Blocked(log)
    blocked.follower.stop()
    assert blocked.read() == LINE


@pytest.mark.parametrize("plain", [True, False])
def test_who_waits_while_the_last_words_are_said_begins_no_line_after_them(
    tmp_path: Path, sink: Any, plain: bool
) -> None:
    with open(tmp_path / "shown", "w", encoding="utf-8") as file:
        destination = Destination(file if plain else sink)
        thread = threading.Thread(target=destination.write, args=([b"late\n"],))
        with destination.screen.turn():
            thread.start()
            until(destination.screen._turnstile.locked, "the other writer")
            destination.silent = True
        thread.join()
    assert ((tmp_path / "shown").read_text(), sink.getvalue()) == ("", "")


# What wakes the tail: the kernel, and a look every second only where the kernel cannot tell


@pytest.fixture
def no_inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lllaunch.workers.tail.open_inotify", lambda: inotify.Unavailable("none here")
    )


@pytest.mark.usefixtures("no_inotify")
def test_without_inotify_files_are_polled_with_one_warning(
    tmp_path: Path, sink: Any, caplog: pytest.LogCaptureFixture, append: Append
) -> None:
    follower = Follower(poll_interval=0.01)
    for n in range(3):
        follower.add(str(tmp_path / str(n)), b"", sink)
    follower.start()
    for n in range(3):
        append(tmp_path / str(n), b"file %d\n" % n)
        sink.wait_for(f"file {n}\n")
    append(tmp_path / "0", b"more\n")
    sink.wait_for("more\n")
    follower.stop()
    assert caplog.text.count("none here") == 1


def test_used_up_watches_mean_polling(
    tmp_path: Path,
    sink: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    append: Append,
) -> None:
    def refuse(self: inotify.Inotify, path: str, mask: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(inotify.Inotify, "_watch", refuse)
    append(tmp_path / "there", b"there\n")
    follower = Follower(poll_interval=0.01)
    follower.add(str(tmp_path / "there"), b"", sink)
    follower.add(str(tmp_path / "later"), b"", sink)
    follower.start()
    append(tmp_path / "later", b"later\n")
    sink.wait_for("later\n")
    append(tmp_path / "there", b"again\n")
    sink.wait_for("again\n")
    follower.stop()
    assert caplog.text.count("No space left") == 1


def test_descriptors_that_run_out_only_delay(
    log: Path, sink: Any, monkeypatch: pytest.MonkeyPatch, append: Append
) -> None:
    real = os.open
    refusals = iter([True, True])

    def scarce(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if path == str(log) and next(refusals, False):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return real(path, flags, mode, **more)

    append(log, b"line\n")
    monkeypatch.setattr(os, "open", scarce)
    follower = Follower(poll_interval=0.01)
    follower.add(str(log), b"", sink)
    follower.start()
    sink.wait_for("line\n")
    follower.stop()


def test_lost_events_mean_looking_at_everything(
    tmp_path: Path, sink: Any, monkeypatch: pytest.MonkeyPatch, append: Append
) -> None:
    real = inotify.Inotify.read

    def lossy(self: inotify.Inotify) -> inotify.Changes:
        real(self)
        return inotify.Changes(overflow=True)

    monkeypatch.setattr(inotify.Inotify, "read", lossy)
    tail = TailLog("t", {n: str(tmp_path / str(n)) for n in range(3)}, sink).start()
    for n in range(3):
        append(tmp_path / str(n), b"line\n")
        sink.wait_for(f"[t{n}]:line\n")
    tail.stop()


def test_missing_call_and_used_up_instances_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        def __init__(self, *args: object, **kwargs: object) -> None:
            """A C library that has no inotify."""

    class UsedUp(Without):
        def inotify_init1(self, flags: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", Without)
    missing = inotify.open_inotify()
    assert isinstance(missing, inotify.Unavailable)
    assert "inotify_init1" in missing.reason
    monkeypatch.setattr(ctypes, "CDLL", UsedUp)
    assert inotify.open_inotify() == inotify.Unavailable(os.strerror(errno.EMFILE))
