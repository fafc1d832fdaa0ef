"""``stacks``: where the workers of a live run stand, asked by another process."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace
from support.launching import Finished, Launcher, Project, Running, text_of, until

from lllaunch.results.locate import entry_of, jobs_of
from lllaunch.results.store import look
from lllaunch.supervisor.control import SOCKET
from lllaunch.verbs import logs

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs/reference/schemas/stacks.schema.json").read_text()
)
# Rank 1 is elsewhere than the others; another thread of each waits, too.
SCRIPT = """\
import os, threading, time

def at():
    open("at." + os.environ["RANK"], "w").close()

def load_next_shard():
    at()
    while not os.path.exists("go"): time.sleep(0.01)

def compute():
    at()
    while not os.path.exists("go"): time.sleep(0.01)

def step():
    if os.environ["RANK"] == "1":
        load_next_shard()
    compute()

def prefetch():
    while not os.path.exists("go"): time.sleep(0.01)

threading.Thread(target=prefetch, name="loader").start()
step()
"""


def started(directory: Path, nproc: int = 3) -> Launcher:
    (directory / "work.py").write_text(SCRIPT)
    node = {"entrypoint": "work.py", "nproc": nproc, "grace_period": "5s", "samples": False}
    launcher = Launcher(directory, node)
    for rank in range(nproc):
        until((directory / f"at.{rank}").exists, f"rank {rank}")
    return launcher


def finished(launcher: Launcher) -> Finished:
    """Let the workers of `started` go on to their end."""
    (launcher.directory / "go").touch()
    return launcher.finish()


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = started(tmp_path)
    yield launcher
    (tmp_path / "go").touch()
    if launcher.process.poll() is None:
        launcher.finish()


def lllaunch(directory: Path, *arguments: str) -> Running:
    return Running([sys.executable, "-m", "lllaunch", *arguments], directory)


Shown = Callable[..., str]


@pytest.fixture
def shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shown:
    """What the verb prints, in this process; of an error what it complains of."""
    monkeypatch.chdir(tmp_path)

    def show(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        assert logs.stacks(arguments) == code
        out, err = capsys.readouterr()
        return err if code else out

    return show


TREE = """\
    All ranks, outermost call first:
      [0-2] <module> (work.py:23)
        [0,2] step (work.py:17) → compute (work.py:12)
        [1] step (work.py:16) → load_next_shard (work.py:8)
