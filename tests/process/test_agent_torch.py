"""The agent beside torch: the same environment, a store on the held port, one rendezvous."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lllaunch.agent import LocalElasticAgent, WorkerSpec, WorkerState
from lllaunch.multiprocessing import DefaultLogsSpecs
from lllaunch.supervisor.ports import HeldPort

# What a worker sees of its launcher.
SHOW = """
import json, os, sys
prefixes = ("TORCH", "GROUP_", "ROLE_", "LOCAL_", "MASTER_", "OMP_", "CUDA_")
names = [n for n in os.environ if n.startswith(prefixes) or n in ("RANK", "WORLD_SIZE")]
with open(f"{sys.argv[1]}/{os.environ['RANK']}.json", "w") as file:
    json.dump({name: os.environ[name] for name in names}, file)
"""
# These name this run, or the place of a store, which rank 0 hosts itself on one node.
OWN = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",
}


@pytest.mark.parametrize("outer", [{}, {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "4,5"}])
def test_a_worker_sees_what_torchrun_would_show_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outer: dict[str, str]
) -> None:
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in outer.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    for place in ("torchrun", "here"):
        (tmp_path / place).mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run(
        [*torchrun, "--max-restarts=2", str(script), str(tmp_path / "torchrun")],
        check=True,
        capture_output=True,
    )
    spec = WorkerSpec(
        "default",
        2,
        entrypoint=sys.executable,
        args=("-u", str(script), str(tmp_path / "here")),
        max_restarts=2,
    )
    logs = DefaultLogsSpecs(str(tmp_path / "logs"))
    assert LocalElasticAgent(spec, logs).run().state is WorkerState.SUCCEEDED
    for rank in range(2):
        theirs, ours = (
            json.loads((tmp_path / place / f"{rank}.json").read_text())
            for place in ("torchrun", "here")
        )
        assert theirs.keys() == ours.keys()
        same = theirs.keys() - OWN
        assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}


STORE = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore

rank, places = int(sys.argv[1]), sys.argv[2:]
for host, port in zip(places[::2], places[1::2]):
    store = TCPStore(host, int(port), 2, rank == 0, timedelta(seconds=60))
    store.set(f"from {rank}", str(rank))
    print(host, store.get(f"from {1 - rank}").decode())
    # rank 0 has the store: it stays until the other has read
    store.set("read", "") if rank else store.wait(["read"])
"""


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_rank_0_opens_its_store_on_the_held_port() -> None:
    hosts = ["127.0.0.1", *["::1"] * _has_ipv6()]
    held = {host: HeldPort() for host in hosts}
    places = [text for host, port in held.items() for text in (host, str(port.port))]
    try:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", STORE, str(rank), *places],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        outs = [rank.communicate(timeout=110) for rank in ranks]
        for rank, (out, _) in enumerate(outs):
            assert out.splitlines() == [f"{host} {1 - rank}" for host in hosts], outs
        for host, port in held.items():
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
                other.bind((host, port.port))
    finally:
        for port in held.values():
            port.close()


NODE = """
import sys
import torch.distributed.elastic.rendezvous.registry as registry
from torch.distributed.elastic.rendezvous import RendezvousParameters

kind, backend, endpoint, node, nodes, directory = sys.argv[1:7]
if kind == "torch":
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
else:
    from lllaunch.agent import LocalElasticAgent, WorkerSpec
    from lllaunch.multiprocessing import DefaultLogsSpecs

    # what a site has set up for torch's agent
    import logging, os
    import torch.distributed.elastic.agent.server.health_check_server as health
    from torch.distributed.elastic import events, metrics

    class Metrics(metrics.MetricHandler):
        def emit(self, data):
            print("metric", data.name, data.value)

    class Health(health.HealthCheckServer):
        def start(self):
            print("health", self._port)

    metrics.configure(Metrics())
    events.handlers._log_handlers["null"] = logging.StreamHandler(sys.stdout)
    health.create_healthcheck_server = Health
    os.environ["TORCHELASTIC_HEALTH_CHECK_PORT"] = "7"
options = {"rank": int(node)} if backend == "static" else {"is_host": node == "0"}
handler = registry.get_rendezvous_handler(RendezvousParameters(
    backend, endpoint, "the-run", int(nodes), int(nodes), timeout=240, **options))
code = (
    "import os, torch, torch.distributed as d; d.init_process_group('gloo');"
    "t = torch.ones(1) * (1 + d.get_rank()); d.all_reduce(t);"
    "run = os.environ['TORCHELASTIC_RUN_ID'];"
    # One write, as two workers share this output.
    "text = f'{d.get_rank()} {d.get_world_size()} {int(t)} {run}' + chr(10);"
    "os.write(1, text.encode());"
    "d.destroy_process_group()"
)
size = 2 if kind == "lllaunch" else 1
spec = WorkerSpec("r", size, handler, entrypoint=sys.executable, args=("-c", code), max_restarts=0)
result = LocalElasticAgent(spec, DefaultLogsSpecs(directory), exit_barrier_timeout=240).run()
print(kind, result.state.value, len(result.return_values))
handler.shutdown()
"""


@pytest.mark.parametrize(
    ("backend", "kinds"),
    [
        ("static", ["lllaunch"]),
        ("c10d", ["torch", "lllaunch"]),
        ("c10d", ["lllaunch", "torch"]),
    ],
)
def test_agents_of_both_kinds_meet(tmp_path: Path, backend: str, kinds: list[str]) -> None:
    held = HeldPort()
    held.close()
    endpoint, nodes = f"127.0.0.1:{held.port}", str(len(kinds))
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                NODE,
                kind,
                backend,
                endpoint,
                str(node),
                nodes,
                str(tmp_path / kind),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node, kind in enumerate(kinds)
    ]
    outs = [process.communicate(timeout=110) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(kinds), outs
    lines = {line for out, _ in outs for line in out.splitlines()}
    sizes = {"lllaunch": 2, "torch": 1}
    world = sum(sizes[kind] for kind in kinds)
    assert {f"{kind} SUCCEEDED {sizes[kind]}" for kind in kinds} <= lines
    total = sum(range(1, world + 1))
    assert {f"{rank} {world} {total} the-run" for rank in range(world)} <= lines
    assert {"metric workers.r.succeeded 1", "metric workers.r.run_total 1", "health 7"} <= lines
    events = [json.loads(line)["name"] for line in lines if line.startswith("{")]
    assert {f"torchelastic.worker.status.{name}" for name in ("START", "SUCCEEDED")} <= set(events)
