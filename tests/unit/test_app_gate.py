"""What is not allowed does not start: the app in this process, until it refuses."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.conf import HydraConf, JobConf, RunDir, SweepDir
from omegaconf import OmegaConf
from support.launching import Project
from support.verbs import Called, call_app, listing

from lllaunch.app.compose import Composition, ConfigRequest
from lllaunch.app.gate import asks_for_lock
from lllaunch.app.planning import as_written, job_name
from lllaunch.config.plan import portable_plan
from lllaunch.spec import KEYS
from lllaunch.verbs import plan

# Leaves a file behind when it is imported, and when it is called.
TRAP = "open('sprung', 'w').close()\ndef make(*args, **kwargs): open('sprung', 'w').close()\n"
CALLBACK = "+hydra.callbacks.mine._target_=trap.make"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    for name in ("LLLAUNCH_LOCKED", "LLLAUNCH_POLICY"):
        monkeypatch.delenv(name, raising=False)
    found = Project(tmp_path / "tree")
    found.write(".git", "gitdir: elsewhere")  # as in a linked worktree
    monkeypatch.chdir(found.root)
    # the app has it there, too
    monkeypatch.syspath_prepend(str(found.root))
    found.experiment(
        "a", "{entrypoint: env, args: ['${lr}'], nproc: 2}", "lr: 1\nelsewhere: {LD_PRELOAD: x}"
    )
    found.write("conf/lllaunch.yaml", "allow: {programs: [env]}\n")
    found.write("trap/__init__.py", TRAP)
    found.write("trap/exp/a.yaml", "# @package _global_\nlaunch: {entrypoint: env}\n")
    for group, text in (("job", "'()': trap.make"), ("hydra", "x: ext://trap.make")):
        found.write(
            f"conf/hydra/{group}_logging/traps.yaml",
            f"version: 1\nformatters: {{mine: {{{text}}}}}\nroot: {{level: INFO}}\n",
        )
    yield found
    assert "trap" not in sys.modules
    assert not (found.root / "sprung").exists()


@pytest.fixture
def run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Called:
    return lambda *argv: call_app(argv, monkeypatch, capfd)


def files(project: Project) -> set[str]:
    return {name for name, content in listing(project.root).items() if content is not None}


@pytest.mark.parametrize("more", [(), ("-m",)])
@pytest.mark.parametrize(
    "refused",
    [
        {
            CALLBACK: "hydra.callbacks.mine",
            "hydra/job_logging=traps": "hydra.job_logging",
            "hydra/hydra_logging=traps": "hydra.hydra_logging",
            "hydra.launcher._target_=trap.make": "hydra.launcher",
            "+model._target_=trap.make": "model._target_",
            "+other={name: trap.make, _target_: '${.name}'}": "other._target_",
            "+hydra.job.env_set.PYTHONSTARTUP=trap.py": "hydra.job.env_set.PYTHONSTARTUP",
        },
        {"hydra.searchpath=[file://conf,'pkg://trap']": "hydra.searchpath"},
        {"hydra.job.env_set='${elsewhere}'": "hydra.job.env_set"},
    ],
)
def test_what_hydra_would_make_is_refused_before_it_makes_it(
    refused: dict[str, str], more: tuple[str, ...], run: Called, project: Project
) -> None:
    before = files(project)
    ended = run(*more, "+exp=a", *refused)
    assert (ended.code, ended.out) == (5, "")
    for key in refused.values():
        assert f" {key}" in ended.err
    assert "Traceback" not in ended.err
    assert files(project) == before  # nor has Hydra begun a directory


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["+exp=a", "++allow={programs: ['*'], callbacks: ['*']}"], 5),
        (["+exp=a", "+policy=open"], 5),
        (["--config-dir", "mine", "--config-name", "lllaunch", "+exp=a"], 5),
        (["+exp=a", "hydra.searchpath=[file://mine/conf]"], 5),
        (["+exp=a", "hydra.run.dir=mine", "hydra.job.chdir=true"], 5),
        (["+exp=a", "+hydra.job.env_set.LLLAUNCH_POLICY=mine/lllaunch.yaml"], 2),
        (["+exp=a", "+hydra.job.env_set.LLLAUNCH_LOCKED=0"], 2),
    ],
)
def test_no_override_changes_what_is_allowed(
    argv: list[str], code: int, run: Called, project: Project
) -> None:
    lenient = "allow: {programs: ['*'], callbacks: ['*'], targets: ['*'], searchpath: ['*']}\n"
    project.write("mine/lllaunch.yaml", lenient)
    project.write("mine/conf/lllaunch.yaml", lenient)
    project.write("conf/policy/open.yaml", f"# @package _global_\n{lenient}")
    ended = run(*argv, "launch.entrypoint=sh", CALLBACK)
    assert ended.code == code
    assert "allow." in ended.err or "LLLAUNCH_" in ended.err


@pytest.mark.parametrize(
    "argv",
    [
        ["+exp=a", "--config-path=pkg://trap"],
        ["+exp=a", "hydra.mode=MULTIRUN", "launch.entrypoint=env,sh"],
        ["+exp=a", "hydra.output_subdir=../../../../out"],
        ["+exp=a", "hydra.run.dir=../out"],
        ["-m", "+exp=a", "hydra.sweep.dir=../out"],
        ["-m", "+exp=a", "hydra/launcher=basic", "hydra/sweeper=basic", "launch.preload=[trap]"],
    ],
)
def test_a_run_reads_and_writes_in_the_tree_alone(
    argv: list[str], run: Called, project: Project
) -> None:
    ended = run(*argv)
    assert ended.code == 5
    assert "Traceback" not in ended.err
    assert not list(project.root.rglob("attempt_0"))
    assert not (project.root.parent / "out").exists()


def test_a_lock_is_that_of_the_project_wherever_hydra_changes_to(
    run: Called, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plan.plan(["--lock", "+exp=a"]) == 0
    assert plan.plan(["--lock", "--name=other", "+exp=a", "launch.nproc=3"]) == 0
    project.write("there/conf/locks/a.yaml", (project.root / "conf/locks/other.yaml").read_text())
    monkeypatch.setenv("LLLAUNCH_LOCKED", "1")
    ended = run("+exp=a", "launch.nproc=3", "hydra.job.chdir=true", "hydra.run.dir=there")
    assert ended.code == 5
    assert "launch.nproc: 2 -> 3" in ended.err
    # a lock of another name was asked for
    ended = run("+exp=a", "launch.locked=missing")
    assert ended.code == 5
    assert "conf/locks/missing.yaml" in ended.err


def test_what_hydra_sets_for_workers_is_in_no_lock(
    run: Called, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("conf/lllaunch.yaml", "allow: {programs: [env], env: [EXTRA]}\n")
    extra = "+hydra.job.env_set.EXTRA=1"
    assert plan.plan(["--lock", "+exp=a", extra]) == 2
    assert not (project.root / "conf/locks").exists()
    assert plan.plan(["--lock", "+exp=a"]) == 0
    monkeypatch.setenv("LLLAUNCH_LOCKED", "1")
    ended = run("+exp=a", extra)
    assert ended.code == 5
    assert "hydra.job.env_set.EXTRA: is in no lock" in ended.err


def test_the_policy_of_the_tree_counts_in_all_of_its_directories(
    run: Called, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("sub/project/conf/exp/b.yaml", "# @package _global_\nlaunch: {entrypoint: sh}\n")
    project.write("sub/project/conf/lllaunch.yaml", "allow: {programs: [sh]}\n")
    monkeypatch.chdir(project.root / "sub/project")
    ended = run("+exp=b")
    assert ended.code == 5
    assert "allow.programs" in ended.err
    assert run("+exp=b", CALLBACK).code == 5


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("allow: {programs: ['true']}\n", 5),
        ("allow: !!python/object:trap.make {}\n", 2),
        (None, 2),
    ],
)
def test_another_policy_is_named_by_the_environment(
    text: str | None, code: int, run: Called, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        project.write("policy.yaml", text)
    monkeypatch.setenv("LLLAUNCH_POLICY", str(project.root / "policy.yaml"))
    before = files(project)
    ended = run("+exp=a")
    assert (ended.code, ended.out) == (code, "")
    assert "policy.yaml" in ended.err
    assert "Traceback" not in ended.err
    assert files(project) == before


@pytest.mark.parametrize(
    ("argv", "locked"), [(["launch.locked=true"], ""), (["-m"], "1"), ([], "1")]
)
def test_without_a_policy_nothing_locked_starts(
    argv: list[str], locked: str, run: Called, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.root / "conf/lllaunch.yaml").unlink()
    monkeypatch.setenv("LLLAUNCH_LOCKED", locked)
    before = files(project)
    ended = run(*argv, "+exp=a", CALLBACK)
    assert (ended.code, ended.out) == (5, "")
    assert "conf/lllaunch.yaml" in ended.err
    assert files(project) == before


# ---------------------------------------------------------------- every key of both nodes

TEXT = "{class: logging.FileHandler, mode: w, filename: '${x}'}"
# Whatever makes something run, or is read or written outside of the run's directory: what a config
# may not say of it, which the allowlist refuses.
JUDGED: dict[str, tuple[str, ...]] = {
    "hydra.searchpath": ("hydra.searchpath=['pkg://trap']",),
    "hydra.run.dir": ("+x=../out", "hydra.run.dir='${x}'"),
    "hydra.sweep.dir": ("-m", "+x=../out", "hydra.sweep.dir='${hydra:job.name}/../${x}'"),
    "hydra.sweep.subdir": (
        "-m",
        "+x=../../../../out",
        "hydra.sweep.subdir='${x}/${hydra:job.num}'",
    ),
    "hydra.output_subdir": ("+x=../../../../out", "hydra.output_subdir='${x}'"),
    "hydra.hydra_logging": (
        *("+x=../out/a.log", f"+hydra.hydra_logging.handlers.x={TEXT}"),
        "hydra.hydra_logging.root.handlers=[x]",
    ),
    "hydra.job_logging": ("+x=conf/lllaunch.yaml", f"+hydra.job_logging.handlers.x={TEXT}"),
    "hydra.job.name": ("hydra.job.name=../../../../out",),
    "hydra.job.env_set": ("+hydra.job.env_set.LD_PRELOAD=x",),
    "hydra.launcher": ("-m", "hydra.launcher._target_=trap.make"),
    "hydra.sweeper": ("-m", "hydra.sweeper._target_=trap.make"),
    "hydra.callbacks": (CALLBACK,),
    "launch.entrypoint": ("launch.entrypoint=sh",),
    "launch.preload": ("launch.preload=[trap]",),
    "launch.preflight": ("launch.preflight=sh",),
    "launch.env": ("+launch.env.LD_PRELOAD=x",),
    "launch.env_per_rank": ("+launch.env_per_rank={0: {LD_PRELOAD: x}}",),
    "launch.rdzv": (
        *("+x=far.example", "launch.rdzv.endpoint='${x}'"),
        *("launch.nnodes=2", "launch.node_rank=1", "launch.rdzv.backend=static"),
        "launch.rdzv.join_timeout=1s",
    ),
    "launch.cwd": ("+x=..", "launch.cwd='${x}'"),
    "launch.log_dir": ("+x=../out", "launch.log_dir='${x}'"),
}
BY_HYDRA = "Hydra sets it, and not the config"
HARMLESS = {
    "hydra.defaults": "what was chosen comes to values, which are judged",
    "hydra.mode": "of a sweep each job is judged",
    "hydra.help": "text that is printed",
    "hydra.hydra_help": "the same",
    "hydra.overrides": BY_HYDRA,
    "hydra.runtime": BY_HYDRA,
    "hydra.job.override_dirname": "part of a directory, which is judged",
    "hydra.job.config": "the same",
    "hydra.job.id": BY_HYDRA,
    "hydra.job.num": BY_HYDRA,
    "hydra.job.config_name": BY_HYDRA,
    "hydra.job.env_copy": "workers have the launcher's variables anyway",
    "hydra.job.chdir": "where workers work is launch.cwd, which is in the lock",
    "hydra.verbose": "levels of loggers",
    "launch.locked": "says that the plan must be a reviewed one",
    "launch.console": "what is shown, and how",
    "launch.node_rank": "which node this is of those in the lock",
    "launch.run_id": "a name; in the lock, unless it follows from the directory",
}


def keys_of_hydra() -> Iterator[str]:
    for each in dataclasses.fields(HydraConf):
        inner = {"run": RunDir, "sweep": SweepDir, "job": JobConf}.get(each.name)
        names = [field.name for field in dataclasses.fields(inner)] if inner else []
        yield from [f"hydra.{each.name}.{name}" for name in names] or [f"hydra.{each.name}"]


def test_somebody_has_decided_for_every_key_who_holds_it(project: Project) -> None:
    composed = Composition(ConfigRequest(("+exp=a",)))
    spec = composed.plan(composed.compose())
    in_lock = {f"launch.{key}" for key in portable_plan(spec)["launch"]}
    keys = {*keys_of_hydra(), *(f"launch.{key}" for key in KEYS)}
    assert keys - in_lock == {*JUDGED, *HARMLESS} - in_lock
    assert not JUDGED.keys() & HARMLESS.keys()


@pytest.mark.parametrize("key", JUDGED)
def test_what_a_key_may_do_is_judged_before_it_is_done(
    key: str, run: Called, project: Project
) -> None:
    before = files(project)
    ended = run(*JUDGED[key], "+exp=a")
    assert ended.code == 5, ended.err
    assert f" {'hydra.job_logging' if key == 'hydra.job.name' else key}" in ended.err
    assert "add '" in ended.err
    assert files(project) == before
    assert not (project.root.parent / "out").exists()
    # of a sweeper of others there is no list of jobs to review
    assert plan.plan(["--lock", "+exp=a", *JUDGED[key]]) == (2 if "sweeper" in key else 5)


@pytest.mark.parametrize(
    "override",
    [
        "hydra.run.dir='${oc.env:WHERE}'",
        "hydra.job_logging.handlers.file.filename='${oc.env:WHERE}'",
    ],
)
def test_a_path_from_the_environment_is_judged_and_not_shown(
    override: str, run: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERE", "../planted")
    ended = run("+exp=a", override)
    assert ended.code == 5
    assert override.partition("=")[0] in ended.err
    assert "planted" not in ended.err


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("hydra.callbacks.mine.x", f"{CALLBACK} +hydra.callbacks.mine.x=2"),
        ("hydra: new", "+hydra.job_logging.handlers.x={class: trap.make}"),
        ("launch.cwd", "hydra.job.chdir=true"),
    ],
)
def test_what_is_allowed_by_its_name_is_in_the_lock_with_what_it_is_given(
    key: str, other: str, run: Called, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        "conf/lllaunch.yaml", "allow: {programs: [env], callbacks: [trap.*], targets: [trap.*]}\n"
    )
    reviewed = [CALLBACK, "+hydra.callbacks.mine.x=1"] if "callbacks" in key else []
    assert plan.plan(["--lock", "+exp=a", *reviewed]) == 0
    monkeypatch.setenv("LLLAUNCH_LOCKED", "1")
    ended = run("+exp=a", *(other.split() if "callbacks" in key else [other]))
    assert ended.code == 5
    assert f"    {key}" in ended.err


# ---------------------------------------------------------------- parts


def test_a_job_is_named_as_its_overrides_were_written_without_its_secrets() -> None:
    config = OmegaConf.create({"a": 1, "task": ["x=${a}", "y=${nowhere}", "z=${oc.env:HOME}"]})
    assert as_written(config.task) == ["x=${a}", "y=${nowhere}", "z=${oc.env:HOME}"]
    named = "'a=b c' 'launch.env.A_TOKEN=${oc.env:A_TOKEN}'"
    assert job_name(["a=b c", "launch.env.A_TOKEN=hf_abcabcabcabcabcabc1"]) == named


@pytest.mark.parametrize(
    ("launch", "asked"), [({}, False), ({"locked": "name"}, True), ({"locked": "${nowhere}"}, True)]
)
def test_what_asks_for_a_lock(
    launch: dict[str, object], asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = OmegaConf.create({"launch": launch})
    for value, locks in (("1", True), ("yes", True), ("0", False), ("", False), (" No ", False)):
        monkeypatch.setenv("LLLAUNCH_LOCKED", value)
        assert asks_for_lock(config) is (asked or locks)
