"""A report for people, and one for programs; pure."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lllaunch.results.cases import Case, Report, details
from lllaunch.text import duration, plain

if TYPE_CHECKING:
    from collections.abc import Iterator


VERSION = 1
"""Version of the JSON form; grows when a field changes its meaning."""


def render_text(report: Report) -> str:
    """Returns a report as lines for people: the verdict, and what is to be told of each failure."""
    lines = [f"lllaunch: {report.directory}: {report.verdict()}"]
    for case in report.cases:
        if case.outcome != "succeeded":
            lines += ["", *_case(report, case)]
    return "\n".join(map(plain, lines)) + "\n"


def _case(report: Report, case: Case) -> Iterator[str]:
    took = f" after {duration(case.seconds)}" if case.seconds is not None else ""
    yield f"  {report.title(case)} {report.word(case)}{took if case.bad else ''}: {case.message}"
    if not case.bad:
        return
    if case.place:
        yield f"    at {case.place.file}:{case.place.line}"
    for line in details(case):
        yield f"    {line}".rstrip()
    where = f"{report.directory}/{case.logs_in or case.directory}".removesuffix("/.")
    yield f"    Logs: {where}"


def render_json(report: Report) -> str:
    """Returns a report as JSON: the same fields for a run and for a sweep."""
    document = {
        "version": VERSION,
        "kind": report.kind,
        "directory": report.directory,
        "finished": report.finished,
        "verdict": report.verdict(),
        "exit_code": report.exit_code,
        "started": report.started or None,
        "seconds": report.seconds,
        "counts": {
            outcome: report.count(outcome)
            for outcome in ("succeeded", "failed", "error", "skipped")
        },
        "cases": [_plain(case) for case in report.cases],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(case: Case) -> dict[str, Any]:
    fields = asdict(case)
    del fields["place"]
    file, line = case.place or (None, None)
    logs = {log.stream: log.path for log in case.logs}
    return {
        **fields,
        "file": file,
        "line": line,
        "explanation": "\n".join(case.explanation) or None,
        "traceback": "\n".join(case.traceback) or None,
        "logs": logs,
    }
