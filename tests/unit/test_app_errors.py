"""What is wrong with a command or its configs: the app in this process, until it says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.launching import Project
from support.verbs import Called, Ended, call_app


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in ("LLLAUNCH_LOCKED", "LLLAUNCH_POLICY"):
        monkeypatch.delenv(name, raising=False)
    found = Project(tmp_path / "my project")
    monkeypatch.chdir(found.root)
    return found


@pytest.fixture
def run(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Called:
    """Runs the app, which starts nothing."""

    def run(*argv: str) -> Ended:
        ended = call_app(argv, monkeypatch, capfd)
        assert "Traceback" not in ended.err
        assert list(project.root.rglob("attempt_*")) == []
        return ended

    return run


def test_several_mistakes_of_the_command_line_are_told_together_and_without_a_file(
    project: Project, run: Called
) -> None:
    project.experiment("x", "{entrypoint: 'true', tee: none, env: {A: b}}")
    ended = run("+exp=x", "launch.tee=al", "launch.env.B=[1]", "++launch.nprocs=2")
    assert (ended.code, ended.out) == (2, "")
    variable, *others = ended.err.splitlines()
    assert variable.startswith("lllaunch: launch.env.B: ")
    assert sorted(line.partition(": ")[0] for line in others) == ["  launch.nprocs", "  launch.tee"]


def test_a_missing_conf_directory_is_named(project: Project, run: Called) -> None:
    ended = run("+exp=resnet")
    assert ended.code == 2
    assert "no config group 'exp'" in ended.err
    assert str(project.root / "conf") in ended.err


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("+exp=nope", "no experiment 'nope' in conf/exp; there are x"),
        ("params.nothing=2", "params"),
        ("params.lr=[", "no viable alternative"),
        ("--config-dir=nowhere", "not found"),
        ("--config-name=nowhere", "nowhere"),
    ],
)
def test_what_hydra_cannot_compose_ends_with_1_and_a_message(
    project: Project, run: Called, argument: str, message: str
) -> None:
    project.experiment("x", "{entrypoint: 'true'}")
    ended = run(argument)
    assert ended.code == 1
    assert message in ended.err
    assert "HYDRA_FULL_ERROR" not in ended.err


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("hydra: {run: {dir: taken}}\n", "taken"),
        ("hydra: {hydra_logging: {handlers: {x: {class: nope.Nope}}}}\n", "nope"),
        ("hydra: {job_logging: {version: 7}}\n", "version"),
        ("hydra: {job: {env_copy: [NO_SUCH_VARIABLE]}}\n", "NO_SUCH_VARIABLE"),
        ("a: [\n", "a.yaml"),
    ],
)
def test_where_hydra_fails_itself_it_says_so_in_a_line(
    project: Project, run: Called, more: str, named: str
) -> None:
    project.write("taken", "")
    project.experiment("a", "{entrypoint: 'true'}", more)
    ended = run("+exp=a")
    assert ended.code == 1
    assert named in ended.err


@pytest.mark.parametrize(
    "more",
    [
        (),
        # callbacks may change what runs: it is planned after them
        ("+hydra.callbacks.c={_target_: hydra.experimental.callback.Callback}",),
        ("hydra.job.chdir=true",),
        ("-m", "+lr=1,2"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_the_files_name_and_the_line(
    more: tuple[str, ...], project: Project, run: Called
) -> None:
    text = "# @package _global_\nlaunch:\n  entrypoint: env\n  nproc: ${count}\n  tee: al\n"
    project.write("conf/exp/x.yaml", f"{text}count: two\n")
    ended = run(*more, "+exp=x")
    assert ended.code == 2
    assert "conf/exp/x.yaml:4: launch.nproc: expected a number" in ended.err
    assert "conf/exp/x.yaml:5: launch.tee: expected a mask" in ended.err


def test_a_directory_or_package_that_is_not_allowed_is_told_with_its_line(
    project: Project, run: Called
) -> None:
    project.write("conf/lllaunch.yaml", "allow: {programs: [env]}\n")
    project.experiment("x", "{entrypoint: env}", "hydra:\n  run:\n    dir: /elsewhere/x\n")
    ended = run("+exp=x")
    assert ended.code == 5
    assert "conf/exp/x.yaml:5: hydra.run.dir: '/elsewhere/x' is outside of the tree" in ended.err
    project.write("conf/main.yaml", "hydra:\n  searchpath:\n  - pkg://mine\n")
    ended = run("--config-name=main", "hydra.searchpath=[pkg://yours]")
    assert ended.code == 5
    assert " hydra.searchpath[0]: 'pkg://yours' is not in" in ended.err
    ended = run("--config-name=main")
    assert ended.code == 5
    assert "conf/main.yaml:3: hydra.searchpath[0]: 'pkg://mine' is not in" in ended.err


@pytest.mark.parametrize("more", [(), ("-m", "+lr=1,2")])
def test_github_shows_a_mistake_at_its_line(
    more: tuple[str, ...], project: Project, run: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("conf/lllaunch.yaml", "allow: {programs: [ls]}\n")
    project.experiment("refused", "\n  entrypoint: env\n  preload: [json]")
    project.experiment("wrong", "\n  entrypoint: ls\n  tee: al")
    project.experiment("secret", "{entrypoint: ls}", "token: hf_planted0Cafe1234xyz\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    # the checkout is a directory above
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.root.parent))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def annotations(*argv: str) -> list[str]:
        ended = run(*more, *argv)
        assert ended.code == (5 if "+exp=refused" in argv else 2)
        assert "planted" not in ended.out + ended.err
        at = f"::error file={project.root.name}/conf/exp/"
        return [line.removeprefix(at) for line in ended.out.splitlines() if line.startswith("::")]

    title = "title=lllaunch::"
    first, second, *rest = annotations("+exp=refused")
    assert first.startswith(f"refused.yaml,line=3,{title}launch.entrypoint: 'env' is not in")
    assert second.startswith(f"refused.yaml,line=4,{title}launch.preload: 'json' is")
    # of a sweep that says what jobs they are of
    assert len(rest) == len(more[:1])
    first, second = annotations("+exp=wrong", "++launch.nproc=0")
    assert first.startswith(f"wrong.yaml,line=4,{title}launch.tee: expected a mask")
    # what the command line says is in no file
    assert second.startswith(f"::error {title}")
    assert "launch.nproc: expected a number of workers" in second
    (alone,) = annotations("+exp=secret")
    assert alone.startswith(f"secret.yaml,line=3,{title}token: expected a secret")


def test_a_mistake_in_a_sweeps_own_settings_is_told_with_its_line(
    project: Project, run: Called
) -> None:
    project.experiment("x", "{entrypoint: 'true'}", "hydra:\n  launcher:\n    max_parallel: many\n")
    wrong = "hydra.launcher.max_parallel: expected a whole number"
    ended = run("-m", "+exp=x", "+lr=1,2")
    assert ended.code == 2
    assert ended.err.startswith(f"lllaunch: conf/exp/x.yaml:5: {wrong}")
    given = run("-m", "+exp=x", "+lr=1,2", "hydra.launcher.max_parallel=many")
    assert given.err.startswith(f"lllaunch: {wrong}")
