"""The checks find what is wrong with a page; a good page passes them all."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browsing import (
    Browsing,
    inaccessible,
    invalid,
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


@pytest.mark.parametrize(
    ("body", "head", "kind"),
    [
        ("<script>console.error('no')</script>", "", "console: no"),
        ("<script>throw new Error('bad')</script>", "", "exception: "),
        ("<script>1</script>", STRICT, "console: Execut"),
        ("<img alt='' src='missing.png'>", "", "request: file:"),
        ("<img alt='' src='https://example.org/a.png'>", STRICT, "console: Load"),
    ],
)
def test_a_fault_of_a_page_is_seen(
    browser: Browsing, tmp_path: Path, body: str, head: str, kind: str
) -> None:
    window = browser.open(page(tmp_path, with_body(body, head)))

    assert any(fault.startswith(kind) for fault in window.faults), window.faults


BAD = """\
<p id='more'>twice, and 1 < 2</p>
<p><div style='color: #bbb'>a pale block in a paragraph</div></p>
<h3>a level too deep</h3>
<svg role='img' width='9' height='9'><title>without a description</title></svg>
<table><tr><td><canvas width='500' height='9'></canvas></td></tr></table>
"""


def test_what_is_wrong_with_a_page_is_found(browser: Browsing, tmp_path: Path) -> None:
    bare = with_body(BAD, "<style>body { overflow-x: hidden; }</style>")
    bare = bare.replace("a { color: inherit; }", "a:focus { outline: none; }")
    path = page(tmp_path, bare.replace("@media print", "@media (width: 1px)"))
    window = browser.open(path, width=300)

    assert overflow(window) > 100
    assert len(nameless_pictures(window)) == 1
    assert [bool(stop.outline) for stop in stops(window)] == [False, True]
    found = "\n".join([*inaccessible(window), *invalid([path])])
    for rule in ("color-contrast: ", "heading-order: ", "no-dup-id", "close-order"):
        assert rule in found
    window.page.emulate_media(media="print")
    assert unseen(window) == ["Hidden until it is asked for."]
