"""The most that a run used: memory, CPU, I/O and GPUs. Pure, from its timeline and its outcome."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lllaunch.results.timeline import RunTimeline, Series
    from lllaunch.run.result import RunResult


@dataclass(frozen=True)
class Peak:
    """The most that was seen of something."""

    name: str
    value: float  # how much, in the unit of the series
    of: str
    attempt: int
    time_ns: int | None = None
    # the most of all ranks, or GPUs, at one moment; None where that says nothing
    together: float | None = None


_NAMES = ("rss", "cpu", "read", "written", "gpu_use", "gpu_memory", "gpu_power")


def peaks_of(run: RunTimeline, outcome: RunResult | None = None) -> tuple[Peak, ...]:
    """Return the most that a run used of each thing that was measured.

    ``outcome``: what became of it, None if that is not known. The kernel tells what memory each
    worker needed at most, which samples may have missed; but not with its children.
    """
    by_name: dict[str, list[Series]] = defaultdict(list)
    for series in run.series:
        if not series.metric and series.points:
            by_name[series.name].append(series)
    found = {name: _peak(by_name[name]) for name in _NAMES if by_name[name]}
    if outcome is not None:
        needed = _memory(outcome, found.get("rss"))
        if needed is not None:
            found = {"rss": needed, **{name: found[name] for name in found if name != "rss"}}
    return tuple(found.values())


def _peak(series: Sequence[Series]) -> Peak:
    best = max(series, key=lambda each: max(value for _, value in each.points))
    at, value = max(best.points, key=lambda point: point[1])
    sums: dict[tuple[int, str, int], float] = defaultdict(float)
    for each in series:
        for time_ns, part in each.points:
            sums[each.attempt, each.node, time_ns] += part
    several = len({each.of for each in series}) > 1 and best.name != "gpu_use"
    together = max(sums.values()) if several else None
    return Peak(best.name, value, best.of, best.attempt, at, together)


def _memory(outcome: RunResult, sampled: Peak | None) -> Peak | None:
    told = [
        (worker.max_rss, worker.rank, attempt.number)
        for attempt in outcome.attempts
        for worker in attempt.workers
    ]
    most, rank, attempt = max(told, default=(0, 0, 0))
    if not most or (sampled is not None and sampled.value >= most):
        return sampled
    together = None if sampled is None else sampled.together
    return Peak("rss", most, str(rank), attempt, None, together)


def mean_use(series: Iterable[Series]) -> float | None:
    """Return the share of the time for which GPUs were in use; None if nothing was measured."""
    values = [
        value
        for each in series
        if each.name == "gpu_use" and not each.metric
        for _, value in each.points
    ]
    return sum(values) / len(values) if values else None
