"""Lines of workers: cut anywhere, filtered, and as terminals and files are given them."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.workers.lines import LineSplitter, Piece, Span
from lllaunch.workers.terminal import Destination, cells, fit

PREFIX = b"[w0]:"


class Reader:
    """Puts pieces out as the tee does: what is named by its offsets is read from the stream."""

    def __init__(self, stream: bytes, splitter: LineSplitter) -> None:
        self.stream = stream
        self.splitter = splitter
        self.out = b""
        self.spans = 0

    def put(self, piece: Piece) -> None:
        if isinstance(piece, Span):
            self.spans += 1
            line = self.stream[piece.start : piece.end]
            if self.splitter.keep is None or self.splitter.keep(line):
                self.out += self.splitter.prefix + line + b"\n"
        else:
            self.out += piece

    def run(self, cuts: list[int]) -> bytes:
        edges = [0, *sorted(min(cut, len(self.stream)) for cut in cuts), len(self.stream)]
        for start, end in itertools.pairwise(edges):
            for piece in self.splitter.feed(self.stream[start:end]):
                self.put(piece)
        last = self.splitter.finish()
        if last is not None:
            self.put(last)
        return self.out


def split(stream: bytes, *cuts: int, **options: object) -> bytes:
    splitter = LineSplitter(PREFIX, **options)  # type: ignore[arg-type]
    return Reader(stream, splitter).run(list(cuts))


def shown(line: bytes) -> bytes:
    """What a terminal would show of a line: its last segment that is not empty."""
    segments = [segment for segment in line.split(b"\r") if segment]
    return segments[-1] if segments else b""


def expected(stream: bytes) -> bytes:
    *lines, rest = stream.split(b"\n")
    texts = [shown(line) for line in lines] + ([shown(rest)] if shown(rest) else [])
    return b"".join(PREFIX + text + b"\n" for text in texts)


# Few letters, so that newlines and carriage returns meet often; 0xff is no UTF-8.
streams = st.lists(st.sampled_from([b"\n", b"\r", b"a", b"bc", b"\xff", b" "])).map(b"".join)
cuts = st.lists(st.integers(0, 60), max_size=12)


@given(streams, cuts)
def test_every_line_comes_out_once_with_one_prefix(stream: bytes, where: list[int]) -> None:
    assert split(stream, *where) == expected(stream)


@given(streams, cuts)
def test_a_filter_sees_each_whole_line_once(stream: bytes, where: list[int]) -> None:
    seen: list[bytes] = []

    def keep(line: bytes) -> bool:
        seen.append(line)
        return b"a" in line

    out = split(stream, *where, keep=keep)
    everything = expected(stream).splitlines(keepends=True)
    assert [PREFIX + line + b"\n" for line in seen] == everything
    assert out == b"".join(line for line in everything if b"a" in line)


def test_long_line_is_not_kept_but_named_by_its_offsets() -> None:
    splitter = LineSplitter(PREFIX)
    block = b"x" * 65536
    for _ in range(160):
        assert list(splitter.feed(block)) == []
    held = sum(len(value) for value in vars(splitter).values() if isinstance(value, bytes))
    assert held == len(PREFIX)
    assert list(splitter.feed(b"y\nrest")) == [Span(0, 160 * 65536 + 1)]
    assert splitter.pending == Span(160 * 65536 + 2, 160 * 65536 + 6)


def test_pending_tells_the_segment_that_a_terminal_would_show() -> None:
    splitter = LineSplitter(PREFIX)
    splitter.feed(b"partial")
    assert (splitter.pending, splitter.redrawn) == (Span(0, 7), False)
    splitter.feed(b"\r")
    assert (splitter.pending, splitter.redrawn) == (Span(0, 7), True)
    splitter.feed(b"new")
    assert (splitter.pending, splitter.redrawn) == (Span(8, 11), True)
    splitter.feed(b"\n")
    assert (splitter.pending, splitter.redrawn) == (None, False)


def test_reset_forgets_the_line_in_the_making() -> None:
    splitter = LineSplitter(PREFIX)
    splitter.feed(b"lost\rlost")
    splitter.reset()
    assert list(splitter.feed(b"new\n")) == [b"[w0]:new\n"]
    assert splitter.position == 4


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
