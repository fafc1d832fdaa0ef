"""What an experiment is, and what configs refer to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lllaunch.app.compose import ConfigRequest
from lllaunch.checking import check as checking
from lllaunch.checking.check import (
    ConfigFile,
    Examined,
    Experiment,
    about_unused,
    check_tree,
    find_experiments,
    told_unused,
    unused_keys,
)
from lllaunch.checking.findings import Outcome, merged
from lllaunch.config.document import lines_of
from lllaunch.config.omegaconf_compat import may_refer_to
from lllaunch.config.origins import Layer, Origin, origins_of

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


def keys(text: object, *path: object) -> list[str]:
    return list(may_refer_to(text, path or ("launch", "args", "x")))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("${a.b} and ${ c[0].d }", ["a.b", "c.0.d"]),
        (r"\${a.b}", []),
        (r"\\${a.b}", ["a.b"]),
        ("${.y}", ["launch.args.y"]),
        ("${..y.z}", ["launch.y.z"]),
        ("${oc.select:a.b,3}", ["a.b", "3"]),
        ("${oc.dict.values: params.x }", ["params.x"]),
        ("${mine:${a.b},'c.d',[x]}", ["a.b", "c.d"]),
        ("${oc.env:HOME,${a}}", ["a"]),
        ("${worker:rank}", []),
        ("${a.${b}}", ["b", "a"]),
        ("${a.b[${c}]}", ["c", "a.b"]),
        ("${${c}}", ["c", ""]),
    ],
)
def test_references_of_a_text(text: object, found: list[str]) -> None:
    assert keys(text) == found


_NAMES = st.sampled_from("abc")
_TEXTS = st.one_of(
    st.just("x"),
    _NAMES.map(lambda name: f"${{{name}}}"),
    st.tuples(_NAMES, _NAMES).map(lambda two: f"${{{two[0]}.{two[1]}}}"),
    st.tuples(_NAMES, _NAMES).map(lambda two: f"y ${{oc.select:{two[0]}.{two[1]}}}"),
    _NAMES.map(lambda name: f"${{.{name}}}"),
    _NAMES.map(lambda name: f"${{.${{{name}}}}}"),
)
_NODES: Any = st.recursive(
    _TEXTS,
    lambda inner: st.one_of(
        st.dictionaries(_NAMES, inner, min_size=1, max_size=3), st.lists(inner, max_size=2)
    ),
    max_leaves=8,
)


def _value(config: Any) -> Any:
    try:
        return OmegaConf.to_container(config.launch, resolve=True)
    except (OmegaConfBaseException, RecursionError):
        return "no value"


@given(st.dictionaries(_NAMES, _NODES, max_size=3), _TEXTS, st.data())
def test_what_is_told_as_unused_changes_nothing(
    config: dict[str, Any], text: str, data: st.DataObject
) -> None:
    whole = {"launch": {"x": text, "y": "${a}"}, **config}
    before = _value(OmegaConf.create(whole))
    unused = sorted(unused_keys(whole))
    if not unused or before == "no value":
        return
    changed = OmegaConf.create(whole)
    changed[data.draw(st.sampled_from(unused))] = "changed"
    assert _value(changed) == before


# ---- told, with places


class Composition:
    """Layers as Hydra lays them, without Hydra."""

    def __init__(self, *layers: tuple[str, str]) -> None:
        given = []
        self.config: dict[str, Any] = {}
        for file, text in layers:
            kind: Any = "schema" if "://" in file else "file"
            given.append(Layer(Origin(kind, file), yaml.safe_load(text), lines_of(text)))
            merged: Any = OmegaConf.merge(OmegaConf.create(self.config), OmegaConf.create(text))
            self.config = OmegaConf.to_container(merged)  # type: ignore[assignment]
        self.origins = origins_of(given, self.config)
        self.files = [file for file, _ in layers]

    def examined(self, name: str) -> Examined:
        files = [file for file in self.files if "://" not in file]
        unused = unused_keys(self.config)
        return Examined(
            Experiment(name, ConfigFile("", "")),
            ConfigRequest(),
            made_of={*files},
            used=frozenset(self.config) - unused,
            unused=[*about_unused(unused, self.origins, files, name)],
        )


def told(**compositions: Composition) -> list[str]:
    examined = [each.examined(name) for name, each in compositions.items()]
    return [
        f"{each.place} {each.said} [{' '.join(each.experiments)}]"
        for each in merged(told_unused(examined))
    ]


NOTHING = "has no effect: nothing under launch refers to it"
LAUNCH = 'launch: {x: "${params.lr}"}\n'


def test_a_file_that_others_share_is_blamed_for_what_none_of_them_uses() -> None:
    shared = ("s.yaml", "params: {lr: 1, unused: 2}\nextra: {a: 1}\n")
    a = Composition(shared, ("a.yaml", LAUNCH))
    b = Composition(shared, ("b.yaml", 'launch: {x: "${extra}"}\nparams: {lr: 3}\n'))
    # one uses it
    assert told(a=a, b=b) == [f"b.yaml:2 params: {NOTHING} [unused-key] [b]"]
    assert told(a=a, c=a) == [f"s.yaml:2 extra: {NOTHING} [unused-key] [a c]"]


def test_what_was_probably_meant() -> None:
    text = """launch: {x: "${params.lr}"}
lauch: {nproc: 2}
params: {lr: 1}
default: [x]
nproc: 4
lr: 3
"""
    assert told(a=Composition(("a.yaml", text))) == [
        (
            "a.yaml:2 lauch: is no key that lllaunch or Hydra knows; did you mean "
            "'launch'? [unused-key] [a]"
        ),
        (
            "a.yaml:4 default: is no key that lllaunch or Hydra knows; did you mean "
            "'defaults'? [unused-key] [a]"
        ),
        f"a.yaml:5 nproc: {NOTHING}; did you mean 'launch.nproc'? [unused-key] [a]",
        f"a.yaml:6 lr: {NOTHING} [unused-key] [a]",
    ]
