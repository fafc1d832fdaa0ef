"""The page of a run: what failed and where, when, how it went, and what was run. Pure.

What is read of the run is in `lllaunch.pages.run_facts`. A page of hundreds of ranks stays small:
ranks that look alike share a lane, curves of many show the lowest, the highest and the middle one,
logs and tables are cut; every such place says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lllaunch.console.hang import disagreement_text, frame_text, place_text, tree_call
from lllaunch.console.report import failure_text, fate_groups
from lllaunch.console.wording import (
    capitalised,
    counted,
    progress_text,
    ranks,
    shown_path,
    step_text,
)
from lllaunch.documents import signal_name
from lllaunch.pages.html import (
    Markup,
    PageLink,
    TableCell,
    TableColumn,
    TableRow,
    badge,
    definitions,
    disclosure,
    document,
    element,
    joined,
    preformatted,
    section,
    table,
)
from lllaunch.pages.parts import (
    STATE_WORDS,
    UNKNOWN_STATE,
    code_facts,
    host_facts,
    moment,
    own_line,
    page_footer,
    page_heading,
    short_commit,
)
from lllaunch.pages.run_charts import curves_of, lanes_of
from lllaunch.run.excerpts import folded, users_call
from lllaunch.text import count, duration, shorten, size, spans
from lllaunch.watchdog.stacks.frames import is_own
from lllaunch.watchdog.stacks.merged import short_tree, tree_lines

if TYPE_CHECKING:
    from lllaunch.pages.run_facts import LogEnd, RunFacts
    from lllaunch.results.timeline import Lane, RunTimeline
    from lllaunch.run.result import AttemptResult, Hang, RootCause, RunResult, WorkerResult
    from lllaunch.watchdog.stacks.frames import Frame
    from lllaunch.watchdog.stacks.merged import StackBranch

_SECOND = 1e9


def run_page(facts: RunFacts, version: str) -> str:
    """Return the page of a run.

    Args:
        facts: what is known of it.
        version: lllaunch's.
    """
    sections = [
        ("cause", "What happened", _cause(facts)),
        ("time", "In time", _time(facts)),
        ("measured", "Measured", _measured(facts)),
        ("stacks", "Where the workers stood", _stacks(facts)),
        ("logs", "Ends of logs", _logs(facts)),
        ("returned", "What the workers returned", _returned(facts)),
        ("plan", "Plan", _plan(facts)),
        ("environment", "Environment", _environment(facts)),
    ]
    there = [(id_, title, content) for id_, title, content in sections if content]
    body = joined(section(id_, title, content) for id_, title, content in there)
    word = _verdict_word(facts)
    return document(
        f"{word}: {os.path.basename(os.path.abspath(facts.report.directory))}",
        _heading(facts, word),
        body,
        links=[PageLink(id_, title) for id_, title, _ in there],
        footer=page_footer(facts.report.directory, version),
    )


# Above all


def _verdict_word(facts: RunFacts) -> str:
    outcome = facts.outcome
    if facts.problem:
        return "Unreadable"
    if outcome is not None and outcome.signum is not None:
        return f"Ended by {signal_name(outcome.signum)}"
    return STATE_WORDS.get(facts.state, UNKNOWN_STATE)


def _heading(facts: RunFacts, word: str) -> Markup:
    directory, state = facts.report.directory, facts.state
    sentence, more = _verdict(facts), _where(facts)
    return page_heading("Run", directory, state, word, sentence, more, _summary(facts))


def _verdict(facts: RunFacts) -> str:
    """Return what became of a run in one sentence."""
    case, outcome = facts.report.cases[0], facts.outcome
    if outcome is None:
        return capitalised(_going_on(facts) or case.message or "nothing more is known")
    if outcome.state == "error":
        return outcome.error.partition("\n")[0] or "lllaunch could not do its part"
    if outcome.state == "succeeded":
        last = outcome.attempts[-1] if outcome.attempts else None
        workers = counted(0 if last is None else len(last.workers), "worker")
        restarts = f", after {counted(outcome.restarts, 'restart')}" if outcome.restarts else ""
        return f"{workers} in {duration(outcome.seconds)}{restarts}"
    if outcome.root_cause is None:
        return capitalised(_without_cause(outcome) or case.message)
    text = capitalised(failure_text(outcome.root_cause, facts.cwd))
    return text if outcome.no_progress is None else f"{outcome.no_progress}: {text}"


def _without_cause(outcome: RunResult) -> str:
    """Return what is to be said of a run that a signal or a limit ended, and no failure."""
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


def _going_on(facts: RunFacts) -> str:
    """Return how far a run is that goes on; an empty text where that is not known."""
    progress = facts.progress
    if progress is None:
        return ""
    eta = f", about {duration(progress.eta)} left" if progress.eta else ""
    return f"{progress_text(progress)}{eta}"


def _where(facts: RunFacts) -> Markup:
    """Return where in the code that was, in which attempt, and what the launcher exited with."""
    parts: list[str] = []
    outcome, case = facts.outcome, facts.report.cases[0]
    root = None if outcome is None else outcome.root_cause
    if root is not None and case.bad:
        place = _place(root, facts.cwd)
        parts += [place] if place else []
        if outcome is not None and len(outcome.attempts) > 1:
            parts.append(f"attempt {root.attempt}, the last of {len(outcome.attempts)}")
    seconds = facts.entry.seconds
    if facts.state == "running" and seconds is not None:
        parts.append(f"for {duration(seconds)} until this page was made")
    elif outcome is not None and facts.state != "succeeded":
        parts.append(f"after {duration(outcome.seconds)}")
    if case.exit_code:
        parts.append(f"exit code {case.exit_code}")
    return joined(parts, " · ") if parts else Markup()


def _place(root: RootCause, cwd: str) -> Markup:
    """Return the line of the user's code that a run failed in; nothing where it is not known."""
    call = users_call(root.traceback) if root.traceback else None
    if call is not None:
        return _code(f"{shown_path(call.file, cwd)}:{call.line}", call.function)
    hang = root.hang
    stack = None if hang is None else hang.stacks.get(next(iter(hang.blamed), -1))
    frames = root.frames if stack is None else stack.frames
    own = next((frame for frame in frames if is_own(frame)), None)
    if own is None:
        return Markup()
    return _code(f"{shown_path(own.file, cwd)}:{own.line}", own.function)


