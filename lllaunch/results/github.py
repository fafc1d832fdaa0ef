"""Reports for GitHub Actions: workflow commands that annotate code, and the summary of a step.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions has the syntax. A
step shows ten annotations of each kind, and its summary may have 1 MiB. What makes text is pure.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from lllaunch.console.stream import showing
from lllaunch.files import naming, write_all, write_atomic
from lllaunch.results.locate import locate
from lllaunch.results.report import Case, Report, load
from lllaunch.text import duration, shorten, tidy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lllaunch.results.report import Report


ANNOTATIONS = 10
"""How many annotations of each kind GitHub shows of a step."""

SUMMARY_BYTES = 1024 * 1024
"""How long the summary of a step may be."""

Level = Literal["error", "warning", "notice"]

_MESSAGE = 4000  # characters of an annotation
_TITLE = 200
_ROWS = 200
_ALONE = 20  # so many jobs are all shown in the table, whatever became of them


def annotation(
    level: Level, message: str, *, title: str = "", file: str = "", line: int | None = None
) -> str:
    """Returns a workflow command, as one line without a newline.

    ``file``: path of a file, relative to the repository's root.
    """
    given = {"file": file, "line": "" if line is None or not file else str(line), "title": title}
    properties = ",".join(f"{key}={_property(value)}" for key, value in given.items() if value)
    return f"::{level}{' ' if properties else ''}{properties}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def commands(report: Report) -> list[str]:
    """Returns a workflow command for each failure, and one for all jobs that were not run.

    ``report``: what is told. Where more than ten have failed, the tenth command says how many are
    left out.
    """
    bad = [case for case in report.cases if case.bad]
    room = ANNOTATIONS if len(bad) <= ANNOTATIONS else ANNOTATIONS - 1
    found = [_failure(report, case) for case in bad[:room]]
    if len(bad) > room:
        message = f"{len(bad) - room} more of {len(report.cases)} jobs failed, see the summary"
        found.append(annotation("error", message, title="lllaunch"))
    skipped = report.count("skipped")
    if skipped:
        message = f"{skipped} of {len(report.cases)} jobs were not run"
        found.append(annotation("warning", message, title="lllaunch"))
    return found


def _failure(report: Report, case: Case) -> str:
    text = case.text
    if len(text) > _MESSAGE:
        # what happened is at the beginning, the innermost frames and the exception are at the end
        text = f"{case.message}\n...\n{text[-(_MESSAGE - len(case.message)) :]}"
    file, line = case.place or ("", None)
    title = f"lllaunch: {report.title(case)} {case.word}"
    return annotation("error", text, title=shorten(title, _TITLE), file=file, line=line)


def summary(report: Report, limit: int = SUMMARY_BYTES) -> str:
    """Returns the summary of a step, in GitHub's Markdown.

    ``limit``: how long it may be, bytes in UTF-8.
    """
    parts = [f"### lllaunch: {_escaped(report.verdict)}", "", f"{_code(report.directory)}", ""]
    if report.kind == "sweep":
        parts += _table(report)
        parts.append("")
    used = _size(parts)
    failures = [case for case in report.cases if case.bad]
    for index, case in enumerate(failures):
        section = _section(report, case)
        used += _size([section])
        if used > limit - 200:
            parts.append(f"{len(failures) - index} more failures are not shown here.")
            break
        parts.append(section)
    text = "\n".join(parts).rstrip() + "\n"
    return text if len(text.encode(errors="replace")) <= limit else ""


def _size(parts: Iterable[str]) -> int:
    return sum(len(part.encode(errors="replace")) + 1 for part in parts)


def _table(report: Report) -> Iterator[str]:
    few = len(report.cases) <= _ALONE
    shown = [case for case in report.cases if few or case.outcome != "succeeded"]
    if not shown:
        return
    yield "| job | overrides | state | tries | time | root cause |"
    yield "|--:|---|---|--:|--:|---|"
    for case in shown[:_ROWS]:
        own = [each for each in case.overrides if each not in report.common]
        seconds = "" if case.seconds is None else duration(case.seconds)
        cells = (
            str(case.job),
            _code(shorten(" ".join(own), 120)),
            f"**{case.outcome}**" if case.bad else case.outcome,
            "" if case.tries is None else str(case.tries),
            seconds,
            _escaped(shorten(case.message, 200)),
        )
        yield f"| {' | '.join(cells)} |"
    if len(shown) > _ROWS:
        yield f"\n{len(shown) - _ROWS} more are in sweep.json."


def _section(report: Report, case: Case) -> str:
    """Returns what is told of a failure; it can be folded away."""
    place = f"Failed at {_code(f'{case.place.file}:{case.place.line}')}" if case.place else ""
    parts = [
        f"<details{' open' if report.kind == 'run' else ''}>",
        f"<summary>{_escaped(report.title(case))}: {_escaped(case.message)}</summary>",
        "",
        *fenced(case.text.splitlines()),
        "",
        place,
    ]
    return "\n".join([*parts, "", "</details>", ""])


def fenced(lines: list[str]) -> list[str]:
    """Returns lines as a block of Markdown that none of them can end."""
    longest = max((len(run) for run in re.findall("`+", "\n".join(lines))), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *lines, fence]


def _escaped(text: str) -> str:
    """Returns a text that stands for itself in a line of Markdown or a cell of a table."""
    return re.sub(
        r"_|[^\w\s=.,;/+()'\"-]", lambda found: f"&#{ord(found[0])};", " ".join(text.split())
    )


def _code(text: str) -> str:
    return f"<code>{_escaped(text)}</code>" if text.strip() else ""


_REPORT = "report for GitHub Actions"


@showing(_REPORT)
def announce(path: str) -> None:
    """Tells GitHub Actions what became of a run or a sweep, if this process runs there.

    Prints annotations for failures to standard output and adds to the step's summary. Whatever
    goes wrong with that changes nothing: the run is over, and its exit code stands.
    """
    if _in_github_actions():
        tell_github(load(locate(path), source_roots()))


@showing(_REPORT)
def announce_error(message: str, lines: Sequence[tuple[str, int, str]] = ()) -> None:
    """Tells GitHub Actions why nothing was run, if this process runs there; as `announce` does.

    ``message``: what is wrong, of any number of lines; empty if ``lines`` say it all. ``lines``:
    what is wrong with lines of files: the file's path, the line's number, from 1, or 0 for the file
    as a whole, and a text.
    """
    if _in_github_actions():
        every = [*lines, *([("", 0, message)] if message else [])]
        found = annotate(("error", *each) for each in every)
        emit("".join(f"{each}\n" for each in found))


def annotate(found: Iterable[tuple[Level, str, int, str]], title: str = "lllaunch") -> list[str]:
    """Returns workflow commands for what is wrong with lines of files, errors first.

    Of more than ten errors, or warnings, the tenth command says how many are left out.

    ``found``: level, path of the file, its line (0 for the file as a whole), and a text.
    """
    lines: dict[Level, list[str]] = {"error": [], "warning": []}
    for level, file, line, text in found:
        path = tidy(_in_repository(file)).replace("\n", " ") if file else ""
        said = tidy(text)[:_MESSAGE]
        lines[level].append(annotation(level, said, title=title, file=path, line=line or 1))
    for level, some in lines.items():
        if len(some) > ANNOTATIONS:
            more = f"{len(some) - ANNOTATIONS + 1} more {level}s are in the log"
            some[ANNOTATIONS - 1 :] = [annotation(level, more, title=title)]
    return [*lines["error"], *lines["warning"]]


def _in_repository(path: str) -> str:
    """Returns a path as GitHub's annotations have it: from the top of the checkout."""
    top = os.environ.get("GITHUB_WORKSPACE")
    absolute = os.path.abspath(path)
    return os.path.relpath(absolute, top) if top and absolute.startswith(f"{top}/") else path


def _in_github_actions() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def source_roots() -> tuple[str, ...]:
    """Returns the directories of the user's own source files: the checkout, then where we are."""
    checkouts = (os.environ.get("GITHUB_WORKSPACE"), os.environ.get("CI_PROJECT_DIR"))
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        here = ""
    return tuple(root for root in (*checkouts, here) if root)


def tell_github(report: Report, output: str | None = None) -> None:
    """Prints annotations and adds to the step's summary.

    Raises:
        OutputError: the file of the summary cannot be written.
        OSError: standard output, or the step's summary, cannot be written.
    """
    tell_step(commands(report), functools.partial(summary, report), output)


def tell_step(
    commands: Iterable[str],
    summary: Callable[[int], str],
    output: str | None = None,
) -> None:
    """Prints lines for GitHub, and adds to the step's summary."""
    emit("".join(f"{command}\n" for command in commands))
    if output is not None:
        write_atomic(output, encoded(summary(SUMMARY_BYTES)))
        return
    path = os.environ.get("GITHUB_STEP_SUMMARY")
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
