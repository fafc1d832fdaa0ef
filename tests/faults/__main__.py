"""``python -m tests.faults``: perform scenarios and print a table of what was violated."""

from __future__ import annotations

import argparse
import json
import math
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
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.faults.checks import CHECKS, violations
from tests.faults.scenarios import ENDING, Scenario, scenario
from tests.faults.world import Unable, perform
from tests.support.foreground import heed_signals

_LIMIT = 240.0
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
    family: str = ""
    faults: list[str] = field(default_factory=list)
    missed: int = 0
    violations: list[tuple[str, str]] = field(default_factory=list)
    unable: str = ""
    seconds: float = 0.0


def judge(what: Scenario, root: Path) -> Outcome:
    """Perform a scenario in this process and check it."""
    began = time.monotonic()
    outcome = Outcome(what.number, what.family)
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
    outcome.seconds = time.monotonic() - began
    return outcome


class Pool:
    """Scenarios side by side, each in a process and a directory of its own."""

    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self._args = args
        self._place = place
        self._running: dict[int, tuple[int, Path, float]] = {}

    def outcomes(self, numbers: Iterator[int]) -> Iterator[Outcome]:
        """Perform scenarios; yield what came of each as soon as it is there."""
        deadline = time.monotonic() + (self._args.seconds or math.inf)
        while True:
            while len(self._running) < self._args.jobs and time.monotonic() <= deadline:
                if (number := next(numbers, None)) is None:
                    break
                self._start(number)
            if not self._running:
                return
            yield self._wait()

    def close(self) -> None:
        """End the scenarios that are being performed; each ends what it has started."""
        for pid in self._running:
            os.kill(pid, signal.SIGTERM)
        for pid in self._running:
            os.waitpid(pid, 0)

    def _start(self, number: int) -> None:
        root = self._place / str(len(list(self._place.iterdir())))
        root.mkdir()
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            self._running[pid] = (number, root, time.monotonic())
            return
        code = 70
        try:
            os.setsid()
            for signum in (signal.SIGTERM, signal.SIGALRM):
                signal.signal(signum, _give_up)
            signal.alarm(int(_LIMIT))
            outcome = judge(scenario(self._args.seed, number), root)
            (root / "outcome.json").write_text(json.dumps(vars(outcome)))
            code = 0
        except BaseException:
            (root / "harness.txt").write_text(traceback.format_exc())
            raise
        finally:
            os._exit(code)

    def _wait(self) -> Outcome:
        pid, status = os.wait()
        number, root, began = self._running.pop(pid)
        if status == 0:
            outcome = Outcome(**json.loads((root / "outcome.json").read_text()))
        else:
            text = root / "harness.txt"
            why = text.read_text() if text.exists() else f"wait status {status}"
            outcome = Outcome(number, "?", violations=[("harness", why)])
            outcome.seconds = time.monotonic() - began
        if outcome.violations:
            print(_violation(self._args, outcome, root), flush=True)
        else:
            shutil.rmtree(root, ignore_errors=True)
            # its name is not given again
            root.mkdir()
        return outcome


def _give_up(signum: int, frame: FrameType | None) -> NoReturn:
    signal.alarm(0)
    raise AssertionError(f"the scenario was ended by {signal.Signals(signum).name}")


def _violation(args: argparse.Namespace, outcome: Outcome, root: Path) -> str:
    head = f"{outcome.number} ({outcome.family}): {', '.join(outcome.faults) or 'no fault'}"
    found = [f"  {check}: {text}" for check, text in outcome.violations]
    again = f"  again: python -m tests.faults --seed {args.seed} --only {outcome.number}"
    return "\n".join([head, *found, again, f"  its files: {root}"])


def table(outcomes: Sequence[Outcome]) -> str:
    """Return faults by kind against checks: in how many scenarios, and with how many violations."""
    checks = [*CHECKS, "harness"]
    rows: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        if outcome.unable:
            continue
        for kind in {*outcome.faults, "ALL"}:
            row = rows.setdefault(kind, Counter())
            row["runs"] += 1
            row["faults"] += outcome.faults.count(kind) if kind != "ALL" else len(outcome.faults)
            row.update({check for check, _ in outcome.violations})
    columns = ["runs", "faults", *checks]
    order = sorted(rows, key=lambda kind: (kind == "ALL", kind))
    width = max((len(kind) for kind in order), default=4)
    head = " " * width + "".join(f" {name:>7}" for name in columns)
    body = [
        kind.ljust(width) + "".join(f" {rows[kind][name] or '.':>7}" for name in columns)
        for kind in order
    ]
    return "\n".join([head, *body])


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("-n", type=int, default=0, help="how many; without: see --seconds")
    parser.add_argument("--seconds", type=float, default=0, help="start none after so many seconds")
    parser.add_argument("--seed", default="", help="any text; by default a new one")
    parser.add_argument("--only", type=int, help="perform this scenario alone")
    parser.add_argument("--times", type=int, default=1, help="how often to perform --only")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    args = parser.parse_args(argv)
    args.seed = args.seed or secrets.token_hex(4)
    if not args.n and not args.seconds:
        args.n = 100
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Perform scenarios; return 1 if anything was violated."""
    args = arguments(argv)
    heed_signals()
    print(f"seed {args.seed}", flush=True)
    numbers = iter(range(args.n or 1_000_000))
    if args.only is not None:
        numbers = iter([args.only] * args.times)
        print(scenario(args.seed, args.only), flush=True)
    place = Path(tempfile.mkdtemp(prefix="lf-"))
    began = time.monotonic()
    pool = Pool(args, place)
    try:
        outcomes = list(pool.outcomes(numbers))
    finally:
        pool.close()
    print(table(outcomes))
    missed = sum(outcome.missed for outcome in outcomes)
    unable = Counter(outcome.unable for outcome in outcomes if outcome.unable)
    bad = sum(bool(outcome.violations) for outcome in outcomes)
    faults = sum(len(outcome.faults) for outcome in outcomes)
    print(
        f"{len(outcomes)} scenarios, {faults} faults ({missed} more came too late), "
        f"{bad} with violations, {time.monotonic() - began:.0f} s, seed {args.seed}"
    )
    for why, count in unable.items():
        print(f"{count} scenarios were not performed: {why}")
    if not bad:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
