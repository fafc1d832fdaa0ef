"""A tree of configs as text: what each file says, where it says it, and that none does harm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lllaunch.app.compose import ComposeFailed
from lllaunch.checking import check
from lllaunch.checking.check import ConfigFile, compose_problem, in_short, lint, read_tree
from lllaunch.checking.findings import CheckedDiagnostic, Outcome
from lllaunch.errors import ConfigError, Diagnostic


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
    monkeypatch.setattr(check, "MOST_FILES", 10)
    for number in range(20):
        (conf / "exp" / f"{number}.yaml").write_text("a: 1\n")
    (only,) = [each for each in read_tree("conf").found if each.code == "too-large"]
    assert only.said == "holds more than 10 files: the others are not checked [too-large]"


GLOBAL = "# @package _global_\n"


def a_file(text: str, name: str = "exp/a") -> ConfigFile:
    return ConfigFile.of(name, f"conf/{name}.yaml", text)


# ---- what Hydra says

NOT_FOUND = """In 'exp/a': Could not find 'model/larg'

Available options in 'model':
\tlarge
\tsmall
Config search path:
\tprovider=hydra, path=pkg://hydra.conf"""


def failure(reason: str, text: str, message: str = "") -> Diagnostic:
    own = a_file(text)
    other = a_file("defaults:\n  - x\n  - y\n", "exp/b")
    error = ComposeFailed(reason, message)
    return compose_problem(error, "a", own, {"exp/a": own, "exp/b": other})


def test_a_config_that_is_not_there_is_told_where_it_is_asked_for() -> None:
    message = "conf/exp/a.yaml: no config 'larg'; did you mean 'large'?"
    found = failure(NOT_FOUND, f"{GLOBAL}defaults:\n  - _self_\n  - /model: larg\n", message)
    assert found.place == "conf/exp/a.yaml:4"
    assert found.said == "defaults: no config 'larg'; did you mean 'large'? [compose]"
    found = failure(NOT_FOUND, f"{GLOBAL}x: 1\ndefaults:\n  - /model: ${{y}}\n")
    assert found.place == "conf/exp/a.yaml:3"
    found = failure(NOT_FOUND.replace("exp/a", "exp/b").replace("model/larg", "exp/y"), GLOBAL)
    assert (found.place, found.experiments) == ("conf/exp/b.yaml:3", ("a",))
    assert failure(NOT_FOUND.replace("exp/a", "elsewhere"), GLOBAL).place == "conf/exp/a.yaml:1"


def test_what_hydra_says_is_one_line() -> None:
    error = ComposeFailed("a\n\n  b\n    full_key: x.y\n  object_type=dict")
    assert in_short(error) == "a b"
    assert len(in_short(ComposeFailed("x" * 10_000))) < 1000


def test_a_problem_of_hydras_node_has_the_line_of_its_key() -> None:
    text = f"{GLOBAL}hydra:\n  run:\n    dir: ${{x}}\n"
    reason = "Interpolation key 'x' not found\n    full_key: hydra.run.dir\n    object_type=dict"
    found = failure(reason, text)
    assert (found.place, found.key) == ("conf/exp/a.yaml:4", "hydra.run.dir")
    assert found.message == "cannot be composed: Interpolation key 'x' not found"


# ---- what a text shows by itself


def told(name: str, text: str) -> list[str]:
    return [f"{each.place} {each.level} {each.said}" for each in lint(a_file(text, name))]


def test_unquoted_colons() -> None:
    text = f"""{GLOBAL}launch:
  tee: 1:3
  redirects: {{0: 2:1}}
  watchdog: {{stall: 1:30}}
  grace_period: 0:30
  env: {{A: 10:30}}
  nnodes: 1:4
params: {{at: 1:2:3, b: "1:3"}}
"""
    assert told("exp/a", text) == [
        "conf/exp/a.yaml:3 error launch.tee: YAML reads 1:3 as 63: quote it [base-60]",
        "conf/exp/a.yaml:4 error launch.redirects.0: YAML reads 2:1 as 121: quote it [base-60]",
        "conf/exp/a.yaml:5 error launch.watchdog.stall: YAML reads 1:30 as 90: quote it [base-60]",
        "conf/exp/a.yaml:7 warning launch.env.A: YAML reads 10:30 as 630: quote it [base-60]",
        "conf/exp/a.yaml:8 error launch.nnodes: YAML reads 1:4 as 64: quote it [base-60]",
        "conf/exp/a.yaml:9 warning params.at: YAML reads 1:2:3 as 3723: quote it [base-60]",
    ]
    assert told("quiet/x", "# @package launch.watchdog\nstall: 1:30\n") == [
        "conf/quiet/x.yaml:2 error launch.watchdog.stall: YAML reads 1:30 as 90: quote it [base-60]"
    ]


def test_files_that_are_put_elsewhere_than_they_seem_to_say() -> None:
    assert told("exp/v/a", "x: 1\nlaunch: {}\n") == [
        (
            "conf/exp/v/a.yaml:2 error launch: is put under exp.v, where nothing reads it; "
            "begin the file with '# @package _global_' [package]"
        )
    ]
    late = "comes too late: '# @package' has to stand before anything else, comments too [package]"
    assert told("model/a", f"# Mine.\n{GLOBAL}launch: {{}}\n") == [
        f"conf/model/a.yaml:2 error {late}"
    ]
    assert told("exp/a", f"{GLOBAL}[launch]\n") == [
        "conf/exp/a.yaml:1 error is no mapping of keys to values [type]"
    ]
    assert told("model/a", "launch: {}\n") == told("exp/a", "defaults: [b]\n") == []
    assert told("exp/a", "") == []


# ---- findings


@pytest.mark.parametrize(
    ("codes", "strict", "code"),
    [([0], True, 2), ([5, 0], False, 5), ([5, 2], False, 2), ([5], True, 5)],
)
def test_exit_codes(codes: list[int], strict: bool, code: int) -> None:
    found = [CheckedDiagnostic.at(each, "type", "f", 1, "", "m") for each in codes]
    assert Outcome("", (), (), (), tuple(found)).exit_code(strict=strict) == code
