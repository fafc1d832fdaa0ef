"""A sweep in the foreground of a shell, and what a terminal's screen shows of it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.launching import until
from support.sweeping import SweepProject, end_all, settled

pexpect = pytest.importorskip("pexpect", reason="it is the person at the terminal")
pyte = pytest.importorskip("pyte", reason="it shows what a terminal gets")

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


class Shell:
    """A shell in a terminal, and the terminal's screen."""

    def __init__(self, project: SweepProject, columns: int, lines: int) -> None:
        self.project = project
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.Stream(self.screen)
        environ = project.environment() | {"TERM": "xterm", "PS1": "prompt> ", "HISTFILE": ""}
        environ.pop("NO_COLOR", None)
        self.terminal = pexpect.spawn(
            "/bin/bash",
            ["--norc", "--noprofile", "-i"],
            cwd=str(project.root),
            env=os.environ | environ,
            encoding="utf-8",
            dimensions=(lines, columns),
            echo=True,
        )

    def shown(self) -> list[str]:
        """The rows of the screen by now, without blanks at their ends."""
        try:
            while True:
                self.stream.feed(self.terminal.read_nonblocking(1 << 16, timeout=0.05))
        except (pexpect.TIMEOUT, pexpect.EOF):
            pass
        return [row.rstrip() for row in self.screen.display]

    def shows(self, what: str, is_there: Callable[[list[str]], bool]) -> list[str]:
        """Waits for something on the screen."""
        found: list[str] = []

        def looks() -> bool:
            found[:] = self.shown()
            return is_there(found)

        until(looks, what)
        return found

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        self.terminal.setwinsize(lines, columns)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[SweepProject]:
    project = SweepProject(tmp_path)
    project.write("train.py", TRAIN)
    project.experiment("wait", "{entrypoint: train.py, args: {x: 1}, samples: null}")
    yield project
    end_all(settled("LLLAUNCH_TEST_PROJECT", project.name))


@pytest.fixture
def shell(project: SweepProject) -> Iterator[Shell]:
    shell = Shell(project, 110, 30)
    yield shell
    shell.terminal.close(force=True)


def rows_with(rows: list[str], text: str) -> list[str]:
    return [row for row in rows if text in row]


def is_whole(rows: list[str]) -> bool:
    """Whether the table of three jobs, of which two run, stands on the screen once."""
    said = [" running ", "job ", " waiting"]
    return len(rows_with(rows, "0/3 done")) == 1 and all(rows_with(rows, text) for text in said)


def test_a_sweep_in_a_shell_that_is_resized_stopped_and_goes_on(
    project: SweepProject, shell: Shell
) -> None:
    names = ",".join(project.gpus[:2])
    sweep = [sys.executable, "-m", "lllaunch", "-m", "+exp=wait", "launch.args.x=1,2,3"]
    more = [f"'hydra.launcher.gpus=[{names}]'", "hydra.launcher.direction=maximize"]
    shell.terminal.sendline(" ".join([*map(shlex.quote, sweep), *more, "hydra.sweep.dir=sweep"]))

    def begun(rows: list[str]) -> bool:
        return is_whole(rows) and len(rows_with(rows, "3/12")) == 2

    rows = shell.shows("two running jobs and their progress", begun)
    assert rows_with(rows, "0 of 2 GPUs idle")
    assert "lllaunch: sweep of 3 jobs in sweep" in "".join(rows)

    for columns, lines in ((60, 30), (44, 14), (140, 40)):
        shell.resize(columns, lines)
        rows = shell.shows(f"the table in {columns} columns", is_whole)
        assert len(rows_with(rows, "job  overrides")) == 1

    shell.terminal.sendcontrol("z")
    rows = shell.shows("the shell's prompt", lambda rows: bool(rows_with(rows, "Stopped")))
    assert not rows_with(rows, "0/3 done")
    shell.terminal.sendline("echo the shell ans''wers")
    rows = shell.shows("an answer", lambda rows: bool(rows_with(rows, "the shell answers")))
    assert not rows_with(rows, "0/3 done")
    shell.terminal.sendline("fg")
    rows = shell.shows("the table again", is_whole)
    numbers = [at for at, row in enumerate(rows) if "the shell answers" in row or "0/3 done" in row]
    assert len(numbers) == 2
    assert "0/3 done" in rows[numbers[1]]

    (project.root / "let-go").touch()
    rows = shell.shows("the end", lambda rows: bool(rows_with(rows, "3 of 3 jobs succeeded")))
    assert rows_with(rows, "lllaunch: objective: best 0.75 of job 2 (x=3)")
    assert not rows_with(rows, "/3 done")
