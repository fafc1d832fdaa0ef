"""Measures lllaunch's timers against torch's, in the same run and on the same machine.

    python benchmarks/timers.py              everything; some minutes
    python benchmarks/timers.py --quick      fewer of everything; half a minute

Measured are, for the timers that use a FIFO:

- what a pair, one acquire and one release, costs the worker, and what `with expires(after=60)`
  does; uncontended: with a pause after every 50 in which the server reads what was sent (the first
  after a pause, which wakes the server, is what the 99th percentile shows);
- how late a worker ends whose timer expires, from its deadline to its end;
- how long a worker takes for many pairs without a pause, or what it fails with.

The table shows medians and, behind the slash, the 99th percentiles. Every server is a process of
its own and every worker another; all are forks of one that has imported torch, so that their ends
take equally long. Servers have max_interval=0.1, as torchrun's has. The machine should do nothing
else meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

from launch import table
from torch.distributed.elastic import timer as torch_timer
from workplace import machine

from lllaunch import timer as our_timer
from lllaunch.timer.service import TimerService

_FORK = multiprocessing.get_context("fork")
_INTERVAL = 0.1
# Pairs between two pauses, and their length: less than what a FIFO of 64 KiB holds.
_BATCH = 50
_PAUSE = 0.25
_LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class Kind:
    """One of the two that are compared.

    Attributes:
        name: as the table shows it.
        package: the timers of lllaunch or of torch.
    """

    name: str
    package: ModuleType


KINDS = (Kind("lllaunch", our_timer), Kind("torch", torch_timer))


class Place:
    """Where servers and workers meet.

    Args:
        root: an empty directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._servers = 0

    @contextlib.contextmanager
    def served(self, kind: Kind) -> Iterator[Any]:
        """A client, to be used in a fork, of a server that serves."""
        self._servers += 1
        path = str(self._root / str(self._servers))
        ours, theirs = _FORK.Pipe()
        server = _FORK.Process(target=_serve, args=(kind, path, theirs))
        server.start()
        ours.recv()
        try:
            yield kind.package.FileTimerClient(path)
        finally:
            server.kill()
            server.join()

    def seconds(self, kind: Kind, pairs: int, use: Callable[..., None]) -> list[float]:
        """Seconds that each of so many pairs takes the worker."""
        with self.served(kind) as client, _worker(_time_pairs, kind, client, pairs, use) as said:
            values: list[float] = said.recv()
            return values

    def burst(self, kind: Kind, pairs: int) -> float | str:
        """Seconds that a worker takes for so many pairs, or what it fails with."""
        with self.served(kind) as client, _worker(_burst, client, pairs) as said:
            result: float | str = said.recv() if said.poll(_LIMIT_SECONDS) else "does not end"
            return result

    def lateness(self, kind: Kind) -> float:
        """Seconds from a timer's deadline to the worker's end."""
        with self.served(kind) as client, _worker(_hang, client) as said:
            deadline: float = said.recv()
            # Only the worker has the other end: it is closed when the worker ends.
            if not wait([said], _LIMIT_SECONDS):
                raise SystemExit(f"{kind.name}: nothing ended the worker")
            return time.monotonic() - deadline


def _serve(kind: Kind, path: str, said: Connection) -> None:
    if kind.package is torch_timer:
        torch_timer.FileTimerServer(path, "benchmark", max_interval=_INTERVAL).start()
        said.send(None)
        time.sleep(10 * _LIMIT_SECONDS)
    # as the launcher does in its event loop
    service = TimerService(path, owner_of=lambda pid: pid)
    said.send(None)
    while True:
        wait((service,), service.next_in())
        service.dispatch()
        for each in service.expired():
            service.signal(each.pid, each.signum)


@contextlib.contextmanager
def _worker(target: Callable[..., None], *args: Any) -> Iterator[Connection]:
    """A worker; what it says comes out of the pipe."""
    ours, theirs = _FORK.Pipe()
    worker = _FORK.Process(target=target, args=(theirs, *args))
    worker.start()
    theirs.close()
    try:
        yield ours
    finally:
        worker.kill()
        worker.join()
        ours.close()


