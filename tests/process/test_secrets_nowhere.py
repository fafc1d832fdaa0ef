"""Secrets of the environment reach the workers, and no file and no output of ours."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from support.project import Project

NAMES = (
    *(
        "HF_TOKEN",
        "PLAIN",
        "DETOUR",
        "NESTED",
        "PART",
        "DECODED",
        "DEFAULTED",
        "API_KEY",
        "INDIRECT",
    ),
    *("RANKED", "FILTERED", "SET", "COPIED", "LAUNCHER", "UNUSED", "TYPED", "SWEPT", "RUN_ID"),
)
# long, each another one, with characters that some forms would change
SECRETS = {name: f"S{name.lower()}+Zq7/{place:02d}xW9vK" for place, name in enumerate(NAMES)}
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


def told(project: Project, ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Where a secret stands: in what was printed, in a file, or in the name of one."""
    texts = {"standard output": ended.stdout, "standard error": ended.stderr}
    for path in project.root.rglob("*"):
        name = str(path.relative_to(project.root))
        texts[f"the name of {name}"] = name
        if path.is_file() and not path.is_symlink():
            texts[name] = path.read_bytes().decode(errors="replace")
    return [
        f"{name} in {where}"
        for name, secret in SECRETS.items()
        for where, text in texts.items()
        if any(form in text for form in forms(secret))
    ]


