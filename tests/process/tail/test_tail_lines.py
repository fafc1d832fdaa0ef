"""Files that are followed: lines are shown whole and once, whoever writes, fails or blocks."""

from __future__ import annotations

import ctypes
import errno
import io
import itertools
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT, until
from support.tails import Sink, append

from lllaunch.console.stream import Outlet
from lllaunch.linux.process import Inotify
from lllaunch.multiprocessing.tail_log import TailLog, tail_logfile
from lllaunch.workers import tail
from lllaunch.workers.tail import Follower


def test_file_and_its_directories_may_come_later(tmp_path: Path, sink: Sink) -> None:
    path = tmp_path / "a" / "b" / "c" / "stdout.log"
    tail = TailLog("t", {0: str(path)}, sink).start()
    try:
        (tmp_path / "a").mkdir()
        append(tmp_path / "a" / "other", b"no\n")
        (tmp_path / "a" / "b").mkdir()
        path.parent.mkdir()
        append(path, b"here\n")
        sink.wait_for("[t0]:here\n")
    finally:
        tail.stop()
    assert sink.getvalue() == "[t0]:here\n"


@pytest.mark.parametrize("round_", range(20))
def test_no_last_line_is_lost(log: Path, sink: Sink, round_: int) -> None:
    tail = TailLog("t", {0: str(log)}, sink).start()
    append(log, b"".join(b"%d\n" % n for n in range(round_ * 500)) + b"last words")
    tail.stop()
    lines = sink.getvalue().splitlines()
    assert lines == [f"[t0]:{n}" for n in range(round_ * 500)] + ["[t0]:last words"]


