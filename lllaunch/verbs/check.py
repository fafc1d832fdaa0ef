"""``python -m lllaunch check [DIR]``: everything that is wrong with a tree of configs, at once."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.verbs.printing import Parser, perform

if TYPE_CHECKING:
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


def main(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code."""
    codes: list[int] = []

    def check(given: argparse.Namespace) -> None:
        # --help does without
        from lllaunch.checking.check import check_tree  # noqa: PLC0415

        outcome = check_tree(_directory(given), os.environ)
        codes.append(outcome.exit_code(strict=given.strict))
        _tell(outcome, given)

    ended = perform(_parser(), argv, check)
    return ended or (codes[0] if codes else 0)


def _parser() -> argparse.ArgumentParser:
    parser = Parser("check", _DESCRIPTION, _EPILOG)
    parser.add_argument(
        "directory", metavar="DIR", nargs="?", help="top of the tree; default: conf"
    )
    parser.add_argument("--config-dir", "-cd", metavar="DIR", help="the same, as in a run")
    forms = ("text", "json", "junit", "github")
    parser.add_argument("--format", choices=forms, default="text", help="default: text")
    parser.add_argument(
        "--output", metavar="FILE", help="write to a file, completely or not at all"
    )
    parser.add_argument("--strict", action="store_true", help="count warnings as problems")
    return parser


def _directory(given: argparse.Namespace) -> str:
    named = [each for each in (given.directory, given.config_dir) if each is not None]
    if len({*map(os.path.abspath, named)}) > 1:
        message = f"is another tree than {given.directory!r}"
        hint = "check them one after the other"
        raise ConfigError(
            (Diagnostic("directory", "--config-dir", repr(given.config_dir), message, hint),)
        )
    return str(named[0]) if named else _CONF


def _tell(outcome: Outcome, given: argparse.Namespace) -> None:
    from lllaunch.checking.findings import tell  # noqa: PLC0415 - as above

    tell(outcome, given.format, given.output, os.environ, strict=given.strict)
