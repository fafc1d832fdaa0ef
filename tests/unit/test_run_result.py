"""result.json, return values, excerpts, and `lllaunch.report`."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from lllaunch.clock import RunClock
from lllaunch.events import Exited
from lllaunch.heartbeats import RESULT_FILE, report
from lllaunch.run.excerpts import (
    INLINE_LIMIT,
    clean_lines,
    find_return_value,
    read_error,
    read_evidence,
    tail,
)
from lllaunch.run.observer import WorkerFiles, WorkerRecord
from lllaunch.run.repository import Host
from lllaunch.run.result import (
    ExitedNonZero,
    KilledBySignal,
    Raised,
    ReturnValue,
    RootCause,
    RunResult,
    SpawnerLost,
    StartFailure,
    encode_result,
)

T0 = 1_700_000_000_000_000_000


def document(outcome: RunResult) -> dict:
    return json.loads(encode_result(replace(outcome, host=Host("h"))))


def test_secrets_and_broken_text_do_not_reach_the_file():
    raised = Raised("ValueError: token hunter2 \udcff", 1)
    root = RootCause(0, 0, 0, raised, T0, traceback="hunter2")
    outcome = RunResult("failed", 3, "/run", root_cause=root)
    data = encode_result(outcome, lambda text: text.replace("hunter2", "***"))
    assert b"hunter2" not in data
    assert json.loads(data)["root_cause"]["traceback"] == "***"


def write(path, value: bytes | str) -> None:
    path.write_bytes(value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("meta", ["", "[]", '{"type": 3}', "{", '{"size": 3}'])
def test_value_is_never_unpickled_and_a_type_that_is_not_told_is_unknown(tmp_path, meta):
    # would raise on being unpickled
    write(tmp_path / "return.pkl", b"cos\n_exit\n(I66\ntR.")
    write(tmp_path / "return.meta.json", meta)
    assert find_return_value(str(tmp_path)).type_name == "unknown"


def test_small_json_value_is_inlined(tmp_path):
    write(tmp_path / "return.pkl", b"12345")
    write(tmp_path / "return.json", '{"acc": 0.5}')
    write(tmp_path / "return.meta.json", '{"type": "dict", "size": 5, "json": true}')
    found = find_return_value(str(tmp_path))
    assert found == ReturnValue(str(tmp_path / "return.pkl"), 5, "dict", '{"acc": 0.5}')
    told = document(RunResult("succeeded", 0, str(tmp_path), return_values={3: found}))
    assert told["return_values"] == {
        "3": {"path": "return.pkl", "size": 5, "type": "dict", "value": {"acc": 0.5}}
    }


def test_value_at_the_limit_is_inlined_and_beyond_it_is_not(tmp_path):
    fits = json.dumps("x" * (INLINE_LIMIT - 2))
    write(tmp_path / "return.json", fits)
    assert find_return_value(str(tmp_path)).json == fits
    write(tmp_path / "return.json", fits[:-1] + 'x"')
    found = find_return_value(str(tmp_path))
    assert (found.json, found.size, found.type_name) == (None, INLINE_LIMIT + 1, "json")


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "not json", "", b"\xff", "[" * 50000])
def test_report_that_is_not_strictly_json_is_not_inlined(tmp_path, text):
    write(tmp_path / "return.json", text)
    assert find_return_value(str(tmp_path)).json is None


# lllaunch.report


@pytest.fixture
def result_file(tmp_path, monkeypatch):
    path = tmp_path / "return.json"
    monkeypatch.setenv(RESULT_FILE, str(path))
    return path


def test_report_writes_json_and_replaces_it(result_file):
    assert report({"loss": [1, 2.5]}) is True
    assert report((1, None)) is True
    assert json.loads(result_file.read_text()) == [1, None]
    report(math.nan)
    assert math.isnan(json.loads(result_file.read_text()))
    assert os.listdir(result_file.parent) == ["return.json"]


def test_report_outside_of_lllaunch_does_nothing(monkeypatch):
    monkeypatch.delenv(RESULT_FILE, raising=False)
    assert report(object()) is False
    monkeypatch.setenv(RESULT_FILE, "")
    assert report(1) is False


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (object(), "JSON cannot hold a object;"),
        ({"a": [1, {2}]}, "JSON cannot hold a set;"),
        ({"a": {(1, 2): 3}}, "keys must be str, int, float, bool or None, not tuple"),
        ([1, (2, 3j)], "JSON cannot hold a complex;"),
        (RunClock(), "JSON cannot hold a lllaunch.clock.RunClock;"),
    ],
)
def test_report_names_the_part_that_is_no_json(result_file, value, text):
    with pytest.raises(TypeError) as caught:
        report(value)
    assert text in str(caught.value)
    assert not result_file.exists()


# Excerpts


def test_tail_shows_the_last_lines(tmp_path):
    path = tmp_path / "stderr.log"
    path.write_text("".join(f"line {each}\n" for each in range(30)))
    found = tail(str(path))
    assert found.lines == tuple(f"line {each}" for each in range(10, 30))
    assert found.cut
    path.write_text("one\n\ntwo\n\n\n")
    assert tail(str(path)).lines == ("one", "", "two")
    assert not tail(str(path)).cut


def test_tail_of_a_huge_file_reads_only_its_end(tmp_path):
    path = tmp_path / "stderr.log"
    with open(path, "wb") as file:
        file.seek(1 << 40)  # sparse
        file.write(b"\nValueError: bad\n")
    assert tail(str(path)).lines == ("ValueError: bad",)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("10%\r50%\r100%\ndone", ("100%", "done")),
        ("10%\r", ("10%",)),
        ("windows\r\nline\r\n", ("windows", "line")),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07x", ("red x",)),
        ("a\tb\x00c", ("a\tb�c",)),
        ("\x1b[2J\x1b[H", ()),
        ("", ()),
    ],
)
def test_lines_are_what_a_terminal_would_show(text, lines):
    assert clean_lines(text) == lines


def test_error_file_of_record_is_read(tmp_path):
    extra = {"py_callstack": "Trace\nback\n", "timestamp": "1700000000"}
    extra["timestamp_ns"] = str(T0 + 7)
    write(
        tmp_path / "error.json",
        json.dumps({"message": {"message": "E: \x1b[31mx", "extraInfo": extra}}),
    )
    found = read_error(str(tmp_path / "error.json"))
    assert (found.message, found.traceback, found.time_ns) == ("E: x", "Trace\nback", T0 + 7)
    write(tmp_path / "error.json", '{"message": "it broke"}')
    assert read_error(str(tmp_path / "error.json")).message == "it broke"


@pytest.mark.parametrize(
    "document", [None, "", "{", "[]", '{"message": 3}', '{"message": {"extraInfo": 3}}']
)
def test_error_file_that_makes_no_sense_is_none(tmp_path, document):
    path = tmp_path / "error.json"
    if document is None:
        # too big
        path.touch()
        os.truncate(path, 1 << 30)
    else:
        path.write_text(document)
    assert read_error(str(path)) is None


def test_a_secret_that_is_cut_by_the_beginning_of_the_tail_is_hidden(tmp_path):
    secret = "-----BEGIN\n" + "\n".join(f"line {n} of the key" for n in range(20)) + "\nEND-----"
    path = tmp_path / "log"
    for rest in range(64 * 1024 - 600, 64 * 1024, 37):
        path.write_text("y" * 200_000 + "\n" + secret + "\n" + "z\n" * (rest // 2))
        found = tail(str(path), 100_000, lambda text: text.replace(secret, "HIDDEN"))
        assert not any("of the key" in line for line in found.lines)
        assert found.cut


# Causes


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (Raised("ValueError: a\nb", 1), "raised ValueError: a"),
        (Raised("", 1), "raised an exception"),
        (
            Raised(
                "DistBackendError: NCCL error in: /pytorch/c10d/NCCLUtils.cpp:93, invalid usage "
                "(run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
                "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
                "Last error:\nDuplicate GPU detected : rank 0 and 1",
                1,
            ),
            "raised DistBackendError: NCCL invalid usage: Duplicate GPU detected : rank 0 and 1",
        ),
        (ExitedNonZero(3), "exited with status 3"),
        (KilledBySignal(6, core_dumped=True), "died of SIGABRT, core dumped"),
        (KilledBySignal(50), "died of signal 50"),
        (StartFailure("", "fork: no"), "could not be started: fork: no"),
        (
            SpawnerLost(7, None),
            "was lost: the process that forks workers (pid 7) died, its connection closed",
        ),
        (SpawnerLost(7, 1), "was lost: the process that forks workers (pid 7) died, exit status 1"),
    ],
)
def test_causes_explain_themselves(cause, text):
    assert str(cause) == text


def left_by(place: Path, said: str) -> WorkerRecord:
    """What is known of a worker that has raised, and writes to ``place``."""
    (place / "error.json").write_text(json.dumps({"message": said}))
    files = WorkerFiles(
        str(place), stderr=str(place / "stderr.log"), error=str(place / "error.json")
    )
    worker = WorkerRecord(0, 0, files, exited=Exited(0, 1, 1, 9))
    read_evidence(worker)
    return worker


def test_the_check_that_failed_in_a_kernel_is_read(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr.log"
    at = (
        "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1515: indexSelectSmallIndex: block: [0,0,0]"
    )
    lines = [f"{at}, thread: [{i},0,0] Assertion `index < size` failed." for i in range(4)]
    stderr.write_text("\n".join([*lines, "Traceback (most recent call last):"]))
    said = "RuntimeError: CUDA error: device-side assert triggered"
    assert left_by(tmp_path, said).kernel_check == "`index < size` (Indexing.cu)"
    assert not left_by(tmp_path, "ValueError: no").kernel_check
    stderr.unlink()
    assert not left_by(tmp_path, said).kernel_check


def test_of_a_gradient_that_is_nan_the_forward_call_is_read(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr.log"
    stderr.write_text(
        "graph.py:979: UserWarning: Error detected in SqrtBackward0. "
        "Traceback of forward call that caused the error:\n"
        '  File "/home/train.py", line 9, in <module>\n    main()\n'
        '  File "/home/train.py", line 4, in loss\n    wrong = torch.sqrt(x)\n'
        " (Triggered internally at python_anomaly_mode.cpp:122.)\n"
        "Traceback (most recent call last):\n"
        '  File "/home/train.py", line 5, in loss\n    wrong.backward()\n'
        "RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.\n"
    )
    said = "RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output."
    assert str(left_by(tmp_path, said).forward) == "/home/train.py:4 in loss"
    stderr.write_text(stderr.read_text().partition("Traceback of forward")[2])
    assert left_by(tmp_path, said).forward is None