def test_several_destinations_in_one_follower(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    follower = Follower()
    for name, dst in (("stdout.log", out), ("stderr.log", err)):
        append(tmp_path / name, name.encode() + b"\n")
        follower.add(str(tmp_path / name), b"p:", dst)
    follower.start()
    follower.start()
    append(tmp_path / "later", b"later\n")
    follower.add(str(tmp_path / "later"), b"q:", out)
    follower.stop()
    assert out.getvalue() == "p:stdout.log\nq:later\n"
    assert err.getvalue() == "p:stderr.log\n"
    with pytest.raises(RuntimeError, match="stopped"):
        follower.add("x", b"", out)
    with pytest.raises(RuntimeError, match="stopped"):
        follower.start()


def test_filter_sees_text_with_its_newline(log: Path, sink: Sink) -> None:
    append(log, b"keep 1\ndrop\n\xff keep 2\nkeep ")
    seen: list[str] = []

    def keep(line: str) -> bool:
        seen.append(line)
        return "keep" in line

    TailLog("t", {0: str(log)}, sink, log_line_filter=keep).start().stop()
    assert seen == ["keep 1\n", "drop\n", "\ufffd keep 2\n", "keep \n"]
    assert sink.getvalue() == "[t0]:keep 1\n[t0]:\ufffd keep 2\n[t0]:keep \n"


def test_filter_that_fails_is_reported_once_and_hides_nothing(
    log: Path, sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, b"one\ntwo\n")

    def broken(line: str) -> bool:
        raise ZeroDivisionError(line)

    TailLog("t", {0: str(log)}, sink, log_line_filter=broken).start().stop()
    assert sink.getvalue() == "[t0]:one\n[t0]:two\n"
    assert caplog.text.count("ZeroDivisionError") == 1


def test_file_that_shrinks_is_said_and_followed_from_its_start(log: Path, sink: Sink) -> None:
    tail = TailLog("t", {0: str(log)}, sink).start()
    try:
        append(log, b"before\nlost part")
        sink.wait_for("before\n")
        os.truncate(log, 0)
        sink.wait_for("truncated")
        append(log, b"after\n")
        sink.wait_for("after\n")
    finally:
        tail.stop()
    assert sink.getvalue() == (
        "[t0]:before\n[t0]:[stdout.log truncated by the worker]\n[t0]:after\n"
    )


# tail_logfile, and the events of someone else's progress bar


class Bar:
    """Someone else's progress bar: clears itself when asked, until `close`."""

    def __init__(self) -> None:
        self.events = {"trigger_clear": threading.Event(), "cleared": threading.Event()}
        self.cleared = 0
        self.closing = False
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while not self.closing:
            if self.events["trigger_clear"].wait(0.05) and not self.events["cleared"].is_set():
                self.cleared += 1
                self.events["cleared"].set()

    def close(self) -> None:
        self.closing = True
        self.thread.join()


def test_progress_bar_is_taken_away_before_lines(log: Path, sink: Sink) -> None:
    bar = Bar()
    tail = TailLog("t", {0: str(log)}, sink, progbar_events=bar.events).start()
    append(log, b"one\n\ntwo\n")
    sink.wait_for("two\n")
    append(log, b"three")
    tail.stop()
    bar.close()
    assert sink.getvalue() == "[t0]:one\n[t0]:\n[t0]:two\n[t0]:three\n"
    assert bar.cleared >= 2
    assert not bar.events["trigger_clear"].is_set()


def test_tail_logfile_blocks_until_finished(log: Path, sink: Sink) -> None:
    finished = threading.Event()
    call = ("[h]:", str(log), sink, finished, 0.01)
    thread = threading.Thread(target=tail_logfile, args=call)
    thread.start()
    append(log, b"one\n\ntwo")
    finished.set()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert sink.getvalue() == "[h]:one\n[h]:\n[h]:two\n"


def test_tail_logfile_of_a_file_that_never_comes_returns(tmp_path: Path, sink: Sink) -> None:
    finished = threading.Event()
    finished.set()
    tail_logfile("[h]:", str(tmp_path / "never"), sink, finished, 0.01)
    assert sink.getvalue() == ""


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


def header(ranks: Sequence[int]) -> bytes:
    return f"[{','.join(map(str, ranks))}]".encode()


@pytest.fixture
def files(tmp_path: Path) -> dict[int, Path]:
    return {rank: tmp_path / str(rank) for rank in (0, 1, 5)}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_HELD_S", 10_000.0)


@pytest.fixture
def follow(files: dict[int, Path]) -> Iterator[Callable[[Any], Follower]]:
    made = []

    def start(out: Any) -> Follower:
        follower = Follower()
        made.append(follower)
        follower.add_collapsed([({rank: str(path) for rank, path in files.items()}, out)], header)
        return follower.start()

    yield start
    for follower in made:
        follower.stop()


@pytest.mark.usefixtures("patient")
def test_what_all_say_is_shown_when_the_last_of_them_has_said_it(
    files: dict[int, Path], sink: Sink, follow: Callable[[Any], Follower]
) -> None:
    follow(sink)
    for rank in (5, 0, 1):
        assert sink.getvalue() == ""
        append(files[rank], b"ready\n")
    sink.wait_for("[0,1,5]ready\n")
    # in pieces
    append(files[0], b"\xff")
    append(files[1], b"\xff\n\n")
    append(files[5], b"\xff\n\n")
    append(files[0], b"\n")
    append(files[0], b"\n")
    sink.wait_for("[0,1,5]\ufffd\n[0,1,5]\n")


def test_what_one_says_is_shown_after_a_while(
    files: dict[int, Path], sink: Sink, follow: Callable[[Any], Follower]
) -> None:
    follow(sink)
    append(files[5], b"alone\nand more\n")
    sink.wait_for("[5]alone\n[5]and more\n")


@pytest.mark.usefixtures("patient")
def test_the_end_shows_all_that_is_held(
    files: dict[int, Path], sink: Sink, follow: Callable[[Any], Follower]
) -> None:
    follower = follow(sink)
    for rank, path in files.items():
        append(path, b"%d\n" % rank + b"same\n" * 3 + b"bye")
    follower.stop()
    expected = ["[0]0", "[1]1", "[5]5", *["[0,1,5]same"] * 3, "[0,1,5]bye"]
    assert sorted(sink.getvalue().splitlines()) == sorted(expected)
    assert sink.getvalue().endswith("[0,1,5]same\n" * 3 + "[0,1,5]bye\n")


@pytest.mark.usefixtures("patient")
def test_a_message_comes_after_what_was_written_before_it(
    files: dict[int, Path], tmp_path: Path, follow: Callable[[Any], Follower]
) -> None:
    with open(tmp_path / "console", "a+") as console:
        follower = follow(console)
        outlet = Outlet(console)
        for number in range(20):
            append(files[number % 2], b"line %d\n" % number)
            outlet.write(f"lllaunch: after {number}\n", 60.0)
        follower.stop()
        outlet.write("lllaunch: the end\n", 60.0)
        console.seek(0)
        lines = console.read().splitlines()
    pairs = [(f"[{n % 2}]line {n}", f"lllaunch: after {n}") for n in range(20)]
    assert lines == [*itertools.chain(*pairs), "lllaunch: the end"]


@pytest.mark.usefixtures("patient")
def test_a_line_that_is_too_long_to_be_held_comes_in_its_place(
    files: dict[int, Path], sink: Sink, follow: Callable[[Any], Follower]
) -> None:
    follower = follow(sink)
    long = b"x" * 1_000_000
    for path in files.values():
        append(path, b"before\n" + long + b"\nafter\n")
    follower.stop()
    for rank in files:
        own = [line for line in sink.getvalue().splitlines() if str(rank) in line.split("]")[0]]
        assert [line.split("]")[1] for line in own] == ["before", long.decode(), "after"]
    assert sink.getvalue().endswith("\n[0,1,5]after\n")


@pytest.mark.usefixtures("patient")
def test_of_a_flood_whole_blocks_are_compared_and_of_what_comes_after_it_lines(
    files: dict[int, Path],
    sink: Sink,
    follow: Callable[[Any], Follower],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tail, "_FLOOD", 400_000)
    same = [f"same {number}" for number in range(20_000)]
    mixed = {rank: [f"{rank} own", "mixed"] * 40_000 + [f"{rank} last"] for rank in files}
    for rank, path in files.items():
        append(path, "\n".join([*same, *mixed[rank], ""]).encode())
    follower = follow(sink)
    for rank in files:
        while f"[{rank}]{rank} last\n" not in sink.getvalue():
            follower.show_held(WAIT)
    for rank, path in files.items():
        append(path, b"%d after\nmixed\n" % rank)
    follower.stop()
    shown = sink.getvalue().splitlines()
    assert shown[:10_000] == [f"[0,1,5]{line}" for line in same[:10_000]]
    assert [line for line in shown if "mixed" in line and "," in line] == ["[0,1,5]mixed"]
    for rank in files:
        own = [line.split("]")[1] for line in shown if str(rank) in line.split("]")[0]]
        assert own == [*same, *mixed[rank], f"{rank} after", "mixed"]
