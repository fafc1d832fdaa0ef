"""LocalElasticAgent with real workers, and agents of one's own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT

from lllaunch.agent import (
    LocalElasticAgent,
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from lllaunch.multiprocessing import DefaultLogsSpecs, SignalException, Std
from lllaunch.supervisor import machine as v
from lllaunch.supervisor.ports import HeldPort
from lllaunch.workers.tail import Tees


def value(x: int) -> tuple[str, int]:
    return os.environ["RANK"], x


def fail_once(path: str) -> str:
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("only once")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(1000)
    with open(f"{path}/port{os.environ['RANK']}", "w") as file:
        file.write(os.environ["MASTER_PORT"])
    return os.environ["TORCHELASTIC_RESTART_COUNT"]


def always_fail() -> None:
    raise RuntimeError("always")


def agent_of(tmp_path: Path, entrypoint: Any, n: int = 2, **options: Any) -> LocalElasticAgent:
    spec_options = {name: options.pop(name) for name in ("args", "max_restarts") if name in options}
    spec = WorkerSpec("r", n, entrypoint=entrypoint, **({"max_restarts": 0} | spec_options))
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects=Std.ALL)
    return LocalElasticAgent(spec, logs, "forkserver", **options)


def test_functions_return_by_global_rank(tmp_path: Path) -> None:
    agent = agent_of(tmp_path, value, args=(5,))
    result = agent.run()
    assert result.state is WorkerState.SUCCEEDED
    assert not result.is_failed()
    assert result.return_values == {0: ("0", 5), 1: ("1", 5)}
    group = agent.get_worker_group()
    assert all(isinstance(worker.id, int) for worker in group.workers)


def test_a_failed_group_is_started_again_with_another_port(tmp_path: Path) -> None:
    seen: list[object] = []
    agent = agent_of(
        tmp_path, fail_once, args=(str(tmp_path),), max_restarts=2, observer=seen.append
    )
    result = agent.run()
    assert result.return_values == {0: "1", 1: "1"}
    starts = [item for item in seen if isinstance(item, v.StartWorkers)]
    assert [start.attempt for start in starts] == [0, 1]
    ports = [(tmp_path / f"port{rank}").read_text() for rank in range(2)]
    assert ports[0] == ports[1]
    attempts = sorted(path.name for path in (tmp_path / "logs").glob("*/attempt_*"))
    assert attempts == ["attempt_0", "attempt_1"]


def test_failures_come_by_global_rank_after_the_last_attempt(tmp_path: Path) -> None:
    result = agent_of(tmp_path, always_fail, max_restarts=1).run()
    assert result.is_failed()
    assert set(result.failures) <= {0, 1}
    assert result.failures
    failure = next(iter(result.failures.values()))
    assert "RuntimeError: always" in str(failure.message)


def test_programs_and_argument_macros(tmp_path: Path) -> None:
    shell = f"echo ${{local_rank}} > {tmp_path}/out$RANK"
    result = agent_of(tmp_path, "sh", args=("-c", shell)).run()
    assert result.state is WorkerState.SUCCEEDED
    assert [(tmp_path / f"out{rank}").read_text() for rank in range(2)] == ["0\n", "1\n"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_workers_and_is_raised(tmp_path: Path, signum: signal.Signals) -> None:
    before = signal.getsignal(signum), signal.set_wakeup_fd(-1)
    started = threading.Event()

    def observe(item: object) -> None:
        if type(item).__name__ == "Started":
            started.set()

    agent = agent_of(tmp_path, "sleep", args=("1000",), observer=observe, max_restarts=5)

    def send() -> None:
        started.wait(WAIT)
        os.kill(os.getpid(), signum)

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(SignalException) as caught:
        agent.run()
    thread.join()
    assert caught.value.sigval == signum
    assert (signal.getsignal(signum), signal.set_wakeup_fd(-1)) == before


def test_ctrl_c_while_a_restart_waits_for_the_console_starts_no_other_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def stop(tees: Tees) -> None:
        # as long as somebody reads, however slowly
        steps.append("waits")
        signal.raise_signal(signal.SIGINT)
        steps.append("goes on")
        real(tees)

    real = Tees.stop
    monkeypatch.setattr(Tees, "stop", stop)
    seen: list[object] = []
    agent = agent_of(tmp_path, always_fail, max_restarts=3, observer=seen.append)
    with pytest.raises(SignalException) as caught:
        agent.run()
    assert caught.value.sigval == signal.SIGINT
    assert steps == ["waits"]
    # the second attempt was decided on, and nothing of it started
    assert [fact.attempt for fact in seen if isinstance(fact, v.StartWorkers)] == [0, 1]
    assert len(list((tmp_path / "logs").glob("*/attempt_*"))) == 1


def test_it_runs_in_a_thread_without_handling_signals(tmp_path: Path) -> None:
    results: list[RunResult] = []
    thread = threading.Thread(target=lambda: results.append(agent_of(tmp_path, "true").run()))
    thread.start()
    thread.join(WAIT)
    assert results[0].state is WorkerState.SUCCEEDED


def test_a_port_is_held_against_others_but_not_against_the_store() -> None:
    held, other = HeldPort(), HeldPort()
    assert held.port != other.port
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("", held.port))
    with socket.socket() as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("127.0.0.1", held.port))
        store.listen()
    held.close()
    other.close()
    held.close()
    with socket.socket() as plain:
        plain.bind(("", held.port))


class Polled(SimpleElasticAgent):
    """An agent as one would write it for torch: subprocesses, and hooks that are polled."""

    def __init__(self, spec: WorkerSpec, commands: list[list[str]]) -> None:
        super().__init__(spec)
        self.commands = commands
        self.processes: list[subprocess.Popen[bytes]] = []
        self.calls: list[str] = []

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        worker_group.group_rank, worker_group.group_world_size = 0, 1
        for worker in worker_group.workers:
            worker.global_rank = worker.local_rank

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.calls.append("start")
        command = self.commands.pop(0)
        self.processes = [subprocess.Popen(command) for _ in worker_group.workers]
        return {rank: process.pid for rank, process in enumerate(self.processes)}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self.calls.append("stop")
        for process in self.processes:
            process.kill()
            process.wait()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        codes = [process.poll() for process in self.processes]
        if any(codes):
            return RunResult(WorkerState.FAILED, failures={})
        if all(code == 0 for code in codes):
            return RunResult(WorkerState.SUCCEEDED, return_values={0: None, 1: None})
        return RunResult(WorkerState.HEALTHY)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: float = 30) -> None:
        self._stop_workers(self._worker_group)


def test_an_agent_written_for_torch_works_unchanged() -> None:
    spec = WorkerSpec("r", 2, entrypoint="x", max_restarts=1, monitor_interval=0.01)
    agent = Polled(spec, [["false"], ["true"]])
    result = agent.run()
    assert result.state is WorkerState.SUCCEEDED
    assert agent.calls.count("start") == 2
    assert agent.calls[-1] == "stop"
    assert Polled(spec, [["false"], ["false"]]).run().state is WorkerState.FAILED


NODE = """
import sys
from torch.distributed.elastic.rendezvous import RendezvousParameters
import torch.distributed.elastic.rendezvous.registry as registry
from lllaunch.agent import LocalElasticAgent, WorkerSpec
from lllaunch.multiprocessing import DefaultLogsSpecs, Std

