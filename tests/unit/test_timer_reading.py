"""Requests as they are read: whatever is written, what is good is found and what is bad is told."""

from __future__ import annotations

import json
import pickle
import select
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.launching import WAIT

from lllaunch.timer import FileTimerRequest
from lllaunch.timer.service import RequestReader, parse

GOOD = {"version": 1, "pid": 7, "scope_id": "a", "expiration_time": 2.5, "signal": 9}
REQUESTS = st.builds(
    FileTimerRequest,
    st.integers(1, 2**31 - 1),
    st.text(st.characters(blacklist_categories=("Cs",)), max_size=30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-100, 64),
)
# Nothing that one could take for the start of a request.
JUNK = st.binary(max_size=40).filter(lambda data: b"\n" not in data and b"{" not in data)


def read(block: bytes) -> tuple[list[FileTimerRequest], list[tuple[bytes, str]]]:
    return RequestReader().feed(block)


def line(**changed: Any) -> bytes:
    return json.dumps(GOOD | changed).encode()


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(REQUESTS | JUNK, max_size=12), st.data())
def test_bad_lines_and_blocks_that_end_anywhere_hurt_no_good_ones(
    lines: list[FileTimerRequest | bytes], data: st.DataObject
) -> None:
    texts = [each if isinstance(each, bytes) else each.to_json().encode() for each in lines]
    text = b"".join(each + b"\n" for each in texts)
    reader = RequestReader()
    requests, told = [], 0
    while text:
        size = data.draw(st.integers(1, len(text)))
        found, wrong = reader.feed(text[:size])
        requests += found
        told += len(wrong)
        text = text[size:]
    assert requests == [each for each in lines if not isinstance(each, bytes)]
    assert told == sum(isinstance(each, bytes) and bool(each.strip()) for each in lines)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_no_bytes_are_too_strange(data: bytes, cuts: list[int]) -> None:
    reader = RequestReader()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        reader.feed(data[start:end])
    requests, _ = reader.feed(b"\n" + line() + b"\n")
    assert requests[-1].scope_id == "a"


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_a_request_is_what_a_json_parser_reads(tail: bytes) -> None:
    """Small changes to a usual line: it is read as a JSON parser reads it, or rejected."""
    text = line()[: len(line()) - len(tail) % 40] + tail
    found = parse(text)
    if isinstance(found, FileTimerRequest):
        fields = json.loads(text)
        assert found.to_json() == json.dumps(
            {"version": 1} | fields | {"expiration_time": float(fields["expiration_time"])}
        )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"hello", "it is not JSON ("),
        (b"[]", "Expected `object`, got `array`"),
        (b"{\xff}", "it is not JSON"),
        (b'{"a":' + b"[" * 3000 + b"}", "it is not JSON ("),
        (line()[:-1], "it is not JSON ("),
        (b"{}", "Object missing required field `pid`"),
        (line(version=2), "Invalid enum value 2 - at `$.version`"),
        (line(pid=0), "Expected `int` >= 1 - at `$.pid`"),
        (line(pid=True), "Expected `int`, got `bool` - at `$.pid`"),
        (line(pid=1.0), "Expected `int`, got `float` - at `$.pid`"),
        (line(pid=2**31), "Expected `int` <= 2147483647 - at `$.pid`"),
        (line(scope_id=3), "Expected `str`, got `int` - at `$.scope_id`"),
        (line(expiration_time=float("nan")), "it is not JSON ("),
        (line(expiration_time=float("-inf")), "it is not JSON ("),
        (line(scope_id="\ud800"), "it is not JSON ("),
        (line().replace(b"2.5", b"1e999"), "Number out of range"),
        (line(expiration_time=10**400), "Number out of range - at `$.expiration_time`"),
        (line(expiration_time=True), "Expected `float`, got `bool`"),
        (line(expiration_time="2.5"), "Expected `float`, got `str`"),
        (line(signal=9.0), "Expected `int`, got `float` - at `$.signal`"),
        (line(signal=65), "Expected `int` <= 64 - at `$.signal`"),
        (line(scope_id="x" * select.PIPE_BUF), f"it is longer than {select.PIPE_BUF} bytes"),
    ],
)
def test_what_is_wrong_is_said(text: bytes, reason: str) -> None:
    requests, ((bad, why),) = read(text + b"\n")
    assert requests == []
    assert bad == text
    assert why.startswith(reason)


def test_the_version_may_be_left_out_and_more_may_be_there() -> None:
    fields = {name: value for name, value in GOOD.items() if name != "version"} | {"more": [1]}
    assert parse(json.dumps(fields).encode()) == FileTimerRequest(7, "a", 2.5, 9)


def test_a_line_without_end_is_reported_once_and_takes_no_room() -> None:
    reader = RequestReader()
    reports = []
    for _ in range(50):
        requests, wrong = reader.feed(b"x" * 1000)
        assert requests == []
        reports += wrong
        assert len(reader._rest) <= 2 * select.PIPE_BUF
    requests, wrong = reader.feed(b"\n" + line() + b"\n")
    reports += wrong
    assert [why for _, why in reports] == [f"it is longer than {select.PIPE_BUF} bytes"]
    assert requests == [FileTimerRequest(7, "a", 2.5, 9)]


def test_requests_are_equal_by_what_they_say_and_can_be_sent() -> None:
    one = FileTimerRequest(3, "a", 2.5, 9)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one != FileTimerRequest(3, "a", 2.5, 10)
    assert one.to_json() == (
        '{"version": 1, "pid": 3, "scope_id": "a", "expiration_time": 2.5, "signal": 9}'
    )


def test_what_a_worker_imports_is_light() -> None:
    code = "import lllaunch.timer, sys; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT)
    heavy = {"torch", "asyncio", "multiprocessing", "inspect", "logging", "json", "re", "typing"}
    assert heavy.isdisjoint(done.stdout.split())
