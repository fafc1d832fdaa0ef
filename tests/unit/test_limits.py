"""What is used up, in words that name the limit."""

from __future__ import annotations

import errno
import logging
import resource
import threading

import pytest

from lllaunch.errors import OutputError
from lllaunch.files import naming
from lllaunch.linux.cgroup import shortage
from lllaunch.workers.log_files import LogsDest
from lllaunch.workers.tail import Shown, Tees


def test_too_many_open_files_of_this_process() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    expected = f"no file can be opened: this process may have {limit} open (ulimit -n)"
    assert shortage(OSError(errno.EMFILE, "Too many open files")) == expected


def test_what_an_exception_came_of_is_looked_at() -> None:
    outer = ValueError("outer")
    outer.__context__ = OSError(errno.ENFILE, "Too many open files in system")
    assert "fs.file-max" in shortage(outer)


@pytest.mark.parametrize(
    "error", [BlockingIOError(errno.EAGAIN, "no"), RuntimeError("can't start new thread")]
)
def test_no_more_processes(error: Exception) -> None:
    text = shortage(error)
    assert text.startswith("no process or thread can be started; limits: ")
    assert "kernel.threads-max" in text


def test_memory_and_what_is_no_shortage() -> None:
    assert shortage(MemoryError()) == "no memory is left"
    assert shortage(OSError(errno.ENOSPC, "No space left on device")) == ""
    assert shortage(None) == ""


def test_a_file_that_cannot_be_opened_for_want_of_descriptors_is_named_with_the_limit() -> None:
    expected = r"^'/x': no file can be opened: .* \(ulimit -n\)$"
    with pytest.raises(OutputError, match=expected), naming("/x"):
        raise OSError(errno.EMFILE, "Too many open files")


def test_workers_run_though_there_is_no_thread_to_show_their_output(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    tees = Tees("default", LogsDest(tee_stdouts={0: "/there/is/none"}), Shown())
    monkeypatch.setattr(threading.Thread, "start", start)
    with caplog.at_level(logging.ERROR):
        tees.start()
    monkeypatch.undo()
    tees.stop()
    assert "the output is not shown, it is in the files: no process or thread" in caplog.text
