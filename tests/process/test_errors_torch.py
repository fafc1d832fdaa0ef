"""Error files cross between torch's handlers and ours, in both directions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lllaunch.multiprocessing.errors import ChildFailedError, ProcessFailure, record

SCRIPT = """
import json, os, sys
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError, ErrorHandler, ProcessFailure, record)
ours, theirs, handed_on = sys.argv[1:]

# What we wrote, read by torch.
failure = ProcessFailure(0, 1, 1, ours)
print(json.dumps({
    "message": failure.message, "timestamp": failure.timestamp, "text": str(
        ChildFailedError("g", {0: failure}))}))

# What torch writes, for us.
def fail():
    raise KeyError("theirs")
os.environ["TORCHELASTIC_ERROR_FILE"] = theirs
try:
    record(fail)()
except KeyError:
    pass

# What we wrote, handed on by torch.
os.environ["TORCHELASTIC_ERROR_FILE"] = handed_on
ErrorHandler().dump_error_file(ours, 5)
"""


def fail_here() -> None:
    raise ValueError("ours")


def test_error_files_are_read_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, handed_on = (str(tmp_path / name) for name in ("ours", "theirs", "handed"))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", ours)
    with pytest.raises(ValueError, match="ours"):
        record(fail_here)()
    command = [sys.executable, "-c", SCRIPT, ours, theirs, handed_on]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read = json.loads(done.stdout)
    mine = ProcessFailure(0, 1, 1, ours)
    assert read["message"] == mine.message
    # torch's is that of the wall clock
    assert abs(read["timestamp"] - mine.timestamp) <= 1
    assert "fail_here" in read["text"]

    failure = ProcessFailure(0, 1, 1, theirs)
    assert isinstance(failure.message, dict)
    assert failure.message["message"] == "KeyError: 'theirs'"
    assert "in fail" in failure.traceback()
    assert failure.timestamp_ns > mine.timestamp_ns
    error = ChildFailedError("g", {0: failure, 1: mine})
    assert error.get_first_failure() == (1, mine)

    # The two files differ by our clocks and by nothing else.
    our_data, their_data = (json.loads(Path(path).read_text()) for path in (ours, theirs))
    for name in ("timestamp_ns", "since_boot_ns", "boot_id"):
        del our_data["message"]["extraInfo"][name]
    assert our_data.keys() == their_data.keys()
    assert list(our_data["message"]) == list(their_data["message"])
    ours_extra, theirs_extra = (d["message"]["extraInfo"] for d in (our_data, their_data))
    assert {k: type(v) for k, v in ours_extra.items()} == {
        k: type(v) for k, v in theirs_extra.items()
    }

    passed_on = ProcessFailure(0, 1, 5, handed_on)
    assert isinstance(passed_on.message, dict)
    assert passed_on.message["errorCode"] == 5
    assert passed_on.timestamp_ns == mine.timestamp_ns
