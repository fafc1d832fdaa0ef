"""``python -m lllaunch logs RUN``: shows what the workers of a run have written, from its files."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from lllaunch.errors import ExitCode
from lllaunch.files import within
from lllaunch.locks import is_held
from lllaunch.results.history import RunHistory
from lllaunch.results.locate import NoSuchRun, entry_now, locate
from lllaunch.results.store import BatchQueue, lock_of, read_run
from lllaunch.results.view import numbered
from lllaunch.run.directory import SUBMISSION
from lllaunch.run.submission import LOG
from lllaunch.text import spans
from lllaunch.verbs.printing import Parser, complain, perform, rank_list, whole_number
from lllaunch.workers.tail import Follower

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lllaunch.results.store import FoundDirectory
    from lllaunch.run.result import RunResult

_DESCRIPTION = """\
Show the output of a run's workers, from the files that the run keeps: the last attempt, rank by
rank, standard output first. With several ranks, each line begins with its rank."""
_STREAMS = ("stdout", "stderr")
# Between two looks at whether there is another attempt, and whether the run is over, seconds; and
# between two questions to a cluster.
_PAUSE, _CLUSTER_PAUSE = 0.5, 5.0


class WorkerLog(NamedTuple):
    """A file that holds what a worker has written."""

    rank: int
    stream: str
    path: str


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("logs", _DESCRIPTION)
    parser.add_run("a run")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="show new output until the run is over"
    )
    parser.add_argument(
        "--rank", metavar="RANKS", type=rank_list, help="only these ranks: 0, 1-3, or 0,2-3"
    )
    streams = parser.add_mutually_exclusive_group()
    for name in _STREAMS:
        streams.add_argument(
            f"--{name}", dest="streams", action="store_const", const=(name,), help=f"only {name}"
        )
    parser.set_defaults(streams=_STREAMS)
    parser.add_argument(
        "--attempt", metavar="N", type=whole_number, help="attempt to show; default: the last one"
    )
    parser.add_argument(
        "--launcher",
        action="store_true",
        help="show what the launcher printed in the batch job of a run on a cluster",
    )
    return perform(parser, argv, _show)


def _show(given: argparse.Namespace) -> int:
    found = locate(given.run)
    if found.kind == "sweep":
        raise NoSuchRun(found.path, "is a sweep", "'ls --jobs' lists its jobs, each a directory")

    failed = False

    def report(level: int, text: str) -> None:
        nonlocal failed
        failed = failed or level >= logging.ERROR
        complain(text)

    history = RunHistory(found.path)
    launchers = WorkerLog(0, "stdout", os.path.join(found.path, LOG))
    first = max(_attempts(found.path), default=0)
    shown: set[WorkerLog] = set()

    def chosen() -> list[WorkerLog]:
        if given.launcher:
            return [launchers] if os.path.exists(launchers.path) else []
        # all that follow the first: one may have been short
        last = max(_attempts(found.path), default=0) if given.follow else first
        later = range(first, last + 1)
        return [
            log
            for number in (later if given.attempt is None else (given.attempt,))
            for log in worker_logs(found.path, number, history)
            if log.stream in given.streams and (given.rank is None or log.rank in given.rank)
        ]

    follower = Follower("logs", elsewhere=SUBMISSION in found.names, report=report)
    with _started(follower):
        for _ in _until_over(found) if given.follow else (None,):
            logs = chosen()
            plain = len({log.rank for log in logs}) < 2
            for log in logs:
                if log in shown:
                    continue
                shown.add(log)
                prefix = b"" if plain else b"[rank%d]:" % log.rank
                if given.follow:
                    follower.add(log.path, prefix, sys.stdout)
                    continue
                # one after the other; a line that is not ended is ended here
                with _started(Follower("logs", report=report)) as alone:
                    alone.add(log.path, prefix, sys.stdout)
    _, result = read_run(found)
    if not shown and (why := _why_none(found, given, result)) is not None:
        raise why
    # of nodes whose files cannot be seen from here
    for node in () if result is None else result.nodes:
        if not node.shared and not os.path.isdir(node.directory):
            complain(f"the logs of {node.name} are in {node.hostname}:{node.directory}")
    return ExitCode.ERROR if failed else ExitCode.SUCCESS


@contextlib.contextmanager
def _started(follower: Follower) -> Iterator[Follower]:
    try:
        yield follower.start()
    finally:
        follower.stop()


def _until_over(found: FoundDirectory) -> Iterator[None]:
    """Yield while a run goes on, and once more when it is over; says that it waits in a queue.

    Between two times it sleeps: what was written until a look is there when this yields.
    """
    queue, waits, more = BatchQueue(good_for=_CLUSTER_PAUSE), False, True
    while more:
        if SUBMISSION not in found.names:
            more = bool(is_held(lock_of("run", found.path)))
        else:
            entry = entry_now(found, queue)
            if entry.state == "queued" and not waits:
                complain(f"job {entry.batch_job}: {entry.queue}")
            waits = entry.state == "queued"
            # a run of this machine in the same directory is in no queue
            more = bool(entry.queue) or entry.state == "running"
        yield
        if more:
            time.sleep(_PAUSE)


def worker_logs(directory: str, attempt: int, history: RunHistory | None = None) -> list[WorkerLog]:
    """Return the files of workers that are there, by rank.

    `history` is that of the run if somebody looks again and again.
    """
    parts, ranks = parts_of(directory), {}
    if parts != [directory]:
        names = {os.path.basename(part): part for part in parts}
        history = (history or RunHistory(directory)).look(names)
        ranks = {names[name]: each.base_rank for name, each in history.attempts(attempt)}
    found = [
        WorkerLog(ranks.get(part, 0) + number, stream, path)
        for part in parts
        for number, place in numbered(os.path.join(part, f"attempt_{attempt}"), "")
        for stream in _STREAMS
        if os.path.exists(path := os.path.join(place, f"{stream}.log"))
    ]
    own = (log for log in found if within(directory, log.path) is not None)
    return sorted(own, key=lambda log: (log.rank, _STREAMS.index(log.stream)))


def _attempts(directory: str) -> set[int]:
    return {number for part in parts_of(directory) for number, _ in numbered(part, "attempt_")}


def parts_of(directory: str) -> list[str]:
    """Returns where attempts stand: in the run's directory, or of several nodes in one for each."""
    nodes = [path for _, path in numbered(directory, "node_") if not os.path.islink(path)]
    return sorted(nodes) or [directory]


