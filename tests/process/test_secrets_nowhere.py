"""Secrets of the environment reach the workers, and no file and no output of ours."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import quote

import pytest
from support.launching import Project
from support.verbs import Called, Ended, call, call_app

from lllaunch.verbs import verb

NAMES = (
    "HF_TOKEN PLAIN DETOUR NESTED PART DECODED DEFAULTED API_KEY INDIRECT RANKED FILTERED SET"
    " COPIED LAUNCHER UNUSED TYPED SWEPT RUN_ID"
)
# long, each another one, with characters that some forms would change
SECRETS = {
    name: f"S{name.lower()}+Zq7/{place:02d}xW9vK" for place, name in enumerate(NAMES.split())
}
CI = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": "summary.md"}

EXPERIMENT = """\
# @package _global_
launch:
  entrypoint: train.py
  nproc: 2
  run_id: ${oc.env:RUN_ID}
  grace_period: 1s
  args:
    plain: ${oc.env:PLAIN}
    detour: ${params.detour}
    nested: [a, "${params.deep.x}"]
    part: "before-${oc.env:PART}-after"
    decoded: ${oc.decode:${oc.env:DECODED}}
    defaulted: ${oc.env:DEFAULTED,else}
    api_key: ${oc.env:API_KEY}
    indirect: ${oc.env:${params.name}}
  env:
    HF_TOKEN: ${oc.env:HF_TOKEN}
    OTHER: "x ${params.detour} y"
  env_per_rank: {1: {RANK_ONE: "${oc.env:RANKED}"}}
  duplicate_stdout_filters: ["${oc.env:FILTERED}"]
params:
  name: INDIRECT
  lr: 0
  detour: ${oc.env:DETOUR}
  deep: {x: "${params.mid}"}
  mid: "${oc.env:NESTED}!"
  unused: ${oc.env:UNUSED}
hydra:
  job:
    env_set: {FROM_HYDRA: "${oc.env:SET}"}
    env_copy: [COPIED]
  launcher:
    env: {FROM_LAUNCHER: "${oc.env:LAUNCHER}"}
"""
# what Hydra sets is in no lock
UNSET = "~hydra.job.env_set.FROM_HYDRA"
# fails unless all that it should be given is there; says nothing of it
CHECKS = """\
import os, sys
wanted = "PLAIN DETOUR NESTED PART DECODED DEFAULTED API_KEY INDIRECT".split()
given = [name for name in wanted if not any(os.environ[name] in word for word in sys.argv)]
given += [] if os.environ["DETOUR"] in os.environ["OTHER"] else ["OTHER"]
given += [] if os.environ["FROM_HYDRA"] == os.environ["SET"] else ["SET"]
given += [] if os.environ["TORCHELASTIC_RUN_ID"] == os.environ["RUN_ID"] else ["RUN_ID"]
print("not given:", given)
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "project")
    made.write("conf/exp/a.yaml", EXPERIMENT)
    made.write("train.py", f"{CHECKS}sys.exit(bool(given))\n")
    return made


def forms(secret: str) -> set[str]:
    """What would give it away: itself, its beginning, and how others write it."""
    encoded = base64.b64encode(secret.encode()).decode()
    return {secret, secret[:12], secret[::-1], quote(secret, safe=""), encoded[:16]}


def told(project: Project, *printed: str) -> list[str]:
    """Where a secret stands: in what was printed, in a file, or in the name of one."""
    texts = [("what was printed", text) for text in printed]
    for path in sorted(project.root.rglob("*")):
        name = str(path.relative_to(project.root))
        texts.append((f"the name of {name}", name))
        if path.is_file() and not path.is_symlink():
            texts.append((name, path.read_bytes().decode(errors="replace")))
    return [
        f"{name} in {where}"
        for name, secret in SECRETS.items()
        for where, text in texts
        if any(form in text for form in forms(secret))
    ]


def ask(project: Project, *argv: str, code: int = 0) -> None:
    """Runs lllaunch with secrets in the environment, and expects that none is told."""
    ended = project.lllaunch(*argv, env={**SECRETS, **CI})
    assert ended.returncode == code, ended.stderr
    assert not told(project, ended.stdout, ended.stderr)


