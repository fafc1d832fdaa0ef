"""The checks find what is wrong with a page, each what it is for; a good page passes them all."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browsing import (
    Browsing,
    inaccessible,
    invalid,
    luminance,
    nameless_pictures,
    overflow,
    stops,
    unseen,
)

STRICT = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">"
GOOD = """\
<!DOCTYPE html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <title>A good page</title>
    <style>
      :root { color-scheme: light dark; background: white; color: black; }
      @media (prefers-color-scheme: dark) { :root { background: black; color: white; } }
      @media print { details::details-content { content-visibility: visible; } }
      svg { max-width: 100%; }
      a { color: inherit; }
    </style>
  </head>
  <body>
    <main>
      <h1>Good</h1>
      <p>See <a href="#more">more</a>.</p>
      <svg role="img" width="80" height="20"><title>A bar</title><desc>It is 80 wide.</desc></svg>
      <details id="more"><summary>More</summary><p>Hidden until it is asked for.</p></details>
    </main>
  </body>
</html>
"""


def page(directory: Path, text: str) -> Path:
    path = directory / "a page's name with % and ünicode.html"
    path.write_text(text, encoding="utf-8")
    return path


def with_body(body: str, head: str = "") -> str:
    """The good page with more in it."""
    return GOOD.replace("</main>", f"{body}</main>").replace("</head>", f"{head}</head>")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_good_page_has_no_fault(browser: Browsing, tmp_path: Path, scripts: bool) -> None:
    path = page(tmp_path, GOOD)
    window = browser.open(path, scripts=scripts, width=300)

    assert window.texts("h1") == ["Good"]
    assert overflow(window) <= 0
    assert nameless_pictures(window) == []
    assert [stop.element for stop in stops(window)] == ["a more", "summary More"]
    assert all(stop.outline and stop.shown for stop in stops(window))
    assert unseen(window) == ["Hidden until it is asked for."]
    window.page.emulate_media(media="print")
    assert unseen(window) == []
    assert luminance(browser.open(path)) == 1
    assert luminance(browser.open(path, scheme="dark")) == 0
    assert window.faults == []


def test_a_good_page_is_accessible_and_valid(browser: Browsing, tmp_path: Path) -> None:
    path = page(tmp_path, GOOD)

    assert inaccessible(browser.open(path)) == []
    assert inaccessible(browser.open(path, scheme="dark")) == []
    assert invalid([path]) == []


@pytest.mark.parametrize(
    ("body", "head", "kind"),
    [
        ("<script>console.error('no')</script>", "", "console: no"),
        ("<script>console.warn('hm')</script>", "", "console: hm"),
        ("<script>throw new Error('bad')</script>", "", "exception: "),
        ("<script>1</script>", STRICT, "console: Execut"),
        ("<p style='color: red'>red</p>", STRICT, "console: Appl"),
        ("<img alt='' src='missing.png'>", "", "request: file:"),
        ("<img alt='' src='https://example.org/a.png'>", "", "request: https:"),
        ("<img alt='' src='https://example.org/a.png'>", STRICT, "console: Load"),
        ("", "<link rel='stylesheet' href='missing.css'>", "request: file:"),
    ],
)
def test_a_fault_of_a_page_is_seen(
    browser: Browsing, tmp_path: Path, body: str, head: str, kind: str
) -> None:
    window = browser.open(page(tmp_path, with_body(body, head)))

    assert any(fault.startswith(kind) for fault in window.faults), window.faults


@pytest.mark.parametrize(
    ("body", "head"),
    [
        ("<p style='color: red'>red</p>", STRICT),
        ("<img alt='' src='missing.png'>", ""),
        ("<img alt='' src='https://example.org/a.png'>", STRICT),
    ],
)
def test_a_fault_is_seen_with_scripts_off(
    browser: Browsing, tmp_path: Path, body: str, head: str
) -> None:
    window = browser.open(page(tmp_path, with_body(body, head)), scripts=False)

    assert window.faults


def test_scripts_are_off_where_that_is_said(browser: Browsing, tmp_path: Path) -> None:
    path = page(
        tmp_path, with_body("<script>document.querySelector('h1').innerText = 'J'</script>")
    )

    assert browser.open(path, scripts=False).texts("h1") == ["Good"]
    assert browser.open(path, scripts=True).texts("h1") == ["J"]


@pytest.mark.parametrize("hidden", ["", "<style>body { overflow-x: hidden; }</style>"])
def test_a_page_that_is_wider_than_its_window(
    browser: Browsing, tmp_path: Path, hidden: str
) -> None:
    wide = "<table><tr><td><svg width='500' height='9'></svg></td></tr></table>"
    window = browser.open(
        page(tmp_path, with_body(wide.replace("svg", "canvas"), hidden)), width=300
    )

    assert overflow(window) > 100


def test_what_cannot_be_seen_in_focus_or_in_print(browser: Browsing, tmp_path: Path) -> None:
    bare = GOOD.replace("a { color: inherit; }", "a:focus { outline: none; }").replace(
        "@media print", "@media (width: 1px)"
    )
    window = browser.open(page(tmp_path, bare))

    assert [bool(stop.outline) for stop in stops(window)] == [False, True]
    window.page.emulate_media(media="print")
    assert unseen(window) == ["Hidden until it is asked for."]


@pytest.mark.parametrize(
    "picture",
    [
        "<svg width='9' height='9'></svg>",
        "<svg role='img' width='9' height='9'><title>A</title></svg>",
        "<svg role='img' width='9' height='9'><title></title><desc>B</desc></svg>",
        "<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>",
    ],
)
def test_a_picture_that_says_nothing(browser: Browsing, tmp_path: Path, picture: str) -> None:
    assert len(nameless_pictures(browser.open(page(tmp_path, with_body(picture))))) == 1


def test_what_axe_finds(browser: Browsing, tmp_path: Path) -> None:
    body = """\
<p><span style='color: #bbb'>pale</span></p>
<h3>a level too deep</h3>
<input>
"""
    found = "\n".join(inaccessible(browser.open(page(tmp_path, with_body(body)))))

    for rule in ("color-contrast", "heading-order", "label"):
        assert f"{rule}: " in found


def test_what_axe_finds_in_the_dark_alone(browser: Browsing, tmp_path: Path) -> None:
    path = page(tmp_path, GOOD.replace("a { color: inherit; }", "a { color: #00c; }"))

    assert not inaccessible(browser.open(path))
    assert any("contrast" in one for one in inaccessible(browser.open(path, scheme="dark")))


def test_what_the_validator_finds(tmp_path: Path) -> None:
    body = """\
<p id='more'>twice</p>
<p><div>a block in a paragraph</div></p>
<ul><p>no item</p></ul>
<p>1 < 2</p>
"""
    found = "\n".join(invalid([page(tmp_path, with_body(body))]))

    for rule in ("no-dup-id", "close-order", "element-permitted-content", "no-raw-characters"):
        assert rule in found
