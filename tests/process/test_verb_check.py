"""Trees of configs checked as a whole: with Hydra, from the files to what the user reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.launching import Project
from support.verbs import Ended, call, listing

from lllaunch.verbs import check, plan

Check = Callable[..., Ended]
GLOBAL = "# @package _global_\n"
TRAIN = f"{GLOBAL}launch: {{entrypoint: train.py}}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path / "project")
    # whoever imports or runs it leaves a trace
    made.write("train.py", "open('imported', 'w').close()\ndef main(**given): ...\n")
    made.write(".git/HEAD", "")
    monkeypatch.chdir(made.root)
    for name in ("GITHUB_STEP_SUMMARY", "LLLAUNCH_LOCKED", "LLLAUNCH_POLICY"):
        monkeypatch.delenv(name, raising=False)
    return made


@pytest.fixture
def checked(project: Project, capsys: pytest.CaptureFixture[str]) -> Check:
    """Checks the project; nothing in it is changed, nothing is told beside the report."""

    def run(*argv: str) -> Ended:
        before = listing(project.root)
        ended = call(check.check, argv, capsys)
        assert listing(project.root) == before
        assert ended.err == ""
        return ended

    return run


def lock(capsys: pytest.CaptureFixture[str], *words: str) -> None:
    ended = call(plan.plan, ["--lock", *words], capsys)
    assert ended.code == 0, ended.err


def places(ended: Ended) -> list[tuple[str, str]]:
    """The place and the code of each problem."""
    return re.findall(r"^(\S+): .*\[([\w-]+)\]", ended.out, re.MULTILINE)


def configs(project: Project, **texts: str) -> None:
    """Writes configs; two underscores in a name are a slash."""
    for name, text in texts.items():
        project.write(f"conf/{name.replace('__', '/')}.yaml", text)


RESNET = """# @package _global_
defaults:
  - /model: small
  - _self_
launch:
  entrypoint: train:main
  args:
    lr: ${params.lr}
    width: ${model.width}
  nproc: 2
  tee: al
  redirects: 1:3
  watchdgo: {stall: 10m}
  watchdog: {stall: 10}
  env: {AT: 10:30, TOKEN: "${oc.env:CHECKED_SECRET}"}
