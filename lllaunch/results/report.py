"""What is told of a run or a sweep, finished or not: a case for each job, as text, JSON or JUnit.

Documents may be of any make, and logs may hold anything: what is read is bounded, only regular
files within the directory are read, and what cannot be understood is told, not guessed.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from lllaunch.console.report import report_body, title_text
from lllaunch.console.stream import showing
from lllaunch.documents import isoformat, signal_name
from lllaunch.errors import ExitCode
from lllaunch.files import naming, relative_path, working_directory, write_atomic
from lllaunch.results.locate import locate
from lllaunch.results.store import FoundDirectory, ListEntry, unreadable
from lllaunch.results.sweeps import SweepView, view_sweep
from lllaunch.results.view import Log, RunView, view_run
from lllaunch.run.directory import RESULT
from lllaunch.run.excerpts import place_of
from lllaunch.text import clean, duration, first_line, plain, shorten
from lllaunch.words import UNFINISHED, ending, jobs_text, state_title, took, verdict_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lllaunch.results.store import BatchFacts
    from lllaunch.run.result import RunResult
    from lllaunch.sweep.history import JobHistory


class CodeLine(NamedTuple):
    """A line of a source file."""

    file: str  # its path, relative to one of the roots of the user's source files
    line: int


Outcome = Literal["succeeded", "failed", "error", "skipped"]


@dataclass(frozen=True)
class Case:
    """What became of a run or of a job.

    All texts are clean: nothing in them steers a terminal or cannot stand in XML.
    """

    name: str
    # ``succeeded``; ``failed`` (workers did, or the watchdog ended them); ``error`` (the config was
    # wrong, lllaunch failed, a signal ended it, its end is not known); ``skipped`` (it was not
    # started)
    outcome: Outcome
    job: int | None = None
    # as result.json or sweep.json has it; ``unfinished`` if there is no result.json
    state: str = ""
    # type of the root cause, such as ``Raised``; ``config``, ``signal``, ``unfinished``, ... for
    # others; empty if it succeeded
    kind: str = ""
    message: str = ""
    exit_code: int | None = None
    seconds: float | None = None
    started: str = ""  # when, ISO 8601 in UTC, or empty
    hostname: str = ""
    directory: str = "."  # its directory, relative to that of the report
    logs_in: str = ""  # the directory of its last attempt, relative to that of the report, or empty
    overrides: tuple[str, ...] = ()
    plan_hash: str = ""
    run_id: str = ""
    attempts: int | None = None
    tries: int | None = None
    explanation: tuple[str, ...] = ()  # lines that tell why it failed
    place: CodeLine | None = None
    logs: tuple[Log, ...] = ()

    @property
    def word(self) -> str:
        """What it did, as everything says it that shows a sweep."""
        words = {"error": "running" if self.kind == "running" else "failed", "skipped": "not run"}
        return words.get(self.outcome, self.outcome)

    @property
    def text(self) -> str:
        """All that is to be told of it."""
        return "\n".join(self.explanation) or self.message

    @property
    def bad(self) -> bool:
        """Whether something went wrong in it."""
        return self.outcome in {"failed", "error"}


@dataclass(frozen=True)
class Report:
    """What is told of a run or a sweep."""

    kind: Literal["run", "sweep"]
    directory: str
    cases: tuple[Case, ...]
    # one line, as the terminal has it: ``1 of 3 jobs succeeded, 2 failed in 0.8 s (exit code 6)``
    verdict: str = ""
    finished: bool = True
    exit_code: int | None = None
    seconds: float | None = None
    started: str = ""
    version: str = ""
    common: tuple[str, ...] = ()

    def count(self, outcome: Outcome) -> int:
        """How many cases have an outcome."""
        return sum(case.outcome == outcome for case in self.cases)

    def title(self, case: Case, longest: int = 120) -> str:
        """Returns what a case is called: ``job 1 (params.lr=0.1)``, or ``run``."""
        if case.job is None:
            return "run"
        own = " ".join(each for each in case.overrides if each not in self.common)
        return f"job {case.job} ({shorten(own, longest)})" if own else f"job {case.job}"


# Reading

_OUTCOMES: dict[str, Outcome] = {"succeeded": "succeeded", "failed": "failed"}
_UNKNOWN = "no result.json: still running, or its launcher was killed"


def run_case(
    result: RunResult, roots: Sequence[str], logs: Sequence[Log] = (), cwd: str = os.sep
) -> Case:
    """Return what a result.json says; what is told of a failure is the report on the terminal."""
    last = result.attempts[-1].path if result.attempts else ""
    case = Case(
        name="run",
        outcome=_OUTCOMES.get(result.state, "error"),
        state=result.state,
        exit_code=result.exit_code,
        seconds=result.seconds if result.started_ns else None,
        started=isoformat(result.started_ns) if result.started_ns else "",
        hostname=clean("" if result.host is None else result.host.hostname),
        plan_hash=clean(result.plan_hash),
        run_id=clean(result.run_id),
        attempts=len(result.attempts),
        logs_in=clean(os.path.relpath(last, result.directory)) if last else "",
    )
    if case.outcome == "succeeded":
        lost = (node.name for node in result.nodes if node.state == "lost")
        return replace(case, message=clean("; ".join(f"{name} left no result" for name in lost)))
    kind = _kind_of_state(result.state, result.exit_code)
    told = "\n".join(line.text for line in report_body(result, cwd))
    return replace(
        case,
        kind=(clean(result.cause_type) or "failed") if result.state == "failed" else kind,
        message=_message(result),
        explanation=tuple(clean(told).strip("\n").splitlines()),
        place=_place(result, roots),
        logs=tuple(logs),
    )


def _job_case(job: JobHistory, run: Case | None, common: Sequence[str], sweep: str) -> Case:
    overrides = tuple(map(clean, job.overrides))
    own = [each for each in overrides if each not in common]
    state = clean(job.state)
    case = run if run is not None and run.state == state else _bare(job, state, sweep)
    return replace(
        case,
        name=" ".join(own or overrides) or f"job {job.job}",
        job=job.job,
        overrides=overrides,
        tries=job.tries,
        directory=clean(job.directory),
    )


def _bare(job: JobHistory, state: str, sweep: str) -> Case:
    """Return what sweep.json alone says of a job of a sweep in some state."""
    ended = job.result
    exit_code = None if ended is None else ended.exit_code
    outcome: Outcome = _OUTCOMES.get(state, "error")
    kind, message = _kind_of_state(state, exit_code), "" if ended is None else ended.root_cause
    if state in {"composed", "skipped"}:
        outcome, kind = "skipped", "not_run"
        message = job.reason or "it was not started"
    elif state == "started":
        message, kind = UNFINISHED.get(sweep, _UNKNOWN), "running" if sweep == "running" else kind
    message = clean(first_line(message))
    return Case(
        name="",
        outcome=outcome,
        state=state,
        kind="" if outcome == "succeeded" else kind,
        message=message or ("" if outcome == "succeeded" else ending(exit_code, "")),
        exit_code=exit_code,
        seconds=None if ended is None else ended.seconds,
        started=isoformat(job.started_ns) if job.started_ns else "",
    )


def _kind_of_state(state: str, exit_code: int | None) -> str:
    if state == "signalled":
        return "signal"
    if state == "error":
        return "config" if exit_code == ExitCode.CONFIG else "error"
    return {"started": "unfinished"}.get(state, state)


def _message(result: RunResult) -> str:
    if result.state == "signalled":
        signum = result.signum
        return f"ended by {'a signal' if signum is None else signal_name(signum)}"
    return clean(first_line(result.failure)) or "workers failed"


def _place(result: RunResult, roots: Sequence[str]) -> CodeLine | None:
    """Return the line that a run failed in, if it is in a file below one of the roots."""
    frame = None if result.root_cause is None else place_of(result.root_cause)
    if frame is None or not frame.file.isprintable():
        return None
    path = os.path.normpath(frame.file)
    below = (path.removeprefix(f"{root.rstrip('/')}/") for root in roots)
    known = (each for each in (path, *below) if not each.startswith(("/", "../")))
    return next((CodeLine(each, frame.line) for each in known), None)


LOG_LINES = 100
"""How many lines of a log are kept."""


def load(found: FoundDirectory, roots: Sequence[str] = ()) -> Report:
    """Read what became of a run or a sweep.

    Raises:
        ConfigError: a file there makes no sense.
        OutputError: a file cannot be read.
    """
    if found.kind == "run":
        return run_report(view_run(found), roots)
    return sweep_report(view_sweep(found.path), roots)


def run_report(run: RunView, roots: Sequence[str]) -> Report:
    """Return what is told of a run; raises as `load` does."""
    entry, result = run.entry, run.outcome
    if entry.error is not None:
        raise entry.error
    overrides = tuple(map(clean, entry.overrides))
    name = " ".join(overrides) or "run"
    if result is not None:
        case = replace(run_case(result, roots, _logs(run), run.cwd), name=name)
        if case.bad and entry.batch is not None:
            case = replace(case, explanation=(*case.explanation, *batch_lines(entry.batch)))
    else:
        case = Case(
            *(name, "error"),
            state="unfinished",
            kind="unfinished",
            message=message_of(entry),
            exit_code=entry.exit_code,
            explanation=() if entry.batch is None else tuple(batch_lines(entry.batch)),
        )
    case = replace(case, overrides=overrides)
    verdict = case.message if result is None else clean(title_text(result))
    if case.outcome == "succeeded" and case.message:
        # of several nodes one left no result
        verdict += f"; {case.message}"
    return Report(
        "run",
        clean(run.path),
        (case,),
        verdict,
        finished=result is not None,
        exit_code=case.exit_code,
        seconds=case.seconds,
        started=case.started,
    )


def message_of(entry: ListEntry) -> str:
    """Return in a line what became of a run that has no result."""
    return clean(entry.root_cause) or UNFINISHED.get(entry.state, _UNKNOWN)


def batch_lines(batch: BatchFacts) -> Iterator[str]:
    """Yield how often a batch job started, and why it did not go back into the queue."""
    if batch.text:
        yield f"Starts of its batch job: {batch.text}"
    if batch.reason:
        yield f"Not put back into the queue: {batch.reason}"


def sweep_report(sweep: SweepView, roots: Sequence[str]) -> Report:
    """Return what is told of a sweep; raises as `load` does."""
    result = sweep.result
    if sweep.entry.error is not None or result is None:
        raise sweep.entry.error or unreadable(sweep.path, "has neither a journal nor a sweep.json")
    over = result.exit_code is not None
    jobs = result.jobs
    common = tuple(map(clean, sweep.common))
    runs = dict(_runs(sweep.path, jobs, roots))
    state = "" if over else sweep.entry.state
    verdict = verdict_text(sweep.entry.counts, result.seconds, result.exit_code)
    if not over:
        verdict = f"{state_title(state).lower()}: {jobs_text(sweep.entry.counts)}"
    return Report(
        kind="sweep",
        directory=clean(sweep.path),
        verdict=verdict,
        cases=tuple(_job_case(job, runs.get(job.job), common, state) for job in jobs),
        finished=over,
        exit_code=result.exit_code,
        seconds=result.seconds if result.started_ns and over else None,
        started=isoformat(result.started_ns) if result.started_ns else "",
        version=clean(result.lllaunch or ""),
        common=common,
    )


def _runs(
    sweep: str, jobs: Iterable[JobHistory], roots: Sequence[str]
) -> Iterator[tuple[int, Case]]:
    """Yield what the result.json of each job tells, where there is one of its own."""
    owners = {
        job.directory: job
        for job in sorted(jobs, key=lambda job: (job.started_ns, job.job))
        if job.started_ns and job.directory
    }
    for directory, job in owners.items():
        run = view_run(FoundDirectory(os.path.join(sweep, directory), "run", frozenset({RESULT})))
        # where it is of no use sweep.json tells the rest. The moment of the start has microseconds
        # or nanoseconds, that of the end has the former
        if run.result is None or run.result.ended_ns < job.started_ns // 1000 * 1000:
            continue
        place = clean(directory)
        logs = tuple(log._replace(path=os.path.join(place, log.path)) for log in _logs(run))
        case = run_case(run.outcome or run.result, roots, logs, run.cwd)
        yield job.job, replace(case, logs_in=os.path.join(place, case.logs_in))


def _logs(run: RunView) -> tuple[Log, ...]:
    """Return the ends of the logs of the worker that a run failed because of."""
    return tuple(
        log._replace(path=clean(log.path), lines=tuple(map(clean, log.lines)))
        for log in (() if run.blamed is None else run.logs_of(run.blamed, LOG_LINES))
    )


# Rendering


VERSION = 1
"""Version of the JSON form; grows when a field changes its meaning."""


def render_text(report: Report) -> str:
    """Returns a report as lines for people: the verdict, and what is to be told of each failure."""
    lines = [f"lllaunch: {report.directory}: {report.verdict}"]
    for case in report.cases:
        if case.outcome != "succeeded":
            lines += ["", *_case(report, case)]
    return "\n".join(map(plain, lines)) + "\n"


def _case(report: Report, case: Case) -> Iterator[str]:
    took = f" after {duration(case.seconds)}" if case.seconds is not None else ""
    yield f"  {report.title(case)} {case.word}{took if case.bad else ''}: {case.message}"
    if case.bad:
        if case.place:
            yield f"    at {case.place.file}:{case.place.line}"
        yield from (f"    {line}".rstrip() for line in ("", *case.explanation))


def render_json(report: Report) -> str:
    """Returns a report as JSON: the same fields for a run and for a sweep."""
    cases = []
    for case in report.cases:
        fields = asdict(case)
        fields["file"], fields["line"] = fields.pop("place") or (None, None)
        fields["explanation"] = "\n".join(case.explanation) or None
        cases.append({**fields, "logs": {log.stream: log.path for log in case.logs}})
    document = {
        "version": VERSION,
        "kind": report.kind,
        "directory": report.directory,
        "finished": report.finished,
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "started": report.started or None,
        "seconds": report.seconds,
        "counts": {
            outcome: report.count(outcome)
            for outcome in ("succeeded", "failed", "error", "skipped")
        },
        "cases": cases,
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


# As JUnit XML. There are two schemas of it in use: that of Jenkins' xUnit plugin (junit-10.xsd),
# and that of Apache Ant's task (JUnit.xsd of windyroad). What is written here is valid by both. The
# second knows properties and output of test suites only, so each case is a suite with one test case
# in it.

# All that XML 1.0 has no place for; a carriage return would be read as a newline.
_IMPOSSIBLE = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAGS = {"failed": "failure", "error": "error", "skipped": "skipped"}
_COUNTS = (("failures", "failed"), ("errors", "error"), ("skipped", "skipped"))
_NAME = 500
_EPOCH = "1970-01-01T00:00:00"


def render_junit(report: Report, name: str = "lllaunch") -> str:
    """Returns the text of a JUnit XML file.

    A run, or each job of a sweep, is a test case. One whose workers failed, or that the watchdog
    ended, has a ``failure``; one that could not be run, was killed, or whose end is not known, an
    ``error``; one that was not started is ``skipped``.

    ``name``: class name of the test cases: what CI systems group them by.
    """
    root, group = Element("testsuites"), _one_line(name) or "lllaunch"
    taken: set[str] = set()
    for index, case in enumerate(report.cases):
        # the same in every run of the same jobs, and unique
        shown = _one_line(shorten(case.name, _NAME)) or f"case {index}"
        while shown in taken:
            shown += f" (job {index if case.job is None else case.job})"
        taken.add(shown)
        root.append(_suite(report, case, index, group, shown))
    indent(root)
    text = tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _suite(report: Report, case: Case, index: int, group: str, name: str) -> Element:
    seconds = f"{case.seconds or 0:.3f}"
    suite = Element(
        "testsuite",
        {
            "name": group if case.job is None else f"{group}.job_{case.job}",
            "package": group,
            "id": str(index),
            "hostname": _one_line(case.hostname) or "localhost",
            # the schema of Ant knows neither fractions nor zones
            "timestamp": (case.started or report.started or _EPOCH)[: len(_EPOCH)],
            "tests": "1",
            **{count: str(int(case.outcome == what)) for count, what in _COUNTS},
            "time": seconds,
        },
    )
    properties = SubElement(suite, "properties")
    for key, value in _properties(report, case).items():
        if value is not None and value != "":
            SubElement(properties, "property", {"name": key, "value": _one_line(str(value))})
    test = SubElement(suite, "testcase", {"name": name, "classname": group, "time": seconds})
    if case.outcome != "succeeded":
        told = {"type": _one_line(case.kind) or case.outcome, "message": _one_line(case.message)}
        SubElement(test, _TAGS[case.outcome], told).text = _text(case.text.splitlines())
    logs = {log.stream: log for log in case.logs if log.lines}
    for tag, stream in (("system-out", "stdout"), ("system-err", "stderr")):
        log, text = logs.get(stream), ""
        if log is not None:
            text = _text([f"{'The last lines' if log.cut else 'All'} of {log.path}:", *log.lines])
        SubElement(suite, tag).text = text
    return suite


def _properties(report: Report, case: Case) -> dict[str, str | int | None]:
    return {
        "lllaunch.version": report.version,
        "state": case.state,
        "exit_code": case.exit_code,
        "plan_hash": case.plan_hash,
        "overrides": " ".join(case.overrides),
        "job": case.job,
        "tries": case.tries,
        "attempts": case.attempts,
        "run_id": case.run_id,
        "directory": case.directory,
        "file": f"{case.place.file}:{case.place.line}" if case.place else "",
    }


def _text(lines: list[str]) -> str:
    return _IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", "\n".join(lines)) + "\n"


def _one_line(text: str) -> str:
    return " ".join(_IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", text).split())


ANNOTATIONS = 10
"""How many annotations of each kind GitHub shows of a step."""

SUMMARY_BYTES = 1024 * 1024
"""How long the summary of a step may be."""

Level = Literal["error", "warning", "notice"]

_MESSAGE = 4000  # characters of an annotation
_TITLE = 200
_ROWS = 200
_FEW = 20  # so many jobs are all shown in the table, whatever became of them


def annotation(
    level: Level, message: str, *, title: str = "", file: str = "", line: int | None = None
) -> str:
    """Returns a workflow command, as one line without a newline.

    ``file``: path of a file, relative to the repository's root.
    """
    given = {"file": file, "line": "" if line is None or not file else str(line), "title": title}
    properties = ",".join(
        f"{key}={_data(value).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in given.items()
        if value
    )
    return f"::{level}{' ' if properties else ''}{properties}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def commands(report: Report) -> list[str]:
    """Returns a workflow command for each failure, and one for all jobs that were not run."""
    found = limited("error", [_failure(report, case) for case in report.cases if case.bad])
    if skipped := report.count("skipped"):
        message = f"{skipped} of {len(report.cases)} jobs were not run"
        found.append(annotation("warning", message, title="lllaunch"))
    return found


def limited(level: Level, lines: list[str], title: str = "lllaunch") -> list[str]:
    """Returns annotations; of more than ten the tenth says how many are left out."""
    if (more := len(lines) - ANNOTATIONS + 1) < 2:
        return lines
    text = f"{more} more {level}s, see the log or the summary"
    return [*lines[: ANNOTATIONS - 1], annotation(level, text, title=title)]


def _failure(report: Report, case: Case) -> str:
    text = case.text
    if len(text) > _MESSAGE:
        # what happened is at the beginning, the innermost frames and the exception are at the end
        text = f"{case.message}\n...\n{text[-(_MESSAGE - len(case.message)) :]}"
    file, line = case.place or ("", None)
    title = f"lllaunch: {report.title(case)} {case.word}"
    return annotation("error", text, title=shorten(title, _TITLE), file=file, line=line)


def summary(report: Report, limit: int = SUMMARY_BYTES) -> str:
    """Returns the summary of a step, in GitHub's Markdown: a table of jobs, and what failed.

    ``limit``: how long it may be, bytes in UTF-8.
    """
    head = [f"### lllaunch: {_escaped(report.verdict)}", "", _code(report.directory)]
    head += _table(report) if report.kind == "sweep" else ()
    told = (["", *_case(report, case)] for case in report.cases if case.bad)
    return step_summary(head, [line for lines in told for line in lines][1:], limit)


def step_summary(head: Sequence[str], lines: Sequence[str], limit: int) -> str:
    """Returns Markdown with lines as they are below it; fewer of them if it were too long."""
    text = "\n".join([*head, *(("", *fenced(lines)) if lines else ())]) + "\n"
    while lines and len(encoded(text)) > limit:
        lines = lines[: len(lines) // 2]
        text = "\n".join([*head, "", *fenced([*lines, "More is in the log."])]) + "\n"
    return text if len(encoded(text)) <= limit else ""


def _table(report: Report) -> Iterator[str]:
    few = len(report.cases) <= _FEW
    shown = [case for case in report.cases if few or case.outcome != "succeeded"]
    if not shown:
        return
    yield "\n| job | overrides | state | tries | time | root cause |"
    yield "|--:|---|---|--:|--:|---|"
    for case in shown[:_ROWS]:
        own = [each for each in case.overrides if each not in report.common]
        cells = (
            str(case.job),
            _code(shorten(" ".join(own), 120)),
            f"**{case.outcome}**" if case.bad else case.outcome,
            "" if case.tries is None else str(case.tries),
            took(case.seconds),
            _escaped(shorten(case.message, 200)),
        )
        yield f"| {' | '.join(cells)} |"
    if len(shown) > _ROWS:
        yield f"\n{len(shown) - _ROWS} more are in sweep.json."


def fenced(lines: Sequence[str]) -> list[str]:
    """Returns lines as a block of Markdown that none of them can end."""
    longest = max((len(run) for run in re.findall("`+", "\n".join(lines))), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *lines, fence]


def _escaped(text: str) -> str:
    """Returns a text that stands for itself in a line of Markdown or a cell of a table."""
    return re.sub(
        r"_|[^\w\s=.,;/+()'\"-]", lambda found: f"&#{ord(found[0])};", " ".join(text.split())
    )


def _code(text: str) -> str:
    return f"<code>{_escaped(text)}</code>" if text.strip() else ""


_REPORT = "report for GitHub Actions"


@showing(_REPORT)
def announce(path: str) -> None:
    """Tells GitHub Actions what became of a run or a sweep, if this process runs there.

    Prints annotations for failures to standard output and adds to the step's summary. Whatever
    goes wrong with that changes nothing: the run is over, and its exit code stands.
    """
    if _in_github_actions():
        tell_github(load(locate(path), source_roots()))


@showing(_REPORT)
def announce_error(message: str, lines: Sequence[tuple[str, int, str]] = ()) -> None:
    """Tells GitHub Actions why nothing was run, if this process runs there; as `announce` does.

    ``message``: what is wrong, of any number of lines; empty if ``lines`` say it all. ``lines``:
    what is wrong with lines of files: the file's path, the line's number, from 1, or 0 for the file
    as a whole, and a text.
    """
    if _in_github_actions():
        every = [*lines, *([("", 0, message)] if message else [])]
        found = annotate(("error", *each) for each in every)
        emit("".join(f"{each}\n" for each in found))


def annotate(found: Iterable[tuple[Level, str, int, str]], title: str = "lllaunch") -> list[str]:
    """Returns workflow commands for what is wrong with lines of files, errors first.

    ``found``: level, path of the file, its line (0 for the file as a whole), and a text.
    """
    lines: dict[Level, list[str]] = {"error": [], "warning": []}
    top = os.environ.get("GITHUB_WORKSPACE")
    for level, file, line, text in found:
        # GitHub counts paths from the top of the checkout
        path = relative_path(os.path.abspath(file), top) if top and file else file
        path = clean(path).replace("\n", " ")
        said = clean(text)[:_MESSAGE]
        lines[level].append(annotation(level, said, title=title, file=path, line=line or 1))
    return [each for level, some in lines.items() for each in limited(level, some, title)]


def _in_github_actions() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def source_roots() -> tuple[str, ...]:
    """Returns the directories of the user's own source files: the checkout, then where we are."""
    checkouts = (os.environ.get("GITHUB_WORKSPACE"), os.environ.get("CI_PROJECT_DIR"))
    return tuple(root for root in (*checkouts, working_directory()) if root)


