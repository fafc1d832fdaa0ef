"""Completion in each shell, with Hydra's scripts: what they ask lllaunch, and what it offers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.launching import Project, environment

# What readline gives to the function
HARNESS = """
eval "$(lllaunch -sc install=bash)"
try() {
    COMP_LINE="$1" COMP_POINT=${#1}
    local words=($1)
    [[ "$1" == *" " ]] && words+=("")
    COMP_CWORD=$((${#words[@]} - 1))
    hydra_bash_completion
    printf '<%s>' "${COMPREPLY[@]}"
    echo
}
"""


@pytest.mark.timeout(600)
def test_overrides_and_commands_are_completed_and_nothing_is_written_into_the_prompt(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path)
    project.experiment("toy", "{entrypoint: train.py}")
    project.write("train.py", "")
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    expected = {
        "lllaunch +exp=": "<+exp=toy>",
        "lllaunch -m plan +exp=": "<>",
        "lllaunch sh": "<show>",
        "lllaunch train.py +exp=": "<>",
        "lllaunch plan +exp=to": "<+exp=toy>",
        "lllaunch +exp=toy launch.np": "<launch.nproc=>",
        "lllaunch foo bar +exp=": "<>",
    }
    tries = "".join(f"try {line!r}\n" for line in expected)
    ended = subprocess.run(
        ["bash", "-c", HARNESS + tries],
        cwd=project.root,
        env=environment() | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert dict(zip(expected, ended.stdout.splitlines(), strict=True)) == expected
    assert not ended.stderr
