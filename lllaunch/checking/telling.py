"""Writes what a check found to where it was asked for."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

from lllaunch.checking.outcome import Outcome
from lllaunch.reports.announce import emit, encoded, in_repository, tell_step
from lllaunch.run.files import naming, write_atomic


def tell(
    outcome: Outcome, form: str, output: str | None, environ: Mapping[str, str], *, strict: bool
) -> None:
    """Writes what was found.

    Args:
        outcome: of the check.
        form: ``text``, ``json``, ``junit`` or ``github``.
        output: a file; None for standard output.
        environ: names the file of a step's summary.
        strict: whether warnings count.

    Raises:
        OutputError: a file cannot be written.
        OSError: standard output cannot be written.
    """
    if output is not None and (directory := os.path.dirname(output)):
        with naming(output):
            os.makedirs(directory, exist_ok=True)
    if form == "github":
        _tell_github(outcome, output, environ, strict=strict)
        return
    text = _rendered(outcome, form, strict=strict)
    if output is None:
        emit(text)
    else:
        write_atomic(output, encoded(text))


def _rendered(outcome: Outcome, form: str, *, strict: bool) -> str:
    if form == "junit":
        from lllaunch.checking.render_ci import render_checks  # noqa: PLC0415 - one of several

        return render_checks(outcome, strict=strict)
    from lllaunch.checking.render import render_json, render_text  # noqa: PLC0415 - as above

    return render_json(outcome, strict=strict) if form == "json" else render_text(outcome)


def _tell_github(
    outcome: Outcome, output: str | None, environ: Mapping[str, str], *, strict: bool
) -> None:
    from lllaunch.checking.render_ci import commands, summary  # noqa: PLC0415 - as above

    path = functools.partial(in_repository, environ=environ)
    lines = [*commands(outcome, strict=strict, path=path), outcome.verdict()]
    tell_step(lines, functools.partial(summary, outcome), environ, output)
