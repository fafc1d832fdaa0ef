"""Pages: one file of HTML that opens from a disk, a mail or an artifact of CI. Pure.

What is text becomes HTML in one place, `element`: all that is not `Markup` is escaped there, and
what a file cannot hold is replaced. So nobody who builds a page escapes anything, and nobody can
forget to. Styles and script are in the page; its policy (CSP) allows these two by their hashes and
nothing else, so there are no ``style`` attributes and no handlers in it. The script sorts and
filters tables; whatever a page says it says without.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import NamedTuple, TypeAlias

from lllaunch.text import shorten_middle, tidy

Attribute: TypeAlias = str | float | bool | None

_VOID = frozenset({"br", "col", "hr", "input", "link", "meta", "wbr"})
# What turns the direction of the text that follows: a name could read as another one.
_TURNING = re.compile(r"[\u202a-\u202e\u2066-\u2069]")
_NOT_ID = re.compile(r"[^A-Za-z0-9]+")


class Markup(str):
    """HTML, in which all text is escaped; only what stands in this module and charts makes it."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """Return a text as HTML that shows it; what a file cannot hold or a terminal obeys is replaced.

    Args:
        text: any text; `Markup` stays as it is.
    """
    if isinstance(text, Markup):
        return text
    shown = _TURNING.sub(lambda found: ascii(found[0])[1:-1], tidy(text))
    return Markup(html.escape(shown))


def joined(parts: Iterable[str], between: str = "") -> Markup:
    """Return several texts, or pieces of HTML, one after the other as HTML.

    Args:
        parts: texts, which are escaped, and `Markup`, which is not.
        between: stands between them; a text.
    """
    return Markup(escaped(between).join(map(escaped, parts)))


def element(tag: str, *content: str, **attributes: Attribute) -> Markup:
    """Return an element of HTML or SVG.

    Args:
        tag: its name.
        content: texts, which are escaped, and `Markup`, which is not.
        attributes: in the order in which they are written. An underscore stands for a hyphen, one
            at the end is left out (``class_``). None and False leave the attribute out, True
            writes it alone.
    """
    written = "".join(
        f" {_attribute(name)}" if value is True else f' {_attribute(name)}="{_value(value)}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{joined(content)}</{tag}>")


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _value(value: Attribute) -> str:
    if isinstance(value, str):
        return escaped(value)
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def slug(name: str) -> str:
    """Return a name as it may stand in an id: ``rank 3, stderr`` is ``rank-3-stderr``."""
    return _NOT_ID.sub("-", name).strip("-").lower() or "x"


# Parts of a page


def section(id_: str, title: str, *content: str, level: int = 2) -> Markup:
    """Return a section with its heading; an empty text if there is no content.

    Args:
        id_: unique in the page; links lead there.
        title: the heading's text.
        content: what stands below it.
        level: of the heading.
    """
    if not any(content):
        return Markup()
    heading = element(f"h{level}", title, id=f"{id_}-title")
    return element("section", heading, *content, id=id_, aria_labelledby=f"{id_}-title")


def definitions(facts: Iterable[tuple[str, str]]) -> Markup:
    """Return names and what is known of each; those with no text are left out."""
    rows = [
        element("div", element("dt", name), element("dd", value)) for name, value in facts if value
    ]
    return element("dl", *rows, class_="facts") if rows else Markup()


def disclosure(
    summary: str, *content: str, is_open: bool = False, id_: str | None = None
) -> Markup:
    """Return what can be folded away.

    Args:
        summary: what is shown of it then.
        content: the rest.
        is_open: whether it is shown at first.
        id_: unique in the page.
    """
    return element("details", element("summary", summary), *content, open=is_open, id=id_)


def preformatted(lines: Iterable[str], label: str, kind: str = "") -> Markup:
    """Return lines as they stand, such as those of a log; it can be scrolled with the keyboard.

    Args:
        lines: texts or `Markup` without line breaks.
        label: what that is, for those who do not see it.
        kind: further classes.
    """
    # a first line break would not count
    body = Markup("\n" + joined(lines, "\n"))
    classes = f"quote {kind}".strip()
    return element("pre", body, class_=classes, tabindex=0, role="group", aria_label=label)


def badge(kind: str, word: str) -> Markup:
    """Return a state as a sign and a word; the colour alone says nothing.

    Args:
        kind: a fate, a state, or one of the signs of `SIGNS`.
        word: what is written.
    """
    sign = element("span", SIGNS.get(kind, "·"), class_="sign", aria_hidden="true")
    return element("span", sign, Markup(" "), word, class_=f"badge {slug(kind)}")


SIGNS: Mapping[str, str] = {
    "succeeded": "✓",
    "failed": "✕",
    "error": "✕",
    "died": "✕",
    "victim": "▽",
    "ended": "■",
    "signalled": "■",
    "stopped": "■",
    "lost": "?",
    "unknown": "?",
    "not_started": "·",
    "not_run": "·",
    "skipped": "·",
    "waiting": "·",
    "queued": "·",
    "running": "▸",
}
"""A sign for each fate and state."""


# Tables


class TableColumn(NamedTuple):
    """A column of a table.

    Attributes:
        title: its heading.
        numeric: whether it holds numbers, which stand right and are sorted by value.
        minor: whether it may be left out where there is little room; a script or a wider window
            shows it.
        wide: whether its texts may be long; they are broken.
    """

    title: str
    numeric: bool = False
    minor: bool = False
    wide: bool = False


class TableCell(NamedTuple):
    """A cell of a table.

    Attributes:
        content: a text, or `Markup`.
        value: what it is sorted by, if that is not the text: a number.
    """

    content: str
    value: float | None = None


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
        cells: one for each column; a text or a `TableCell`.
        id: unique in the page, or empty.
        kind: class of the row, such as a fate.
    """

    cells: Sequence[str | TableCell]
    id: str = ""
    kind: str = ""


