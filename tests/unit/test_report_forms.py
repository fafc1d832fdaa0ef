"""Forms for CI systems: commands and summaries for GitHub Actions, and JUnit XML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from lllaunch.results.report import (
    SUMMARY_BYTES,
    Case,
    CodeLine,
    Report,
    annotation,
    commands,
    render_junit,
    summary,
)
from lllaunch.results.view import Log
from lllaunch.run.excerpts import folded

TEXT = st.text(max_size=30) | st.sampled_from(["::error::x", "%0A", "a:b,c", "\r\n", "```", "|"])


def job(number: int, outcome: Any = "failed", **more: Any) -> Case:
    given = {"overrides": ("+exp=a", f"x={number}"), "message": f"rank 0: no {number}", **more}
    return Case(f"x={number}", outcome, job=number, directory=str(number), **given)


def sweep(*jobs: Case, **more: Any) -> Report:
    return Report("sweep", "multirun/s", jobs, exit_code=6, common=("+exp=a",), **more)


# Workflow commands


@given(TEXT, TEXT, TEXT)
def test_a_command_is_one_line_that_reads_back(message: str, title: str, file: str) -> None:
    told = annotation("warning", message, title=title, file=file, line=7)
    assert "\n" not in told
    assert "\r" not in told
    head, _, data = told[len("::warning") :].partition("::")

    def back(text: str, codes: str) -> str:
        return re.sub(f"%({codes})", lambda found: chr(int(found[1], 16)), text)

    assert back(data, "25|0D|0A") == message
    properties = dict(each.split("=", 1) for each in head[1:].split(",") if each)
    expected = {"file": file, "line": "7" if file else "", "title": title}
    assert {key: back(value, "25|0D|0A|3A|2C") for key, value in properties.items()} == {
        key: value for key, value in expected.items() if value
    }


def test_a_failure_is_annotated_where_it_happened() -> None:
    lines = ("Traceback (most recent call last):", "ValueError: no")
    case = job(1, place=CodeLine("src/train.py", 12), explanation=lines)
    (told,) = commands(sweep(job(0, "succeeded"), case))
    assert told == (
        "::error file=src/train.py,line=12,title=lllaunch%3A job 1 (x=1) failed"
        "::Traceback (most recent call last):%0AValueError: no"
    )
    # a long one keeps its message and its end
    (told,) = commands(sweep(job(0, explanation=tuple(f"line {each}" for each in range(3000)))))
    assert len(told) < 8000
    assert "::rank 0: no 0%0A...%0A" in told
    assert told.endswith("line 2999")


def test_more_failures_than_github_shows_are_counted_and_jobs_not_run_are_one_warning() -> None:
    ten = commands(sweep(*map(job, range(10))))
    assert len(ten) == 10
    assert all("no " in each for each in ten)
    many = commands(sweep(*map(job, range(25)), job(25, "skipped"), job(26, "skipped")))
    assert [each.startswith("::error") for each in many] == [True] * 10 + [False]
    assert many[9].endswith("::16 more errors, see the log or the summary")
    assert many[10] == "::warning title=lllaunch::2 of 27 jobs were not run"
    assert commands(sweep(job(0, "succeeded"))) == []


# Summaries


def test_a_summary_tells_the_jobs_and_why_they_failed() -> None:
    failed = job(
        1,
        seconds=2.5,
        tries=3,
        logs_in="1/attempt_2",
        place=CodeLine("train.py", 12),
        explanation=("Root cause: x", "  two"),
    )
    jobs = job(0, "succeeded", message="", tries=1), failed
    text = summary(sweep(*jobs, verdict="1 of 2 jobs succeeded"))
    assert text.startswith("### lllaunch: 1 of 2 jobs succeeded\n")
    lines = text.splitlines()
    assert "| 0 | <code>x=0</code> | succeeded | 1 |  |  |" in lines
    assert "| 1 | <code>x=1</code> | **failed** | 3 | 2.5 s | rank 0&#58; no 1 |" in lines
    at = lines.index("```text")
    assert lines[at + 1 :] == [
        "  job 1 (x=1) failed after 2.5 s: rank 0: no 1",
        "    at train.py:12",
        "",
        "    Root cause: x",
        "      two",
        "```",
    ]


def test_a_run_has_no_table() -> None:
    case = Case("run", "failed", state="failed", message="rank 0: died")
    text = summary(Report("run", "out", (case,), exit_code=3))
    assert "| job |" not in text
    assert "```text\n  run failed: rank 0: died\n" in text


def test_text_of_workers_cannot_end_its_block_or_become_markdown() -> None:
    fences = ("```", "````", "</details>", "# no")
    text = summary(
        sweep(job(0, message="<img src=x> **a** _b_ [b](c) @me | d", explanation=fences))
    )
    block = text[text.index("`````text") :]
    table = text.removesuffix(block)
    assert not any(each in table for each in ("<img", "**a**", "@me", "_b_"))
    (row,) = [line for line in text.splitlines() if line.startswith("| 0")]
    assert row.count("|") == 7
    assert "<img src=x> **a** _b_ [b](c) @me | d" in html.unescape(row)
    told = block[: block.index("\n`````\n")].splitlines()[-len(fences) :]
    assert [line.strip() for line in told] == list(fences)


def test_a_summary_is_never_longer_than_github_takes() -> None:
    lines = tuple("<" * 1000 for _ in range(300))
    big = [
        job(number, overrides=("<" * 3000,), message="&" * 300, explanation=lines)
        for number in range(2000)
    ]
    for limit in (0, 20_000, SUMMARY_BYTES):
        text = summary(sweep(*big), limit)
        assert len(text.encode()) <= limit
    assert text.endswith("\nMore is in the log.\n```\n")
    # jobs that succeeded need no row
    text = summary(sweep(*(job(number, "succeeded") for number in range(30)), job(30)))
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == 2


# JUnit XML


# The rules of the schemas that CI systems go by, as far as they agree: junit-10.xsd of Jenkins'
# xUnit plugin and JUnit.xsd of Apache Ant (windyroad/JUnit-Schema). What only one of them allows is
# no part of this.
ORDER = {
    "testsuites": ["testsuite*"],
    "testsuite": ["properties", "testcase*", "system-out", "system-err"],
    "properties": ["property*"],
    "testcase": ["(skipped|error|failure)?"],
}
WHOLE, SECONDS = r"\d{1,9}", r"\d{1,3}(\d{3})*(\.\d*)?|\d*\.\d+"
# a token: no blank at the ends, none after another
TOKEN = r"\S+( \S+)*"
WHY = {"type": r".+", "message": r"[^\n]*"}
REQUIRED = {
    "testsuites": {},
    "testsuite": {
        "name": TOKEN,
        "package": TOKEN,
        "id": WHOLE,
        "hostname": TOKEN,
        "timestamp": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d",
        "tests": WHOLE,
        "failures": WHOLE,
        "errors": WHOLE,
        "skipped": WHOLE,
        "time": SECONDS,
    },
    "property": {"name": TOKEN, "value": r"[^\n]*"},
    "testcase": {"name": TOKEN, "classname": TOKEN, "time": SECONDS},
    "skipped": WHY,
    "error": WHY,
    "failure": WHY,
}
WITH_TEXT = {"skipped", "error", "failure", "system-out", "system-err"}


def wrong(element: ET.Element) -> Iterator[str]:
    """What an element and all below it have against the rules."""
    rules = REQUIRED.get(element.tag, {})
    if set(element.attrib) != set(rules):
        yield f"{element.tag}: attributes {sorted(element.attrib)}"
    for name, pattern in rules.items():
        if not re.fullmatch(pattern, element.get(name, ""), re.DOTALL):
            yield f"{element.tag}: {name}={element.get(name)!r}"
    children = "".join(f"{child.tag} " for child in element)
    order = [re.sub(r"([\w-]+|\(.*\))", r"(?:\1 )", each) for each in ORDER.get(element.tag, [])]
    if not re.fullmatch("".join(order), children):
        yield f"{element.tag}: children {children}"
    if (element.text or "").strip() and element.tag not in WITH_TEXT:
        yield f"{element.tag}: text {element.text!r}"
    for child in element:
        yield from wrong(child)


def parsed(report: Report, **options: Any) -> ET.Element:
    text = render_junit(report, **options)
    root = ET.fromstring(text.encode())
    assert not list(wrong(root))
    for suite in root:
        tests = suite.findall("testcase")
        for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(count, "")) == len(suite.findall(f"testcase/{tag}"))
        assert int(suite.get("tests", "")) == len(tests) == 1
    return root


FAILED = Case(
    name="+exp=resnet params.lr=0.1",
    outcome="failed",
    state="failed",
    kind="Raised",
    message="rank 1: raised ValueError: no",
    exit_code=3,
    seconds=1234.5678,
    started="2024-05-01T12:10:00.000512Z",
    hostname="node-1",
    logs_in="attempt_0",
    overrides=("+exp=resnet", "params.lr=0.1"),
    plan_hash="ab12",
    run_id="night-1",
    attempts=2,
    explanation=("Root cause: rank 1", "  Why (likely): A bug."),
    place=CodeLine("train.py", 12),
    logs=(
        Log("stdout", "attempt_0/1/stdout.log", ("epoch 1", "epoch 2"), cut=True),
        Log("stderr", "attempt_0/1/stderr.log", ("warning", "Traceback", "ValueError: no")),
    ),
)


def test_a_failed_run_is_a_test_case_with_its_root_cause_and_its_logs() -> None:
    (suite,) = parsed(Report("run", "out", (FAILED,), exit_code=3))
    (test,) = suite.iter("testcase")
    assert test.attrib == {
        "name": "+exp=resnet params.lr=0.1",
        "classname": "lllaunch",
        "time": "1234.568",
    }
    assert (suite.get("timestamp"), suite.get("hostname")) == ("2024-05-01T12:10:00", "node-1")
    (failure,) = test
    assert failure.tag == "failure"
    assert failure.attrib == {"type": "Raised", "message": "rank 1: raised ValueError: no"}
    assert failure.text == "Root cause: rank 1\n  Why (likely): A bug.\n"
    found = {each.get("name"): each.get("value") for each in suite.iter("property")}
    assert found == {
        "state": "failed",
        "exit_code": "3",
        "plan_hash": "ab12",
        "overrides": "+exp=resnet params.lr=0.1",
        "attempts": "2",
        "run_id": "night-1",
        "directory": ".",
        "file": "train.py:12",
    }
    assert suite.findtext("system-out") == (
        "The last lines of attempt_0/1/stdout.log:\nepoch 1\nepoch 2\n"
    )
    assert (suite.findtext("system-err") or "").startswith(
        "All of attempt_0/1/stderr.log:\nwarning"
    )


def test_each_job_is_a_test_case_of_its_kind_with_a_name_of_its_own() -> None:
    ends = [
        ("succeeded", "x=1"),
        ("failed", "x=1"),
        ("skipped", "x"),
        ("error", "x=<2>]]>&amp;"),
        ("failed", "x (job 2)"),
    ]
    jobs = [replace(job(number, end), name=name) for number, (end, name) in enumerate(ends)]
    root = parsed(sweep(*jobs, started="2024-05-01T12:10:00Z"), name="nightly")
    tests = list(root.iter("testcase"))
    assert ["".join(child.tag for child in test) for test in tests] == [
        *("", "failure", "skipped", "error", "failure")
    ]
    names = [test.get("name") for test in tests]
    assert names == ["x=1", "x=1 (job 1)", "x", "x=<2>]]>&amp;", "x (job 2)"]
    assert {test.get("classname") for test in tests} == {"nightly"}
    assert [suite.get("name") for suite in root] == [f"nightly.job_{number}" for number in range(5)]
    assert {suite.get("timestamp") for suite in root} == {"2024-05-01T12:10:00"}


ANY_TEXT = st.text(max_size=20) | st.sampled_from(
    ["]]>", "\x00", "\x1b[31m\x7f", "\ud9ab", "\ufffe", "&#0;", "<a>&amp;", "<!--", "é\r\n", "  "]
)
LOGS = st.builds(
    Log, st.sampled_from(["stdout", "stderr"]), ANY_TEXT, st.tuples(ANY_TEXT, ANY_TEXT)
)
CASES = st.builds(
    Case,
    name=ANY_TEXT,
    outcome=st.sampled_from(["succeeded", "failed", "error", "skipped"]),
    job=st.none() | st.integers(0, 9),
    kind=ANY_TEXT,
    message=ANY_TEXT,
    seconds=st.none() | st.floats(0, 1e9),
    started=st.sampled_from(["", "2024-05-01T12:10:00.000512Z"]),
    hostname=ANY_TEXT,
    overrides=st.tuples(ANY_TEXT),
    explanation=st.tuples(ANY_TEXT),
    logs=st.tuples(LOGS, LOGS),
)


@settings(deadline=None)
@given(st.lists(CASES, min_size=1, max_size=4), ANY_TEXT)
def test_any_report_is_valid_and_the_same_every_time(made: list[Case], name: str) -> None:
    report = Report("sweep", name, tuple(made), version=name)
    parsed(report, name=name)
    assert render_junit(report, name) == render_junit(report, name)


def test_of_a_recursion_one_round_is_shown() -> None:
    call = '  File "/home/{0}.py", line {1}, in {2}\n    {2}()\n'.format
    rounds = call("train", 5, "walk") + call("tree", 9, "child")
    text = f"Traceback (most recent call last):\n{call('train', 1, 'main')}{rounds * 300}"
    lines = folded(f"{text}{call('train', 5, 'walk')}RecursionError: too deep")
    assert [line.strip() for line in lines if "()" not in line] == [
        "Traceback (most recent call last):",
        'File "/home/train.py", line 1, in main',
        'File "/home/train.py", line 5, in walk',
        'File "/home/tree.py", line 9, in child',
        "... walk → child 299 more times",
        'File "/home/train.py", line 5, in walk',
        "RecursionError: too deep",
    ]
