"""Whatever a text holds, what is made of it for people steers no terminal and breaks no file."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lllaunch.text import (
    clean,
    coloured,
    plain,
    printable,
    shorten,
    shorten_middle,
    visible,
)

HOSTILE = "\x1b[31mred\x1b[0m\x1b[2J\t\x07\x9b\N{RIGHT-TO-LEFT OVERRIDE}\ud800 é\r\nend"


def test_each_has_its_own_way() -> None:
    assert visible(HOSTILE) == ("\\x1b[31mred\\x1b[0m\\x1b[2J\t\\x07\\x9b\\u202e\\ud800 é\\r\nend")
    assert plain(HOSTILE) == "red \\x07\\x9b\\u202e\\ud800 é\\r\\nend"
    assert coloured(HOSTILE) == ("\x1b[31mred\x1b[0m\t\\x07\\x9b\\u202e\\ud800 é\\r\\nend\x1b[0m")
    assert printable(HOSTILE, 20) == "\\x1b[31m...é\\r\\nend"
    assert clean("a\x1b[31mb\x00\tc\nd") == "ab\N{REPLACEMENT CHARACTER}\tc\nd"
    assert clean("\ud800\uffff") == "\N{REPLACEMENT CHARACTER}" * 2


@given(st.text(st.characters(codec=None)))
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    for shown in (plain(text), printable(text, 10**9)):
        assert shown.isprintable()
    for shown in (visible(text), clean(text)):
        controls = {char for char in shown if unicodedata.category(char) == "Cc"}
        assert controls <= {"\n", "\t"}
    clean(text).encode()
    assert visible(visible(text)) == visible(text)


@pytest.mark.parametrize("short", [shorten, shorten_middle, printable])
@given(text=st.text(max_size=50), most=st.integers(8, 40))
def test_what_is_too_long_is_cut(short, text: str, most: int) -> None:
    assert len(short(text, most)) <= most
    if text.isprintable() and len(text) <= most:
        assert short(text, most) == text
