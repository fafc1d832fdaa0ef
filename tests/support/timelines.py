"""Lines of events.jsonl and samples.jsonl for tests that have no run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

from lllaunch.results.history import _HANDLED, NodeHistory, decode
from lllaunch.results.view import NodeRecords
from lllaunch.run.directory import decode_sample

START = 1_700_000_000_000_000_000


def event(at: float, kind: str, /, **fields: Any) -> bytes:
    """A line of events.jsonl, so many seconds after the beginning."""
    return json.dumps({"time_ns": START + round(at * 1e9), "type": kind, **fields}).encode()


def sample(seconds: float, ranks: Mapping[str, Any], **fields: Any) -> bytes:
    """A line of samples.jsonl, so many seconds after the beginning."""
    at = START / 1e9 + seconds
    return json.dumps({"time": at, "attempt": 0, "ranks": ranks, **fields}).encode()


def json_lines(documents: Iterable[Any]) -> list[bytes]:
    """Lines of JSON."""
    return [json.dumps(each).encode() for each in documents]


def node_records(
    name: str, events: Iterable[bytes] = (), samples: Iterable[bytes] = (), ahead_ns: int = 0
) -> NodeRecords:
    """What one node has written, as far as it makes sense."""
    history = NodeHistory(name, ahead_ns)
    for line in events:
        if (found := decode(line)) is not None:
            history.take(found)
    seen = [found for line in samples if (found := decode_sample(line)) is not None]
    return history, seen


_KINDS = sorted({*_HANDLED, "Begin", "Unknown"})
_NUMBERS = st.one_of(st.none(), st.integers(-2, 4), st.text(max_size=2), st.integers())
_FINDINGS = st.fixed_dictionaries(
    {"type": st.sampled_from(["Stalled", "Silent", "TimerExpired", "NotFinite", "Nonsense"])},
    optional={
        "ranks": st.lists(st.integers(-1, 3), max_size=3),
        "seconds": st.floats(0, 1e4),
        "after": st.floats(0, 1e4),
        "rank": _NUMBERS,
        "pid": _NUMBERS,
        "signum": _NUMBERS,
        "scope": st.sampled_from(["group", "rank"]),
    },
)
EVENTS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(_KINDS),
        "time_ns": st.one_of(st.integers(START, START + 10**12), st.integers(), st.none()),
    },
    optional={
        "attempt": _NUMBERS,
        "local_rank": _NUMBERS,
        "base_rank": _NUMBERS,
        "exitcode": _NUMBERS,
        "signum": _NUMBERS,
        "restarts": _NUMBERS,
        "ranks": st.one_of(st.none(), st.lists(st.integers(-1, 4), max_size=4)),
        "seconds": st.floats(allow_nan=False),
        "finding": _FINDINGS,
        "ends": st.booleans(),
        "ended": st.fixed_dictionaries({"finding": _FINDINGS}),
        "reason": st.text(max_size=3),
        "state": st.sampled_from(["SUCCEEDED", "FAILED", "x"]),
        "preflight": st.booleans(),
    },
)
"""Events that make sense one by one, and seldom together."""

_VALUES = st.one_of(st.floats(), st.integers(), st.none(), st.sampled_from(["nan", "inf"]))
_RANKS = st.dictionaries(
    st.sampled_from(["0", "1", "x"]),
    st.fixed_dictionaries(
        {},
        optional={
            "cpu": _VALUES,
            "rss": _VALUES,
            "step": _VALUES,
            "metrics": st.dictionaries(st.sampled_from(["loss", "cpu"]), _VALUES),
        },
    ),
)
SAMPLES = st.fixed_dictionaries(
    {"time": st.one_of(_VALUES, st.floats(1.7e9, 1.7001e9)), "attempt": _NUMBERS, "ranks": _RANKS},
    optional={
        "gpus": st.dictionaries(
            st.sampled_from(["0", "MIG-1"]),
            st.fixed_dictionaries({}, optional={"use": _VALUES, "power": _VALUES}),
        )
    },
)
"""The same of samples."""
