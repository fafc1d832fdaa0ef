"""Pages say what the code does, manifests are what Kubernetes takes, odd words are found."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import runpy
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from lllaunch import errors
from lllaunch.cluster import detect
from lllaunch.errors import Code, Diagnostic, ExitCode, for_signal

ROOT = Path(__file__).parents[2]
CHECK = runpy.run_path(str(ROOT / "docs/check_prose.py"))["check"]


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "docs/generate_cli_reference.py"))["page"]
    path = ROOT / "docs/reference/cli.md"
    assert page() == path.read_text(), "run python docs/generate_cli_reference.py"


def test_every_variable_of_ours_is_on_its_page_and_no_other() -> None:
    sources = [*(ROOT / "lllaunch").rglob("*.py"), *(ROOT / "hydra_plugins").rglob("*.py")]
    pattern = re.compile(r"\bLLLAUNCH_[A-Z_]*[A-Z]\b")
    read = {name for path in sources for name in pattern.findall(path.read_text())}
    page = (ROOT / "docs/reference/environment.md").read_text()
    rows = re.findall(r"^\| `(LLLAUNCH_\w+)`", page, re.MULTILINE)
    assert sorted(rows) == sorted(read)


# what we wrote once, and what we write in its place
BEFORE_AND_AFTER = {
    "What workers have left behind and a sweep of them has given up is let be": "Orphans that"
    " cleanup has given up on are no longer touched when their parent exits",
    "How to [a](a.md), [b](b.md) and [c](c.md) says more": "See also: a, b, c",
    "What is none is omitted, and about thirty have room": "Non-numbers are ignored",
    "who reads it with `tail -f` says `tail -F`": "use `tail -F`, not `tail -f`",
    "416 of 450 told right": "416 of 450 correct",
    "The house: its rooms": "Architecture",
    "word " * 26: "word " * 25,
    f"{'incomprehensibility ' * 6}. " * 12: "It is easy to read. " * 20,
}


@pytest.mark.parametrize(("before", "after"), BEFORE_AND_AFTER.items())
def test_odd_words_are_found_and_plain_ones_are_not(before: str, after: str) -> None:
    assert list(CHECK(before))
    assert not list(CHECK(after))


def test_code_tables_and_lists_of_names_are_no_long_sentences() -> None:
    text = f"```text\n{'word ' * 40}\n```\n\n| {'word ' * 40} |\n\n{'`a`, ' * 40}and `b`.\n"
    assert not list(CHECK(text))
    (found,) = CHECK(f"# A page\n\nShort.\n\n- {'word, ' * 31}\n")
    assert found[0] == 5


def manifests() -> dict[str, Any]:
    text = (ROOT / "docs/howto/kubernetes.md").read_text()
    found = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    return {each["kind"]: each for each in found}


def test_the_job_and_its_service_are_those_of_kubernetes() -> None:
    found = manifests()
    models = pytest.importorskip("kubeflow_trainer_api.models")
    of_kinds = {"Job": models.IoK8sApiBatchV1Job, "Service": models.IoK8sApiCoreV1Service}
    for kind, model in of_kinds.items():
        made = model.from_dict(found[kind])
        assert made is not None
        assert made.to_dict() == found[kind]
    pod = found["Job"]["spec"]["template"]["spec"]
    assert pod["subdomain"] == found["Service"]["metadata"]["name"]
    assert found["Service"]["spec"]["selector"] == {"job-name": found["Job"]["metadata"]["name"]}


def test_a_pod_of_the_job_knows_where_it_stands() -> None:
    spec = manifests()["Job"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    environ = {each["name"]: each.get("value", "3") for each in container["env"]}

    found = detect.detect(environ)

    assert (found.max_nodes, found.node_rank) == (spec["completions"], 3)
    assert (found.host, found.port, found.rdzv_id) == ("bert-0.bert", 29500, "bert")


def test_every_variable_that_auto_reads_is_in_the_reference() -> None:
    tree = ast.parse(inspect.getsource(detect))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    pattern = re.compile(r"(SLURM|PET|SKYPILOT|DSTACK)_[A-Z_]+")
    read = {text for text in texts if isinstance(text, str) and pattern.fullmatch(text)}
    page = (ROOT / "docs/reference/config.md").read_text()
    assert {name for name in read if f"`{name}`" not in page} == set()


@pytest.mark.slow
def test_each_kind_of_diagnostic_is_explained_and_made_somewhere() -> None:
    root = Path(errors.__file__).parent
    page = (ROOT / "docs/reference/diagnostics.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE)
    assert rows == sorted(get_args(Code))
    sources = (path for path in root.rglob("*.py") if path != Path(errors.__file__))
    nodes = (node for path in sources for node in ast.walk(ast.parse(path.read_text())))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert texts >= {*rows}


def test_the_code_stands_in_the_line_that_says_what_is_wrong() -> None:
    found = Diagnostic("changed", "a", "job 1", "has changed", "put it back:\n  x: 1 -> 2")
    assert str(found) == "a: job 1 has changed; put it back [changed]:\n  x: 1 -> 2"


def test_every_exit_code_is_on_the_page_about_them() -> None:
    rows = re.findall(
        r"^\| (\d+) \|", (ROOT / "docs/reference/exit-codes.md").read_text(), re.MULTILINE
    )
    assert [int(code) for code in rows] == sorted(ExitCode)
    # those of signals are not those of anything else
    assert for_signal(15) == 143
    assert max(ExitCode) < for_signal(1)


def test_the_committed_pictures_are_the_tables() -> None:
    path = ROOT / "docs" / "generate_state_diagram.py"
    spec = importlib.util.spec_from_file_location("generate_state_diagram", path)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    text = (generator.DESIGN / "supervisor.md").read_text()
    assert generator.page("supervisor.md") == text, "run docs/generate_state_diagram.py"
    assert "RUNNING --> TERMINATING" in text
