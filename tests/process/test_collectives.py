"""Which collective ranks hang in: real ones over gloo, and what happens to who is asked."""

from __future__ import annotations

import contextlib
import json
import signal
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.launching import WAIT, Launcher, Project, launch, until

from lllaunch.spawner.evidence import GROUPS
from lllaunch.watchdog.collectives import read_trace
from lllaunch.watchdog.collector import ask

WATCHDOG = 4
SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/reference/schemas/stacks.schema.json").read_text()
)

SCENES = """
import os, sys, time
import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])


def stays_away(name):
    while not os.path.exists(f"go-{name}"):
        time.sleep(0.01)


def add(number, group=None):
    dist.all_reduce(torch.ones(number, 2), group=group)


def scene(name):
    open(f"{name}-{RANK}", "w").close()


dist.init_process_group("gloo")
upper = dist.new_group([2, 3], group_desc="upper")

scene("missing")
if RANK == 1:
    stays_away("missing")
add(3)

scene("subgroup")
if RANK == 3:
    stays_away("subgroup")
if RANK in (2, 3):
    add(5, upper)
add(6)

scene("order")
if RANK in (0, 1):
    dist.broadcast(torch.ones(7), src=3)
else:
    dist.all_gather([torch.ones(7)] * 4, torch.ones(7))
"""


def said(launcher: Launcher, name: str, *texts: str) -> None:
    """Ask for the stacks until a scene is what they show: ranks may be on their way to it."""
    marks = [launcher.directory / f"{name}-{rank}" for rank in range(4)]
    until(lambda: all(mark.exists() for mark in marks), f"all ranks to begin {name}")

    def shown() -> bool:
        before = len(launcher.err)
        launcher.signal(signal.SIGQUIT)
        until(lambda: "All stacks:" in launcher.err[before:], "the stacks")
        words = " ".join(launcher.err[before:].split())
        return all(text in words for text in texts)

    until(shown, f"{texts!r}; the console shows\n{launcher.err}")
    (launcher.directory / f"go-{name}").touch()


def looked_into(launcher: Launcher) -> None:
    """Another process sees what ranks hang in, and nothing is written."""
    words = (
        "ank 1 has not come to all_reduce #1 of default_pg (float32 [3, 2]), at {0}scenes.py:11; "
        "ranks 0, 2-3 wait in it since "
    )
    asked: list[str] = []

    def look(*arguments: str) -> str:
        done = Project(launcher.directory).lllaunch("stacks", "run", *arguments)
        asked.append(done.stdout + done.stderr)
        return done.stdout

    until(lambda: words.format("") in " ".join(look().split()), "the collective")
    found = json.loads(look("--json"))
    Draft202012Validator(SCHEMA).validate(found)
    assert words.format(f"{launcher.directory}/") in found["collectives"]["text"]
    assert (found["hung"], found["waiting"]) == ([1], [0, 2, 3])
    assert not any("trace" in each for each in found["ranks"])
    # of one alone there is nothing to compare
    found = json.loads(look("--json", "--rank", "1"))
    Draft202012Validator(SCHEMA).validate(found)
    assert found["collectives"] is None
    assert not list(launcher.directory.rglob("collectives.json")), asked


def test_ranks_that_skip_or_reorder_collectives_in_all_groups(tmp_path: Path) -> None:
    (tmp_path / "scenes.py").write_text(SCENES)
    node = {"entrypoint": "scenes.py", "nproc": 4, "preload": ["torch"], "grace_period": "2s"}
    launcher = Launcher(tmp_path, node | {"tee": "none"})
    try:
        looked_into(launcher)
        (tmp_path / "go-missing").touch()
        # ranks 0 and 1 wait for 2 and 3, but 2 waits for 3 itself
        said(
            launcher,
            "subgroup",
            "Rank 3 has not come to all_reduce #1 of upper of ranks 2-3 (float32 [5, 2]), at "
            "scenes.py:11; rank 2 waits in it since ",
        )
        said(
            launcher,
            "order",
            "Ranks 0-1 are in broadcast #3 at scenes.py:39, ranks 2-3 in all_gather #3 at "
            "scenes.py:41.",
        )
    finally:
        launcher.signal(signal.SIGINT)
        ended = launcher.finish()
    trace = json.loads((tmp_path / "run/attempt_0/3/collectives.json").read_text())
    assert trace["groups"] == {"0": [0, 1, 2, 3], "1": [2, 3]}
    looks = [each for each in ended.events() if each["type"] == "StacksTaken"]
    found = [look["blame"]["collectives"] for look in looks]
    assert "absent" in {each["kind"] for each in found if each}
    assert not any(stack["trace"] is not None and "calls" in stack for stack in looks[0]["stacks"])


STRAGGLER = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(6):
    time.sleep(1.0 if os.environ["RANK"] == "1" else 0.1)
    dist.all_reduce(torch.ones(2))
"""


def test_ranks_that_sleep_between_collectives_get_on(tmp_path: Path) -> None:
    (tmp_path / "straggler.py").write_text(STRAGGLER)
    node = {"entrypoint": "straggler.py", "nproc": 2, "preload": ["torch"], "tee": "none"}
    ended = launch(tmp_path, node | {"watchdog": {"stall": "2s"}})
    assert ended.code == 0, ended.err


LATE = """
import os, sys, threading, time

RANK = int(os.environ["RANK"])
if RANK == 2 and len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, "late.py", "again"])

