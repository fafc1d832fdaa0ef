from __future__ import annotations

import ast
from typing import Any

import pytest

from lllaunch.config.args import check_worker_names, read_call, read_command_line
from lllaunch.config.env import read_env, read_env_per_rank
from lllaunch.config.findings import Findings
from lllaunch.config.signature import misfits, signature_of
from lllaunch.config.tree import BROKEN, Withheld, conceal, reveal, show


def command_line(tree: Any) -> list[Any]:
    findings = Findings()
    words = read_command_line(tree, "launch.args", findings)
    assert [str(problem) for problem in findings.problems] == []
    return words


def complaints(read: Any, tree: Any, *more: Any) -> list[str]:
    findings = Findings()
    read(tree, "launch.x", *more, findings)
    return [str(problem) for problem in findings.problems]


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (None, []),
        ([], []),
        ({}, []),
        (["a", 1, 0.5, "--x=${worker:rank}"], ["a", "1", "0.5", "--x=${worker:rank}"]),
        ({"lr": 0.1, "name": "a b"}, ["--lr", "0.1", "--name", "a b"]),
        ({"amp": True, "off": False, "no": None, "none": []}, ["--amp"]),
        ({"layers": [1, 2]}, ["--layers", "1", "2"]),
        ({"-v": True, "--x": 1}, ["-v", "--x", "1"]),
        ({"shift": -1, "empty": ""}, ["--shift", "-1", "--empty", ""]),
        ({"num_workers": 2, "a-b": 3}, ["--num_workers", "2", "--a-b", "3"]),
    ],
)
def test_a_command_line(tree: Any, words: list[str]) -> None:
    assert command_line(tree) == words


def test_a_secret_stays_marked_on_the_command_line() -> None:
    words = command_line({"token": Withheld("abc", "${oc.env:T}"), "n": 1})
    assert reveal(words) == ["--token", "abc", "--n", "1"]
    assert conceal(words) == ["--token", "${oc.env:T}", "--n", "1"]
    assert "abc" not in repr(words)


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        ("--lr 1", "launch.x: '--lr 1' is neither a list nor a mapping of arguments"),
        (
            [True],
            "launch.x[0]: true cannot stand alone on a command line; quote it, or leave it out",
        ),
        (
            [None],
            "launch.x[0]: null cannot stand alone on a command line; quote it, or leave it out",
        ),
        ([[1]], "launch.x[0]: [1] cannot stand on a command line: it is not one word; quote it"),
        (
            {"a": {"b": 1}},
            "launch.x.a: {b: 1} cannot stand on a command line: it is not one word; quote it",
        ),
        (
            {"a": [True]},
            "launch.x.a[0]: true cannot stand alone on a command line; quote it, or leave it out",
        ),
        ({1: 2}, "launch.x.1: is no name of an option: quote it, without blanks and '='"),
        ({"a b": 2}, "launch.x.a b: is no name of an option: quote it, without blanks and '='"),
        ({"a": "x\0"}, "launch.x.a: 'x\\x00' holds a NUL character, which no argument can"),
    ],
)
def test_what_cannot_be_a_command_line(tree: Any, complaint: str) -> None:
    assert complaints(read_command_line, tree) == [complaint]


def test_what_is_broken_already_is_not_told_twice() -> None:
    assert complaints(read_command_line, {"a": BROKEN, "b": [BROKEN]}) == []
    assert complaints(read_env, {"A": BROKEN, "RANK": BROKEN}) == []


def test_a_call_is_positional_or_by_keyword() -> None:
    findings = Findings()
    assert read_call([1, {"a": 2}], "k", findings) == ([1, {"a": 2}], {})
    assert read_call({"a": [1]}, "k", findings) == ([], {"a": [1]})
    assert read_call(None, "k", findings) == ([], {})
    assert findings.count == 0
    assert complaints(read_call, {"a-b": 1, 3: 1}) == [
        "launch.x.a-b: is no name of an argument of a function",
        "launch.x.3: is no name of an argument of a function",
    ]
    assert complaints(read_call, 3) == ["launch.x: 3 is neither a list nor a mapping of arguments"]


def test_a_misspelt_fact_of_a_worker_is_told() -> None:
    (complaint,) = complaints(check_worker_names, {"a": ["--x=${worker:local_rnak}"]})
    assert complaint.startswith(
        "launch.x.a[0]: '--x=${worker:local_rnak}' asks for a worker's fact"
    )
    assert complaint.endswith("did you mean 'local_rank'?")
    assert complaints(check_worker_names, {"a": "${worker:rank} ${hostname}"}) == []
    (complaint,) = complaints(check_worker_names, "${worker:zzz}")
    assert "there are role_name, rank" in complaint


