"""Completion in bash, for both ways to call lllaunch, as bash calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.project import Project, environment

# What readline gives to the function: words are split at = as well
HARNESS = """
complete -o nospace -F _former python
_former() { COMPREPLY=(former); }
eval "$(lllaunch -sc install=bash)"
try() {
    COMP_LINE="$1" COMP_POINT=${#1}
    local words="${1//=/ = }"
    read -ra COMP_WORDS <<<"$words"
    [[ "$1" == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _lllaunch_complete "${COMP_WORDS[0]}"
    printf '<%s>' "${COMPREPLY[@]}"
    echo
}
"""
UNINSTALL = """
eval "$(lllaunch -sc uninstall=bash)"
complete -p python
complete -p lllaunch
"""


@pytest.mark.timeout(600)
def test_overrides_and_commands_are_completed_and_nothing_is_written_into_the_prompt(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path)
    project.experiment("toy", "{entrypoint: train.py}")
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    expected = {
        "lllaunch +exp=": "<toy>",
        "python -m lllaunch +exp=t": "<toy>",
        "lllaunch -m plan +exp=": "<>",
        "lllaunch sh": "<show >",
        "python -m lllaunch rer": "<rerun >",
        "lllaunch show la": "<latest>",
        "lllaunch plan +exp=to": "<toy>",
        "lllaunch +exp=toy launch.np": "<launch.nproc=>",
        "lllaunch launch.watchdog.stall_": "<launch.watchdog.stall_scope=>",
        "lllaunch --config-d": "<--config-dir>",
        "lllaunch foo bar +exp=": "<>",
        "python train.py --l": "<former>",
    }
    tries = "".join(f"try {line!r}\n" for line in expected)
    ended = subprocess.run(
        ["bash", "-c", HARNESS + tries + UNINSTALL],
        cwd=project.root,
        env=environment() | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    *shown, restored = ended.stdout.splitlines()
    assert dict(zip(expected, shown, strict=True)) == expected
    assert restored == "complete -o nospace -F _former python"
    assert ended.stderr.endswith("complete: lllaunch: no completion specification\n")
    assert len(ended.stderr.splitlines()) == 1
