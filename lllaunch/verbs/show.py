"""``python -m lllaunch show RUN``: what became of a run, when, and what it was."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from lllaunch.console.lanes import DRAWN, timeline_rows, track_rows
from lllaunch.console.live_table import table_rows
from lllaunch.console.overview import (
    heading,
    log_rows,
    peak_rows,
    progress_of_ranks,
)
from lllaunch.console.report import failure_text, fate_text, report_lines
from lllaunch.console.status import time_left
from lllaunch.console.stream import encodable
from lllaunch.console.summary import Setting, summary_rows
from lllaunch.console.table import GAP, Row, aligned, cells, padded
from lllaunch.documents import Fields, Plain, isoformat, nanoseconds
from lllaunch.files import read_text, within
from lllaunch.results.live import LiveReader
from lllaunch.results.peaks import mean_use, peaks_of
from lllaunch.results.queue import NO_ANSWER, BatchQueue
from lllaunch.results.report import blamed, common_overrides
from lllaunch.results.store import (
    LATEST,
    ListEntry,
    holder,
    jobs_of,
    last_event,
    locate,
    lock_of,
    plain,
    read_run,
    read_sweep,
)
from lllaunch.results.timeline import read_timeline
from lllaunch.results.tries import read_sweep_timeline, tracks_of
from lllaunch.run.directory import PLAN
from lllaunch.run.excerpts import Excerpt, tail
from lllaunch.run.redact import redactor_of
from lllaunch.run.result import plain_result
from lllaunch.run.samples import last_sample, plain_sample
from lllaunch.run.submission import (
    LOG,
    BatchEnded,
    BatchStarted,
    Requeued,
    read_history,
    read_submission,
)
from lllaunch.sweep.directory import ARRAYS
from lllaunch.text import duration, size
from lllaunch.verbs.ls import counts_of
from lllaunch.verbs.printing import (
    Parser,
    columns,
    perform,
    print_json,
    print_rows,
)
from lllaunch.watchdog.stacks.merged import TREE
from lllaunch.words import (
    StyledText,
    commit_text,
    counted,
    shown_path,
    step_text,
    versions_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lllaunch.results.live import LiveView
    from lllaunch.results.store import FoundDirectory
    from lllaunch.results.timeline import RunTimeline
    from lllaunch.run.result import AttemptResult, RunResult, WorkerResult
    from lllaunch.run.submission import QueueEvent
    from lllaunch.sweep.history import JobHistory, SweepResult
    from lllaunch.watchdog.progress import Progress

_DESCRIPTION = """\
Show a run or a sweep from its files: result, timeline, workers, logs and plan. For a live run,
show its progress and what each rank does.

RUN names a run or a sweep: its directory, the end of its path, the id of its batch job, or
'latest' (the default), the one started last from here."""
# Where there is no terminal.
_COLUMNS = 100
_LOG_LINES = 10
_MOST_RANKS = 24
# The link to the last attempt.
_LAST_ATTEMPT = "latest"
_STACK_LINES = 40
_LONGEST_VALUE = 200  # characters
_MOST_VALUES = 16


def main(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code.

    Args:
        argv: what follows it on the command line.
    """
    return perform(_parser(), argv, _show)


def _parser() -> argparse.ArgumentParser:
    parser = Parser("show", _DESCRIPTION)
    parser.add_argument("run", metavar="RUN", nargs="?", default=LATEST, help="default: latest")
    parser.add_argument("--json", action="store_true", help="print an object")
    return parser


