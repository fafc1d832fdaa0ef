"""What stands in a page, read without a browser."""

from __future__ import annotations

from html.parser import HTMLParser

from lllaunch.pages.html import environment, escaped

_VOID = frozenset({"br", "col", "hr", "input", "link", "meta", "wbr"})


class Seen(HTMLParser):
    """A page: its elements, their attributes, its text, and its tables by caption.

    Attributes:
        tags: names of all elements, in order.
        attributes: of all of them.
        open: elements that were not closed.
        text: all that is text, scripts and styles among it.
        tables: by caption, rows of cells, each its text and what it is sorted by.
        shown: what is text, scripts, styles and `titles` left out.
        titles: what is shown where somebody points.
        classes: of what charts are drawn with: elements and the classes of each.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self.shown = ""
        self.titles: list[str] = []
        self.classes: list[tuple[str, list[str]]] = []
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
        if tag in {"circle", "path", "rect"}:
            self.classes.append((tag, (dict(attrs).get("class") or "").split()))
        elif tag == "title":
            self.titles.append("")
        elif tag == "caption":
            self._caption = ""
        elif tag == "thead":
            self._rows = []
        elif tag == "tbody":
            self._rows = self.tables.setdefault(self._caption, [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in {"td", "th"}:
            self._cell, self._value = "", dict(attrs).get("data-v")

    def values(self, *names: str) -> list[str]:
        """All values of attributes that are called so."""
        return [value or "" for name, value in self.attributes if name in names]

    def count(self, tag: str, kind: str) -> int:
        """How many of these a chart has of a class."""
        return sum(each == tag and kind in classes for each, classes in self.classes)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in {"td", "th"}:
            self._rows[-1].append((self._cell or "", self._value))
            self._cell = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if "title" in self.open:
            self.titles[-1] += data
        elif not {"script", "style"} & {*self.open}:
            self.shown += data
        if self.open and self.open[-1] == "caption":
            self._caption += data
        if self._cell is not None:
            self._cell += data


def page_of(sections: str, text: str = "a text", **values: object) -> str:
    """A page whose title, verdict and facts are one text.

    Args:
        sections: as a template sets them.
        text: what is everywhere.
        values: what that template uses.
    """
    imported = "{% from 'parts.html.j2' import fold, pre, table %}"
    source = f"{{% extends 'page.html.j2' %}}{imported}{{% set sections = {sections} %}}"
    head = dict.fromkeys(("kind", "directory", "word", "sentence", "version", "title"), text)
    template = environment().from_string(source)
    return template.render(
        **head, state="failed", more=escaped(text), summary=[(text, text)], text=text, **values
    )
