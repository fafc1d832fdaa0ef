from __future__ import annotations

import ast
from typing import Any

import pytest

from lllaunch.config.command import SearchPlace, read_call_of, read_command_line
from lllaunch.config.fields import Findings
from lllaunch.config.locate import misfits, signature_of
from lllaunch.config.resolve import read_env, read_env_per_rank
from lllaunch.config.tree import Withheld, show
from tests.unit.launch_nodes import mistakes


def read(reader: Any, tree: Any) -> Any:
    findings = Findings()
    found = reader(tree, "launch.args", findings)
    assert [str(problem) for problem in findings.problems] == []
    return found


def command_line(tree: Any) -> list[Any]:
    return [text for text, _ in read(read_command_line, tree)]


def complaints(read: Any, tree: Any, *more: Any) -> list[str]:
    findings = Findings()
    read(tree, "launch.x", *more, findings)
    return [str(problem) for problem in findings.problems]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({}, []),
        (["a", 1, 0.5, "--x=${worker:rank}"], ["a", "1", "0.5", "--x=${worker:rank}"]),
        ({"amp": True, "off": False, "no": None, "none": []}, ["--amp"]),
        ({"shift": -1, "empty": ""}, ["--shift", "-1", "--empty", ""]),
        ({"num_workers": 2, "--x": 3}, ["--num_workers", "2", "--x", "3"]),
    ],
)
def test_a_command_line(tree: Any, words: list[str]) -> None:
    assert command_line(tree) == words


NO_COMMAND_LINE = """
x: [true]
    launch.x[0]: expected text or a number, got true; quote it [arguments]
x: {a: {b: 1}}
    launch.x.a: expected text or a number, got {b: 1}; quote it [arguments]
x: {a b: 2}
    launch.x.a b: expected the name of an option, text without blanks and '=', got 'a b'; quote it
    [arguments]
"""


@pytest.mark.parametrize(("node", "told"), mistakes(NO_COMMAND_LINE))
def test_what_cannot_be_a_command_line(node: Any, told: str) -> None:
    assert complaints(read_command_line, node["x"]) == [told]


def call(args: Any, findings: Findings) -> tuple[Any, Any]:
    found = read_call_of("sys:exit", args, SearchPlace("/"), "launch", findings)
    return found.args, dict(found.kwargs)


def test_a_call_is_positional_or_by_keyword() -> None:
    findings = Findings()
    assert call([1, {"a": 2}], findings) == ((1, {"a": 2}), {})
    assert call({"a": [1]}, findings) == ((), {"a": [1]})
    assert call(None, findings) == ((), {})
    assert findings.count == 0
    call({"a-b": 1}, findings)
    call(3, findings)
    assert [str(problem) for problem in findings.problems] == [
        "launch.args.a-b: expected the name of an argument of a function, got 'a-b' [arguments]",
        "launch.args: expected a list or a mapping of arguments, got 3 [type]",
    ]


NO_SUCH = "m:f has no such argument"
POSITIONAL = "it is positional only: write 'args' as a list"


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "expected"),
    [
        ("def f(): ...", [], {}, []),
        ("def f(a, b=1): ...", [1], {"b": 2}, []),
        ("def f(a, /, *, c): ...", [1], {"c": 1}, []),
        ("def f(*args, **more): ...", [1, 2], {"x": 1}, []),
        ("def f(a, *, b): ...", [], {}, [("", "m:f: missing a required argument: 'a'", "")]),
        ("def f(last=1): ...", [], {"lats": 1}, [("lats", NO_SUCH, "did you mean 'last'?")]),
        ("def f(a=1, /): ...", [], {"a": 1}, [("a", NO_SUCH, POSITIONAL)]),
        ("def f(a): ...", [1, 2], {}, [("", "m:f: too many positional arguments", "")]),
        ("def f(a): ...", [1], {"a": 1}, [("", "m:f: multiple values for argument 'a'", "")]),
    ],
)
def test_whether_arguments_fit_a_function(
    function: str, args: list[Any], kwargs: dict[str, Any], expected: list[tuple[str, str, str]]
) -> None:
    definition = ast.parse(function).body[0]
    assert isinstance(definition, ast.FunctionDef)
    assert list(misfits(signature_of(definition), args, kwargs, "m:f")) == expected


def env(tree: Any) -> dict[str, Any]:
    variables: dict[str, Any] = read(read_env, tree)
    return variables


def test_variables_are_text_or_whole_numbers_in_order() -> None:
    assert list(env({"B": 1, "A": "x", "C": ""}).items()) == [("A", "x"), ("B", "1"), ("C", "")]
    assert env(None) == {}
    assert env({"OMP_NUM_THREADS": 4, "CUDA_VISIBLE_DEVICES": "0"})["OMP_NUM_THREADS"] == "4"


NO_VARIABLES = """
x: {A: true}
    launch.x.A: expected text, got true; quote it (in a shell NAME="'...'"), or leave it out
    [variable]
x: {A: null}
    launch.x.A: expected text, got null; quote it (in a shell NAME="'...'"), or leave it out
    [variable]
x: {A=B: a}
    launch.x.A=B: expected the name of a variable, text without '=' and NUL, got 'A=B' [variable]
x: A=1
    launch.x: expected a mapping of variables (NAME: value), got 'A=1' [type]
"""


@pytest.mark.parametrize(("node", "told"), mistakes(NO_VARIABLES))
def test_what_cannot_be_a_variable(node: Any, told: str) -> None:
    assert complaints(read_env, node["x"]) == [told]


def test_the_variables_of_the_contract_may_not_be_set() -> None:
    names = [
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
        *("GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "LLLAUNCH_RESULT_FILE"),
    ]
    expected = "expected a variable that the launcher does not set for each worker"
    assert complaints(read_env, dict.fromkeys(names, "1")) == [
        f"launch.x.{name}: {expected}, got '{name}'; leave it out [variable]" for name in names
    ]


def test_variables_by_rank() -> None:
    findings = Findings()
    tree = {"1-2": {"A": 1}, 0: {"B": "x"}, "3": None}
    per_rank = read_env_per_rank(tree, "k", 4, findings)
    assert findings.count == 0
    assert per_rank == {range(1): {"B": "x"}, range(1, 3): {"A": "1"}, range(3, 4): {}}
    assert list(per_rank) == [range(1), range(1, 3), range(3, 4)]


NO_VARIABLES_BY_RANK = """
x: [1]
    launch.x: expected a mapping of local ranks to variables (0: {NAME: value}), got [1] [type]
x: {0-2: {}, 1: {}}
    launch.x: expected each rank at most once, got 0-2 and 1 [ranks]
"""


@pytest.mark.parametrize(("node", "told"), mistakes(NO_VARIABLES_BY_RANK))
def test_what_cannot_be_variables_by_rank(node: Any, told: str) -> None:
    assert complaints(read_env_per_rank, node["x"], 4) == [told]


def test_values_are_shown_short_and_without_secrets() -> None:
    secret = Withheld("hf_abc", "${oc.env:T}")
    assert show({"a": secret, "b": [None, True, "x", 1.5]}) == (
        "{a: '${oc.env:T}', b: [null, true, 'x', 1.5]}"
    )
    assert len(show("x" * 10**6)) == 100
    assert len(show(list(range(10**6)))) == 100
    assert "hf_abc" not in repr(secret) + str(secret)
