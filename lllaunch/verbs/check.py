"""``python -m lllaunch check [DIR]``: everything that is wrong with a tree of configs, at once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from lllaunch.verbs.printing import Parser, hand_over, make_way, perform

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from lllaunch.checking.findings import Outcome

_CONF = "conf"
_DESCRIPTION = """\
Compose every experiment of a tree of configs and report all problems by file and line: values,
keys, files, locks, the allowlist. Nothing is started or written.

Experiments are the configs in exp/, configs of other groups that set launch (# @package
_global_), and primary configs that set launch."""
_EPILOG = """\
formats:
  text    for people, one problem a line
  json    for programs
  junit   JUnit XML: each experiment, lock and file is a test case
  github  GitHub Actions: annotations on standard output; the step's summary goes to FILE, else
          to $GITHUB_STEP_SUMMARY

The exit code is 0 without problems, 2 with problems, and 5 if the only problems are plans that
were not reviewed or are not allowed. Warnings count with --strict only."""


def check(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("check", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "directory", metavar="DIR", nargs="?", default=_CONF, help="top of the tree; default: conf"
    )
    parser.add_format("text", "json", "junit", "github")
    parser.add_flags(strict="count warnings as problems")
    return perform(parser, argv, _check)


def _check(given: argparse.Namespace) -> int:
    # --help does without
    from lllaunch.checking.check import check_tree  # noqa: PLC0415

    outcome = check_tree(given.directory)
    tell(outcome, given.format, given.output, strict=given.strict)
    return outcome.exit_code(strict=given.strict)


def tell(outcome: Outcome, form: str, output: str | None, *, strict: bool) -> None:
    """Writes what was found, to a file or, without one, to standard output."""
    from lllaunch.checking import findings  # noqa: PLC0415 - as above
    from lllaunch.results.report import tell_step  # noqa: PLC0415 - as above

    make_way(output)
    if form == "github":
        lines = [*findings.commands(outcome, strict=strict), outcome.verdict()]
        tell_step(lines, functools.partial(findings.summary, outcome), output)
    elif form == "text":
        hand_over(findings.render_text(outcome), output)
    else:
        render = findings.render_checks if form == "junit" else findings.render_json
        hand_over(render(outcome, strict=strict), output)
