"""What a check found, in the forms that CI systems read. Pure.

The writing is that of the reports of runs: here an experiment, a lock or a file is a case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lllaunch.checking.findings import REFUSED, Found
from lllaunch.checking.outcome import Outcome
from lllaunch.checking.render import hit_text
from lllaunch.reports.cases import Case, Log, Report
from lllaunch.reports.fields import tidy
from lllaunch.reports.github import ANNOTATIONS, Level, _code, _escaped, annotation
from lllaunch.reports.junit import render_junit
from lllaunch.reports.places import Place

_ROWS = 200
_MESSAGE = 4000  # characters of an annotation


def render_checks(outcome: Outcome, *, strict: bool = False) -> str:
    """Returns the text of a JUnit XML file: each experiment, lock and file is a test case.

    Args:
        outcome: of the check.
        strict: whether a warning is a failure.
    """
    cases = tuple(_cases(outcome, strict=strict))
    return render_junit(Report("sweep", outcome.directory, cases), "lllaunch.check")


def _cases(outcome: Outcome, *, strict: bool) -> Iterator[Case]:
    by_file: dict[str, list[Found]] = {}
    by_experiment: dict[str, list[Found]] = {}
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
    found: Sequence[Found],
    strict: bool,
    command: tuple[str, ...] = (),
    plan_hash: str = "",
) -> Case:
    bad = [each for each in found if each.code or strict]
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
            "place": Place(tidy(first.file), first.line or 1),
            "logs": warnings,
        }
    )


def _kind(found: Found) -> str:
    if not found.code:
        return "warning"
    return "review" if found.code == REFUSED else "config"


def commands(
    outcome: Outcome, *, strict: bool = False, path: Callable[[str], str] = str
) -> list[str]:
    """Returns workflow commands of GitHub Actions, at the lines where something is wrong.

    Args:
        outcome: of the check. Of more than ten errors, or warnings, the tenth command says how many
            are left out: a step shows no more.
        strict: whether warnings are errors.
        path: returns the path of a file from the top of the checkout.
    """
    errors = [each for each in outcome.found if each.code or strict]
    warnings = [each for each in outcome.found if not each.code and not strict]
    return [
        *_annotations("error", errors, outcome, path),
        *_annotations("warning", warnings, outcome, path),
    ]


def _annotations(
    level: Level, found: Sequence[Found], outcome: Outcome, path: Callable[[str], str]
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

    Args:
        outcome: of the check.
        limit: how long it may be, bytes in UTF-8.
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
        level = f"**{each.level}**" if each.code else each.level
        names = ", ".join(each.experiments[:10])
        cells = (level, _code(tidy(each.place)), _escaped(tidy(each.said)), _escaped(tidy(names)))
        yield f"| {' | '.join(cells)} |"
    if len(outcome.found) > _ROWS:
        yield f"\n{len(outcome.found) - _ROWS} more are in the log."