def _show(given: argparse.Namespace) -> None:
    found, cwd = locate(given.run), os.getcwd()
    found = found._replace(path=os.path.abspath(found.path))
    if found.kind == "sweep":
        queue = BatchQueue()
        entry, sweep = read_sweep(found.path, queue)
        if sweep is not None and os.path.isdir(os.path.join(found.path, ARRAYS)):
            live = {job.job: job for job in jobs_of(entry, queue) if job.batch_job}
            sweep = structs.replace(
                sweep, jobs=tuple(_by_now(job, live.get(job.job)) for job in sweep.jobs)
            )
        if given.json:
            summary = None if sweep is None else Plain()(sweep)
            print_json({**plain(entry, entry.path), "summary": summary})
        else:
            rows = sweep_rows(entry, sweep, cwd, columns())
            print_rows([*rows, *_sweep_in_time(found.path)])
        return
    entry, result = read_run(found)
    if given.json:
        print_json(_json(entry, result, _plan(entry.path)))
        return
    run = read_shown(found, entry, result)
    print_rows(
        run_rows(run, cwd, columns() or _COLUMNS, ascii_only=encodable(DRAWN, sys.stdout) != DRAWN)
    )


def _json(entry: ListEntry, run: RunResult | None, text: str | None) -> dict[str, Any]:
    batch = batch_of(entry)
    sample = last_sample(entry.path) if entry.state == "running" else None
    return {
        **plain(entry, entry.path),
        "submission": None if batch is None else batch.to_json(),
        "plan_hash": None if run is None else run.plan_hash or None,
        "build": None if run is None else run.build,
        "plan": text,
        "result": None if run is None else plain_result(run),
        "sample": None if sample is None else plain_sample(sample),
    }


def _outcome(outcome: RunResult | None, hide: Callable[[str], str]) -> RunResult | None:
    """Returns what became of a run as its own end told it, with the end of the log."""
    root = outcome.root_cause if outcome is not None else None
    if outcome is None or root is None or root.traceback:
        return outcome
    if within(outcome.directory, root.stderr) is None:
        return outcome
    return structs.replace(outcome, excerpt=tail(root.stderr, hide=hide))


def _plan(directory: str) -> str | None:
    path = within(directory, os.path.join(directory, PLAN))
    return None if path is None else read_text(path)


# A run


@dataclass(frozen=True)
class ShownRun:
    """All that is shown of a run.

    Attributes:
        entry: what is known of it.
        result: its result.json, or None.
        plan: the text of its plan.yaml, or None.
        outcome: what became of it, with the end of the root cause's log; None if that is not known.
        timeline: what happened when.
        batch: its way through a cluster's queue, if it was submitted.
        now: what its ranks do, of a run that goes on; else None.
        logs: ends of logs that the outcome does not have.
        stacks: lines of the merged stacks that were looked at last, where the outcome has none.
        stacks_path: their file.
    """

    entry: ListEntry
    result: RunResult | None
    plan: str | None
    outcome: RunResult | None
    timeline: RunTimeline
    batch: BatchFacts | None = None
    now: LiveView | None = None
    logs: tuple[Excerpt, ...] = ()
    stacks: tuple[str, ...] = ()
    stacks_path: str = ""


def read_shown(found: FoundDirectory, entry: ListEntry, result: RunResult | None) -> ShownRun:
    """Read what is shown of a run; what cannot be read is left out.

    Args:
        found: its directory.
        entry: what is known of it.
        result: its result.json, or None.
    """
    plan = _plan(entry.path)
    hide = redactor_of(entry.path, os.environ)
    outcome = _outcome(result, hide)
    # of a document that was copied elsewhere nothing else is there
    timeline = read_timeline(found, hide, (entry, result))
    now = LiveReader().run(entry.path) if entry.state == "running" else None
    stacks, path = _stacks(entry, outcome, hide)
    logs = tuple(_logs(entry, outcome, hide))
    batch = batch_of(entry)
    return ShownRun(entry, result, plan, outcome, timeline, batch, now, logs, stacks, path)


def _logs(
    entry: ListEntry, outcome: RunResult | None, hide: Callable[[str], str]
) -> Iterator[Excerpt]:
    """Yield the ends of what the worker wrote that tells most; the report may have its stderr."""
    if outcome is None:
        directory = os.path.join(entry.path, _LAST_ATTEMPT, "0")
        paths = [os.path.join(directory, name) for name in ("stdout.log", "stderr.log")]
    else:
        worker = blamed(outcome)
        paths = [] if worker is None else [worker.stdout, worker.stderr]
        root = outcome.root_cause
        if root is not None and (root.traceback or outcome.excerpt is not None):
            paths = paths[:1]
    for path in paths:
        if path and within(entry.path, path) is not None:
            found = tail(path, _LOG_LINES, hide)
            if found is not None:
                yield found


