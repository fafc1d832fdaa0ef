"""What the pages of a run and of a sweep have in common: the head, facts, and how they are made.

Style and script are in the page. Its policy (CSP) allows these two by their hashes and nothing
else, so no ``style`` attributes and no handlers exist.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lllaunch.pages.html import code, escaped, fill, joined, slug
from lllaunch.run.build import Host
from lllaunch.text import shorten, shorten_middle, size
from lllaunch.words import STATES, commit_text, counted, versions_text

if TYPE_CHECKING:
    from lllaunch.run.result import RunResult


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
