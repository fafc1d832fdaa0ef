from __future__ import annotations

from pathlib import Path

import pytest

from lllaunch.errors import ConfigError
from lllaunch.review.paths import tree_top
from lllaunch.review.policy import Policy, parse_policy

GOOD = """\
# what may run here
allow:
  entrypoints: ["examples.*", "mypkg.train:*", -m json.tool, scripts/*.py]
  programs: [python, /usr/bin/env]
  preload: &modules [torch, numpy]
  targets: *modules
  callbacks: []
  searchpath: ["pkg://mypkg.conf"]
  env: [PYTHONHASHSEED]
  paths: [/scratch/*]
  cluster: ["module load cuda/12.4"]
"""
ANYWAY = "those in the tree are allowed anyway"


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, "p.yaml")
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


def test_a_policy_is_read() -> None:
    assert parse_policy(GOOD, "p.yaml") == Policy(
        "p.yaml",
        entrypoints=("examples.*", "mypkg.train:*", "-m json.tool", "scripts/*.py"),
        programs=("python", "/usr/bin/env"),
        preload=("torch", "numpy"),
        targets=("torch", "numpy"),
        searchpath=("pkg://mypkg.conf",),
        env=("PYTHONHASHSEED",),
        paths=("/scratch/*",),
        cluster=("module load cuda/12.4",),
    )


def test_all_that_is_wrong_is_told_at_once() -> None:
    text = """\
alow: {}
allow:
  entrypoint: [a]
  programs: python
  preload:
    - torch
    - 3.10
    - yes
    - {a: b}
    - ""
  targets:
  paths: [scratch]
  env: {A: b}
"""
    assert problems_of(text) == [
        "p.yaml:1: alow: unknown setting; did you mean 'allow'? [unknown-key]",
        "p.yaml:3: allow.entrypoint: unknown setting; did you mean 'entrypoints'? [unknown-key]",
        (
            "p.yaml:4: allow.programs: expected a list of patterns, got 'python'; "
            "write ['python'] [policy]"
        ),
        "p.yaml:7: allow.preload[1]: expected text, got 3.1; quote it [policy]",
        "p.yaml:8: allow.preload[2]: expected text, got true; quote it [policy]",
        "p.yaml:9: allow.preload[3]: expected text, got {a: 'b'} [policy]",
        "p.yaml:10: allow.preload[4]: expected text without blanks around it, got '' [policy]",
        (
            "p.yaml:11: allow.targets: expected a list of patterns, got "
            "null; leave it out, or write [] [policy]"
        ),
        f"p.yaml:12: allow.paths[0]: expected an absolute path, got 'scratch'; {ANYWAY} [policy]",
        "p.yaml:13: allow.env: expected a list of patterns, got {A: 'b'} [policy]",
    ]


@pytest.mark.parametrize("text", ["", "a", "launch: {}", "allow:", "allow: true"])
def test_a_file_that_allows_nothing_by_mistake(text: str) -> None:
    problem = problems_of(text)[0]
    assert problem.startswith("p.yaml:1: ")
    assert "expected a mapping" in problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("allow:\n  programs: [*]\n", "p.yaml:2: is not valid YAML"),
        ("allow:\n  entrypoints: [*.py]\n", "quote a pattern that begins with *"),
        ("allow:\n  entrypoints: [*a]\n", "has no &a for *a; quote a pattern that begins"),
        ("allow: !!python/object/apply:os.system [id]\n", "p.yaml:1: has a tag"),
        ("allow: {}\nallow: {programs: [sh]}\n", "p.yaml:2: has the key 'allow' of line 1"),
    ],
)
def test_broken_and_hostile_yaml(text: str, expected: str) -> None:
    (problem,) = problems_of(text)
    assert expected in problem


def test_the_top_of_the_tree(tmp_path: Path) -> None:
    below = tmp_path / "tree" / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "tree" / ".git").write_text("gitdir: elsewhere")
    assert tree_top(str(below)) == str(tmp_path / "tree")
    assert tree_top(str(tmp_path / "tree")) == str(tmp_path / "tree")
