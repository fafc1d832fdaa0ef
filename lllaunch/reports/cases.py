"""What is told of a run or a sweep: one case for the run, or for each job. Pure data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from lllaunch.reports.places import Place, without_ours
from lllaunch.units import duration

Outcome = Literal["succeeded", "failed", "error", "skipped"]

_ADJECTIVES: tuple[tuple[Outcome, str], ...] = (
    ("failed", "failed"),
    ("error", "ended with an error"),
    ("skipped", "not run"),
)


_UNFINISHED = {"running": "still running", "died": "died"}


@dataclass(frozen=True)
class Log:
    """The end of a worker's log.

    Attributes:
        stream: ``stdout`` or ``stderr``.
        path: the file, relative to the directory of the report.
        lines: its last lines, oldest first.
        cut: whether there is more before them.
    """

    stream: Literal["stdout", "stderr"]
    path: str
    lines: tuple[str, ...]
    cut: bool = False


@dataclass(frozen=True)
class Case:
    """What became of a run or of a job.

    All texts are tidy: nothing in them steers a terminal or cannot stand in XML.

    Attributes:
        name: its overrides, or what else tells it from others.
        outcome: ``succeeded``; ``failed`` (workers did, or the watchdog ended them); ``error``
            (the config was wrong, lllaunch failed, a signal ended it, its end is not known);
            ``skipped`` (it was not started).
        job: its number in the sweep, None for a run by itself.
        state: as result.json or sweep.json has it; ``unfinished`` if there is no result.json.
        kind: type of the root cause, such as ``Raised``; ``config``, ``signal``, ``unfinished``,
            ... for others; empty if it succeeded.
        message: what happened, in one line; empty if it succeeded.
        exit_code: of its launcher, None if that is not known.
        seconds: how long it took, None if that is not known.
        started: when, ISO 8601 in UTC, or empty.
        hostname: of the machine, or empty.
        directory: its directory, relative to that of the report.
        logs_in: the directory of its last attempt, relative to that of the report, or empty.
        overrides: of its config.
        plan_hash: identifies its plan, or empty.
        run_id: of its workers, or empty.
        attempts: how many were made, None if that is not known.
        tries: how often the sweep started it, None for a run by itself.
        explanation: what can be said beyond the message, lines.
        traceback: lines; the first ones left out where they are very many.
        place: the line of the user's own code that it happened in, or None.
        logs: the ends of the logs of the worker that is the root cause.
    """

    name: str
    outcome: Outcome
    job: int | None = None
    state: str = ""
    kind: str = ""
    message: str = ""
    exit_code: int | None = None
    seconds: float | None = None
    started: str = ""
    hostname: str = ""
    directory: str = "."
    logs_in: str = ""
    overrides: tuple[str, ...] = ()
    plan_hash: str = ""
    run_id: str = ""
    attempts: int | None = None
    tries: int | None = None
    explanation: tuple[str, ...] = ()
    traceback: tuple[str, ...] = ()
    place: Place | None = None
    logs: tuple[Log, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether something went wrong in it."""
        return self.outcome in {"failed", "error"}


@dataclass(frozen=True)
class Report:
    """What is told of a run or a sweep.

    Attributes:
        kind: ``run`` or ``sweep``.
        directory: its directory, as the user would type it.
        cases: one for the run, or one for each job by number.
        finished: whether it is over.
        exit_code: of its launcher, None if that is not known.
        seconds: how long it took, None if that is not known.
        started: when, ISO 8601 in UTC, or empty.
        version: lllaunch's, or empty where that is not known.
        common: overrides that all jobs share.
        state: of one that is not over: ``running``, ``died`` or ``unknown``.
    """

    kind: Literal["run", "sweep"]
    directory: str
    cases: tuple[Case, ...]
    finished: bool = True
    exit_code: int | None = None
    seconds: float | None = None
    started: str = ""
    version: str = ""
    common: tuple[str, ...] = ()
    state: str = ""

    def count(self, outcome: Outcome) -> int:
        """How many cases have an outcome."""
        return sum(case.outcome == outcome for case in self.cases)

    def title(self, case: Case, longest: int = 120) -> str:
        """Returns what a case is called: ``job 1 (params.lr=0.1)``, or ``run``."""
        if case.job is None:
            return "run"
        own = " ".join(each for each in case.overrides if each not in self.common)
        return f"job {case.job} ({shortened(own, longest)})" if own else f"job {case.job}"

    def verdict(self) -> str:
        """Returns one line: ``1 of 3 jobs succeeded, 2 failed in 0.8 s (exit code 6)``."""
        text = self._run_verdict() if self.kind == "run" else self._sweep_verdict()
        if self.seconds is not None and self.finished:
            text += f" {'in' if self._good else 'after'} {duration(self.seconds)}"
        return f"{text} (exit code {self.exit_code})" if self.exit_code else text

    @property
    def _good(self) -> bool:
        return self.kind == "sweep" or not any(case.bad for case in self.cases)

    def _run_verdict(self) -> str:
        case = self.cases[0]
        if case.state == "unfinished":
            return case.message
        return {"succeeded": "succeeded", "failed": "failed"}.get(case.state) or case.message

    def _sweep_verdict(self) -> str:
        all_jobs = f"{len(self.cases)} job" + ("" if len(self.cases) == 1 else "s")
        text = f"{self.count('succeeded')} of {all_jobs} succeeded"
        for outcome, adjective in _ADJECTIVES:
            if count := self.count(outcome):
                text += f", {count} {adjective}"
        return text if self.finished else f"{_UNFINISHED.get(self.state, 'not over')}: {text}"


def shortened(text: str, longest: int) -> str:
    """Returns a text of at most so many characters."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def details(case: Case, log_lines: int = 20) -> Iterator[str]:
    """Yields the lines that tell why a case failed: explanation, traceback, the end of a log.

    Args:
        case: the case.
        log_lines: how many lines of the log at most.
    """
    yield from case.explanation
    if case.traceback:
        yield from ("", *case.traceback)
    log = _telling(case)
    if log is None:
        return
    before = _without_end(log.lines, case.traceback)
    lines = [*without_ours(before)]
    shown = lines[-log_lines:]
    if shown:
        cut = log.cut or len(shown) < len(lines)
        what = f"{'The last lines' if cut else 'All'} of {log.path}"
        yield from ("", f"{what}{' before that' if len(before) < len(log.lines) else ''}:", *shown)


def _telling(case: Case) -> Log | None:
    """Returns the log that is worth showing: standard error, if anything is in it."""
    written = {log.stream: log for log in case.logs if log.lines}
    return written.get("stderr") or written.get("stdout")


def _without_end(lines: Sequence[str], end: Sequence[str]) -> Sequence[str]:
    """Returns what stands in a log before the traceback, which is told already."""
    same = bool(end) and tuple(lines[-len(end) :]) == tuple(end)
    return lines[: -len(end)] if same else lines
