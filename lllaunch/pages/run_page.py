"""The page of a run: what failed and where, when, how it went, and what was run. Pure.

`lllaunch.results.view` reads what is known of the run, ``run.html.j2`` has the page's layout. A
page of hundreds of ranks stays small: ranks that look alike share a lane, charts of many ranks show
the lowest, the highest and the middle one, logs and tables are cut. Every such place says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lllaunch.console.hang import look_parts
from lllaunch.console.report import failure_text, fate_groups, root_parts
from lllaunch.documents import signal_name
from lllaunch.pages import html
from lllaunch.pages.run_charts import curves_of, lanes_of, marks_of
from lllaunch.results.report import message_of
from lllaunch.results.view import node_state
from lllaunch.run.excerpts import folded, place_of
from lllaunch.run.result import RunResult
from lllaunch.text import count, duration, shorten, size, spans
from lllaunch.words import (
    StyledText,
    capitalised,
    counted,
    progress_text,
    shown_path,
    state_title,
    step_text,
)

if TYPE_CHECKING:
    from markupsafe import Markup

    from lllaunch.console.hang import Part
    from lllaunch.results.timeline import Lane, RunTimeline
    from lllaunch.results.view import RunView
    from lllaunch.run.result import (
        AttemptResult,
        RootCause,
    )

_SECOND = 1e9
_EXCERPT = 20  # lines
_LONGEST_COMMAND = 240
_LONGEST_VALUE = 2000
_MOST_FINDINGS = 20
_MOST_FOLDED = 12  # rows of a table that is shown at first
_MOST_GROUPS = 40
_MOST_PLAN_LINES = 1500
_MOST_ROWS = 2000
_MOST_VALUES = 64
_WITHOUT_END = RunResult("error", 1, "")
_OWN = re.compile(r"\S+:\d+ in [^:]+: ")
_KEY = re.compile(r"(?P<before>\s*(?:- )*)(?P<key>[^\s#'\"][^:#]*:)(?P<rest>\s.*|)", re.DOTALL)


def run_page(run: RunView, version: str) -> str:
    """Return the page of a run, made by this version of lllaunch."""
    timeline, root = run.timeline, run.root
    left = [
        f"Attempt {attempt.number} left process {each.pid} behind ({each.command})"
        f"{'; it was killed' if each.killed else ''}"
        for attempt in run.attempts
        for each in attempt.leftovers
    ]
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
        cause=[*_cause(run)],
        aside=[*_aside(run)],
        findings=[] if run.result is not None else _findings(timeline),
        lanes=lanes_of(timeline) if timeline.attempts else "",
        attempts=_attempts(run) if len(run.attempts) > 1 else None,
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
        leftovers=left[:_MOST_VALUES],
        plan_lines=len(plan),
        plan=[*map(_plan_line, plan[:_MOST_PLAN_LINES])],
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
    if outcome.state == "error":
        return outcome.error.partition("\n")[0] or "lllaunch could not do its part"
    if outcome.state == "succeeded":
        workers = counted(sum(len(last.workers) for last in outcome.attempts[-1:]), "worker")
        restarts = f", after {counted(outcome.restarts, 'restart')}" if outcome.restarts else ""
        return f"{workers} in {duration(outcome.seconds)}{restarts}"
    if outcome.root_cause is None:
        return capitalised(_without_cause(outcome) or message_of(run.entry, outcome))
    text = capitalised(failure_text(outcome.root_cause, run.cwd))
    return text if outcome.no_progress is None else f"{outcome.no_progress}: {text}"


def _without_cause(outcome: RunResult) -> str:
    """Return what is known of a run that a signal or a limit ended, and no failure."""
    if outcome.limit is not None:
        return f"the run {outcome.limit}"
    if outcome.importing:
        return f"while {', '.join(outcome.importing)} was imported"
    silent = getattr(None if outcome.look is None else outcome.look.finding, "silent", 0.0)
    if silent:
        return f"no output for {duration(silent)} before that"
    furthest = outcome.attempts[-1].furthest if outcome.attempts else None
    progress = None if furthest is None else furthest.progress
    return "" if progress is None else f"at {progress_text(progress)}"


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
    steps = [
        worker.progress
        for attempt in run.attempts[-1:]
        for worker in attempt.workers
        if worker.progress is not None
    ]
    # of all, as `show` has it; that of the worker that failed is told with the cause
    yield "Progress", progress_text(max(steps, key=lambda each: each.step)) if steps else ""
    yield "Batch job", f"{entry.batch_job} {entry.queue}".strip()
    yield "Starts", "" if entry.batch is None else entry.batch.text
    yield "Not put back", "" if entry.batch is None else entry.batch.reason
    yield "Commit", html.short_commit(run.result)
    yield "Command line", html.long(shorten(" ".join(entry.overrides), _LONGEST_COMMAND), "code")
    if outcome is not None:
        yield "Note", capitalised(run.problem)


# What happened


def _cause(run: RunView) -> Iterator[str | html.Quote]:
    outcome = run.result
    if outcome is None:
        return
    yield from (line for line in outcome.error.split("\n")[1:] if line.strip())
    if outcome.no_progress is not None:
        yield f"{capitalised(str(outcome.no_progress))}."
    if outcome.root_cause is not None and outcome.state != "succeeded":
        yield from _of_root(outcome.root_cause, outcome, run)
    if outcome.limit is not None:
        yield f"Then the run {outcome.limit}."
    if outcome.look is not None:
        yield f"{capitalised(str(outcome.look.finding))}."
        yield from _prose(look_parts(outcome.look, run.cwd, utc=True))


def _aside(run: RunView) -> Iterator[str | html.PageTable]:
    """Yield what became of the workers and the nodes that are not to blame."""
    outcome = run.result
    if outcome is None:
        return
    if outcome.attempts and outcome.state != "succeeded":
        yield from _others(outcome.attempts[-1], outcome.root_cause)
    for node in outcome.nodes:
        if node.state == "lost":
            said = f": it {node.said}" if node.said else ""
            yield f"{capitalised(node.name)} was not heard of: it left no result{said}."


def _findings(timeline: RunTimeline) -> list[Markup]:
    """Return what was found in a run that has left no word of its end."""
    kinds = ("finding", "restart", "root_cause")
    marks = sorted(marks_of(timeline), key=lambda mark: mark.time_ns)
    return [
        html.fill("{}: {}", html.moment(mark.time_ns), mark.text)
        for mark in [mark for mark in marks if mark.kind in kinds][-_MOST_FINDINGS:]
    ]


def _of_root(root: RootCause, outcome: RunResult, run: RunView) -> Iterator[str | html.Quote]:
    of_rank = "" if root.rank is None else f" of rank {root.rank}"
    yield from _prose(root_parts(root, outcome, run.cwd, utc=True))
    if root.traceback:
        yield html.Quote(f"Traceback{of_rank}", _traceback(root.traceback))
    elif "\n" in (message := str(getattr(root.cause, "message", ""))):
        yield html.Quote("Message", message.split("\n"), heading=False)
    logs = {log.stream: log for log in run.logs if log.blamed}
    log = logs.get("stderr") or logs.get("stdout")
    if log is not None and not root.traceback:
        what = "The last lines" if log.cut or len(log.lines) > _EXCERPT else "All"
        yield html.Quote(f"{what} of {log.path}", log.lines[-_EXCERPT:])


def _prose(parts: Iterable[Part]) -> Iterator[str | html.Quote]:
    """Yield what a report says as paragraphs and quotes; a quote follows its title."""
    title, quoted = "", []
    for part in (*parts, ""):
        if isinstance(part, StyledText) and part.style == "quote":
            quoted.append(part.text.removeprefix(" " * 6))
            continue
        if quoted:
            yield html.Quote(title.removesuffix(":"), list(map(_call, quoted)))
        elif title:
            yield title
        title, quoted = (part.text if isinstance(part, StyledText) else part).strip(), []


def _call(text: str) -> str:
    """Return a line of a stack; calls of the user's own code have the code, and stand out."""
    return html.fill("<strong>{}</strong>", text) if _OWN.match(text) else text


