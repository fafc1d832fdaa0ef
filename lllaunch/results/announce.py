"""The end of a run or a sweep in GitHub Actions: annotations and the step's summary."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lllaunch.console.display import showing
from lllaunch.files import write_all
from lllaunch.results.github import ANNOTATIONS, SUMMARY_BYTES, annotation, commands, summary
from lllaunch.results.report import load
from lllaunch.results.store import locate
from lllaunch.run.files import naming, write_atomic
from lllaunch.text import tidy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lllaunch.results.cases import Report


_REPORT = "report for GitHub Actions"


@showing(_REPORT)
def announce(path: str, environ: Mapping[str, str]) -> None:
    """Tells GitHub Actions what became of a run or a sweep, if this process runs there.

    Prints annotations for failures to standard output and adds to the step's summary. Whatever
    goes wrong with that changes nothing: the run is over, and its exit code stands.

    ``environ``: of this process; nothing is done unless ``GITHUB_ACTIONS`` is ``true`` in it.
    """
    if not in_github_actions(environ):
        return
    report = load(locate(path), source_roots(environ), environ)
    tell_github(report, environ)


@showing(_REPORT)
def announce_error(
    message: str, environ: Mapping[str, str], lines: Sequence[tuple[str, int, str]] = ()
) -> None:
    """Tells GitHub Actions why nothing was run, if this process runs there; as `announce` does.

    ``message``: what is wrong, of any number of lines; empty if ``lines`` say it all. ``lines``:
    what is wrong with lines of files: the file's path, the line's number, from 1, or 0 for the file
    as a whole, and a text.
    """
    if not in_github_actions(environ):
        return

    def annotated(text: str, file: str = "", line: int = 0) -> str:
        path = tidy(in_repository(file, environ)).replace("\n", " ") if file else ""
        return annotation("error", tidy(text), title="lllaunch", file=path, line=line or 1)

    room = ANNOTATIONS - bool(message)
    if len(lines) > room:
        room = ANNOTATIONS - 1
        more = f"{len(lines) - room} more mistakes are in the log"
        message = f"{message}\n{more}" if message else more
    found = [annotated(text, file, line) for file, line, text in lines[:room]]
    found += [annotated(message)] if message else []
    emit("".join(f"{each}\n" for each in found))


def in_repository(path: str, environ: Mapping[str, str]) -> str:
    """Returns a path as GitHub's annotations have it: from the top of the checkout."""
    top = environ.get("GITHUB_WORKSPACE")
    absolute = os.path.abspath(path)
    return os.path.relpath(absolute, top) if top and absolute.startswith(f"{top}/") else path


def in_github_actions(environ: Mapping[str, str]) -> bool:
    """Whether a process runs in a step of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def source_roots(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the directories of the user's own source files: the checkout, then where we are."""
    checkouts = (environ.get("GITHUB_WORKSPACE", ""), environ.get("CI_PROJECT_DIR", ""))
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        here = ""
    return tuple(root for root in (*checkouts, here) if root)


def tell_github(report: Report, environ: Mapping[str, str], output: str | None = None) -> None:
    """Prints annotations and adds to the step's summary.

    Raises:
        OutputError: the file of the summary cannot be written.
        OSError: standard output, or the step's summary, cannot be written.
    """
    tell_step(commands(report), functools.partial(summary, report), environ, output)


def tell_step(
    commands: Iterable[str],
    summary: Callable[[int], str],
    environ: Mapping[str, str],
    output: str | None = None,
) -> None:
    """Prints lines for GitHub, and adds to the step's summary."""
    emit("".join(f"{command}\n" for command in commands))
    if output is not None:
        write_atomic(output, encoded(summary(SUMMARY_BYTES)))
        return
    path = environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    with naming(path):
        # other commands of the step may have written to it
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            room = SUMMARY_BYTES - os.fstat(fd).st_size - 1
            text = summary(room)
            write_all(fd, encoded(f"\n{text}" if text else ""))
        finally:
            os.close(fd)


def encoded(text: str) -> bytes:
    """Returns a text in UTF-8, whatever it holds."""
    return text.encode("utf-8", errors="replace")


def emit(text: str) -> None:
    """Prints whole lines to standard output, in UTF-8 whatever the locale is.

    Raises:
        OSError: nobody reads it any more.
        ValueError: it is closed.
    """
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:  # a stand-in of a notebook
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        binary.write(encoded(text))
    sys.stdout.flush()
