"""The words of a command line: its three forms, and the messages for what cannot be run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lllaunch.app.boundary import message_of
from lllaunch.app.command_line import VERBS, CommandLine, WrongUsage, read


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["/usr/bin/lllaunch"])
    for name, text in {
        "train.py": "",
        "x.py": "",
        "a=b.py": "",
        "script": "",
        "bin/prog": "",
        "conf/config.yaml": "",
        "conf/exp/toy.yaml": "",
        "conf/exp/big/net.yaml": "",
        "other/exp/toy.yaml": "",
        "outputs/1/plan.yaml": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def taken(line: str, **environ: str) -> CommandLine:
    return read(shlex.split(line), environ=environ)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # Hydra's
        ("--info +exp=toy", "--info=all +exp=toy"),
        ("+exp=toy --info config", "--info=config +exp=toy"),
        ("+exp=toy -- ~a", "+exp=toy ~a"),
        ("+exp=toy lr=1,2 --multi -r", "--multirun -r +exp=toy lr=1,2"),
        ("--nproc 2 --node_rank=1 +exp=toy", "launch.nproc=2 launch.node_rank=1 +exp=toy"),
        # a script, and what belongs to it
        ("train.py", "launch.entrypoint=train.py"),
        ("./a=b.py c=d", "'launch.entrypoint=\"./a=b.py\"' 'launch.args=[\"c=d\"]'"),
        (
            "-q --nproc-per-node 2 launch.tee=all train.py -m launch.nproc=3 --help -q",
            ("launch.entrypoint=train.py launch.nproc=2 launch.tee=all "
            "'launch.args=[-m,\"launch.nproc=3\",--help,-q]'"),
        ),
        ("bin/prog -x", "launch.entrypoint=bin/prog 'launch.args=[-x]'"),
        ("pkg.train:main", "launch.entrypoint=pkg.train:main"),
        ("-m pkg.train -m x", "'launch.entrypoint=\"-m pkg.train\"' 'launch.args=[-m,x]'"),
        ("--no-python script a", "launch.entrypoint=script 'launch.args=[a]'"),
        ("--no_python --run-path train.py", "launch.entrypoint=train.py"),
        ("torchrun --nproc-per-node=2 train.py", "launch.entrypoint=train.py launch.nproc=2"),
        ("-q torchrun -- train.py", "launch.entrypoint=train.py"),
        # a sweep of it
        ("-m launch.nproc=1,2 train.py", "-m launch.entrypoint=train.py launch.nproc=1,2"),
        # one node needs none of these
        (
            ("--standalone --nnodes=1:1 --node_rank=0 --master-addr=h --master-port=1 "
            "--rdzv-conf=a=1 --rdzv-id=7 --monitor-interval 1 --event-log-handler null "
            "--local-addr h train.py"),
            "launch.entrypoint=train.py",
        ),
        (
            "-r 0:3,1:1 train.py",
            "launch.entrypoint=train.py 'launch.redirects=\"0:3,1:1\"' launch.tee=0",
        ),
        ("-t3 train.py", "launch.entrypoint=train.py launch.redirects=0 launch.tee=3"),
        (
            ("--duplicate-stdout-filters 'a,b,,c' --signals-to-handle SIGTERM,SIGUSR1 "
            "--log-line-prefix-template '[${rank}]' --virtual-local-rank train.py"),
            ("launch.entrypoint=train.py 'launch.duplicate_stdout_filters=[a,\"b,c\"]' "
            "'launch.log_line_prefix=\"[\\${rank}]\"' 'launch.signals=\"SIGTERM,SIGUSR1\"' "
            "launch.virtual_local_rank=true"),
        ),
        # several
        (
            "--nnodes=2 --node_rank 1 --master-addr fe80::1 --master_port=7 train.py",
            ("launch.entrypoint=train.py launch.nnodes=2 launch.node_rank=1 "
            "launch.rdzv.backend=static 'launch.rdzv.endpoint=\"[fe80::1]:7\"'"),
        ),
        (
            "--nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint h --rdzv-id 7 --rdzv-conf a=1 x.py",
            ("launch.entrypoint=x.py 'launch.nnodes=\"1:4\"' launch.rdzv.backend=c10d "
            "launch.rdzv.endpoint=h launch.rdzv.id=7 'launch.rdzv.conf=\"a=1\"'"),
        ),
    ],
)  # fmt: skip
def test_a_command_line_becomes_hydras(line: str, expected: str) -> None:
    words = taken(line).words
    assert words == shlex.split(expected)
    get_args_parser().parse_args(words)


def test_what_torchrun_reads_from_the_environment_counts_for_scripts_alone() -> None:
    environ = {
        "PET_NPROC_PER_NODE": "2",
        "PET_ROLE": "a",
        "PET_STANDALONE": "0",
        "PET_VIRTUAL_LOCAL_RANK": "1",
        "PET_LOGS_SPECS": "torchrun does not look there",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7",
    }
    assert taken("--role=b train.py", **environ).words == [
        "launch.entrypoint=train.py",
        "launch.nproc=2",
        "launch.role=b",
        "launch.grace_period=7",
        "launch.virtual_local_rank=true",
    ]
    assert taken("+exp=toy", **environ).words == ["+exp=toy"]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("conf/exp/big/net.yaml", "lllaunch +exp=big/net"),
        ("+exp=toy plan", "lllaunch plan ..."),
        ("-q toy lr=1", "lllaunch -q +exp=toy lr=1"),
    ],
)
def test_the_command_that_was_meant_is_given(line: str, command: str) -> None:
    with pytest.raises(WrongUsage) as wrong:
        taken(line)
    assert str(wrong.value).endswith(f": {command}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("foo", f"unknown command 'foo' (choose from {', '.join(VERBS)})"),
        ("shwo", f"unknown command 'shwo' (choose from {', '.join(VERBS)}); did you mean 'show'?"),
        (
            "+exp=toy lr",
            "'lr': expected a script (a path ending in .py) or an override (KEY=VALUE)",
        ),
        ("+exp=toy --multirn", "unknown option '--multirn'; did you mean '--multirun'?"),
        (
            "--nproc_per_nod3 2 train.py",
            "unknown option '--nproc_per_nod3'; did you mean '--nproc-per-node'?",
        ),
        ("--rdzv-e", "--rdzv-e: expected a value"),
        (
            "--rdzv_ x",
            "--rdzv_ could be --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf",
        ),
        ("--standalone=1 train.py", "'--standalone=1': --standalone takes no value"),
        ("--standalone --nnodes 2 train.py", "--standalone is for one node, and --nnodes is 2"),
        (
            "--no-python train.py",
            "--no-python runs a program, and train.py is a Python script: leave it out",
        ),
        ("--no-python -m train", "--no-python and --module exclude each other"),
        (
            "--logs-specs x train.py",
            "--logs-specs: not supported; write launch.redirects, launch.tee, launch.log_dir",
        ),
        (
            "--nnodes 2 --local-addr h train.py",
            "--local-addr: write launch.rdzv.interface=NAME instead; one node does not need it",
        ),
    ],
)
def test_what_cannot_be_meant_is_named(line: str, message: str) -> None:
    with pytest.raises(WrongUsage) as wrong:
        taken(line)
    assert str(wrong.value) == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("show", "; did you mean 'lllaunch show'?"),
        ("lr", "'lr': expected an override"),
    ],
)
def test_an_app_of_the_users_own_has_no_commands(
    line: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["own.py"])
    with pytest.raises(WrongUsage) as wrong:
        read(line.split(), own_app=True)
    assert message in str(wrong.value)
    assert read(["--nproc_per_node=2", "lr=1"], own_app=True).words == ["launch.nproc=2", "lr=1"]


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12))
@example("true")
@example("a,b]")
@example("${x}")
@example("\\\\${x}")
@example("")
def test_arguments_of_a_script_come_out_of_hydras_grammar_as_they_were(word: str) -> None:
    given = read(["train.py", "--option", word]).words[-1]
    assert given.startswith("launch.args=")
    value = OverridesParser.create().parse_override(given).value()
    args = OmegaConf.to_container(OmegaConf.create({"args": value}), resolve=True)
    assert [str(each) for each in args["args"]] == ["--option", word]


@pytest.mark.parametrize("line", ["-q +exp=toy", "+exp=toy --quiet", "-m +exp=toy --qu lr=1,2"])
def test_the_flag_of_our_own_is_not_hydras(line: str) -> None:
    others = " ".join(word for word in line.split() if not word.startswith(("-q", "--q")))
    assert taken(line).words == taken(others).words
    assert taken(line).asks("-q", "--quiet")
    assert not taken(others).asks("-q", "--quiet")
    assert not taken("--config-name -q a=1").overrides[1:]


def test_a_value_that_hydra_cannot_read_is_quoted_in_the_hint() -> None:
    with pytest.raises(OverrideParseException) as wrong:
        OverridesParser.create().parse_overrides(["cluster.nodelist=node[2,3]"])
    hint = "hint: 'cluster.nodelist=\"node[2,3]\"' takes the value as text"
    assert message_of(wrong.value).endswith(hint)
