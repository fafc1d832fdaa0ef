"""From torchrun's command line to a config: `plan ... SCRIPT` prints it, `init` writes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.verbs import Ended, call

from lllaunch.verbs import plan

# what a YAML, Hydra or OmegaConf might take for something else, and what is hard to see
ARGUMENTS = [
    *("--lr", "0.1", "-m", "--help", "a=b", "launch.nproc=3", "null", "1e3", "yes", "", " x "),
    *("${x}", "\\${x}", "$HOME", "'\"", "a: b", "# c", "- d", "{e}", "é\u2028", "a\nb\tc", "~"),
    *("../f", os.fsdecode(b"\xff")),
]


@pytest.fixture
def verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lllaunch"])
    Path("train.py").touch()
    return lambda main, *argv: call(main, argv, capsys)


@pytest.mark.parametrize(
    "command",
    [
        ["--nproc-per-node", "2", "--tee=3", "-r", "1", "--max_restarts=1", "train.py", *ARGUMENTS],
        ["launch.env.A=1", "torchrun", "--nnodes=2", "--master-addr=h", "train.py"],
        ["--no-python", "sh", "-c", "true"],
    ],
)
def test_the_yaml_comes_to_the_plan_of_the_command(
    verb: Callable[..., Ended], command: list[str]
) -> None:
    def hash_of(*words: str) -> object:
        ended = verb(plan.plan, "--json", *words)
        assert ended.code == 0, ended.err
        return json.loads(ended.out)["fingerprint"]["plan_hash"]

    printed = verb(plan.plan, *command)
    assert printed.code == 0, printed.err
    made = verb(plan.init, "--name", "mine", *command)
    assert made.code == 0, made.err
    text = Path("conf/exp/mine.yaml").read_text()
    assert printed.out == text
    assert text.startswith("# @package _global_\n")
    rank = ["launch.node_rank=0"] if "launch.node_rank=N" in text else []
    assert hash_of(*command) == hash_of("+exp=mine", *rank)
    assert bool(rank) == ("--nnodes=2" in command)


def test_init_says_what_comes_next_and_replaces_nothing(verb: Callable[..., Ended]) -> None:
    made = verb(plan.init, "train.py", "--lr", "1")
    assert [line.split(" #")[0].rstrip() for line in made.out.splitlines()] == [
        "wrote conf/exp/train.yaml; next:",
        "  lllaunch plan +exp=train",
        "  lllaunch +exp=train",
        "  lllaunch plan --lock +exp=train",
    ]
    first = Path("conf/exp/train.yaml").read_text()
    refused = verb(plan.init, "train.py", "--lr", "2")
    assert (refused.code, Path("conf/exp/train.yaml").read_text()) == (2, first)
    assert verb(plan.init, "--force", "train.py", "--lr", "2").code == 0
    assert Path("conf/exp/train.yaml").read_text() != first
    for wrong in ([], ["+exp=train"], ["--name", "../x", "train.py"], ["trian.py"]):
        assert verb(plan.init, *wrong).code == 2
    assert os.listdir("conf/exp") == ["train.yaml"]
