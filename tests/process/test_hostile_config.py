"""Configs, policies and run directories made by somebody who means harm.

Each ends with one clear message and the right exit code, within seconds, and nothing has run.
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.project import Project

from lllaunch.verbs import plan, rerun

# Hydra takes what measures a process for a debugger, and shows tracebacks to it

ALLOWED = 'allow:\n  entrypoints: ["ok.py", "ok:*"]\n  programs: [echo]\n'
EVERYTHING = (
    'allow:\n  entrypoints: ["*"]\n  programs: ["*"]\n  targets: ["*"]\n'
    '  callbacks: ["*"]\n  searchpath: ["*"]\n'
)
# tells that it was imported or run
EVIL = "import pathlib\npathlib.Path(__file__).with_name('EVIL').touch()\ndef main(*_): pass\n"
MOST = 8_000  # characters of a message


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path / "project")
    made.write(".git/HEAD", "")
    made.write(
        "ok.py", "import os\nopen('RAN', 'w').close()\ndef main(): pass\nalias = os.system\n"
    )
    made.write("evil.py", EVIL)
    made.write("evilpkg/__init__.py", EVIL.replace("'EVIL'", "'../EVIL'"))
    made.write("evilpkg/exp/far.yaml", "# @package _global_\nlaunch: {entrypoint: ok.py}\n")
    made.experiment("a", "{entrypoint: ok.py}")
    made.write("conf/everything.yaml", EVERYTHING)
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
        code = plan.main(argv)
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
    "references": ('{entrypoint: ok.py, args: ["${a30}"]}', DOUBLING, 2, "launch.args.0"),
    "deep": ("{entrypoint: ok.py}", f"d: {'[' * 3000}{']' * 3000}\n", 1, "nested too deeply"),
    "deep arguments": (f"{{entrypoint: ok.py, args: {'[' * 60}{']' * 60}}}", "", 2, "launch.args"),
    "alias of itself": ("{entrypoint: ok.py}", "a: &a {b: *a}\n", 1, "refers to itself"),
    "unknown keys": (
        f"{{entrypoint: ok.py, {', '.join(f'k{n}: 1' for n in range(2000))}}}",
        *("", 2, "launch.k0"),
    ),
    "number": (f"{{entrypoint: ok.py, args: [0x{'f' * 20000}]}}", "", 2, "launch.args[0]"),
    "digits": (f"{{entrypoint: ok.py, nproc: {'9' * 5000}}}", "", 1, "digits"),
    "workers": ("{entrypoint: ok.py, nproc: 1000000000}", "", 2, "launch.nproc"),
    "ranks of variables": (
        '{entrypoint: ok.py, nproc: 1000000000, env_per_rank: {"0-999999999": {A: x}}}',
        *("", 2, "launch.nproc"),
    ),
    "ranks of a filter": (
        '{entrypoint: ok.py, local_ranks_filter: ["0-999999999"]}',
        *("", 2, "launch.local_ranks_filter"),
    ),
    "ranks of a mask": ('{entrypoint: ok.py, tee: {"0-999999999": out}}', "", 2, "launch.tee"),
    "nul": ('{entrypoint: "ok.py\\0x"}', "", 2, "launch.entrypoint"),
    "nul in a variable": (
        *("{entrypoint: ok.py}", 'hydra: {job: {env_set: {A: "x\\0y"}}}\n'),
        *(1, "null byte"),
    ),
    "escape in a key": ('{entrypoint: ok.py, "\\e[2J": 1}', "", 2, "launch.\\x1b[2J"),
    "c1 in a key": ('{entrypoint: ok.py, "\\x9b2J": 1}', "", 2, "launch.\\x9b2J"),
    "escape in a value": ('{entrypoint: ok.py, tee: "\\e[2J"}', "", 2, "\\x1b[2J"),
    "escape in a variable": ('{entrypoint: ok.py, env: {"\\e[2J": true}}', "", 2, "\\x1b[2J"),
    "escape in a resolver": ('{entrypoint: ok.py, args: ["${x:\\e[2J}"]}', "", 1, "\\x1b"),
    "escape in defaults": ("{}", 'defaults: ["x\\e[2J"]\n', 1, "\\x1b[2J"),
    "repeated key": ("{entrypoint: ok.py, nproc: 1, nproc: 2}", "", 1, "nproc"),
    "object": ("{entrypoint: ok.py, args: !!python/object/apply:os.system [x]}", "", 1, "python"),
    "name": ("{entrypoint: ok.py, args: !!python/name:os.system }", "", 1, "python"),
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
    "target of a launch": ("{entrypoint: ok.py, _target_: os.system}", "", 2, "launch._target_"),
    "target in defaults": ("{}", "defaults: [{_target_: os.system}]\n", 1, "_target_"),
    "searchpath": (
        "{entrypoint: ok.py}",
        "hydra: {searchpath: [pkg://evilpkg]}\n",
        1,
        "searchpath",
    ),
    "our own variable": (
        *("{entrypoint: ok.py}", "hydra: {job: {env_set: {LLLAUNCH_POLICY: x}}}\n"),
        *(2, "hydra.job.env_set.LLLAUNCH_POLICY"),
    ),
    "script": ("{entrypoint: ../../../etc/passwd.py}", "", 2, "launch.entrypoint"),
    "log_dir": ('{entrypoint: ok.py, log_dir: "a\\0b"}', "", 2, "launch.log_dir"),
    "lock": ('{entrypoint: ok.py, locked: "\\e[2J"}', "", 2, "launch.locked"),
}


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
    "data", [b"launch: \xff\xfe\n", b'x: "\0"\n', b'x: "\x1b[2J"\n', b"x: [\n", b"- \xc3\x28\n"]
)
def test_files_that_are_no_yaml_are_named(project: Project, planned: Planned, data: bytes) -> None:
    (project.root / "conf/exp/a.yaml").write_bytes(b"# @package _global_\n" + data)

    code, _, err = planned("+exp=a")

    assert code == 1
    assert is_clear(err)


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["+exp=../../../etc/passwd"], 1),
        (["+exp=\x1b[2J"], 1),
        (["--config-name=../../etc/passwd"], 1),
        (["--config-dir=/nowhere/\x1b[2J", "+exp=a"], 1),
        (["--config-path=pkg://no.such.package", "+exp=a"], 1),
        (["--lock", "--name=../../x", "+exp=a"], 2),
        (["--lock", "--name=/etc/x", "+exp=a"], 2),
        (["--lock", "--name=.", "+exp=a"], 2),
        (["--lock", "--name=\x1b[2J", "+exp=a"], 2),
        (["--lock", "--name=" + "x" * 300, "+exp=a"], 2),
        (["--diff", "--name=../../x", "+exp=a"], 2),
        (["--lock", "launch.locked=../../x", "+exp=a"], 2),
        (["--lock", "launch.locked=/etc/passwd", "+exp=a"], 2),
        (["+exp=a", "launch.entrypoint=\x1b[2J"], 1),
        (["+exp=a", "+x=${x}${x"], 1),
        (["+exp=a", "launch.tee=" + "x" * 100_000], 2),
        (["\udcff"], 1),
    ],
)
def test_command_lines_lead_nowhere(
    project: Project, planned: Planned, argv: list[str], code: int
) -> None:
    ended, _, err = planned(*argv)

    assert ended == code, err
    assert is_clear(err)
    assert not list(project.root.parent.glob("x*"))


@pytest.mark.parametrize("link", ["conf/locks", "conf/locks/a.yaml"])
def test_a_lock_is_not_written_through_a_link_that_leads_out(
    project: Project, planned: Planned, tmp_path: Path, link: str
) -> None:
    (tmp_path / "out").mkdir()
    (project.root / link).parent.mkdir(exist_ok=True)
    (project.root / link).symlink_to(tmp_path / "out")

    code, _, err = planned("--lock", "+exp=a")

    assert code == 2
    assert "leads out of" in err
    assert not list((tmp_path / "out").iterdir())


def test_a_plan_that_is_not_allowed_is_not_locked(project: Project, planned: Planned) -> None:
    project.write("conf/lllaunch.yaml", ALLOWED)

    code, out, err = planned("--lock", "+exp=a", "launch.entrypoint=evil.py")

    assert (code, out) == (5, "")
    assert "'evil.py' is not in allow.entrypoints" in err


CALLBACK = "hydra: {callbacks: {x: {_target_: evil.main}}}\n"
FACTORY = '{"()": evil.main}'
# what an experiment says, and the key that is refused
FORBIDDEN: dict[str, tuple[str, str]] = {
    "callback": (CALLBACK, "hydra.callbacks.x._target_"),
    "callbacks elsewhere": ("e: {}\nhydra: {callbacks: '${e}'}\n", "hydra.callbacks"),
    "launcher": ("hydra: {launcher: {_target_: os.system}}\n", "hydra.launcher._target_"),
    "sweeper": ("hydra: {sweeper: {_target_: os.system}}\n", "hydra.sweeper._target_"),
    "params": ("params: {m: {_target_: os.system}}\n", "params.m._target_"),
    "factory": (
        f"hydra: {{job_logging: {{handlers: {{x: {FACTORY}}}}}}}\n",
        "hydra.job_logging.handlers.x.()",
    ),
    "factory elsewhere": (
        f"e: {FACTORY}\nhydra: {{job_logging: {{handlers: {{x: '${{e}}'}}}}}}\n",
        "hydra.job_logging.handlers.x.()",
    ),
    "handlers elsewhere": (
        f"e: {{x: {FACTORY}}}\nhydra: {{job_logging: {{handlers: '${{e}}'}}}}\n",
        "hydra.job_logging.handlers.x.()",
    ),
    "logging elsewhere": (
        f"e: {{handlers: {{x: {FACTORY}}}}}\nhydra: {{hydra_logging: '${{e}}'}}\n",
        "hydra.hydra_logging.handlers.x.()",
    ),
    "class": (
        "hydra: {job_logging: {handlers: {x: {class: evil.main}}}}\n",
        "hydra.job_logging.handlers.x.class",
    ),
    "ext": (
        "hydra: {job_logging: {handlers: {x: {stream: 'ext://evil.main'}}}}\n",
        "hydra.job_logging.handlers.x.stream",
    ),
    "ext elsewhere": (
        "e: 'ext://'\nhydra: {job_logging: {handlers: {x: {stream: '${e}evil.main'}}}}\n",
        "hydra.job_logging.handlers.x.stream",
    ),
    "ext in parts": (
        "e: 't://'\nhydra: {job_logging: {handlers: {x: {stream: 'ex${e}evil.main'}}}}\n",
        "hydra.job_logging.handlers.x.stream",
    ),
    "ext by a resolver": (
        "e: 'ext://evil'\nhydra: {job_logging: {handlers: {x: {stream: '${oc.select:e}'}}}}\n",
        "hydra.job_logging.handlers.x.stream",
    ),
    "made node": ("p: '${oc.create:\"{_target_: os.system}\"}'\n", "p: "),
    "made by a name": ("y: create\np: '${oc.${y}:\"{_target_: os.system}\"}'\n", "p: "),
    "made by a name of a name": (
        "z: create\ny: z\np: '${oc.${${y}}:\"{_target_: os.system}\"}'\n",
        "p: ",
    ),
    "variable": ("hydra: {job: {env_set: {LD_PRELOAD: x}}}\n", "hydra.job.env_set.LD_PRELOAD"),
    "variable of git": (
        "hydra: {job: {env_set: {GIT_CONFIG: x}}}\n",
        "hydra.job.env_set.GIT_CONFIG",
    ),
    "variables elsewhere": (
        "e: {LD_PRELOAD: x}\nhydra: {job: {env_set: '${e}'}}\n",
        "hydra.job.env_set",
    ),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_place_of_a_config_gets_around_the_allowlist(
    project: Project, planned: Planned, name: str
) -> None:
    more, key = FORBIDDEN[name]
    project.experiment("a", "{entrypoint: ok.py}", more)
    project.write("conf/lllaunch.yaml", ALLOWED)

    code, _, err = planned("+exp=a")

    assert code == 5
    assert re.search(rf"^lllaunch:   (conf/exp/a\.yaml:\d+: )?{re.escape(key)}", err, re.MULTILINE)
    assert is_clear(err)
    assert nothing_ran(project)


@pytest.mark.parametrize(
    "argv",
    [
        ["+exp=a", "launch.entrypoint=evil.py"],
        ["+exp=a", "launch.entrypoint=os:system"],
        ["+exp=a", "launch.entrypoint=ok:alias"],
        ["+exp=a", "launch.entrypoint=builtins:exec"],
        ["+exp=a", "launch.entrypoint=/bin/sh"],
        ["+exp=a", "launch.entrypoint=-m timeit"],
        ["+exp=a", "launch.preload=[evil]"],
        ["+exp=a", "+launch.env.PYTHONSTARTUP=evil.py"],
        ["+exp=a", "+launch.env_per_rank={0: {LD_PRELOAD: x}}"],
        ["+exp=a", "launch.log_dir=/tmp/lllaunch-elsewhere"],
        ["+exp=a", "hydra.run.dir=/tmp/lllaunch-elsewhere"],
        ["+exp=a", "+hydra.overrides.e={_target_: evil.main}"],
        ["+exp=a", "-m", "launch.entrypoint=ok.py,evil.py"],
        ["+exp=a", "hydra.mode=MULTIRUN", "launch.entrypoint=ok.py,evil.py"],
        ["+exp=a", "-m", "hydra/launcher=basic", "hydra/sweeper=basic", "launch.preload=[evil]"],
        ["+exp=far", "hydra.searchpath=[pkg://evilpkg]"],
        ["+exp=far", "--config-path=pkg://evilpkg"],
        ["+exp=far", "--config-path=../evilpkg"],
    ],
)
def test_no_command_line_gets_around_the_allowlist(
    project: Project, planned: Planned, argv: list[str]
) -> None:
    project.write("conf/lllaunch.yaml", ALLOWED)

    code, _, err = planned(*argv)

    assert code == 5, err
    assert is_clear(err)
    assert nothing_ran(project)


def test_what_is_allowed_is_still_allowed(project: Project, planned: Planned) -> None:
    logging = 'hydra: {job_logging: {root: {level: "${oc.env:NO_SUCH_LEVEL,INFO}"}}}\n'
    project.experiment("a", "{entrypoint: ok.py}", f'x: 1\nk: x\ny: "${{${{k}}}}"\n{logging}')
    project.write("conf/lllaunch.yaml", ALLOWED)

    assert planned("+exp=a")[0] == 0


@pytest.mark.parametrize("text", [BOMB, "allow: !!python/object/apply:os.system [x]\n", "\0", ""])
def test_a_policy_that_cannot_be_read_allows_nothing(
    project: Project, planned: Planned, text: str
) -> None:
    project.write("conf/lllaunch.yaml", text)

    code, _, err = planned("+exp=a")

    assert code == 2
    assert "conf/lllaunch.yaml" in err


@pytest.mark.parametrize("made", ["link out", "dangling link", "directory", "fifo"])
def test_a_policy_is_a_file_of_the_project(
    project: Project, planned: Planned, tmp_path: Path, made: str
) -> None:
    policy = project.root / "conf/lllaunch.yaml"
    (tmp_path / "everything.yaml").write_text(EVERYTHING)
    if made == "directory":
        policy.mkdir()
    elif made == "fifo":
        os.mkfifo(policy)
    else:
        policy.symlink_to(tmp_path / ("everything.yaml" if made == "link out" else "nowhere"))

    code, _, err = planned("+exp=a")

    assert code == 2
    assert "conf/lllaunch.yaml" in err


def test_a_policy_that_is_named_and_not_there_allows_nothing(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLLAUNCH_POLICY", "nowhere.yaml")

    code, _, err = planned("+exp=a")

    assert code == 2
    assert "nowhere.yaml: is not there" in err


def refused(project: Project, *argv: str, code: int = 5, **env: str) -> str:
    """Runs, and expects that nothing has; returns what was said."""
    ended = project.lllaunch(*argv, env={"PYTHONPATH": "", **env})
    assert ended.returncode == code, ended.stderr
    assert is_clear(ended.stderr)
    assert nothing_ran(project)
    assert not list(project.root.rglob("attempt_0"))
    assert not (project.root.parent / "out").exists()
    return ended.stderr


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (
            [
                "+exp=a",
                "launch.entrypoint=evil:main",
                "+hydra.job.env_set.LLLAUNCH_POLICY=conf/x.yaml",
            ],
            2,
        ),
        (["+exp=a", "+hydra.callbacks.x._target_=evil.main"], 5),
        (["+exp=far", "--config-path=pkg://evilpkg"], 5),
        (["+exp=a", "hydra.output_subdir=../../../../out"], 5),
        (["+exp=a", "hydra.run.dir=../out"], 5),
        (["-m", "+exp=a", "hydra.sweep.dir=../out"], 5),
        (["-m", "+exp=a", "launch.entrypoint=evil:main,ok.py"], 5),
        (
            [
                "-m",
                "+exp=a",
                "hydra/launcher=basic",
                "hydra/sweeper=basic",
                "launch.preload=[evil]",
            ],
            5,
        ),
    ],
)
def test_a_run_does_not_get_around_the_allowlist(
    project: Project, argv: list[str], code: int
) -> None:
    project.write("conf/lllaunch.yaml", ALLOWED)
    project.write("conf/x.yaml", EVERYTHING)

    refused(project, *argv, code=code)


def test_logging_makes_nothing_before_it_is_looked_at(project: Project) -> None:
    logging = "{handlers: {x: '${e}'}, root: {handlers: [x]}}"
    more = f"e: {FACTORY}\nhydra: {{job_logging: {logging}}}\n"
    project.experiment("a", "{entrypoint: ok.py}", more)
    project.write("conf/lllaunch.yaml", ALLOWED)

    assert "hydra.job_logging.handlers.x.()" in refused(project, "+exp=a")


class _Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, ("touch EVIL",))


@pytest.mark.parametrize("flag", ["--experimental-rerun", "--exp"])
@pytest.mark.parametrize("locked", [False, True])
def test_no_pickle_is_loaded_where_there_are_rules(
    project: Project, flag: str, locked: bool
) -> None:
    (project.root / "config.pickle").write_bytes(pickle.dumps(_Evil()))
    if not locked:
        project.write("conf/lllaunch.yaml", ALLOWED)

    env = {"LLLAUNCH_LOCKED": "1"} if locked else {}
    assert "--experimental-rerun" in refused(project, flag, "config.pickle", **env)


@pytest.mark.parametrize("word", ["1", "true", "garbage", "\x1b[2J"])
def test_any_word_but_no_locks(project: Project, word: str) -> None:
    project.write("conf/lllaunch.yaml", ALLOWED)

    assert "conf/locks/a.yaml" in refused(project, "+exp=a", LLLAUNCH_LOCKED=word)


def test_a_config_does_not_unlock_what_the_environment_locks(project: Project) -> None:
    project.write("conf/lllaunch.yaml", ALLOWED)
    argv = ["+exp=a", "+hydra.job.env_set.LLLAUNCH_LOCKED=0"]

    assert "LLLAUNCH_LOCKED" in refused(project, *argv, code=2, LLLAUNCH_LOCKED="1")


def test_a_lock_is_that_of_the_project_wherever_hydra_changes_to(project: Project) -> None:
    project.write("conf/lllaunch.yaml", ALLOWED)
    assert project.lllaunch("plan", "--lock", "+exp=a", "launch.nproc=2").returncode == 0
    reviewed = (project.root / "conf/locks/a.yaml").read_text()
    assert project.lllaunch("plan", "--lock", "+exp=a", "launch.nproc=3").returncode == 0
    project.write("trap/conf/locks/a.yaml", (project.root / "conf/locks/a.yaml").read_text())
    project.write("conf/locks/a.yaml", reviewed)

    argv = ["+exp=a", "launch.nproc=3", "hydra.job.chdir=true", "hydra.run.dir=trap"]
    assert "launch.nproc: 2 -> 3" in refused(project, *argv, LLLAUNCH_LOCKED="1")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("hydra: {run: {dir: ok.py}}\n", "ok.py"),
        ('hydra: {run: {dir: "a\\0b"}}\n', "null byte"),
        ("hydra: {run: {dir: '${x}'}}\nx: ${y}\ny: ${x}\n", "leads back to"),
        ("hydra: {hydra_logging: {handlers: {x: {class: nope.Nope}}}}\n", "nope"),
        ("hydra: {job_logging: {version: 7}}\n", "version"),
        ("hydra: {job: {env_copy: [NO_SUCH_VARIABLE]}}\n", "NO_SUCH_VARIABLE"),
        ("a: [\n", "a.yaml"),
        (BOMB, "a.yaml:"),
    ],
)
def test_where_hydra_fails_itself_it_says_so_in_a_line(
    project: Project, more: str, named: str
) -> None:
    project.experiment("a", "{entrypoint: ok.py}", more)

    assert named in refused(project, "+exp=a", code=1)


# a file of a run, what stands there, exit code; "" for a FIFO
LEFT: dict[str, tuple[str, str, int]] = {
    "bomb": ("plan.yaml", BOMB, 2),
    "bomb beside": (".hydra/config.yaml", BOMB, 2),
    "object": ("plan.yaml", "launch: !!python/object/apply:os.system [x]\n", 2),
    "fifo": ("plan.yaml", "", 2),
    "fifo beside": (".hydra/hydra.yaml", "", 2),
    "escape": (".hydra/config.yaml", '"\\e[3J": {_target_: "\\e[2J"}\n', 5),
    "deep": (".hydra/config.yaml", f"a: {'{a: ' * 95}1{'}' * 95}\n", 2),
    "callback": (".hydra/hydra.yaml", CALLBACK, 5),
    "factory": (
        ".hydra/hydra.yaml",
        f"hydra: {{job_logging: {{version: 1, handlers: {{x: {FACTORY}}}}}}}\n",
        5,
    ),
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

    ended = rerun.main(["run"])

    assert ended == code
    if code:
        assert is_clear(capfd.readouterr().err)
        assert nothing_ran(project)


def test_an_edited_plan_is_held_against_the_allowlist(project: Project) -> None:
    project.write("conf/lllaunch.yaml", ALLOWED)
    assert project.lllaunch("+exp=a", "hydra.run.dir=run").returncode == 0
    plan_file = project.root / "run/plan.yaml"
    plan_file.write_text(plan_file.read_text().replace("ok.py", "evil.py"))

    ended = project.lllaunch("rerun", "run")

    assert ended.returncode == 5
    assert "'evil.py' is not in allow.entrypoints" in ended.stderr
    assert not (project.root / "EVIL").exists()
