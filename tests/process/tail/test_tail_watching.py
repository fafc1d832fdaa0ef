"""What wakes the tail: the kernel, and a look every second only where the kernel cannot tell."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lllaunch.linux import inotify
from lllaunch.multiprocessing.tail_log import TailLog
from lllaunch.workers.tail import Follower

Append = Callable[[Path, bytes], None]


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
        "import sys; before = set(sys.modules)\n"
        "import lllaunch.multiprocessing.tail_log, lllaunch.multiprocessing.logs, "
        "lllaunch.multiprocessing.errors, lllaunch.multiprocessing.redirects\n"
        "heavy = {'torch', 'asyncio', 'rich', 'psutil', 'numpy', 'hydra', 'omegaconf', 'tempfile',"
        " 'socket', 'subprocess'}\n"
        "print(heavy & (set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


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


def test_what_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    opened = inotify.open_inotify()
    assert isinstance(opened, inotify.Inotify)
    try:
        with pytest.raises(FileNotFoundError):
            opened.watch_file(str(tmp_path / "missing"))
        (tmp_path / "file").touch()
        with pytest.raises(NotADirectoryError):
            opened.watch_directory(str(tmp_path / "file"))
        opened.unwatch(12345)
        assert opened.read() == inotify.Changes()
    finally:
        opened.close()
