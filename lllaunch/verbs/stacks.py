"""``python -m lllaunch stacks RUN``: shows where the workers of a live run stand."""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import time
from typing import TYPE_CHECKING, Any

from lllaunch.console.report import frame_text, look_lines
from lllaunch.documents import Plain
from lllaunch.errors import ExitCode
from lllaunch.locks import signed_by
from lllaunch.results.locate import LATEST, NoSuchRun, entry_now, jobs_of, locate, newest, roots_of
from lllaunch.results.store import lock_of
from lllaunch.results.view import view_run
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
from lllaunch.words import StyledText, capitalised, counted, ranks, shown_path

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    exit_code = ExitCode.ERROR

    def __str__(self) -> str:
        return "; ".join(filter(None, (f"{self.path}: {self.reason}", self.hint)))


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    parser = Parser("stacks", _DESCRIPTION)
    parser.add_run("a run", "the live run")
    parser.add_argument(
        "--rank",
        metavar="RANKS",
        type=rank_list,
        help="show all threads of these ranks: 0, 1-3, or 0,2-3",
    )
    parser.add_argument("--json", action="store_true", help="print an object")
    return perform(parser, argv, _show)


def _show(given: argparse.Namespace) -> None:
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
        time.sleep(_PAUSE)


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