def _stacks(
    entry: ListEntry, outcome: RunResult | None, hide: Callable[[str], str]
) -> tuple[tuple[str, ...], str]:
    """Return where all ranks stood when somebody looked, unless the report tells that."""
    root = None if outcome is None else outcome.root_cause
    told = outcome is not None and outcome.look is not None
    if told or (root is not None and root.hang is not None):
        return (), ""
    path = os.path.join(entry.path, _LAST_ATTEMPT, TREE)
    if outcome is not None and outcome.attempts:
        path = os.path.join(outcome.attempts[-1].path, TREE)
    own = within(entry.path, path) is not None
    found = tail(path, _STACK_LINES, hide) if own else None
    return ((), "") if found is None else (found.lines, path)


def run_rows(run: ShownRun, cwd: str, width: int, *, ascii_only: bool = False) -> list[Row]:
    """Returns what is shown of a run: first what became of it, then when, then what it was.

    Args:
        run: what is known.
        cwd: directory that paths below it are shown relative to.
        width: of the terminal, columns.
        ascii_only: whether bars must be drawn in ASCII.
    """
    outcome = run.outcome
    if outcome is not None:
        rows: list[Row] = [(line,) for line in report_lines(outcome, cwd)]
    else:
        rows = [*_without_outcome(run, cwd)]
    facts = [*_head(run.entry, cwd), ("progress", _progress(run))]
    facts += [] if run.batch is None else _of_batch(run.entry, run.batch)
    parts = [_facts(facts), *_parts_in_time(run, cwd, width, ascii_only=ascii_only)]
    if outcome is not None:
        parts.append(_nodes(outcome, cwd))
        parts += [[*_attempt(attempt, cwd)] for attempt in outcome.attempts]
        parts.append(_values(outcome, cwd))
    if run.stacks:
        title = heading(f"Where all ranks stood ({shown_path(run.stacks_path, cwd)}):")
        lines = [(StyledText(f"{GAP}{line}".rstrip(), "quote"),) for line in run.stacks]
        parts.append([title, *lines])
    if logs := log_rows(run.logs, cwd):
        parts.append([heading("Ends of logs:"), *logs])
    if run.plan is not None:
        lines = [(StyledText(f"{GAP}{line}".rstrip()),) for line in run.plan.splitlines()]
        parts.append([heading(f"{PLAN}:"), *lines])
    if run.result is not None:
        parts.append(_facts([*_origin(run.result)]))
    for part in parts:
        rows += [(), *part] if part else []
    return rows


def _parts_in_time(run: ShownRun, cwd: str, width: int, *, ascii_only: bool) -> Iterator[list[Row]]:
    """Yield what happened when, what each rank does, and what was used at most."""
    timeline = run.timeline
    bars = timeline_rows(timeline, width, ascii_only=ascii_only)
    if bars:
        began = _local(timeline.start_ns)
        yield [heading(f"In time (from {began}):"), *bars]
    if run.now is not None and (ranks := run.now.rows):
        shown = ranks[:_MOST_RANKS]
        rows = table_rows(run.now, shown, width - len(GAP), cwd)
        rows = [(StyledText(GAP), *row) for row in rows]
        more = len(ranks) - len(shown)
        if more > 0:
            text = f"{GAP}and {counted(more, 'more rank')}; python -m lllaunch top shows them"
            rows.append((StyledText(text, "faint"),))
        yield [heading("Now:"), *rows]
    attempts = len({attempt.number for attempt in timeline.attempts})
    peaks = peaks_of(timeline, run.outcome)
    if rows := peak_rows(peaks, mean_use(timeline.series), attempts=attempts):
        yield [heading("The most that was used:"), *rows]


