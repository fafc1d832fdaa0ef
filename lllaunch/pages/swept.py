"""What the jobs of a sweep differ in: parameters, read from their overrides. Pure.

Nothing is composed for it: an override that a job does not have is a value that nobody knows here.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# A number as YAML and Hydra have it; no NaN, no infinity.
_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?", re.ASCII)
_QUOTED = re.compile(r"""(['"])((?:(?!\1)[^\\]|\\.)*)\1""", re.DOTALL)


@dataclass(frozen=True)
class SweptParameter:
    """A key whose value differs between jobs."""

    key: str  # whole, without ``+`` and ``~``
    name: str  # its last part, where that is enough to tell it from others
    # of each job, as it is shown; None where the job does not have it
    values: tuple[str | None, ...]
    # the same as numbers, None where there is none; empty if some value is no number
    numbers: tuple[float | None, ...] = ()


def spans_decades(numbers: Sequence[float | None], least: float = 50.0) -> bool:
    """Return whether the largest number is so many times the smallest; None is ignored."""
    known = [number for number in numbers if number is not None]
    return bool(known) and min(known) > 0 and max(known) / min(known) >= least


def swept_parameters(overrides: Sequence[Sequence[str]]) -> tuple[SweptParameter, ...]:
    """Return what jobs differ in, by the overrides of each, in the order of their first use."""
    jobs = [_values_of(each) for each in overrides]
    keys = dict.fromkeys(key for job in jobs for key in job)
    found = {key: tuple(job.get(key) for job in jobs) for key in keys}
    swept = {key: values for key, values in found.items() if len({*values}) > 1}
    often = Counter(map(_last, swept))
    return tuple(
        SweptParameter(
            key,
            _last(key) if often[_last(key)] == 1 else key,
            tuple(None if value is None else _unquoted(value) for value in values),
            _numbers(values),
        )
        for key, values in swept.items()
    )


def _values_of(overrides: Sequence[str]) -> dict[str, str]:
    """Return the values of overrides as they stand there, by key; the last one of a key counts."""
    found: dict[str, str] = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        name = key.lstrip("+~")
        if key.startswith("~") and name:
            found[name] = "(removed)"
        elif name:
            found[name] = value if equals else ""
    return found


def _last(key: str) -> str:
    return re.split(r"[./]", key.partition("@")[0])[-1] or key


def _unquoted(value: str) -> str:
    """Return a value without quotes around all of it; ``''`` is written as it is."""
    match = _QUOTED.fullmatch(value)
    if match is None or not match[2]:
        return value
    if match[1] == "'":
        return match[2].replace("\\'", "'")
    try:
        return str(json.loads(value))
    except ValueError:
        return match[2]


def _numbers(values: Sequence[str | None]) -> tuple[float | None, ...]:
    """Return values as numbers; nothing if there is one that is none, or that is quoted."""
    if not all(value is None or _NUMBER.fullmatch(value) for value in values):
        return ()
    try:
        found = tuple(None if value is None else float(value) for value in values)
    except ValueError:  # 1__0
        return ()
    return found if all(value is None or math.isfinite(value) for value in found) else ()
