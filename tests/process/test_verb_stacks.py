"""``stacks``: where the workers of a live run stand, asked by another process."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.launching import Finished, Launcher, gone, launch, text_of, until

from lllaunch.results.store import entry_of, jobs_of, look
from lllaunch.supervisor.control import SOCKET, Request, ask
from lllaunch.verbs import stacks

pytestmark = pytest.mark.measured

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


def started(directory: Path, nproc: int = 3, **node: Any) -> Launcher:
    (directory / "work.py").write_text(SCRIPT)
    launcher = Launcher(
        directory, {"entrypoint": "work.py", "nproc": nproc, "grace_period": "5s", **node}
    )
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


def shown(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    launcher: Launcher,
    *arguments: str,
    code: int = 0,
) -> str:
    """What the verb prints, in this process; of an error what it complains of."""
    monkeypatch.chdir(launcher.directory)
    assert stacks.main(arguments) == code
    out, err = capsys.readouterr()
    return err if code else out


def stacks_command(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lllaunch", "stacks", *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


TREE = """\
    All ranks, outermost call first:
      [0-2] <module> (work.py:23)
        [0,2] step (work.py:17) → compute (work.py:12)
        [1] step (work.py:16) → load_next_shard (work.py:8)
"""


def test_a_live_run_is_looked_into_and_goes_on_unharmed(launcher: Launcher) -> None:
    until((launcher.run_dir / SOCKET).exists, "the socket")
    before = {path.relative_to(launcher.run_dir) for path in launcher.run_dir.rglob("*")}
    asking = stacks_command(launcher.directory)
    out, err = asking.communicate(timeout=60)
    assert (asking.returncode, err) == (0, "")
    assert out.startswith("run: attempt 0, 3 workers\n    Rank 1 was here (innermost call first):")
    assert out.endswith(TREE)
    after = {path.relative_to(launcher.run_dir) for path in launcher.run_dir.rglob("*")}
    assert after == before
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
    assert (answered["ranks"], answered["pid"], answered["uid"]) == (
        [0, 1, 2],
        asking.pid,
        os.geteuid(),
    )
    assert not (launcher.run_dir / SOCKET).exists()


def test_threads_of_some_ranks(
    launcher: Launcher, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(capsys, monkeypatch, launcher, "run", "--rank", "1-2")
    assert "All ranks" not in text
    assert "Rank 0" not in text
    for rank in (1, 2):
        part = text.partition(f"Rank {rank}, process ")[2].partition("Rank")[0]
        main, _, other = part.partition("\n      MainThread (innermost call first):\n")[
            2
        ].partition("(innermost call first):")
        inside = "load_next_shard" if rank == 1 else "compute"
        line = 'while not os.path.exists("go"): time.sleep(0.01)'
        assert main.startswith(f"        work.py:{8 if rank == 1 else 12} in {inside}: {line}\n")
        assert f"work.py:20 in prefetch: {line}" in other
    text = shown(capsys, monkeypatch, launcher, "run", "--rank", "3", code=2)
    assert "has no rank 3, only ranks 0-2" in text


def test_for_programs(
    launcher: Launcher, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.loads(shown(capsys, monkeypatch, launcher, "--json"))
    Draft202012Validator(SCHEMA).validate(found)
    assert found["path"] == str(launcher.run_dir)
    assert [each["rank"] for each in found["ranks"]] == [0, 1, 2]
    assert [each["threads"] for each in found["ranks"]] == [None] * 3
    functions = [frame["function"] for frame in found["ranks"][1]["frames"]]
    assert functions == ["load_next_shard", "step", "<module>"]
    assert (found["hung"], found["waiting"]) == ([1], [])
    found = json.loads(shown(capsys, monkeypatch, launcher, "--json", "--rank", "2"))
    Draft202012Validator(SCHEMA).validate(found)
    (worker,) = found["ranks"]
    assert worker["rank"] == 2
    assert len(worker["threads"]) == 2
    assert worker["threads"][0] == {"name": "MainThread", "frames": worker["frames"]}


def test_many_at_once_and_hostile_ones_among_them(launcher: Launcher) -> None:
    silent, garbage = [], []
    until((launcher.run_dir / SOCKET).exists, "the socket")
    fd = os.open(launcher.run_dir, os.O_PATH)
    for number in range(12):
        client = socket.socket(socket.AF_UNIX)
        client.connect(f"/proc/self/fd/{fd}/{SOCKET}")
        (silent if number % 2 else garbage).append(client)
    os.close(fd)
    for client in garbage:
        client.sendall(b"\x00" * 10 + b"\n")
    found: list[Any] = []

    def look(ranks: frozenset[int] | None) -> None:
        found.append(ask(str(launcher.run_dir), Request(ranks), 60.0))

    asked = [None, frozenset({0}), frozenset({1, 2}), None]
    threads = [threading.Thread(target=look, args=(ranks,)) for ranks in asked]
    for thread in threads:
        thread.start()
    # one that has asked and does not wait
    early = stacks_command(launcher.directory)
    early.kill()
    early.communicate()
    for thread in threads:
        thread.join(60)
    assert sorted(len(each["ranks"]) for each in found) == [1, 2, 3, 3]
    for each in found:
        assert all(worker["frames"] for worker in each["ranks"])
    for client in (*silent, *garbage):
        client.close()
    ended = finished(launcher)
    assert ended.code == 0, ended.err


def test_a_run_that_is_over_says_how_and_where_its_stacks_are(
    launcher: Launcher, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.signal(signal.SIGQUIT)
    tree = launcher.run_dir / "attempt_0" / "stacks.txt"
    until(lambda: "StacksTaken" in text_of(launcher.run_dir / "events.jsonl"), "stacks")
    ended = finished(launcher)
    assert TREE in ended.err
    assert "[0,2] step" in tree.read_text()
    folded = (launcher.run_dir / "attempt_0" / "stacks.folded").read_text().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in folded) == 6
    (of_one,) = [line for line in folded if "load_next_shard" in line]
    assert of_one.startswith(f"MainThread;<module> ({launcher.directory}/work.py:23);step (")
    assert of_one.endswith(f"load_next_shard ({launcher.directory}/work.py:8) 1")
    text = shown(capsys, monkeypatch, launcher, "run", code=2)
    assert "'run' is over: succeeded after" in text
    assert "its stacks are in run/attempt_0/stacks.txt" in text
    assert "nothing that was started from here goes on" in shown(
        capsys, monkeypatch, launcher, code=2
    )
    assert "'no' does not exist" in shown(capsys, monkeypatch, launcher, "no", code=2)


def test_a_launcher_that_is_stopped(
    launcher: Launcher, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.signal(signal.SIGSTOP)
    text = shown(capsys, monkeypatch, launcher, "run", code=1)
    assert f"run: its launcher (pid {launcher.pid}) is stopped" in text
    assert f"'kill -CONT {launcher.pid}' lets it go on" in text
    launcher.signal(signal.SIGCONT)
    assert "load_next_shard" in shown(capsys, monkeypatch, launcher, "run")


def test_a_launcher_that_is_on_another_machine(
    launcher: Launcher, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = socket.gethostname()
    monkeypatch.setattr(stacks.socket, "gethostname", lambda: "elsewhere")
    text = shown(capsys, monkeypatch, launcher, "run", code=1)
    assert f"run: runs on {host}, and this is elsewhere; ask there: ssh {host} " in text
    assert f"python -m lllaunch stacks {launcher.run_dir}" in text


def test_a_launcher_that_was_killed_leaves_a_socket_that_the_next_replaces(
    launcher: Launcher, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    until((launcher.run_dir / SOCKET).exists, "the socket")
    workers = [each.pid for each in launcher.below()]
    launcher.process.kill()
    launcher.process.communicate()
    for pid in workers:
        until(lambda pid=pid: gone(pid), "the workers' end")
    assert (launcher.run_dir / SOCKET).exists()
    assert "is over: died" in shown(capsys, monkeypatch, launcher, "run", code=2)
    for rank in range(3):
        (launcher.directory / f"at.{rank}").unlink()
    again = started(launcher.directory)
    assert "attempt 1, 3 workers" in shown(capsys, monkeypatch, again, "run")
    assert finished(again).code == 0
    assert not (launcher.run_dir / SOCKET).exists()


def test_where_there_can_be_no_socket_the_run_goes_on_and_stacks_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run" / SOCKET).mkdir(parents=True)
    monkeypatch.setattr(stacks, "_PATIENCE", 0.0)
    (tmp_path / "run" / SOCKET / "in the way").touch()
    launcher = started(tmp_path, 1)
    until(lambda: "ControlUnavailable" in text_of(launcher.run_dir / "events.jsonl"), "the event")
    fake = tmp_path / "run" / SOCKET
    (fake / "in the way").unlink()
    fake.rmdir()
    text = shown(capsys, monkeypatch, launcher, "run", code=1)
    assert "run: has no socket to ask at: Is a directory" in text
    assert f"'kill -QUIT {launcher.pid}'" in text
    ended = finished(launcher)
    assert ended.code == 0, ended.err
    assert "socket" not in ended.err


def test_where_the_socket_is_not_there_yet_stacks_says_so(
    launcher: Launcher, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    until((launcher.run_dir / SOCKET).exists, "the socket")
    (launcher.run_dir / SOCKET).unlink()
    monkeypatch.setattr(stacks, "_PATIENCE", 0.0)
    text = shown(capsys, monkeypatch, launcher, "run", code=1)
    why = f"its launcher (pid {launcher.pid}) is starting, busy or ending; ask again in a moment"
    assert f"run: has no socket to ask at now: {why}" in text
    assert finished(launcher).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_gets_nothing(launcher: Launcher) -> None:
    # who may not read where this is installed has imported it before
    code = (
        "import os, pwd\n"
        "from lllaunch.supervisor.control import Request, ask\n"
        "nobody = pwd.getpwnam('nobody')\n"
        "os.setgroups([])\n"
        "os.setgid(nobody.pw_gid)\n"
        "os.setuid(nobody.pw_uid)\n"
        f"try: print(ask({str(launcher.run_dir)!r}, Request()))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )

    def answer() -> str:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        ).stdout

    until((launcher.run_dir / SOCKET).exists, "the socket")
    for path in (launcher.run_dir, *launcher.run_dir.parents):
        if path.stat().st_uid == 0 and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    assert answer().startswith("PermissionError")
    # also if somebody opens the socket to all
    (launcher.run_dir / SOCKET).chmod(0o666)
    uid = pwd.getpwnam("nobody").pw_uid
    assert answer() == f"RequestRefused permission: user {uid} may not look into this run\n"
    ended = finished(launcher)
    assert ended.code == 0
    assert "StacksAnswered" not in [event["type"] for event in ended.events()]


def test_while_modules_are_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\nopen('importing', 'w').close()\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
    )
    (tmp_path / "work.py").write_text(SCRIPT)
    launcher = Launcher(tmp_path, {"entrypoint": "work.py", "nproc": 2, "preload": ["slow"]})
    until((tmp_path / "importing").exists, "the import")
    text = shown(capsys, monkeypatch, launcher, "run")
    assert text == (
        "run: attempt 0, 2 workers\n"
        "    Ranks 0-1 have not started yet: imports, or the preflight, come first\n"
    )
    ended = finished(launcher)
    assert ended.code == 0, ended.err


def test_between_two_attempts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.py").write_text("raise SystemExit(1)")
    node = {
        "entrypoint": "work.py",
        "nproc": 2,
        "max_restarts": 1,
        "restart": {"delay": "600s", "max_delay": "600s"},
    }
    launcher = Launcher(tmp_path, node)
    until(lambda: '"Pause"' in text_of(launcher.run_dir / "events.jsonl"), "the pause")
    text = shown(capsys, monkeypatch, launcher, "run")
    assert text == (
        "run: attempt 0, 2 workers: a restart is waited for\n    Ranks 0-1 have ended\n"
    )
    launcher.signal(signal.SIGTERM)
    assert launcher.finish().code == 128 + signal.SIGTERM


def test_a_directory_of_any_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path.joinpath(*["a directory with a long name, blanks and ü"] * 4)
    directory.mkdir(parents=True)
    launcher = started(directory, 1)
    assert "work.py:12 in compute" in shown(capsys, monkeypatch, launcher, "run")
    assert finished(launcher).code == 0


def test_a_job_of_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.py").write_text(SCRIPT)
    (tmp_path / "conf/exp").mkdir(parents=True)
    text = "# @package _global_\nlaunch: {entrypoint: work.py, nproc: 2, env: {JOB: '0'}}\n"
    (tmp_path / "conf/exp/x.yaml").write_text(text)
    jobs = ["-m", "+exp=x", "launch.env.JOB='0','1'", "hydra.sweep.dir=sweep"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "lllaunch", *jobs, "hydra.launcher.max_parallel=1"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    for name in ("at.0", "at.1"):
        until((tmp_path / name).exists, name)
    monkeypatch.chdir(tmp_path)
    # the only one that runs
    for name in ("sweep", "sweep/0", "latest"):
        assert stacks.main([name]) == 0
        out = capsys.readouterr().out
        assert out.startswith("sweep/0: attempt 0, 2 workers\n")
        assert "load_next_shard" in out
    sweep = look(str(tmp_path / "sweep"))
    assert sweep is not None
    job = next(jobs_of(entry_of(sweep)))
    two = [replace(job, path=f"sweep/{number}") for number in (0, 1)]
    monkeypatch.setattr(stacks, "jobs_of", lambda _: iter(two))
    assert stacks.main(["sweep"]) == 2
    assert "2 of whose jobs run; say which one: sweep/0, sweep/1" in capsys.readouterr().err
    (tmp_path / "go").touch()
    text, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, text


def test_a_program_is_where_py_spy_or_the_kernel_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.sh").write_text(
        "#!/bin/sh\ntouch at.0; while [ ! -e go ]; do sleep 0.1; done\n"
    )
    (tmp_path / "work.sh").chmod(0o755)
    launcher = Launcher(tmp_path, {"entrypoint": str(tmp_path / "work.sh")})
    until((tmp_path / "at.0").exists, "the program")
    text = shown(capsys, monkeypatch, launcher, "run")
    assert "Rank 0 was" in text
    assert finished(launcher).code == 0


def test_a_run_that_hangs_shows_the_tree_in_its_report(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(SCRIPT.replace("time.sleep(0.01)", "time.sleep(1000)"))
    node = {"entrypoint": "work.py", "nproc": 3, "watchdog": {"stall": "1s"}, "grace_period": "1s"}
    ended = launch(tmp_path, node)
    assert ended.code == 4, ended.err
    assert TREE in ended.err
    assert (ended.run_dir / "attempt_0" / "stacks.folded").exists()
