"""The first commands of somebody who knows torchrun and Hydra: each whole output, word by word.

first_commands.txt is a transcript: a command after ``$``, its standard output, its standard error
after ``!``, its exit code in brackets. Numbers that differ from run to run stand there as the
function `steady` writes them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from support.launching import WAIT, Project, environment

TRANSCRIPT = Path(__file__).with_name("first_commands.txt")
# between the commands that stand alone and those of which each sees what the ones before have left
_ORDERED = "# in this order\n"

_STEADY = (
    (r"\d{4}-\d\d-\d\d([ /])\d\d([:-])\d\d(\2\d\d(-\d+)?)?", r"DATE\1TIME"),
    (r"\b\d+(\.\d+)? (ms|s|min|h)( \d+ (s|min))?\b", "SECONDS"),
    (r"\bpid \d+( on \S+)?", "pid N"),
    (r"\b\d+(\.\d+)? [KMG]iB", "SIZE"),
    (r"\bon cores? [\d,-]+", "on cores N"),
    (r"\b\d+ cores?\b", "N cores"),
    (r"(?m)^(plan hash|commit|versions|host)( +).*", r"\1\2..."),
    (
        r"lllaunch \d\S* \(torch \S+, Hydra [\d.]+, Python [\d.]+\)",
        "lllaunch N (torch N, Hydra N, Python N)",
    ),
)
# lines of tables, whose columns are as wide as what is in them
_TABLE = re.compile(r"SECONDS|SIZE|\.\.\.|^(when|  job|run|sweep|state|attempts|overrides) ")


def steady(text: str, directory: Path) -> str:
    """A text without what differs from run to run."""
    text = text.replace(str(directory), "HERE")
    for pattern, replacement in _STEADY:
        text = re.sub(pattern, replacement, text)
    lines = text.splitlines(keepends=True)
    return "".join(
        re.sub(r"(?<=\S)  +", "  ", line) if _TABLE.search(line) else line for line in lines
    )


def workspace(root: Path) -> Project:
    project = Project(root)
    project.experiment(
        "toy", "{entrypoint: train.py, args: {lr: '${params.lr}'}}", "params: {lr: 0.1}"
    )
    project.experiment("watched", "{entrypoint: train.py, watchdog: default}")
    project.write("train.py", "import sys\nprint('argv', sys.argv[1:])\n")
    project.write("fail.py", "raise ValueError('no luck')\n")
    project.write("conf/config.yaml", "lr: 0.1\n")
    project.write(
        "own.py",
        """
        import lllaunch

        @lllaunch.main(config_path="conf", config_name="config")
        def train(cfg):
            return cfg.lr

        if __name__ == "__main__":
            train()
        """,
    )
    return project


def transcript(commands: Sequence[str], project: Project) -> str:
    """What the commands of a transcript do, in a transcript."""
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    environ = environment() | {"PATH": path, "XDG_STATE_HOME": str(project.root / "state")}
    blocks = []
    for command in commands:
        ended = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=project.root,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )
        out, err = (steady(text, project.root) for text in (ended.stdout, ended.stderr))
        shown = out + "".join(f"! {line}\n" for line in err.splitlines())
        shown = re.sub(r"(?m) +$", "", shown)
        blocks.append(f"$ {command}\n{shown}[{ended.returncode}]\n")
    return "\n".join(blocks)


def commands_of(text: str) -> list[str]:
    return re.findall(r"(?m)^\$ (.*)$", text)


def test_first_commands_do_what_was_meant_or_say_how(tmp_path: Path) -> None:
    alone, ordered = TRANSCRIPT.read_text().split(_ORDERED)
    found: dict[str, str] = {}

    def run(name: str, text: str) -> None:
        found[name] = transcript(commands_of(text), workspace(tmp_path / name))

    # side by side, since they have nothing to do with each other
    thread = threading.Thread(target=run, args=("ordered", ordered))
    thread.start()
    run("alone", alone)
    thread.join()
    assert found["alone"].splitlines() == alone.strip().splitlines()
    assert found["ordered"].splitlines() == ordered.strip().splitlines()
