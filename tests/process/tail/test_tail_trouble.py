"""Destinations that fail or block, files that cannot be followed, and stop() through it all."""

from __future__ import annotations

import errno
import io
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.launching import until

from lllaunch.multiprocessing.tail_log import TailLog
from lllaunch.workers.tail import Follower
from lllaunch.workers.terminal import Destination

if TYPE_CHECKING:
    from types import FrameType

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


def test_closed_destination_is_reported(
    log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, append: Append
) -> None:
    append(log, b"line\n")
    shown = open(tmp_path / "shown", "w", encoding="utf-8")  # noqa: SIM115 - closed below
    tail = TailLog("t", {0: str(log)}, shown)
    shown.close()
    tail.start().stop()
    assert "closed file" in caplog.text


def test_reader_that_went_away_is_no_trouble(
    log: Path, caplog: pytest.LogCaptureFixture, append: Append
) -> None:
    append(log, b"line\n")
    read_end, write_end = os.pipe()
    with open(write_end, "w", encoding="utf-8") as pipe:
        os.close(read_end)
        TailLog("t", {0: str(log)}, pipe).start().stop()
    assert caplog.text == ""


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
    follower._thread.join(30)
    assert not follower._thread.is_alive()
    pipe.close()
    os.close(read_end)


def test_stop_is_idempotent_and_may_come_from_many_threads(
    log: Path, sink: Any, append: Append
) -> None:
    tail = TailLog("t", {0: str(log)}, sink).start()
    append(log, b"once\n")
    threads = [threading.Thread(target=tail.stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    tail.stop()
    assert sink.getvalue() == "[t0]:once\n"


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


def test_tail_without_files_or_destination_does_nothing(log: Path, sink: Any) -> None:
    for tail in (TailLog("t", {}, sink), TailLog("t", {0: str(log)}, None)):
        assert tail.start() is tail
        tail.stop()
        assert tail.stopped()


def test_tail_that_was_never_started_stops(log: Path, sink: Any, append: Append) -> None:
    append(log, b"unseen\n")
    tail = TailLog("t", {0: str(log)}, sink)
    tail.stop()
    assert tail.stopped()
    assert sink.getvalue() == ""


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


def test_error_of_its_own_is_logged_and_stop_returns(
    log: Path, sink: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Follower, "_finish", lambda self: 1 / 0)
    with caplog.at_level(logging.ERROR):
        TailLog("t", {0: str(log)}, sink).start().stop()
    assert "ZeroDivisionError" in caplog.text


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


def test_a_stop_that_a_signal_interrupts_begins_no_further_line(log: Path) -> None:
    blocked = Blocked(log)

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(InterruptedError):
            blocked.follower.stop()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
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