def _progress(run: ShownRun) -> str:
    """Returns how far the ranks of the last attempt are, or were."""
    if run.outcome is not None:
        last = run.outcome.attempts[-1:]
        workers = [worker for attempt in last for worker in attempt.workers]
        known = {each.rank: each.progress for each in workers if each.progress is not None}
        return progress_of_ranks(known)
    from lllaunch.watchdog.progress import Progress  # noqa: PLC0415 - of live runs

    ranks = () if run.now is None else run.now.rows
    return progress_of_ranks(
        {
            row.number: Progress(row.step, row.total, metrics=row.metrics)
            for row in ranks
            if row.number is not None and row.step is not None
        }
    )


class BatchFacts(NamedTuple):
    """The way of a run through a cluster's queue.

    Attributes:
        submitted_ns: when, nanoseconds since the epoch; 0 if that is not known.
        starts: how often its batch job started.
        nodes: where it started last.
        requeues: when it went back into the queue, and why.
        waited: for how long it was in the queue in all, seconds.
        ran: for how long it ran in all, seconds. Of a start that was lost with its node nobody
            knows the end; what it waited then is in it.
        reason: why it did not go back into the queue, or an empty string.
    """

    submitted_ns: int
    starts: int
    nodes: tuple[str, ...]
    requeues: tuple[tuple[int, Requeued], ...]
    waited: float
    ran: float
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the same for programs."""
        return {
            "submitted": isoformat(self.submitted_ns) if self.submitted_ns else None,
            "starts": self.starts,
            "nodes": list(self.nodes),
            "requeues": [
                {"time": isoformat(time_ns), "cause": back.cause, "detail": back.detail or None}
                for time_ns, back in self.requeues
            ],
            "waited": self.waited,
            "ran": self.ran,
            "reason": self.reason or None,
        }


def batch_of(entry: ListEntry) -> BatchFacts | None:
    """Return the way of a run through a cluster's queue; None if it was not submitted."""
    if not entry.batch_job and not entry.queue:
        return None
    submission, history = read_submission(entry.path), read_history(entry.path)
    if submission is None:
        return None
    last = (last_event(entry.path) or {}).get("time_ns")
    until_ns = time.time_ns() if entry.queue else last
    return batch_facts(submission.time_ns, history, until_ns if isinstance(until_ns, int) else 0)


def batch_facts(
    submitted_ns: int, history: Sequence[tuple[int, QueueEvent]], until_ns: int
) -> BatchFacts:
    """Return what the history of a submitted run comes to. Pure.

    Args:
        submitted_ns: when it was submitted, nanoseconds since the epoch.
        history: as `lllaunch.run.submission.read_history` returns it.
        until_ns: now, of a run that is not over; else when it was heard of last.
    """
    waited = ran = 0
    since, runs, over = submitted_ns, False, False
    for time_ns, event in history:
        if isinstance(event, (BatchStarted, BatchEnded, Requeued)):
            passed = max(0, time_ns - since) if since else 0
            waited, ran = (waited, ran + passed) if runs else (waited + passed, ran)
            since, runs = time_ns, isinstance(event, BatchStarted)
            over = isinstance(event, BatchEnded)
    if not over and since:
        passed = max(0, until_ns - since)
        waited, ran = (waited, ran + passed) if runs else (waited + passed, ran)
    starts = [event for _, event in history if isinstance(event, BatchStarted)]
    last = history[-1][1] if history else None
    return BatchFacts(
        submitted_ns,
        len(starts),
        starts[-1].nodes if starts else (),
        tuple((time_ns, event) for time_ns, event in history if isinstance(event, Requeued)),
        waited / 1e9,
        ran / 1e9,
        last.reason if isinstance(last, BatchEnded) else "",
    )


