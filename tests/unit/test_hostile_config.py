"""Configs, policies and run directories made by somebody who means harm.

Each ends with one clear message and the right exit code, and nothing has run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.launching import Project

from lllaunch.verbs import plan, report, rerun

ALLOWED = 'allow:\n  entrypoints: ["ok.py", "ok:*"]\n  programs: [echo]\n'
# tells that it was imported or run
EVIL = "import pathlib\npathlib.Path(__file__).with_name('EVIL').touch()\ndef main(*_): pass\n"
MOST = 8_000  # characters of a message


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path / "project")
    made.write(".git/HEAD", "")
    made.write("ok.py", "open('RAN', 'w').close()\ndef main(): pass\n")
    made.write("evil.py", EVIL)
    made.write("evilpkg/__init__.py", EVIL.replace(".with_name", ".parent.with_name"))
    made.write("evilpkg/exp/far.yaml", "# @package _global_\nlaunch: {entrypoint: ok.py}\n")
    made.experiment("a", "{entrypoint: ok.py}")
    monkeypatch.chdir(made.root)
    monkeypatch.syspath_prepend("")
    for name in ("LLLAUNCH_LOCKED", "LLLAUNCH_POLICY", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    return made


def files_of(root: Path) -> set[str]:
    found = {str(path.relative_to(root)) for path in root.rglob("*")}
    return {name for name in found if "__pycache__" not in name}


def nothing_ran(project: Project) -> bool:
    """Whether neither the allowed script nor what is not allowed left its mark."""
    return not list(project.root.rglob("EVIL")) and not list(project.root.rglob("RAN"))


def is_clear(text: str) -> bool:
    """Whether a message is short, has no traceback, and nothing that a terminal obeys."""
    shown = all(char.isprintable() or char in "\n\t" for char in text)
    return bool(text.strip()) and shown and len(text) < MOST and "Traceback" not in text


Planned = Callable[..., tuple[int, str, str]]


@pytest.fixture
def planned(project: Project, capsys: pytest.CaptureFixture[str]) -> Planned:
    """Plans in this process; nothing may be left or have run, whatever comes of it."""

    def ask(*argv: str) -> tuple[int, str, str]:
        before = files_of(project.root)
        code = plan.plan(argv)
        out, err = capsys.readouterr()
        assert files_of(project.root) == before
        return code, out, err

    return ask


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 40)}]}}\n" for n in range(1, 9)
)
DOUBLING = "a0: xxxxxxxxxx\n" + "".join(
    f'a{n}: "${{a{n - 1}}}${{a{n - 1}}}"\n' for n in range(1, 31)
)
# launch node, the rest of the experiment, exit code, what the message names
WRONG: dict[str, tuple[str, str, int, str]] = {
    "aliases": ("{entrypoint: ok.py}", BOMB, 1, "a.yaml:"),
    "merge keys": ("{entrypoint: ok.py}", MERGES, 1, "a.yaml:"),
    "references": ('{entrypoint: ok.py, args: ["${a30}"]}', DOUBLING, 2, "launch.args[0]"),
    "deep": ("{entrypoint: ok.py}", f"d: {'[' * 3000}{']' * 3000}\n", 1, "nested too deeply"),
    "alias of itself": ("{entrypoint: ok.py}", "a: &a {b: *a}\n", 1, "holds itself"),
    "unknown keys": (
        f"{{entrypoint: ok.py, {', '.join(f'k{n}: 1' for n in range(2000))}}}",
        *("", 2, "launch.k0"),
    ),
    "number": (f"{{entrypoint: ok.py, args: [0x{'f' * 20000}]}}", "", 2, "launch.args[0]"),
    "digits": (f"{{entrypoint: ok.py, nproc: {'9' * 5000}}}", "", 1, "digits"),
    "workers": ("{entrypoint: ok.py, nproc: 1000000000}", "", 2, "launch.nproc"),
    "nul": ('{entrypoint: "ok.py\\0x"}', "", 2, "launch.entrypoint"),
    "nul in a variable": (
        *("{entrypoint: ok.py}", 'hydra: {job: {env_set: {A: "x\\0y"}}}\n'),
        *(1, "null byte"),
    ),
    "escape in a key": ('{entrypoint: ok.py, "\\e[2J": 1}', "", 2, "launch.\\x1b[2J"),
    "escape in a value": ('{entrypoint: ok.py, tee: "\\e[2J"}', "", 2, "\\x1b[2J"),
    "escape in a resolver": ('{entrypoint: ok.py, args: ["${x:\\e[2J}"]}', "", 1, "\\x1b"),
    "repeated key": ("{entrypoint: ok.py, nproc: 1, nproc: 2}", "", 1, "nproc"),
    "object": ("{entrypoint: ok.py, args: !!python/object/apply:os.system [x]}", "", 1, "python"),
    "cycle": ('{entrypoint: ok.py, args: ["${x}"]}', "x: ${y}\ny: ${x}\n", 2, "launch.args[0]"),
    "cycle of a directory": (
        *("{entrypoint: ok.py}", 'hydra: {run: {dir: "${hydra.run.dir}"}}\n'),
        *(1, "leads back to"),
    ),
    "cycle of a node": ("${launch}", "", 1, "leads back to"),
    "cycle of defaults": ("{entrypoint: ok.py}", "defaults: [/exp: a]\n", 1, "refers to itself"),
    "target of a watchdog": (
        *("{entrypoint: ok.py, watchdog: {_target_: os.system}}", ""),
        *(2, "launch.watchdog._target_"),
    ),
    "target in defaults": ("{}", "defaults: [{_target_: os.system}]\n", 1, "_target_"),
    "our own variable": (
        *("{entrypoint: ok.py}", "hydra: {job: {env_set: {LLLAUNCH_POLICY: x}}}\n"),
        *(2, "hydra.job.env_set.LLLAUNCH_POLICY"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_in_a_line_and_nothing_starts(
    project: Project, planned: Planned, name: str
) -> None:
    launch, more, code, named = WRONG[name]
    project.experiment("a", launch, more)

    ended, out, err = planned("+exp=a")

    assert ended == code, err
    assert named in err
    assert is_clear(err)
    assert not out
    assert nothing_ran(project)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["+exp=../../../etc/passwd"], 1),
        (["--config-dir=/nowhere/\x1b[2J", "+exp=a"], 1),
        (["+exp=a", "launch.entrypoint=\x1b[2J"], 1),
        (["+exp=a", "launch.tee=" + "x" * 100_000], 2),
        (["\udcff"], 2),
    ],
)
def test_command_lines_lead_nowhere(
    project: Project, planned: Planned, argv: list[str], code: int
) -> None:
    ended, _, err = planned(*argv)

    assert ended == code, err
    assert is_clear(err)
    assert not list(project.root.parent.glob("x*"))


def test_what_is_allowed_is_still_allowed(project: Project, planned: Planned) -> None:
    logging = 'hydra: {job_logging: {root: {level: "${oc.env:NO_SUCH_LEVEL,INFO}"}}}\n'
    project.experiment("a", "{entrypoint: ok.py}", f'x: 1\nk: x\ny: "${{${{k}}}}"\n{logging}')
    project.write("conf/lllaunch.yaml", ALLOWED)

    assert planned("+exp=a")[0] == 0


@pytest.mark.parametrize("made", ["link out", "dangling link", "directory", "fifo"])
def test_a_policy_is_a_file_of_the_project(
    project: Project, planned: Planned, tmp_path: Path, made: str
) -> None:
    policy = project.root / "conf/lllaunch.yaml"
    (tmp_path / "everything.yaml").write_text('allow:\n  entrypoints: ["*"]\n')
    if made == "directory":
        policy.mkdir()
    elif made == "fifo":
        os.mkfifo(policy)
    else:
        policy.symlink_to(tmp_path / ("everything.yaml" if made == "link out" else "nowhere"))

    code, _, err = planned("+exp=a")

    assert code == 2
    assert "conf/lllaunch.yaml" in err


# a file of a run, what stands there, exit code; "" for a FIFO
LEFT: dict[str, tuple[str, str, int]] = {
    "bomb beside": (".hydra/config.yaml", BOMB, 2),
    "object": ("plan.yaml", "launch: !!python/object/apply:os.system [x]\n", 2),
    "object beside": (".hydra/config.yaml", "a: !!python/object/apply:os.system [x]\n", 2),
    "fifo": ("plan.yaml", "", 2),
    "escape": (".hydra/config.yaml", '"\\e[3J": {_target_: "\\e[2J"}\n', 5),
    "policy": (".hydra/hydra.yaml", "hydra: {job: {env_set: {LLLAUNCH_POLICY: x}}}\n", 2),
    "types": (
        ".hydra/hydra.yaml",
        "hydra: {runtime: [1], job: [1], overrides: 1, callbacks: 1}\n",
        1,
    ),
    "another tree": (".hydra/hydra.yaml", "hydra: {runtime: {cwd: OTHER}}\n", 5),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is over."""
    made = Project(tmp_path_factory.mktemp("finished"))
    made.write("ok.py", "")
    made.experiment("a", "{entrypoint: ok.py}")
    assert made.lllaunch("+exp=a", "hydra.run.dir=run").returncode == 0
    return made.root / "run"


