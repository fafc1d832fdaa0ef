from __future__ import annotations

import errno
import faulthandler
import io
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lllaunch.error_file import write_error_file
from lllaunch.multiprocessing.errors import (
    ChildFailedError,
    ErrorHandler,
    ProcessFailure,
    get_error_handler,
    record,
)


@pytest.fixture(autouse=True)
def restore_faulthandler() -> Iterator[None]:
    enabled = faulthandler.is_enabled()
    yield
    if not enabled:
        faulthandler.disable()


@pytest.fixture
def reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


def raise_value_error() -> None:
    raise ValueError("bad value")


def test_exception_is_written_and_raised_on(reply: Path) -> None:
    before = time.time_ns()
    with pytest.raises(ValueError, match="bad value"):
        record(raise_value_error)()
    data = json.loads(reply.read_text())
    assert list(data) == ["message"]
    assert data["message"]["message"] == "ValueError: bad value"
    extra = data["message"]["extraInfo"]
    ours = ["timestamp_ns", "since_boot_ns", "boot_id"]
    assert list(extra) == ["py_callstack", "timestamp", *ours]
    assert "raise_value_error" in extra["py_callstack"]
    assert extra["py_callstack"].endswith("ValueError: bad value\n")
    assert before <= int(extra["timestamp_ns"]) <= time.time_ns()
    assert int(extra["timestamp"]) == int(extra["timestamp_ns"]) // 10**9
    assert os.listdir(reply.parent) == ["error.json"], "no temporary file is left"


def test_arguments_return_value_and_name_are_kept(reply: Path) -> None:
    @record
    def add(a: int, *, b: int) -> int:
        """Adds."""
        return a + b

    assert add(1, b=2) == 3
    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    assert not reply.exists()


def test_exit_zero_becomes_a_return(reply: Path) -> None:
    assert record(lambda: sys.exit(0))() is None
    assert not reply.exists()


@pytest.mark.parametrize("code", [None, 3, "message"])
def test_other_exits_pass_unrecorded(reply: Path, code: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        record(lambda: sys.exit(code))()
    assert caught.value.code == code
    assert not reply.exists()


def test_keyboard_interrupt_passes_unrecorded(reply: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(interrupt)()
    assert not reply.exists()


def failed_child(path: Path, exitcode: int = -11) -> ChildFailedError:
    return ChildFailedError("g", {0: ProcessFailure(0, 1, exitcode, str(path))})


def test_childs_error_is_handed_on_with_its_exit_code(reply: Path, tmp_path: Path) -> None:
    child = tmp_path / "child.json"
    child.write_text('{"message": {"message": "m", "extraInfo": {"timestamp": "5"}}}')

    def supervise() -> None:
        raise failed_child(child)

    with pytest.raises(ChildFailedError):
        record(supervise)()
    data = json.loads(reply.read_text())
    assert data["message"]["message"] == "m"
    assert data["message"]["errorCode"] == -11


def test_childs_error_file_that_broke_is_told_in_ours(reply: Path, tmp_path: Path) -> None:
    child = tmp_path / "child.json"
    child.write_text('{"mess')

    def supervise() -> None:
        raise failed_child(child)

    with pytest.raises(ChildFailedError):
        record(supervise)()
    assert "unreadable" in json.loads(reply.read_text())["message"]
    assert ProcessFailure(0, 1, 1, str(reply)).timestamp > 0


def test_child_without_error_file_leaves_none_here(reply: Path, tmp_path: Path) -> None:
    def supervise() -> None:
        raise failed_child(tmp_path / "missing")

    with pytest.raises(ChildFailedError):
        record(supervise)()
    assert not reply.exists()


def test_text_message_keeps_its_form(reply: Path, tmp_path: Path) -> None:
    child = tmp_path / "child.json"
    child.write_text('{"message": "text"}')
    get_error_handler().dump_error_file(str(child), 7)
    assert json.loads(reply.read_text()) == {"message": "text"}


def test_overwritten_error_is_logged(
    reply: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reply.write_text('{"message": "was here"}')
    child = tmp_path / "child.json"
    child.write_text('{"message": "new"}')
    get_error_handler().dump_error_file(str(child))
    assert "was here" in caplog.text
    assert json.loads(reply.read_text()) == {"message": "new"}


@pytest.mark.parametrize("value", [None, ""])
def test_without_error_file_it_is_logged(
    value: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    if value is not None:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", value)
    with caplog.at_level(logging.INFO), pytest.raises(ValueError, match="bad value"):
        record(raise_value_error)()
    assert "ValueError: bad value" in caplog.text


def test_full_disk_does_not_hide_the_exception(
    reply: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ValueError, match="bad value"):
        record(raise_value_error)()
    assert "No space left" in caplog.text
    assert str(reply) in caplog.text
    assert os.listdir(reply.parent) == []


def test_handler_that_fails_does_not_hide_the_exception(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ErrorHandler):
        def record_exception(self, e: BaseException) -> None:
            raise RuntimeError("handler")

    with pytest.raises(ValueError, match="bad value"):
        record(raise_value_error, Broken())()
    assert "handler" in caplog.text


def test_own_handler_is_used() -> None:
    seen: list[object] = []

    class Mine(ErrorHandler):
        def initialize(self) -> None:
            seen.append("initialize")

        def record_exception(self, e: BaseException) -> None:
            seen.append(str(e))

    with pytest.raises(ValueError, match="bad value"):
        record(raise_value_error, error_handler=Mine())()
    assert seen == ["initialize", "bad value"]


def test_exception_whose_text_cannot_be_made_is_still_recorded(reply: Path) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise TypeError("no text")

    def fail() -> None:
        raise Mute

    with pytest.raises(Mute):
        record(fail)()
    assert json.loads(reply.read_text())["message"]["message"].startswith("Mute: <")


def test_surrogates_in_the_message_are_written(reply: Path) -> None:
    def fail() -> None:
        raise ValueError("\udcff")

    with pytest.raises(ValueError, match="\udcff"):
        record(fail)()
    assert json.loads(reply.read_text())["message"]["message"] == "ValueError: \udcff"


def test_stacks_of_crashes_are_printed_where_stderr_is_no_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faulthandler.disable()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    ErrorHandler().initialize()
    assert faulthandler.is_enabled()


def test_devnull_is_written_to_and_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[object] = []
    monkeypatch.setattr(os, "replace", lambda *paths: replaced.append(paths))
    write_error_file(os.devnull, "text")
    assert replaced == []


def test_symbolic_link_is_kept_and_its_target_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_error_file(str(tmp_path / "link"), "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_directory_that_takes_no_new_files_still_takes_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "error.json"
    path.write_text("a longer text that was here before")
    real = os.open

    def refuse(name: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL:
            raise PermissionError(13, "Permission denied", name)
        return real(name, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    write_error_file(str(path), "text")
    assert path.read_text() == "text"