def _traceback(text: str) -> Iterator[str]:
    """Yield the lines of a traceback; what was raised stands out."""
    lines = folded(text)
    for at, line in enumerate(lines, 1):
        is_error = line[:1].strip() and not line.startswith("Traceback") and ":" in line
        hot = is_error or at == len(lines)
        yield html.fill('<span class="hot">{}</span>', line) if hot else line


_OTHERS = (
    html.PageColumn("Ranks", lambda group: shorten(spans(worker.rank for worker in group[0]), 80)),
    html.numbers("Number", lambda group: len(group[0])),
    html.PageColumn("What became of them", lambda group: capitalised(group[1]), "wide"),
)


def _others(attempt: AttemptResult, root: RootCause | None) -> Iterator[html.PageTable]:
    """Yield what became of the workers that are not to blame, those with one fate in one row."""
    named = () if root is None else root.ranks
    others = [worker for worker in attempt.workers if worker.rank not in named]
    known = root is not None and bool(root.ranks or root.subject)
    groups = fate_groups(others, root, after_root=known)
    if groups:
        yield html.table(
            "The other workers" if known else "The workers", _OTHERS, groups[:_MOST_GROUPS]
        )


# In time


def _attempts(run: RunView) -> html.PageTable:
    """Return a table of the attempts."""

    def seconds(attempt: AttemptResult) -> float:
        return max(0, attempt.ended_ns - attempt.started_ns) / _SECOND

    def cause(attempt: AttemptResult) -> str:
        root = attempt.root_cause
        at = None if attempt.furthest is None else attempt.furthest.progress
        text = "" if root is None else capitalised(failure_text(root, run.cwd))
        step = "" if at is None else step_text(at.step, at.total)
        return ", at ".join(filter(None, (text, step)))

    columns = (
        html.numbers("Attempt", lambda attempt: attempt.number),
        html.PageColumn("State", lambda attempt: html.badge(attempt.state, attempt.state)),
        html.PageColumn("Began", lambda attempt: html.moment(attempt.started_ns), "minor"),
        html.numbers("Took", seconds, duration),
        html.PageColumn("Root cause", cause, "wide"),
    )
    return html.table("Attempts", columns, run.attempts[-_MOST_ROWS:])


