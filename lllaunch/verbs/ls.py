"""``python -m lllaunch ls [DIR ...]``: runs and sweeps, the newest first."""

from __future__ import annotations

import argparse
import itertools
import os
import time
from functools import partial
from typing import TYPE_CHECKING

from lllaunch.console.table import Column, Row, rows_of
from lllaunch.results.index import DEFAULT_ROOTS
from lllaunch.results.locate import NoSuchRun, jobs_of, list_entries, newest, roots_of
from lllaunch.results.store import BatchQueue, ListEntry, plain
from lllaunch.text import plain as one_line
from lllaunch.verbs.printing import (
    Parser,
    columns,
    complain,
    perform,
    print_json,
    print_rows,
    whole_number,
)
from lllaunch.words import (
    MEANINGS,
    done_text,
    jobs_text,
    objective_text,
    short_overrides,
    short_step,
    shown_path,
    state_style,
    state_text,
    took,
)
from lllaunch.workers.terminal import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_DESCRIPTION = """\
List runs and sweeps, newest first: start, path, state, exit code, duration, number of attempts,
the value that rank 0 returned, and overrides. Live runs show their progress, runs on a cluster
their batch job and its state."""
# What is left out first where a terminal is narrow.
_SPARE = ("tries", "job", "code", "value", "left")


def ls(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    told = "\n".join(f"  {state_text(name):<13} {meaning}" for name, meaning in MEANINGS.items())
    parser = Parser("ls", _DESCRIPTION, f"states:\n{told}")
    roots = ", ".join(DEFAULT_ROOTS)
    what = f"where to search; default: {roots}, and other places where runs were started from here"
    parser.add_argument("dirs", metavar="DIR", nargs="*", help=what)
    parser.add_argument("--json", action="store_true", help="print an array of objects")
    parser.add_argument("--state", metavar="STATE[,...]", type=_states, help="only these states")
    parser.add_argument(
        "--limit", metavar="N", type=partial(whole_number, least=1), help="only the first N"
    )
    parser.add_flags(sweeps="only sweeps", jobs="also list the jobs of sweeps")
    return perform(parser, argv, _list)


def _states(text: str) -> frozenset[str]:
    names = frozenset(name.strip().replace("-", "_").replace(" ", "_") for name in text.split(","))
    unknown = sorted(names - MEANINGS.keys())
    if unknown:
        states = ", ".join(map(state_text, MEANINGS))
        raise argparse.ArgumentTypeError(f"unknown state {unknown[0]!r} (choose from {states})")
    return names


def _list(given: argparse.Namespace) -> None:
    for directory in given.dirs:
        if not os.path.isdir(directory):
            raise NoSuchRun(directory, "is not a directory")
    roots = given.dirs or roots_of()
    # of a few of them no more is read than is shown
    queue = BatchQueue()
    entries = newest(roots, queue=queue) if given.limit else list_entries(roots, queue=queue)
    found = list(itertools.islice(_chosen(entries, given, queue), given.limit))
    cwd = os.getcwd()
    if given.json:
        print_json([plain(entry, os.path.join(cwd, entry.path)) for entry in found])
    elif found:
        print_rows(list_rows(found, cwd, columns()))
    else:
        what = "sweeps" if given.sweeps else "runs"
        like = " of that kind" if given.state else ""
        roots = [f"{root.rstrip('/')}/" for root in given.dirs or DEFAULT_ROOTS]
        complain(f"no {what}{like} found in {' or '.join(roots)}")


def _chosen(
    entries: Iterable[ListEntry], given: argparse.Namespace, queue: BatchQueue
) -> Iterator[ListEntry]:
    """Yields what is to be shown, jobs after their sweeps."""
    for entry in entries:
        wanted = entry.kind == "sweep" or not given.sweeps
        if wanted and (given.state is None or entry.state in given.state):
            yield entry
        for job in jobs_of(entry, queue) if given.jobs and entry.kind == "sweep" else ():
            if given.state is None or job.state in given.state:
                yield job


def list_rows(entries: Sequence[ListEntry], cwd: str, width: int) -> list[Row]:
    """Return a table, with titles; `width` is of the terminal, 0 if there is none."""
    columns = [
        Column("when", lambda entry: entry.started_ns, _when, right=False),
        Column("path", lambda entry: _path(entry, cwd), right=False),
        Column("state", lambda entry: state_text(entry.state), right=False),
        Column(
            "job", lambda entry: one_line(f"{entry.batch_job} {entry.queue}".strip()), right=False
        ),
        Column("code", lambda entry: entry.exit_code),
        Column("time", lambda entry: entry.seconds, took),
        Column("step", lambda entry: entry.progress, lambda far: short_step(far.step, far.total)),
        Column("left", lambda entry: entry.progress and entry.progress.eta, took),
        Column("tries", lambda entry: entry.attempts),
        Column("value", lambda entry: objective_text(entry.value)),
        Column("overrides", _overrides, right=False, cut=cut),
    ]
    styles = [state_style(entry.state) for entry in entries]
    return rows_of(columns, entries, styles, max(1, width - 1) if width else 0, spare=_SPARE)


def _when(started_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(started_ns / 1e9))


def _path(entry: ListEntry, cwd: str) -> str:
    return one_line(shown_path(os.path.normpath(os.path.join(cwd, entry.path)), cwd))


def _overrides(entry: ListEntry) -> str:
    text = one_line(short_overrides(entry.overrides))
    if entry.kind != "sweep":
        return text
    told = (done_text if entry.state == "running" else jobs_text)(entry.counts)
    return f"{told}; {text}" if text else told
