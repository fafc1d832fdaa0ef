"""LocalElasticAgent with real workers."""

from __future__ import annotations

import os
import signal
import socket
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT

from lllaunch.agent import LocalElasticAgent, RunResult, WorkerSpec, WorkerState
from lllaunch.multiprocessing import DefaultLogsSpecs, SignalException, Std
from lllaunch.supervisor import machine as v
from lllaunch.supervisor.environ import HeldPort


def value(x: int) -> tuple[str, int]:
    return os.environ["RANK"], x


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
    # Else the collector frees a rendezvous' store, with its threads, in whatever process it runs.
    freed = weakref.ref(agent)
    del agent
    assert freed() is None


def test_a_group_that_fails_is_started_again_and_its_last_failures_come_by_global_rank(
    tmp_path: Path,
) -> None:
    seen: list[object] = []
    result = agent_of(tmp_path, always_fail, n=1, max_restarts=1, observer=seen.append).run()
    assert [item.attempt for item in seen if isinstance(item, v.StartWorkers)] == [0, 1]
    attempts = sorted(path.name for path in (tmp_path / "logs").glob("*/attempt_*"))
    assert attempts == ["attempt_0", "attempt_1"]
    assert result.is_failed()
    assert list(result.failures) == [0]
    assert "RuntimeError: always" in str(result.failures[0].message)


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
