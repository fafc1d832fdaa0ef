"""What the workers of a run have written (``logs RUN``), and where they stand (``stacks RUN``)."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shlex
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from lllaunch.console.report import frame_text, look_lines
from lllaunch.documents import Plain
from lllaunch.errors import ExitCode
from lllaunch.files import within
from lllaunch.locks import is_held, signed_by
from lllaunch.results.history import RunHistory
from lllaunch.results.locate import LATEST, NoSuchRun, entry_now, jobs_of, locate, newest, roots_of
from lllaunch.results.store import BatchQueue, lock_of, read_run
from lllaunch.results.view import numbered, view_run
from lllaunch.run.directory import SUBMISSION
from lllaunch.run.result import Hang
from lllaunch.run.submission import LOG
from lllaunch.signal_source import STACKS_ON
from lllaunch.supervisor.control import (
    Answer,
    Request,
    RequestRefused,
    ask,
)
from lllaunch.text import printable, spans
from lllaunch.verbs.printing import (
    Parser,
    complain,
    perform,
    print_json,
    print_rows,
    rank_list,
    whole_number,
)
from lllaunch.verbs.stop import outcome_text
from lllaunch.watchdog.blame import blame_now
from lllaunch.watchdog.collectives import sentence
from lllaunch.watchdog.findings import Asked
from lllaunch.words import StyledText, capitalised, counted, ranks, shown_path
from lllaunch.workers.tail import Follower

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lllaunch.results.store import FoundDirectory, ListEntry
    from lllaunch.run.result import RunResult

_LOGS = """\
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


def logs(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("logs", _LOGS)
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
    parser.add_flags(
        launcher="show what the launcher printed in the batch job of a run on a cluster"
    )
    return perform(parser, argv, _show_logs)


def _show_logs(given: argparse.Namespace) -> int:
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


_STACKS = """\
Show where the workers of a live run are, without disturbing them. A run on several nodes shows
the workers of all nodes."""
# The socket is there a second after the first workers were ordered.
_PATIENCE, _AGAIN = 5.0, 0.1
_MOST_NAMED = 8
_NAME = 80


class NoStacks(NoSuchRun):
    """A run goes on, and does not say where its workers stand."""

    exit_code = ExitCode.ERROR

    def __str__(self) -> str:
        return "; ".join(filter(None, (f"{self.path}: {self.reason}", self.hint)))


def stacks(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("stacks", _STACKS)
    parser.add_run("a run", "the live run")
    parser.add_argument(
        "--rank",
        metavar="RANKS",
        type=rank_list,
        help="show all threads of these ranks: 0, 1-3, or 0,2-3",
    )
    parser.add_flags(json="print an object")
    return perform(parser, argv, _show_stacks)


def _show_stacks(given: argparse.Namespace) -> None:
    found, chosen = _live(given.run), given.rank
    where = shown_path(os.path.abspath(found.path), os.getcwd())
    answer = _ask(found, where, Request(chosen, chosen is not None))
    known = answer.world_size
    if chosen is not None and max(chosen) >= known:
        missing = ranks(rank for rank in chosen if rank >= known)
        raise NoSuchRun(where, f"has no {missing}, only {ranks(range(known))}")
    for node in answer.nodes:
        if node.why_not:
            complain(f"{node.name} {node.why_not}: its workers are not shown")
    look = _look(answer)
    if given.json:
        print_json(_document(answer, look, os.path.abspath(found.path)))
    else:
        print_rows((line,) for line in _lines(answer, look, where, chosen))


# Whose stacks


def _live(name: str) -> FoundDirectory:
    """Find a run that may go on; of a sweep the only job that does."""
    if name == LATEST and not os.path.exists(name):
        running = (each.path for each in newest(roots_of()) if each.state == "running")
        name = next(running, "")
        if not name:
            hint = "'python -m lllaunch ls' lists what was run"
            raise NoSuchRun("", "nothing that was started from here goes on", hint)
    found = locate(name)
    if found.kind == "run":
        return found
    jobs = [job.path for job in jobs_of(entry_now(found)) if job.state == "running"]
    if not jobs:
        reason = f"is a sweep, none of whose jobs runs: {outcome_text(entry_now(found))}"
        raise NoSuchRun(found.path, reason)
    if len(jobs) > 1:
        names = _some([shown_path(path, os.getcwd()) for path in jobs])
        reason = f"is a sweep, {len(jobs)} of whose jobs run"
        raise NoSuchRun(found.path, reason, f"say which one: {names}")
    return locate(jobs[0])


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED] + ["..."] * (len(names) > _MOST_NAMED))


