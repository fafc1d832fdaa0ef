"""``python -m lllaunch show RUN``: what became of a run, when, and what it was."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lllaunch.console.report import failure_text, fate_text, report_lines
from lllaunch.console.stream import encodable
from lllaunch.console.table import GAP, Row, aligned, padded
from lllaunch.console.views import (
    DRAWN,
    Setting,
    log_rows,
    peak_rows,
    progress_of_ranks,
    summary_rows,
    table_rows,
    timeline_rows,
)
from lllaunch.documents import Plain
from lllaunch.locks import holder
from lllaunch.results.live import LiveReader
from lllaunch.results.locate import locate
from lllaunch.results.store import NO_ANSWER, BatchQueue, ListEntry, lock_of, plain, sample_of
from lllaunch.results.sweeps import SweepView, view_sweep
from lllaunch.results.view import Log, RunView, node_state, view_run
from lllaunch.run.directory import PLAN, plain_sample
from lllaunch.run.repository import Host
from lllaunch.run.result import Reached, plain_result
from lllaunch.run.submission import LOG
from lllaunch.text import duration, size
from lllaunch.verbs.printing import Parser, columns, perform, print_json, print_rows
from lllaunch.words import (
    MEANINGS,
    StyledText,
    commit_text,
    counted,
    jobs_text,
    shown_path,
    step_text,
    time_left,
    versions_text,
)
from lllaunch.workers.terminal import cells

if TYPE_CHECKING:
    from lllaunch.results.live import LiveView
    from lllaunch.results.store import BatchFacts
    from lllaunch.run.result import AttemptResult, RunResult

_DESCRIPTION = """\
Show a run or a sweep from its files: result, timeline, workers, logs and plan. For a live run,
show its progress and what each rank does."""
# Where there is no terminal.
_COLUMNS = 100
_LOG_LINES = 10
_MOST_RANKS = 24
# The link to the last attempt.
_LAST_ATTEMPT = "latest"
_STACK_LINES = 40
_LONGEST_VALUE = 200  # characters
_MOST_VALUES = 16


def show(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("show", _DESCRIPTION)
    parser.add_run()
    parser.add_argument("--json", action="store_true", help="print an object")
    return perform(parser, argv, _show)


def _show(given: argparse.Namespace) -> None:
    found, cwd = locate(given.run), os.getcwd()
    found = found._replace(path=os.path.abspath(found.path))
    if found.kind == "sweep":
        _show_sweep(view_sweep(found.path), cwd, as_json=given.json)
        return
    run = view_run(found, queue=BatchQueue())
    if given.json:
        print_json(_json(run))
        return
    ascii_only = encodable(DRAWN, sys.stdout) != DRAWN
    print_rows(run_rows(run, cwd, columns() or _COLUMNS, ascii_only=ascii_only))


def _json(run: RunView) -> dict[str, Any]:
    entry, result = run.entry, run.result
    sample = sample_of(entry.path) if entry.state == "running" else None
    return {
        "submission": None,
        **plain(entry, entry.path),
        "plan_hash": None if result is None else result.plan_hash or None,
        "build": None if result is None else Plain()(result.build),
        "plan": run.plan,
        "result": None if result is None else plain_result(result),
        "sample": None if sample is None else plain_sample(sample),
    }


# A run


def _logs(run: RunView) -> Iterator[Log]:
    """Yield the ends of what the worker wrote that tells most; the report may have its stderr."""
    told = run.root is not None and (run.root.traceback or run.outcome != run.result)
    for _, worker in run.telling()[:1]:
        for log in run.logs_of(worker, _LOG_LINES):
            if not (told and log.stream == "stderr"):
                yield log._replace(path=os.path.join(run.path, log.path))


def _quoted(lines: Iterable[str], style: str = "") -> list[Row]:
    return [(StyledText(f"{GAP}{line}".rstrip(), style),) for line in lines]


def _titled(title: str, rows: Sequence[Row]) -> list[Row]:
    return [(StyledText(f"{title}:", "title"),), *rows] if rows else []


def run_rows(run: RunView, cwd: str, width: int, *, ascii_only: bool = False) -> list[Row]:
    """Return what is shown of a run: first what became of it, then when, then what it was."""
    outcome, timeline = run.outcome, run.timeline
    now = LiveReader().run(run.path) if run.entry.state == "running" else None
    if outcome is not None:
        rows: list[Row] = [(line,) for line in report_lines(outcome, cwd)]
    else:
        rows = [*_without_outcome(run.entry, cwd)]
    facts = [*_head(run.entry, cwd), ("progress", _progress(run, now))]
    facts += [] if run.entry.batch is None else _of_batch(run.entry, run.entry.batch)
    bars = timeline_rows(timeline, width, ascii_only=ascii_only)
    shown = () if now is None else now.rows[:_MOST_RANKS]
    ranks = table_rows(now, shown, width - len(GAP), cwd) if now and shown else []
    if now is not None and len(now.rows) > len(shown):
        more = counted(len(now.rows) - len(shown), "more rank")
        ranks.append((StyledText(f"and {more}; python -m lllaunch top shows them", "faint"),))
    attempts = len({attempt.number for attempt in timeline.attempts})
    parts = [
        _facts(facts),
        _titled(f"In time (from {_local(timeline.start_ns)})", bars) if bars else [],
        _titled("Now", [(StyledText(GAP), *row) for row in ranks]),
        _titled("The most that was used", peak_rows(timeline.series, attempts=attempts)),
    ]
    if outcome is not None:
        terminal = columns() or None
        parts.append(_nodes(outcome, cwd, terminal))
        parts += [_attempt(attempt, cwd, terminal) for attempt in outcome.attempts]
        parts.append(_values(outcome, cwd))
    # the report may tell where all ranks stood when somebody looked
    looked = run.result is not None and run.result.look is not None
    if run.stacks and not looked and (run.root is None or run.root.hang is None):
        path = shown_path(os.path.join(run.path, run.stacks[0].path), cwd)
        lines = run.stacks[0].lines[:_STACK_LINES]
        parts.append(_titled(f"Where all ranks stood ({path})", _quoted(lines, "quote")))
    parts.append(_titled("Ends of logs", log_rows(_logs(run), cwd)))
    parts.append(_titled(PLAN, _quoted((run.plan or "").splitlines())))
    parts.append([] if run.result is None else _facts([*_origin(run.result)]))
    for part in parts:
        rows += [(), *part] if part else []
    return rows


def _progress(run: RunView, now: LiveView | None) -> str:
    """Return how far the ranks of the last attempt are, or were."""
    known = {
        row.number: Reached(row.step, row.total, metrics=row.metrics)
        for row in (() if now is None else now.rows)
        if row.number is not None and row.step is not None
    }
    for attempt in run.attempts[-1:]:
        known = {each.rank: each.progress for each in attempt.workers if each.progress is not None}
    return progress_of_ranks(known)


def _of_batch(entry: ListEntry, batch: BatchFacts) -> Iterator[tuple[str, str]]:
    state = f": {entry.queue}" if entry.queue else ""
    yield "batch job", (entry.batch_job or "id unknown") + state
    yield "nodes", ", ".join(batch.nodes)
    submitted = _local(batch.submitted_ns) if batch.submitted_ns else "at an unknown time"
    ran = f", ran for {duration(batch.ran)}" if batch.starts else ""
    yield "submitted", f"{submitted}; waited for {duration(batch.waited)}{ran}"
    yield "starts", batch.text
    yield "not put back", batch.reason


def _facts(facts: Sequence[tuple[str, str]]) -> list[Row]:
    told = [(name, text) for name, text in facts if text]
    width = max((cells(name) for name, _ in told), default=0)
    return [
        (StyledText(padded(name, width), "faint"), StyledText(f"{GAP}{text}"))
        for name, text in told
    ]


def _head(entry: ListEntry, cwd: str) -> Iterator[tuple[str, str]]:
    yield entry.kind, shown_path(entry.path, cwd)
    code = "" if entry.exit_code is None else f" (exit code {entry.exit_code})"
    yield "state", entry.state.replace("_", " ") + code
    if entry.started_ns is not None:
        began = _local(entry.started_ns)
        verb = "for" if entry.state == "running" else "took"
        took = "" if entry.seconds is None else f", {verb} {duration(entry.seconds)}"
        # of one that waits the time of its submission is told with the queue
        yield "began", "" if entry.queue and entry.state != "running" else began + took
    if entry.state == "running" and not entry.queue:
        yield "launcher", holder(lock_of(entry.kind, entry.path))
    if entry.kind == "sweep":
        yield "jobs", jobs_text(entry.counts)
    elif entry.attempts is not None:
        yield "attempts", str(entry.attempts)
    yield "overrides", shlex.join(entry.overrides)


def _local(at_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ns / 1e9))


def _origin(run: RunResult) -> Iterator[tuple[str, str]]:
    """Yields what the run was made from and where it ran."""
    yield "plan hash", run.plan_hash
    yield "commit", commit_text(run.build)
    yield "versions", versions_text(run.build)
    host = run.host or Host()
    parts = [
        host.hostname,
        host.kernel,
        f"{host.cpus} CPUs" if host.cpus else "",
        size(host.memory) if host.memory is not None else "",
    ]
    yield "host", ", ".join(filter(None, parts))


def _table(
    rows: Sequence[Sequence[str]], width: int | None, shrinks: int, gap: str = ""
) -> list[Row]:
    room = width and width - len(gap)
    lines = aligned(rows, room=room, shrinks=shrinks)
    return [(StyledText(f"{gap}{line}".rstrip()),) for line in lines]


def _nodes(outcome: RunResult, cwd: str, width: int | None) -> list[Row]:
    """Returns what became of the nodes of a run that has several."""
    table = [
        (
            node.name,
            node_state(node),
            counted(node.nproc, "worker"),
            node.said,
            shown_path(node.directory, cwd) if node.shared else f"{node.hostname}:{node.directory}",
        )
        for node in outcome.nodes
    ]
    return _table(table, width, shrinks=3)


def _attempt(attempt: AttemptResult, cwd: str, width: int | None) -> list[Row]:
    def lasted(began: int | None, ended: int | None) -> str:
        return duration(max(0, ended - began) / 1e9) if began and ended else ""

    took = lasted(attempt.started_ns, attempt.ended_ns)
    text = " after ".join(filter(None, (f"attempt {attempt.number} {attempt.state}", took)))
    if attempt.root_cause is not None:
        text += f": {failure_text(attempt.root_cause, cwd)}"
    table = []
    for worker in attempt.workers:
        log = worker.stderr or worker.stdout or worker.error_file or worker.stacks
        table.append(
            (
                f"rank {worker.rank}",
                fate_text(worker, after_root=attempt.root_cause is not None),
                "" if worker.pid is None else f"pid {worker.pid}",
                lasted(worker.started_ns, worker.ended_ns),
                size(worker.max_rss) if worker.max_rss else "",
                shown_path(os.path.dirname(log), cwd) if log else "",
            )
        )
    return [(StyledText(text, "cause"),), *_table(table, width, shrinks=1, gap=GAP)]


def _values(outcome: RunResult, cwd: str) -> list[Row]:
    rows: list[Row] = []
    for rank, value in [*outcome.return_values.items()][:_MOST_VALUES]:
        short = value.json is not None and len(value.json) <= _LONGEST_VALUE
        what = value.json if short else f"{value.type_name}, {size(value.size)}"
        rows.append((StyledText(f"rank {rank} returned {what}; {shown_path(value.path, cwd)}"),))
    return rows


def _without_outcome(entry: ListEntry, cwd: str) -> Iterator[Row]:
    """Tells of a run that has no result, or one that cannot be understood."""
    if entry.root_cause:
        yield (StyledText(f"lllaunch: root cause: {entry.root_cause}", "error"),)
    why = MEANINGS.get(entry.state, MEANINGS["unknown"])
    if entry.queue == NO_ANSWER:
        why = "Slurm cannot be asked, and its files do not say that it is over"
    elif entry.state == "running":
        far = entry.progress
        step = "" if far is None else step_text(far.step, far.total)
        left = "" if far is None or far.eta is None else time_left(far.eta)
        why = ", ".join(filter(None, ("running", step, left)))
    elif entry.batch_job and entry.root_cause:
        why = ""  # that is it
    style = "busy" if entry.state in {"queued", "running"} else "error"
    yield from [(StyledText(f"lllaunch: {why}", style),)] if why else ()
    log = os.path.join(entry.path, LOG)
    logs = log if os.path.exists(log) else os.path.join(entry.path, _LAST_ATTEMPT)
    if entry.attempts or entry.state not in {"queued", "not_submitted"}:
        yield (StyledText(f"{GAP}Logs: {shown_path(logs, cwd)}"),)


# A sweep


def _show_sweep(view: SweepView, cwd: str, *, as_json: bool) -> None:
    sweep, entry = view.result, view.entry
    rows = _facts([*_head(entry, cwd)])
    if as_json:
        summary = None if sweep is None else Plain()(sweep)
        print_json({**plain(entry, entry.path), "summary": summary})
    elif sweep is None:
        message = "lllaunch: its journal cannot be understood"
        print_rows([*rows, (), (StyledText(message, "error"),)])
    else:
        running = entry.state in {"queued", "running"}
        resume, width = None if running else "", columns()
        setting = Setting(
            entry.path, cwd, len(sweep.jobs), view.common, columns=width, resume=resume
        )
        shown = summary_rows(sweep, view.jobs, setting)
        # the last line says how it ended
        print_rows([*rows, *(shown[:-1] if running else shown)])