def ask(project: Project, *argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs lllaunch with secrets in the environment, and expects that none is told."""
    ended = project.lllaunch(*argv, env={**SECRETS, **CI})
    assert ended.returncode == code, ended.stderr
    assert not told(project, ended)
    return ended


def test_the_search_finds_what_is_there(project: Project) -> None:
    project.write("train.py", "import os\nprint(os.environ['PLAIN'])\n")

    found = told(project, project.lllaunch("+exp=a", env={**SECRETS, **CI}))

    assert "PLAIN in standard output" in found
    assert any(where.endswith("stdout.log") for where in found)
    assert {where.partition(" ")[0] for where in found} == {"PLAIN"}


def test_of_a_run_and_of_all_that_tells_of_it(project: Project) -> None:
    ask(project, "+exp=a", "+launch.env.MY_TOKEN=${oc.env:TYPED}")
    directory = str(project.run_dir().relative_to(project.root))
    ask(project, "show", "latest")
    ask(project, "ls")
    for form in ("text", "json", "junit", "github", "html", "trace"):
        ask(project, "report", directory, "--format", form)
    ask(project, "rerun", directory)


def test_of_plans_locks_and_checks(project: Project) -> None:
    typed = "+launch.args.typed=${oc.env:TYPED}"
    ask(project, "plan", "+exp=a", typed)
    ask(project, "plan", "--json", "+exp=a", typed)
    ask(project, "plan", "--format", "trainjob", "+exp=a", typed, "--nodes=2")
    ask(project, "plan", "--lock", "+exp=a", UNSET)
    ask(project, "plan", "--diff", "+exp=a", "launch.env.HF_TOKEN=${oc.env:TYPED}", code=5)
    ask(project, "plan", "--diff", "--json", "+exp=a", typed, "params.mid=x", code=5)
    ask(project, "plan", "-m", "+exp=a", "params.detour=${oc.env:SWEPT},b")
    for form in ("text", "json", "junit", "github"):
        ask(project, "check", "--format", form)


@pytest.mark.parametrize(
    ("script", "argv", "code"),
    [
        ("sys.exit(3)", (), 3),
        ("raise ValueError('what was given is not told')", (), 3),
        ("import time; time.sleep(60)", ("launch.watchdog.timeout=1s",), 4),
    ],
)
def test_of_what_fails_or_hangs(
    project: Project, script: str, argv: tuple[str, ...], code: int
) -> None:
    project.write("train.py", f"import sys\n{script}\n")

    ask(project, "+exp=a", *argv, code=code)
    ask(project, "show", "latest")
    for form in ("html", "trace"):
        ask(project, "report", "--format", form)
    ask(project, "report", "--format", "html")


def test_of_sweeps(project: Project) -> None:
    ask(project, "-m", "+exp=a", "params.lr=1,2", "+launch.args.swept=${oc.env:SWEPT},b")
    project.write("train.py", "raise SystemExit(3)\n")
    ask(project, "-m", "+exp=a", "params.lr=3,4", code=6)
    for form in ("text", "html", "trace"):
        ask(project, "report", "latest", "--format", form)


def test_of_what_is_not_the_reviewed_plan(project: Project) -> None:
    ask(project, "plan", "--lock", "+exp=a", code=2)
    ask(project, "plan", "--lock", "+exp=a", UNSET)
    project.write("conf/lllaunch.yaml", "allow: {preload: []}\n")
    preload = "launch.preload=['${oc.env:TYPED}']"
    ended = project.lllaunch(
        *("+exp=a", UNSET, "launch.locked=true", "+launch.args.typed=${oc.env:TYPED}", preload),
        env={**SECRETS, **CI},
    )

    assert ended.returncode in {2, 5}
    assert not told(project, ended)


# launch node, the rest: values that do not fit where they stand, in ways that others complain of
MISFITS = {
    "mask": ('tee: "${oc.env:PLAIN}"', ""),
    "number": ('nproc: "${oc.env:PLAIN}"', ""),
    "duration": ('watchdog: {timeout: "${oc.env:PLAIN}"}', ""),
    "preset": ('watchdog: "${oc.env:PLAIN}"', ""),
    "signals": ('signals: ["${oc.env:PLAIN}"]', ""),
    "ranks": ('local_ranks_filter: ["${oc.env:PLAIN}"]', ""),
    "directory": ('cwd: "${oc.env:PLAIN}"', ""),
    "preload": ('preload: ["${oc.env:PLAIN}"]', ""),
    "lock": ('locked: "${oc.env:PLAIN}"', ""),
    "key of a config": ('args: ["${${oc.env:PLAIN}}"]', ""),
    "not decodable": ("args: [\"${oc.decode:'[${oc.env:PLAIN}'}\"]", ""),
    "variable": ("nproc: 1", 'hydra: {job: {env_set: {A: "${${oc.env:PLAIN}}"}}}\n'),
    "output": ("nproc: 1", 'hydra: {run: {dir: "${${oc.env:PLAIN}}"}}\n'),
    "output in a file": ("nproc: 1", 'hydra: {run: {dir: "train.py/${oc.env:PLAIN}"}}\n'),
    "chdir": ("nproc: 1", 'hydra: {job: {chdir: "${oc.env:PLAIN}"}}\n'),
    "mode": ("nproc: 1", 'hydra: {mode: "${oc.env:PLAIN}", job: {chdir: x}}\n'),
    "callback": ("nproc: 1", 'hydra: {callbacks: {x: {_target_: "${oc.env:PLAIN}"}}}\n'),
    "level": ("nproc: 1", 'hydra: {job_logging: {root: {level: "${oc.env:PLAIN}"}}}\n'),
    "default": ("nproc: 1", 'defaults: ["x${oc.env:PLAIN}"]\n'),
}


@pytest.mark.parametrize("name", MISFITS)
def test_of_messages_about_values_that_do_not_fit(project: Project, name: str) -> None:
    launch, more = MISFITS[name]
    project.experiment("a", f"{{entrypoint: train.py, {launch}}}", more)

    ended = project.lllaunch("+exp=a", env={**SECRETS, **CI})

    assert ended.returncode in {1, 2, 5}
    assert not told(project, ended)
    planned = project.lllaunch("plan", "+exp=a", env={**SECRETS, **CI})
    assert not told(project, planned)


@pytest.mark.parametrize(
    "entrypoint",
    ["${oc.env:PLAIN}", "${oc.env:PLAIN}.py", "${oc.env:PLAIN}:f", "-m ${oc.env:PLAIN}"],
)
def test_of_entrypoints(project: Project, entrypoint: str) -> None:
    project.experiment("a", f'{{entrypoint: "{entrypoint}"}}')

    ask(project, "+exp=a", code=2)
    ask(project, "plan", "+exp=a", code=2)
    ask(project, "check", code=2)


@pytest.mark.parametrize(
    "more",
    [
        'launcher: {cpus: "${oc.env:PLAIN}"}',
        'launcher: {gpus: "${oc.env:PLAIN}"}',
        'launcher: {resume: "${oc.env:PLAIN}"}',
        'launcher: {on_failure: "${oc.env:PLAIN}"}',
        'sweeper: {max_batch_size: "${oc.env:PLAIN}"}',
        'sweep: {subdir: "${${oc.env:PLAIN}}"}',
        'job: {env_set: {A: "${${oc.env:PLAIN}}"}}',
        'job_logging: {root: {level: "${oc.env:PLAIN}"}}',
    ],
)
def test_of_messages_about_sweeps(project: Project, more: str) -> None:
    project.experiment("a", "{entrypoint: train.py}", f"hydra: {{{more}}}\n")

    ended = project.lllaunch("-m", "+exp=a", "+lr=1,2", env={**SECRETS, **CI})

    assert ended.returncode in {1, 2, 6}
    assert not told(project, ended)


LITERAL = "sk-live-4f9aQ2"
OWN_APP = """\
import lllaunch

@lllaunch.main(config_path=None, version_base="1.3")
def main(cfg):
    print("it ran")

if __name__ == "__main__":
    main()
"""


def literal_told(project: Project, ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Where the literal stands, but in the config that the user wrote."""
    texts = {"standard output": ended.stdout, "standard error": ended.stderr}
    for path in project.root.rglob("*"):
        if path.is_file() and path.parent.name != "exp":
            texts[str(path)] = path.read_bytes().decode(errors="replace")
    return [where for where, text in texts.items() if LITERAL in text or "sk-live" in text]


@pytest.mark.parametrize(
    "argv",
    [
        ("+exp=a", f"+launch.env.API_KEY={LITERAL}"),
        ("+exp=a", f"+params.apiKey={LITERAL}"),
        ("+exp=a", f"+params.api-key={LITERAL}-${{params.lr}}"),
        ("+exp=a", f"+launch.args.x={{db-passwd: {LITERAL}}}"),
        ("+exp=a", f"+hydra.job.env_set.HF_TOKEN={LITERAL}"),
        ("+exp=a", f"+params.api_key='{LITERAL} [", "params.lr=="),
        ("+exp=a", f"+params.api_key={LITERAL}", "params.api_key=${oc.env:HOME}"),
        ("+exp=literal",),
        ("-m", "+exp=a", f"+params.token={LITERAL},x1"),
        ("-m", "+exp=literal", "params.lr=1,2"),
        ("-m", "+exp=a,literal"),
        ("--cfg", "job", "+exp=literal"),
        ("plan", "+exp=a", f"+params.api_key={LITERAL}"),
    ],
)
def test_a_literal_secret_that_is_refused_has_been_printed_and_written_nowhere(
    project: Project, argv: tuple[str, ...]
) -> None:
    project.experiment("a", "{entrypoint: /bin/true}", "params: {lr: 0}\n")
    project.experiment("literal", "{entrypoint: /bin/true}", f"params: {{lr: 0, key: {LITERAL}}}\n")

    ended = project.lllaunch(*argv, env=CI)

    assert ended.returncode in {2, 6}
    assert not literal_told(project, ended)
    assert "expected a secret to come from the environment, got a literal" in ended.stderr
    if "a,literal" not in argv[-1]:
        assert not list(project.root.rglob(".hydra"))
        assert ended.returncode == 2


def test_a_literal_secret_of_an_own_app_is_refused_before_it_is_written(project: Project) -> None:
    project.write("app.py", OWN_APP)

    ended = project.python("app.py", f"+db.apiKey={LITERAL}", "launch.nproc=1")

    assert ended.returncode == 2
    assert not literal_told(project, ended)
    assert not list(project.root.rglob(".hydra"))


def test_a_config_group_may_be_called_like_a_secret(project: Project) -> None:
    project.write("conf/db/credentials/prod.yaml", "user: ${oc.env:USER,nobody}\n")
    project.experiment("plain", "{entrypoint: /bin/true}")

    ended = project.lllaunch("+exp=plain", "+db/credentials=prod")

    assert ended.returncode == 0, ended.stderr


def test_literals_that_hydra_has_written_are_listed_by_nobody(project: Project) -> None:
    project.experiment("plain", "{entrypoint: /bin/true}")
    assert project.lllaunch("+exp=plain").returncode == 0
    run = project.run_dir()
    (run / ".hydra" / "overrides.yaml").write_text(f"- +exp=plain\n- db.api-key={LITERAL}\n")
    verbs = (("ls",), ("ls", "--json"), ("show", str(run)), ("show", "--json", str(run)))

    for argv in (*verbs, ("report", str(run))):
        ended = project.lllaunch(*argv)
        assert ended.returncode == 0, ended.stderr
        assert LITERAL not in ended.stdout + ended.stderr
        assert "api-key=${oc.env:API_KEY}" in ended.stdout or argv[0] == "report"


def test_ordinary_words_of_a_report_are_not_taken_for_secrets(project: Project) -> None:
    project.write("train.py", "import sys\nsys.exit(3)\n")
    project.experiment(
        "a",
        "{entrypoint: train.py, env: {WHO: '${oc.env:WHO}', OUT: '${oc.env:OUT}'},"
        " args: ['${oc.env:WHO}', '${oc.env:OUT}']}",
    )
    ended = project.lllaunch("+exp=a", env={"WHO": "root", "OUT": str(project.root)})

    assert ended.returncode == 3
    assert "oc.env" not in ended.stdout + ended.stderr.replace("overrides", "")
    assert "oc.env" not in (project.run_dir() / "result.json").read_text()
    assert "Root cause" in ended.stderr or "root cause" in ended.stderr.lower()
