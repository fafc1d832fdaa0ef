"""The rules of the trace event format."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def ruled(text: str) -> list[dict[str, Any]]:
    """What happens in a trace, whose file keeps the rules of the format."""
    document = json.loads(text, parse_constant=refuse)
    assert set(document) == {"displayTimeUnit", "otherData", "traceEvents"}
    named: dict[str, list[tuple[int, int]]] = defaultdict(list)
    timed = []
    for each in document["traceEvents"]:
        assert isinstance(each["pid"], int)
        assert isinstance(each["tid"], int)
        if each["ph"] == "M":
            assert not timed
            named[each["name"]].append((each["pid"], each["tid"]))
        else:
            assert each["ph"] in {"X", "i", "C"}
            timed.append(each)
    processes = [pid for pid, _ in named["process_name"]]
    threads = named["thread_name"]
    numbers = [*processes, *(tid for _, tid in threads)]
    assert len(numbers) == len(set(numbers))
    assert 0 not in numbers
    assert [each["ts"] for each in timed] == sorted(each["ts"] for each in timed)
    lines = defaultdict(list)
    for each in timed:
        assert isinstance(each["ts"], int)
        assert each["ts"] >= 0
        assert each["name"]
        if each["ph"] == "C":
            assert each["pid"] in processes
            assert each["args"]
            assert all(isinstance(value, (int, float)) for value in each["args"].values())
        else:
            assert (each["pid"], each["tid"]) in threads
        if each["ph"] == "X":
            lines[each["pid"], each["tid"]].append((each["ts"], each["ts"] + each["dur"]))
    for spans in lines.values():
        check_nesting(spans)
    return timed


def check_nesting(spans: list[tuple[int, int]]) -> None:
    around: list[tuple[int, int]] = []
    for begin, end in spans:
        assert begin <= end
        while around and around[-1][1] <= begin:
            around.pop()
        assert not around or end <= around[-1][1]
        around.append((begin, end))