@pytest.fixture
def asked(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Called:
    """The same in this process, for what starts nothing."""
    monkeypatch.chdir(project.root)
    for name, value in {**SECRETS, **CI}.items():
        monkeypatch.setenv(name, value)
    verbs = {name: verb(name) for name in ("check", "ls", "plan", "report", "show")}

    def ask(*argv: str, codes: tuple[int, ...] = (0,)) -> Ended:
        if argv[0] in verbs:
            ended = call(verbs[argv[0]], argv[1:], capfd)
        else:
            ended = call_app(argv, monkeypatch, capfd)
        assert ended.code in codes, ended.err
        assert not told(project, ended.out, ended.err)
        return ended

    return ask


def test_the_search_finds_what_is_there(project: Project) -> None:
    secret = SECRETS["PLAIN"]
    project.write("run/stdout.log", f"it is {quote(secret, safe='')}")
    assert told(project, secret) == ["PLAIN in what was printed", "PLAIN in run/stdout.log"]


def test_of_a_run_and_of_all_that_tells_of_it(project: Project, asked: Called) -> None:
    ask(project, "+exp=a", "+launch.env.MY_TOKEN=${oc.env:TYPED}")
    asked("show", "latest")
    asked("ls")
    for form in ("text", "json", "junit", "github", "html", "trace"):
        asked("report", "latest", "--format", form)
    ask(project, "rerun", "latest")


def test_of_plans_locks_and_checks(asked: Called) -> None:
    typed = "+launch.args.typed=${oc.env:TYPED}"
    asked("plan", "+exp=a", typed)
    asked("plan", "--json", "+exp=a", typed)
    asked("plan", "--format", "trainjob", "+exp=a", typed, "--nodes=2")
    # what Hydra sets is in no lock
    asked("plan", "--lock", "+exp=a", codes=(2,))
    asked("plan", "--lock", "+exp=a", UNSET)
    asked("plan", "--diff", "+exp=a", "launch.env.HF_TOKEN=${oc.env:TYPED}", codes=(5,))
    asked("plan", "--diff", "--json", "+exp=a", typed, "params.mid=x", codes=(5,))
    asked("plan", "-m", "+exp=a", "params.detour=${oc.env:SWEPT},b")
    for form in ("text", "json", "junit", "github"):
        asked("check", "--format", form)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("script", "argv", "code"),
    [
        ("raise ValueError('what was given is not told')", (), 3),
        ("import time; time.sleep(600)", ("launch.watchdog.timeout=1s",), 4),
    ],
)
def test_of_what_fails_or_hangs(
    project: Project, asked: Called, script: str, argv: tuple[str, ...], code: int
) -> None:
    project.write("train.py", f"import sys\n{script}\n")

    ask(project, "+exp=a", *argv, code=code)
    asked("show", "latest")
    for form in ("html", "trace"):
        asked("report", "--format", form)


def test_of_sweeps(project: Project, asked: Called) -> None:
    project.write("train.py", f"{CHECKS}sys.exit(3 if '--fail' in sys.argv else bool(given))\n")
    ask(project, "-m", "+exp=a", "+launch.args.swept=${oc.env:SWEPT},b")
    ask(project, "-m", "+exp=a", "params.lr=3,4", "+launch.args.fail=true", code=6)
    for form in ("text", "html", "trace"):
        asked("report", "latest", "--format", form)


def test_of_what_is_not_the_reviewed_plan(project: Project, asked: Called) -> None:
    asked("plan", "--lock", "+exp=a", UNSET)
    project.write("conf/lllaunch.yaml", "allow: {entrypoints: ['*'], env: ['*']}\n")
    typed = "+launch.args.typed=${oc.env:TYPED}"
    refused = asked("+exp=a", UNSET, "launch.locked=true", typed, codes=(5,))
    assert "${oc.env:TYPED}" in refused.err
    project.write("conf/lllaunch.yaml", "allow: {preload: []}\n")
    asked("+exp=a", UNSET, "launch.preload=['${oc.env:TYPED}']", codes=(2,))


# values that do not fit where they stand, in ways that others complain of
MISFITS = [
    'launch: {entrypoint: "-m ${oc.env:PLAIN}"}',
    'launch: {entrypoint: train.py, tee: "${oc.env:PLAIN}"}',
    'launch: {entrypoint: train.py, watchdog: {timeout: "${oc.env:PLAIN}"}}',
    'launch: {entrypoint: train.py, local_ranks_filter: ["${oc.env:PLAIN}"]}',
    'launch: {entrypoint: train.py, cwd: "${oc.env:PLAIN}"}',
    'launch: {entrypoint: train.py, args: ["${${oc.env:PLAIN}}"]}',
    "launch: {entrypoint: train.py, args: [\"${oc.decode:'[${oc.env:PLAIN}'}\"]}",
    'hydra: {job: {env_set: {A: "${${oc.env:PLAIN}}"}}}',
    'hydra: {run: {dir: "train.py/${oc.env:PLAIN}"}}',
    'hydra: {job: {chdir: "${oc.env:PLAIN}"}}',
    'hydra: {callbacks: {x: {_target_: "${oc.env:PLAIN}"}}}',
    'hydra: {job_logging: {root: {level: "${oc.env:PLAIN}"}}}',
]
OF_SWEEPS = [
    'hydra: {launcher: {gpus: "${oc.env:PLAIN}"}}',
    'hydra: {launcher: {resume: "${oc.env:PLAIN}"}}',
    'hydra: {sweeper: {max_batch_size: "${oc.env:PLAIN}"}}',
    'hydra: {sweep: {subdir: "${${oc.env:PLAIN}}"}}',
]


