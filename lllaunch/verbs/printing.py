"""How verbs take their arguments, print what was asked for, and complain."""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from lllaunch.app.command_line import WrongUsage, read
from lllaunch.console.stream import encodable
from lllaunch.console.table import Row, is_terminal, painter
from lllaunch.errors import ExitCode, LaunchError, Unfit
from lllaunch.files import naming, write_atomic
from lllaunch.text import plain, visible
from lllaunch.words import StyledText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Parser(argparse.ArgumentParser):
    """A parser whose errors read as all others of lllaunch; texts are shown as they are."""

    def __init__(self, verb: str, description: str, epilog: str | None = None) -> None:
        super().__init__(
            prog=f"python -m lllaunch {verb}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add_run(self, kinds: str = "a run or a sweep", last: str = "the one") -> None:
        """Take the name of a run or a sweep, as `lllaunch.results.locate.locate` reads it."""
        self.description = f"""{self.description}

RUN names {kinds}: its directory or its result file, the end of such a path, the id of its
batch job, or 'latest' (the default), {last} started last from here."""
        self.add_argument("run", metavar="RUN", nargs="?", default="latest", help="default: latest")

    def add_flags(self, **helps: str) -> None:
        """Take options without a value, each with what ``--help`` says of it."""
        for name, text in helps.items():
            self.add_argument(f"--{name}", action="store_true", help=text)

    def add_format(self, *forms: str) -> None:
        """Take one of several formats, text by default, and a file in place of the terminal."""
        self.add_argument("--format", choices=forms, default="text", help="default: text")
        text = "write to a file, completely or not at all"
        self.add_argument("--output", metavar="FILE", help=text)

    def error(self, message: str) -> NoReturn:
        """Exit with what is wrong with the arguments."""
        self.exit(ExitCode.CONFIG, f"lllaunch: {message}; see {self.prog} --help\n")


def perform(
    parser: argparse.ArgumentParser,
    argv: Sequence[str],
    verb: Callable[[argparse.Namespace], int | None],
    *,
    takes_script: bool = False,
) -> int:
    """Run a verb with its words, and return its exit code, 0 for None; print its `LaunchError`.

    ``takes_script``: whether it takes what runs a script, as `lllaunch.app.command_line.read` has
    it; ``has_script`` is then among the arguments.
    """
    if not sys.stdout:
        complain("standard output is closed")
        return ExitCode.ERROR
    try:
        if takes_script:
            argv = _without_script(parser, argv)
        # options may stand among overrides
        given = parser.parse_intermixed_args(argv)
    except SystemExit as end:  # --help, or a wrong option
        return end.code if isinstance(end.code, int) else ExitCode.ERROR
    code: int | None = None
    try:
        code = verb(given)
        sys.stdout.flush()
    except LaunchError as error:
        complain(str(error))
        return error.exit_code
    except BrokenPipeError:
        # nobody reads on, as in "... | head"; what is left must not be written at the end either
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
    except OSError as error:
        # of the last two the system names no file
        place = error.filename or ("the working directory" if error.errno == errno.ENOENT else "")
        try:
            # what could not be written is still there
            sys.stdout.flush()
        except OSError:
            place = place or "standard output"
        complain(": ".join(filter(None, (place, error.strerror or str(error)))))
        return ExitCode.ERROR
    return code or ExitCode.SUCCESS


def _without_script(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    # its options, and how many words follow each
    flags = {flag: int(each.nargs != 0) for each in parser._actions for flag in each.option_strings}
    try:
        line = read(argv, flags)
    except WrongUsage as wrong:
        parser.exit(ExitCode.CONFIG, f"lllaunch: {visible(str(wrong))}\n")
    parser.set_defaults(has_script=line.has_script)
    return line.words


def rank_list(text: str) -> frozenset[int]:
    """Return the ranks that an argument names."""
    from lllaunch.config.values import parse_ranks  # noqa: PLC0415 - of few verbs

    try:
        return frozenset(itertools.chain.from_iterable(map(parse_ranks, text.split(","))))
    except Unfit as error:
        expected = "expected ranks (0, 1-3, or 0,2-3)"
        raise argparse.ArgumentTypeError(f"{expected}, got {text!r}") from error


def whole_number(text: str, least: int = 0) -> int:
    """Return the whole number that an argument is."""
    if not text.isascii() or not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, got {text!r}")
    return int(text)


def complain(message: str) -> None:
    """Print an error to standard error."""
    for line in visible(message).split("\n") if message else ():
        print(f"lllaunch: {line}", file=sys.stderr)


def columns() -> int:
    """Return the width of the terminal that standard output is; 0 if it is none."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else 0


def print_rows(rows: Iterable[Row]) -> None:
    """Print rows, in colours on a terminal; they cannot move its cursor."""
    tame = [tuple(StyledText(plain(span.text), span.style) for span in row) for row in rows]
    for line in painter(sys.stdout)(tame):
        sys.stdout.write(encodable(f"{line}\n", sys.stdout))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as `print_rows` does."""
    print_rows((StyledText(line),) for line in lines)


def hand_over(text: str, output: str | None) -> None:
    """Print a text in UTF-8, or write it to a file: completely or not at all."""
    from lllaunch.results.report import emit, encoded  # noqa: PLC0415 - of few verbs

    if output is None:
        emit(text)
    else:
        write_atomic(output, encoded(text))


def make_way(output: str | None) -> None:
    """Make the directory that a file of this name will be in."""
    if output is not None and (directory := os.path.dirname(output)):
        with naming(output):
            os.makedirs(directory, exist_ok=True)


def print_json(value: Any) -> None:
    """Print a value as JSON, in ASCII."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
