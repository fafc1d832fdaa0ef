"""`python -m lllaunch plan`: what it prints, to the byte, and that it does nothing else.

RENEW_GOLDEN=1 in the environment writes the files below golden/ anew, for review.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest
import yaml
from support.launching import Project
from support.verbs import Called, call, listing

from lllaunch.linux.gpus import PRETEND
from lllaunch.verbs import plan as verb

GOLDEN = Path(__file__).with_name("golden")
SECRET = "planted-cafe1234"
# Whatever is imported or run leaves a file behind, and fails.
TRAP = "open(__file__ + '.imported', 'w').close()\nraise RuntimeError('imported')\n"
SOURCES = {
    "train.py": TRAP,
    "pkg/__init__.py": TRAP,
    "pkg/fun.py": TRAP + "def takes(rate, nested, rank, lines): pass\n",
    "pkg/heavy.py": TRAP,
    "pkg/tool.py": TRAP,
    "sitecustomize.py": TRAP,
}


def fill(root: Path) -> Project:
    project = Project(root)
    shutil.copytree(GOLDEN / "project", root, dirs_exist_ok=True)
    for name, text in SOURCES.items():
        project.write(name, text)
    (root / "work").mkdir()
    return project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("TOKEN_OF_MINE", SECRET)
    for name in ("NAME_OF_MINE", "LLLAUNCH_LOCKED", "LLLAUNCH_POLICY"):
        monkeypatch.delenv(name, raising=False)
    found = fill(tmp_path / "a project")
    monkeypatch.chdir(found.root)
    return found


@pytest.fixture
def plan(project: Project, capsys: pytest.CaptureFixture[str]) -> Called:
    return lambda *argv: call(verb.plan, argv, capsys)


CASES = {
    "script_overridden": [
        *("+exp=script", "model@params.model=large", "params.model.depth=9", "base.lr=0.5"),
        *("launch.nproc=4", "launch.watchdog.stall=null", "++launch.env.EXTRA='a b'"),
        *("launch.tee=none", "hydra.run.dir=there/now"),
    ],
    "function": ["+exp=function"],
    "sweep": [
        *("-m", "+exp=vision/program", "optim=sgd,adam", "ranks=1,3"),
        *("+hydra.launcher.grace_period=5s", "+hydra.launcher.max_restarts=1"),
        "hydra.sweep.subdir=${hydra.job.override_dirname}",
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_a_plan_reads_like_this(
    name: str, plan: Called, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = listing(project.root)
    argv = ["--portable", *CASES[name]]
    text, as_json = plan(*argv), plan("--json", *argv)
    for ended in (text, as_json):
        assert (ended.code, ended.err) == (0, "")
        assert SECRET not in ended.out
        assert str(tmp_path) not in ended.out
    for suffix, out in ((".yaml", text.out), (".json", as_json.out)):
        golden = GOLDEN / f"{name}{suffix}"
        if os.environ.get("RENEW_GOLDEN"):
            golden.write_text(out)
        assert out == golden.read_text()
    # the same elsewhere, on a machine that is another one in all that it could tell
    elsewhere = fill(tmp_path / "else" / "where")
    monkeypatch.chdir(elsewhere.root)
    for variable, value in (
        *(("HOME", "/nowhere"), ("USER", "somebody"), ("CUDA_VISIBLE_DEVICES", "0,3,5")),
        *(("TZ", "Asia/Tokyo"), ("LANG", "C"), ("COLUMNS", "20")),
        *(("PYTHONHASHSEED", "7"), ("TERM", "xterm-256color"), ("LLLAUNCH_LOCKED", "1")),
    ):
        monkeypatch.setenv(variable, value)
    # whoever reviews has no secrets
    monkeypatch.delenv("TOKEN_OF_MINE")
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert plan(*argv) == text
    assert plan("--json", *argv) == as_json
    # and nothing has happened
    assert listing(project.root) == before
    assert not {"pkg", "pkg.fun", "pkg.tool", "train"} & {*sys.modules}


def test_the_plan_that_is_printed_is_one_of_yaml_and_composes_again(
    plan: Called, project: Project
) -> None:
    printed = yaml.safe_load((GOLDEN / "script_overridden.yaml").read_text())
    told = json.loads((GOLDEN / "script_overridden.json").read_text())
    assert told["fingerprint"]["plan_hash"] == printed["plan_hash"]
    launch = yaml.safe_dump({"launch": printed["launch"]}, sort_keys=False)
    project.write("conf/exp/again.yaml", f"# @package _global_\n{launch}")
    again = json.loads(plan("--portable", "--json", "+exp=again").out)
    assert again["launch"] == told["launch"]
    assert list(again["launch"]) == list(printed["launch"])
    assert again["fingerprint"] == told["fingerprint"]


def test_what_is_only_of_this_machine_is_marked(
    plan: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setenv(PRETEND, "GPU-a,GPU-b,GPU-c,GPU-d")
    argv = CASES["function"]
    portable = plan("--portable", *argv).out
    ended = plan(*argv)
    assert ended.out.startswith(portable)
    rest = ended.out.removeprefix(portable).splitlines()
    assert rest[0] == "# On this machine, and no part of the plan:"
    assert all(line.startswith("#   ") for line in rest[1:])
    assert any("lllaunch 0" in line for line in rest)
    for name in ("function", "sweep"):
        told = json.loads(plan("--json", *CASES[name]).out)
        assert [*told["here"]] == ["commit", "versions"]
        assert told["fingerprint"]["build"]["python"]
        del told["here"], told["fingerprint"]["build"]
        assert told == json.loads((GOLDEN / f"{name}.json").read_text())


# ---------------------------------------------------------------- flags


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([], 2, "launch.entrypoint"),
        (["--nothing"], 2, "--nothing"),
        (["--lock", "--diff", "+exp=module"], 2, "--diff"),
        (["exp=module"], 1, "+exp=module"),
        (["+exp=module", "launch.entrypoint=pkg.fun:take"], 2, "did you mean"),
        (["+exp=module", "launch.args=???"], 2, "launch.args"),
        (["-m", "+exp=module", "launch.nproc=1,-1,0"], 2, "launch.nproc=-1:"),
    ],
)
def test_what_is_wrong_is_said(
    argv: list[str], code: int, message: str, plan: Called, project: Project
) -> None:
    before = listing(project.root)
    ended = plan(*argv)
    assert (ended.code, ended.out) == (code, "")
    assert message in ended.err
    assert all(line.startswith("lllaunch: ") for line in ended.err.splitlines())
    assert "Traceback" not in ended.err
    assert "lllaunch/" not in ended.err  # no file of ours
    assert listing(project.root) == before


def test_json_is_json_whatever_the_arguments_are(plan: Called) -> None:
    given = "launch.args=[[inf,-inf,1e400],nan,{1: a, b: 2},0.1]"
    ended = plan("--json", "--portable", "launch.entrypoint=pkg.fun:takes", given)
    assert (ended.code, ended.err) == (0, "")
    told = json.loads(ended.out, parse_constant=pytest.fail)
    assert told["launch"]["args"] == [["inf", "-inf", "inf"], "nan", {"1": "a", "b": 2}, 0.1]


def test_a_range_of_nodes_without_quotes_is_told_from_a_number(
    project: Project, plan: Called
) -> None:
    project.experiment("timed", "\n  entrypoint: env", "x: {time: 1:30}  # no cluster's")
    assert plan("+exp=timed").code == 0
    project.experiment("slurm", "\n  entrypoint: env", "cluster:\n  backend: slurm\n  time: 1:30")
    assert "time: 1:30 is a number" in plan("+exp=slurm").err
    project.experiment("wide", "\n  entrypoint: env\n  nnodes: 1:4\n  rdzv: {endpoint: h}")
    project.experiment("many", "{entrypoint: env, nnodes: 64, rdzv: {endpoint: h}}")
    ended = plan("--json", "+exp=wide")
    assert ended.code == 2
    assert ended.err == (
        "lllaunch: conf/exp/wide.yaml:4: nnodes: 1:4 is a number of base 60 to YAML; quote it "
        "[base-60]\n"
    )
    for words, nodes in ((("+exp=many",), 64), (("+exp=many", "launch.nnodes=1:4"), "1:4")):
        assert json.loads(plan("--json", *words).out)["launch"]["nnodes"] == nodes


def test_what_is_not_allowed_is_shown_and_refused(plan: Called, project: Project) -> None:
    project.write("conf/lllaunch.yaml", "allow: {entrypoints: [pkg.*], preload: [pkg.heavy]}\n")
    assert plan("--portable", "+exp=function").code == 0
    ended = plan("--portable", "+exp=function", "launch.preload=[json]")
    assert ended.code == 5
    assert "entrypoint: pkg.fun:takes" in ended.out
    assert "allow.preload" in ended.err
    ended = plan("-m", "+exp=function,script")
    assert ended.code == 5
    assert "train.py" in ended.err


def test_a_setting_needs_no_plus(project: Project, plan: Called) -> None:
    project.experiment("plain", "{entrypoint: env}")
    texts = ("env.FOO=bar", "args.lr=1", "restart.on=oom", "resources.cpus_per_proc=2")
    found = plan("--json", "+exp=plain", *(f"launch.{text}" for text in texts))
    assert json.loads(found.out)["launch"]["env"] == {"FOO": "bar"}


def test_a_plan_can_be_shown_without_defaults(project: Project, plan: Called) -> None:
    project.experiment("plain", "{entrypoint: env, nproc: 2}")

    text = plan("--changed", "--portable", "+exp=plain").out

    assert text.splitlines()[:4] == [
        "launch:",
        f"{'  entrypoint: env':40}  # conf/exp/plain.yaml:2",
        f"{'  nproc: 2':40}  # conf/exp/plain.yaml:2",
        "resolved:",
    ]


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("nprocs", "did you mean 'nproc'? [unknown-key]\n"),
        ("nproc_per_node", "did you mean 'nproc'? [unknown-key]\n"),
        ("standalone", "leave it out"),
        ("master_port", "chooses a free port"),
    ],
)
def test_what_torchrun_has_and_a_run_has_not_is_explained(
    project: Project, plan: Called, key: str, hint: str
) -> None:
    project.experiment("plain", "{entrypoint: env}")
    ended = plan("+exp=plain", f"launch.{key}=2")
    assert ended.code == 2
    assert ended.err.startswith(f"lllaunch: launch.{key}: unknown setting; ")
    assert hint in ended.err
