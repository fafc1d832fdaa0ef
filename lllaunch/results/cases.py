"""What a report says of a run or a sweep: a case for each job, as text and as JSON. Pure."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lllaunch.text import duration, plain, shorten
from lllaunch.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator


# Python's tracebacks (of exception groups, too), and what faulthandler writes
_FRAME = re.compile(r'^[ |+]*File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?P<python>,|$)?', re.M)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d[^/]*/|/\.(?:venv|tox|nox)/")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class CodeLine(NamedTuple):
    """A line of a source file."""

    file: str  # its path, relative to one of the tree's roots
    line: int


class Tree:
    """The user's own source files: all below some directories, but for installed libraries.

    ``roots``: the directories, absolute; the first one that a file is below of counts.
    """

    def __init__(self, roots: Iterable[str], not_below: Iterable[str] = (_OURS,)) -> None:
        self._roots = [_prefix(root) for root in roots if os.path.isabs(root)]
        self._others = tuple(map(_prefix, not_below))

    def relative(self, file: str) -> str | None:
        """Returns the path of a file relative to its root, None if it is not the user's."""
        if file.startswith("<") or not file.isprintable() or _LIBRARY.search(file):
            return None
        path = os.path.normpath(file)
        if not os.path.isabs(path):
            return None if path.split(os.sep)[0] == os.pardir else path
        if path.startswith(self._others):
            return None
        return next((path[len(root) :] for root in self._roots if path.startswith(root)), None)

    def place(self, frames: Iterable[CodeLine]) -> CodeLine | None:
        """Returns the first of the frames that is in the user's code, None if none is."""
        for file, line in frames:
            known = self.relative(file)
            if known is not None and line > 0:
                return CodeLine(known, line)
        return None


def _prefix(directory: str) -> str:
    return os.path.normpath(directory).rstrip("/") + "/"


def frames_of(text: str) -> Iterator[CodeLine]:
    """Yields the frames of a traceback, innermost first; their files as they stand there.

    ``text``: what Python wrote for an exception (the innermost frame last), or faulthandler for a
    crash (``File "x.py", line 3 in f``, the innermost frame first).
    """
    found = list(_FRAME.finditer(text))
    if found and found[0]["python"] is not None:
        found.reverse()
    for frame in found:
        yield CodeLine(frame["file"], int(frame["line"][-9:]))


def without_ours(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of a log, those together in which faulthandler shows frames of lllaunch."""
    ours = 0
    for line in (*lines, None):
        frame = None if line is None else _FRAME.match(line)
        if frame is not None and frame["python"] is None and _is_ours(frame["file"]):
            ours += 1
            continue
        if ours:
            yield f"  ... ({ours} frames of lllaunch)" if ours > 1 else "  ... (lllaunch)"
            ours = 0
        if line is not None:
            yield line


def _is_ours(file: str) -> bool:
    return file.startswith(_prefix(_OURS)) or file == "<string>"


Outcome = Literal["succeeded", "failed", "error", "skipped"]

_WORDS = {"error": "failed", "skipped": "not run"}
_UNFINISHED = {"running": "still running", "died": "died"}


class Log(NamedTuple):
    """The end of a worker's log; `path` is relative to the directory of the report."""

    stream: Literal["stdout", "stderr"]
    path: str
    lines: tuple[str, ...]
    cut: bool = False  # whether there is more before them
    attempt: int = 0
    rank: int = 0
    blamed: bool = False


@dataclass(frozen=True)
class Case:
    """What became of a run or of a job.

    All texts are tidy: nothing in them steers a terminal or cannot stand in XML.
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
    finished: bool = True
    exit_code: int | None = None
    seconds: float | None = None
    started: str = ""
    version: str = ""
    common: tuple[str, ...] = ()
    state: str = ""  # of one that is not over: ``running``, ``died`` or ``unknown``

    def count(self, outcome: Outcome) -> int:
        """How many cases have an outcome."""
        return sum(case.outcome == outcome for case in self.cases)

    def word(self, case: Case) -> str:
        """Return what a case did, as everything says it that shows a sweep."""
        if case.state == "started":
            return "running" if self.state == "running" else "failed"
        return _WORDS.get(case.outcome, case.outcome)

    def title(self, case: Case, longest: int = 120) -> str:
        """Returns what a case is called: ``job 1 (params.lr=0.1)``, or ``run``."""
        if case.job is None:
            return "run"
        own = " ".join(each for each in case.overrides if each not in self.common)
        return f"job {case.job} ({shorten(own, longest)})" if own else f"job {case.job}"

    def verdict(self) -> str:
        """Return one line: ``1 of 3 jobs succeeded, 2 failed in 0.8 s (exit code 6)``."""
        first = self.cases[0] if self.kind == "run" else None
        if first is None:
            jobs = counted(len(self.cases), "job")
            words = Counter(map(self.word, self.cases))
            others = ("failed", "running", "not run")
            text = f"{words['succeeded']} of {jobs} succeeded"
            text = ", ".join([text, *(f"{words[each]} {each}" for each in others if words[each])])
            if not self.finished:
                text = f"{_UNFINISHED.get(self.state, 'not over')}: {text}"
        else:
            text = first.state if first.state in {"succeeded", "failed"} else first.message
        if self.seconds is not None and self.finished:
            bad_run = first is not None and first.bad
            text += f" {'after' if bad_run else 'in'} {duration(self.seconds)}"
        if first is not None and first.state == "succeeded" and first.message:
            # of several nodes one left no result
            text += f"; {first.message}"
        return f"{text} (exit code {self.exit_code})" if self.exit_code else text


VERSION = 1
"""Version of the JSON form; grows when a field changes its meaning."""


def render_text(report: Report) -> str:
    """Returns a report as lines for people: the verdict, and what is to be told of each failure."""
    lines = [f"lllaunch: {report.directory}: {report.verdict()}"]
    for case in report.cases:
        if case.outcome != "succeeded":
            lines += ["", *_case(report, case)]
    return "\n".join(map(plain, lines)) + "\n"


def _case(report: Report, case: Case) -> Iterator[str]:
    took = f" after {duration(case.seconds)}" if case.seconds is not None else ""
    yield f"  {report.title(case)} {report.word(case)}{took if case.bad else ''}: {case.message}"
    if case.bad:
        if case.place:
            yield f"    at {case.place.file}:{case.place.line}"
        yield from (f"    {line}".rstrip() for line in ("", *case.explanation))


def render_json(report: Report) -> str:
    """Returns a report as JSON: the same fields for a run and for a sweep."""
    document = {
        "version": VERSION,
        "kind": report.kind,
        "directory": report.directory,
        "finished": report.finished,
        "verdict": report.verdict(),
        "exit_code": report.exit_code,
        "started": report.started or None,
        "seconds": report.seconds,
        "counts": {
            outcome: report.count(outcome)
            for outcome in ("succeeded", "failed", "error", "skipped")
        },
        "cases": [_plain(case) for case in report.cases],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(case: Case) -> dict[str, Any]:
    fields = asdict(case)
    del fields["place"]
    file, line = case.place or (None, None)
    logs = {log.stream: log.path for log in case.logs}
    return {
        **fields,
        "file": file,
        "line": line,
        "explanation": "\n".join(case.explanation) or None,
        "logs": logs,
    }
