"""Parts of what ``show`` tells of a run: how far it is, what it used, what each rank does. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lllaunch.console.table import GAP, Row, Table, aligned
from lllaunch.console.wording import (
    StyledText,
    capitalised,
    counted,
    progress_text,
    ranks,
    short_step,
    shown_path,
    step_text,
)
from lllaunch.documents import Fields
from lllaunch.text import count, duration, size, spans

if TYPE_CHECKING:
    from lllaunch.results.peaks import Peak
    from lllaunch.run.outcome import Excerpt
    from lllaunch.watchdog.progress import Progress

_MOST_RANKS = 24


def heading(text: str) -> Row:
    """Return the title of a part."""
    return (StyledText(text, "title"),)


def progress_by_rank(sample: Mapping[str, Any]) -> dict[int, Progress]:
    """Return how far each rank is that shows it.

    Args:
        sample: as `lllaunch.run.samples.last_sample` returns it.
    """
    from lllaunch.results.store import progress_of  # noqa: PLC0415 - of live runs only

    found = {
        rank: progress_of({**sample, "ranks": {rank: worker.document}}, None)
        for rank, worker in _workers(sample).items()
    }
    return {rank: each for rank, each in found.items() if each is not None}


def _workers(sample: Mapping[str, Any]) -> dict[int, Fields]:
    of_ranks = Fields(sample).inner("ranks")
    return {
        int(name): of_ranks.inner(name)
        for name in of_ranks.document
        if name.isascii() and name.isdecimal()
    }


def progress_of_ranks(known: Mapping[int, Progress]) -> str:
    """Return how far the ranks are: ``step 12 of 12 (100 %), loss 0.3; rank 1 is at step 9``.

    Args:
        known: how far, by rank; of those that show it.
    """
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
    """Return the most that a run used of each thing.

    Args:
        peaks: the most of each.
        gpu_use: for what share of the time GPUs were in use, None where that is not known.
        attempts: how many the run had.
    """
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


def rank_rows(sample: Mapping[str, Any]) -> list[Row]:
    """Return what each rank does, as the newest sample has it.

    Args:
        sample: as `lllaunch.run.samples.last_sample` returns it.
    """
    known = _workers(sample)
    shown = sorted(known)[:_MOST_RANKS]
    workers = [known[rank] for rank in shown]
    table = Table()
    table.add("rank", [str(rank) for rank in shown], right=True)
    table.add("step", [_step(worker) for worker in workers], right=True)
    table.add("steps/s", [_number(worker, "rate") for worker in workers], right=True)
    table.add("left", [_duration(worker, "eta") for worker in workers], right=True)
    table.add("same for", [_duration(worker, "idle") for worker in workers], right=True)
    table.add("cores", [_number(worker, "cpu") for worker in workers], right=True)
    table.add("memory", [_size(worker, "rss") for worker in workers], right=True)
    table.add("read/s", [_size(worker, "read") for worker in workers], right=True)
    table.add("written/s", [_size(worker, "written") for worker in workers], right=True)
    table.add("output", [_size(worker, "output") for worker in workers], right=True)
    table.add("GPUs", [", ".join(worker.texts("gpus")) for worker in workers])
    rows = table.rows([""] * len(shown), indent=GAP) if shown else []
    more = len(known) - len(shown)
    if more > 0:
        text = f"{GAP}and {counted(more, 'more rank')}: {spans(set(known) - set(shown))}"
        rows.append((StyledText(text, "faint"),))
    return rows + _gpu_rows(Fields(sample).inner("gpus"))


def _gpu_rows(gpus: Fields) -> list[Row]:
    table = []
    for name in list(gpus.document)[:_MOST_RANKS]:
        use = gpus.inner(name)
        share, power = use.number("use"), use.number("power")
        table.append(
            (
                f"GPU {name}",
                "" if share is None else f"{100 * share:.0f} %",
                _size(use, "memory"),
                "" if power is None else f"{power:.0f} W",
            )
        )
    return [(StyledText(f"{GAP}{line}"),) for line in aligned(table)] if table else []


def _step(worker: Fields) -> str:
    step = worker.number("step")
    return "" if step is None else short_step(step, worker.number("total"))


def _number(worker: Fields, name: str) -> str:
    value = worker.number(name)
    return "" if value is None else count(round(value, 2))


def _duration(worker: Fields, name: str) -> str:
    value = worker.seconds(name)
    return "" if value is None else duration(float(round(value)))


def _size(worker: Fields, name: str) -> str:
    value = worker.number(name)
    return "" if value is None or value < 0 else size(round(value))


def log_rows(logs: Sequence[Excerpt], cwd: str) -> list[Row]:
    """Return the ends of logs.

    Args:
        logs: the logs; those that hold nothing are left out.
        cwd: directory that paths below it are shown relative to.
    """
    rows: list[Row] = []
    for log in logs:
        if not log.lines:
            continue
        what = f"the last {counted(len(log.lines), 'line')}" if log.cut else "all"
        text = f"{GAP}{capitalised(what)} of {shown_path(log.path, cwd)}:"
        rows.append((StyledText(text, "faint"),))
        rows += [(StyledText(f"{GAP}| {line}".rstrip(), "quote"),) for line in log.lines]
    return rows