def _code(place: str, function: str) -> Markup:
    return joined(("at ", element("code", place), " in ", element("code", function)))


def _summary(facts: RunFacts) -> Iterator[tuple[str, str]]:
    outcome, timeline, entry = facts.outcome, facts.timeline, facts.entry
    started = (outcome.started_ns if outcome is not None else 0) or entry.started_ns
    yield "Started", moment(started or timeline.start_ns)
    if outcome is not None:
        yield "Took", element("span", duration(outcome.seconds), title=f"{outcome.seconds} s")
    numbers = {attempt.number for attempt in timeline.attempts}
    yield "Attempts", str(len(numbers)) if numbers else ""
    last = [attempt for attempt in timeline.attempts if attempt.number == max(numbers)]
    workers = sum(len(attempt.lanes) for attempt in last)
    on = f" on {len(timeline.nodes)} nodes" if len(timeline.nodes) > 1 else ""
    yield "Workers", f"{workers}{on}" if workers else ""
    furthest = outcome.attempts[-1].furthest if outcome is not None and outcome.attempts else None
    if furthest is not None and furthest.progress is not None:
        yield "Progress", progress_text(furthest.progress)
    batch = f"{entry.batch_job} {entry.queue}".strip()
    yield "Batch job", batch
    yield "Commit", short_commit(facts.build)
    overrides = entry.overrides
    if overrides:
        yield "Command line", own_line(shorten(" ".join(overrides), _LONGEST_COMMAND), "code")


_LONGEST_COMMAND = 240

# What happened


_EXCERPT = 20


