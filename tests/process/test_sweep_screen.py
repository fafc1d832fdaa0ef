"""A sweep in the foreground of a shell, and what a terminal's screen shows of it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sweeping import SweepProject, end_all, settled

pytest.importorskip("pyte", reason="it shows what a terminal gets")
from support.screen import Terminal, shell

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
    with shell(made, project.root, project.environment()):
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
