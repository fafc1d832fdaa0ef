"""The tee on real files: everything written before stop() is shown, whole, once, with one prefix."""

from __future__ import annotations

import errno
import io
import logging
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any, TextIO

import pytest

from lllaunch.linux import inotify
from lllaunch.multiprocessing.follow import Follower
from lllaunch.multiprocessing.output import Destination
from lllaunch.multiprocessing.tail_log import TailLog, tail_logfile


class Sink(io.StringIO):
    """A text stream that others can wait on."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Condition()

    def write(self, text: str) -> int:
        with self.written:
            count = super().write(text)
            self.written.notify_all()
        return count

    def wait_for(self, text: str) -> None:
        with self.written:
            assert self.written.wait_for(lambda: text in self.getvalue(), timeout=30), text


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stdout.log"


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def no_inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lllaunch.multiprocessing.watching.open_inotify", lambda: inotify.Unavailable("none here")
    )


def append(path: Path, data: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(data)


def test_lines_get_the_header_of_torch(log: Path, sink: Sink) -> None:
    log.write_bytes(b"one\ntwo\n")
    tail = TailLog("trainer", {11: str(log)}, sink)
    assert tail.start() is tail
    assert not tail.stopped()
    tail.stop()
    assert tail.stopped()
    assert sink.getvalue() == "[trainer11]:one\n[trainer11]:two\n"


def test_lines_appear_while_they_are_written(log: Path, sink: Sink) -> None:
    tail = TailLog("t", {0: str(log)}, sink).start()
    try:
        for word in (b"first", b"second", b"third"):
            append(log, word + b"\n")
            sink.wait_for(f"[t0]:{word.decode()}\n")
    finally:
        tail.stop()


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


def test_last_line_without_newline_is_ended_for_the_next_one(tmp_path: Path, sink: Sink) -> None:
    files = {n: tmp_path / str(n) for n in range(2)}
    for path in files.values():
        append(path, b"open end")
    TailLog("t", {n: str(path) for n, path in files.items()}, sink).start().stop()
    assert sink.getvalue() == "[t0]:open end\n[t1]:open end\n"


def test_stop_drains_files_that_appeared_at_the_last_moment(log: Path, sink: Sink) -> None:
    follower = Follower()
    follower.add(str(log), b"", sink)
    follower.start()
    append(log, b"just in time\n")
    follower.stop()
    assert sink.getvalue() == "just in time\n"


def test_piecewise_blank_and_redrawn_lines(log: Path, sink: Sink) -> None:
    tail = TailLog("t", {0: str(log)}, sink).start()
    try:
        for piece in (b"ha", b"lf\n", b"\n", b"\r 10%", b"\r100%", b"\nend\n"):
            append(log, piece)
        sink.wait_for("end\n")
    finally:
        tail.stop()
    assert sink.getvalue() == "[t0]:half\n[t0]:\n[t0]:100%\n[t0]:end\n"


def test_binary_output_reaches_a_file_byte_for_byte(log: Path, tmp_path: Path) -> None:
    noise = bytes(range(256)) * 4096
    append(log, noise.replace(b"\r", b"") + b"\n")
    with open(tmp_path / "shown", "w", encoding="utf-8") as shown:
        TailLog("t", {0: str(log)}, shown, {0: ""}).start().stop()
    assert (tmp_path / "shown").read_bytes() == log.read_bytes()


def test_line_of_ten_megabytes_comes_whole_with_one_prefix(log: Path, tmp_path: Path) -> None:
    line = b"x" * 10_000_000
    with open(tmp_path / "shown", "w+", encoding="utf-8") as shown:
        tail = TailLog("t", {0: str(log)}, shown).start()
        for start in range(0, len(line), 1_000_000):
            append(log, line[start : start + 1_000_000])
        append(log, b"\nnext\n")
        tail.stop()
    assert (tmp_path / "shown").read_bytes() == b"[t0]:" + line + b"\n[t0]:next\n"


def test_two_hundred_files_and_one_thread(tmp_path: Path, sink: Sink) -> None:
    files = {n: str(tmp_path / str(n) / "stdout.log") for n in range(200)}
    before = threading.active_count()
    tail = TailLog("t", files, sink).start()
    assert threading.active_count() == before + 1
    for path in files.values():
        os.mkdir(os.path.dirname(path))
        append(Path(path), b"".join(b"%d\n" % n for n in range(50)) + b"end")
    tail.stop()
    expected = {f"[t{n}]:{k}": 1 for n in files for k in [*range(50), "end"]}
    assert Counter(sink.getvalue().splitlines()) == expected
    assert threading.active_count() == before


def test_several_destinations_in_one_follower(tmp_path: Path) -> None:
    out, err = Sink(), Sink()
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


def test_filtered_output_holds_no_notice_of_truncation(log: Path, sink: Sink) -> None:
    tail = TailLog("t", {0: str(log)}, sink, log_line_filter=lambda line: "r" in line).start()
    try:
        append(log, b"before\n")
        sink.wait_for("before")
        os.truncate(log, 0)
        append(log, b"for\n")
        sink.wait_for("for\n")
    finally:
        tail.stop()
    assert "truncated" not in sink.getvalue()


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


def test_closed_destination_is_reported(
    log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, b"line\n")
    shown = open(tmp_path / "shown", "w", encoding="utf-8")
    tail = TailLog("t", {0: str(log)}, shown)
    shown.close()
    tail.start().stop()
    assert "closed file" in caplog.text


def test_reader_that_went_away_is_reported(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(log, b"line\n")
    read_end, write_end = os.pipe()
    with open(write_end, "w", encoding="utf-8") as pipe:
        os.close(read_end)
        TailLog("t", {0: str(log)}, pipe).start().stop()
    assert "Broken pipe" in caplog.text


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


def test_stop_gives_up_on_a_destination_that_takes_nothing(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lllaunch.multiprocessing.follow._PATIENCE_S", 0.2)
    append(log, b"x" * 4_000_000 + b"\n")
    read_end, write_end = os.pipe()
    pipe = open(write_end, "w", encoding="utf-8")
    follower = Follower()
    follower.add(str(log), b"", pipe)
    follower.start()
    follower.stop()
    assert follower.stopped()
    follower.stop()
    assert "not taken" in caplog.text
    # The reader comes back: the thread ends by itself and leaves nothing behind.
    got = 0
    while got < 4_000_001:
        got += len(os.read(read_end, 1 << 20))
    assert follower._thread is not None
    follower._thread.join(30)
    assert not follower._thread.is_alive()
    pipe.close()
    os.close(read_end)


def test_stop_is_idempotent_and_may_come_from_many_threads(log: Path, sink: Sink) -> None:
    tail = TailLog("t", {0: str(log)}, sink).start()
    append(log, b"once\n")
    threads = [threading.Thread(target=tail.stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    tail.stop()
    assert sink.getvalue() == "[t0]:once\n"


def test_stop_from_within_the_destination_does_not_deadlock(log: Path) -> None:
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


def test_tail_without_files_or_destination_does_nothing(log: Path, sink: Sink) -> None:
    for tail in (TailLog("t", {}, sink), TailLog("t", {0: str(log)}, None)):
        assert tail.start() is tail
        tail.stop()
        assert tail.stopped()


def test_tail_that_was_never_started_stops(log: Path, sink: Sink) -> None:
    append(log, b"unseen\n")
    tail = TailLog("t", {0: str(log)}, sink)
    tail.stop()
    assert tail.stopped()
    assert sink.getvalue() == ""


def test_devnull_shows_nothing(sink: Sink) -> None:
    TailLog("t", {0: os.devnull}, sink).start().stop()
    assert sink.getvalue() == ""


@pytest.mark.parametrize("name", ["with space", "ünï-日本", "new\nline", "100%", "\udcff"])
def test_hostile_paths(tmp_path: Path, sink: Sink, name: str) -> None:
    path = tmp_path / name / "stdout.log"
    tail = TailLog("t", {0: str(path)}, sink).start()
    path.parent.mkdir()
    append(path, b"x\n")
    sink.wait_for("[t0]:x\n")
    tail.stop()


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


class Bar:
    """Someone else's progress bar: clears itself when asked, until `close`."""

    def __init__(self, serve: bool) -> None:
        self.events = {"trigger_clear": threading.Event(), "cleared": threading.Event()}
        self.cleared = 0
        self.closing = False
        self.thread = threading.Thread(target=self._serve)
        if serve:
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
    bar = Bar(serve=True)
    tail = TailLog("t", {0: str(log)}, sink, progbar_events=bar.events).start()
    append(log, b"one\n\ntwo\n")
    sink.wait_for("two\n")
    append(log, b"three")
    tail.stop()
    bar.close()
    assert sink.getvalue() == "[t0]:one\n[t0]:\n[t0]:two\n[t0]:three\n"
    assert bar.cleared >= 2
    assert not bar.events["trigger_clear"].is_set()


