"""The older interface: tail_logfile, a lock, and the events of someone else's progress bar."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lllaunch.multiprocessing.tail_log import TailLog, tail_logfile

Append = Callable[[Path, bytes], None]


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


def test_two_tails_take_turns_at_one_progress_bar(tmp_path: Path, append: Append) -> None:
    bar = Bar(serve=True)
    outs = [io.StringIO(), io.StringIO()]
    tails = []
    for n, out in enumerate(outs):
        tails.append(
            TailLog("t", {0: str(tmp_path / str(n))}, out, progbar_events=bar.events).start()
        )
    for k in range(20):
        for n in range(2):
            append(tmp_path / str(n), b"%d\n" % k)
    for tail in tails:
        tail.stop()
    bar.close()
    for out in outs:
        assert out.getvalue() == "".join(f"[t0]:{k}\n" for k in range(20))


def test_progress_bar_that_nobody_serves_stops_nothing(
    tmp_path: Path, sink: Any, append: Append
) -> None:
    bar = Bar(serve=False)
    files = {n: str(tmp_path / str(n)) for n in range(50)}
    for path in files.values():
        append(Path(path), b"line\n")
    TailLog("t", files, sink, progbar_events=bar.events).start().stop()
    assert len(sink.getvalue().splitlines()) == 50


def run_tail_logfile(append: Append, log: Path, sink: Any, *args: Any, **kwargs: Any) -> None:
    finished = threading.Event()
    call = (("[h]:", str(log), sink, finished, 0.01, *args), kwargs)
    thread = threading.Thread(target=lambda: tail_logfile(*call[0], **call[1]))
    thread.start()
    append(log, b"one\n\ntwo")
    finished.set()
    thread.join(30)
    assert not thread.is_alive()


def test_tail_logfile_blocks_until_finished(log: Path, sink: Any, append: Append) -> None:
    run_tail_logfile(append, log, sink)
    assert sink.getvalue() == "[h]:one\n[h]:\n[h]:two\n"


def test_tail_logfile_takes_a_filter(log: Path, sink: Any, append: Append) -> None:
    run_tail_logfile(append, log, sink, lambda line: "o" in line)
    assert sink.getvalue() == "[h]:one\n[h]:two\n"


def test_tail_logfile_takes_the_older_positional_lock_and_events(
    log: Path, sink: Any, append: Append
) -> None:
    lock, bar = threading.Lock(), Bar(serve=True)
    run_tail_logfile(append, log, sink, lock, bar.events)
    bar.close()
    assert sink.getvalue() == "[h]:one\n[h]:\n[h]:two\n"
    assert bar.cleared
    assert not lock.locked()


def test_tail_logfile_takes_them_by_keyword_too(log: Path, sink: Any, append: Append) -> None:
    run_tail_logfile(append, log, sink, lock=threading.Lock(), progbar_events=None)
    assert sink.getvalue() == "[h]:one\n[h]:\n[h]:two\n"


def test_tail_logfile_of_a_file_that_never_comes_returns(tmp_path: Path, sink: Any) -> None:
    finished = threading.Event()
    finished.set()
    tail_logfile("[h]:", str(tmp_path / "never"), sink, finished, 0.01)
    assert sink.getvalue() == ""