def pair(_kind: Kind, client: Any) -> None:
    client.acquire("scope", time.time() + 60)
    client.release("scope")


def block(kind: Kind, client: Any) -> None:
    with kind.package.expires(after=60, client=client):
        pass


def _time_pairs(
    said: Connection, kind: Kind, client: Any, pairs: int, use: Callable[..., None]
) -> None:
    values = []
    for number in range(pairs + _BATCH):
        if number % _BATCH == 0:
            time.sleep(_PAUSE)
        began = time.perf_counter()
        use(kind, client)
        values.append(time.perf_counter() - began)
    # what came first was the warm-up
    said.send(values[_BATCH:])
    os._exit(0)


def _burst(said: Connection, client: Any, pairs: int) -> None:
    began = time.perf_counter()
    done = 0
    try:
        while done < pairs:
            client.acquire("scope", time.time() + 60)
            client.release("scope")
            done += 1
    except OSError as error:
        said.send(f"{type(error).__name__} after {done} pairs")
    else:
        said.send(time.perf_counter() - began)
    os._exit(0)


def _hang(said: Connection, client: Any) -> None:
    after = 0.15 + 0.1 * (os.getpid() % 10) / 10  # no server shall be in step with it
    said.send(time.monotonic() + after)
    client.acquire("scope", time.time() + after)
    time.sleep(_LIMIT_SECONDS)


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that is no less than this share of all."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def shown(values: Sequence[float], scale: float, unit: str) -> str:
    numbers = (statistics.median(values) * scale, percentile(values, 0.99) * scale)
    return " / ".join(f"{value:.1f}" for value in numbers) + f" {unit}"


def measure(place: Place, pairs: int, burst: int, ends: int) -> dict[str, dict[str, Any]]:
    """All figures, by what they show and by kind."""
    late: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
    for number in range(ends + 1):
        for kind in KINDS:
            late[kind.name].append(place.lateness(kind))
        if number == 0:  # the warm-up
            late = {name: [] for name in late}
    print("measured: ends", file=sys.stderr)
    found: dict[str, dict[str, Any]] = {}
    for name, use in (("acquire and release", pair), ("with expires(after=60)", block)):
        found[name] = {kind.name: place.seconds(kind, pairs, use) for kind in KINDS}
        print(f"measured: {name}", file=sys.stderr)
    found["from the deadline to the worker's end"] = late
    found[f"{burst} pairs without a pause"] = {
        kind.name: place.burst(kind, burst) for kind in KINDS
    }
    return found


def rows(found: dict[str, dict[str, Any]]) -> list[list[str]]:
    lines = [["", *(kind.name for kind in KINDS)]]
    for name, values in found.items():
        line = [name]
        for kind in KINDS:
            value = values[kind.name]
            if isinstance(value, str):
                line.append(value)
            elif isinstance(value, float):
                line.append(f"{value:.2f} s")
            elif "deadline" in name:
                line.append(shown(value, 1e3, "ms"))
            else:
                line.append(shown(value, 1e6, "µs"))
        lines.append(line)
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="500 pairs, 10 ends, burst of 20000")
    parser.add_argument("--json", metavar="FILE", help="all values, for programs")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    pairs, burst, ends = (500, 20_000, 10) if args.quick else (3000, 100_000, 50)
    # torch's client logs every error with its traceback
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as directory:
        found = measure(Place(Path(directory)), pairs, burst, ends)
    facts = machine()
    on = ", ".join(f"{name} {value}" for name, value in facts.items())
    print(f"{table(rows(found))}\n\nMedian / 99th percentile of {pairs} pairs and {ends} ends.")
    print(f"On: {on}.")
    if args.json:
        data = {"machine": facts, "seconds": found}
        Path(args.json).write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    main()