parms: {lr: 0.1}
"""


def test_all_problems_at_once_by_file_and_line(
    project: Project, checked: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKED_SECRET", "the-very-secret-value")
    configs(
        project,
        exp__resnet=RESNET,
        exp__good=TRAIN,
        exp__shadowed=f"{GLOBAL}defaults:\n  - _self_\n  - /quick: two\n"
        "launch:\n  entrypoint: train.py\n  nproc: 4\n",
        exp__asks=f"{GLOBAL}defaults:\n  - good\n  - /model: smal\n  - _self_\n",
        exp__broken=f"{GLOBAL}launch: {{entrypoint: train.py\n",
        exp__uses__it=f"{GLOBAL}defaults: [/exp/broken]\n",
        model__small="width: 3\nheight: 4\n",
        quick__two=f"{GLOBAL}launch:\n  nproc: 2\n",
        own="launch: {nproc: 2}\nlr: 0.1\n",
        plain="x: 1\n",
    )
    ended = checked()
    assert ended.code == 2
    assert "the-very-secret-value" not in ended.out
    *_, verdict = ended.out.splitlines()
    assert places(ended) == [
        ("conf/exp/asks.yaml:4", "compose"),
        ("conf/exp/broken.yaml:3", "yaml"),
        ("conf/exp/resnet.yaml:8", "interpolation"),
        ("conf/exp/resnet.yaml:11", "mask"),
        ("conf/exp/resnet.yaml:12", "base-60"),
        ("conf/exp/resnet.yaml:13", "unknown-key"),
        ("conf/exp/resnet.yaml:15", "base-60"),
        ("conf/exp/resnet.yaml:16", "unused-key"),
    ]
    for said in (
        "defaults: no config 'smal' in conf/model; did you mean 'small'?",
        "[yaml] (in broken, uses/it)",
        "Interpolation key 'params.lr' not found; did you mean 'parms.lr'?",
    ):
        assert said in ended.out
    assert verdict == "8 experiments, 6 problems, 2 warnings"
    assert not (project.root / "imported").exists()


def test_bases_presets_and_own_apps_need_not_be_whole(project: Project, checked: Check) -> None:
    configs(
        project,
        exp__base=f"{GLOBAL}launch:\n  nproc: ???\n  args: {{lr: '${{params.lr}}'}}\n",
        exp__whole=f"{GLOBAL}defaults: [base]\nlaunch: {{entrypoint: train.py, nproc: 2}}\n"
        "params: {lr: 1}\n",
        exp__choose=f"{GLOBAL}defaults:\n  - /size: ???\n",
        exp__chosen=f"{GLOBAL}defaults: [choose, override /size: two]\n"
        "launch: {entrypoint: train.py}\n",
        size__two=f"{GLOBAL}launch: {{nproc: 2, args: {{a: '${{params.a}}'}}}}\nparams: {{a: 1}}\n",
        app="launch: {nproc: 2, tee: none}\nlr: 1\nother: {x: 1}\n",
    )
    assert checked().out == "6 experiments, no problems\n"
    configs(project, exp__alone=f"{GLOBAL}launch:\n  nproc: ???\n", app="launch: {nproc: x}\n")
    ended = checked()
    assert [line.partition(": ")[0] for line in ended.out.splitlines()[:-1]] == [
        "conf/app.yaml:1",
        "conf/exp/alone.yaml:2",
    ]
    assert "launch.entrypoint: expected an entrypoint" in ended.out


def test_another_tree_than_conf(project: Project, checked: Check) -> None:
    project.write("apps/one/exp/a.yaml", TRAIN)
    project.write("apps/one/exp/b.yaml", f"{GLOBAL}launch: {{entrypoint: train.py, tee: al}}\n")
    # looked in, as a run with --config-dir does, but not checked
    configs(project, exp__c=f"{GLOBAL}launch: {{tee: al}}\n")
    ended = checked("apps/one")
    assert ended.out.startswith("apps/one/exp/b.yaml:2: launch.tee: expected a mask")
    assert ended.out.endswith("\n2 experiments, 1 problem\n")
    document = json.loads(checked("apps/one", "--format", "json").out)
    assert document["experiments"][0]["command"] == ["--config-dir", "apps/one", "+exp=a"]


def test_no_such_tree(project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ended = call(check.check, ["nowhere"], capsys)
    assert ended == Ended(2, "", "lllaunch: nowhere: is not a directory [file]\n")
    assert call(check.check, ["--frmat"], capsys).code == 2
    assert call(check.check, ["--help"], capsys).code == 0
    (tmp_path / "project" / "conf").mkdir()
    assert call(check.check, [], capsys) == Ended(0, "no experiments\n", "")


# ---- what was reviewed


def test_plans_that_differ_from_their_locks(
    project: Project, checked: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    configs(project, exp__a=TRAIN, exp__v__b=TRAIN, main="launch: {entrypoint: train.py}\n")
    for words in (
        *(["+exp=a"], ["+exp=v/b"], ["--config-name", "main"]),
        *(["--name", "four", "+exp=a", "launch.nproc=4"],),
        ["--name", "sweep", "-m", "+exp=a", "launch.nproc=1,2"],
    ):
        lock(capsys, *words)
    assert checked().out == "3 experiments, no problems\n"
    configs(project, exp__a=TRAIN.replace("train.py", "train.py, role: other"))
    ended = checked()
    assert ended.code == 5
    renew = "if this is what shall run, have it reviewed anew: python -m lllaunch plan --lock"
    named = f"{renew} --name"
    role = 'role: "default" -> "other"'
    assert ended.out == (
        "conf/locks/a.yaml:1: the plan of a is not the reviewed one [not-reviewed]:\n"
        f"      launch.{role}\n    {renew} +exp=a\n"
        "conf/locks/four.yaml:1: the plan is not the reviewed one [not-reviewed]:\n"
        f"      launch.{role}\n    {named} four +exp=a launch.nproc=4\n"
        "conf/locks/sweep.yaml:1: the plan is not the reviewed one [not-reviewed]:\n"
        f'      jobs["+exp=a launch.nproc=1"].launch.{role}\n'
        f'      jobs["+exp=a launch.nproc=2"].launch.{role}\n'
        f"    {named} sweep -m +exp=a launch.nproc=1,2\n"
        "3 experiments, 3 problems\n"
    )


def test_locks_that_are_none_any_more(
    project: Project, checked: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c", "d", "e"):
        configs(project, **{f"exp__{name}": TRAIN})
        lock(capsys, f"+exp={name}")
    locks = project.root / "conf" / "locks"
    (locks / "a.yaml").write_text((locks / "a.yaml").read_text().replace(": train.py", ": eval.py"))
    (locks / "b.yaml").write_text("lock: 1\nplan: [\n")
    (project.root / "conf" / "exp" / "c.yaml").unlink()
    configs(project, exp__d=f"{GLOBAL}launch: {{entrypoint: train.py, tee: al}}\n")
    (locks / "e.yaml").write_text((locks / "e.yaml").read_text().replace("- +exp=e", "- --wrong"))
    ended = checked()
    assert ended.code == 2
    assert places(ended) == [
        ("conf/exp/d.yaml:2", "mask"),
        ("conf/locks/a.yaml:7", "lock-edited"),
        ("conf/locks/b.yaml:3", "yaml"),
        ("conf/locks/c.yaml:1", "lock"),
        ("conf/locks/d.yaml:1", "lock"),
        ("conf/locks/e.yaml:1", "lock"),
    ]
    lines = ended.out.splitlines()
    assert "the file was edited by hand" in lines[1]
    assert "makes no plan any more: no experiment 'c' in conf/exp" in lines[3]
    assert "makes no plan any more: see conf/exp/d.yaml" in lines[4]
    assert "is no command that makes a plan" in lines[5]
    codes = [each["code"] for each in json.loads(checked("--format", "json").out)["problems"]]
    assert codes == [2, 5, 2, 2, 2, 2]


ALLOW = "allow:\n  entrypoints: [train.py]\n"


def test_what_is_locked_needs_a_lock_and_a_policy(
    project: Project,
    checked: Check,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs(
        project,
        exp__a=f"{GLOBAL}launch:\n  entrypoint: train.py\n  locked: true\n",
        exp__b=TRAIN,
    )
    ended = checked()
    assert ended.code == 5
    assert "conf/exp/a.yaml:4: conf/locks/a.yaml: does not exist: this plan" in ended.out
    assert "to write it: python -m lllaunch plan --lock +exp=a\n" in ended.out
    assert "conf/lllaunch.yaml: is not there, and a locked run needs it" in ended.out
    configs(project, lllaunch=ALLOW)
    lock(capsys, "+exp=a")
    assert checked().code == 0
    monkeypatch.setenv("LLLAUNCH_LOCKED", "1")
    ended = checked()
    assert (ended.code, len(ended.out.splitlines())) == (5, 3)
    assert "conf/locks/b.yaml: does not exist: this plan" in ended.out
    named = f"{GLOBAL}launch: {{entrypoint: train.py, locked: nightly}}\n"
    configs(project, exp__b=named, own="launch: {nproc: 2, locked: true}\n")
    ended = checked()
    assert "conf/exp/b.yaml:2: conf/locks/nightly.yaml: does not exist: this plan" in ended.out
    assert "conf/own.yaml:1: the function: is of an app of its own" in ended.out
    configs(project, exp__b=named.replace("nightly", "../b"))
    assert "conf/exp/b.yaml:2: the lock's name: expected at most 200" in checked().out


def test_the_allowlist_refuses_by_file_and_line(project: Project, checked: Check) -> None:
    configs(
        project,
        lllaunch=ALLOW,
        exp__a=TRAIN,
        exp__b=f"{GLOBAL}launch:\n  entrypoint: env\n  preload: [json]\n  env: {{LD_X: a}}\n"
        "x: {_target_: os.system}\n",
        own="launch: {nproc: 2, env: {LD_X: a}}\n",
    )
    ended = checked()
    assert ended.code == 5
    assert places(ended) == [
        ("conf/exp/b.yaml:3", "not-allowed"),
        ("conf/exp/b.yaml:4", "not-allowed"),
        ("conf/exp/b.yaml:5", "not-allowed"),
        ("conf/exp/b.yaml:6", "not-allowed"),
        ("conf/exp/b.yaml:6", "unused-key"),
        ("conf/own.yaml:1", "not-allowed"),
    ]
    assert ended.out.endswith("3 experiments, 5 problems, 1 warning\n")


# ---- hostile trees


# ---- forms


@pytest.mark.smoke
def test_as_the_user_calls_it(project: Project) -> None:
    configs(project, exp__a=f"{GLOBAL}launch: {{entrypoint: train.py, nproc: gpu, tee: al}}\n")
    ended = project.lllaunch("check", "--format", "text", env={"LC_ALL": "C"})
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr == ""
    assert ended.stdout.endswith("did you mean 'all'? [mask]\n1 experiment, 1 problem\n")


def test_this_repository(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    ended = call(check.check, ["--strict"], capsys)
    assert ended.code == 0, ended.out
    ended = call(check.check, ["examples/own_app/conf", "--strict"], capsys)
    assert ended == Ended(0, "1 experiment, no problems\n", "")