def _workers(run: RunView) -> html.PageTable:
    """Return a table of all workers of all attempts, the newest attempt first.

    result.json has the most memory of a worker, samples the last.
    """
    timeline = run.timeline
    told = {
        (attempt.number, str(worker.rank)): worker
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
        of = lane.attempt, str(lane.rank)
        worker = told.get(of)
        if worker is None:
            return last.get((name, *of))
        if name == "step":
            return None if worker.progress is None else worker.progress.step
        if name == "cpu_seconds" and worker.started_ns is None:
            return None
        value: float | None = getattr(worker, "max_rss" if name == "rss" else name)
        return value or None if name == "rss" else value

    again = len({attempt.number for attempt in timeline.attempts}) > 1
    memory = "Peak memory" if told else "Memory"
    columns = [
        html.numbers("Rank", lambda lane: lane.rank),
        html.numbers("Attempt", lambda lane: lane.attempt if again else None),
        html.PageColumn("Node", lambda lane: lane.node),
        html.PageColumn("Fate", lambda lane: html.badge(lane.fate, lane.fate.replace("_", " "))),
        html.PageColumn("What became of it", lambda lane: lane.text, "wide"),
        html.numbers("Exit", lambda lane: lane.exitcode, _exit_text),
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


def _exit_text(exitcode: float) -> str:
    return signal_name(-int(exitcode)) if exitcode < 0 else str(exitcode)


# A pair of a rank and what it returned
_VALUES = (
    html.numbers("Rank", lambda pair: pair[0]),
    html.PageColumn(
        "Value", lambda pair: html.code(shorten(pair[1].json or "", _LONGEST_VALUE)), "wide"
    ),
    html.PageColumn("Type", lambda pair: pair[1].type_name),
    html.numbers("Size", lambda pair: pair[1].size, _bytes),
)


def _plan_line(line: str) -> str:
    found = _KEY.fullmatch(line)
    if not found:
        return line
    return html.fill(
        '{}<span class="key">{}</span>{}', found["before"], found["key"], found["rest"]
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
