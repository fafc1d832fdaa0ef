"""Lines on real files: everything written before stop() is shown, whole, once, one prefix."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT

from lllaunch.multiprocessing.tail_log import TailLog, tail_logfile
from lllaunch.workers.tail import Follower

Append = Callable[[Path, bytes], None]


def test_lines_get_the_header_of_torch(log: Path, sink: Any) -> None:
    log.write_bytes(b"one\ntwo\n")
    tail = TailLog("trainer", {11: str(log)}, sink)
    assert tail.start() is tail
    assert not tail.stopped()
    tail.stop()
    assert tail.stopped()
    assert sink.getvalue() == "[trainer11]:one\n[trainer11]:two\n"


def test_file_and_its_directories_may_come_later(tmp_path: Path, sink: Any, append: Append) -> None:
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
def test_no_last_line_is_lost(log: Path, sink: Any, round_: int, append: Append) -> None:
    tail = TailLog("t", {0: str(log)}, sink).start()
    append(log, b"".join(b"%d\n" % n for n in range(round_ * 500)) + b"last words")
    tail.stop()
    lines = sink.getvalue().splitlines()
    assert lines == [f"[t0]:{n}" for n in range(round_ * 500)] + ["[t0]:last words"]


def test_stop_drains_files_that_appeared_at_the_last_moment(
    log: Path, sink: Any, append: Append
) -> None:
    follower = Follower()
    follower.add(str(log), b"", sink)
    follower.start()
    append(log, b"just in time\n")
    follower.stop()
    assert sink.getvalue() == "just in time\n"


def test_several_destinations_in_one_follower(tmp_path: Path, append: Append) -> None:
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


def test_filter_sees_text_with_its_newline(log: Path, sink: Any, append: Append) -> None:
    append(log, b"keep 1\ndrop\n\xff keep 2\nkeep ")
    seen: list[str] = []

    def keep(line: str) -> bool:
        seen.append(line)
        return "keep" in line

    TailLog("t", {0: str(log)}, sink, log_line_filter=keep).start().stop()
    assert seen == ["keep 1\n", "drop\n", "\ufffd keep 2\n", "keep \n"]
    assert sink.getvalue() == "[t0]:keep 1\n[t0]:\ufffd keep 2\n[t0]:keep \n"


def test_filter_that_fails_is_reported_once_and_hides_nothing(
    log: Path, sink: Any, caplog: pytest.LogCaptureFixture, append: Append
) -> None:
    append(log, b"one\ntwo\n")

    def broken(line: str) -> bool:
        raise ZeroDivisionError(line)

    TailLog("t", {0: str(log)}, sink, log_line_filter=broken).start().stop()
    assert sink.getvalue() == "[t0]:one\n[t0]:two\n"
    assert caplog.text.count("ZeroDivisionError") == 1


def test_file_that_shrinks_is_said_and_followed_from_its_start(
    log: Path, sink: Any, append: Append
) -> None:
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


@pytest.mark.parametrize("name", ["with space", "ünï-日本", "new\nline", "100%", "\udcff"])
def test_hostile_paths(tmp_path: Path, sink: Any, name: str, append: Append) -> None:
    path = tmp_path / name / "stdout.log"
    tail = TailLog("t", {0: str(path)}, sink).start()
    path.parent.mkdir()
    append(path, b"x\n")
    sink.wait_for("[t0]:x\n")
    tail.stop()


# The older interface: tail_logfile, a lock, and the events of someone else's progress bar


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


def test_progress_bar_is_taken_away_before_lines(log: Path, sink: Any, append: Append) -> None:
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


def run_tail_logfile(append: Append, log: Path, sink: Any, *args: Any, **kwargs: Any) -> None:
    finished = threading.Event()
    call = (("[h]:", str(log), sink, finished, 0.01, *args), kwargs)
    thread = threading.Thread(target=lambda: tail_logfile(*call[0], **call[1]))
    thread.start()
    append(log, b"one\n\ntwo")
    finished.set()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_tail_logfile_blocks_until_finished(log: Path, sink: Any, append: Append) -> None:
    run_tail_logfile(append, log, sink)
    assert sink.getvalue() == "[h]:one\n[h]:\n[h]:two\n"


def test_tail_logfile_takes_the_older_positional_lock_and_events(
    log: Path, sink: Any, append: Append
) -> None:
    lock, bar = threading.Lock(), Bar(serve=True)
    run_tail_logfile(append, log, sink, lock, bar.events)
    bar.close()
    assert sink.getvalue() == "[h]:one\n[h]:\n[h]:two\n"
    assert bar.cleared
    assert not lock.locked()


def test_tail_logfile_of_a_file_that_never_comes_returns(tmp_path: Path, sink: Any) -> None:
    finished = threading.Event()
    finished.set()
    tail_logfile("[h]:", str(tmp_path / "never"), sink, finished, 0.01)
    assert sink.getvalue() == ""
