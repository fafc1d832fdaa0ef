"""``python -m lllaunch report PATH``: what became of a run or a sweep, in one of several forms."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from lllaunch.console.table import is_terminal
from lllaunch.errors import package_missing
from lllaunch.results.locate import locate
from lllaunch.results.report import (
    load,
    render_json,
    render_junit,
    render_text,
    source_roots,
    tell_github,
)
from lllaunch.results.sweeps import view_sweep
from lllaunch.results.view import view_run
from lllaunch.verbs.printing import Parser, hand_over, make_way, perform, print_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lllaunch.results.report import Report
    from lllaunch.results.store import FoundDirectory

_DESCRIPTION = "Report the result of a run or a sweep, from its files."
_EPILOG = """\
formats:
  text    for people
  json    for programs; the same fields for a run and for a sweep
  junit   JUnit XML: a run, or each job of a sweep, is a test case
  github  GitHub Actions: annotations on standard output; the step's summary goes to FILE, else
          to $GITHUB_STEP_SUMMARY
  html    one page in one file; a run has its failure, timeline, curves, stacks, logs and plan, a
          sweep its objectives against parameters, its timeline and all jobs
  trace   Chrome's trace events, for https://ui.perfetto.dev

The exit code is 0 if the report was made, whatever the result of the run; 2 if RUN is no run."""

RENDERERS: dict[str, Callable[[Report], str]] = {"text": render_text, "json": render_json}
"""Formats that are a function of a report alone."""


def report(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("report", _DESCRIPTION, _EPILOG)
    parser.add_run()
    parser.add_format(*RENDERERS, "junit", "github", "html", "trace")
    parser.add_argument(
        "--name", default="lllaunch", help="class name of the test cases in JUnit XML"
    )
    return perform(parser, argv, _report)


def _report(given: argparse.Namespace) -> None:
    found = locate(given.run)
    # a page is nothing to read there
    keeps = given.format == "html" and given.output is None and is_terminal(sys.stdout)
    if keeps:
        given.output = os.path.join(found.path, "report.html")
    make_way(given.output)
    if given.format == "trace":
        from lllaunch.results.trace import trace_text  # noqa: PLC0415 - of one format

        text = trace_text(found)
    elif given.format == "html":
        text = _page(found, given.output)
    else:
        report = load(found, source_roots())
        if given.format == "github":
            tell_github(report, given.output)
            return
        render = RENDERERS.get(given.format)
        text = render_junit(report, given.name) if render is None else render(report)
    hand_over(text, given.output)
    if keeps:
        print_lines([given.output])


def _page(found: FoundDirectory, output: str | None) -> str:
    import lllaunch  # noqa: PLC0415 - as below

    if find_spec("jinja2") is None:
        raise package_missing("jinja2", "--format html")
    if found.kind == "sweep":
        from lllaunch.pages.sweep_page import (  # noqa: PLC0415 - of one format
            sweep_facts,
            sweep_page,
        )

        facts = sweep_facts(view_sweep(found.path), source_roots())
        place = (
            "." if output is None else os.path.relpath(found.path, os.path.dirname(output) or ".")
        )
        return sweep_page(facts, lllaunch.__version__, place)

    from lllaunch.pages.run_page import run_page  # noqa: PLC0415 - as above

    return run_page(view_run(found), lllaunch.__version__)