def _of_batch(entry: ListEntry, batch: BatchFacts) -> Iterator[tuple[str, str]]:
    state = f": {entry.queue}" if entry.queue else ""
    yield "batch job", (entry.batch_job or "id unknown") + state
    yield "nodes", ", ".join(batch.nodes)
    submitted = _local(batch.submitted_ns) if batch.submitted_ns else "at an unknown time"
    ran = f", ran for {duration(batch.ran)}" if batch.starts else ""
    yield "submitted", f"{submitted}; waited for {duration(batch.waited)}{ran}"
    if batch.starts > 1 or batch.requeues:
        causes = Counter(_WHY_BACK[back.cause] for _, back in batch.requeues)
        parts = [why if times == 1 else f"{why} ({times} times)" for why, times in causes.items()]
        back = f"; put back into the queue: {', '.join(parts)}" if parts else ""
        yield "starts", f"{batch.starts}{back}"
    yield "not put back", batch.reason


_WHY_BACK = {
    "preempted": "preempted",
    "timeout": "time limit",
    "node_failure": "a node was lost",
    "failed": "tried again after a failure",
}


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
        yield "jobs", counts_of(entry).partition(": ")[2]
    elif entry.attempts is not None:
        yield "attempts", str(entry.attempts)
    yield "overrides", shlex.join(entry.overrides)


def _local(at_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ns / 1e9))


def _origin(run: RunResult) -> Iterator[tuple[str, str]]:
    """Yields what the run was made from and where it ran."""
    yield "plan hash", run.plan_hash
    yield "commit", commit_text(run.build or {})
    yield "versions", versions_text(run.build or {})
    host = Fields(run.host)
    cpus, memory = host.integer("cpus"), host.integer("memory")
    parts = [
        host.text("hostname"),
        host.text("kernel"),
        f"{cpus} CPUs" if cpus else "",
        size(memory) if memory is not None else "",
    ]
    yield "host", ", ".join(filter(None, parts))


def _room(taken: int = 0) -> int | None:
    """Returns how many columns of the terminal are left; None where there is none to fit into."""
    width = columns()
    return width - taken if width else None


def _nodes(outcome: RunResult, cwd: str) -> list[Row]:
    """Returns what became of the nodes of a run that has several."""
    table = [
        (
            node.name,
            node.state,
            counted(node.nproc, "worker"),
            node.said,
            shown_path(node.directory, cwd) if node.shared else f"{node.hostname}:{node.directory}",
        )
        for node in outcome.nodes
    ]
    rows: list[Row] = [(StyledText(line),) for line in aligned(table, room=_room(), shrinks=3)]
    return [*rows, ()] if rows else []


def _attempt(attempt: AttemptResult, cwd: str) -> Iterator[Row]:
    took = duration(max(0, attempt.ended_ns - attempt.started_ns) / 1e9)
    text = f"attempt {attempt.number} {attempt.state} after {took}"
    if attempt.root_cause is not None:
        text += f": {failure_text(attempt.root_cause, cwd)}"
    yield (StyledText(text, "cause"),)
    known = attempt.root_cause is not None
    table = [_worker(worker, cwd, after_root=known) for worker in attempt.workers]
    for line in aligned(table, room=_room(len(GAP)), shrinks=1):
        yield (StyledText(f"{GAP}{line}".rstrip()),)


def _worker(worker: WorkerResult, cwd: str, *, after_root: bool) -> tuple[str, ...]:
    began, ended = worker.started_ns, worker.ended_ns
    took = duration(max(0, ended - began) / 1e9) if began and ended else ""
    log = worker.stderr or worker.stdout or worker.error_file or worker.stacks
    return (
        f"rank {worker.rank}",
        fate_text(worker, after_root=after_root),
        "" if worker.pid is None else f"pid {worker.pid}",
        took,
        size(worker.max_rss) if worker.max_rss else "",
        shown_path(os.path.dirname(log), cwd) if log else "",
    )


def _values(outcome: RunResult, cwd: str) -> list[Row]:
    rows: list[Row] = []
    for rank, value in list(outcome.return_values.items())[:_MOST_VALUES]:
        short = value.json is not None and len(value.json) <= _LONGEST_VALUE
        what = value.json if short else f"{value.type_name}, {size(value.size)}"
        rows.append((StyledText(f"rank {rank} returned {what}; {shown_path(value.path, cwd)}"),))
    more = len(outcome.return_values) - len(rows)
    if more > 0:
        rows.append((StyledText(f"and {counted(more, 'more rank')} returned something", "faint"),))
    return [*rows, ()] if rows else []


