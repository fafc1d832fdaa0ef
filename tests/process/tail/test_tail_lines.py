"""Lines on real files: everything written before stop() is shown, whole, once, one prefix."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest
from support.launching import WAIT
from support.tails import Sink, append

from lllaunch.multiprocessing.tail_log import TailLog, tail_logfile
from lllaunch.workers.tail import Follower


def test_lines_get_the_header_of_torch(log: Path, sink: Sink) -> None:
    log.write_bytes(b"one\ntwo\n")
    tail = TailLog("trainer", {11: str(log)}, sink)
    assert tail.start() is tail
    assert not tail.stopped()
    tail.stop()
    assert tail.stopped()
    assert sink.getvalue() == "[trainer11]:one\n[trainer11]:two\n"


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
