"""Where problems are, what was meant, and what the text of a file shows by itself."""

from __future__ import annotations

import pytest

from lllaunch.app.compose import ComposeFailed
from lllaunch.checking.check import compose_problem, in_short
from lllaunch.checking.findings import CheckedDiagnostic, Outcome
from lllaunch.checking.tree import ConfigFile, lint
from lllaunch.errors import Diagnostic

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
