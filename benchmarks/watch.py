"""Measures what it costs to watch a run, and how soon a hang is told.

    python benchmarks/watch.py                  everything; a quarter of an hour and more
    python benchmarks/watch.py --quick          one round, up to 8 workers; two minutes
    python benchmarks/watch.py --before DIR     beside another version of lllaunch, its checkout

Measured are:

- what `lllaunch.heartbeat()` and `lllaunch.progress()` (with two metrics) cost a worker that is
  watched: the least of 200 batches, since a batch in which anything else runs says nothing;
- the CPU time of the launcher, and of all that it has started but workers, while the workers sleep:
  as a share of one core, over --seconds; with and without samples, and with watchdogs that look
  every five seconds or (the default) every ninety, or are none. It begins when the workers have
  slept for seven seconds. It is the kernel's count of nanoseconds (schedstat);
- the time from the moment at which a limit is reached to that at which it is found (the line in
  events.jsonl, before any stack is taken) and to the launcher's exit: for workers of which all but
  the limit would be right for ever.

The table shows medians, in brackets the least and the greatest value. Versions take turns. What a
version does not know is a dash. The machine should do nothing else meanwhile; how many processes
there are is said below the table, since a look lists them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launch import table
from workplace import environment, machine

from lllaunch.linux import proc

HERE = Path(__file__).parents[1]
_PAUSE_SECONDS = 0.01
_LIMIT_SECONDS = 120.0
# Until the first samples have been taken, which import what they need.
_SETTLED_SECONDS = 7.0
# Long enough for one look of each detector to come late, short enough to be waited for.
_LIMIT = 4.0

_SCRIPTS = {
    "cost": """
import sys, timeit, lllaunch
call = getattr(lllaunch, sys.argv[1], None)
if call is None:
    raise SystemExit
more = {"heartbeat": "", "progress": "step, 100000, loss=2.5, lr=1e-3"}[sys.argv[1]]
names = {"call": call, "step": 17}
timer = timeit.Timer(f"call({more})", globals=names)
# the least of many short ones: in the others something else ran as well
count = 2000
print("cost", min(timer.repeat(200, count)) / count, flush=True)
""",
    "sleep": """
import time
time.sleep(10000)
""",
    # Of each limit what it is about ends, and all else goes on.
    "hang": """
import sys, time, lllaunch
limit = sys.argv[1]
if limit == "heartbeat":
    lllaunch.heartbeat()
print("last", time.time_ns(), flush=True)
while limit != "stall":
    if limit in {"heartbeat", "timeout"}:
        print("x", flush=True)
        time.sleep(0.2)
