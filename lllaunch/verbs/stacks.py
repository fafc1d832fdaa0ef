"""``python -m lllaunch stacks RUN``: shows where the workers of a live run stand."""

from __future__ import annotations

import argparse
import glob
import os
import shlex
import socket
import time
from typing import TYPE_CHECKING, Any, ClassVar

from lllaunch.console.hang import frame_text, look_lines
from lllaunch.documents import Plain
from lllaunch.exit_codes import ExitCode
from lllaunch.linux import proc
from lllaunch.locks import signed_by
from lllaunch.results.store import (
    LATEST,
    NoSuchRun,
    entry_now,
    jobs_of,
    locate,
    lock_of,
    newest,
    roots_of,
)
from lllaunch.results.store import look as look_at
from lllaunch.run.result import Hang
from lllaunch.signal_source import STACKS_ON
from lllaunch.supervisor.control import (
    Answer,
    Request,
    RequestRefused,
    ask,
)
from lllaunch.text import printable
from lllaunch.verbs.logs import parts_of
from lllaunch.verbs.printing import Parser, complain, perform, print_json, print_rows, rank_list
from lllaunch.verbs.wait import outcome_text
from lllaunch.watchdog.blame import blame_now
from lllaunch.watchdog.collectives import sentence
from lllaunch.watchdog.findings import Asked
from lllaunch.watchdog.frames import TREE
from lllaunch.words import StyledText, capitalised, counted, ranks, shown_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lllaunch.results.store import FoundDirectory, ListEntry

_DESCRIPTION = """\
Show where the workers of a live run are, without disturbing them. A run on several nodes shows
the workers of all nodes."""
# The socket is there a second after the first workers were ordered.
_PATIENCE, _PAUSE = 5.0, 0.1
_MOST_NAMED = 8
_NAME = 80


class NoStacks(NoSuchRun):
    """A run goes on, and does not say where its workers stand."""

    exit_code: ClassVar[int] = ExitCode.ERROR

    def __str__(self) -> str:
        return "; ".join(filter(None, (f"{self.path}: {self.reason}", self.hint)))


