"""``python -m lllaunch top [RUN]``: what goes on, from another terminal, once a second."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from lllaunch.console.table import is_terminal
from lllaunch.console.views import view_rows
from lllaunch.linux.process import wait
from lllaunch.results.index import DEFAULT_ROOTS
from lllaunch.results.live import LiveReader, plain_view
from lllaunch.results.locate import locate, roots_of
from lllaunch.results.store import look
from lllaunch.verbs.printing import Parser, columns, perform, print_rows
from lllaunch.workers.terminal import moves_cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lllaunch.results.live import Watched

_DESCRIPTION = """\
Show live runs, sweeps with their running jobs, and what finished recently. For one run show its
ranks, for one sweep its jobs. The view reads their files and disturbs nothing.

On a terminal the view is updated every second. With textual (lllaunch[tui]) it has keys to sort,
filter, read logs and stacks, and stop a run; '?' lists them. Otherwise it is a table that ends
with the named run, or with Ctrl-C. On a pipe it is printed once.

RUN names a run or a sweep: its directory, the end of its path, the id of its batch job, or
'latest' (the default), the one started last from here; or it is a directory with runs below it."""
_EACH = 1.0
_LEAST_EACH, _MOST_EACH = 0.1, 86_400


def top(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("top", _DESCRIPTION)
    roots = ", ".join(DEFAULT_ROOTS)
    what = f"default: all of {roots}, and other places where runs were started from here"
    parser.add_argument("run", metavar="RUN", nargs="?", help=what)
    parser.add_flags(plain="use the table even if textual is installed", once="print once and exit")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_interval,
        help="time between updates, also on a pipe; default: 1",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    return perform(parser, argv, _top)


def _interval(text: str) -> float:
    with contextlib.suppress(ValueError):
        if _LEAST_EACH <= (seconds := float(text)) <= _MOST_EACH:
            return seconds
    raise argparse.ArgumentTypeError(
        f"expected seconds, {_LEAST_EACH} to {_MOST_EACH}, got {text!r}"
    )


def watched(name: str | None) -> Watched:
    """Return what is to be looked at: a run, a sweep, or directories."""
    if name is None:
        return tuple(roots_of())
    if os.path.isdir(name) and look(name) is None:
        return (name,)
    return locate(name)


def _top(given: argparse.Namespace) -> None:
    what = watched(given.run)
    on_terminal = moves_cursor() and is_terminal(sys.stdout)
    again = not given.once and (on_terminal or given.interval is not None)
    in_place = again and on_terminal and not given.json
    each = given.interval or _EACH
    reader = LiveReader()
    keys = not given.plain and is_terminal(sys.stdin) and find_spec("textual") is not None
    if in_place and keys:
        # 0.3 s to import, and not everybody has it
        from lllaunch.verbs.top_app import TopApp  # noqa: PLC0415

        TopApp(what, reader, each).run()
        return
    drawn = 0
    while True:
        view = reader.view(what)
        if given.json:
            sys.stdout.write(json.dumps(plain_view(view)) + "\n")
        else:
            lines = shutil.get_terminal_size().lines if in_place else 0
            rows = view_rows(view, columns(), lines, os.getcwd())
            if in_place and drawn:
                # in the place of the table before
                sys.stdout.write(f"\x1b[{drawn}F\x1b[J")
            elif drawn:
                sys.stdout.write("\n")
            print_rows(rows)
            drawn = len(rows)
        sys.stdout.flush()
        if not again or view.is_over:
            return
        wait(seconds=each)
