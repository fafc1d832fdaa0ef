"""What jobs returned, where that is short enough to compare. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lllaunch.console.sweep.cells import cells, plain

_LONGEST = 24


def objective_text(job: Mapping[str, Any]) -> str:
    """Returns what a job returned; an empty string if that is nothing, or long.

    Args:
        job: of sweep.json.
    """
    value = job.get("return_value")
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = plain(text)
    return text if cells(text) <= _LONGEST else ""


def has_objective(jobs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some job returned something short."""
    return any(map(objective_text, jobs))


def extremes(
    jobs: Sequence[Mapping[str, Any]],
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Returns the jobs with the smallest and the largest number; None if there is one at most."""
    found = [job for job in jobs if job["state"] == "succeeded" and _is_number(job)]
    if not found:
        return None
    least = min(found, key=_value)
    most = max(found, key=_value)
    return None if least["return_value"] == most["return_value"] else (least, most)


def _is_number(job: Mapping[str, Any]) -> bool:
    value = job.get("return_value")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, int) or math.isfinite(value)


def _value(job: Mapping[str, Any]) -> float:
    value: float = job["return_value"]
    return value
