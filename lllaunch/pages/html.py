"""HTML: where text becomes markup, and what tables hold. Pure.

`escaped` is the one place where text becomes HTML. Templates pass each value through it, charts and
the few elements here use `fill`. So nobody who writes a page escapes anything, and nobody can
forget to.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from lllaunch.documents import isoformat
from lllaunch.run.repository import Host
from lllaunch.text import clean, duration, shorten, shorten_middle, size
from lllaunch.words import STATES, commit_text, counted, versions_text

if TYPE_CHECKING:
    from lllaunch.run.result import RunResult


T = TypeVar("T")

_NOT_ID = re.compile(r"[^A-Za-z0-9]+")


def escaped(value: object) -> Markup:
    """Return a value as HTML that shows it; `Markup` stays as it is.

    Characters that a file cannot hold, or that a terminal obeys, are replaced.
    """
    if isinstance(value, Markup):
        return value
    return escape(clean(f"{value:.10g}" if isinstance(value, float) else str(value)))


def fill(markup: str, *values: object) -> Markup:
    """Return a piece of HTML, a literal, with escaped values in the places of its ``{}``."""
    return Markup(markup.format(*map(escaped, values)))  # noqa: S704 - all of them are escaped


def joined(parts: Iterable[object], between: str = "") -> Markup:
    """Return texts and pieces of HTML, one after the other."""
    return Markup(escaped(between).join(map(escaped, parts)))  # noqa: S704 - as above


def slug(name: str) -> str:
    """Return a name as it may appear in an id: ``rank 3, stderr`` is ``rank-3-stderr``."""
    return _NOT_ID.sub("-", name).strip("-").lower() or "x"


def sign_of(state: str) -> str:
    """Return the sign of a fate or a state."""
    return STATES[state].sign if state in STATES else "·"


def badge(kind: str, word: str) -> Markup:
    """Return a fate or a state as a sign and a word; the colour alone says nothing."""
    sign = '<span class="sign" aria-hidden="true">{}</span>'
    return fill(f'<span class="badge {{}}">{sign} {{}}</span>', slug(kind), sign_of(kind), word)


def code(text: str) -> Markup:
    """Return a text as code; an empty one if there is none."""
    return fill("<code>{}</code>", text) if text else Markup()


def moment(time_ns: int | None) -> Markup:
    """Return a time, given in nanoseconds since the epoch; an empty text if it is not known."""
    if not time_ns:
        return Markup()
    text = isoformat(time_ns)
    shown = f"{text[:10]} {text[11:19]} UTC"
    return fill('<time datetime="{}Z">{}</time>', text[:23], shown)


def took(seconds: float) -> Markup:
    """Return a time span as people say it; a tooltip has it in seconds."""
    return fill('<span title="{} s">{}</span>', str(seconds), duration(seconds))


# Tables


class Cell(NamedTuple):
    """A cell of a table: a text or `Markup`, and the number that it is sorted by."""

    text: str
    value: float | None = None


class PageColumn(NamedTuple):
    """A column of a table: its heading, and what gives the cell of a row.

    Its classes are ``numeric`` (right-aligned), ``wide`` (long texts are broken) and ``minor``
    (hidden where there is little room).
    """

    title: str
    of: Callable[[Any], str | Cell]
    kind: str = ""


def numbers(
    title: str,
    of: Callable[[Any], float | None],
    show: Callable[[float], str] = str,
    *,
    minor: bool = False,
) -> PageColumn:
    """Return a column of numbers, each as `show` shows it; what is None is an empty cell."""

    def cell(row: object) -> Cell:
        value = of(row)
        return Cell("" if value is None else show(value), value)

    return PageColumn(title, cell, "numeric minor" if minor else "numeric")


class Row(NamedTuple):
    """A row of a table; `id` is unique in the page, or empty."""

    cells: Sequence[Cell]
    kind: str = ""
    id: str = ""


class PageTable(NamedTuple):
    """A table, whose first column names the row; a script sorts and filters it."""

    caption: str
    columns: Sequence[PageColumn]
    rows: Sequence[Row]


def table(
    caption: str,
    columns: Iterable[PageColumn],
    things: Iterable[T],
    kind: Callable[[T], str] = lambda _: "",
    id_: Callable[[T], str] = lambda _: "",
) -> PageTable:
    """Return a table with a row for each thing, without columns that are empty in all rows."""
    given, known = tuple(columns), list(things)
    cells = [
        [made if isinstance(made := column.of(thing), Cell) else Cell(made) for column in given]
        for thing in known
    ]
    kept = [at for at in range(len(given)) if any(row[at].text for row in cells)]
    rows = [
        Row([row[at] for at in kept], kind(thing), id_(thing))
        for thing, row in zip(known, cells, strict=True)
    ]
    return PageTable(caption, [given[at] for at in kept], rows)


def render(name: str, *, state: str, word: str, directory: str, **values: object) -> str:
    """Return the page that a template, which extends ``page.html.j2``, makes of some values.

    `state` is one of `lllaunch.words.MEANINGS`, and `word` is how people call it.
    """
    base = os.path.basename(os.path.abspath(directory))
    return (
        environment()
        .get_template(name)
        .render(
            state=state if state in STATES else "unknown",
            title=shorten_middle(f"{word}: {base}", 70),
            word=word,
            directory=directory,
            **values,
        )
    )


@functools.cache
def environment() -> Environment:
    """Return what reads templates: it escapes all values, and unknown names are errors."""
    loader = FileSystemLoader(os.path.dirname(__file__))
    found = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=escaped,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for each in (code, counted, joined, shorten, slug):
        found.filters[each.__name__] = each
    style, script = (
        Markup(loader.get_source(found, name)[0].strip())  # noqa: S704 - a file of ours
        for name in ("page.css", "page.js")
    )
    found.globals.update(
        style=style,
        script=script,
        policy=(
            f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        ),
        states=STATES,
    )
    return found


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def short_commit(result: RunResult | None) -> str:
    """Return the commit in short, and whether there were changes; empty if it is not known."""
    build = None if result is None else result.build
    if build is None or not build.commit:
        return ""
    where = f" ({build.branch})" if build.branch else ""
    return f"{build.commit[:12]}{where}{' with changes' if build.dirty else ''}"


def long(text: str, tag: Literal["span", "code"] = "span") -> Markup:
    """Return a text that has a line of its own among facts; an empty one if there is none."""
    return fill(f'<{tag} class="long">{{}}</{tag}>', text) if text else Markup()


def environment_facts(
    result: RunResult | None, own: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return what a result.json has about the machine and the code that ran, and own facts."""
    host = (None if result is None else result.host) or Host()
    build = None if result is None else result.build
    return [
        ("Host", host.hostname),
        ("Kernel", host.kernel),
        ("CPUs", "" if host.cpus is None else str(host.cpus)),
        ("Memory", "" if host.memory is None else size(host.memory)),
        ("Memory limit", "" if host.memory_limit is None else size(host.memory_limit)),
        *own,
        ("Commit", long(commit_text(build))),
        ("Versions", long(versions_text(build))),
    ]
