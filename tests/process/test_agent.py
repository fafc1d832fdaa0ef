"""LocalElasticAgent with real workers, and what of ours stands beside torch's."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT

from lllaunch.agent import LocalElasticAgent, RunResult, WorkerSpec, WorkerState
from lllaunch.multiprocessing import DefaultLogsSpecs, SignalException, Std
from lllaunch.multiprocessing.errors import ChildFailedError, ProcessFailure, record
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


ERRORS = """
import json, os, sys
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError, ErrorHandler, ProcessFailure, record)
ours, theirs, handed_on = sys.argv[1:]

# What we wrote, read by torch.
failure = ProcessFailure(0, 1, 1, ours)
print(json.dumps({
    "message": failure.message, "timestamp": failure.timestamp, "text": str(
        ChildFailedError("g", {0: failure}))}))

# What torch writes, for us.
def fail():
    raise KeyError("theirs")
os.environ["TORCHELASTIC_ERROR_FILE"] = theirs
try:
    record(fail)()
except KeyError:
    pass

# What we wrote, handed on by torch.
os.environ["TORCHELASTIC_ERROR_FILE"] = handed_on
ErrorHandler().dump_error_file(ours, 5)
"""


def fail_here() -> None:
    raise ValueError("ours")


def test_error_files_are_read_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, handed_on = (str(tmp_path / name) for name in ("ours", "theirs", "handed"))
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", ours)
    with pytest.raises(ValueError, match="ours"):
        record(fail_here)()
    command = [sys.executable, "-c", ERRORS, ours, theirs, handed_on]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read = json.loads(done.stdout)
    mine = ProcessFailure(0, 1, 1, ours)
    assert read["message"] == mine.message
    # torch's is that of the wall clock
    assert abs(read["timestamp"] - mine.timestamp) <= 1
    assert "fail_here" in read["text"]

    failure = ProcessFailure(0, 1, 1, theirs)
    assert isinstance(failure.message, dict)
    assert failure.message["message"] == "KeyError: 'theirs'"
    assert "in fail" in failure.traceback()
    assert failure.timestamp_ns > mine.timestamp_ns
    error = ChildFailedError("g", {0: failure, 1: mine})
    assert error.get_first_failure() == (1, mine)

    # The two files differ by our clocks and by nothing else.
    our_data, their_data = (json.loads(Path(path).read_text()) for path in (ours, theirs))
    for name in ("timestamp_ns", "since_boot_ns", "boot_id"):
        del our_data["message"]["extraInfo"][name]
    assert our_data.keys() == their_data.keys()
    assert list(our_data["message"]) == list(their_data["message"])
    ours_extra, theirs_extra = (d["message"]["extraInfo"] for d in (our_data, their_data))
    assert {k: type(v) for k, v in ours_extra.items()} == {
        k: type(v) for k, v in theirs_extra.items()
    }

    passed_on = ProcessFailure(0, 1, 5, handed_on)
    assert isinstance(passed_on.message, dict)
    assert passed_on.message["errorCode"] == 5
    assert passed_on.timestamp_ns == mine.timestamp_ns


# in a process of its own, in which torch's store may leave what it likes
STORE = """
import socket
from lllaunch.cluster.rendezvous import Rendezvous
from lllaunch.errors import RendezvousFailed
from lllaunch.spec import Nodes

taken = socket.create_server(("127.0.0.1", 0))
nodes = Nodes(1, 2, 0, "c10d", "127.0.0.1", taken.getsockname()[1])
try:
    Rendezvous(nodes, "127.0.0.1", "mine", "default", 1).connect(print)
except RendezvousFailed as error:
    print(error)
"""


def test_node_0_whose_port_somebody_else_has_says_so() -> None:
    said = subprocess.check_output([sys.executable, "-c", STORE], text=True)
    assert "the port is in use" in said


TIMERS = """
import inspect, json, multiprocessing, os, signal, sys, threading, time
from torch.distributed.elastic import timer as theirs
from lllaunch import timer as ours
from lllaunch.linux.process import wait
from lllaunch.timer.service import TimerService

WAIT = float(sys.argv[2])
found = {}
fork = multiprocessing.get_context("fork")
directory = sys.argv[1]
written = fork.Event()


def started(function, *args):
    process = fork.Process(target=function, args=args)
    process.start()
    return process


def outcome(process):
    process.join(WAIT)
    code = process.exitcode
    process.kill()
    return code


def hang(package, client):
    # The inner blocks are over in time; only the outer hangs.
    with package.expires(after=0.5, scope="hang", client=client):
        with package.expires(after=60, scope="inner", client=client):
            pass
        time.sleep(1000)


def finish(package, client):
    for _ in range(20):
        with package.expires(after=0.5, scope="fine", client=client):
            pass
    written.set()
    time.sleep(1)
    os._exit(7)


def serve_theirs(path):
    theirs.FileTimerServer(path, "run", max_interval=0.1).start()
    time.sleep(1000)


# Their file clients, our server.
path = os.path.join(directory, "ours")
service = TimerService(path, owner_of=lambda pid: pid)


def serve_ours():
    while True:
        left = service.next_in()
        wait((service,), seconds=left)
        service.dispatch()
        for expired in service.expired():
            service.signal(expired.pid, expired.signum)


threading.Thread(target=serve_ours, daemon=True).start()
processes = [started(role, theirs, theirs.FileTimerClient(path, 15)) for role in (hang, finish)]
found["their file clients"] = [outcome(process) for process in processes]

# Our file clients, their server, which ends itself too.
path = os.path.join(directory, "theirs")
server = started(serve_theirs, path)
client = ours.FileTimerClient(path)
# It ends with the first that it kills, and serves nobody after that.
written.clear()
processes = [started(finish, ours, client)]
written.wait(WAIT)
processes.append(started(hang, ours, client))
found["our file clients"] = [outcome(process) for process in processes]
found["their file server"] = outcome(server)

# Local ones are theirs; with `expires` of ours.
queue = fork.Queue()
server = ours.LocalTimerServer(queue, max_interval=0.1)
server.start()
client = ours.LocalTimerClient(queue)
processes = [started(role, ours, client) for role in (hang, finish)]
found["local clients"] = [outcome(process) for process in processes]
server.stop()


def shape(function):
    parameters = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in parameters]


def public(cls):
    return {name for name, value in vars(cls).items() if callable(value) and name[0] != "_"}


found["differences"] = []
modules = ("api", "local_timer", "file_based_local_timer")
for module in modules:
    module = __import__(f"torch.distributed.elastic.timer.{module}", fromlist=["x"])
    name = module.__name__.replace("torch.distributed.elastic", "lllaunch")
    mine = __import__(name, fromlist=["x"])
    for name in module.__all__:
        one, other = getattr(module, name), getattr(mine, name)
        pairs = [(one, other)]
        if isinstance(one, type):
            pairs += [(getattr(one, each), getattr(other, each)) for each in public(one)]
        for one, other in pairs:
            if shape(one) != shape(other):
                found["differences"].append([name, str(shape(one)), str(shape(other))])
public_names = [name for name in vars(theirs) if name[0].isupper()]
found["differences"] += [name for name in public_names if not hasattr(ours, name)]
print(json.dumps(found))
"""


def test_timers_cross_between_torchs_and_ours(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TIMERS, str(tmp_path), str(WAIT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "their file clients": [-15, 7],
        "our file clients": [7, -9],
        "their file server": -9,
        "local clients": [-9, 7],
        # of names and signatures
        "differences": [],
    }
