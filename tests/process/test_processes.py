"""start_processes and its contexts with real processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from support.launching import WAIT, run_script

from lllaunch.errors import NotPicklable
from lllaunch.multiprocessing import (
    DefaultLogsSpecs,
    MultiprocessContext,
    PContext,
    RunProcsResult,
    SignalException,
    Std,
    SubprocessContext,
    start_processes,
)

METHODS = ["spawn", "forkserver", "fork"]


def add(a: int, b: int) -> int:
    return a + b


def rank_of(label: str) -> str:
    print(label, "out", os.environ["RANK"])
    print(label, "err", os.environ["RANK"], file=sys.stderr)
    return os.environ["RANK"]


def fail_on_one(*_: Any) -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("rank one has had enough")
    time.sleep(1000)


def use_queue(queue: Any, lock: Any, event: Any, pipe: Any) -> int:
    with lock:
        queue.put(os.environ["RANK"])
    event.wait(WAIT)
    pipe.send("hello from " + os.environ["RANK"])
    return os.getpid()


class Ungrateful:
    def __reduce__(self) -> Any:
        raise RuntimeError("will not travel")


def ranks(n: int) -> dict[int, dict[str, str]]:
    return {rank: {"RANK": str(rank)} for rank in range(n)}


def start(tmp_path: Path, entrypoint: Any, *args: tuple[Any, ...], **options: Any) -> PContext:
    """Start a worker for each of the arguments."""
    logs = options.pop("logs", {})
    specs = DefaultLogsSpecs(str(tmp_path), **logs)
    return start_processes(
        "t", entrypoint, dict(enumerate(args)), ranks(len(args)), specs, **options
    )


def finish(context: PContext, timeout: float = WAIT) -> RunProcsResult:
    result = context.wait(timeout)
    assert result is not None, "it did not end"
    return result


@pytest.mark.parametrize("method", METHODS)
def test_functions_return_their_values(tmp_path: Path, method: str) -> None:
    logs = {"redirects": Std.ALL}
    context = start(tmp_path, add, (1, 2), (3, 4), logs=logs, start_method=method)
    assert isinstance(context, MultiprocessContext)
    assert len(set(context.pids().values())) == 2
    result = finish(context)
    assert not result.is_failed()
    assert result.return_values == {0: 3, 1: 7}
    assert Path(result.stdouts[1]).read_text() == ""
    assert context.wait(0) is not None, "the result stays"


@pytest.mark.parametrize("method", METHODS)
def test_redirect_and_tee(tmp_path: Path, method: str, capfd: pytest.CaptureFixture[str]) -> None:
    logs = {"redirects": Std.ALL, "tee": {0: Std.ALL, 1: Std.ERR}}
    args = [("x",)] * 3
    result = finish(start(tmp_path, rank_of, *args, logs=logs, start_method=method))
    for rank in range(3):
        assert Path(result.stdouts[rank]).read_text() == f"x out {rank}\n"
        assert Path(result.stderrs[rank]).read_text() == f"x err {rank}\n"
    shown = capfd.readouterr()
    assert shown.out == "[t0]:x out 0\n"
    assert sorted(shown.err.splitlines()) == ["[t0]:x err 0", "[t1]:x err 1"]


@pytest.mark.parametrize("method", METHODS)
def test_one_failure_ends_the_others_and_is_the_only_one(tmp_path: Path, method: str) -> None:
    result = finish(start(tmp_path, fail_on_one, (), (), (), start_method=method))
    assert list(result.failures) == [1]
    failure = result.failures[1]
    assert failure.exitcode == 1
    assert failure.message["message"] == "ValueError: rank one has had enough"
    assert result.return_values == {}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_argument_that_cannot_be_pickled_is_named(tmp_path: Path, method: str) -> None:
    with pytest.raises(NotPicklable) as caught:
        start(tmp_path, add, (1, 2), (1, Ungrateful()), start_method=method)
    text = str(caught.value)
    assert "argument 1 (Ungrateful) of worker 1" in text
    assert "will not travel" in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_closures_run_under_fork_and_are_named_elsewhere(tmp_path: Path) -> None:
    here = 41
    context = start(tmp_path, lambda: here + 1, (), start_method="fork")
    assert finish(context).return_values == {0: 42}
    with pytest.raises(NotPicklable, match="the function"):
        start(tmp_path, lambda: here, ())


@pytest.mark.parametrize("method", METHODS)
def test_multiprocessing_objects_are_passed(tmp_path: Path, method: str) -> None:
    pass_objects(tmp_path, method)
    # multiprocessing keeps one process and one descriptor of its own for the locks and queues.
    gc.collect()
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]


def pass_objects(tmp_path: Path, method: str) -> None:
    mp: Any = multiprocessing.get_context(method)
    queue, lock, event = mp.Queue(), mp.Lock(), mp.Event()
    ends = [mp.Pipe() for _ in range(2)]
    args = [(queue, lock, event, ends[rank][1]) for rank in range(2)]
    context = start(tmp_path, use_queue, *args, start_method=method)
    assert {queue.get(timeout=WAIT), queue.get(timeout=WAIT)} == {"0", "1"}
    event.set()
    assert [end[0].recv() for end in ends] == ["hello from 0", "hello from 1"]
    assert finish(context).return_values == context.pids()


def test_programs(tmp_path: Path) -> None:
    context = start(tmp_path, "echo", (1, [2]), ("x",), logs={"redirects": Std.OUT})
    assert isinstance(context, SubprocessContext)
    result = finish(context)
    assert result.return_values == {0: None, 1: None}
    assert Path(result.stdouts[0]).read_text() == "1 [2]\n"
    handler = context.subprocess_handlers[1]
    assert handler.local_rank_id == 1
    assert handler.proc.poll() == handler.proc.wait(WAIT) == 0
    handler.close()


@pytest.mark.parametrize(
    ("mode", "error"),
    [(None, FileNotFoundError), (0o644, PermissionError), (0o755, OSError)],
)
def test_a_program_that_cannot_be_executed_raises_what_popen_does(
    tmp_path: Path, mode: int | None, error: type[OSError]
) -> None:
    program = tmp_path / "program"
    if mode is not None:
        program.write_text("no program")
        program.chmod(mode)
    with pytest.raises(error) as plain:
        subprocess.Popen([str(program)])
    with pytest.raises(error) as ours:
        start(tmp_path / "logs", str(program), (), ())
    assert type(ours.value) is type(plain.value)
    assert (ours.value.errno, ours.value.filename) == (plain.value.errno, str(program))


def test_programs_that_run_are_ended_when_another_cannot_be_executed(tmp_path: Path) -> None:
    env = {0: {"PATH": os.environ["PATH"]}, 1: {"PATH": "/nowhere"}}
    with pytest.raises(FileNotFoundError):
        start_processes("t", "sleep", {0: ("1000",), 1: ("1000",)}, env, log_dir=tmp_path)


def test_wait_returns_at_the_end_or_at_its_timeout_and_close_ends_all(tmp_path: Path) -> None:
    context = start(tmp_path, "sleep", ("1000",))
    assert context.wait(0) is None
    assert context.wait(0.05) is None
    context.close()
    context.close()
    assert context.alive == frozenset()
    assert context.exits[0].exitcode == -signal.SIGTERM
    # woken by the exit: the test's own time limit is what a wait for the period would run into
    assert start(tmp_path, "true", ()).wait(-1, period=10_000) is not None


def test_the_older_keywords_and_a_path_in_fifth_place(tmp_path: Path) -> None:
    workers = ("t", "echo", {0: ("a",)}, ranks(1))
    result = finish(start_processes(*workers, str(tmp_path / "five"), redirects=Std.OUT))
    assert result.stdouts[0].startswith(str(tmp_path / "five"))
    with pytest.raises(TypeError, match="log_dir"):
        start_processes(*workers, "x", log_dir="y")


def test_a_death_signal_raises_in_the_main_thread_and_handlers_are_put_back(
    tmp_path: Path,
) -> None:
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    context = start(tmp_path, "sleep", ("1000",))

    def wait() -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        context.wait(WAIT)

    with pytest.raises(SignalException) as caught:
        wait()
    assert caught.value.sigval == signal.SIGTERM
    context.close(caught.value.sigval)
    assert {s: signal.getsignal(s) for s in before} == before


MAIN = """
import os, sys
from lllaunch.multiprocessing import start_processes