def _cause(facts: RunFacts) -> Markup:
    outcome = facts.outcome
    if outcome is None:
        return _findings(facts.timeline)
    parts = [element("p", line) for line in outcome.error.split("\n")[1:] if line.strip()]
    if outcome.no_progress is not None:
        parts.append(element("p", f"{capitalised(str(outcome.no_progress))}."))
    root = outcome.root_cause
    if root is not None and outcome.state != "succeeded":
        parts += _of_root(root, facts)
    if outcome.limit is not None:
        parts.append(element("p", f"Then the run {outcome.limit}."))
    if outcome.look is not None:
        parts.append(element("p", f"{capitalised(str(outcome.look.finding))}."))
        parts += _standing(outcome.look, facts.cwd)
    aside = []
    if outcome.attempts and outcome.state != "succeeded":
        aside.append(_others(outcome.attempts[-1], root))
    for node in outcome.nodes:
        if node.state == "lost":
            said = f": it {node.said}" if node.said else ""
            aside.append(element("p", f"{capitalised(node.name)} left no result{said}."))
    columns = [element("div", *each) for each in (parts, aside) if any(each)]
    return element("div", *columns, class_="split") if len(columns) > 1 else joined(columns)


def _findings(timeline: RunTimeline) -> Markup:
    """Return what was found in a run that has left no word of its end."""
    marks = [
        mark
        for attempt in timeline.attempts
        for mark in (*attempt.marks, *(mark for lane in attempt.lanes for mark in lane.marks))
        if mark.kind in ("finding", "restart", "root_cause")
    ]
    marks.sort(key=lambda mark: mark.time_ns)
    items = [element("li", moment(mark.time_ns), f": {mark.text}") for mark in marks[-20:]]
    return element("ul", *items) if items else Markup()


def _of_root(root: RootCause, facts: RunFacts) -> Iterator[Markup]:
    cwd = facts.cwd
    if root.explanation is not None:
        sure = element("strong", f"Why ({root.explanation.sure}): ")
        yield element("p", sure, capitalised(root.explanation.text))
    yield from _progress_of(facts.outcome)
    if root.collectives is not None:
        yield element("p", f"{capitalised(disagreement_text(root.collectives, cwd))}.")
    if root.traceback:
        yield element("h3", f"Traceback{_of_rank(root)}")
        yield preformatted(_traceback(root.traceback), f"Traceback{_of_rank(root)}")
    elif "\n" in (message := str(getattr(root.cause, "message", ""))):
        yield preformatted(message.split("\n"), "Message")
    if root.frames:
        yield element("h3", f"Where it stood{_of_rank(root)} (innermost call first)")
        yield preformatted((frame_text(frame, cwd) for frame in root.frames), "Calls")
    if root.hang is not None:
        yield from _of_hang(root.hang, root, cwd)
    if not root.traceback and (log := _telling(facts.logs)) is not None:
        what = "The last lines" if log.cut or len(log.lines) > _EXCERPT else "All"
        title = f"{what} of {log.path}"
        yield element("h3", title)
        yield preformatted(log.lines[-_EXCERPT:], title)


def _of_rank(root: RootCause) -> str:
    return "" if root.rank is None else f" of rank {root.rank}"


def _telling(logs: Sequence[LogEnd]) -> LogEnd | None:
    """Return the log of who is to blame that is worth showing at once."""
    known = {log.stream: log for log in logs if log.blamed}
    return known.get("stderr") or known.get("stdout")


def _progress_of(outcome: RunResult | None) -> Iterator[Markup]:
    last = outcome.attempts[-1] if outcome is not None and outcome.attempts else None
    worker = None if last is None else last.furthest
    if last is None or worker is None or worker.progress is None:
        return
    at_ns = worker.progress.time_ns
    before = (last.ended_ns - at_ns) / _SECOND
    when = f", {duration(before)} before the end" if before >= 10 and at_ns else ""
    yield element("p", f"Rank {worker.rank} was at {progress_text(worker.progress)}{when}.")


