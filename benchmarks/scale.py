"""What happens when a run has very many nodes: a simulation, and a real store under load.

    TORCH_CPP_LOG_LEVEL=ERROR python benchmarks/scale.py
                                             10, 100 and 1,000 nodes; some minutes
    python benchmarks/scale.py --quick       10 and 50 nodes, fewer connections; a minute
    python benchmarks/scale.py --only store  one part: simulation, store, rendezvous, results

- simulation: runs of n nodes with 8 workers each are played in virtual time (`simulation.py`): a
  worker fails, a node is lost, one joins, a worker hangs, all end. It counts what the store is
  asked, and measures how long it takes from a failure until all nodes run again.
- store: a real store of torch's in a process of its own, asked over many connections by as many
  processes as there are cores: by our signs of life, and by torch's own, which replace one value of
  the size that it has with n nodes. Clients and store share this machine, so a store on a machine
  of its own does more.
- rendezvous: k of torch's real handlers, as threads of a few processes, meet at a real store.
- results: result.json of n nodes of 8 workers is put together as node 0 does it.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import pickle
import random
import resource
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import simulation
from launch import table
from simulation import PHASES, Scenario, World
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters, dynamic_rendezvous
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from workplace import machine

from lllaunch.cluster.rendezvous import (
    Member,
    Place,
    Roster,
    Share,
    torchs_keep_alive,
)
from lllaunch.documents import decode_record, encode_record
from lllaunch.run.nodes import merged
from lllaunch.run.result import (
    AnyWorker,
    AttemptResult,
    Ended,
    ExitedNonZero,
    Failed,
    RootCause,
    RunResult,
    encode_result,
    plain_result,
)
from lllaunch.spec import Nodes

_FORK = multiprocessing.get_context("fork")
_NPROC = 8
_MIB = 2**20
_LOAD_SECONDS = 4.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("simulation", "store", "rendezvous", "results"))
    parser.add_argument("--seed", type=int, default=20261122)
    options = parser.parse_args()
    print("  ".join(f"{name}: {value}" for name, value in machine().items()))
    sizes = (10, 50) if options.quick else (10, 100, 1000)
    parts: dict[str, Callable[[], None]] = {
        "results": lambda: show_results(sizes),
        "rendezvous": lambda: show_rendezvous((4, 16) if options.quick else (8, 16, 32, 64, 128)),
        "store": lambda: show_store(sizes, 8 if options.quick else 64),
        "simulation": lambda: show_simulation(sizes, options.seed),
    }
    for name, show in parts.items():
        if options.only in (None, name):
            print(f"\n{name}\n", flush=True)
            show()


# The simulation


def scenario(nodes: int, seed: int) -> Scenario:
    """A run in which each of the common failures happens once."""
    dice = random.Random(seed)
    kinds = ["fails", "lost", "joins", "hangs"]
    dice.shuffle(kinds)
    faults = tuple((60.0 + 120.0 * i + dice.uniform(0, 20), kind) for i, kind in enumerate(kinds))
    return Scenario(
        nodes=nodes,
        spare=1,
        min_nodes=max(1, nodes // 2),
        nproc=_NPROC,
        seed=seed,
        faults=faults,
        clean_at=60.0 + 120.0 * len(kinds),
        max_restarts=5,
        victims=0.1,
    )


def show_simulation(sizes: Sequence[int], seed: int) -> None:
    print(f"seed {seed}")
    document = plain_result(_outcome(0, 0, failed=False))
    simulation.STATE_BYTES = (_state_bytes(200) - _state_bytes(100)) // 100
    rows: list[list[str]] = []
    phases: list[list[str]] = []
    for nodes in sizes:
        before = time.perf_counter()
        world = World(scenario(nodes, seed), document)
        world.play()
        seconds = time.perf_counter() - before
        load = world.load
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows.append(
            [
                f"{nodes}",
                f"{world.now:.0f} s",
                f"{load.operations}",
                f"{load.operations / nodes:.0f}",
                f"{load.operations / nodes / world.now:.2f}",
                f"{load.received / _MIB:.1f}",
                f"{load.sent / _MIB:.1f}",
                f"{100 * world.server.busy / world.now:.2f} %",
                f"{seconds:.1f} s",
                f"{peak:.0f} MiB",
            ]
        )
        print(f"{nodes} nodes: {dict(world.states())}; first attempt after {world.met_first:.1f} s")
        for each in world.recoveries:
            print(
                f"  {each.kind}: known to all after {each.heard:.2f} s, "
                f"all run again after {each.seconds:.2f} s"
            )
        for phase in PHASES:
            part = world.server.load[phase]
            phases.append(
                [
                    f"{nodes}",
                    phase,
                    f"{part.operations}",
                    f"{part.operations / nodes:.1f}",
                    f"{part.keys}",
                    f"{part.received / _MIB:.2f}",
                    f"{part.sent / _MIB:.2f}",
                ]
            )
    heads = "nodes|virtual|operations|per node|per node and second|MiB in|MiB out|store busy"
    print()
    print(table([[*heads.split("|"), "took", "peak memory"], *rows]))
    print()
    heads = "nodes|phase|operations|per node|keys|MiB in|MiB out"
    print(table([heads.split("|"), *phases]))
    print("(a message each way per operation; torch: its own rendezvous if no two wrote at once)")


# The store


def _state(nodes: int) -> Any:
    """Return the state of torch's rendezvous that n nodes have joined."""
    state = dynamic_rendezvous._RendezvousState()
    state.complete = True
    for number in range(nodes):
        node = dynamic_rendezvous._NodeDesc(
            f"10.0.{number // 250}.{number % 250}", 1000 + number, 0
        )
        state.participants[node] = number
        state.last_heartbeats[node] = datetime.now(UTC)
    return state


