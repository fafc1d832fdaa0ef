"""Runs and sweeps on a terminal, with the shell that has started them; and where there is none."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import Launcher, until
from support.sweeping import SweepProject, end_all, settled

from lllaunch.linux import proc

pytest.importorskip("pyte", reason="it shows what a terminal gets")
from support import screen
from support.screen import Terminal

WORK = """
import os, sys, time
import lllaunch

lllaunch.progress(3, 12)
print("begun", flush=True)
sys.stderr.write("\\r50 % |####")
sys.stderr.flush()
while not os.path.exists("go"):
    if os.path.exists("say"):
        os.rename("say", "said")
        print("said", flush=True)
    time.sleep(0.01)
"""
LINE = re.compile(r"lllaunch: attempt 0, \d+ s, step 3/12")


class Shell(Terminal):
    """A terminal with a shell."""

    def sees(self, pattern: str, *, after: str = "") -> str:
        """Wait until the screen matches; return it, from the last line that matches ``after``."""

        def screen() -> str:
            rows = self.rows
            starts = [index for index, row in enumerate(rows) if after and after in row]
            return "\n".join(rows[starts[-1] if starts else 0 :])

        self.read_until(lambda: re.search(pattern, screen()) is not None)
        return screen()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "work.py").write_text(WORK)
    made = Shell(100, 30)
    with screen.shell(made, tmp_path, os.environ):
        yield made
        (tmp_path / "go").touch()
    made.close()


def states_of(word: str) -> set[str]:
    """What the processes below this one do that have a word on their command lines."""
    below = proc.descendants(os.getpid())
    return {each.state for each in below if word in proc.command(each.pid)}


def test_ctrl_z_and_back(shell: Shell, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lllaunch", "launch.entrypoint=work.py", "hydra.run.dir=run"]
    shell.sees(r"\$$")
    shell.type("clear\n" + shlex.join([*command, "launch.samples=1s"]) + "\n")
    seen = shell.sees(LINE.pattern)
    assert re.search(r"begun\n50 % \|####\nlllaunch: attempt 0, [^\n]*$", seen), seen
    shell.type("\x1a")
    stopped = shell.sees(r"Stopped[^$]*\$$")
    until(lambda: states_of("work.py") == {"T"}, "launcher and worker to be stopped")
    assert not LINE.search(stopped), stopped
    assert "####" not in stopped
    shell.type("echo in bet''ween\n")
    shell.sees(r"in between\n\$$")
    shell.type("fg\n")
    seen = shell.sees(LINE.pattern, after="in between")
    (tmp_path / "say").touch()
    seen = shell.sees(r"said\n50 % \|####\nlllaunch: attempt 0, [^\n]*step 3/12")
    assert len(LINE.findall(seen)) == 1, "it is drawn once"
    (tmp_path / "go").touch()
    ended = shell.sees(r"succeeded in [^\n]*\n\$$")
    assert not LINE.search(ended)
    assert re.search(r"said\n50 % \|####\nlllaunch: succeeded in", ended), ended


def test_in_the_background_nothing_is_drawn_beside_the_shell(shell: Shell, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lllaunch", "launch.entrypoint=work.py", "hydra.run.dir=run"]
    shell.sees(r"\$$")
    shell.type("clear\n" + shlex.join([*command, "launch.samples=1s"]) + " &\n")
    shell.sees("begun")
    samples = tmp_path / "run" / "samples.jsonl"
    until(lambda: samples.is_file() and samples.read_text().count("\n") >= 2, "two seconds")
    shell.type("echo in bet''ween\n")
    seen = shell.sees("in between")
    assert "####" not in seen
    assert not LINE.search(seen)
    shell.type("fg\n")
    shell.sees(LINE.pattern, after="in between")
    (tmp_path / "go").touch()
    shell.sees(r"succeeded in [^\n]*\n\$$")


def test_a_log_says_now_and_then_how_far_a_run_is(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    node = {"entrypoint": "work.py", "samples": "1s", "console": {"interval": "1s"}}
    launcher = Launcher(tmp_path, node)
    heartbeat = re.compile(r"^lllaunch: \d+ s: step 3/12, ", re.M)
    until(lambda: heartbeat.search(launcher.err), "a heartbeat")
    (tmp_path / "go").touch()
    ended = launcher.finish()
    assert ended.code == 0
    assert "\x1b" not in ended.out + ended.err
    assert ended.err.splitlines()[-1].startswith("lllaunch: succeeded in")


TRAIN = """
import os, sys, time