def _traceback(text: str) -> Iterator[str]:
    """Yield the lines of a traceback; what was raised stands out."""
    lines = folded(text)
    for number, line in enumerate(lines):
        is_error = line[:1].strip() and not line.startswith("Traceback") and ":" in line
        last = number == len(lines) - 1
        yield element("span", line, class_="hot") if is_error or last else line


def _of_hang(hang: Hang, root: RootCause, cwd: str) -> Iterator[Markup]:
    if not root.of_watchdog:
        after = duration(max(0, hang.time_ns - root.time_ns) / _SECOND)
        yield element("p", f"The watchdog ended the attempt {after} later: {hang.finding}.")
    yield from _standing(hang, cwd)


def _standing(hang: Hang, cwd: str) -> Iterator[Markup]:
    """Yield where the workers stood: those who hang with their calls, or all where nobody does."""
    if hang.collectives is not None:
        yield element("p", f"{capitalised(disagreement_text(hang.collectives, cwd))}.")
    if hang.left:
        yield element("p", f"{_members([*hang.left])} had ended with success before.")
    for numbers, what in (
        (hang.asleep, "in uninterruptible sleep in the kernel"),
        (hang.stopped, "stopped by a signal, and nobody let it go on"),
    ):
        if numbers:
            yield element("p", f"{_members(numbers)}: {what}.")
    nobody = not hang.hung and not hang.waiting
    for place, members in _by_place(hang, [*hang.stacks] if nobody else hang.hung, cwd):
        stack = hang.stacks.get(members[0])
        if stack is not None and stack.frames:
            title = f"{_members(members)} stood here (innermost call first)"
            yield element("h3", title)
            yield preformatted(_calls(stack.frames[:_MOST_CALLS], cwd), title)
        else:
            yield element("p", f"{_members(members)} stood {place or 'nobody knows where'}.")
    for place, members in _by_place(hang, hang.waiting, cwd):
        what = "waited" if hang.left else "only waited for that"
        yield element("p", f"{_members(members)} {what} {place}.")


_MOST_CALLS = 16
_MOST_PLACES = 8
_LONGEST_LIST = 60


def _members(numbers: Sequence[int]) -> str:
    """Return ranks as the subject of a sentence; of very many how many, and the first ones."""
    text = spans(numbers)
    if len(text) <= _LONGEST_LIST:
        return capitalised(ranks(numbers))
    return f"{len(numbers)} ranks ({text[:_LONGEST_LIST].rpartition(',')[0]}, ...)"


def _by_place(hang: Hang, members: Iterable[int], cwd: str) -> list[tuple[str, list[int]]]:
    groups: dict[str, list[int]] = {}
    for rank in members:
        stack = hang.stacks.get(rank)
        groups.setdefault("" if stack is None else place_text(stack, cwd), []).append(rank)
    return sorted(groups.items(), key=lambda group: -len(group[1]))[:_MOST_PLACES]


def _calls(frames: Sequence[Frame], cwd: str) -> Iterator[str]:
    for frame in frames:
        text = frame_text(frame, cwd)
        yield element("strong", text) if is_own(frame) else text


def _others(attempt: AttemptResult, root: RootCause | None) -> Markup:
    """Return what became of the workers that are not to blame, those with one fate in one line."""
    named = () if root is None else root.ranks
    others = [worker for worker in attempt.workers if worker.rank not in named]
    known = root is not None and bool(root.ranks or root.subject)
    groups = fate_groups(others, root, after_root=known)
    if not groups:
        return Markup()
    title = "The other workers" if known else "The workers"
    columns = [
        TableColumn("Ranks"),
        TableColumn("Number", numeric=True),
        TableColumn("What became of them", wide=True),
    ]
    rows = [
        TableRow(
            (
                shorten(spans(worker.rank for worker in group), 80),
                TableCell(str(len(group)), len(group)),
                capitalised(fate),
            )
        )
        for group, fate in groups[:_MOST_GROUPS]
    ]
    return joined((element("h3", title), table(title, columns, rows, hidden_caption=True)))


