"""The examples for CI systems, and those on pages, are what those systems take.

Workflows are held to the JSON Schemas that check-jsonschema carries.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from support.repositories import ENV

from lllaunch import verbs
from lllaunch.app.command_line import VERBS

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / ".github" / "workflows" / "lllaunch.yml"
MANIFEST = ROOT / ".pre-commit-hooks.yaml"
CONFIG = ROOT / "examples" / "ci" / "pre-commit-config.yaml"
OWN = ROOT / ".pre-commit-config.yaml"
PAGES = ("results-in-ci.md", "review-configs.md")
SCHEMAS = {
    "github": ("vendor.github-workflows",),
    "gitlab": ("vendor.gitlab-ci", "--data-transform", "gitlab-ci"),
}

BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LLLAUNCH = re.compile(r"python -m lllaunch(?= |$)", re.MULTILINE)


def kind_of(text: str) -> str | None:
    """Which system a file of YAML is for."""
    data = yaml.safe_load(text)
    if "repos" in data:
        return "pre-commit"
    if "jobs" in data:
        return "github"
    scripted = any("script" in job for job in data.values() if isinstance(job, dict))
    return "gitlab" if scripted else None


def files_of_ci() -> Iterator[Any]:
    """The examples, and what the pages show: the kind, and the text."""
    for config in (CONFIG, OWN):
        yield pytest.param("pre-commit", config.read_text(), id=config.name)
    yield pytest.param("github", EXAMPLE.read_text(), id=EXAMPLE.name)
    for page in PAGES:
        for text in BLOCK.findall((ROOT / "docs" / "howto" / page).read_text()):
            if (kind := kind_of(text)) is not None:
                yield pytest.param(kind, text, id=f"{page}-{kind}")


def schema_problems(kind: str, file: Path) -> str:
    check = pytest.importorskip("check_jsonschema").main
    runner = pytest.importorskip("click.testing").CliRunner()
    ended = runner.invoke(check, ["--builtin-schema", *SCHEMAS[kind], str(file)])
    assert ended.exit_code in {0, 1}, ended.output
    return ended.output if ended.exit_code else ""


@pytest.mark.parametrize(("kind", "text"), [*files_of_ci()])
def test_what_is_shown_is_what_the_system_takes(kind: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "example.yml"
    file.write_text(text)
    if kind == "pre-commit":
        pre_commit = pytest.importorskip("pre_commit.main")
        assert pre_commit.main(["validate-config", str(file)]) == 0
    else:
        assert not schema_problems(kind, file)


def commands(text: str) -> list[list[str]]:
    """The command lines of lllaunch in a file of YAML, in whichever key they stand."""
    found: list[list[str]] = []

    def look(node: Any) -> None:
        if isinstance(node, dict):
            look(list(node.values()))
        elif isinstance(node, list):
            for each in node:
                look(each)
        elif isinstance(node, str):
            found.extend(commands_of(node))

    look(yaml.safe_load(text))
    return found


def commands_of(script: str) -> Iterator[list[str]]:
    for line in script.replace("\\\n", " ").splitlines():
        if at := LLLAUNCH.search(line):
            yield shlex.split(line[at.end() :], comments=True)


def mistake(argv: list[str]) -> str:
    """What ``python -m lllaunch`` would not take of a command line; empty if it takes it."""
    verb = argv[0] if argv else ""
    if verb in VERBS:
        main = verbs.verb(verb)
        with mock.patch(f"{main.__module__}.perform") as perform:
            main([])
        return refusal(perform.call_args.args[0], argv[1:])
    if verb.isidentifier():
        return f"no verb {verb}"
    parser = get_args_parser()
    problem = refusal(parser, argv)
    if problem:
        return problem
    for each in OverridesParser.create().parse_overrides(parser.parse_args(argv).overrides):
        if each.key_or_group == "exp" and not (ROOT / f"conf/exp/{each.value()}.yaml").is_file():
            return f"no experiment {each.value()}"
    return ""


def refusal(parser: argparse.ArgumentParser, argv: list[str]) -> str:
    try:
        _, unknown = parser.parse_known_args(argv)
    except SystemExit:
        return f"wrong arguments: {argv}"
    return f"unknown arguments: {unknown}" if unknown else ""


@pytest.mark.parametrize(
    "text", [MANIFEST.read_text(), *(each.values[1] for each in files_of_ci())]
)
def test_verbs_and_flags_of_all_commands_exist(text: str) -> None:
    found = commands(text)
    assert found
    wrong = filter(None, map(mistake, found))
    # a page has experiments of its own
    own = text not in {MANIFEST.read_text(), EXAMPLE.read_text(), OWN.read_text()}
    assert not [each for each in wrong if not (own and each.startswith("no experiment"))]


def test_the_example_gives_a_pull_request_no_more_than_it_needs() -> None:
    data = yaml.safe_load(EXAMPLE.read_text())
    # YAML 1.1 reads the key `on` as true
    assert list(data[True]) == ["pull_request"]
    assert data["permissions"] == {"contents": "read"}
    for job in data["jobs"].values():
        assert "permissions" not in job
        # what a pull request is called must not become part of a script
        assert not [step for step in job["steps"] if "${{" in step.get("run", "")]


def test_the_workflow_shows_which_plans_change(tmp_path: Path) -> None:
    steps = yaml.safe_load(EXAMPLE.read_text())["jobs"]["check"]["steps"]
    (script,) = [step["run"] for step in steps if "git diff" in step.get("run", "")]
    git = "git -c user.name=A -c user.email=a@b"
    change = "sed -i s/2/4/ conf/locks/one.yaml"
    setup = f"""set -e; git init -q; mkdir -p conf/locks; echo nproc: 2 >conf/locks/one.yaml
    git add .; {git} commit -qm one; {change}; {git} commit -qam two"""
    summary = tmp_path / "summary.md"
    env = ENV | {"GITHUB_STEP_SUMMARY": str(summary)}
    subprocess.run(["bash", "-c", f"{setup}\n{script}"], cwd=tmp_path, env=env, check=True)
    assert "\n-nproc: 2\n+nproc: 4\n```\n" in summary.read_text()
