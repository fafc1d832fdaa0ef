"""Reports for GitHub Actions: workflow commands that annotate code, and a step's summary. Pure.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions has the syntax. A
step shows ten annotations of each kind, and its summary may have 1 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from lllaunch.results.cases import Case, Report, details
from lllaunch.text import duration, shorten

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

    Args:
        file: path of a file, relative to the repository's root.
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

    Args:
        report: what is told. Where more than ten have failed, the tenth command says how many
            are left out.
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
    text = "\n".join([case.message, *details(case)]).rstrip()
    if len(text) > _MESSAGE:
        # what happened is at the beginning, the innermost frames and the exception are at the end
        text = f"{case.message}\n...\n{text[-(_MESSAGE - len(case.message)) :]}"
    file, line = case.place or ("", None)
    title = f"lllaunch: {report.title(case)} {report.word(case)}"
    return annotation("error", text, title=shorten(title, _TITLE), file=file, line=line)


def summary(report: Report, limit: int = SUMMARY_BYTES) -> str:
    """Returns the summary of a step, in GitHub's Markdown.

    Args:
        limit: how long it may be, bytes in UTF-8.
    """
    parts = [f"### lllaunch: {_escaped(report.verdict())}", "", f"{_code(report.directory)}", ""]
    if report.kind == "sweep":
        parts += _within(_table(report), limit // 2, "(more jobs are in sweep.json)")
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


def _within(lines: Iterable[str], limit: int, rest: str) -> Iterator[str]:
    used = 0
    for line in lines:
        used += _size([line])
        if used > limit:
            yield f"\n{rest}"
            return
        yield line


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
            _escaped(case.message),
        )
        yield f"| {' | '.join(cells)} |"
    if len(shown) > _ROWS:
        yield f"\n{len(shown) - _ROWS} more are in sweep.json."


def _section(report: Report, case: Case) -> str:
    """Returns what is told of a failure; it can be folded away."""
    lines = list(details(case, log_lines=40))
    while lines and not lines[0]:
        lines.pop(0)
    where = f"{report.directory}/{case.logs_in or case.directory}".removesuffix("/.")
    parts = [
        f"<details{' open' if report.kind == 'run' else ''}>",
        f"<summary>{_escaped(report.title(case))}: {_escaped(case.message)}</summary>",
        "",
        *(_fenced(lines) if lines else ()),
        "",
        f"Logs: {_code(where)}",
    ]
    if case.place:
        parts[-1] += f", failed at {_code(f'{case.place.file}:{case.place.line}')}"
    return "\n".join([*parts, "", "</details>", ""])


def _fenced(lines: list[str]) -> list[str]:
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
