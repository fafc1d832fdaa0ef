"""Compares what lllaunch and torchrun say of the same failures, in the same run.

    python benchmarks/diagnosis.py                 all failures; some minutes
    python benchmarks/diagnosis.py --only 4 7      some of them
    python benchmarks/diagnosis.py --show 7        what both say of one, too

Each failure of tests/support/diagnosis.py, and of failures.py, is made under both launchers with
four workers. A point is given for each of three facts that stands in what a user sees, without a
switch: the cause, the rank that it began with, the place in the code. A fourth is for the exit
code: a failure, or none, of a launcher that ended by itself. A fifth is for nothing beside that: no
frames of the launcher's own, nothing that is known to be false. A dash is for what does not exist:
no place in the code killed a worker from outside, and torchrun has no process that forks workers.

lllaunch is judged by the words that its tests hold. Torchrun is judged by the same facts in its own
words: the rank is that of its "Root Cause", an exit code stands for sys.exit, a signal's name for
the crash or the kill, any line of the user's code in a traceback for the place. What hangs under it
is ended --limit seconds after its workers were started; what gives up by itself is waited for.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from launch import table
from support.diagnosis import (
    CASES,
    NPROC,
    Case,
    Ended,
    Running,
    can_mount,
    memory_cgroup,
    perform,
    prepare,
    run_of,
    small_disk,
    surroundings,
)
from support.launching import gone, until
from support.sweeping import end_all, marked
from unlisted import NOISE, SCRIPT, UNLISTED, WATCHED, Unlisted
from workplace import LAUNCHERS, machine

from lllaunch.linux import proc

OURS, THEIRS = LAUNCHERS

# What hangs under torchrun. The others end by themselves, and this only bounds them, seconds.
_HANGS = frozenset({8, 9, 15, 16, 19})
_LIMIT_SECONDS = 240.0
# It would take all memory of the machine.
_GREEDY_NUMBER, _GREEDY_SECONDS = 13, 8.0


def _root(rank: str) -> str:
    return rf"(?s)Root Cause \(first observed failure\):.*?rank +: {rank} "


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it has ended
        return ""


def _wait_for_workers(running: Running) -> None:
    """Wait until torchrun has started its workers, or ended; it takes seconds to import torch."""

    def started() -> bool:
        workers = [each for each in proc.descendants(running.pid) if each.ppid == running.pid]
        return len(workers) >= NPROC or gone(running.pid)

    until(started, "the workers", _LIMIT_SECONDS)


def _interrupt_the_import(running: Running) -> None:
    """Press Ctrl-C when a worker imports torch."""

    def imports() -> bool:
        below = [each.pid for each in proc.descendants(running.pid) if each.ppid == running.pid]
        maps = (Path(f"/proc/{pid}/maps") for pid in below)
        return gone(running.pid) or any("libtorch" in _text(path) for path in maps)

    until(imports, "a worker to import torch", _LIMIT_SECONDS)
    os.kill(running.pid, signal.SIGINT)


# Cause, rank and place as torchrun may say them; None where it has nothing that could fail so.
SAID_BY_TORCHRUN: dict[int, tuple[str, str, str] | None] = {
    1: (r"KeyError: 3", _root("1"), r"line 7, in look_up"),
    2: (
        r"ModuleNotFoundError: No module named 'flash_attention_that_is_not_there'",
        _root(r"\d"),
        r'helpers_mod\.py", line 3',
    ),
    3: (r"exitcode +: 3 ", _root("2"), r"line 8,? in check_data"),
    4: (r"SIGSEGV", _root("1"), r"line 7,? in native_kernel"),
    5: (r"SIGKILL", _root("2"), ""),
    6: (r"(?i)out of memory|\bOOM\b", _root("2"), ""),
    # which of the ranks did not come, and that the others waited for it
    7: (r"fetch_shard", _root("2"), r"line 10,? in fetch_shard"),
    8: (r"(?i)deadlock|stalled|hung", _root("1"), r"line 19,? in consume"),
    9: (r"(?i)SIGSTOP|stopped", _root("3"), r"line 8,? in write_checkpoint"),
    # both exceptions are printed: which was first, only the root cause says
    10: (
        r"(?s)ValueError: invalid literal.*" + _root("1").removeprefix("(?s)"),
        _root("1"),
        r"line 9, in parse",
    ),
    11: None,
    12: (r"No space left on device", _root(r"\d"), r"small/"),
    13: (r"(?i)too much memory|out of memory", _root("3"), r"line \d+,? in load_next"),
    14: (r"killed by signal: Killed", _root("1"), r"line 19, in train"),
    15: (r"(?i)stalled|hung", _root("1"), r"line 8,? in decode_video"),
    16: (r"EADDRINUSE", _root("0"), r"line 9,? in set_up"),
    17: (r"Received data size doesn't match", _root(r"\d"), r"line 14, in <module>"),
    18: (r"rank 1.*(?:success|left)", _root("1"), r"line 9, in train"),
    19: (r"never joined|3/4 clients joined", _root("1"), r"line 8,? in join"),
    20: (r"KeyboardInterrupt|SIGINT", r"\[rank2\]|rank +: 2 ", r"line 10,? in fetch_shard"),
    21: (r"(?s)import torch.*KeyboardInterrupt", "", ""),
    22: (r"SIGSEGV", _root("1"), r"line 10,? in native_kernel"),
}


def torchrun(case: Case, place: Path, limit: float) -> Ended:
    """What becomes of a failure under torchrun."""
    disturb = _interrupt_the_import if case.number == 21 else case.disturb

    def started(running: Running) -> None:
        _wait_for_workers(running)
        if disturb is not None:
            disturb(running)

    # the limit counts from here on
    case = replace(case, disturb=started, environ={**case.environ, "TMPDIR": str(place)})
    prepare(case, place)
    options = ["--standalone", f"--nproc-per-node={NPROC}"]
    seconds = limit if case.number in _HANGS or case.script == SCRIPT.name else _LIMIT_SECONDS
    if case.number == _GREEDY_NUMBER:
        seconds = _GREEDY_SECONDS
    # its launcher alone takes most of what the workers of ours have
    with surroundings(case, place, memory=900 << 20) as (words, more):
        if "log_dir" in more:
            options += [f"--log-dir={more['log_dir']}", "--redirects=3"]
        arguments = more.get("args", case.node.get("args", ()))
        theirs = [sys.executable, "-m", "torch.distributed.run", *options, case.script, *arguments]
        try:
            return perform(case, place, [*words, *theirs], seconds)
        finally:
            # who did not end with it
            end_all(list(marked("TMPDIR", str(place))))


@dataclass(frozen=True)
class Judged:
    """A failure, what is to be said of it by each launcher, and what not."""

    case: Case
    facts: Mapping[str, tuple[str, str, str] | None]
    fails: bool = True
    false: str = ""
    disk: bool = False

    def points(self, launcher: str, ended: Ended) -> list[bool | None]:
        """Cause, rank, place, exit code, and nothing false; None for a fact that does not exist."""
        facts = self.facts[launcher] or ("", "", "")
        found = [bool(re.search(fact, ended.said)) if fact else None for fact in facts]
        right = ended.status is not None and (ended.status != 0) == self.fails
        noise = f"{NOISE}|{self.false}" if self.false else NOISE
        return [*found, right, re.search(noise, ended.said) is None]


def _end_rank_2(running: Running) -> None:
    until((running.directory / "ready").exists, "rank 2", _LIMIT_SECONDS)
    os.kill(int((running.directory / "ready").read_text()), signal.SIGTERM)


def of_unlisted(number: int, failure: Unlisted) -> Judged:
    """A failure of failures.py, which says itself what is to be said."""
    rank, line = failure.rank, failure.line
    place = rf"failures\.py(:|\", line ){line}\b" if failure.place else ""
    node = {**WATCHED, "args": [failure.name]}
    case = Case(
        number,
        failure.title,
        SCRIPT.name,
        failure.cause,
        "" if rank is None else rf"(Root cause: |warning: |watchdog: )rank {rank}\b",
        place,
        node=node,
        disturb=_end_rank_2 if failure.kill else None,
    )
    theirs = (failure.theirs, "" if rank is None else _root(str(rank)), place)
    facts = {OURS: (case.cause, case.rank, place), THEIRS: theirs}
    return Judged(case, facts, failure.fails, failure.false, failure.disk)


FAILURES = (
    *(
        Judged(
            case,
            {OURS: (case.cause, case.rank, case.place), THEIRS: SAID_BY_TORCHRUN[case.number]},
        )
        for case in CASES
    ),
    *(of_unlisted(number, each) for number, each in enumerate(UNLISTED, len(CASES) + 1)),
)


def why_not(failure: Judged) -> str:
    """Why a failure cannot be made on this machine; empty if it can."""
    number = failure.case.number
    if number == 6 and memory_cgroup() is None:
        return "no cgroup with a limit of memory can be made"
    disk = number == 12 or failure.disk
    return "no file system can be mounted" if disk and not can_mount() else ""


def compare(failure: Judged, limit: float, show: bool) -> dict[str, list[bool | None]]:
    """Make a failure under both launchers; the points of each."""
    points: dict[str, list[bool | None]] = {}
    for launcher in LAUNCHERS:
        if failure.facts[launcher] is None:
            points[launcher] = [None] * 5
            continue
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as around:
            place = Path(directory)
            shutil.copy(SCRIPT, place)
            if failure.disk:
                around.enter_context(small_disk(place / "small", mebibytes=4))
            run = run_of if launcher == OURS else functools.partial(torchrun, limit=limit)
            ended = run(failure.case, place)
        points[launcher] = failure.points(launcher, ended)
        if show:
            print(f"--- {failure.case.number} under {launcher}\n{ended.said}", file=sys.stderr)
    print(f"compared: {failure.case.number}", file=sys.stderr)
    return points


def cells(points: Sequence[bool | None]) -> list[str]:
    return ["-" if point is None else str(int(point)) for point in points]


def total(points: Sequence[Sequence[bool | None]]) -> list[str]:
    """For each kind of point, how many were given of how many there are."""
    kinds = ([point for point in kind if point is not None] for kind in zip(*points, strict=True))
    return [f"{sum(kind)}/{len(kind)}" for kind in kinds]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=int, nargs="+", help="numbers of failures")
    parser.add_argument("--show", type=int, nargs="+", default=[], help="whose output is shown")
    parser.add_argument(
        "--limit",
        type=float,
        default=30.0,
        help="seconds after which what hangs under torchrun is ended (default: 30)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="failures at a time (default: 1)")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # a script's job in the background has it ignored, and so would the launchers
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [each for each in FAILURES if not args.only or each.case.number in args.only]
    lacking = {each.case.number: why for each in chosen if (why := why_not(each))}
    made = [each for each in chosen if each.case.number not in lacking]
    with ThreadPoolExecutor(args.jobs) as pool:
        found = list(
            pool.map(lambda each: compare(each, args.limit, each.case.number in args.show), made)
        )
    kinds = ("cause", "rank", "place", "exit", "clean")
    names = [f"{name}: {kind}" if kind == "cause" else kind for name in LAUNCHERS for kind in kinds]
    lines = [["", "failure", *names]]
    for each, points in zip(made, found, strict=True):
        row = [cell for name in LAUNCHERS for cell in cells(points[name])]
        lines.append([str(each.case.number), each.case.title, *row])
    sums = [cell for name in LAUNCHERS for cell in total([points[name] for points in found])]
    lines.append(["", "sum", *sums])
    print(table(lines))
    for number, why in lacking.items():
        print(f"Not compared: {number}, since {why} here.")
    print("\nOn: " + ", ".join(f"{name} {value}" for name, value in machine().items()) + ".")


if __name__ == "__main__":
    main()
