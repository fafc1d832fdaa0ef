"""The words of a command line: where flags stand, and what is said of what cannot be run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import assume, example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lllaunch.app.command_line import VERBS, WrongUsage, arranged, asks_for_quiet
from lllaunch.app.own_app import is_own_app

OWN_APP = "import lllaunch\n@lllaunch.main(config_path=None)\ndef train(cfg): ...\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/usr/bin/lllaunch"])
    for name, text in {
        "train.py": "",
        "own.py": OWN_APP,
        "conf/config.yaml": "",
        "conf/exp/toy.yaml": "",
        "conf/exp/big/net.yaml": "",
        "other/exp/toy.yaml": "",
        "outputs/1/plan.yaml": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_flag_may_stand_anywhere_between_overrides() -> None:
    line = "+exp=toy --config-dir=other lr=1,2 -cn mine ~a -m hydra.sweep.dir=s"
    given = get_args_parser().parse_args(arranged(line.split()))
    assert given.multirun
    assert (given.config_dir, given.config_name) == ("other", "mine")
    assert given.overrides == ["+exp=toy", "lr=1,2", "~a", "hydra.sweep.dir=s"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--info +exp=toy", "--info=all +exp=toy"),
        ("+exp=toy --info config", "--info=config +exp=toy"),
        ("+exp=toy -- ~a", "+exp=toy ~a"),
    ],
)
def test_flags_come_first_with_their_values(line: str, expected: str) -> None:
    assert arranged(line.split()) == expected.split()


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (
            "train.py launch.nproc=2 a",
            "lllaunch launch.entrypoint=train.py launch.nproc=2 'launch.args=[a]'",
        ),
        ("-m train.py lr=1,2", "lllaunch -m launch.entrypoint=train.py 'launch.args=[\"lr=1,2\"]'"),
        (
            "--standalone --nproc_per_node=gpu --nnodes=1 -t 3 -r 0:3 train.py -r 1",
            (
                "lllaunch launch.entrypoint=train.py launch.nproc=gpu launch.tee=3 "
                "'launch.redirects=\"0:3\"' 'launch.args=[-r,1]'"
            ),
        ),
        (
            "--nproc-per-node 2 -m pkg.train --lr 1",
            "lllaunch 'launch.entrypoint=\"-m pkg.train\"' launch.nproc=2 'launch.args=[--lr,1]'",
        ),
        (
            (
                "--nnodes 1:4 --node-rank=0 --rdzv-backend c10d --rdzv-endpoint h:29400 "
                "--rdzv-id 7 --rdzv-conf=a=1,b=2 train.py"
            ),
            (
                "lllaunch launch.entrypoint=train.py 'launch.nnodes=\"1:4\"' launch.node_rank=0 "
                "launch.rdzv.backend=c10d launch.rdzv.endpoint=h:29400 launch.rdzv.id=7 "
                "'launch.rdzv.conf=\"a=1,b=2\"'"
            ),
        ),
        (
            "--nnodes=2 --node_rank 1 --master-addr fe80::1 --master_port=7 +exp=toy",
            (
                "lllaunch launch.nnodes=2 launch.node_rank=1 "
                "'launch.rdzv.endpoint=\"[fe80::1]:7\"' +exp=toy"
            ),
        ),
        (
            "--nnodes=1:1 --node_rank=0 --master-addr=h --master-port=1 --rdzv-conf=a=1 train.py",
            "lllaunch launch.entrypoint=train.py",
        ),
        ("run +exp=toy -m lr=1,2", "lllaunch -m +exp=toy lr=1,2"),
        ("conf/exp/big/net.yaml", "lllaunch +exp/big=net"),
        ("conf/config.yaml", "lllaunch --config-name config"),
        ("--config-dir other other/exp/toy.yaml", "lllaunch --config-dir other +exp=toy"),
        ("outputs/1/plan.yaml", "lllaunch rerun outputs/1"),
        ("+exp=toy plan", "lllaunch plan +exp=toy"),
        ("--nproc-per-node 2 own.py lr=2", "python own.py launch.nproc=2 lr=2"),
    ],
)
def test_the_command_that_was_meant_is_given(line: str, command: str) -> None:
    with pytest.raises(WrongUsage) as wrong:
        arranged(line.split())
    assert str(wrong.value).endswith(f": {command}")
    if command.startswith("lllaunch ") and command.split()[1] not in {"plan", "rerun"}:
        words = shlex.split(command)[1:]
        assert arranged(words) == words
        get_args_parser().parse_args(words)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("foo", f"unknown command 'foo' (choose from {', '.join(VERBS)})"),
        ("shwo", f"unknown command 'shwo' (choose from {', '.join(VERBS)}); did you mean 'show'?"),
        ("trian.py", "trian.py: no such file; did you mean 'train.py'?"),
        ("conf/exp/toi.yaml", "conf/exp/toi.yaml: no such file; did you mean 'conf/exp/toy.yaml'?"),
        ("+exp=toy lr", "'lr': expected an override (KEY=VALUE), got no '='"),
        ("+exp=toy --multirn", "unknown option '--multirn'; did you mean '--multirun'?"),
    ],
)
def test_what_cannot_be_meant_is_named(line: str, message: str) -> None:
    with pytest.raises(WrongUsage) as wrong:
        arranged(line.split())
    assert str(wrong.value) == message


@pytest.mark.parametrize("word", ["run", "resume", "version"])
def test_commands_of_others_name_what_does_the_same(word: str) -> None:
    with pytest.raises(WrongUsage, match=rf"unknown command '{word}' \(.*\); .*lllaunch"):
        arranged([word])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("plan lr=2", "'plan' is a command of lllaunch, and own.py is an app of its own"),
        ("show", "to look at its runs: lllaunch show"),
        ("lr", "'lr': expected an override"),
        ("--nproc-per-node 2", "is an option of torchrun; here: launch.nproc=..."),
    ],
)
def test_an_app_of_the_users_own_has_no_commands(
    line: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["own.py"])
    with pytest.raises(WrongUsage) as wrong:
        arranged(line.split(), own_app=True)
    assert message in str(wrong.value)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12))
@example("true")
@example("a,b]")
@example("${x}")
def test_arguments_of_a_script_come_out_of_hydras_grammar_as_they_were(word: str) -> None:
    assume(word not in {"-t", "-r"})  # torchrun's
    with pytest.raises(WrongUsage) as wrong:
        arranged(["train.py", "--option", word])
    given = shlex.split(str(wrong.value).partition("to run it: ")[2])[-1]
    assert given.startswith("launch.args=")
    value = OverridesParser.create().parse_override(given).value()
    args = OmegaConf.to_container(OmegaConf.create({"args": value}), resolve=True)
    assert [str(each) for each in args["args"]] == ["--option", word]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OWN_APP, True),
        ("from lllaunch import main as app\n@app(config_path=None)\ndef f(cfg): ...\n", True),
        ("from hydra import main  # not lllaunch.main\n@main()\ndef f(cfg): ...\n", False),
        ("lllaunch.main(", False),
    ],
)
def test_an_own_app_is_told_by_its_decorator(tmp_path: Path, text: str, expected: bool) -> None:
    path = tmp_path / "script.py"
    path.write_text(text)
    assert is_own_app(str(path)) is expected
    assert not is_own_app(str(tmp_path))


@pytest.mark.parametrize("line", ["-q +exp=toy", "+exp=toy --quiet", "-m +exp=toy --qu lr=1,2"])
def test_the_flag_of_our_own_is_not_hydras(line: str) -> None:
    words = shlex.split(line)
    assert asks_for_quiet(words)
    others = [word for word in words if not word.startswith(("-q", "--q"))]
    assert arranged(words) == arranged(others) == arranged(words, own_app=True)
    assert not asks_for_quiet(others)


def test_a_value_is_no_flag() -> None:
    assert not asks_for_quiet(["--config-name", "-q", "a=1"])
    assert not asks_for_quiet(["--", "-q"])
    with pytest.raises(WrongUsage, match="--quiet takes no value"):
        arranged(["--quiet=no"])
