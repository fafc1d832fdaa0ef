"""JSON files and objects of any make: read as far as they are what is expected."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lllaunch.documents import as_object, last_line, load_json
from lllaunch.files import read_bytes, replace_file


def test_files_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert load_json(str(path)) is None
    path.write_text('{"a": NaN}')
    assert load_json(str(path)) == {"a": None}
    for text, why in (("[1]", "is not a JSON object"), ("{", "is not JSON: ")):
        path.write_text(text)
        with pytest.raises(ValueError, match=why):
            load_json(str(path))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="is not a regular file"):
        read_bytes(str(tmp_path))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="is not a regular file"):
        read_bytes(str(tmp_path / "fifo"))
    assert len(os.listdir("/proc/self/fd")) == before
    path.write_text('{"n": 1}\n{"n": 2}\n[3]\n{"n": 4')
    assert last_line(str(path), 1024, as_object) == {"n": 2}
    assert last_line(str(path), 12, as_object) is None


def test_what_is_written_goes_through_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precious").write_text("old")
    monkeypatch.setattr("os.urandom", bytes)
    for name in (f".a.{threading.get_native_id()}.tmp", ".a.00000000.tmp"):
        (tmp_path / name).symlink_to("precious")
    with pytest.raises(FileExistsError):
        replace_file(str(tmp_path / "a"), b"new")
    assert (tmp_path / "precious").read_text() == "old"


_IN_THREADS = """\
import sys, threading
from lllaunch.documents import as_record
from lllaunch.run.result import RunResult
sys.setswitchinterval(1e-6)
document = {
    "state": "failed",
    "exit_code": 1,
    "host": {"hostname": "a"},
    "attempts": [{"path": "x"}],
    "root_cause": {"rank": 0},
}
start = threading.Barrier(4)
def read():
    start.wait()
    try:
        as_record(document, RunResult)
    except ValueError:
        pass
threads = [threading.Thread(target=read) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def test_records_are_first_read_in_several_threads() -> None:
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", _IN_THREADS], check=False).returncode == 0