def tell_github(report: Report, output: str | None = None) -> None:
    """Prints annotations and adds to the step's summary.

    Raises:
        OutputError: the file of the summary cannot be written.
        OSError: standard output, or the step's summary, cannot be written.
    """
    tell_step(commands(report), functools.partial(summary, report), output)


def tell_step(
    commands: Iterable[str],
    summary: Callable[[int], str],
    output: str | None = None,
) -> None:
    """Prints lines for GitHub, and adds to the step's summary."""
    emit("".join(f"{command}\n" for command in commands))
    if output is not None:
        write_atomic(output, encoded(summary(SUMMARY_BYTES)))
        return
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    with naming(path), open(path, "ab") as file:
        # other commands of the step may have written to it
        text = summary(SUMMARY_BYTES - file.tell() - 1)
        file.write(encoded(f"\n{text}" if text else ""))


def encoded(text: str) -> bytes:
    """Returns a text in UTF-8, whatever it holds."""
    return text.encode("utf-8", errors="replace")


def emit(text: str) -> None:
    """Prints whole lines to standard output, in UTF-8 whatever the locale is.

    Raises:
        OSError: nobody reads it any more.
        ValueError: it is closed.
    """
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:  # a stand-in of a notebook
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        binary.write(encoded(text))
    sys.stdout.flush()