time.sleep(10000)
""",
}


@dataclass(frozen=True)
class Version:
    """One of those that are compared.

    Attributes:
        name: as the table shows it.
        root: its checkout.
    """

    name: str
    root: Path


@dataclass(frozen=True)
class Case:
    """One or more lines of the table that one run gives.

    Attributes:
        names: what is measured.
        unit: of the values: ``ns``, ``%`` or ``s``.
        measure: a value for each; none where a version cannot do it.
    """

    names: tuple[str, ...]
    unit: str
    measure: Callable[[Version], Sequence[float]]


class Place:
    """A directory in which launchers of any version run.

    Args:
        root: an empty directory.
        seconds: for how long CPU time is measured.
    """

    def __init__(self, root: Path, seconds: float) -> None:
        self._root = root
        self._seconds = seconds
        self._runs = 0
        for name, text in _SCRIPTS.items():
            (root / f"{name}.py").write_text(text)
        self._environ = environment(root)

    @contextlib.contextmanager
    def running(
        self, version: Version, script: str, *overrides: str
    ) -> Iterator[tuple[subprocess.Popen[str], Path]]:
        """A launcher and the directory of its run; it is ended at the end."""
        self._runs += 1
        run = self._root / "runs" / str(self._runs)
        words = [f"launch.entrypoint={script}.py", f"hydra.run.dir={run}", *overrides]
        with (self._root / "output").open("w+") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "lllaunch", *words],
                cwd=self._root,
                env={**self._environ, "PYTHONPATH": str(version.root)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
            )
            try:
                yield process, run
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    process.wait()

    def cost(self, version: Version, call: str) -> list[float]:
        """Nanoseconds of one call."""
        args = [f"launch.args=[{call}]", "launch.watchdog=strict", "launch.tee=false"]
        with self.running(version, "cost", *args) as (process, run):
            process.wait(_LIMIT_SECONDS)
        said = (run / "attempt_0" / "0" / "stdout.log").read_text().split()
        return [float(said[1]) * 1e9] if said else []

    def at_rest(self, version: Version, nproc: int, overrides: Sequence[str]) -> list[float]:
        """CPU time of all but the workers, percent of one core."""
        if not _takes_samples(version):
            if "launch.samples=false" not in overrides:
                return []
            overrides = [each for each in overrides if each != "launch.samples=false"]
        with self.running(version, "sleep", f"launch.nproc={nproc}", *overrides) as (process, run):
            self._until(process, lambda: _events(run, "Started") == nproc)
            time.sleep(_SETTLED_SECONDS)
            before, began = _cpu_ns(process.pid), time.monotonic_ns()
            time.sleep(self._seconds)
            used, took = _cpu_ns(process.pid) - before, time.monotonic_ns() - began
        return [100 * used / took]

    def lateness(self, version: Version, limit: str) -> list[float]:
        """Seconds from the moment at which a limit is reached to its finding, and to the exit."""
        watchdog = f"launch.watchdog={{preset:none,{limit}:{_LIMIT}}}"
        args = [f"launch.args=[{limit}]", watchdog, "launch.tee=false"]
        with self.running(version, "hang", *args) as (process, run):
            process.wait(_LIMIT_SECONDS)
            ended = time.time_ns()
        said = (run / "attempt_0" / "0" / "stdout.log").read_text().split()
        deadline = int(said[said.index("last") + 1]) + int(_LIMIT * 1e9)
        if limit == "timeout":
            deadline = _time_ns(run, "StartWorkers") + int(_LIMIT * 1e9)
        return [(end - deadline) / 1e9 for end in (_time_ns(run, "WatchdogFired"), ended)]

    def _until(self, process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                output = (self._root / "output").read_text(errors="replace")
                raise SystemExit(f"the launcher did not do what is measured:\n{output}")
            time.sleep(_PAUSE_SECONDS)


def _takes_samples(version: Version) -> bool:
    return (version.root / "lllaunch" / "run" / "samples.py").exists()


def _lines(run: Path, name: str) -> list[dict[str, object]]:
    with contextlib.suppress(OSError):
        lines = (run / "events.jsonl").read_text().split("\n")[:-1]
        return [event for event in map(json.loads, lines) if event["type"] == name]
    return []


def _events(run: Path, name: str) -> int:
    return len(_lines(run, name))


def _time_ns(run: Path, name: str) -> int:
    return int(str(_lines(run, name)[0]["time_ns"]))


def _cpu_ns(launcher: int) -> int:
    """CPU time of a launcher and of its children, which start the workers; nanoseconds."""
    pids = [launcher, *proc.children(launcher)]
    total = 0
    for task in (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()):
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total


_RARE = "launch.watchdog=report"
_OFTEN = "launch.watchdog={preset:report,stall:100s}"


def all_cases(place: Place, counts: Sequence[int]) -> list[Case]:
    found = [
        Case((f"{call}(), a call",), "ns", partial(place.cost, call=call))
        for call in ("heartbeat", "progress")
    ]
    for nproc in counts:
        for what, *overrides in (
            ("no watchdog, no samples", "launch.watchdog=none", "launch.samples=false"),
            ("watchdog report, no samples", _RARE, "launch.samples=false"),
            ("watchdog report, samples", _RARE, "launch.samples=5s"),
            ("looks every 5 s, no samples", _OFTEN, "launch.samples=false"),
            ("looks every 5 s, samples", _OFTEN, "launch.samples=5s"),
        ):
            rest = partial(place.at_rest, nproc=nproc, overrides=overrides)
            found.append(Case((f"CPU at rest, {nproc} workers, {what}",), "%", rest))
    for limit in ("stall", "silence", "heartbeat", "timeout"):
        names = (f"from a {limit} of {_LIMIT:g} s {to}" for to in ("to its finding", "to the exit"))
        found.append(Case(tuple(names), "s", partial(place.lateness, limit=limit)))
    return found


def measure(
    cases: Sequence[Case], versions: Sequence[Version], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """All values, by what they show and by version."""
    values: dict[str, dict[str, list[float]]] = {}
    for case in cases:
        found = {name: {version.name: [] for version in versions} for name in case.names}
        for number in range(rounds):
            for version in versions if number % 2 else versions[::-1]:
                # nothing where the version cannot do it
                for name, value in zip(case.names, case.measure(version), strict=False):
                    found[name][version.name].append(value)
        values |= found
        print(f"measured: {case.names[0]}", file=sys.stderr)
    return values


def shown(values: Sequence[float], unit: str) -> str:
    if not values:
        return "-"
    digits = {"ns": 0, "%": 4, "s": 2}[unit]
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} {unit} ({low:.{digits}f}-{high:.{digits}f})"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1 round, up to 8 workers")
    parser.add_argument("--before", metavar="DIR", type=Path, help="another checkout")
    parser.add_argument("--rounds", type=int, help="of each figure (default: 3, quick: 1)")
    parser.add_argument("--seconds", type=float, help="of CPU time (default: 20, quick: 10)")
    parser.add_argument("--only", default="", help="only figures with this text in their names")
    parser.add_argument("--json", metavar="FILE", help="all values, for programs")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    versions = [Version("lllaunch", HERE)]
    if args.before is not None:
        versions.append(Version("before", args.before.resolve()))
    rounds = args.rounds or (1 if args.quick else 3)
    with tempfile.TemporaryDirectory() as directory:
        place = Place(Path(directory), args.seconds or (10.0 if args.quick else 20.0))
        cases = all_cases(place, (8,) if args.quick else (8, 64))
        cases = [case for case in cases if any(args.only in name for name in case.names)]
        values = measure(cases, versions, rounds)
    lines = [["", *(version.name for version in versions)]]
    for case in cases:
        for name in case.names:
            cells = (shown(values[name][version.name], case.unit) for version in versions)
            lines.append([name, *cells])
    facts = {**machine(), "processes": str(len(proc.processes())), "rounds": str(rounds)}
    on = ", ".join(f"{name} {value}" for name, value in facts.items())
    print(f"{table(lines)}\n\nOn: {on}.")
    if args.json:
        data = {"machine": facts, "values": values}
        Path(args.json).write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    main()