class Box:
    def __init__(self, x): self.x = x

def double(box):
    return Box(box.x * 2)

if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        ctx = start_processes("t", double, {0: (Box(21),)}, {0: {}}, log_dir=sys.argv[1],
                              start_method=method)
        print(method, ctx.wait().return_values[0].x)
"""


def test_a_function_and_classes_of_main(tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text(MAIN)
    done = run_script(path, tmp_path / "logs")
    done.check_returncode()
    assert done.stdout == "spawn 42\nforkserver 42\nfork 42\n"


def test_a_main_without_a_guard_is_explained_not_a_fork_bomb(tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text(
        "import sys\nfrom lllaunch.multiprocessing import start_processes\n"
        "def f(): pass\n"
        "r = start_processes('t', f, {0: ()}, {0: {}}, log_dir=sys.argv[1]).wait()\n"
        "print(r.failures)\n"
    )
    done = run_script(path, tmp_path / "logs")
    assert "bootstrapping phase" in done.stdout + done.stderr


TENSORS = """
import sys, torch
import torch.multiprocessing
from lllaunch.multiprocessing import start_processes

def work(shared, rank):
    shared[rank] += 1 + rank
    return torch.full((2, 2), float(rank), requires_grad=True)

if __name__ == "__main__":
    shared = {method: torch.zeros(2).share_memory_() for method in sys.argv[2:]}
    # all at the same time, as what takes time is that most of them import torch
    contexts = {
        method: start_processes("t", work, {r: (shared[method], r) for r in range(2)},
                                {0: {}, 1: {}}, log_dir=sys.argv[1] + method, start_method=method)
        for method in sys.argv[2:]
    }
    for method, context in contexts.items():
        values = context.wait().return_values
        print(method, shared[method].tolist(), values[1].tolist(), values[1].requires_grad)
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_tensors_are_shared_as_arguments_and_returned_by_value(tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text(TENSORS)
    done = run_script(path, tmp_path / "logs", *METHODS, timeout=2 * WAIT)
    expected = [f"{method} [1.0, 2.0] [[1.0, 1.0], [1.0, 1.0]] True" for method in METHODS]
    assert done.stdout.splitlines() == expected, done.stderr