def _why_none(
    found: FoundDirectory, given: argparse.Namespace, result: RunResult | None
) -> NoSuchRun | None:
    """Return what is there, where nothing is that was asked for; None if nothing was written."""
    there, submitted = _attempts(found.path), SUBMISSION in found.names
    queue = entry_now(found).queue if submitted and not there else ""
    attempt = max(there, default=0) if given.attempt is None else given.attempt
    known = {log.rank for log in worker_logs(found.path, attempt)}
    if given.launcher and not submitted:
        reason, hint = "was run here: its launcher wrote to its terminal", ""
    elif given.launcher or not there:
        reason = "has begun no attempt"
        hint = f"its batch job: {queue}; 'logs -f' waits for it" if queue else ""
    elif attempt not in there:
        reason, hint = f"has no attempt {attempt}, only {spans(there)}", ""
    elif result is not None and any(
        getattr(worker, stream)
        for each in result.attempts
        for worker in each.workers
        for stream in given.streams
        if each.number == attempt and (given.rank is None or worker.rank in given.rank)
    ):
        return None
    elif known and given.rank is not None and not given.rank & known:
        reason, hint = f"has no logs of rank {spans(given.rank)}, only of {spans(known)}", ""
    else:
        reason = f"has not kept {' or '.join(given.streams)} in files"
        hint = "it went where the launcher's own went; launch.redirects and launch.tee keep it"
    return NoSuchRun(found.path, reason, hint)
