"""Measures sweeps of lllaunch against a loop of torchrun and against Hydra's own launchers.

    python benchmarks/sweep.py               everything; some 15 minutes
    python benchmarks/sweep.py --quick       3 jobs, 1 round, 100 trivial jobs; a minute

Two things are measured. The first is the time that a sweep of 20 jobs takes from start to exit. A
job is two processes that import torch and do next to nothing with it:

- lllaunch: `python -m lllaunch -m`, two workers a job, `preload: [torch]`;
- torchrun: a loop in a shell of `torchrun --standalone --nproc-per-node=2`;
- Hydra's basic and joblib launchers know no workers: their task function starts two processes and
  waits for them.

And so that it can be seen what the processes cost, the same with one process a job, which for
Hydra's launchers is the one that the task function is called in: basic's is the launcher itself,
joblib's is used for many jobs, so that nothing separates them and torch is imported once in each.
All are run in turns, in alternating order, after a sweep of one job that is not counted. The table
shows medians, in brackets the least and the greatest value, and the ratio to lllaunch's median with
as many processes. How many jobs run at the same time is left to each launcher.

The second is what jobs cost that do nothing at all, a thousand of them, and the memory of the
launcher alone when the first tenth, the half and all of them have begun. Here lllaunch's job is a
worker of its own, that of the others a call in the same process.

The machine should do nothing else meanwhile. The joblib launcher is installed into a temporary
directory where it is missing, and left out where that fails.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from launch import spread, table
from sweepplace import Course, SweepPlace, Way, hydra, lllaunch, torchrun
from workplace import machine

PAGE = Path(__file__).parents[1] / "docs/benchmarks.md"
_MARK, _END = "<!-- sweep benchmark -->\n", "<!-- end of sweep benchmark -->"
_SHARES = (0.1, 0.5, 1.0)

OURS = Way("lllaunch, 2 workers", 2, lllaunch("work", 2))
LOOP = Way("a loop of torchrun, 2 workers", 2, torchrun(2))
ONE = Way("lllaunch, 1 worker", 1, lllaunch("work", 1))
WAYS = (
    OURS,
    LOOP,
    Way("Hydra's basic launcher, 2 processes", 2, hydra("basic", "work", 2)),
    Way("Hydra's joblib launcher, 2 processes", 2, hydra("joblib", "work", 2)),
    ONE,
    Way("Hydra's basic launcher, itself", 1, hydra("basic", "work", 0)),
    Way("Hydra's joblib launcher, its processes", 1, hydra("joblib", "work", 0)),
)
TRIVIAL = (
    Way("lllaunch, 1 worker", 0, lllaunch("trivial", 1)),
    Way("Hydra's basic launcher, itself", 0, hydra("basic", "trivial", 0)),
    Way("Hydra's joblib launcher, its processes", 0, hydra("joblib", "trivial", 0)),
)


def times(place: SweepPlace, ways: Sequence[Way], jobs: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each sweep, by way and round."""
    for way in ways:
        place.seconds(way, 1)
    found: dict[str, list[float]] = {way.name: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 == 0 else ways[::-1]:
            found[way.name].append(place.seconds(way, jobs))
            print(f"measured: {way.name}: {found[way.name][-1]:.1f} s", file=sys.stderr)
    return found


def time_rows(ways: Sequence[Way], found: dict[str, list[float]], jobs: int) -> list[list[str]]:
    lines = [[f"{jobs} jobs that import torch", "from start to exit", "a job", "ratio"]]
    middle = {name: statistics.median(values) for name, values in found.items()}
    for way in ways:
        name, ours = way.name, OURS if way.processes == 2 else ONE
        ratio = middle[name] / middle[ours.name]
        shown = "" if way in {OURS, ONE} else f"{ratio:.1f}x"
        lines.append([name, spread(found[name], "s"), f"{middle[name] / jobs:.2f} s", shown])
    return lines


def course_rows(found: dict[str, Course], jobs: int) -> list[list[str]]:
    counts = " / ".join(f"{share * jobs:.0f}" for share in _SHARES)
    heads = ["a job", "of the second half", f"RSS at {counts} jobs", "PSS", "peak"]
    lines = [[f"{jobs} jobs that do nothing", *heads]]
    for name, course in found.items():
        half, whole = (course.samples[_SHARES.index(share)] for share in (0.5, 1.0))
        second = (whole.seconds - half.seconds) / (jobs / 2)
        resident = " / ".join(f"{sample.resident:.1f}" for sample in course.samples)
        share = " / ".join(f"{sample.share:.1f}" for sample in course.samples)
        each = [f"{1000 * seconds:.0f} ms" for seconds in (course.seconds / jobs, second)]
        lines.append([name, *each, f"{resident} MiB", f"{share} MiB", f"{course.peak:.1f} MiB"])
    return lines


def update(page: Path, text: str) -> None:
    """Puts a text between the marks in a page."""
    head, mark, rest = page.read_text().partition(_MARK)
    _, end, tail = rest.partition(_END)
    if not end:
        raise SystemExit(f"{page} has no place for the table")
    page.write_text(f"{head}{mark}{text}\n{end}{tail}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 jobs, 1 round, 100 trivial jobs")
    parser.add_argument("--jobs", type=int, help="jobs that import torch (20; quick: 3)")
    parser.add_argument("--rounds", type=int, help="rounds of those (3; quick: 1; 0: none)")
    parser.add_argument(
        "--trivial", type=int, help="jobs that do nothing (1000; quick: 100; 0: none)"
    )
    parser.add_argument("--only", default="", help="only ways with this text in their names")
    parser.add_argument("--json", metavar="FILE", help="all values, for programs")
    parser.add_argument(
        "--page", action="store_true", help="put the result into docs/benchmarks.md, too"
    )
    args = parser.parse_args()
    args.jobs = args.jobs or (3 if args.quick else 20)
    args.rounds = (1 if args.quick else 3) if args.rounds is None else args.rounds
    args.trivial = (100 if args.quick else 1000) if args.trivial is None else args.trivial
    return args


def main() -> None:
    args = arguments()
    load = os.getloadavg()[0]
    parts, values = [], {}
    with tempfile.TemporaryDirectory() as directory:
        place = SweepPlace(Path(directory))
        joblib = place.add_joblib()
        if not joblib:
            print("left out: hydra-joblib-launcher cannot be installed", file=sys.stderr)

        def wanted(way: Way) -> bool:
            return (joblib or "joblib" not in way.name) and (
                args.only in way.name or way in {OURS, ONE}
            )

        if args.rounds > 0:
            ways = [way for way in WAYS if wanted(way)]
            values["seconds"] = found = times(place, ways, args.jobs, args.rounds)
            parts.append(table(time_rows(ways, found, args.jobs)))
        if args.trivial:
            courses = {}
            for way in filter(wanted, TRIVIAL):
                courses[way.name] = place.course(way, args.trivial, _SHARES)
                print(f"measured: {way.name}: {courses[way.name]}", file=sys.stderr)
            values["courses"] = {name: repr(course) for name, course in courses.items()}
            parts.append(table(course_rows(courses, args.trivial)))
    facts = machine() | {"load before": f"{load:.1f}"}
    on = ", ".join(f"{name} {value}" for name, value in facts.items())
    parts.append(f"Rounds: {args.rounds}. On: {on}.")
    shown = "\n\n".join(parts)
    print(shown)
    if args.page:
        update(PAGE, shown)
    if args.json:
        data = {"machine": facts, **values}
        Path(args.json).write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    main()
