from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.workers.terminal import Destination, cells, fit


def test_text_stream_gets_text_with_what_is_no_utf8_replaced() -> None:
    out = io.StringIO()
    Destination(out).write(["é".encode()[:1], "é".encode()[1:], b"\xff|", b"\xe2"])
    assert out.getvalue() == "é\ufffd|\ufffd"


def test_plain_file_gets_the_bytes_after_what_was_buffered(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w", encoding="utf-8") as out:
        out.write("before ")
        Destination(out).write([b"\xff\x00 "])
        out.write("after")
    assert (tmp_path / "out").read_bytes() == b"before \xff\x00 after"


def test_somebodys_own_write_is_not_passed_by(tmp_path: Path) -> None:
    class Shouting(io.TextIOWrapper):
        def write(self, text: str) -> int:
            return super().write(text.upper())

    with Shouting(open(tmp_path / "out", "wb")) as out:
        Destination(out).write([b"loud"])
    assert (tmp_path / "out").read_text() == "LOUD"


def test_all_writers_to_one_file_share_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with open(path, "a", encoding="utf-8") as one, open(path, "a", encoding="utf-8") as two:
        assert Destination(one).screen is Destination(two).screen
    text = io.StringIO()
    first = Destination(text)
    assert Destination(text).screen is first.screen
    assert Destination(io.StringIO()).screen is not first.screen


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        # what would move the cursor is left out
        ("\x1b[31m50%\x1b[0m\x1b[A|\x07\tdone\x1b", 40, "50%| done"),
        # cells, not characters
        ("日本語", 5, "日本"),
        ("abc", 3, "abc"),
        ("abc", 0, ""),
    ],
)
def test_live_text_fits_its_line(text: str, columns: int, shown: str) -> None:
    assert fit(text, columns) == shown


@given(st.text(), st.integers(0, 200))
def test_live_text_never_leaves_its_line(text: str, columns: int) -> None:
    fitted = fit(text, columns)
    assert cells(fitted) <= columns
    assert not {"\n", "\r", "\x1b", "\x08"} & set(fitted)