import torch
import torch.distributed as dist

if RANK == 1:
    if not (child := os.fork()):
        with open("child", "w") as file:
            file.write(str(len(os.listdir("/proc/self/task"))))
        time.sleep(1000)


def loses_itself():
    time.sleep(1000)


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if RANK == 2:
    loses_itself()
dist.all_reduce(torch.ones(4))
"""


def test_torch_imported_late_a_fork_and_a_worker_executed_anew(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    # longer than the address of a socket may be
    long = tmp_path / ("x" * 120)
    long.mkdir()
    # else the workers stand still while the store's process imports torch
    environ = {"TMPDIR": str(long), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    node = {"entrypoint": "late.py", "nproc": 3, "watchdog": {"stall": "4s"}, "grace_period": "2s"}
    ended = launch(tmp_path, node | {"tee": "none"}, environ=environ)
    assert ended.code == WATCHDOG, ended.err
    found = ended.result["root_cause"]["hang"]["collectives"]
    assert found["kind"] == "waiting", ended.err
    assert found["text"].startswith("ranks 0-1 wait in all_reduce #2 of default_pg (float32 [4])")
    assert "Ranks 0-1 wait in all_reduce #2 of default_pg" in ended.err
    traces = [(ended.run_dir / f"attempt_0/{rank}/collectives.json").exists() for rank in range(3)]
    assert traces == [True, True, False], "who was executed anew is not asked"
    assert (tmp_path / "child").read_text() == "1", "no thread of the server's is in a fork"
    assert list(long.iterdir()) == [], "the sockets are gone"
    assert b"Server" not in b"".join(ended.log(rank, "stderr") for rank in range(3))


OFF = """
import json, os, sys
import torch.distributed as dist
from lllaunch.spawner.evidence import _served

shown = [os.environ.get(name) for name in ("LLLAUNCH_COLLECTIVES", "TORCH_FR_BUFFER_SIZE")]
shown += [len(_served), [type(finder).__name__ for finder in sys.meta_path].count("_Observer")]
print(json.dumps(shown))
"""


PRELOADED = {"preload": ["torch"]}


@pytest.mark.parametrize(
    ("node", "environ", "size", "served", "finders"),
    [
        ({"watchdog": {"collectives": False}, **PRELOADED}, {}, None, 0, 0),
        (PRELOADED, {"TORCH_FR_BUFFER_SIZE": "7"}, "7", 1, 0),
        ({}, {}, "2000", 1, 1),
    ],
)
def test_it_can_be_turned_off_and_leaves_what_the_user_has_set(
    tmp_path: Path, node: Any, environ: Any, size: str | None, served: int, finders: int
) -> None:
    (tmp_path / "off.py").write_text(OFF)
    settings = {"entrypoint": "off.py", "tee": "none", **node}
    ended = launch(tmp_path, settings, environ=environ)
    assert ended.code == 0, ended.err
    assert json.loads(ended.log(0)) == [None, size, served, finders]
    assert ended.log(0, "stderr") == b""


# Asking


def answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class Recorder(socketserver.StreamRequestHandler):
    """A worker in place of torch's server: it answers some handlers, and others never."""

    server: Any

    def handle(self) -> None:
        # who asks may have given up
        with contextlib.suppress(ConnectionError):
            name = self.rfile.readline().partition(b" HTTP/")[0].rpartition(b"/")[2].decode()
            if name in self.server.answers:
                self.wfile.write(self.server.answers[name])
            else:
                self.rfile.read()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def serve(rank: int, **answers: bytes) -> tuple[int, str]:
            path = str(tmp_path / str(rank))
            server: Any = socketserver.ThreadingUnixStreamServer(path, Recorder)
            stack.enter_context(server)
            server.answers = answers
            threading.Thread(target=server.serve_forever).start()
            stack.callback(server.shutdown)
            return rank, path

        yield serve


TRACE = b'{"version": "2.10", "entries": []}'
NOT_THERE = answer(b"Handler not found", b"404 Not Found")


def test_all_are_asked_and_who_does_not_answer_is_left_out(tmp_path: Path, served: Any) -> None:
    sources = {
        0: served(
            0,
            fr_trace_json=answer(TRACE),
            dump_nccl_trace_json=NOT_THERE,
            **{GROUPS: answer(b'{"groups": {"0": [0, 1]}, "handled": "E: no"}')},
        ),
        # who holds the interpreter's lock cannot tell of groups
        1: served(1, fr_trace_json=answer(TRACE), dump_nccl_trace_json=answer(TRACE)),
        2: served(2),
        3: served(3, fr_trace_json=answer(TRACE)[:-4], dump_nccl_trace_json=b"nonsense"),
        4: (4, str(tmp_path / "nobody")),
        # it may have called all that it has called by NCCL
        5: served(5, fr_trace_json=answer(TRACE)),
    }
    found = ask(sources, time.monotonic() + 2.0, lambda: False)
    assert found == {
        0: b'{"groups": {"0": [0, 1]}, "handled": "E: no", "traces": [%b]}\n' % TRACE,
        1: b'{"groups": {}, "traces": [%b, %b]}\n' % (TRACE, TRACE),
    }
    read = read_trace(found[0], 0)
    assert read is not None
    assert read.group("0").ranks == (0, 1)
    assert read.handled == "E: no"
    # nobody wants to know any more
    assert ask(sources, time.monotonic() + WAIT, lambda: True) == {}