def _state_bytes(nodes: int) -> int:
    """What the store holds of it."""
    return len(base64.b64encode(pickle.dumps(_state(nodes))))


def _serve(port: Any) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port.send(store.port)
    port.recv()


class _Server:
    """A store in a process of its own, and the time of a processor that it takes."""

    def __enter__(self) -> Self:
        self._pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        self.port: int = self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join(5)

    def cpu(self) -> float:
        """Seconds of a processor, so far."""
        with open(f"/proc/{self._process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _connect(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)


def _ask(port: int, connections: int, kind: str, nodes: int, first: int, told: Any) -> None:
    """Ask for some seconds, over each connection in turn; tell how often, and how long it took."""
    stores = [_connect(port) for _ in range(connections)]
    state = base64.b64encode(pickle.dumps(_state(nodes))).decode()
    nobody = datetime.now(UTC) - timedelta(hours=1)
    known = [""] * connections
    if kind == "theirs":
        stores[0].compare_set("state", "", state)
        known = [store.get("state").decode() for store in stores]
    told.send(None)
    told.recv()
    count = lost = tries = 0
    until = time.perf_counter() + _LOAD_SECONDS
    while time.perf_counter() < until:
        which = count % connections
        store, me = stores[which], first + which
        if kind == "ours":
            store.set(f"alive/{me}", str(count))
            store.multi_get([f"alive/{first}", "looks"])
        elif kind == "ours, leader":
            store.multi_get([*(f"alive/{rank}" for rank in range(nodes)), "looks"])
        elif kind == "theirs, read":
            store.get("state")
        else:
            # as torch's agents: what is there is read, changed, and replaced if it is still there
            theirs = pickle.loads(base64.b64decode(known[which]))  # noqa: S301 - our own
            node = list(theirs.participants)[me % nodes]
            dead = [each for each, at in theirs.last_heartbeats.items() if at < nobody]
            assert not dead
            theirs.last_heartbeats[node] = datetime.now(UTC)
            mine = base64.b64encode(pickle.dumps(theirs)).decode()
            now = store.compare_set("state", known[which], mine).decode()
            known[which] = now
            if now != mine:
                # at once once more, with what is there now
                lost += 1
                tries += 1
                continue
        count += 1
        tries += 1
    told.send((tries, lost))


def _measure(kind: str, nodes: int, connections: int) -> tuple[float, float, float]:
    """Rounds per second, processor seconds of the store for each, and the share that lost."""
    clients = os.cpu_count() or 1
    each = max(1, connections // clients)
    with _Server() as server:
        if kind in ("ours, leader", "ours"):
            store = _connect(server.port)
            keys = [f"alive/{rank}" for rank in range(max(nodes, connections))]
            store.multi_set(keys, ["1000"] * len(keys))
        if kind == "theirs, read":
            _connect(server.port).set("state", base64.b64encode(pickle.dumps(_state(nodes))))
        pipes, processes = [], []
        for number in range(clients):
            pipe, theirs = _FORK.Pipe()
            args = (server.port, each, kind, nodes, number * each, theirs)
            processes.append(_FORK.Process(target=_ask, args=args, daemon=True))
            pipes.append(pipe)
            processes[-1].start()
        for pipe in pipes:
            pipe.recv()
        before = server.cpu()
        for pipe in pipes:
            pipe.send(None)
        told = [pipe.recv() for pipe in pipes]
        took = server.cpu() - before
        for process in processes:
            process.join(10)
    count = sum(each for each, _ in told)
    return count / _LOAD_SECONDS, took / count, sum(lost for _, lost in told) / count


def show_store(sizes: Sequence[int], connections: int) -> None:
    print(f"{connections} connections")
    rows = []
    for nodes in sizes:
        interval = torchs_keep_alive(Nodes(1, nodes, 0, "c10d", "", 1))[0]
        for kind, per_second in (
            ("ours", nodes * 2 / interval),
            ("ours, leader", 2 / interval),
            ("theirs", nodes / interval),
            ("theirs, read", float(nodes)),
        ):
            rate, cost, lost = _measure(kind, nodes, connections)
            size = _state_bytes(nodes) if kind.startswith("theirs") else 0
            rows.append(
                [
                    f"{nodes}",
                    kind,
                    f"{size}" if size else "-",
                    f"{interval:.0f} s",
                    f"{rate:.0f}",
                    f"{rate * (1 - lost):.0f}",
                    f"{cost * 1e6:.0f}",
                    f"{100 * lost:.0f} %",
                    f"{per_second:.1f}",
                    f"{100 * per_second * cost:.1f} %",
                ]
            )
    heads = (
        "nodes|rounds|state, bytes|interval|per second|successful|store's us each|conflicts|"
        "needed per second"
    )
    print(table([[*heads.split("|"), "of one processor"], *rows]))
    print("(ours: a node's sign of life and its look at the leader's, twice per interval; leader:")
    print("its look at all; theirs: a sign of life, which fails if another came first; read: each")
    print("node looks once a second, as torch's agents do, and ours while they join)")


# torch's rendezvous


def _join(port: int, count: int, nodes: int, first: int, told: Any) -> None:
    ends: list[float] = []

    def meet(number: int) -> None:
        parameters = RendezvousParameters(
            "c10d", f"127.0.0.1:{port}", "scale", nodes, nodes, f"10.0.0.{number}", is_host=False
        )
        backend, store = create_backend(parameters)
        handler = dynamic_rendezvous.create_handler(store, backend, parameters)
        handler._shared_tcp_store_server = None
        ready.wait()
        info = handler.next_rendezvous()
        ends.append(time.time())
        assert info.world_size == nodes
        handler._stop_heartbeats()

    ready = threading.Barrier(count + 1)
    threads = [threading.Thread(target=meet, args=(first + i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    told.send(None)
    for thread in threads:
        thread.join()
    told.send(max(ends))


def _rendezvous_seconds(nodes: int) -> tuple[float, float]:
    """How long n handlers take to meet, and the store's time of a processor."""
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    clients = min(nodes, os.cpu_count() or 1)
    with _Server() as server:
        pipes = []
        for number in range(clients):
            pipe, theirs = _FORK.Pipe()
            part = nodes // clients
            args = (server.port, part, nodes, number * part, theirs)
            _FORK.Process(target=_join, args=args, daemon=True).start()
            pipes.append(pipe)
        for pipe in pipes:
            pipe.recv()
        began, before = time.time(), server.cpu()
        last = max(pipe.recv() for pipe in pipes)
        return last - began, server.cpu() - before


def show_rendezvous(sizes: Sequence[int]) -> None:
    rows = []
    for nodes in sizes:
        seconds, cpu = _rendezvous_seconds(nodes)
        rows.append([f"{nodes}", f"{seconds:.2f} s", f"{cpu:.2f} s"])
    print(table([["handlers", "until all have met", "of it the store's processor"], *rows]))
    print("(all come within 0.3 s; those that wait look once a second; the handlers share this")
    print("machine's processors, which on a real one each have to themselves)")


# Results


def _outcome(node: int, base: int, *, failed: bool) -> RunResult:
    """What became of one node's part: two attempts, and a worker that failed in the first."""
    directory = f"/scratch/experiments/2026-11-22/12-00-00/node_{node}"
    start = 1_800_000_000 * 10**9

    def worker(attempt: int, local: int) -> AnyWorker:
        at = f"{directory}/attempt_{attempt}/{local}"
        logs = {"stdout": f"{at}/stdout.log", "stderr": f"{at}/stderr.log"}
        known: dict[str, Any] = {
            "local_rank": local,
            "rank": base + local,
            "pid": 4000 + local,
            "exitcode": 1,
            "started_ns": start,
            "ended_ns": start + 10**11,
            "max_rss": 2**33,
            "cpu_seconds": 900.0,
            **logs,
        }
        if failed and attempt == 0 and local == 0:
            return Failed(**known, cause=ExitedNonZero(1))
        return Ended(**known, sent=("SIGTERM",))

    cause = RootCause(0, base, 0, ExitedNonZero(1), start) if failed else None
    attempts = tuple(
        AttemptResult(
            number,
            number,
            f"{directory}/attempt_{number}",
            "failed",
            start,
            start + 10**11,
            tuple(worker(number, local) for local in range(_NPROC)),
            cause if number == 0 else None,
        )
        for number in range(2)
    )
    return RunResult("failed", 1, directory, "run", start, start + 10**11, attempts, cause)


def _members(nodes: int) -> tuple[Member, ...]:
    return tuple(
        Member(
            node_rank=number,
            hostname=f"host{number}",
            network=f"4026531840-{number:012d}",
            nproc=_NPROC,
            plan="0123456789abcdef" * 4,
            directory=f"/scratch/experiments/2026-11-22/12-00-00/node_{number}",
            token="0123456789abcdef",  # noqa: S106 - names a directory
        )
        for number in range(nodes)
    )


def show_results(sizes: Sequence[int]) -> None:
    rows = []
    for nodes in sizes:
        roster = Roster.of(_members(nodes))
        text = encode_record(roster)
        small = zlib.compress(text, 1)
        before = time.perf_counter()
        decode_record(zlib.decompress(small), Roster)
        read = time.perf_counter() - before
        share = Share(0, nodes * _NPROC, 0, nodes * _NPROC)
        place = Place(0, share, "10.0.0.0", 29500, True, roster, 0, 0)
        given = {
            roster.name(number): encode_result(
                _outcome(number, number * _NPROC, failed=number == 1)
            )
            for number in range(1, nodes)
        }
        one = len(next(iter(given.values())))
        tracemalloc.start()
        before = time.perf_counter()
        documents = {name: [(0, json.loads(text))] for name, text in given.items()}
        whole = merged(_outcome(0, 0, failed=False), [place], documents, {}, "/scratch/run")
        text_of_all = encode_result(whole)
        seconds = time.perf_counter() - before
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows.append(
            [
                f"{nodes}",
                f"{len(text)}",
                f"{len(small)}",
                f"{len(small) * nodes / _MIB:.1f} (not packed {len(text) * nodes / _MIB:.1f})",
                f"{read * 1000:.1f} ms",
                f"{one}",
                f"{len(text_of_all) / _MIB:.2f}",
                f"{peak / _MIB:.0f}",
                f"{seconds:.1f} s",
            ]
        )
    heads = "nodes|roster, bytes|packed|MiB to all|read in|a node's result, bytes|result.json, MiB"
    print(table([[*heads.split("|"), "memory for it, MiB", "took (traced)"], *rows]))
    print(f"(result.json: 2 attempts of {_NPROC} workers on each node)")


if __name__ == "__main__":
    main()
