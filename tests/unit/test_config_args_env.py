from __future__ import annotations

import ast
from typing import Any

import pytest

from lllaunch.config.fields import Findings
from lllaunch.config.locate import misfits, signature_of
from lllaunch.config.resolve import read_env, read_env_per_rank
from lllaunch.config.settings import check_worker_names, read_call, read_command_line
from lllaunch.config.tree import BROKEN, Withheld, conceal, reveal, show
from lllaunch.macros import WORKER_NAMES


def command_line(tree: Any) -> list[Any]:
    findings = Findings()
    words = read_command_line(tree, "launch.args", findings)
    assert [str(problem) for problem in findings.problems] == []
    return [text for text, _ in words]


def complaints(read: Any, tree: Any, *more: Any) -> list[str]:
    findings = Findings()
    read(tree, "launch.x", *more, findings)
    return [str(problem) for problem in findings.problems]


def test_a_word_knows_what_it_was_made_from() -> None:
    findings = Findings()
    tree = {"lr": 1, "tags": ["-1", "lr"], "-v": True, "none": None, "x-y": "--tags"}
    assert read_command_line(tree, "launch.args", findings) == [
        *(("--lr", ("lr",)), ("1", ("lr",))),
        *(("--tags", ("tags",)), ("-1", ("tags", 0)), ("lr", ("tags", 1))),
        ("-v", ("-v",)),
        *(("--x-y", ("x-y",)), ("--tags", ("x-y",))),
    ]
    assert read_command_line(["--a", "b"], "launch.args", findings) == [("--a", (0,)), ("b", (1,))]
    assert findings.problems == []


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


OPTION = "expected the name of an option, text without blanks and '='"


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        ("--lr 1", "launch.x: expected a list or a mapping of arguments, got '--lr 1'"),
        (
            [True],
            "launch.x[0]: expected text or a number, got true; quote it, or leave it out",
        ),
        (
            [None],
            "launch.x[0]: expected text or a number, got null; quote it, or leave it out",
        ),
        ([[1]], "launch.x[0]: expected text or a number, got [1]; quote it"),
        (
            {"a": {"b": 1}},
            "launch.x.a: expected text or a number, got {b: 1}; quote it",
        ),
        (
            {"a": [True]},
            "launch.x.a[0]: expected text or a number, got true; quote it, or leave it out",
        ),
        ({1: 2}, f"launch.x.1: {OPTION}, got 1; quote it"),
        ({"a b": 2}, f"launch.x.a b: {OPTION}, got 'a b'; quote it"),
        ({"a": "x\0"}, "launch.x.a: expected text without NUL characters, got 'x\\x00'"),
    ],
)
def test_what_cannot_be_a_command_line(tree: Any, complaint: str) -> None:
    assert complaints(read_command_line, tree) == [complaint]


def test_what_is_broken_already_is_not_told_twice() -> None:
    assert complaints(read_command_line, {"a": BROKEN, "b": [BROKEN]}) == []
    assert complaints(read_env, {"A": BROKEN}) == []


def test_a_call_is_positional_or_by_keyword() -> None:
    findings = Findings()
    assert read_call([1, {"a": 2}], "k", findings) == ([1, {"a": 2}], {})
    assert read_call({"a": [1]}, "k", findings) == ([], {"a": [1]})
    assert read_call(None, "k", findings) == ([], {})
    assert findings.count == 0
    assert complaints(read_call, {"a-b": 1, 3: 1}) == [
        "launch.x.a-b: expected the name of an argument of a function, got 'a-b'",
        "launch.x.3: expected the name of an argument of a function, got 3",
    ]
    assert complaints(read_call, 3) == [
        "launch.x: expected a list or a mapping of arguments, got 3"
    ]


def test_a_misspelt_fact_of_a_worker_is_told() -> None:
    (complaint,) = complaints(check_worker_names, {"a": ["--x=${worker:local_rnak}"]})
    assert complaint.startswith(
        "launch.x.a[0]: expected ${worker:NAME} with the name of a fact (rank, local_rank, "
    )
    assert complaint.endswith(
        "got '--x=${worker:local_rnak}'; there is no 'local_rnak'; did you mean 'local_rank'?"
    )
    assert complaints(check_worker_names, {"a": "${worker:rank} ${hostname}"}) == []
    (complaint,) = complaints(check_worker_names, "${worker:zzz}")
    assert complaint.endswith(
        ("got '${worker:zzz}'; there is no 'zzz'; there are ") + ", ".join(WORKER_NAMES)
    )


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
        ("def f(lr): ...", [], {}, ("", "m:f also requires 'lr'", "")),
        ("def f(a, *, b): ...", [], {}, ("", "m:f also requires 'a', 'b'", "")),
        (
            "def f(epochs=1): ...",
            [],
            {"epoch": 1},
            ("epoch", "m:f has no such argument", "did you mean 'epochs'?"),
        ),
        (
            "def f(a=1, /): ...",
            [],
            {"a": 1},
            ("a", "m:f has no such argument", "it is positional only: write 'args' as a list"),
        ),
        ("def f(a): ...", [1, 2], {}, ("", "expected at most 1 for m:f, got 2", "")),
        ("def f(a): ...", [1], {"a": 1}, ("a", "m:f is given it twice", "")),
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


QUOTE = "quote it (in a shell NAME=\"'...'\"): YAML may have changed how it was written"
NAME = "expected the name of a variable, without '=' and NUL characters"


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        ({"A": True}, f"launch.x.A: expected text, got true; {QUOTE}"),
        ({"A": 1.10}, f"launch.x.A: expected text, got 1.1; {QUOTE}"),
        ({"A": None}, "launch.x.A: expected text, got null; quote it, or leave the variable out"),
        ({"A": [1]}, "launch.x.A: expected text, as a variable has one value, got [1]"),
        ({1: "a"}, "launch.x.1: expected the name of a variable, text, got 1; quote the name"),
        ({"A=B": "a"}, f"launch.x.A=B: {NAME}, got 'A=B'"),
        ({"": "a"}, f"launch.x.: {NAME}, got ''"),
        ({"A": "\0"}, "launch.x.A: expected text without NUL characters, got '\\x00'"),
        ("A=1", "launch.x: expected a mapping of variables (NAME: value), got 'A=1'"),
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
    expected = "expected a variable that the launcher does not set for each worker"
    complaint = f"launch.x.{name}: {expected}, got '{name}'; leave it out"
    assert complaints(read_env, {name: "1"}) == [complaint]


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
        (
            [1],
            "launch.x: expected a mapping of local ranks to variables (0: {NAME: value}), got [1]",
        ),
        ({"a": {}}, "launch.x.a: expected a local rank or a range of them (0, 3, '1-7'), got 'a'"),
        (
            {4: {}},
            "launch.x.4: expected ranks from 0 to 3, as nproc is 4, got 4",
        ),
        ({"0-2": {}, 1: {}}, "launch.x: expected each rank at most once, got 0-2 and 1"),
        ({"1": {}, 1: {}}, "launch.x: expected each rank at most once, got 1"),
        ({0: {"A": True}}, f"launch.x.0.A: expected text, got true; {QUOTE}"),
        ({0: 3}, "launch.x.0: expected a mapping of variables (NAME: value), got 3"),
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
