"""The page of a run: what failed and where, when, how it went, and what was run. Pure.

`lllaunch.results.view` reads what is known of the run, ``run.html.j2`` has the page's layout. A
page of hundreds of ranks stays small: ranks that look alike share a lane, charts of many ranks show
the lowest, the highest and the middle one, logs and tables are cut. Every such place says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lllaunch.console.report import failure_text, report_body, title_text
from lllaunch.documents import signal_name
from lllaunch.pages import html
from lllaunch.pages.run_charts import curves_of, lanes_of, marks_of
from lllaunch.results.report import message_of
from lllaunch.results.view import node_state
from lllaunch.run.excerpts import place_of
from lllaunch.run.result import RunResult
from lllaunch.text import count, duration, shorten, size
from lllaunch.words import capitalised, progress_text, shown_path, state_title

if TYPE_CHECKING:
    from markupsafe import Markup

    from lllaunch.results.history import Lane
    from lllaunch.results.timeline import RunTimeline
    from lllaunch.results.view import RunView

_SECOND = 1e9
_LONGEST_COMMAND = 240
_LONGEST_VALUE = 2000
_MOST_FINDINGS = 20
_MOST_FOLDED = 12  # rows of a table that is shown at first
_MOST_PLAN_LINES = 1500
_MOST_ROWS = 2000
_MOST_VALUES = 64
_WITHOUT_END = RunResult("error", 1, "")


def run_page(run: RunView, version: str) -> str:
    """Return the page of a run, made by this version of lllaunch."""
    timeline, root = run.timeline, run.root
    outcome = run.result or _WITHOUT_END
    plan = (run.plan or "").splitlines()
    own = [("Run id", outcome.run_id), ("Plan hash", html.long(outcome.plan_hash, "code"))]
    return html.render(
        "run.html.j2",
        kind="Run",
        directory=run.path,
        state=run.entry.state,
        word=_word(run),
        sentence=_verdict(run),
        more=html.joined(_where(run), " · "),
        summary=[*_summary(run)],
        version=version,
        run=run,
        report=_report(run),
        findings=[] if run.result is not None else _findings(timeline),
        lanes=lanes_of(timeline) if timeline.attempts else "",
        attempts_in_all=len({attempt.number for attempt in timeline.attempts}),
        workers=_workers(run),
        workers_in_all=sum(len(attempt.lanes) for attempt in timeline.attempts),
        folded_rows=_MOST_FOLDED,
        measured=curves_of(timeline, () if root is None else root.ranks),
        # what stderr says before a traceback; without one its end is above
        opened_log="stderr" if root is not None and root.traceback else "",
        returned=html.table(
            "Return values", _VALUES, [*outcome.return_values.items()][:_MOST_VALUES]
        ),
        plan_lines=len(plan),
        plan=plan[:_MOST_PLAN_LINES],
        overrides=[html.code(each) for each in run.entry.overrides[:_MOST_VALUES]],
        environment=html.environment_facts(run.result, own),
        nodes=html.table("Nodes", _NODES, outcome.nodes[:_MOST_ROWS]),
    )


# Above all


def _word(run: RunView) -> str:
    outcome = run.result
    if outcome is not None and outcome.signum is not None:
        return f"Ended by {signal_name(outcome.signum)}"
    return "Unreadable" if outcome is None and run.problem else state_title(run.entry.state)


def _verdict(run: RunView) -> str:
    """Return what became of a run in one sentence."""
    outcome = run.result
    if outcome is None:
        progress = run.entry.progress
        far = "" if progress is None else progress_text(progress)
        if progress is not None and progress.eta:
            far += f", about {duration(progress.eta)} left"
        return capitalised(far or run.problem or message_of(run.entry))
    if outcome.root_cause is None or outcome.state == "succeeded":
        return capitalised(str(outcome.limit or title_text(outcome)))
    text = capitalised(failure_text(outcome.root_cause, run.cwd))
    return text if outcome.no_progress is None else f"{outcome.no_progress}: {text}"


def _where(run: RunView) -> Iterator[str]:
    """Yield where in the code that was, in which attempt, and what the launcher exited with."""
    outcome, root = run.result, run.root
    if root is not None and run.entry.state != "succeeded":
        if (call := place_of(root)) is not None:
            where = html.code(f"{shown_path(call.file, run.cwd)}:{call.line}")
            yield html.fill("at {} in {}", where, html.code(call.function))
        if len(run.attempts) > 1:
            yield f"attempt {root.attempt}, the last of {len(run.attempts)}"
    seconds = run.entry.seconds
    if run.entry.state == "running" and seconds is not None:
        yield f"for {duration(seconds)} until this page was made"
    elif outcome is not None and run.entry.state != "succeeded":
        yield f"after {duration(outcome.seconds)}"
    if run.entry.exit_code:
        yield f"exit code {run.entry.exit_code}"


def _summary(run: RunView) -> Iterator[tuple[str, str]]:
    outcome, timeline, entry = run.result, run.timeline, run.entry
    started = (outcome.started_ns if outcome is not None else 0) or entry.started_ns
    yield "Started", html.moment(started or timeline.start_ns)
    if outcome is not None:
        yield "Took", html.took(outcome.seconds)
    numbers = {attempt.number for attempt in timeline.attempts}
    yield "Attempts", str(len(numbers)) if numbers else ""
    last = [attempt for attempt in timeline.attempts if attempt.number == max(numbers)]
    workers = sum(len(attempt.lanes) for attempt in last)
    on = f" on {len(timeline.nodes)} nodes" if len(timeline.nodes) > 1 else ""
    yield "Workers", f"{workers}{on}" if workers else ""
    # of all, as `show` has it; that of the worker that failed is told with the cause
    workers_of_last = run.attempts[-1].workers if run.attempts else ()
    steps = [worker.progress for worker in workers_of_last if worker.progress is not None]
    yield "Progress", progress_text(max(steps, key=lambda each: each.step)) if steps else ""
    yield "Batch job", f"{entry.batch_job} {entry.queue}".strip()
    yield "Starts", "" if entry.batch is None else entry.batch.text
    yield "Not put back", "" if entry.batch is None else entry.batch.reason
    yield "Commit", html.short_commit(run.result)
    yield "Command line", html.long(shorten(" ".join(entry.overrides), _LONGEST_COMMAND), "code")
    if outcome is not None:
        yield "Note", capitalised(run.problem)


# What happened


def _report(run: RunView) -> list[Markup]:
    """Return the report of the terminal, of which the first line is above all; causes stand out."""
    outcome = run.outcome
    lines = [] if outcome is None else report_body(outcome, run.cwd)
    shown = '<span class="hot">{}</span>'
    return [html.fill(shown if line.style == "cause" else "{}", line.text) for line in lines]


def _findings(timeline: RunTimeline) -> list[Markup]:
    """Return what was found in a run that has left no word of its end."""
    kinds = ("finding", "restart", "root_cause")
    marks = sorted(marks_of(timeline), key=lambda mark: mark.time_ns)
    return [
        html.fill("{}: {}", html.moment(mark.time_ns), mark.text)
        for mark in [mark for mark in marks if mark.kind in kinds][-_MOST_FINDINGS:]
    ]


# In time


def _workers(run: RunView) -> html.PageTable:
    """Return a table of all workers of all attempts, the newest attempt first.

    result.json has the most memory of a worker, samples the last.
    """
    timeline = run.timeline
    told = {
        (attempt.number, worker.rank): worker
        for attempt in run.attempts
        for worker in attempt.workers
    }
    last = {
        (series.name, series.attempt, series.of): series.points[-1][1]
        for series in timeline.series
        if series.name in ("rss", "step") and not series.metric and series.points
    }

    def seconds(lane: Lane) -> float | None:
        ran = [span for span in lane.spans if span.kind == "run"]
        return (ran[-1].end_ns - ran[0].start_ns) / _SECOND if ran else None

    def seen(lane: Lane, name: str) -> float | None:
        worker = told.get((lane.attempt, lane.rank))
        if worker is None:
            return last.get((name, lane.attempt, f"rank {lane.rank}"))
        return {
            "rss": worker.max_rss or None,
            "cpu_seconds": None if worker.started_ns is None else worker.cpu_seconds,
            "step": None if worker.progress is None else worker.progress.step,
            "pid": worker.pid,
        }[name]

    again = len({attempt.number for attempt in timeline.attempts}) > 1
    memory = "Peak memory" if told else "Memory"
    columns = [
        html.numbers("Rank", lambda lane: lane.rank),
        html.numbers("Attempt", lambda lane: lane.attempt if again else None),
        html.PageColumn("Node", lambda lane: lane.node),
        html.PageColumn("Fate", lambda lane: html.badge(lane.fate, lane.fate.replace("_", " "))),
        html.PageColumn("What became of it", lambda lane: lane.text, "wide"),
        html.numbers(
            "Exit",
            lambda lane: lane.exitcode,
            lambda code: signal_name(-int(code)) if code < 0 else str(code),
        ),
        html.numbers("Took", seconds, duration),
        html.numbers(memory, lambda lane: seen(lane, "rss"), _bytes, minor=True),
        html.numbers("CPU time", lambda lane: seen(lane, "cpu_seconds"), duration, minor=True),
        html.numbers("Step", lambda lane: seen(lane, "step"), count, minor=True),
        html.numbers("Pid", lambda lane: seen(lane, "pid"), minor=True),
    ]
    newest = sorted(timeline.attempts, key=lambda each: -each.number)
    lanes = [lane for attempt in newest for lane in attempt.lanes][:_MOST_ROWS]
    caption = "All workers, the newest attempt first" if again else "All workers"
    return html.table(caption, columns, lanes, kind=lambda lane: lane.fate)


def _bytes(number: float) -> str:
    return size(round(number))


# A pair of a rank and what it returned
_VALUES = (
    html.numbers("Rank", lambda pair: pair[0]),
    html.PageColumn(
        "Value", lambda pair: html.code(shorten(pair[1].json or "", _LONGEST_VALUE)), "wide"
    ),
    html.PageColumn("Type", lambda pair: pair[1].type_name),
    html.numbers("Size", lambda pair: pair[1].size, _bytes),
)


_NODES = (
    html.PageColumn("Node", lambda node: node.name),
    html.PageColumn("State", lambda node: html.badge(node.state, node_state(node))),
    html.numbers("Workers", lambda node: node.nproc),
    html.numbers("Exit", lambda node: node.exit_code),
    html.PageColumn("What happened to it", lambda node: node.said, "wide"),
    html.numbers(
        "Clock ahead",
        lambda node: node.clock_offset,
        lambda ahead: f"{round(ahead * 1000, 1) + 0.0} ms",
        minor=True,
    ),
    html.PageColumn(
        "Directory",
        lambda node: node.directory if node.shared else f"{node.hostname}:{node.directory}",
        "minor wide",
    ),
)