"""


@pytest.mark.smoke
def test_a_live_run_is_looked_into_and_goes_on_unharmed(launcher: Launcher) -> None:
    until((launcher.run_dir / SOCKET).exists, "the socket")
    before = set(launcher.run_dir.rglob("*"))
    asking = lllaunch(launcher.directory, "stacks")
    asked = asking.finish()
    assert (asked.code, asked.err) == (0, "")
    assert asked.out.startswith(
        "run: attempt 0, 3 workers\n    Rank 1 was here (innermost call first):"
    )
    assert asked.out.endswith(TREE)
    assert set(launcher.run_dir.rglob("*")) == before
    ended = finished(launcher)
    assert ended.code == 0, ended.err
    # nothing of it was said, nothing ended for it, and a line tells of it
    first, last = ended.err.splitlines()
    assert first.startswith("lllaunch: attempt 0: 3 workers of work.py")
    assert last.startswith("lllaunch: succeeded in ")
    types = [event["type"] for event in ended.events()]
    assert types.count("StacksAnswered") == 1
    assert not {"TakeStacks", "StacksTaken", "SignalWorkers", "StacksAsked"} & set(types)
    answered = next(each for each in ended.events() if each["type"] == "StacksAnswered")
    told = [answered[name] for name in ("ranks", "pid", "uid")]
    assert told == [[0, 1, 2], asking.pid, os.geteuid()]
    assert not (launcher.run_dir / SOCKET).exists()


def test_threads_of_some_ranks_and_all_for_programs(launcher: Launcher, shown: Shown) -> None:
    text = shown("run", "--rank", "1-2")
    assert "All ranks" not in text
    assert "Rank 0" not in text
    for rank in (1, 2):
        part = text.partition(f"Rank {rank}, process ")[2].partition("Rank")[0]
        threads = part.partition("\n      MainThread (innermost call first):\n")[2]
        main, _, other = threads.partition("(innermost call first):")
        inside = "load_next_shard" if rank == 1 else "compute"
        line = 'while not os.path.exists("go"): time.sleep(0.01)'
        assert main.startswith(f"        work.py:{8 if rank == 1 else 12} in {inside}: {line}\n")
        assert f"work.py:20 in prefetch: {line}" in other
    assert "has no rank 3, only ranks 0-2" in shown("run", "--rank", "3", code=2)
    # for programs
    found = json.loads(shown("--json"))
    Draft202012Validator(SCHEMA).validate(found)
    assert found["path"] == str(launcher.run_dir)
    assert [each["rank"] for each in found["ranks"]] == [0, 1, 2]
    assert [each["threads"] for each in found["ranks"]] == [[]] * 3
    functions = [frame["function"] for frame in found["ranks"][1]["frames"]]
    assert functions == ["load_next_shard", "step", "<module>"]
    assert (found["hung"], found["waiting"]) == ([1], [])
    found = json.loads(shown("--json", "--rank", "2"))
    Draft202012Validator(SCHEMA).validate(found)
    (worker,) = found["ranks"]
    assert worker["rank"] == 2
    assert len(worker["threads"]) == 2
    assert worker["threads"][0] == {"name": "MainThread", "frames": worker["frames"]}


def test_a_run_that_is_over_says_how_and_where_its_stacks_are(
    launcher: Launcher, shown: Shown
) -> None:
    events = launcher.run_dir / "events.jsonl"
    # Ctrl-\\ shows them, and the run goes on
    for times in (1, 2):
        launcher.signal(signal.SIGQUIT)
        until(lambda n=times: text_of(events).count('"StacksTaken"') == n, "stacks")
    tree = launcher.run_dir / "attempt_0" / "stacks.txt"
    ended = finished(launcher)
    assert ended.code == 0, ended.err
    assert "SignalWorkers" not in [event["type"] for event in ended.events()]
    assert TREE in ended.err
    assert "[0,2] step" in tree.read_text()
    text = shown("run", code=2)
    assert "'run' is over: succeeded after" in text
    assert "its stacks are in run/attempt_0/stacks.txt" in text
    assert "nothing that was started from here goes on" in shown(code=2)
    assert "'no' does not exist" in shown("no", code=2)


def test_where_a_launcher_cannot_be_asked_it_is_said_why_and_what_to_do(
    launcher: Launcher, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = socket.gethostname()
    with monkeypatch.context() as patch:
        patch.setattr(logs.socket, "gethostname", lambda: "elsewhere")
        text = shown("run", code=1)
    assert f"run: runs on {host}, and this is elsewhere; ask there: ssh {host} " in text
    assert f"python -m lllaunch stacks {launcher.run_dir}" in text
    until((launcher.run_dir / SOCKET).exists, "the socket")
    (launcher.run_dir / SOCKET).unlink()
    monkeypatch.setattr(logs, "_PATIENCE", 0.0)
    why = f"its launcher (pid {launcher.pid}) is starting, busy or ending; ask again in a moment"
    assert f"run: has no socket to ask at: {why}" in shown("run", code=1)
    assert finished(launcher).code == 0


def test_where_there_can_be_no_socket_the_run_goes_on_and_stacks_says_so(
    tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "run" / SOCKET
    fake.mkdir(parents=True)
    (fake / "in the way").touch()
    launcher = started(tmp_path, 1)
    until(lambda: "ControlUnavailable" in text_of(launcher.run_dir / "events.jsonl"), "the event")
    (fake / "in the way").unlink()
    fake.rmdir()
    monkeypatch.setattr(logs, "_PATIENCE", 0.0)
    text = shown("run", code=1)
    assert "run: has no socket to ask at: " in text
    assert f"'kill -QUIT {launcher.pid}'" in text
    ended = finished(launcher)
    assert ended.code == 0, ended.err
    assert "socket" not in ended.err


def test_a_job_of_a_sweep(tmp_path: Path, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work.py").write_text(SCRIPT)
    Project(tmp_path).experiment("x", "{entrypoint: work.py, nproc: 2, env: {JOB: '0'}}")
    jobs = ["-m", "+exp=x", "launch.env.JOB='0','1'", "hydra.sweep.dir=sweep"]
    launcher = lllaunch(tmp_path, *jobs, "hydra.launcher.max_parallel=1")
    for name in ("at.0", "at.1"):
        until((tmp_path / name).exists, name)
    # the only one that runs
    for name in ("sweep", "sweep/0", "latest"):
        out = shown(name)
        assert out.startswith("sweep/0: attempt 0, 2 workers\n")
        assert "load_next_shard" in out
    sweep = look(str(tmp_path / "sweep"))
    assert sweep is not None
    job = jobs_of(entry_of(sweep))[0]
    two = [replace(job, path=f"sweep/{number}") for number in (0, 1)]
    monkeypatch.setattr(logs, "jobs_of", lambda _: two)
    assert "2 of whose jobs run; say which one: sweep/0, sweep/1" in shown("sweep", code=2)
    (tmp_path / "go").touch()
    ended = launcher.finish()
    assert ended.code == 0, ended.err
