"""Files of errors: written by `record`, read by `ProcessFailure`, told by `ChildFailedError`."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import logging
import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lllaunch import clock
from lllaunch.multiprocessing.errors import (
    ChildFailedError,
    ErrorHandler,
    ProcessFailure,
    error_handler,
    record,
)

NS = 1_000_000_000


def error_file(
    path: Path, time_ns: int | None = None, seconds: int | None = None, **more: str
) -> str:
    extra: dict[str, Any] = {"py_callstack": "Traceback (most recent call last):\nValueError: bad"}
    if seconds is not None:
        extra["timestamp"] = str(seconds)
    if time_ns is not None:
        extra["timestamp_ns"] = str(time_ns)
    extra |= more
    path.write_text(json.dumps({"message": {"message": "ValueError: bad", "extraInfo": extra}}))
    return str(path)


def failure(tmp_path: Path, name: str = "error.json", **options: Any) -> ProcessFailure:
    defaults = {"local_rank": 0, "pid": 42, "exitcode": 1, "error_file": str(tmp_path / name)}
    return ProcessFailure(**{**defaults, **options})


def test_error_file_gives_message_and_both_times(tmp_path: Path) -> None:
    at = 1_700_000_000 * NS + 123_456_789
    error_file(tmp_path / "error.json", at, 1_700_000_000)
    result = failure(tmp_path)
    assert isinstance(result.message, dict)
    assert result.message["message"] == "ValueError: bad"
    assert result.error_file_data["message"] == result.message
    assert (result.timestamp, result.timestamp_ns) == (1_700_000_000, at)
    assert result.traceback().startswith("Traceback")
    local = time.localtime(1_700_000_000)
    assert result.timestamp_isoformat() == time.strftime("%Y-%m-%d_%H:%M:%S", local)


def test_failures_are_in_order_though_the_clock_was_set_back_between_them(tmp_path: Path) -> None:
    now, began = clock.now_ns(), clock.since_boot_ns()
    boot = clock.boot_id()
    assert boot
    for name, time_ns, moment in (("0", now, began - NS), ("1", now - 3600 * NS, began)):
        path = tmp_path / name
        more = {"since_boot_ns": str(moment), "boot_id": boot}
        error_file(path, time_ns, time_ns // NS, **more)
    first, second = failure(tmp_path, "0"), failure(tmp_path, "1")
    assert second.timestamp_ns - first.timestamp_ns == NS
    assert ChildFailedError("x", {0: first, 1: second}).get_first_failure() == (0, first)


def test_whole_seconds_are_refined_by_when_the_file_was_written(tmp_path: Path) -> None:
    path = error_file(tmp_path / "error.json", seconds=1_700_000_000)
    # that of a copy was written later
    assert failure(tmp_path).timestamp_ns == 1_700_000_000 * NS
    written = 1_700_000_000 * NS + 700_000_000
    os.utime(path, ns=(written, written))
    assert failure(tmp_path).timestamp_ns == written
    assert failure(tmp_path).timestamp == 1_700_000_000


def test_without_error_file_a_signal_is_named_and_dated_by_the_observed_exit(
    tmp_path: Path,
) -> None:
    result = failure(tmp_path, exitcode=-signal.SIGSEGV, exit_time_ns=5 * NS + 1)
    assert result.error_file == "<N/A>"
    assert result.error_file_data == {"message": "<NONE>"}
    assert result.message == "Signal 11 (SIGSEGV) received by PID 42"
    assert (result.timestamp, result.timestamp_ns) == (5, 5 * NS + 1)
    status = failure(tmp_path)
    assert status.signal_name() == failure(tmp_path, exitcode=-200).signal_name() == "<N/A>"
    assert "exit status 1 of PID 42" in str(status.message)
    assert status.error_file_data["errorTraits"]["category"] == "system_terminated_error"


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        ("", "it is empty"),
        ('{"message": {"mess', "no whole JSON document"),
        ("{}", "no 'message'"),
        ("[" * 100_000, "no whole JSON document"),
    ],
)
def test_broken_error_file_is_told_and_never_raises(
    tmp_path: Path, contents: str, reason: str
) -> None:
    (tmp_path / "error.json").write_text(contents)
    result = failure(tmp_path, exitcode=-9, exit_time_ns=7 * NS)
    assert "Signal 9 (SIGKILL)" in str(result.message)
    assert "unreadable" in str(result.message)
    assert reason in str(result.message)
    assert str(tmp_path / "error.json") in str(result.message)
    assert result.timestamp_ns == 7 * NS
    assert reason in str(failure(tmp_path).message)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["message", "extraInfo", "timestamp", "timestamp_ns", "py_callstack"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_contents_make_it_raise(tmp_path: Path, contents: Any) -> None:
    (tmp_path / "error.json").write_text(json.dumps(contents))
    result = failure(tmp_path)
    assert result.message is not None
    assert result.timestamp == result.timestamp_ns // NS
    assert result.timestamp_isoformat()
    assert isinstance(result.traceback(), str)
    assert str(ChildFailedError("group", {0: result}))


def test_text_names_every_failure_and_the_root_cause_last(tmp_path: Path) -> None:
    error_file(tmp_path / "error.json", 2 * NS, 2)
    victim = failure(tmp_path, "no", local_rank=1, pid=77, exitcode=-15, exit_time_ns=3 * NS)
    error = ChildFailedError("trainer", {5: victim, 4: failure(tmp_path)})
    text = str(error)
    assert str(pickle.loads(pickle.dumps(error))) == text
    others, root = text.split("Root Cause (first observed failure):")
    assert "trainer FAILED" in others
    assert "rank      : 5 (local_rank: 1)" in others
    assert "exitcode  : -15 (pid: 77) (SIGTERM)" in others
    assert "rank      : 4 (local_rank: 0)" in root
    assert str(tmp_path / "error.json") in root
    assert "  ValueError: bad" in root
    assert os.uname().nodename in root


# Written


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


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_exits_and_interrupts_pass_unrecorded(reply: Path, error: BaseException) -> None:
    def end() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        record(end)()
    assert caught.value is error
    assert not reply.exists()


def test_arguments_return_value_and_name_are_kept(reply: Path) -> None:
    @record
    def add(a: int, *, b: int) -> int:
        return a + b

    assert add(1, b=2) == 3
    assert add.__name__ == "add"
    assert not reply.exists()


def test_childs_error_is_handed_on_with_its_exit_code(reply: Path, tmp_path: Path) -> None:
    child = tmp_path / "child.json"

    def supervise() -> None:
        raise ChildFailedError("g", {0: ProcessFailure(0, 1, -11, str(child))})

    def handed_on() -> Any:
        with pytest.raises(ChildFailedError):
            record(supervise)()
        return json.loads(reply.read_text())["message"] if reply.exists() else None

    assert handed_on() is None
    child.write_text('{"mess')
    assert "unreadable" in handed_on()
    extra = {"timestamp": "5"}
    child.write_text(json.dumps({"message": {"message": "m", "extraInfo": extra}}))
    assert handed_on() == {"message": "m", "extraInfo": extra, "errorCode": -11}


def test_without_error_file_it_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
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


def test_own_handler_is_used_and_what_it_raises_hides_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[object] = []

    class Mine(ErrorHandler):
        def initialize(self) -> None:
            seen.append("initialize")

        def record_exception(self, e: BaseException) -> None:
            seen.append(str(e))
            raise RuntimeError("handler")

    with pytest.raises(ValueError, match="bad value"):
        record(raise_value_error, error_handler=Mine())()
    assert seen == ["initialize", "bad value"]
    assert "handler" in caplog.text


@pytest.mark.parametrize("error", [None, RuntimeError("no file")])
def test_stacks_of_crashes_are_asked_for_once_but_where_the_launcher_has_done_so(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    enable = Mock(side_effect=error)
    monkeypatch.setattr(faulthandler, "enable", enable)
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: True)
    context = pytest.warns(UserWarning, match="no file") if error else contextlib.nullcontext()
    with context:
        error_handler.ErrorHandler().initialize()
    enable.assert_called_once_with(all_threads=True)
    monkeypatch.setenv("LLLAUNCH_CRASH_FILE", "crash.txt")
    error_handler.ErrorHandler().initialize()
    enable.assert_called_once()