@pytest.mark.parametrize("text", [*MISFITS, *OF_SWEEPS])
def test_of_messages_about_values_that_do_not_fit(
    project: Project, asked: Called, text: str
) -> None:
    entrypoint = "" if text.startswith("launch") else "launch: {entrypoint: train.py}\n"
    project.write("conf/exp/a.yaml", f"# @package _global_\n{entrypoint}{text}\n")
    sweep = ("-m", "+lr=1,2") if text in OF_SWEEPS else ()
    asked(*sweep, "+exp=a", codes=(1, 2))
    asked("check", codes=(0, 2))


LITERAL = "sk-live-4f9aQ2kX8mB1vN7c"


@pytest.mark.parametrize(
    "argv",
    [
        ("+exp=a", f"+params.api-key={LITERAL}-${{params.lr}}"),
        ("+exp=a", f"+hydra.job.env_set.HF_TOKEN={LITERAL}"),
        ("+exp=a", f"+params.api_key='{LITERAL} [", "params.lr=="),
        ("+exp=literal",),
        ("-m", "+exp=a", f"+params.token={LITERAL},x1"),
        ("plan", "+exp=a", f"+params.api_key={LITERAL}"),
    ],
)
def test_a_literal_secret_that_is_refused_has_been_printed_and_written_nowhere(
    project: Project, asked: Called, argv: tuple[str, ...]
) -> None:
    project.experiment("a", "{entrypoint: env}", "params: {lr: 0}\n")
    literal = project.experiment("literal", "{entrypoint: env}", f"params: {{key: {LITERAL}}}\n")

    ended = asked(*argv, codes=(2,))

    assert "sk-live" not in ended.out + ended.err
    assert "expected a secret to come from the environment, got a literal" in ended.err
    files = {path for path in project.root.rglob("*") if path.is_file()} - {literal}
    assert not [path for path in files if b"sk-live" in path.read_bytes()]
    assert not list(project.root.rglob(".hydra"))


def test_a_literal_secret_of_an_own_app_is_refused_before_it_is_written(project: Project) -> None:
    app = "@lllaunch.main(config_path=None, version_base='1.3')\ndef main(cfg): ...\n"
    project.write("app.py", f"import lllaunch\n{app}main()\n")

    ended = project.python("app.py", f"+db.apiKey={LITERAL}", "launch.nproc=1")

    assert ended.returncode == 2
    assert "sk-live" not in ended.stdout + ended.stderr
    assert not list(project.root.rglob(".hydra"))


def test_literals_that_hydra_has_written_are_listed_by_nobody(
    project: Project, asked: Called
) -> None:
    project.experiment("plain", "{entrypoint: /bin/true}")
    assert project.lllaunch("+exp=plain").returncode == 0
    run = project.run_dir()
    (run / ".hydra" / "overrides.yaml").write_text(f"- +exp=plain\n- db.api-key={LITERAL}\n")

    for argv in (("ls",), ("ls", "--json"), ("show",), ("show", "--json"), ("report", str(run))):
        ended = asked(*argv)
        assert LITERAL not in ended.out + ended.err
        assert "api-key=${oc.env:API_KEY}" in ended.out or argv[0] == "report"


def test_ordinary_words_of_a_report_are_not_taken_for_secrets(project: Project) -> None:
    project.write("train.py", "import sys\nsys.exit(3)\n")
    project.experiment("a", "{entrypoint: train.py, args: ['${oc.env:WHO}', '${oc.env:OUT}']}")
    ended = project.lllaunch("+exp=a", env={"WHO": "root", "OUT": str(project.root)})

    assert ended.returncode == 3
    assert "oc.env" not in ended.stdout + ended.stderr.replace("overrides", "")
    assert "oc.env" not in (project.run_dir() / "result.json").read_text()
    assert "root cause" in ended.stderr.lower()