_MOST_GROUPS = 40


# In time


_FOLDED_ROWS = 12
_MOST_ROWS = 2000


def _time(facts: RunFacts) -> Markup:
    timeline = facts.timeline
    if not timeline.attempts:
        return Markup()
    workers = _workers(timeline, facts.outcome)
    rows = sum(len(attempt.lanes) for attempt in timeline.attempts)
    shown = disclosure(f"All workers ({rows})", workers, is_open=rows <= _FOLDED_ROWS)
    return joined((lanes_of(timeline), _attempts(facts), shown if workers else Markup()))


def _attempts(facts: RunFacts) -> Markup:
    """Return a table of the attempts; of the only one all is said already."""
    outcome = facts.outcome
    if outcome is None or len(outcome.attempts) < 2:
        return Markup()
    columns = [
        TableColumn("Attempt", numeric=True),
        TableColumn("State"),
        TableColumn("Began", minor=True),
        TableColumn("Took", numeric=True),
        TableColumn("Root cause", wide=True),
    ]
    rows = []
    for attempt in outcome.attempts[-_MOST_ROWS:]:
        seconds = max(0, attempt.ended_ns - attempt.started_ns) / _SECOND
        root = attempt.root_cause
        at = None if attempt.furthest is None else attempt.furthest.progress
        step = "" if at is None else step_text(at.step, at.total)
        cause = "" if root is None else capitalised(failure_text(root, facts.cwd))
        rows.append(
            TableRow(
                (
                    TableCell(str(attempt.number), attempt.number),
                    badge(attempt.state, attempt.state),
                    moment(attempt.started_ns),
                    TableCell(duration(seconds), seconds),
                    ", at ".join(filter(None, (cause, step))),
                )
            )
        )
    shown = table("Attempts", columns, rows, hidden_caption=True)
    if len(rows) > _FOLDED_ROWS:
        return disclosure(f"All attempts ({len(outcome.attempts)})", shown)
    return joined((element("h3", "Attempts"), shown))


def _workers(timeline: RunTimeline, outcome: RunResult | None) -> Markup:
    """Return a table of all workers of all attempts, the newest attempt first."""
    told: dict[tuple[int, int], WorkerResult] = {}
    for attempt in () if outcome is None else outcome.attempts:
        told |= {(attempt.number, worker.rank): worker for worker in attempt.workers}
    several = len(timeline.nodes) > 1
    again = len({attempt.number for attempt in timeline.attempts}) > 1
    columns = [
        TableColumn("Rank", numeric=True),
        *([TableColumn("Attempt", numeric=True)] if again else []),
        *([TableColumn("Node")] if several else []),
        TableColumn("Fate"),
        TableColumn("What became of it", wide=True),
        TableColumn("Exit", numeric=True),
        TableColumn("Took", numeric=True),
        TableColumn("Peak memory" if told else "Memory", numeric=True, minor=True),
        TableColumn("CPU time", numeric=True, minor=True),
        TableColumn("Step", numeric=True, minor=True),
        TableColumn("Pid", numeric=True, minor=True),
    ]
    measured = {
        (series.name, series.attempt, series.of): series.points[-1][1]
        for series in timeline.series
        if series.name in ("rss", "step") and not series.metric and series.points
    }
    every = [
        lane
        for attempt in sorted(timeline.attempts, key=lambda each: -each.number)
        for lane in attempt.lanes
    ]
    rows = [
        _worker(lane, told.get((lane.attempt, lane.rank)), measured, several=several, again=again)
        for lane in every[:_MOST_ROWS]
    ]
    more = len(every) - len(rows)
    rest = element("p", f"{more} more are in result.json.") if more else Markup()
    caption = "All workers, the newest attempt first" if again else "All workers"
    columns, rows = _without_empty(columns, rows)
    return joined((table(caption, columns, rows), rest)) if rows else Markup()


