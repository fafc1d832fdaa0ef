"""Lines on real files: everything written before stop() is shown, whole, once, one prefix."""

from __future__ import annotations

import io
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lllaunch.multiprocessing.tail_log import TailLog
from lllaunch.workers.tail import Follower
from lllaunch.workers.terminal import Destination

Append = Callable[[Path, bytes], None]


def test_lines_get_the_header_of_torch(log: Path, sink: Any) -> None:
    log.write_bytes(b"one\ntwo\n")
    tail = TailLog("trainer", {11: str(log)}, sink)
    assert tail.start() is tail
    assert not tail.stopped()
    tail.stop()
    assert tail.stopped()
    assert sink.getvalue() == "[trainer11]:one\n[trainer11]:two\n"


def test_lines_appear_while_they_are_written(log: Path, sink: Any, append: Append) -> None:
    tail = TailLog("t", {0: str(log)}, sink).start()
    try:
        for word in (b"first", b"second", b"third"):
            append(log, word + b"\n")
            sink.wait_for(f"[t0]:{word.decode()}\n")
    finally:
        tail.stop()


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


def test_last_line_without_newline_is_ended_for_the_next_one(
    tmp_path: Path, sink: Any, append: Append
) -> None:
    files = {n: tmp_path / str(n) for n in range(2)}
    for path in files.values():
        append(path, b"open end")
    TailLog("t", {n: str(path) for n, path in files.items()}, sink).start().stop()
    assert sink.getvalue() == "[t0]:open end\n[t1]:open end\n"


def test_stop_drains_files_that_appeared_at_the_last_moment(
    log: Path, sink: Any, append: Append
) -> None:
    follower = Follower()
    follower.add(str(log), b"", sink)
    follower.start()
    append(log, b"just in time\n")
    follower.stop()
    assert sink.getvalue() == "just in time\n"


def test_piecewise_blank_and_redrawn_lines(log: Path, sink: Any, append: Append) -> None:
    tail = TailLog("t", {0: str(log)}, sink).start()
    try:
        for piece in (b"ha", b"lf\n", b"\n", b"\r 10%", b"\r100%", b"\nend\n"):
            append(log, piece)
        sink.wait_for("end\n")
    finally:
        tail.stop()
    assert sink.getvalue() == "[t0]:half\n[t0]:\n[t0]:100%\n[t0]:end\n"


def test_binary_output_reaches_a_file_byte_for_byte(
    log: Path, tmp_path: Path, append: Append
) -> None:
    noise = bytes(range(256)) * 4096
    append(log, noise.replace(b"\r", b"") + b"\n")
    with open(tmp_path / "shown", "w", encoding="utf-8") as shown:
        TailLog("t", {0: str(log)}, shown, {0: ""}).start().stop()
    assert (tmp_path / "shown").read_bytes() == log.read_bytes()


def test_line_of_ten_megabytes_comes_whole_with_one_prefix(
    log: Path, tmp_path: Path, append: Append
) -> None:
    line = b"x" * 10_000_000
    with open(tmp_path / "shown", "w+", encoding="utf-8") as shown:
        tail = TailLog("t", {0: str(log)}, shown).start()
        for start in range(0, len(line), 1_000_000):
            append(log, line[start : start + 1_000_000])
        append(log, b"\nnext\n")
        tail.stop()
    assert (tmp_path / "shown").read_bytes() == b"[t0]:" + line + b"\n[t0]:next\n"


def test_two_hundred_files_and_one_thread(tmp_path: Path, sink: Any, append: Append) -> None:
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


def test_filtered_output_holds_no_notice_of_truncation(
    log: Path, sink: Any, append: Append
) -> None:
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


@pytest.mark.parametrize("name", ["with space", "ünï-日本", "new\nline", "100%", "\udcff"])
def test_hostile_paths(tmp_path: Path, sink: Any, name: str, append: Append) -> None:
    path = tmp_path / name / "stdout.log"
    tail = TailLog("t", {0: str(path)}, sink).start()
    path.parent.mkdir()
    append(path, b"x\n")
    sink.wait_for("[t0]:x\n")
    tail.stop()


def test_devnull_shows_nothing(sink: Any) -> None:
    TailLog("t", {0: os.devnull}, sink).start().stop()
    assert sink.getvalue() == ""


def test_writers_of_several_threads_never_mix_their_lines(tmp_path: Path, append: Append) -> None:
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