@pytest.mark.slow
@pytest.mark.parametrize("name", LEFT)
def test_the_directory_of_a_run_gets_around_nothing(
    project: Project,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
) -> None:
    file, text, code = LEFT[name]
    shutil.copytree(finished, "run", symlinks=True)
    hydra = Path("run/.hydra/hydra.yaml")
    hydra.write_text(hydra.read_text().replace(str(finished.parent), str(project.root)))
    other = tmp_path / "other"
    (other / "conf").mkdir(parents=True)
    path = Path("run", file)
    path.unlink()
    if text:
        path.write_text(text.replace("OTHER", str(other)))
    else:
        os.mkfifo(path)
    project.write("conf/lllaunch.yaml", ALLOWED)
    monkeypatch.setattr("sys.argv", ["lllaunch"])
    # what measures this process is none
    monkeypatch.setattr("hydra._internal.utils.is_under_debugger", lambda: False)

    ended = rerun.rerun(["run"])

    assert ended == code
    if code:
        assert is_clear(capfd.readouterr().err)
        assert nothing_ran(project)


def test_a_report_imports_nothing_that_a_run_names(project: Project, finished: Path) -> None:
    shutil.copytree(finished, "run", symlinks=True)
    left = Path("run/.hydra/hydra.yaml")
    hydra = yaml.safe_load(left.read_text())
    hydra["hydra"]["runtime"]["cwd"] = str(project.root)
    hydra["hydra"]["overrides"]["hydra"] = ["hydra.searchpath=[pkg://evilpkg]"]
    left.write_text(yaml.safe_dump(hydra))

    assert report.report(["run", "--format", "html", "--output", "page.html"]) == 0

    assert "entrypoint" in Path("page.html").read_text()
    assert nothing_ran(project)