def _ask(found: FoundDirectory, where: str, request: Request) -> Answer:
    """Ask the launcher of a run; of several nodes one that is on this machine."""
    until = time.monotonic() + _PATIENCE
    while True:
        entry = entry_now(found)
        _check_goes_on(found, entry, where)
        for directory, pid in _launchers_here(found.path, where, entry):
            try:
                return ask(directory, request)
            except (FileNotFoundError, ConnectionRefusedError):
                # it may come, and another node of this machine may have one
                continue
            except (RequestRefused, OSError, ValueError) as error:
                raise NoStacks(where, f"its launcher (pid {pid}) gave no answer: {error}") from None
        if time.monotonic() >= until:
            state = f"its launcher (pid {pid}) is starting, busy or ending"
            hint = f"'kill -QUIT {pid}' lets it show them in its own terminal"
            reason = f"has no socket to ask at: {state}"
            raise NoStacks(where, reason, f"ask again in a moment; {hint}")
        time.sleep(_AGAIN)


def _check_goes_on(found: FoundDirectory, entry: ListEntry, where: str) -> None:
    if entry.state == "running":
        return
    if entry.state == "queued":
        raise NoSuchRun(where, f"has not begun: {entry.queue}")
    if entry.state == "unknown":
        raise NoSuchRun(where, "may be running or not: its lock cannot be looked at")
    hint = "it has left no stacks"
    if left := view_run(found).stacks:
        path = os.path.abspath(os.path.join(found.path, left[0].path))
        hint = f"its stacks are in {shown_path(path, os.getcwd())}"
    raise NoSuchRun(where, f"is over: {outcome_text(entry)}", hint)


def _launchers_here(directory: str, where: str, entry: ListEntry) -> list[tuple[str, int]]:
    """Return the directories of this machine's launchers of a run, with their process ids."""
    signed = [(part, *signed_by(lock_of("run", part))) for part in parts_of(directory)]
    hosts = sorted({host for _, pid, host in signed if pid})
    if not hosts:
        raise NoStacks(where, "does not say where its launcher is: its lock cannot be read")
    name = socket.gethostname()
    if name in hosts:
        return [(part, pid) for part, pid, host in signed if pid and host == name]
    command = f"python -m lllaunch stacks {shlex.quote(os.path.abspath(directory))}"
    if entry.batch_job:
        command = f"srun --overlap --jobid={entry.batch_job} -w {hosts[0]} -N1 -n1 {command}"
    else:
        command = f"ssh {hosts[0]} {shlex.quote(command)}"
    reason = f"runs on {_some(hosts)}, and this is {name}"
    raise NoStacks(where, reason, f"ask there: {command}")


# What is shown


def _look(answer: Answer) -> Hang:
    """Return what a launcher has answered as what is seen when a signal asks."""
    stacks = {each.rank: each for each in answer.ranks if each.status == "running"}
    judged = blame_now([*stacks.values()], answer.time_ns)
    return Hang(
        finding=Asked(STACKS_ON),
        time_ns=answer.time_ns,
        hung=judged.hung,
        waiting=judged.waiting,
        collectives=judged.collectives,
        asleep=tuple(rank for rank, stack in stacks.items() if stack.state == "D"),
        stopped=tuple(rank for rank, stack in stacks.items() if stack.state in {"T", "t"}),
        standing=tuple(stacks.values()),
        nodes={rank: stacks[rank].node for rank in judged.hung},
    )


def _document(answer: Answer, look: Hang, path: str) -> dict[str, Any]:
    document = Plain()(answer)
    for each in document["ranks"]:
        # what was recorded has been compared
        del each["trace"]
    found = look.collectives
    text = {} if found is None else {"text": sentence(found, so_far=True)}
    return {
        "path": path,
        **document,
        "hung": list(look.hung),
        "waiting": list(look.waiting),
        "collectives": None if found is None else {**Plain()(found), **text},
    }


def _lines(
    answer: Answer, look: Hang, where: str, chosen: frozenset[int] | None
) -> list[StyledText]:
    """Return what run it is, whose stacks there are none of, and the others."""
    size = counted(answer.world_size, "worker")
    on = f" on {counted(len(answer.nodes), 'node')}" if answer.nodes else ""
    state = "" if answer.state == "RUNNING" else f": {answer.text}"
    lines = [StyledText(f"{where}: attempt {answer.attempt}, {size}{on}{state}")]
    for status, what in _STATUS.items():
        members = [each.rank for each in answer.ranks if each.status == status]
        if members:
            has = "has" if len(members) == 1 else "have"
            lines.append(StyledText(f"    {capitalised(ranks(members))} {has} {what}"))
    if chosen is None:
        return [*lines, *(look_lines(look, os.getcwd()) if look.stacks else ())]
    for each in answer.ranks:
        if each.status != "running":
            continue
        kernel = ", ".join(filter(None, (each.state, each.wchan)))
        on = f" on {each.node}" if each.node else ""
        lines.append(StyledText(f"    Rank {each.rank}{on}, process {each.pid} ({kernel}):"))
        for thread in each.threads or ():
            title = f"      {printable(thread.name, _NAME)} (innermost call first):"
            frames = (f"        {frame_text(frame, os.getcwd())}" for frame in thread.frames)
            lines += [StyledText(title), *(StyledText(text, "quote") for text in frames)]
        if not each.threads:
            lines.append(StyledText("      no Python frames are known", "faint"))
    return lines


_STATUS = {"starting": "not started yet: imports, or the preflight, come first", "ended": "ended"}
