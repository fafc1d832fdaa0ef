"""What stands in a page, read without a browser."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = frozenset({"br", "col", "hr", "input", "link", "meta", "wbr"})


class Seen(HTMLParser):
    """A page: its elements, their attributes, its text, and its tables by caption.

    Attributes:
        tags: names of all elements, in order.
        attributes: of all of them.
        open: elements that were not closed.
        text: all that is text, scripts and styles among it.
        tables: by caption, rows of cells, each its text and what it is sorted by.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self._caption: str = ""
        self._cell: str | None = None
        self._value: str | None = None
        self._rows: list[list[tuple[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "caption":
            self._caption = ""
        elif tag == "thead":
            self._rows = []
        elif tag == "tbody":
            self._rows = self.tables.setdefault(self._caption, [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in {"td", "th"}:
            self._cell, self._value = "", dict(attrs).get("data-v")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in {"td", "th"}:
            self._rows[-1].append((self._cell or "", self._value))
            self._cell = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] == "caption":
            self._caption += data
        if self._cell is not None:
            self._cell += data