def _without_empty(
    columns: Sequence[TableColumn], rows: Sequence[TableRow]
) -> tuple[list[TableColumn], list[TableRow]]:
    """Return a table without the columns that say nothing of any row."""
    kept = [
        place for place in range(len(columns)) if any(_content(row.cells[place]) for row in rows)
    ]
    shown = [row._replace(cells=[row.cells[place] for place in kept]) for row in rows]
    return [columns[place] for place in kept], shown


def _content(cell: str | TableCell) -> str:
    return cell.content if isinstance(cell, TableCell) else cell


def _worker(
    lane: Lane,
    worker: WorkerResult | None,
    measured: Mapping[tuple[str, int, str], float],
    *,
    several: bool,
    again: bool,
) -> TableRow:
    took = [span for span in lane.spans if span.kind == "run"]
    seconds = (took[-1].end_ns - took[0].start_ns) / _SECOND if took else None
    code = lane.exitcode
    exit_text = "" if code is None else signal_name(-code) if code < 0 else str(code)
    last = lane.attempt, str(lane.rank)
    rss = measured.get(("rss", *last)) if worker is None else worker.max_rss or None
    used = None if worker is None or worker.started_ns is None else worker.cpu_seconds
    step = measured.get(("step", *last))
    if worker is not None:
        step = None if worker.progress is None else worker.progress.step
    pid = None if worker is None else worker.pid
    return TableRow(
        (
            TableCell(str(lane.rank), lane.rank),
            *([TableCell(str(lane.attempt), lane.attempt)] if again else []),
            *([lane.node] if several else []),
            badge(lane.fate, lane.fate.replace("_", " ")),
            lane.text,
            TableCell(exit_text, code),
            TableCell("" if seconds is None else duration(seconds), seconds),
            TableCell("" if rss is None else size(round(rss)), rss),
            TableCell("" if used is None else duration(used), used),
            TableCell("" if step is None else count(step), step),
            TableCell("" if pid is None else str(pid), pid),
        ),
        kind=lane.fate,
    )


def _measured(facts: RunFacts) -> Markup:
    root = None if facts.outcome is None else facts.outcome.root_cause
    return curves_of(facts.timeline, () if root is None else root.ranks)


# Stacks, logs, what was returned


_LONG_TREE = 60


def _stacks(facts: RunFacts) -> Markup:
    outcome = facts.outcome
    root = None if outcome is None else outcome.root_cause
    hang = None if root is None else root.hang
    hang = hang or (None if outcome is None else outcome.look)
    parts = []
    if hang is not None and hang.stacks:
        stacks = list(hang.stacks.values())
        title = "All ranks as one tree, outermost call first; calls inside libraries are folded"
        parts.append(element("p", title))
        parts.append(preformatted(_tree(short_tree(stacks, _LONG_TREE), facts.cwd), title))
    for text in facts.stacks:
        cut = ", its beginning" if text.cut else ""
        summary = joined(
            (f"Attempt {text.attempt}, with all calls: ", element("code", text.path), cut)
        )
        parts.append(disclosure(summary, preformatted(text.lines, text.path)))
    return joined(parts)


def _tree(roots: tuple[StackBranch, ...], cwd: str) -> Iterator[str]:
    return tree_lines(roots, lambda call: tree_call(call, cwd))


def _logs(facts: RunFacts) -> Markup:
    outcome = facts.outcome
    root = None if outcome is None else outcome.root_cause
    # what stderr says before a traceback; without one its end stands above
    opened = "stderr" if root is not None and root.traceback else ""
    again = len({attempt.number for attempt in facts.timeline.attempts}) > 1
    parts = []
    for log in facts.logs:
        cut = f"the last {len(log.lines)} lines" if log.cut else counted(len(log.lines), "line")
        who = element("strong", f"rank {log.rank}")
        attempt = f", attempt {log.attempt}" if again else ""
        summary = joined((who, f"{attempt}, {log.stream}: {cut} of ", element("code", log.path)))
        lines = preformatted(log.lines, f"Log of rank {log.rank}, {log.stream}")
        parts.append(disclosure(summary, lines, is_open=log.blamed and log.stream == opened))
    return joined(parts)


