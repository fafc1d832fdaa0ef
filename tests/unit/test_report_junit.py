"""JUnit XML: valid by both schemas in use, for whatever a worker or a config holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lllaunch.results.cases import Case, CodeLine, Log, Report
from lllaunch.results.junit import _names, render_junit

# The rules of the schemas that CI systems go by, as far as they agree: junit-10.xsd of Jenkins'
# xUnit plugin and JUnit.xsd of Apache Ant (windyroad/JUnit-Schema). What only one of them allows is
# no part of this.
ORDER = {
    "testsuites": ["testsuite*"],
    "testsuite": ["properties", "testcase*", "system-out", "system-err"],
    "properties": ["property*"],
    "property": [],
    "testcase": ["(skipped|error|failure)?"],
    "skipped": [],
    "error": [],
    "failure": [],
    "system-out": [],
    "system-err": [],
}
WHOLE, SECONDS = r"\d{1,9}", r"\d{1,3}(\d{3})*(\.\d*)?|\d*\.\d+"
# a token: no blank at the ends, none after another
TOKEN = r"\S+( \S+)*"
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
    "skipped": {"type": r".+", "message": r"[^\n]*"},
    "error": {"type": r".+", "message": r"[^\n]*"},
    "failure": {"type": r".+", "message": r"[^\n]*"},
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
    order = [re.sub(r"([\w-]+|\(.*\))", r"(?:\1 )", each) for each in ORDER[element.tag]]
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
    explanation=("Why (likely): A bug.",),
    traceback=("Traceback (most recent call last):", "ValueError: no"),
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
    assert failure.text == (
        "rank 1: raised ValueError: no\nWhy (likely): A bug.\n\n"
        "Traceback (most recent call last):\nValueError: no\n\n"
        "All of attempt_0/1/stderr.log:\nwarning\nTraceback\nValueError: no\n"
    )
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


def job(number: int, outcome: Any, name: str = "", **more: Any) -> Case:
    return Case(name or f"x={number}", outcome, job=number, kind="K", message="M", **more)


def test_each_job_is_a_test_case_of_its_kind() -> None:
    cases = (
        Case("x=0", "succeeded", job=0, seconds=0.5),
        job(1, "failed"),
        job(2, "error"),
        job(3, "skipped"),
    )
    root = parsed(Report("sweep", "s", cases, started="2024-05-01T12:10:00Z"), name="nightly")
    names = [(test.get("classname"), test.get("name")) for test in root.iter("testcase")]
    assert names == [("nightly", f"x={number}") for number in range(4)]
    assert [suite.get("name") for suite in root] == [f"nightly.job_{number}" for number in range(4)]
    inside = [[child.tag for child in test] for test in root.iter("testcase")]
    assert inside == [[], ["failure"], ["error"], ["skipped"]]
    assert {suite.get("timestamp") for suite in root} == {"2024-05-01T12:10:00"}


def test_jobs_of_the_same_overrides_have_names_of_their_own() -> None:
    cases = (job(0, "failed", "x=1"), job(1, "failed", "x=1"), job(2, "failed", "x=2"))
    root = parsed(Report("sweep", "s", cases))
    assert [each.get("name") for each in root.iter("testcase")] == ["x=1", "x=1 (job 1)", "x=2"]


def test_names_stay_apart_whatever_they_are() -> None:
    cases = (job(0, "failed", "x (job 2)"), job(1, "failed", "x"), job(2, "failed", "x"))
    root = parsed(Report("sweep", "s", cases))
    names = [each.get("name") for each in root.iter("testcase")]
    assert names[:2] == ["x (job 2)", "x"]
    assert len(set(names)) == 3


def test_each_name_is_not_compared_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    class Compared(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    monkeypatch.setattr("lllaunch.results.junit._one_line", Compared)
    count = 500
    _names(Report("sweep", "s", tuple(job(number, "failed") for number in range(count))))
    assert compared < count


def test_what_is_not_known_has_a_place_all_the_same() -> None:
    (suite,) = parsed(Report("run", "", (Case("", "error"),)), name=" ")
    assert suite.get("hostname") == "localhost"
    assert suite.get("timestamp") == "1970-01-01T00:00:00"
    assert suite.find("testcase").attrib == {  # type: ignore[union-attr]
        "name": "case 0",
        "classname": "lllaunch",
        "time": "0.000",
    }


@pytest.mark.parametrize(
    "hostile", ["]]>", "<a>&amp;", "\x00\x1b[31m\x7f", "\ud800", "\ufffe", "é\r\n"]
)
def test_hostile_text_stands_in_it_as_text(hostile: str) -> None:
    log = Log("stderr", hostile, (hostile,))
    case = Case(
        *(hostile, "failed", 0, hostile, hostile, hostile, 3),
        hostname=hostile,
        started=hostile,
        directory=hostile,
        overrides=(hostile,),
        explanation=(hostile,),
        traceback=(hostile, hostile),
        logs=(log,),
    )
    (suite,) = parsed(Report("sweep", hostile, (case,), version=hostile), name=hostile)
    if hostile in {"]]>", "<a>&amp;"}:
        assert suite.find("testcase").get("name") == hostile  # type: ignore[union-attr]
        assert hostile in (suite.findtext("testcase/failure") or "")


TEXT = st.text(max_size=20) | st.sampled_from(["]]>", "\x00", "\ud9ab", "&#0;", "<!--", "  "])
LOGS = st.builds(Log, st.sampled_from(["stdout", "stderr"]), TEXT, st.tuples(TEXT, TEXT))
CASES = st.builds(
    Case,
    name=TEXT,
    outcome=st.sampled_from(["succeeded", "failed", "error", "skipped"]),
    job=st.none() | st.integers(0, 9),
    kind=TEXT,
    message=TEXT,
    seconds=st.none() | st.floats(0, 1e9),
    started=TEXT | st.just("2024-05-01T12:10:00.000512Z"),
    hostname=TEXT,
    overrides=st.tuples(TEXT),
    explanation=st.tuples(TEXT),
    traceback=st.tuples(TEXT),
    logs=st.tuples(LOGS, LOGS),
)


@settings(deadline=None)
@given(st.lists(CASES, min_size=1, max_size=4), TEXT)
def test_any_report_is_valid_and_the_same_every_time(cases: list[Case], name: str) -> None:
    report = Report("sweep", name, tuple(cases), version=name)
    parsed(report, name=name)
    assert render_junit(report, name) == render_junit(report, name)


def test_the_rules_find_what_is_wrong() -> None:
    good = render_junit(Report("run", "out", (FAILED,)))
    for old, new in (
        ('type="Raised" ', ""),
        ("<properties>", "<properties>text"),
        ('time="1234.568"', 'time="1,2s"'),
        ("<system-err>", "<system-out/><system-err>"),
        ('timestamp="2024-05-01T12:10:00"', 'timestamp="2024-05-01T12:10:00Z"'),
        ("</failure>", "</failure><skipped type='a' message='b'/>"),
    ):
        assert old in good
        assert list(wrong(ET.fromstring(good.replace(old, new))))
