"""The agent beside torch: one rendezvous, and what a site has set up for torch's agent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT

from lllaunch.supervisor.environ import HeldPort

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
    import torch.distributed.elastic.agent.server.local_elastic_agent as torchs
    from torch.distributed.elastic import events, metrics

    class Metrics(metrics.MetricHandler):
        def emit(self, data):
            print("metric", data.name, data.value)

    class Health(health.HealthCheckServer):
        def start(self):
            print("health", self._port)

    metrics.configure(Metrics())
    events.handlers._log_handlers["null"] = logging.StreamHandler(sys.stdout)
    torchs.create_healthcheck_server = Health
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
    processes = []
    for node, kind in enumerate(kinds):
        place = [backend, f"127.0.0.1:{held.port}", str(node), str(len(kinds))]
        command = [sys.executable, "-c", NODE, kind, *place, str(tmp_path / kind)]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(command, text=True, **pipes))
    outs = [process.communicate(timeout=WAIT) for process in processes]
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


OWN = """
import signal, subprocess
from lllaunch.agent import (
    ElasticAgent, LocalElasticAgent, RunResult, SimpleElasticAgent, WorkerSpec, WorkerState
)
from lllaunch.multiprocessing import DefaultLogsSpecs


class Polled(SimpleElasticAgent):
    # as one would write it for torch: subprocesses, and hooks that are polled
    def __init__(self, spec, commands):
        super().__init__(spec)
        self.commands, self.processes, self.calls = commands, [], []

    def _rendezvous(self, worker_group):
        worker_group.group_rank, worker_group.group_world_size = 0, 1
        for worker in worker_group.workers:
            worker.global_rank = worker.local_rank

    def _start_workers(self, worker_group):
        self.calls.append("start")
        command = self.commands.pop(0)
        self.processes = [subprocess.Popen(command) for _ in worker_group.workers]
        return {rank: process.pid for rank, process in enumerate(self.processes)}

    def _stop_workers(self, worker_group):
        self.calls.append("stop")
        for process in self.processes:
            process.kill()
            process.wait()

    def _monitor_workers(self, worker_group):
        codes = [process.poll() for process in self.processes]
        if any(codes):
            return RunResult(WorkerState.FAILED, failures={})
        if all(code == 0 for code in codes):
            return RunResult(WorkerState.SUCCEEDED, return_values={0: None, 1: None})
        return RunResult(WorkerState.HEALTHY)

    def _shutdown(self, death_sig=signal.SIGTERM, timeout=30):
        self._stop_workers(self._worker_group)


spec = WorkerSpec("r", 2, entrypoint="true", max_restarts=1, monitor_interval=0.01)
agent = Polled(spec, [["false"], ["true"]])
result = agent.run()
assert result.state == WorkerState.SUCCEEDED
assert agent.calls.count("start") == 2
assert agent.calls[-1] == "stop"
assert Polled(spec, [["false"], ["false"]]).run().is_failed()

ours = LocalElasticAgent(spec, DefaultLogsSpecs())
assert isinstance(ours, ElasticAgent)
assert ours.run().state is WorkerState.SUCCEEDED
from lllaunch.multiprocessing.redirects import redirect_stderr, redirect_stdout
from lllaunch.multiprocessing.subprocess_handler import SubprocessHandler, get_subprocess_handler

assert ours.get_event_succeeded().metadata["agent_restarts"] == 0
"""


def test_an_agent_written_for_torch_works_unchanged() -> None:
    subprocess.run([sys.executable, "-c", OWN], check=True, timeout=WAIT)