def test_progress_bar_that_nobody_serves_stops_nothing(tmp_path: Path, sink: Sink) -> None:
    bar = Bar(serve=False)
    files = {n: str(tmp_path / str(n)) for n in range(50)}
    for path in files.values():
        append(Path(path), b"line\n")
    TailLog("t", files, sink, progbar_events=bar.events).start().stop()
    assert len(sink.getvalue().splitlines()) == 50


def run_tail_logfile(log: Path, sink: TextIO, *args: Any, **kwargs: Any) -> None:
    finished = threading.Event()
    call = (("[h]:", str(log), sink, finished, 0.01, *args), kwargs)
    thread = threading.Thread(target=lambda: tail_logfile(*call[0], **call[1]))
    thread.start()
    append(log, b"one\n\ntwo")
    finished.set()
    thread.join(30)
    assert not thread.is_alive()


def test_tail_logfile_blocks_until_finished(log: Path, sink: Sink) -> None:
    run_tail_logfile(log, sink)
    assert sink.getvalue() == "[h]:one\n[h]:\n[h]:two\n"


def test_tail_logfile_takes_a_filter(log: Path, sink: Sink) -> None:
    run_tail_logfile(log, sink, lambda line: "o" in line)
    assert sink.getvalue() == "[h]:one\n[h]:two\n"


