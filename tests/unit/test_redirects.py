from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
from pathlib import Path

import pytest

from lllaunch.multiprocessing.redirects import (
    get_std_cm,
    redirect,
    redirect_stderr,
    redirect_stdout,
)


def identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def c_puts(text: bytes) -> None:
    ctypes.CDLL(None).puts(text)


@pytest.fixture(params=["fd", "sys", "none"])
def any_capture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's stream is the descriptor's, or no file at all, or missing."""
    if request.param == "sys":
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        monkeypatch.setattr(sys, "stderr", io.StringIO())
    elif request.param == "none":
        monkeypatch.setattr(sys, "stdout", None)
        monkeypatch.setattr(sys, "stderr", None)


@pytest.mark.usefixtures("any_capture")
def test_python_c_and_children_all_write_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    before = identity(1)
    stream = sys.stdout
    with redirect_stdout(str(path)):
        print("python")
        c_puts(b"c")
        os.system("echo child")
    assert identity(1) == before
    assert sys.stdout is stream
    assert sorted(path.read_text().split()) == ["c", "child", "python"]


@pytest.mark.usefixtures("any_capture")
def test_stderr_alone_goes_to_its_file(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with redirect_stdout(str(out)), redirect_stderr(str(err)):
        print("to out")
        print("to err", file=sys.stderr)
        os.write(2, b"raw\n")
    assert out.read_text() == "to out\n"
    assert err.read_text() == "to err\nraw\n"


def test_what_was_buffered_before_stays_outside(tmp_path: Path) -> None:
    path = tmp_path / "log"
    outside = tmp_path / "outside"
    with redirect_stdout(str(outside)):
        ctypes.CDLL(None).printf(b"before ")
        sys.stdout.write("too ")
        with redirect_stdout(str(path)):
            ctypes.CDLL(None).printf(b"inside")
        os.write(1, b"after")
    assert path.read_text() == "inside"
    assert sorted(outside.read_text().split()) == ["after", "before", "too"]


def test_everything_is_restored_when_the_body_fails(tmp_path: Path) -> None:
    before = identity(1)
    stream = sys.stdout
    fds = set(os.listdir("/proc/self/fd"))

    def fail() -> None:
        sys.stdout.write("unfinished")
        raise RuntimeError("body")

    with pytest.raises(RuntimeError, match="body"), redirect_stdout(str(tmp_path / "log")):
        fail()
    assert identity(1) == before
    assert sys.stdout is stream
    assert set(os.listdir("/proc/self/fd")) == fds
    assert (tmp_path / "log").read_text() == "unfinished"


def test_file_is_emptied_first_and_then_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old")
    with redirect_stdout(str(path)):
        os.write(1, b"one ")
        # Another writer that truncates must not leave a hole behind.
        os.truncate(path, 0)
        os.write(1, b"two")
    assert path.read_bytes() == b"two"


def test_file_that_cannot_be_opened_and_unknown_stream_change_nothing(tmp_path: Path) -> None:
    before = identity(1)
    with pytest.raises(FileNotFoundError), redirect_stdout(str(tmp_path / "no" / "log")):
        pytest.fail("the body must not run")
    with pytest.raises(ValueError, match="stdin"), redirect("stdin", str(tmp_path / "log")):
        pytest.fail("the body must not run")
    assert identity(1) == before


def test_get_std_cm_redirects_only_where_there_is_a_file(tmp_path: Path) -> None:
    assert isinstance(get_std_cm("", redirect_stdout), contextlib.nullcontext)
    with get_std_cm(str(tmp_path / "log"), redirect_stdout):
        os.write(1, b"x")
    assert (tmp_path / "log").read_text() == "x"
