"""What is an experiment, who includes whom, and what is too much. Nothing is composed."""

from __future__ import annotations

from lllaunch.checking.findings import CheckedDiagnostic
from lllaunch.checking.tree import (
    MOST_INCLUDES,
    ConfigFile,
    Experiment,
    Graph,
    broken_by,
    endless,
    find_experiments,
    read_facts,
)

GLOBAL = "# @package _global_\n"


def tree(**texts: str) -> dict[str, ConfigFile]:
    """Files by name; two underscores in a name are a slash."""
    names = {name.replace("__", "/"): text for name, text in texts.items()}
    return {
        name: ConfigFile(name, f"conf/{name}.yaml", read_facts(text, name))
        for name, text in names.items()
    }


def found(files: dict[str, ConfigFile]) -> dict[str, Experiment]:
    return {each.file.name: each for each in find_experiments(files, Graph(files))}


def test_what_is_an_experiment_and_how_it_is_asked_for() -> None:
    files = tree(
        exp__a=f"{GLOBAL}launch: {{entrypoint: a.py}}\n",
        exp__vision__b=f"{GLOBAL}defaults: [/exp/a]\n",
        model__big=f"{GLOBAL}launch: {{nproc: 4}}\n",
        model__small="width: 3\n",
        model__other="launch: {nproc: 4}\n",
        own="launch: {nproc: 2}\nlr: 1\n",
        through="defaults: [model: big]\n",
        at="defaults: [model@launch.args: small]\n",
        plain="lr: 1\ndefaults: [model: small]\n",
    )
    asked = {
        name: (each.overrides, each.config_name, each.is_preset, each.included)
        for name, each in found(files).items()
    }
    assert asked == {
        "exp/a": (("+exp=a",), None, False, True),
        "exp/vision/b": (("+exp=vision/b",), None, False, False),
        "model/big": (("+model=big",), None, True, True),
        "own": ((), "own", False, False),
        "through": ((), "through", False, False),
        "at": ((), "at", False, False),
    }


def test_names_are_told_apart_and_quoted() -> None:
    files = tree(exp__a="{}", a="launch: {nproc: 1}")
    files |= {name: ConfigFile(name, name) for name in ("exp/100", "exp/c,d", "exp/it's", "exp/on")}
    known = {each.name: each.overrides for each in found(files).values()}
    assert known == {
        "exp/a": ("+exp=a",),
        "a": (),
        "100": ("+exp='100'",),
        "c,d": ("+exp='c,d'",),
        "it's": ("+exp='it\\'s'",),
        "on": ("+exp=on",),
    }


def kept(files: dict[str, ConfigFile]) -> tuple[list[str], list[CheckedDiagnostic]]:
    graph = Graph(files)
    problems = {each.name: endless(each, files, graph) for each in find_experiments(files, graph)}
    names = [name for name, problem in problems.items() if problem is None]
    return names, [problem for problem in problems.values() if problem is not None]


def test_configs_that_include_each_other_are_told_at_one_place() -> None:
    files = tree(
        exp__a=f"{GLOBAL}defaults:\n  - c\n",
        exp__b=f"{GLOBAL}defaults:\n  - a\n",
        exp__c=f"{GLOBAL}defaults:\n  - _self_\n  - b\n",
        exp__d=f"{GLOBAL}defaults: [a]\n",
        exp__e=f"{GLOBAL}defaults: [e]\n",
        exp__f=f"{GLOBAL}launch: {{}}\n",
    )
    names, problems = kept(files)
    assert names == ["f"]
    told = {(each.place, each.message) for each in problems}
    assert told == {
        (
            "conf/exp/a.yaml:3",
            "these configs include each other: exp/a -> exp/c -> exp/b -> exp/a",
        ),
        ("conf/exp/e.yaml:2", "these configs include each other: exp/e -> exp/e"),
    }
    assert [each.experiments for each in problems] == [("a",), ("b",), ("c",), ("d",), ("e",)]


def test_includes_that_double_with_each_level_are_too_much() -> None:
    texts = {
        f"exp__e{number}": f"defaults: [e{number + 1}@a, e{number + 1}@b]\n" for number in range(60)
    }
    names, problems = kept(tree(**texts, exp__e60="launch: {nproc: 1}\n"))
    assert names == [f"e{number}" for number in range(52, 61)]
    assert {each.message for each in problems} == {f"includes more than {MOST_INCLUDES} configs"}


def test_an_experiment_is_broken_by_the_files_that_it_includes() -> None:
    files = tree(
        exp__a=f"{GLOBAL}defaults: [/model: big]\n", exp__b="{}", model__big="defaults: [../bad]\n"
    )
    problem = CheckedDiagnostic.at(2, "type", "conf/bad.yaml", 3, "", "is not valid YAML [yaml]")
    files["bad"] = ConfigFile("bad", "conf/bad.yaml", problem=problem)
    files["exp/c"] = tree(exp__c="defaults: [{/model: 'b${x}'}]\n")["exp/c"]
    files["exp/d"] = tree(exp__d="defaults: [{/model: 'a${x:{y}}${z}'}]\n")["exp/d"]
    graph, experiments = Graph(files), found(files)
    # whatever a name that is made up may come to
    assert broken_by(experiments["exp/c"], files, graph) == (problem,)
    assert broken_by(experiments["exp/d"], files, graph) == ()
    assert broken_by(experiments["exp/a"], files, graph) == (problem,)
    assert broken_by(experiments["exp/b"], files, graph) == ()