_MOST_VALUES = 64
_LONGEST_VALUE = 2000


def _returned(facts: RunFacts) -> Markup:
    outcome = facts.outcome
    values = {} if outcome is None else outcome.return_values
    columns = [
        TableColumn("Rank", numeric=True),
        TableColumn("Value", wide=True),
        TableColumn("Type"),
        TableColumn("Size", numeric=True),
    ]
    rows = [
        TableRow(
            (
                TableCell(str(rank), rank),
                element("code", shorten(value.json or "", _LONGEST_VALUE)) if value.json else "",
                value.type_name,
                TableCell(size(value.size), value.size),
            )
        )
        for rank, value in list(values.items())[:_MOST_VALUES]
    ]
    parts = [table("Return values", columns, rows, hidden_caption=True)] if rows else []
    left = (
        []
        if outcome is None
        else [
            f"Attempt {attempt.number} left process {each.pid} behind ({each.command})"
            f"{'; it was killed' if each.killed else ''}"
            for attempt in outcome.attempts
            for each in attempt.leftovers
        ]
    )
    if left:
        parts.append(element("ul", *(element("li", text) for text in left[:_MOST_VALUES])))
    return joined(parts)


# What was run


_KEY = re.compile(r"(?P<before>\s*(?:- )*)(?P<key>[^\s#'\"][^:#]*:)(?P<rest>\s.*|)", re.DOTALL)
_MOST_PLAN_LINES = 1500


def _plan(facts: RunFacts) -> Markup:
    if not facts.plan:
        return Markup()
    lines = facts.plan[:_MOST_PLAN_LINES]
    parts = [preformatted(map(_plan_line, lines), "plan.yaml")]
    more = len(facts.plan) - len(lines)
    parts += [element("p", f"{counted(more, 'more line')} in plan.yaml.")] if more else []
    overrides = facts.entry.overrides
    if overrides:
        items = (element("li", element("code", each)) for each in overrides[:_MOST_VALUES])
        parts.append(element("h3", "Set on the command line"))
        parts.append(element("ul", *items))
    return joined(parts)


def _plan_line(line: str) -> Markup:
    found = _KEY.fullmatch(line)
    if not found:
        return joined((line,))
    return joined((found["before"], element("span", found["key"], class_="key"), found["rest"]))


def _environment(facts: RunFacts) -> Markup:
    outcome = facts.outcome
    own = [
        ("Run id", "" if outcome is None else outcome.run_id),
        ("Plan hash", "" if outcome is None else own_line(outcome.plan_hash, "code")),
    ]
    known = definitions([*host_facts(facts.host), *own, *code_facts(facts.build)])
    return joined((known, _nodes(outcome)))


def _nodes(outcome: RunResult | None) -> Markup:
    nodes = () if outcome is None else outcome.nodes
    if not nodes:
        return Markup()
    columns = [
        TableColumn("Node"),
        TableColumn("State"),
        TableColumn("Workers", numeric=True),
        TableColumn("Exit", numeric=True),
        TableColumn("What happened to it", wide=True),
        TableColumn("Clock ahead", numeric=True, minor=True),
        TableColumn("Directory", minor=True, wide=True),
    ]
    rows = []
    for node in nodes[:_MOST_ROWS]:
        ahead, code = node.clock_offset, node.exit_code
        rows.append(
            TableRow(
                (
                    node.name,
                    badge(node.state, node.state),
                    TableCell(str(node.nproc), node.nproc),
                    TableCell("" if code is None else str(code), code),
                    node.said,
                    TableCell("" if ahead is None else f"{round(ahead * 1000, 1) + 0.0} ms", ahead),
                    node.directory if node.shared else f"{node.hostname}:{node.directory}",
                )
            )
        )
    return joined((element("h3", "Nodes"), table("Nodes", columns, rows, hidden_caption=True)))
