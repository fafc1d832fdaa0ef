"""Pages: whatever stands in them is text, and their policy allows what is in them."""

from __future__ import annotations

import base64
import hashlib
import re

from support.pages import Seen

from lllaunch.pages.html import (
    Markup,
    PageLink,
    TableCell,
    TableColumn,
    TableRow,
    badge,
    definitions,
    disclosure,
    document,
    element,
    joined,
    preformatted,
    section,
    slug,
    table,
)

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=\"alert('2')\"> &amp; \x1b[31m\x00\ud800"
)


def test_attributes_and_what_is_html_already() -> None:
    assert element("p", element("b", "1 < 2"), " & more") == "<p><b>1 &lt; 2</b> &amp; more</p>"
    assert joined(["a<", Markup("<br>")], "&") == "a&lt;&amp;<br>"
    made = element("a", "x", class_="k", aria_label='"', hidden=True, id=None, data_v=0.1, n=False)
    assert made == '<a class="k" aria-label="&quot;" hidden data-v="0.1">x</a>'
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
    # without content there is no section
    assert section("a", "A") == section("a", "A", Markup()) == definitions([("a", "")]) == ""
    # the first line break in <pre> does not count
    assert Seen(preformatted(["", "a", "", "b"], "log")).text == "\n\na\n\nb"
    assert [slug(name) for name in ("rank 3, stderr", "<>")] == ["rank-3-stderr", "x"]


def _whole() -> str:
    columns = [TableColumn("rank", numeric=True), TableColumn("what", wide=True)]
    rows = [TableRow([TableCell("1 KiB", 1024.0), HOSTILE], id="r", kind=HOSTILE)]
    body = joined(
        (
            section("s", HOSTILE, definitions([(HOSTILE, HOSTILE)])),
            section("t", "T", table(HOSTILE, columns, rows, id_="t-1")),
            section("u", "U", disclosure(HOSTILE, preformatted([HOSTILE], HOSTILE))),
            badge(HOSTILE, HOSTILE),
        )
    )
    return document(
        HOSTILE, element("h1", HOSTILE), body, links=[PageLink("s", HOSTILE)], footer=HOSTILE
    )


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
    rules = dict(
        part.split(" ", 1) for part in policy[1].replace("&#x27;", "'").split("; ") if " " in part
    )
    assert rules["default-src"] == "'none'"
    for tag in ("style", "script"):
        (source,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"


def test_rows_are_named_and_columns_have_headings() -> None:
    columns = [TableColumn("rank", numeric=True), TableColumn("memory", minor=True)]
    made = table("All", columns, [TableRow(["0", TableCell("2 B", 2.0)])])
    assert '<th scope="col" class="numeric">rank</th>' in made
    assert '<th scope="row" class="numeric">0</th>' in made
    assert '<td class="minor" data-v="2">2 B</td>' in made
    assert "data-filter" not in made
    many = table("All", columns, [TableRow([str(n), ""]) for n in range(8)])
    assert "data-filter" in many
    assert "data-sort" in many