import lllaunch

x = sys.argv[sys.argv.index("--x") + 1]
print(f"job of {x} is there", flush=True)
lllaunch.progress(3, 12)
while not os.path.exists("let-go"):
    time.sleep(0.02)
lllaunch.report(float(x) / 4)
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[SweepProject]:
    project = SweepProject(tmp_path)
    project.write("train.py", TRAIN)
    project.experiment("wait", "{entrypoint: train.py, args: {x: 1}, samples: null}")
    yield project
    end_all(settled("LLLAUNCH_TEST_PROJECT", project.name))


@pytest.fixture
def terminal(project: SweepProject) -> Iterator[Terminal]:
    made = Terminal(110, 30)
    with screen.shell(made, project.root, project.environment()):
        yield made
        (project.root / "let-go").touch()
    made.close()


def rows_with(rows: list[str], text: str) -> list[str]:
    return [row for row in rows if text in row]


def is_whole(rows: list[str]) -> bool:
    """Whether the table of three jobs, of which two run, stands on the screen once."""
    said = [" running ", "job ", " waiting"]
    return len(rows_with(rows, "0/3 done")) == 1 and all(rows_with(rows, text) for text in said)


def test_a_sweep_in_a_shell_that_is_resized_stopped_and_goes_on(
    project: SweepProject, terminal: Terminal
) -> None:
    names = ",".join(project.gpus[:2])
    sweep = [sys.executable, "-m", "lllaunch", "-m", "+exp=wait", "launch.args.x=1,2,3"]
    more = [f"'hydra.launcher.gpus=[{names}]'", "hydra.launcher.direction=maximize"]
    terminal.type(" ".join([*map(shlex.quote, sweep), *more, "hydra.sweep.dir=sweep"]) + "\n")

    def begun(rows: list[str]) -> bool:
        return is_whole(rows) and len(rows_with(rows, "3/12")) == 2

    rows = terminal.until(begun, "two running jobs and their progress")
    assert rows_with(rows, "0 of 2 GPUs idle")
    assert "lllaunch: sweep of 3 jobs in sweep" in "".join(rows)

    for columns, lines in ((60, 30), (44, 14), (140, 40)):
        terminal.resize(columns, lines)
        rows = terminal.until(is_whole, f"the table in {columns} columns")
        assert len(rows_with(rows, "job  overrides")) == 1

    terminal.type("\x1a")
    rows = terminal.until(lambda rows: bool(rows_with(rows, "Stopped")), "the shell's prompt")
    assert not rows_with(rows, "0/3 done")
    terminal.type("echo the shell ans''wers\n")
    rows = terminal.until(lambda rows: bool(rows_with(rows, "the shell answers")), "an answer")
    assert not rows_with(rows, "0/3 done")
    terminal.type("fg\n")
    rows = terminal.until(is_whole, "the table again")
    numbers = [at for at, row in enumerate(rows) if "the shell answers" in row or "0/3 done" in row]
    assert len(numbers) == 2
    assert "0/3 done" in rows[numbers[1]]

    (project.root / "let-go").touch()
    rows = terminal.until(lambda rows: bool(rows_with(rows, "3 of 3 jobs succeeded")), "the end")
    assert rows_with(rows, "lllaunch: objective: best 0.75 of job 2 (x=3)")
    assert not rows_with(rows, "/3 done")
