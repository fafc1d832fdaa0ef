"""``python -m tests.faults``: perform scenarios and print a table of what was violated."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.faults.checks import CHECKS, violations
from tests.faults.scenarios import ENDING, scenario
from tests.faults.world import Unable, perform
from tests.support.foreground import heed_signals

_LIMIT = 240
"""Seconds that a scenario may take; the waits in it are bounded, so none does."""


@dataclass
class Outcome:
    """What came of a scenario.

    Attributes:
        faults: kinds of those that happened.
        missed: how many others there were, whose target or moment never came.
        violations: names of checks and what is wrong.
        unable: why it was not performed, or empty.
    """

    number: int
    family: str
    faults: list[str] = field(default_factory=list)
    missed: int = 0
    violations: list[tuple[str, str]] = field(default_factory=list)
    unable: str = ""


def judge(seed: str, number: int, root: Path) -> Outcome:
    """Perform a scenario in this process, which has no other, and check it."""
    for signum in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(signum, _give_up)
    signal.alarm(_LIMIT)
    what = scenario(seed, number)
    outcome = Outcome(number, what.family)
    try:
        seen = perform(what, root)
    except Unable as e:
        outcome.unable = str(e)
        return outcome
    outcome.faults = [one.fault.kind for one in seen.injected]
    planned = Counter(fault.kind for fault in what.faults if fault is not ENDING)
    outcome.missed = (planned - Counter(outcome.faults)).total()
    outcome.violations = violations(seen)
    for one in seen.launched:
        for stream, data in one.shown.items():
            (root / f"console-{one.pid}-{one.name}-{stream}").write_bytes(data)
    facts = {
        "launched": [(one.name, one.pid, one.status) for one in seen.launched],
        "injected": [repr(one) for one in seen.injected],
        "left": seen.left,
        "entries": seen.entries,
    }
    (root / "observed.json").write_text(json.dumps(facts, indent=1))
    return outcome


def _give_up(signum: int, frame: FrameType | None) -> NoReturn:
    signal.alarm(0)
    raise AssertionError(f"the scenario was ended by {signal.Signals(signum).name}")


def perform_all(args: argparse.Namespace, place: Path) -> Iterator[Outcome]:
    """Perform scenarios side by side, each in a process and a directory of its own."""
    numbers = iter(range(args.n or 1_000_000) if args.only is None else [args.only] * args.times)
    deadline = time.monotonic() + (args.seconds or math.inf)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    running: dict[Future[Outcome], tuple[int, Path]] = {}
    pool = ProcessPoolExecutor(args.jobs, context, os.setsid, max_tasks_per_child=1)
    try:
        while True:
            while len(running) < args.jobs and time.monotonic() <= deadline:
                if (number := next(numbers, None)) is None:
                    break
                root = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=place))
                running[pool.submit(judge, args.seed, number, root)] = number, root
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield _told(args, done, *running.pop(done))
    finally:
        # each ends what it has started
        for process in list(pool._processes.values()) if running else ():
            process.terminate()
        pool.shutdown()


def _told(args: argparse.Namespace, done: Future[Outcome], number: int, root: Path) -> Outcome:
    """What came of a scenario; what is violated is printed, and its files stay."""
    if error := done.exception():
        why = "".join(traceback.format_exception(error))
        outcome = Outcome(number, "?", violations=[("harness", why)])
    else:
        outcome = done.result()
    if not outcome.violations:
        shutil.rmtree(root, ignore_errors=True)
        return outcome
    print(f"{number} ({outcome.family}): {', '.join(outcome.faults) or 'no fault'}")
    for check, text in outcome.violations:
        print(f"  {check}: {text}")
    again = f"python -m tests.faults --seed {args.seed} --only {number}"
    print(f"  again: {again}\n  its files: {root}", flush=True)
    return outcome


def table(outcomes: Sequence[Outcome]) -> str:
    """Return faults by kind against checks: in how many scenarios, and with how many violations."""
    rows: dict[str, Counter[str]] = {}
    for outcome in (each for each in outcomes if not each.unable):
        for kind in {*outcome.faults, "ALL"}:
            row = rows.setdefault(kind, Counter())
            row["runs"] += 1
            row["faults"] += outcome.faults.count(kind) if kind != "ALL" else len(outcome.faults)
            row.update({check for check, _ in outcome.violations})
    columns = ["runs", "faults", *CHECKS, "harness"]
    order = sorted(rows, key=lambda kind: (kind == "ALL", kind))
    width = max((len(kind) for kind in order), default=4)
    head = " " * width + "".join(f" {name:>7}" for name in columns)
    body = [
        kind.ljust(width) + "".join(f" {rows[kind][name] or '.':>7}" for name in columns)
        for kind in order
    ]
    return "\n".join([head, *body])


def main() -> int:
    """Perform scenarios; return 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("-n", type=int, default=0, help="how many; without: see --seconds")
    parser.add_argument("--seconds", type=float, default=0, help="start none after so many seconds")
    parser.add_argument("--seed", default="", help="any text; by default a new one")
    parser.add_argument("--only", type=int, help="perform this scenario alone")
    parser.add_argument("--times", type=int, default=1, help="how often to perform --only")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    args = parser.parse_args()
    args.seed = args.seed or secrets.token_hex(4)
    if not args.n and not args.seconds:
        args.n = 100
    heed_signals()
    print(f"seed {args.seed}", flush=True)
    if args.only is not None:
        print(scenario(args.seed, args.only), flush=True)
    place = Path(tempfile.mkdtemp(prefix="lf-"))
    began = time.monotonic()
    outcomes = list(perform_all(args, place))
    print(table(outcomes))
    missed = sum(outcome.missed for outcome in outcomes)
    bad = sum(bool(outcome.violations) for outcome in outcomes)
    faults = sum(len(outcome.faults) for outcome in outcomes)
    print(
        f"{len(outcomes)} scenarios, {faults} faults ({missed} more came too late), "
        f"{bad} with violations, {time.monotonic() - began:.0f} s, seed {args.seed}"
    )
    for why, count in Counter(each.unable for each in outcomes if each.unable).items():
        print(f"{count} scenarios were not performed: {why}")
    if not bad:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    # by its own name, by which other processes find what is in it
    from tests.faults import __main__ as own

    sys.exit(own.main())
