"""Pages: whatever is in them is text, and their policy allows what is in them."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence

import pytest
from support.pages import Seen, page_of

from lllaunch.pages.html import (
    Cell,
    PageColumn,
    badge,
    environment,
    table,
)

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=\"alert('2')\"> &amp; \x1b[31m\x00\ud800"
)


@pytest.mark.parametrize("text", ["{{ a }}", '<p title="{{ a }}">{{ [a, a]|joined(a) }}</p>'])
def test_templates_escape_all_values(text: str) -> None:
    made = environment().from_string(text).render(a=f"{HOSTILE}\u202e")
    seen = Seen(made)
    assert {*seen.tags} <= {"p"}
    assert {name for name, _ in seen.attributes} <= {"title"}
    assert not re.search("[\x00\x1b\ud800\u202e]", made)


SECTIONS = "[('a', text, pre(lines, text)), ('b', text, table(rows) if rows else text)]"


def _page(rows: object, lines: Sequence[str] = (), text: str = "a text") -> str:
    return page_of(SECTIONS, text, rows=rows, lines=lines)


def _whole() -> str:
    columns = [
        PageColumn(HOSTILE, lambda _: Cell("1 KiB", 1024.0), "numeric"),
        PageColumn("what", lambda _: badge(HOSTILE, HOSTILE), "wide"),
    ]
    rows = table(HOSTILE, columns, [1, 2], kind=lambda _: HOSTILE)
    return _page(rows, [HOSTILE], text=HOSTILE)


def test_hostile_texts_stay_texts() -> None:
    page = _whole()
    page.encode()  # what is no UTF-8 is not there
    seen = Seen(page)
    assert seen.open == []
    assert seen.tags.count("script") == 1
    assert "img" not in seen.tags
    assert not any(name.startswith("on") or name == "style" for name, _ in seen.attributes)
    assert seen.text.count("alert('2')") >= 9


def test_the_policy_allows_the_style_and_the_script_and_nothing_else() -> None:
    page = _whole()
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    parts = html.unescape(policy[1]).split("; ")
    rules = dict(part.split(" ", 1) for part in parts)
    assert rules["default-src"] == "'none'"
    for tag in ("style", "script"):
        (source,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"


def test_lines_are_shown_as_they_are() -> None:
    # the first line break in <pre> does not count
    page = _page(None, ["", "a", "", "b"], "log")
    assert 'aria-label="log">\n\na\n\nb</pre>' in page
