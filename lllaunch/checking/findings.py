"""What is found wrong, and how that is shown: text, JSON, JUnit XML and GitHub annotations.

The writing is that of the reports of runs: here an experiment, a lock or a file is a case.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lllaunch.errors import Code, Diagnostic
from lllaunch.results.github import (
    ANNOTATIONS,
    _code,
    _escaped,
    annotation,
    emit,
    encoded,
    in_repository,
    tell_step,
)
from lllaunch.results.junit import render_junit
from lllaunch.results.report import Case, CodeLine, Report
from lllaunch.results.view import Log
from lllaunch.run.files import naming, write_atomic
from lllaunch.text import tidy

Level = Literal["error", "warning"]

WRONG = 2
"""Code of what is wrong with a config."""

REFUSED = 5
"""Code of what was not reviewed, or is not allowed."""

MOST_ALIKE = 20
"""Warnings of one kind in one file; the others are counted."""


@dataclass(frozen=True)
class CheckedDiagnostic(Diagnostic):
    """One thing that a check has found.

    ``exit_code`` is 2 for what is wrong, 5 for what was not reviewed or is not allowed, 0 for a
    warning; ``experiments`` are those that it hits.
    """

    exit_code: int = WRONG
    experiments: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, diagnostic: Diagnostic, exit_code: int, experiments: tuple[str, ...] = ()
    ) -> CheckedDiagnostic:
        """Return a diagnostic as one of a check."""
        return cls(**{**vars(diagnostic), "exit_code": exit_code, "experiments": experiments})

    @classmethod
    def at(
        cls,
        exit_code: int,
        code: Code,
        file: str,
        line: int,
        key: str,
        message: str,
        experiments: tuple[str, ...] = (),
    ) -> CheckedDiagnostic:
        """Return what is wrong at a line of a file."""
        known = Diagnostic(code, key, "", message, "", file, line)
        return cls(**vars(known), exit_code=exit_code, experiments=experiments)

    @property
    def level(self) -> Level:
        """``warning``, or ``error`` for what changes the exit code."""
        return "error" if self.exit_code else "warning"


def merged(found: Iterable[CheckedDiagnostic]) -> list[CheckedDiagnostic]:
    """Returns what was found, each thing once with all experiments that it hits, in order."""
    experiments: dict[CheckedDiagnostic, dict[str, None]] = {}
    for each in found:
        alone = replace(each, experiments=())
        experiments.setdefault(alone, {}).update(dict.fromkeys(each.experiments))
    whole = [replace(each, experiments=tuple(names)) for each, names in experiments.items()]
    return sorted(whole, key=lambda each: (each.file, each.line, each.level))


def exit_code(found: Iterable[CheckedDiagnostic], *, strict: bool = False) -> int:
    """Returns the exit code: 2 if something is wrong, else 5 if something is refused, else 0."""
    codes = {WRONG if strict and not each.exit_code else each.exit_code for each in found}
    return next((code for code in (WRONG, REFUSED) if code in codes), 0)


@dataclass(frozen=True)
class Checked:
    """One experiment; ``plan_hash`` is empty if it has no plan."""

    name: str
    file: str
    command: tuple[str, ...]
    plan_hash: str = ""
    locked: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was checked, and everything that was found, by file and line."""

    directory: str
    experiments: tuple[Checked, ...]
    locks: tuple[str, ...]
    files: tuple[str, ...]
    found: tuple[CheckedDiagnostic, ...]

    def exit_code(self, *, strict: bool = False) -> int:
        """Returns what the verb ends with."""
        return exit_code(self.found, strict=strict)

    def verdict(self) -> str:
        """Returns one line: ``12 experiments, 3 problems, 1 warning``."""
        count = len(self.experiments)
        problems = sum(bool(each.exit_code) for each in self.found)
        warnings = len(self.found) - problems
        if not self.found:
            return f"{counted(count, 'experiment')}, no problems" if count else "no experiments"
        parts = [counted(count, "experiment")]
        parts += [counted(problems, "problem")] if problems else []
        parts += [counted(warnings, "warning")] if warnings else []
        return ", ".join(parts)

    def hiding(self, hide: Callable[[str], str]) -> Outcome:
        """Returns the same without the secrets that texts may hold."""
        experiments = tuple(
            replace(each, command=tuple(map(hide, each.command))) for each in self.experiments
        )
        names = ("key", "value", "message", "hint", "expected")
        texts: list[dict[str, Any]] = [
            {name: hide(getattr(each, name)) for name in names} for each in self.found
        ]
        found = (replace(each, **text) for each, text in zip(self.found, texts, strict=True))
        return replace(self, experiments=experiments, found=tuple(found))


