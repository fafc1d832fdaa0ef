"""How findings are shown: text, JSON, JUnit XML and GitHub annotations.

The writing is that of the reports of runs: here an experiment, a lock or a file is a case.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lllaunch.checking.findings import REFUSED, CheckedDiagnostic, Outcome
from lllaunch.results.announce import emit, encoded, in_repository, tell_step
from lllaunch.results.cases import Case, CodeLine, Log, Report
from lllaunch.results.github import ANNOTATIONS, Level, _code, _escaped, annotation
from lllaunch.results.junit import render_junit
from lllaunch.run.files import naming, write_atomic
from lllaunch.text import tidy

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
    return Case(
        **{
            **vars(case),
            "outcome": "failed",
            "kind": _kind(first),
            "message": lines[0],
            "explanation": tuple(lines[1:]),
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
    text = _rendered(outcome, form, strict=strict)
    if output is None:
        emit(text)
    else:
        write_atomic(output, encoded(text))


def _rendered(outcome: Outcome, form: str, *, strict: bool) -> str:
    if form == "junit":
        return render_checks(outcome, strict=strict)

    return render_json(outcome, strict=strict) if form == "json" else render_text(outcome)