def fit(function: str, *args: Any, **kwargs: Any) -> list[tuple[str, str, str]]:
    definition = ast.parse(function).body[0]
    assert isinstance(definition, ast.FunctionDef)
    return list(misfits(signature_of(definition), args, kwargs, "m:f"))


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        ("def f(): ...", [], {}),
        ("def f(a, b=1): ...", [1], {}),
        ("def f(a, b=1): ...", [1], {"b": 2}),
        ("def f(a, /, *, c): ...", [1], {"c": 1}),
        ("def f(*args, **more): ...", [1, 2], {"x": 1}),
        ("def f(a, /, **more): ...", [1], {"x": 1}),
    ],
)
def test_arguments_that_fit(function: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    assert fit(function, *args, **kwargs) == []


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "misfit"),
    [
        ("def f(lr): ...", [], {}, ("", "lacks 'lr', which m:f requires", "")),
        ("def f(a, *, b): ...", [], {}, ("", "lacks 'a', 'b', which m:f requires", "")),
        (
            "def f(epochs=1): ...",
            [],
            {"epoch": 1},
            ("epoch", "is no argument of m:f", "did you mean 'epochs'?"),
        ),
        (
            "def f(a=1, /): ...",
            [],
            {"a": 1},
            ("a", "is no argument of m:f", "it is positional only: write 'args' as a list"),
        ),
        ("def f(a): ...", [1, 2], {}, ("", "has 2 arguments, but m:f takes at most 1", "")),
        ("def f(a): ...", [1], {"a": 1}, ("a", "is given twice to m:f", "")),
    ],
)
def test_arguments_that_do_not(
    function: str, args: list[Any], kwargs: dict[str, Any], misfit: tuple[str, str, str]
) -> None:
    assert fit(function, *args, **kwargs) == [misfit]


def env(tree: Any) -> dict[str, Any]:
    findings = Findings()
    variables = read_env(tree, "launch.env", findings)
    assert [str(problem) for problem in findings.problems] == []
    return variables


def test_variables_are_text_or_whole_numbers_in_order() -> None:
    assert list(env({"B": 1, "A": "x", "C": ""}).items()) == [("A", "x"), ("B", "1"), ("C", "")]
    assert env(None) == {}
    assert env({"OMP_NUM_THREADS": 4, "CUDA_VISIBLE_DEVICES": "0"})["OMP_NUM_THREADS"] == "4"


def test_secret_variables_are_marked() -> None:
    variables = env({"HF_TOKEN": Withheld("abc", "${oc.env:HF_TOKEN}"), "API_KEY": "xyz"})
    assert conceal(variables) == {"API_KEY": "${oc.env:API_KEY}", "HF_TOKEN": "${oc.env:HF_TOKEN}"}
    assert reveal(variables) == {"API_KEY": "xyz", "HF_TOKEN": "abc"}


QUOTE = "is no text: YAML may have changed how it was written; quote it"


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        ({"A": True}, f"launch.x.A: true {QUOTE}"),
        ({"A": 1.10}, f"launch.x.A: 1.1 {QUOTE}"),
        ({"A": None}, "launch.x.A: null is no text; quote it, or leave the variable out"),
        ({"A": [1]}, "launch.x.A: [1] is no text: a variable has one value"),
        ({1: "a"}, "launch.x.1: 'a' has a name that is no text; quote the name"),
        ({"A=B": "a"}, "launch.x.A=B: 'a' has a name that no variable can have"),
        ({"": "a"}, "launch.x.: 'a' has a name that no variable can have"),
        ({"A": "\0"}, "launch.x.A: '\\x00' holds a NUL character, which no variable can"),
        ("A=1", "launch.x: 'A=1' is not a mapping of variables (NAME: value)"),
    ],
)
def test_what_cannot_be_a_variable(tree: Any, complaint: str) -> None:
    assert complaints(read_env, tree) == [complaint]


@pytest.mark.parametrize(
    "name",
    [
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"),
        *("GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "LLLAUNCH_RESULT_FILE"),
    ],
)
def test_the_variables_of_the_contract_may_not_be_set(name: str) -> None:
    refused = "may not be set: the launcher sets this variable for each worker"
    assert complaints(read_env, {name: "1"}) == [f"launch.x.{name}: '1' {refused}"]


def test_variables_by_rank() -> None:
    findings = Findings()
    tree = {"1-2": {"A": 1}, 0: {"B": "x"}, "3": None}
    per_rank = read_env_per_rank(tree, "k", 4, findings)
    assert findings.count == 0
    assert per_rank == {range(1): {"B": "x"}, range(1, 3): {"A": "1"}, range(3, 4): {}}
    assert list(per_rank) == [range(1), range(1, 3), range(3, 4)]


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        ([1], "launch.x: [1] is not a mapping of local ranks to variables (0: {NAME: value})"),
        ({"a": {}}, "launch.x.a: 'a' is not a local rank or a range of them (0, 3, '1-7')"),
        (
            {4: {}},
            "launch.x.4: 4 is beyond the last rank: with nproc 4, ranks are 0-3",
        ),
        ({"0-2": {}, 1: {}}, "launch.x: names a rank twice: 0-2 and 1 overlap"),
        ({"1": {}, 1: {}}, "launch.x: 1 stands for the same ranks as another key"),
        ({0: {"A": True}}, f"launch.x.0.A: true {QUOTE}"),
        ({0: 3}, "launch.x.0: 3 is not a mapping of variables (NAME: value)"),
    ],
)
def test_what_cannot_be_variables_by_rank(tree: Any, complaint: str) -> None:
    assert complaints(read_env_per_rank, tree, 4) == [complaint]


def test_values_are_shown_short_and_without_secrets() -> None:
    secret = Withheld("hf_abc", "${oc.env:T}")
    assert show({"a": secret, "b": [None, True, "x", 1.5]}) == (
        "{a: '${oc.env:T}', b: [null, true, 'x', 1.5]}"
    )
    assert len(show("x" * 10**6)) == 100
    assert len(show(list(range(10**6)))) == 100
    assert "hf_abc" not in repr(secret) + str(secret)
