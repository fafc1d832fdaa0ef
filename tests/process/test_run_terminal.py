"""A run on a terminal, with the shell that has started it; and the same where there is none."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launching import Launcher, until

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
