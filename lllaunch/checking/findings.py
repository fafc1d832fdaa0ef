"""What is found wrong, and how that is shown: text, JSON, JUnit XML and GitHub annotations.

The writing is that of the reports of runs: here an experiment, a lock or a file is a case.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

from lllaunch.errors import Code, Diagnostic
from lllaunch.results.report import Case, CodeLine, Report, annotate, render_junit, step_summary
from lllaunch.results.view import Log
from lllaunch.text import clean
from lllaunch.words import counted

Level = Literal["error", "warning"]

WRONG = 2
"""Code of what is wrong with a config."""

REFUSED = 5
"""Code of what was not reviewed, or is not allowed."""


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
        return cls.of(Diagnostic(code, key, "", message, "", file, line), exit_code, experiments)

    @property
    def level(self) -> Level:
        """``warning``, or ``error`` for what changes the exit code."""
        return "error" if self.exit_code else "warning"

    def repeats(self, other: CheckedDiagnostic) -> bool:
        """Whether another one is about the same line, and the same key or one below it."""
        return (self.file, self.line) == (other.file, other.line) and is_in(other.key, self.key)


def is_in(key: str, *names: str) -> bool:
    """Whether a dotted key is one of others, or below it."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def merged(found: Iterable[CheckedDiagnostic]) -> list[CheckedDiagnostic]:
    """Returns what was found, each thing once with all experiments that it hits, in order."""
    names: dict[CheckedDiagnostic, list[str]] = {}
    for each in found:
        names.setdefault(replace(each, experiments=()), []).extend(each.experiments)
    whole = [replace(each, experiments=tuple(dict.fromkeys(of))) for each, of in names.items()]
    return sorted(whole, key=lambda each: (each.file, each.line, each.level))


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
        """Returns 2 if something is wrong, else 5 if something is refused, else 0."""
        codes = {WRONG if strict and not each.exit_code else each.exit_code for each in self.found}
        return next((code for code in (WRONG, REFUSED) if code in codes), 0)

    def verdict(self) -> str:
        """Returns one line: ``12 experiments, 3 problems, 1 warning``."""
        count = len(self.experiments)
        if not self.found:
            return f"{counted(count, 'experiment')}, no problems" if count else "no experiments"
        problems = sum(bool(each.exit_code) for each in self.found)
        rest = {"problem": problems, "warning": len(self.found) - problems}
        told = [counted(number, what) for what, number in rest.items() if number]
        return ", ".join([counted(count, "experiment"), *told])

    def cleaned(self, hide: Callable[[str], str]) -> Outcome:
        """Returns the same for all who read it: without secrets, and with clean texts only."""

        def harmless(value: Any, name: str = "") -> Any:
            if isinstance(value, str):
                text = clean(hide(value))
                return text if name in {"message", "hint"} else text.replace("\n", " ")
            if isinstance(value, tuple):
                return tuple(harmless(each, name) for each in value)
            if not is_dataclass(value):
                return value
            given = {each.name: getattr(value, each.name) for each in fields(value)}
            cleaned = {name: harmless(each, name) for name, each in given.items()}
            return replace(value, **cleaned)  # type: ignore[type-var]

        outcome: Outcome = harmless(self)
        return outcome


VERSION = 1
"""Version of the JSON form; grows when a field changes its meaning."""

_NAMED = 4  # experiments in a line


def render_text(outcome: Outcome) -> str:
    """Returns what was found as compilers tell it, and the verdict."""
    lines = []
    for each in outcome.found:
        first, *more = _said(each, outcome).split("\n")
        level = "" if each.exit_code else "warning: "
        lines += [f"{each.place}: {level}{first}", *(f"    {line}" for line in more)]
    return "".join(f"{line}\n" for line in [*lines, outcome.verdict()])


def _said(found: CheckedDiagnostic, outcome: Outcome) -> str:
    """What is wrong, and which experiments it hits where that is not clear."""
    names = found.experiments
    own = {each.name for each in outcome.experiments if each.file == found.file}
    if not names or "\n" in found.said or (len(names) == 1 and names[0] in own):
        return found.said
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{found.said} (in {', '.join(names[:_NAMED])}{more})"


def render_json(outcome: Outcome, *, strict: bool = False) -> str:
    """Returns what was found as JSON."""
    experiments = [
        {**vars(each), "plan_hash": each.plan_hash or None} for each in outcome.experiments
    ]
    problems = [
        {
            "level": each.level,
            "code": each.exit_code,
            "kind": each.code,
            "file": each.file,
            "line": each.line or None,
            "key": each.key or None,
            "message": each.text,
            "experiments": each.experiments,
        }
        for each in outcome.found
    ]
    document = {
        "version": VERSION,
        "exit_code": outcome.exit_code(strict=strict),
        "directory": outcome.directory,
        "verdict": outcome.verdict(),
        "experiments": experiments,
        "problems": problems,
    }
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def render_checks(outcome: Outcome, *, strict: bool = False) -> str:
    """Returns the text of a JUnit XML file: each experiment, lock and file is a test case."""
    about: dict[str, list[CheckedDiagnostic]] = {}
    cases = []
    for path in (*outcome.locks, *outcome.files):
        about[path] = []
    for each in outcome.found:
        about.setdefault(each.file, []).append(each)
    for one in outcome.experiments:
        own = [each for each in outcome.found if one.name in each.experiments]
        case = _case(f"experiment {one.name}", own, strict=strict)
        cases.append(replace(case, overrides=one.command, plan_hash=one.plan_hash))
    for path, found in about.items():
        kind = "lock" if path in outcome.locks else "file"
        cases.append(_case(f"{kind} {path}", found, strict=strict))
    return render_junit(Report("sweep", outcome.directory, tuple(cases)), "lllaunch.check")


_KINDS = {0: "warning", WRONG: "config", REFUSED: "review"}


def _case(name: str, found: Iterable[CheckedDiagnostic], *, strict: bool) -> Case:
    bad: list[CheckedDiagnostic] = []
    warnings: list[CheckedDiagnostic] = []
    for each in found:
        (bad if each.exit_code or strict else warnings).append(each)
    told = [f"{each.place}: {each.said}" for each in warnings]
    logs = (Log("stdout", "the warnings", tuple(told)),) if told else ()
    if not bad:
        return Case(name, "succeeded", logs=logs)
    lines = [line for each in bad for line in f"{each.place}: {each.said}".split("\n")]
    return Case(
        name,
        "failed",
        kind=_KINDS[bad[0].exit_code],
        message=lines[0],
        explanation=(*lines, *(("", "All of the warnings:", *told) if told else ())),
        place=CodeLine(bad[0].file, bad[0].line or 1),
        logs=logs,
    )


def commands(outcome: Outcome, *, strict: bool = False) -> list[str]:
    """Returns workflow commands of GitHub Actions, at the lines where something is wrong."""
    lines: list[tuple[Level, str, int, str]] = [
        ("error" if strict else each.level, each.file, each.line, _said(each, outcome))
        for each in outcome.found
    ]
    return annotate(lines, "lllaunch check")


def summary(outcome: Outcome, limit: int) -> str:
    """Returns the summary of a step, in GitHub's Markdown: what the text form says.

    ``limit`` is in bytes of UTF-8.
    """
    head = f"### lllaunch check: {outcome.verdict()}"
    return step_summary([head], render_text(outcome).splitlines()[:-1], limit)