def main(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code."""
    return perform(_parser(), argv, _show)


def _parser() -> argparse.ArgumentParser:
    parser = Parser("stacks", _DESCRIPTION)
    parser.add_run("a run", "the live run")
    parser.add_argument(
        "--rank",
        metavar="RANKS",
        type=rank_list,
        help="show all threads of these ranks: 0, 1-3, or 0,2-3",
    )
    parser.add_argument("--json", action="store_true", help="print an object")
    return parser


def _show(given: argparse.Namespace) -> None:
    found = _live(given.run)
    answer, look = _taken(found, given.rank)
    for node in answer.nodes:
        if node.why_not:
            complain(f"{node.name} {node.why_not}: its workers are not shown")
    if given.json:
        print_json(_document(answer, look, os.path.abspath(found.path)))
    else:
        print_rows((line,) for line in _lines(answer, look, _shown(found), given.rank))


def stack_lines(found: FoundDirectory, chosen: frozenset[int] | None = None) -> list[StyledText]:
    """Return where the workers of a live run stand, as lines for people.

    All threads of the ``chosen`` ranks; None for what all ranks do.

    Raises:
        LaunchError: it is over, has no such rank, or does not answer; says which.
    """
    return _lines(*_taken(found, chosen), _shown(found), chosen)


def _shown(found: FoundDirectory) -> str:
    return shown_path(os.path.abspath(found.path), os.getcwd())


def _taken(found: FoundDirectory, chosen: frozenset[int] | None) -> tuple[Answer, Hang]:
    """Ask a run where its workers stand; return its answer, and what follows from it."""
    where = _shown(found)
    answer = _ask(found, where, Request(chosen, chosen is not None))
    known = answer.world_size
    if chosen is not None and max(chosen) >= known:
        missing = ranks(rank for rank in chosen if rank >= known)
        raise NoSuchRun(where, f"has no {missing}, only {ranks(range(known))}")
    return answer, _look(answer)


# Whose stacks


def _live(name: str) -> FoundDirectory:
    """Find a run that may go on."""
    if name != LATEST or os.path.exists(name):
        found = locate(name)
    else:
        entries = newest(roots_of())
        entry = next((each for each in entries if each.state == "running"), None)
        latest = None if entry is None else look_at(entry.path)
        if latest is None:
            hint = "'python -m lllaunch ls' lists what was run"
            raise NoSuchRun("", "nothing that was started from here goes on", hint)
        found = latest
    if found.kind == "run":
        return found
    running = [job for job in jobs_of(entry_now(found)) if job.state == "running"]
    job = look_at(running[0].path) if len(running) == 1 else None
    if job is not None:
        return job
    if not running:
        raise NoSuchRun(
            found.path, f"is a sweep, none of whose jobs runs: {outcome_text(entry_now(found))}"
        )
    names = _some([shown_path(each.path, os.getcwd()) for each in running])
    raise NoSuchRun(
        found.path, f"is a sweep, {len(running)} of whose jobs run", f"say which one: {names}"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED] + ["..."] * (len(names) > _MOST_NAMED))


def _ask(found: FoundDirectory, where: str, request: Request) -> Answer:
    """Ask the launcher of a run; of several nodes one that is on this machine."""
    until = time.monotonic() + _PATIENCE
    while True:
        entry = entry_now(found)
        _check_goes_on(entry, where)
        for directory, pid in _launchers_here(found.path, where, entry):
            facts = proc.facts(pid)
            if facts is not None and facts.state in "Tt":
                hint = f"'kill -CONT {pid}' lets it go on"
                raise NoStacks(
                    where, f"its launcher (pid {pid}) is stopped (SIGSTOP, Ctrl-Z)", hint
                )
            try:
                return ask(directory, request)
            except (FileNotFoundError, ConnectionRefusedError):
                # it may come, and another node of this machine may have one
                continue
            except PermissionError:
                reason = "is another user's, who alone may look into it"
            except RequestRefused as refused:
                reason = f"its launcher refuses to answer: {refused.text}"
            except (OSError, ValueError) as error:
                reason = f"its launcher (pid {pid}) gave no answer: {error}"
            raise NoStacks(where, reason)
        if time.monotonic() >= until:
            reason = (
                f"has no socket to ask at: its launcher (pid {pid}) is starting, busy or ending"
            )
            hint = (
                f"ask again in a moment; 'kill -QUIT {pid}' lets it show them in its own terminal"
            )
            raise NoStacks(where, reason, hint)
        time.sleep(_PAUSE)


def _check_goes_on(entry: ListEntry, where: str) -> None:
    if entry.state == "running":
        return
    if entry.state == "queued":
        raise NoSuchRun(where, f"has not begun: {entry.queue}")
    if entry.state == "unknown":
        raise NoSuchRun(where, "may be running or not: its lock cannot be looked at")
    parts = map(glob.escape, parts_of(entry.path))
    left = [path for part in parts for path in glob.iglob(f"{part}/attempt_*/{TREE}")]
    hint = "it has left no stacks"
    if left:
        newest_of_all = os.path.abspath(max(left, key=os.path.getmtime))
        hint = f"its stacks are in {shown_path(newest_of_all, os.getcwd())}"
    raise NoSuchRun(where, f"is over: {outcome_text(entry)}", hint)


def _launchers_here(directory: str, where: str, entry: ListEntry) -> list[tuple[str, int]]:
    """Return the directories of this machine's launchers of a run, with their process ids."""
    signed = [
        (part, pid, host)
        for part in parts_of(directory)
        for pid, host in [signed_by(lock_of("run", part))]
        if pid
    ]
    name = socket.gethostname()
    here = [(part, pid) for part, pid, host in signed if host == name]
    if here:
        return here
    hosts = sorted({host for _, _, host in signed})
    if not hosts:
        raise NoStacks(where, "does not say where its launcher is: its lock cannot be read")
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
    if chosen is not None:
        lines += _threads(answer, os.getcwd())
    elif look.stacks:
        lines += look_lines(look, os.getcwd())
    return lines


_STATUS = {"starting": "not started yet: imports, or the preflight, come first", "ended": "ended"}


def _threads(answer: Answer, cwd: str) -> Iterator[StyledText]:
    """Yield all threads of all ranks."""
    for each in answer.ranks:
        if each.status != "running":
            continue
        kernel = ", ".join(filter(None, (each.state, each.wchan)))
        on = f" on {each.node}" if each.node else ""
        yield StyledText(f"    Rank {each.rank}{on}, process {each.pid} ({kernel}):")
        if not each.threads:
            yield StyledText("      no Python frames are known", "faint")
        for thread in each.threads or ():
            yield StyledText(f"      {printable(thread.name, _NAME)} (innermost call first):")
            for frame in thread.frames:
                yield StyledText(f"        {frame_text(frame, cwd)}", "quote")