def counted(number: int, what: str) -> str:
    """Returns a number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"


VERSION = 1
"""Version of the JSON form; grows when a field changes its meaning."""

_NAMED = 4  # experiments in a line


def render_text(outcome: Outcome) -> str:
    """Returns what was found as compilers tell it, and the verdict."""
    lines = [_line(each, outcome) for each in outcome.found]
    return "".join(f"{line}\n" for line in [*lines, outcome.verdict()])


def _line(found: CheckedDiagnostic, outcome: Outcome) -> str:
    warning = "" if found.exit_code else "warning: "
    first, *more = tidy(found.said).splitlines() or [""]
    hits = hit_text(found, outcome)
    place = " ".join(tidy(found.place).split("\n"))
    end = f" ({hits})" if hits and not more else ""
    return "\n".join([f"{place}: {warning}{first}{end}", *(f"    {line}" for line in more)])


def hit_text(found: CheckedDiagnostic, outcome: Outcome) -> str:
    """Return which experiments something hits; nothing if its file is that of the only one."""
    names = found.experiments
    own = {each.name for each in outcome.experiments if each.file == found.file}
    if not names or (len(names) == 1 and names[0] in own):
        return ""
    shown = ", ".join(map(tidy, names[:_NAMED]))
    more = len(names) - _NAMED
    return f"in {shown} and {more} more" if more > 0 else f"in {shown}"


def render_json(outcome: Outcome, *, strict: bool = False) -> str:
    """Returns what was found as JSON."""
    document: dict[str, Any] = {
        "version": VERSION,
        "exit_code": outcome.exit_code(strict=strict),
        "directory": tidy(outcome.directory),
        "verdict": outcome.verdict(),
        "experiments": [
            {
                "name": tidy(each.name),
                "file": tidy(each.file),
                "command": [tidy(word) for word in each.command],
                "plan_hash": each.plan_hash or None,
                "locked": each.locked,
            }
            for each in outcome.experiments
        ],
        "problems": [
            {
                "level": each.level,
                "code": each.exit_code,
                "kind": each.code,
                "file": tidy(each.file),
                "line": each.line or None,
                "key": tidy(each.key) or None,
                "message": tidy(each.text),
                "experiments": [tidy(name) for name in each.experiments],
            }
            for each in outcome.found
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + os.linesep


_ROWS = 200
_MESSAGE = 4000  # characters of an annotation


def render_checks(outcome: Outcome, *, strict: bool = False) -> str:
    """Returns the text of a JUnit XML file: each experiment, lock and file is a test case."""
    cases = tuple(_cases(outcome, strict=strict))
    return render_junit(Report("sweep", outcome.directory, cases), "lllaunch.check")


def _cases(outcome: Outcome, *, strict: bool) -> Iterator[Case]:
    by_file: dict[str, list[CheckedDiagnostic]] = {}
    by_experiment: dict[str, list[CheckedDiagnostic]] = {}
    for each in outcome.found:
        by_file.setdefault(each.file, []).append(each)
        for name in each.experiments:
            by_experiment.setdefault(name, []).append(each)
    for experiment in outcome.experiments:
        own = by_experiment.get(experiment.name, [])
        name = f"experiment {experiment.name}"
        command = tuple(map(tidy, experiment.command))
        yield _case(name, own, strict, command, experiment.plan_hash)
    for path in outcome.locks:
        yield _case(f"lock {path}", by_file.pop(path, []), strict)
    for path in outcome.files:
        yield _case(f"file {path}", by_file.pop(path, []), strict)
    for path, found in by_file.items():
        yield _case(f"file {path}", found, strict)


def _case(
    name: str,
    found: Sequence[CheckedDiagnostic],
    strict: bool,
    command: tuple[str, ...] = (),
    plan_hash: str = "",
) -> Case:
    bad = [each for each in found if each.exit_code or strict]
    told = [tidy(f"{each.place}: {each.said}") for each in found if each not in bad]
    warnings = (Log("stdout", "the warnings", tuple(told)),) if told else ()
    case = Case(tidy(name), "succeeded", overrides=command, plan_hash=plan_hash, logs=warnings)
    if not bad:
        return case
    first = bad[0]
    lines = [line for each in bad for line in tidy(f"{each.place}: {each.said}").splitlines()]
    rest = ("", "All of the warnings:", *told) if told else ()
    return Case(
        **{
            **vars(case),
            "outcome": "failed",
            "kind": _kind(first),
            "message": lines[0],
            "explanation": (*lines, *rest),
            "place": CodeLine(tidy(first.file), first.line or 1),
            "logs": warnings,
        }
    )


def _kind(found: CheckedDiagnostic) -> str:
    if not found.exit_code:
        return "warning"
    return "review" if found.exit_code == REFUSED else "config"


def commands(
    outcome: Outcome, *, strict: bool = False, path: Callable[[str], str] = str
) -> list[str]:
    """Returns workflow commands of GitHub Actions, at the lines where something is wrong.

    Of more than ten errors, or warnings, the tenth command says how many are left out: a step shows
    no more. ``path`` returns the path of a file from the top of the checkout.
    """
    errors = [each for each in outcome.found if each.exit_code or strict]
    warnings = [each for each in outcome.found if not each.exit_code and not strict]
    return [
        *_annotations("error", errors, outcome, path),
        *_annotations("warning", warnings, outcome, path),
    ]


def _annotations(
    level: Level, found: Sequence[CheckedDiagnostic], outcome: Outcome, path: Callable[[str], str]
) -> Iterator[str]:
    room = ANNOTATIONS if len(found) <= ANNOTATIONS else ANNOTATIONS - 1
    for each in found[:room]:
        hits = hit_text(each, outcome)
        text = tidy(f"{each.said} ({hits})" if hits else each.said)[:_MESSAGE]
        file = tidy(path(each.file)).replace("\n", " ")
        yield annotation(level, text, title="lllaunch check", file=file, line=each.line or 1)
    if len(found) > room:
        more = f"{len(found) - room} more {level}s are in the summary and the log"
        yield annotation(level, more, title="lllaunch check")


def summary(outcome: Outcome, limit: int) -> str:
    """Returns the summary of a step, in GitHub's Markdown.

    ``limit`` is in bytes of UTF-8.
    """
    parts = [f"### lllaunch check: {_escaped(outcome.verdict())}", "", _code(outcome.directory), ""]
    rows = list(_table(outcome))
    text = "\n".join([*parts, *rows]).rstrip() + "\n"
    while rows and len(text.encode(errors="replace")) > limit:
        rows = rows[: len(rows) // 2]
        text = "\n".join([*parts, *rows, "", "More is in the log."]) + "\n"
    return text if len(text.encode(errors="replace")) <= limit else ""


def _table(outcome: Outcome) -> Iterator[str]:
    if not outcome.found:
        return
    yield "| | where | what | experiments |"
    yield "|---|---|---|---|"
    for each in outcome.found[:_ROWS]:
        level = f"**{each.level}**" if each.exit_code else each.level
        names = ", ".join(each.experiments[:10])
        cells = (level, _code(tidy(each.place)), _escaped(tidy(each.said)), _escaped(tidy(names)))
        yield f"| {' | '.join(cells)} |"
    if len(outcome.found) > _ROWS:
        yield f"\n{len(outcome.found) - _ROWS} more are in the log."


def tell(
    outcome: Outcome, form: str, output: str | None, environ: Mapping[str, str], *, strict: bool
) -> None:
    """Writes what was found.

    ``form`` is ``text``, ``json``, ``junit`` or ``github``; ``output`` a file, or None for standard
    output.

    Raises:
        OutputError: a file cannot be written.
        OSError: standard output cannot be written.
    """
    if output is not None and (directory := os.path.dirname(output)):
        with naming(output):
            os.makedirs(directory, exist_ok=True)
    if form == "github":
        path = functools.partial(in_repository, environ=environ)
        lines = [*commands(outcome, strict=strict, path=path), outcome.verdict()]
        tell_step(lines, functools.partial(summary, outcome), environ, output)
        return
    if form == "text":
        text = render_text(outcome)
    else:
        text = (render_checks if form == "junit" else render_json)(outcome, strict=strict)
    if output is None:
        emit(text)
    else:
        write_atomic(output, encoded(text))
