"""JUnit XML of a report; pure.

There are two schemas of it in use: that of Jenkins' xUnit plugin (junit-10.xsd), and that of
Apache Ant's task (JUnit.xsd of windyroad). What is written here is valid by both. The second knows
properties and output of test suites only, so each case is a suite with one test case in it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from lllaunch.text import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lllaunch.results.report import Case, Report
    from lllaunch.results.view import Log


# All that XML 1.0 has no place for; a carriage return would be read as a newline.
_IMPOSSIBLE = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAGS = {"failed": "failure", "error": "error", "skipped": "skipped"}
_COUNTS = (("failures", "failed"), ("errors", "error"), ("skipped", "skipped"))
_NAME = 500
_EPOCH = "1970-01-01T00:00:00"


def render_junit(report: Report, name: str = "lllaunch") -> str:
    """Returns the text of a JUnit XML file.

    A run, or each job of a sweep, is a test case. One whose workers failed, or that the watchdog
    ended, has a ``failure``; one that could not be run, was killed, or whose end is not known, an
    ``error``; one that was not started is ``skipped``.

    ``name``: class name of the test cases: what CI systems group them by.
    """
    root = Element("testsuites")
    names = _names(report)
    for index, case in enumerate(report.cases):
        root.append(_suite(report, case, index, _one_line(name) or "lllaunch", names[index]))
    indent(root)
    text = tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _names(report: Report) -> list[str]:
    """Returns the name of each test case: the same in every run of the same jobs, and unique."""
    found: list[str] = []
    taken: set[str] = set()
    for index, case in enumerate(report.cases):
        name = _one_line(shorten(case.name, _NAME)) or f"case {index}"
        if name in taken:
            name = f"{name} (job {case.job})"
        while name in taken:
            name = f"{name} (case {index})"
        found.append(name)
        taken.add(name)
    return found


def _suite(report: Report, case: Case, index: int, group: str, name: str) -> Element:
    seconds = f"{case.seconds or 0:.3f}"
    suite = Element(
        "testsuite",
        {
            "name": group if case.job is None else f"{group}.job_{case.job}",
            "package": group,
            "id": str(index),
            "hostname": _one_line(case.hostname) or "localhost",
            "timestamp": _timestamp(case.started or report.started),
            "tests": "1",
            **{count: str(int(case.outcome == what)) for count, what in _COUNTS},
            "time": seconds,
        },
    )
    properties = SubElement(suite, "properties")
    for key, value in _properties(report, case):
        SubElement(properties, "property", {"name": key, "value": _one_line(value)})
    test = SubElement(suite, "testcase", {"name": name, "classname": group, "time": seconds})
    if case.outcome != "succeeded":
        told = {"type": _one_line(case.kind) or case.outcome, "message": _one_line(case.message)}
        what = SubElement(test, _TAGS[case.outcome], told)
        what.text = _text(case.text.splitlines())
    logs = {log.stream: log for log in case.logs}
    SubElement(suite, "system-out").text = _log(logs.get("stdout"))
    SubElement(suite, "system-err").text = _log(logs.get("stderr"))
    return suite


def _properties(report: Report, case: Case) -> Iterator[tuple[str, str]]:
    known = {
        "lllaunch.version": report.version,
        "state": case.state,
        "exit_code": case.exit_code,
        "plan_hash": case.plan_hash,
        "overrides": " ".join(case.overrides),
        "job": case.job,
        "tries": case.tries,
        "attempts": case.attempts,
        "run_id": case.run_id,
        "directory": case.directory,
        "file": f"{case.place.file}:{case.place.line}" if case.place else "",
    }
    for key, value in known.items():
        if value is not None and value != "":
            yield key, str(value)


def _log(log: Log | None) -> str:
    if log is None or not log.lines:
        return ""
    return _text([f"{'The last lines' if log.cut else 'All'} of {log.path}:", *log.lines])


def _text(lines: list[str]) -> str:
    return _IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", "\n".join(lines)) + "\n"


def _one_line(text: str) -> str:
    return " ".join(_IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", text).split())


def _timestamp(started: str) -> str:
    """Returns a time without its fraction and zone, which the schema of Ant does not know."""
    found = re.match(r"\d{4}-(?:0[1-9]|1[0-2])-(?:[0-2]\d)T[0-2]\d:[0-5]\d:[0-5]\d|", started)
    return (found[0] if found else "") or _EPOCH