def test_tail_logfile_takes_the_older_positional_lock_and_events(log: Path, sink: Sink) -> None:
    lock, bar = threading.Lock(), Bar(serve=True)
    run_tail_logfile(log, sink, lock, bar.events)
    bar.close()
    assert sink.getvalue() == "[h]:one\n[h]:\n[h]:two\n"
    assert bar.cleared
    assert not lock.locked()


def test_tail_logfile_takes_them_by_keyword_too(log: Path, sink: Sink) -> None:
    run_tail_logfile(log, sink, lock=threading.Lock(), progbar_events=None)
    assert sink.getvalue() == "[h]:one\n[h]:\n[h]:two\n"


def test_tail_logfile_of_a_file_that_never_comes_returns(tmp_path: Path, sink: Sink) -> None:
    finished = threading.Event()
    finished.set()
    tail_logfile("[h]:", str(tmp_path / "never"), sink, finished, 0.01)
    assert sink.getvalue() == ""


@pytest.mark.usefixtures("no_inotify")
def test_without_inotify_files_are_polled_with_one_warning(
    tmp_path: Path, sink: Sink, caplog: pytest.LogCaptureFixture
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
    tmp_path: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
    log: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch
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


def test_idle_tail_is_never_woken(tmp_path: Path) -> None:
    """Counts the context switches of the tail's thread over a second in which nothing happens."""
    code = """
import io, os, sys, threading, time
from lllaunch.multiprocessing.tail_log import TailLog
files = {n: f"{sys.argv[1]}/{n}" for n in range(20)}
for n in range(10):
    open(files[n], "w").write("partial")
tail = TailLog("t", files, io.StringIO()).start()
tid = next(t.native_id for t in threading.enumerate() if t is not threading.main_thread())
def switches():
    status = open(f"/proc/self/task/{tid}/status").read()
    return [line for line in status.splitlines() if "voluntary_ctxt" in line]
before = None
while before != switches():
    before = switches()
    time.sleep(0.3)
settled = switches()
time.sleep(1.2)
assert switches() == settled, (switches(), settled)
tail.stop()
print("idle")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("idle\n", "")


def test_importing_the_tail_imports_nothing_heavy() -> None:
    code = (
        "import sys, lllaunch.multiprocessing.tail_log, lllaunch.multiprocessing.logs, "
        "lllaunch.multiprocessing.errors, lllaunch.multiprocessing.redirects\n"
        "print({'torch', 'asyncio', 'rich', 'psutil', 'numpy', 'hydra', 'omegaconf', 'tempfile',"
        " 'socket', 'subprocess'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_writers_of_several_threads_never_mix_their_lines(tmp_path: Path) -> None:
    with open(tmp_path / "shown", "w", encoding="utf-8") as shown:
        followers = []
        for n in range(4):
            append(tmp_path / f"log{n}", (b"%d" % n) * 3_000_000 + b"\n")
            follower = Follower()
            follower.add(str(tmp_path / f"log{n}"), b"", shown)
            followers.append(follower.start())
        Destination(shown).write([b"own\n"])
        for follower in followers:
            follower.stop()
    lines = (tmp_path / "shown").read_bytes().splitlines()
    assert sorted(lines) == sorted([(b"%d" % n) * 3_000_000 for n in range(4)] + [b"own"])


def test_forked_child_can_write_although_a_thread_held_the_lock(tmp_path: Path) -> None:
    with open(tmp_path / "shown", "w", encoding="utf-8") as shown:
        destination = Destination(shown)
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            with destination._screen.lock:
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
    log: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Follower, "_look", lambda self, watching: 1 / 0)
    with caplog.at_level(logging.ERROR):
        TailLog("t", {0: str(log)}, sink).start().stop()
    assert "ZeroDivisionError" in caplog.text


def test_file_that_cannot_be_read_is_given_up(
    log: Path, sink: Sink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    append(log, b"line\n")
    monkeypatch.setattr(os, "pread", broken)
    TailLog("t", {0: str(log)}, sink).start().stop()
    assert "Input/output error" in caplog.text
    assert sink.getvalue() == ""
