"""A tree of configs as text: what each file says, and that none of them can do harm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lllaunch.checking import tree
from lllaunch.checking.tree import ConfigFile, read_tree
from lllaunch.errors import ConfigError


def read(text: str) -> ConfigFile:
    return ConfigFile.of("f", "f.yaml", text)


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        read(text)
    return str(error.value)


def test_merge_keys_and_standard_tags_are_read_as_hydra_does(tmp_path: Path) -> None:
    text = """
base: &base {a: 1, b: {c: 2}}
more: &more {b: 5, d: 6}
one: {<<: *base, a: 3}
both:
  <<: [*base, *more]
  e: !!str 7
"""
    path = tmp_path / "f.yaml"
    path.write_text(text)
    assert read(text).data == OmegaConf.to_container(OmegaConf.load(path))
    assert read(text).document.lines.nearest(("one",)) == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: [\n", "f.yaml:3: is not valid YAML"),
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: has the key 'a' of line 1 a second time [yaml]"),
        ("a: !!python/object/apply:os.system [x]\n", "has a tag"),
        ("a: 1\n---\nb: 2\n", "found another document [yaml]"),
        ("a: " + "[" * 500 + "]" * 500, "is nested more than"),
        ("? [a]\n: 1\n", "has a key that is not a plain value [yaml]"),
        ("a: {<<: 3}\n", "merges (<<) what is not a mapping [yaml]"),
        ("a: &a [*a]\n", "holds itself"),
        ("a: \x07\n", "a character that it may not hold"),
        ("a: " + "9" * 10_000 + "\n", "has a number that cannot be read"),
    ],
)
def test_what_hydra_could_not_read_or_nobody_should(text: str, said: str) -> None:
    assert said in refusal(text)


# ---- directories


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "exp" / "vision").mkdir(parents=True)
    (tmp_path / "conf" / "locks" / "vision").mkdir(parents=True)
    return tmp_path / "conf"


def test_files_locks_and_policies_are_told_apart(conf: Path) -> None:
    for name in (
        *("config", "lllaunch", "exp/a", "exp/vision/b", "exp/lllaunch", ".hidden", "exp/.h"),
        *("locks/a", "locks/vision/b", "locks/.t"),
    ):
        (conf / f"{name}.yaml").write_text("a: 1\n")
    (conf / "exp" / "old.yml").write_text("a: 1\n")
    (conf / "notes.txt").write_text("a: [\n")
    tree = read_tree("conf")
    assert sorted(tree.files) == ["config", "exp/a", "exp/lllaunch", "exp/vision/b"]
    assert tree.locks == {"a": "conf/locks/a.yaml", "vision/b": "conf/locks/vision/b.yaml"}
    assert tree.policy == "conf/lllaunch.yaml"
    (warning,) = tree.found
    assert (warning.place, warning.level) == ("conf/exp/old.yml", "warning")
    assert tree.files["exp/vision/b"].path == "conf/exp/vision/b.yaml"
    assert tree.files["exp/vision/b"].group == "exp/vision"


def test_what_cannot_be_read_is_told_and_makes_nobody_wait(conf: Path) -> None:
    os.mkfifo(conf / "exp" / "fifo.yaml")
    (conf / "exp" / "bytes.yaml").write_bytes(b"a: 1\nb: \xff\n")
    (conf / "exp" / "gone.yaml").symlink_to("nowhere.yaml")
    (conf / "exp" / "self.yaml").symlink_to("self.yaml")
    (conf / "exp" / "loop").symlink_to(".")
    (conf / "exp" / "vision" / "up").symlink_to("../..")
    (conf / "exp" / "syntax.yaml").write_text("a: 1\nb: {\n")
    (conf / "exp" / "long.yaml").write_text("#" * (3 * 1024 * 1024))
    found = {each.place: each.message for each in read_tree("conf").found}
    assert found == {
        "conf/exp/fifo.yaml": "is not an ordinary file",
        "conf/exp/bytes.yaml:2": "is not UTF-8 text",
        "conf/exp/gone.yaml": "is not there",
        "conf/exp/self.yaml": "cannot be read: Too many levels of symbolic links",
        "conf/exp/syntax.yaml:3": found["conf/exp/syntax.yaml:3"],
        "conf/exp/long.yaml": "is longer than 2 MiB",
    }
    assert found["conf/exp/syntax.yaml:3"].startswith("is not valid YAML: ")


def test_a_tree_without_end(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MOST_FILES", 10)
    for number in range(20):
        (conf / "exp" / f"{number}.yaml").write_text("a: 1\n")
    (only,) = [each for each in read_tree("conf").found if each.code == "too-large"]
    assert only.said == "holds more than 10 files: the others are not checked [too-large]"
