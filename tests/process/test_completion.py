"""Completion in each shell, as it calls lllaunch; in bash for both ways to call that."""

from __future__ import annotations

import os
import shutil
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
    project.write("train.py", "")
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    expected = {
        "lllaunch +exp=": "<toy>",
        "python -m lllaunch +exp=t": "<toy>",
        "lllaunch -m plan +exp=": "<>",
        "lllaunch sh": "<show >",
        "python -m lllaunch rer": "<rerun >",
        "lllaunch plan --nproc_p": "<--nproc_per_node>",
        "lllaunch --nproc 2 tr": "<train.py >",
        "lllaunch train.py +exp=": "<>",
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


# What is left of them: how the function learns the line, and what it offers.
OTHERS = {
    "zsh": """
        compdef() { :; }
        eval "$(lllaunch -sc install=zsh)"
        compadd() { while [[ "$1" != -- ]] shift; shift; (( $# )) && print -rn -- "$@"; }
        _files() { print -n files; }
        while IFS= read -r line; do
            words=("${(@s: :)line}") CURRENT=${#words}
            _lllaunch_complete; print
        done
    """,
    "fish": """
        lllaunch -sc install=fish | source
        while read -l line
            complete -C "$line" | string split -f 1 \\t | string join ' '
        end
    """,
}


@pytest.mark.parametrize("shell", [*OTHERS])
def test_other_shells_complete_the_same(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    project = Project(tmp_path)
    project.experiment("toy", "{entrypoint: train.py}")
    project.write("train.py", "")
    expected = {
        "lllaunch sho": "show",
        "lllaunch plan +exp=to": "+exp=toy",
        "lllaunch --nproc": "--nproc-per-node",
        "lllaunch tra": "train.py",
    }
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        [shell, "-c", OTHERS[shell]],
        cwd=project.root,
        env=environment() | {"PATH": path, "HOME": str(tmp_path)},
        input="".join(f"{line}\n" for line in expected),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.split("\n")[:-1] == [*expected.values()], ended.stderr