_FILTERED = 8


def table(
    caption: str,
    columns: Sequence[TableColumn],
    rows: Sequence[TableRow],
    *,
    id_: str | None = None,
    hidden_caption: bool = False,
) -> Markup:
    """Return a table; a script sorts it by each column, and filters it where it has many rows.

    Args:
        caption: what it shows.
        columns: from left to right; the first one names the row.
        rows: from top to bottom.
        id_: unique in the page.
        hidden_caption: whether the caption is only for those who do not see the page.
    """
    head = element("tr", *(_head(column) for column in columns))
    body = joined(_row(row, columns) for row in rows)
    shown = element(
        "table",
        element("caption", caption, class_="unseen" if hidden_caption else None),
        element("thead", head),
        element("tbody", body),
        id=id_,
        class_="data",
        data_sort=len(rows) > 1,
        data_filter=len(rows) >= _FILTERED,
    )
    return element(
        "div", shown, class_="scroll", tabindex=0, role="group", aria_label=f"{caption} (table)"
    )


def _head(column: TableColumn) -> Markup:
    return element("th", column.title, scope="col", class_=_classes(column))


def _classes(column: TableColumn) -> str | None:
    names = [name for name in ("numeric", "minor", "wide") if getattr(column, name)]
    return " ".join(names) or None


def _row(row: TableRow, columns: Sequence[TableColumn]) -> Markup:
    cells = []
    for number, (given, column) in enumerate(zip(row.cells, columns, strict=True)):
        cell = given if isinstance(given, TableCell) else TableCell(given)
        tag, scope = ("th", "row") if number == 0 else ("td", None)
        classes = _classes(column)
        cells.append(element(tag, cell.content, scope=scope, class_=classes, data_v=cell.value))
    return element("tr", *cells, id=row.id or None, class_=slug(row.kind) if row.kind else None)


# The page


@functools.cache
def _resource(name: str) -> str:
    return resources.files("lllaunch.pages").joinpath(name).read_text(encoding="utf-8").strip()


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


class PageLink(NamedTuple):
    """A place in the page.

    Attributes:
        id: of the section.
        title: what leads there.
    """

    id: str
    title: str


def document(
    title: str,
    heading: str,
    body: str,
    *,
    links: Sequence[PageLink] = (),
    footer: str = "",
) -> str:
    """Return a whole page.

    Args:
        title: of the window; a text.
        heading: what stands above all, with the only ``h1``; `Markup`.
        body: the sections, with headings from ``h2`` on; `Markup`.
        links: sections that the page's navigation leads to.
        footer: what made the page; a text or `Markup`.
    """
    style, script = _resource("page.css"), _resource("page.js")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(style)}",
            f"script-src {_hash(script)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    head = joined(
        (
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=policy),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("meta", name="referrer", content="no-referrer"),
            element("title", shorten_middle(title, 70)),
            # both are ours, and are to be byte for byte what the policy has the hash of
            Markup(f"<style>{style}</style>"),
        )
    )
    page = joined(
        (
            element("a", "Skip to the content", href="#content", class_="skip"),
            element("header", heading, class_="top"),
            _navigation(links),
            element("main", body, id="content", tabindex=-1),
            element("footer", element("p", footer)),
            _PATTERNS,
            Markup(f"<script>{script}</script>"),
        )
    )
    head_and_body = f"{element('head', head)}\n{element('body', page)}"
    return f'<!DOCTYPE html>\n<html lang="en">\n{head_and_body}\n</html>\n'


def _navigation(links: Sequence[PageLink]) -> Markup:
    items = [element("li", element("a", link.title, href=f"#{link.id}")) for link in links]
    return element("nav", element("ul", *items), aria_label="Sections") if items else Markup()


def _pattern(name: str, path: str) -> Markup:
    size = 6
    return element(
        "pattern",
        element("rect", width=size, height=size, class_="ground"),
        element("path", d=path),
        id=f"pattern-{name}",
        width=size,
        height=size,
        patternUnits="userSpaceOnUse",
    )


# What charts fill areas with, so that colour is not the only sign.
_PATTERNS = element(
    "svg",
    element(
        "defs",
        _pattern("hang", "M-1 1l2-2M0 6l6-6M5 7l2-2"),
        _pattern("waited", "M-1 1l2-2M0 6l6-6M5 7l2-2"),
        _pattern("grace", "M1 0v6M4 0v6"),
        _pattern("preload", "M0 3h6"),
    ),
    class_="patterns",
    width=0,
    height=0,
    aria_hidden="true",
    focusable="false",
)