def _without_outcome(run: ShownRun, cwd: str) -> Iterator[Row]:
    """Tells of a run that has no result, or one that cannot be understood."""
    entry = run.entry
    if entry.root_cause:
        yield (StyledText(f"lllaunch: root cause: {entry.root_cause}", "error"),)
    told = entry.batch_job and entry.root_cause
    why = _WHY.get(entry.state, "" if told else _WHY["unknown"])
    if entry.queue == NO_ANSWER:
        why = "Slurm cannot be asked, and its files do not say that it is over"
    elif entry.state == "running":
        why = ", ".join(filter(None, (why, *_how_far(entry.progress))))
    style = "busy" if entry.state in {"queued", "running"} else "error"
    yield from [(StyledText(f"lllaunch: {why}", style),)] if why else ()
    event = last_event(entry.path) or {}
    at = nanoseconds(event.get("time"))
    if event.get("type") and at is not None:
        yield (StyledText(f"{GAP}Last event: {_local(at)} {event['type']}"),)
    log = os.path.join(entry.path, LOG)
    logs = log if os.path.exists(log) else os.path.join(entry.path, _LAST_ATTEMPT)
    if entry.state != "queued" or entry.attempts:
        yield (StyledText(f"{GAP}Logs: {shown_path(logs, cwd)}"),)


def _how_far(progress: Progress | None) -> Iterator[str]:
    if progress is not None:
        yield step_text(progress.step, progress.total)
        if progress.eta is not None:
            yield time_left(progress.eta)


_WHY = {
    "running": "running",
    "queued": "waiting in the queue of its cluster",
    "died": "its launcher ended without a result: it was killed, or the machine went down",
    "unknown": "its result.json cannot be understood, or it cannot be determined whether it runs",
}


# A sweep


def sweep_rows(entry: ListEntry, sweep: SweepResult | None, cwd: str, width: int) -> list[Row]:
    """Returns what is shown of a sweep.

    Args:
        entry: what is known of it.
        sweep: what is known of its jobs, or None.
        cwd: directory that paths below it are shown relative to.
        width: of the terminal, 0 if there is none.
    """
    rows = _facts(list(_head(entry, cwd)))
    if sweep is None:
        return [*rows, (), (StyledText("lllaunch: its journal cannot be understood", "error"),)]
    running = entry.state in {"queued", "running"}
    common = common_overrides([job.overrides for job in sweep.jobs])
    if running:
        sweep = structs.replace(sweep, jobs=tuple(map(_of_running, sweep.jobs)))
    resume = None if running else ""
    setting = Setting(entry.path, cwd, len(sweep.jobs), common, columns=width, resume=resume)
    shown = summary_rows(sweep, setting)
    # the last line says how it ended
    return [*rows, *(shown[:-1] if running else shown)]


def _sweep_in_time(path: str) -> list[Row]:
    timeline = read_sweep_timeline(path)
    width, ascii_only = columns() or _COLUMNS, not _can_draw()
    bars = track_rows(timeline, tracks_of(timeline), width, ascii_only=ascii_only)
    return [(), heading(f"In time (from {_local(timeline.start_ns)}):"), *bars] if bars else []


def _can_draw() -> bool:
    return encodable(DRAWN, sys.stdout) == DRAWN


def _by_now(job: JobHistory, entry: ListEntry | None) -> JobHistory:
    """Return what is known of a job whose batch job may say more than the journal."""
    if entry is None:
        return job
    if entry.exit_code is None or job.result is not None:
        return structs.replace(job, state=entry.state)
    return structs.replace(
        job,
        state=entry.state,
        exit_code=entry.exit_code,
        root_cause=entry.root_cause,
        seconds=entry.seconds,
        return_value=None if entry.value is None else json.dumps(entry.value),
    )


def _of_running(job: JobHistory) -> JobHistory:
    names = {"started": "running", "composed": "waiting"}
    return structs.replace(job, state=names.get(job.state, job.state))
