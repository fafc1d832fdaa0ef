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


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, "p.yaml")
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


def test_a_policy_is_read() -> None:
    assert parse_policy(GOOD, "p.yaml") == Policy(
        entrypoints=("examples.*", "mypkg.train:*", "-m json.tool", "scripts/*.py"),
        programs=("python", "/usr/bin/env"),
        preload=("torch", "numpy"),
        targets=("torch", "numpy"),
        searchpath=("pkg://mypkg.conf",),
        env=("PYTHONHASHSEED",),
        paths=("/scratch/*",),
        cluster=("module load cuda/12.4",),
        file="p.yaml",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("allow: {}\nalow: {}", "p.yaml:1: is no policy: object contains unknown field alow"),
        ("allow:\n  entrypoint: [a]", "object contains unknown field entrypoint at $.allow"),
        ("allow:\n  programs: python", "p.yaml:2: is no policy: expected array, got str at"),
        (
            "allow:\n  preload:\n  - torch\n  - 3.1",
            "p.yaml:4: is no policy: expected str",
        ),
        ("allow:\n  targets:", "p.yaml:2: is no policy: expected array, got null at"),
        (
            "allow:\n  paths:\n  - /a\n  - b",
            "p.yaml:4: allow.paths: expected an absolute path",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, expected: str) -> None:
    (problem,) = problems_of(text)
    assert expected in problem


@pytest.mark.parametrize("text", ["", "a", "launch: {}", "allow:", "allow: true"])
def test_a_file_that_allows_nothing_by_mistake(text: str) -> None:
    problem = problems_of(text)[0]
    assert problem.startswith("p.yaml:1: ")
    assert "is no policy: " in problem


def test_the_top_of_the_tree(tmp_path: Path) -> None:
    below = tmp_path / "tree" / "a" / "b"
    below.mkdir(parents=True)
    (tmp_path / "tree" / ".git").write_text("gitdir: elsewhere")
    assert tree_top(str(below)) == str(tmp_path / "tree")
    assert tree_top(str(tmp_path / "tree")) == str(tmp_path / "tree")