endpoint, nodes, directory = sys.argv[1:4]
handler = registry.get_rendezvous_handler(RendezvousParameters(
    "c10d", endpoint, "the-run", int(nodes), int(nodes), is_host=sys.argv[4] == "host",
    timeout=240))
code = (
    "import os, torch, torch.distributed as d; d.init_process_group('gloo');"
    "t = torch.ones(1) * (1 + d.get_rank()); d.all_reduce(t);"
    "print(d.get_rank(), d.get_world_size(), int(t), os.environ['TORCHELASTIC_RUN_ID']);"
    "d.destroy_process_group()"
)
spec = WorkerSpec("r", 1, handler, entrypoint=sys.executable, args=("-c", code), max_restarts=0)
logs = DefaultLogsSpecs(directory, redirects=Std.ALL, tee=Std.ALL)
result = LocalElasticAgent(spec, logs, exit_barrier_timeout=240).run()
print(result.state.value, sorted(result.return_values))
"""


def test_two_agents_meet_through_torchs_rendezvous(tmp_path: Path) -> None:
    held = HeldPort()
    endpoint = f"127.0.0.1:{held.port}"
    held.close()
    nodes = [
        subprocess.Popen(
            [sys.executable, "-c", NODE, endpoint, "2", str(tmp_path / role), role],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for role in ("host", "guest")
    ]
    outs = [node.communicate(timeout=110) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outs
    lines = sorted(line for out, _ in outs for line in out.splitlines())
    assert lines == [
        "SUCCEEDED [0]",
        "SUCCEEDED [1]",
        "[r0]:0 2 3 the-run",
        "[r0]:1 2 3 the-run",
    ]
