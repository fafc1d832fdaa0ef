"""What the pages of a run and of a sweep have in common: the verdict, moments, commits. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lllaunch.console.wording import commit_text, versions_text
from lllaunch.documents import isoformat
from lllaunch.pages.html import SIGNS, Markup, definitions, element, joined
from lllaunch.text import shorten, size

if TYPE_CHECKING:
    from lllaunch.documents import Fields

STATE_WORDS = {
    "succeeded": "Succeeded",
    "failed": "Failed",
    "signalled": "Ended by a signal",
    "error": "Error",
    "running": "Still running",
    "queued": "Waiting in the queue",
    "died": "Died",
}
"""What a page calls the state of what it is of."""

UNKNOWN_STATE = "Not known to be over"


def page_heading(
    kind: str,
    directory: str,
    state: str,
    word: str,
    sentence: str,
    more: str,
    summary: Iterable[tuple[str, str]],
) -> Markup:
    """Return what stands above all on a page.

    Args:
        kind: ``Run`` or ``Sweep``.
        directory: its directory, as the user would type it.
        state: as `lllaunch.results.store.STATES` has it.
        word: the verdict in a word or two.
        sentence: the verdict in a sentence.
        more: what is to be said beside it, or an empty text.
        summary: facts about the whole.
    """
    known = state if state in STATE_WORDS else "unknown"
    sign = element("span", SIGNS.get(known, "?"), class_="sign", aria_hidden="true")
    verdict = element(
        "div",
        element("h1", sign, " ", word),
        element("p", sentence, class_="cause"),
        element("p", more, class_="more") if more else Markup(),
        class_=f"verdict {known}",
    )
    what = element("p", f"{kind} ", element("code", directory), class_="what")
    return joined((what, verdict, definitions(summary)))


def page_footer(directory: str, version: str) -> Markup:
    """Return what made a page, and how other forms of it are made.

    Args:
        directory: of the run or the sweep, as the user would type it.
        version: lllaunch's.
    """
    made = f"lllaunch {version}. Times are UTC. Other forms of this report: "
    command = f"python -m lllaunch report {directory} --format json|junit|trace|text"
    return joined((made, element("code", shorten(command, 300))))


def moment(time_ns: int | None) -> Markup:
    """Return a time; an empty text if it is not known.

    Args:
        time_ns: nanoseconds since the epoch.
    """
    if not time_ns:
        return Markup()
    text = isoformat(time_ns)
    return element("time", f"{text[:10]} {text[11:19]} UTC", datetime=f"{text[:23]}Z")


def short_commit(build: Fields) -> str:
    """Return the commit in short, and whether there were changes; empty if it is not known.

    Args:
        build: as a result.json has it.
    """
    commit, branch = build.text("commit"), build.text("branch")
    if not commit:
        return ""
    changed = " with changes" if build.flag("dirty") else ""
    return f"{commit[:12]}{f' ({branch})' if branch else ''}{changed}"


def own_line(text: str, tag: str = "span") -> Markup:
    """Return a text that has a line of its own among facts; an empty one if there is none."""
    return element(tag, text, class_="long") if text else Markup()


def host_facts(host: Fields) -> list[tuple[str, str]]:
    """Return what is known of a machine.

    Args:
        host: as a result.json has it.
    """
    cpus, memory, limit = map(host.integer, ("cpus", "memory", "memory_limit"))
    return [
        ("Host", host.text("hostname")),
        ("Kernel", host.text("kernel")),
        ("CPUs", "" if cpus is None else str(cpus)),
        ("Memory", "" if memory is None else size(memory)),
        ("Memory limit", "" if limit is None else size(limit)),
    ]


def code_facts(build: Fields) -> list[tuple[str, str]]:
    """Return what is known of the code that ran.

    Args:
        build: as a result.json has it.
    """
    return [
        ("Commit", own_line(commit_text(build.document))),
        ("Versions", own_line(versions_text(build.document))),
    ]
