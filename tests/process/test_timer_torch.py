"""Timers beside torch's: their clients with our servers, ours with theirs.

One interpreter imports torch and forks all who take part, which writes down what became of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.launching import WAIT

SCRIPT = """
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
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(WAIT)]
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
