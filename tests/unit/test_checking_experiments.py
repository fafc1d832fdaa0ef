"""What is an experiment, and what of a tree cannot be composed, or would never end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lllaunch.checking import check as checking
from lllaunch.checking.check import check_tree
from lllaunch.checking.findings import Outcome
from lllaunch.checking.tree import ConfigFile, find_experiments

GLOBAL = "# @package _global_\n"
TRAIN = f"{GLOBAL}launch: {{entrypoint: env}}\n"

Checked = Callable[..., Outcome]


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checked:
    """Checks files by name; two underscores in a name are a slash."""
    monkeypatch.chdir(tmp_path)

    def check(**texts: str) -> Outcome:
        for name, text in texts.items():
            path = tmp_path / "conf" / f"{name.replace('__', '/')}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return check_tree("conf")

    return check


def test_what_is_an_experiment_and_how_it_is_asked_for(checked: Checked) -> None:
    outcome = checked(
        exp__a=TRAIN,
        exp__vision__b=f"{GLOBAL}defaults: [/exp/a]\n",
        model__big=f"{GLOBAL}launch: {{nproc: 4}}\n",
        model__small="width: 3\n",
        model__other="launch: {nproc: 4}\n",
        own="launch: {nproc: 2}\nlr: 1\n",
        through="defaults: [model: big]\n",
        at="defaults: [model@launch.env: small]\n",
        plain="lr: 1\ndefaults: [model: small]\n",
        elses="defaults: [schema_of_an_app]\n",
    )
    assert {each.name: each.command for each in outcome.experiments} == {
        "a": ("+exp=a",),
        "vision/b": ("+exp=vision/b",),
        "model/big": ("+model=big",),
        "own": ("--config-name", "own"),
        "through": ("--config-name", "through"),
        "at": ("--config-name", "at"),
    }
    assert outcome.found == ()


def test_names_are_told_apart_and_quoted() -> None:
    files = [
        *(ConfigFile.of(*each, "{}") for each in [("exp/a", "f"), ("a", "f")]),
        *(ConfigFile(name, name) for name in ("exp/100", "exp/c,d", "exp/it's", "exp/on")),
    ]
    known = {each.name: each.overrides for each in find_experiments(files)}
    assert known == {
        "exp/a": ("+exp=a",),
        "a": (),
        "100": ('+exp="100"',),
        "c,d": ('+exp="c,d"',),
        "it's": ('+exp="it\'s"',),
        "on": ("+exp=on",),
    }


def test_composing_an_experiment_has_an_end(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    # includes that double with each level
    monkeypatch.setattr(checking, "LONGEST", 3.0)
    texts = {f"m__e{n}": f"defaults: [e{n + 1}@a, e{n + 1}@b]\n" for n in range(60)}
    texts["m__e60"] = "x: 1\n"
    outcome = checked(**texts, exp__a=f"{GLOBAL}defaults: [/m: e0]\n", exp__f=TRAIN)
    (only,) = outcome.found
    assert only.said == "cannot be composed within 3 s [too-large]"
    assert (only.place, only.experiments) == ("conf/exp/a.yaml:2", ("a",))


def test_an_experiment_is_broken_by_the_files_that_it_includes(checked: Checked) -> None:
    outcome = checked(
        bad="a: [\n",
        model__big="defaults: [/bad]\n",
        exp__a=f"{GLOBAL}defaults: [/model: big]\n",
        exp__b=TRAIN,
        exp__c=f"{GLOBAL}defaults: [{{/model: 'b${{x}}'}}]\nx: ig\n",
    )
    (only,) = [each for each in outcome.found if each.code == "yaml"]
    assert (only.file, only.experiments) == ("conf/bad.yaml", ("a",))
