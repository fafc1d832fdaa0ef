"""Parts of what ``show`` tells of a run: how far it is, what it used, what each rank does. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lllaunch.console.table import GAP, Row, aligned
from lllaunch.text import size
from lllaunch.words import (
    StyledText,
    capitalised,
    counted,
    progress_text,
    ranks,
    shown_path,
    step_text,
)

if TYPE_CHECKING:
    from lllaunch.results.peaks import Peak
    from lllaunch.run.result import Excerpt, Reached
    from lllaunch.watchdog.progress import Progress


def heading(text: str) -> Row:
    """Return the title of a part."""
    return (StyledText(text, "title"),)


def progress_of_ranks(known: Mapping[int, Progress | Reached]) -> str:
    """Return how far the ranks are: ``step 12 of 12 (100 %), loss 0.3; rank 1 is at step 9``."""
    if not known:
        return ""
    furthest = max(known, key=lambda rank: (known[rank].step, -rank))
    text = progress_text(known[furthest])
    least = min(each.step for each in known.values())
    slowest = [rank for rank, each in known.items() if each.step == least]
    if least == known[furthest].step:
        return text
    verb = "is" if len(slowest) == 1 else "are"
    return f"{text}; {ranks(slowest)} {verb} at {step_text(least, known[slowest[0]].total)}"


_PEAKS: dict[str, tuple[str, Callable[[float], str]]] = {
    "rss": ("memory", lambda value: size(round(value))),
    "cpu": ("CPU", lambda value: f"{value:.3g} {'core' if f'{value:.3g}' == '1' else 'cores'}"),
    "read": ("read", lambda value: f"{size(round(value))}/s"),
    "written": ("written", lambda value: f"{size(round(value))}/s"),
    "gpu_use": ("GPU use", lambda value: f"{100 * value:.0f} %"),
    "gpu_memory": ("GPU memory", lambda value: size(round(value))),
    "gpu_power": ("GPU power", lambda value: f"{value:.0f} W"),
}


def peak_rows(peaks: Sequence[Peak], gpu_use: float | None, *, attempts: int) -> list[Row]:
    """Return the most that a run used of each thing."""
    table = []
    for peak in peaks:
        name, shown = _PEAKS[peak.name]
        of_gpu = peak.name.startswith("gpu_")
        of = f"GPU {peak.of}" if of_gpu else f"rank {peak.of}"
        where = f"{of} in attempt {peak.attempt}" if attempts > 1 else of
        more = []
        if peak.together is not None and peak.together > peak.value:
            all_of = "all GPUs" if of_gpu else "all ranks"
            more.append(f"{shown(peak.together)} of {all_of} together")
        if peak.name == "gpu_use" and gpu_use is not None:
            more.append(f"{100 * gpu_use:.0f} % on average")
        table.append((name, shown(peak.value), where, ", ".join(more)))
    return [(StyledText(f"{GAP}{line}"),) for line in aligned(table)] if table else []


def log_rows(logs: Sequence[Excerpt], cwd: str) -> list[Row]:
    """Return the ends of logs."""
    rows: list[Row] = []
    for log in logs:
        if not log.lines:
            continue
        what = f"the last {counted(len(log.lines), 'line')}" if log.cut else "all"
        text = f"{GAP}{capitalised(what)} of {shown_path(log.path, cwd)}:"
        rows.append((StyledText(text, "faint"),))
        rows += [(StyledText(f"{GAP}| {line}".rstrip(), "quote"),) for line in log.lines]
    return rows
