"""``logs``: what workers have written, from the files of a run that is over or goes on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from support.launching import Launcher, Running, launch, until

from lllaunch.verbs import logs

SCRIPT = """\
import os, sys, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print("first of", rank, "in", attempt, flush=True)
print("error of", rank, file=sys.stderr, flush=True)
if attempt == "0": sys.exit(1)
while not os.path.exists("go"): time.sleep(0.01)
print("last of", rank, end="")
"""
NODE = {"entrypoint": "s.py", "nproc": 2, "redirects": "all", "max_restarts": 1}


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two attempts."""
    directory = tmp_path_factory.mktemp("logs")
    (directory / "s.py").write_text(SCRIPT)
    (directory / "go").touch()
    assert launch(directory, NODE).code == 0
    return directory


@pytest.fixture
def run(twice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(twice)


def shown(capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert logs.logs(arguments) == code
    out, err = capfd.readouterr()
    assert bool(err) == bool(code)
    return err if code else out


@pytest.mark.usefixtures("run")
def test_all_ranks_of_the_last_attempt_are_shown_one_after_the_other(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert shown(capfd, "run") == (
        "[rank0]:first of 0 in 1\n[rank0]:last of 0\n[rank0]:error of 0\n"
        "[rank1]:first of 1 in 1\n[rank1]:last of 1\n[rank1]:error of 1\n"
    )
    # one is shown as it is
    assert shown(capfd, "run", "--rank", "1") == "first of 1 in 1\nlast of 1\nerror of 1\n"
    assert shown(capfd, "run", "--stderr") == "[rank0]:error of 0\n[rank1]:error of 1\n"
    ranks = shown(capfd, "run", "--stdout", "--rank", "0-1", "--attempt", "0")
    assert "[rank0]:first of 0 in 0" in ranks
    # of a run that is over there is nothing to follow
    assert shown(capfd, "run", "-f", "--rank", "0").startswith("first of 0 in 1\n")


def test_of_silent_workers_nothing_is_kept_and_nothing_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.py").write_text("import os\nif os.environ['RANK'] == '0': print('here')\n")
    assert launch(tmp_path, {"entrypoint": "s.py", "nproc": 2, "redirects": "all"}).code == 0
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("std*.log")] == [
        "run/attempt_0/0/stdout.log"
    ]
    monkeypatch.chdir(tmp_path)
    assert shown(capfd, "run") == "here\n"
    assert shown(capfd, "run", "--rank", "1") == shown(capfd, "run", "--stderr") == ""


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--rank", "2"], "'run' has no logs of rank 2, only of 0-1"),
        (["run", "--attempt", "5"], "'run' has no attempt 5, only 0-1"),
        (["run", "--rank", "x"], "expected ranks (0, 1-3, or 0,2-3), got 'x'"),
        (["run", "--attempt", "-1"], "expected a whole number from 0 on, got '-1'"),
        (["nowhere"], "nowhere"),
    ],
)
def test_what_is_not_there_is_told(
    capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in shown(capfd, *arguments, code=2)


def test_output_that_was_not_kept_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert launch(tmp_path, {"entrypoint": "true", "redirects": "none", "tee": "none"}).code == 0
    monkeypatch.chdir(tmp_path)
    told = shown(capfd, "run", code=2)
    assert "'run' has not kept stdout or stderr in files" in told
    assert "launch.redirects and launch.tee keep it" in told


def following(directory: Path, *arguments: str) -> Running:
    return Running([sys.executable, "-m", "lllaunch", "logs", "run", "-f", *arguments], directory)


@pytest.mark.smoke
def test_a_run_that_goes_on_is_followed_through_its_attempts_to_its_end(tmp_path: Path) -> None:
    waits = "while not os.path.exists('next'): time.sleep(0.01)\n"
    (tmp_path / "s.py").write_text(
        SCRIPT.replace("if attempt", f"if attempt == '0':\n    {waits}if attempt")
    )
    launcher = Launcher(tmp_path, NODE)
    until((tmp_path / "run/attempt_0/0/stdout.log").exists, "the first attempt")
    follower = following(tmp_path, "--rank=0", "--stdout")
    until(lambda: follower.out == "first of 0 in 0\n", "the first line")
    (tmp_path / "next").touch()
    until(lambda: follower.out == "first of 0 in 0\nfirst of 0 in 1\n", "the next")
    assert follower.process.poll() is None
    (tmp_path / "go").touch()
    assert launcher.finish().code == 0
    ended = follower.finish()
    assert (ended.out.splitlines()[2:], ended.code) == (["last of 0"], 0)


def test_ctrl_c_ends_the_following_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text(SCRIPT)
    launcher = Launcher(tmp_path, {**NODE, "max_restarts": 5})
    until((tmp_path / "run/attempt_1/1/stdout.log").exists, "the second attempt")
    follower = following(tmp_path)
    until(lambda: follower.out.startswith("[rank"), "a line")
    follower.signal(signal.SIGINT)
    ended = follower.finish()
    assert (ended.code, ended.err) == (130, "")
    assert launcher.process.poll() is None
    (tmp_path / "go").touch()
    assert launcher.finish().code == 0


def of_node(directory: Path, node: int, *attempts: tuple[str, ...], events: str) -> None:
    """What a node has left of its workers: what each printed, by attempt."""
    part = directory / f"run/node_{node}"
    for attempt, printed in enumerate(attempts):
        for local, text in enumerate(printed):
            (part / f"attempt_{attempt}/{local}").mkdir(parents=True)
            (part / f"attempt_{attempt}/{local}/stdout.log").write_text(text)
    (part / "events.jsonl").write_text(events)
    (directory / "run/plan.yaml").write_text("")


def test_ranks_of_several_nodes_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for node, ranks in ((0, [0, 1]), (1, [2, 3])):
        events = (
            '{"type": "StartWorkers", "attempt": 0, "time_ns": 1}\n'
            f'{{"type": "GroupStarted", "ranks": [0, 1], "base_rank": {ranks[0]}, "time_ns": 1}}\n'
            '{"type": "StartWorkers", "att'
        )
        of_node(tmp_path, node, tuple(f"I am {rank}\n" for rank in ranks), events=events)
    os.symlink("node_0/events.jsonl", tmp_path / "run/events.jsonl")
    monkeypatch.chdir(tmp_path)
    assert shown(capfd, "run") == "".join(f"[rank{rank}]:I am {rank}\n" for rank in range(4))
    assert shown(capfd, "run", "--rank", "3") == "I am 3\n"
    # where attempts of a former run are
    events = (
        '{"type": "StartWorkers", "attempt": 0, "time_ns": 1}\n'
        '{"type": "GroupStarted", "ranks": [0], "base_rank": 0, "attempt": 0, "time_ns": 1}\n'
        '{"type": "StartWorkers", "attempt": 0, "time_ns": 1}\n'
        '{"type": "GroupStarted", "ranks": [0], "base_rank": 5, "attempt": 1, "time_ns": 1}\n'
    )
    shutil.rmtree("run")
    of_node(tmp_path, 0, ("in attempt 0\n",), ("in attempt 1\n",), events=events)
    assert shown(capfd, "run", "--rank", "5") == "in attempt 1\n"
