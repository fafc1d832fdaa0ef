"""What a config refers to, what nothing refers to, and what never counts."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lllaunch.checking.findings import MOST_ALIKE
from lllaunch.checking.lint import (
    KeyUsage,
    ReachedKeys,
    may_be_shadowed,
    references_of,
    shadowed,
    told_unused,
    usage_of,
    uses_of,
)
from lllaunch.checking.tree import ConfigFile, read_facts
from lllaunch.config.origin import Origin, dotted
from lllaunch.config.provenance import Layer, OriginTree, lines_of
from lllaunch.config.tree import leaf_items


def keys(text: object, *path: object) -> list[str]:
    return [each.key for each in references_of(text, path or ("launch", "args", "x"))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("${a.b}", ["a.b"]),
        ("${a.b} and ${ c[0].d }", ["a.b", "c.0.d"]),
        ("plain", []),
        (3, []),
        (r"\${a.b}", []),
        (r"\\${a.b}", ["a.b"]),
        ("${.y}", ["launch.args.y"]),
        ("${..y.z}", ["launch.y.z"]),
        ("${.....y}", []),
        ("${oc.select:a.b}", ["a.b"]),
        ("${oc.select:a.b,3}", ["a.b", "3"]),
        ("${oc.dict.keys:params}", ["params"]),
        ("${oc.dict.values: params.x }", ["params.x"]),
        ("${mine:${a.b},'c.d',[x]}", ["a.b", "c.d"]),
        ("${oc.select:.y}", ["launch.args.y"]),
        ("${hydra:runtime.cwd}", ["hydra.runtime.cwd"]),
        ("${oc.env:HOME}", []),
        ("${oc.env:HOME,${a}}", ["a"]),
        ("${worker:rank}", []),
        ("${a.${b}}", ["b", "a"]),
        ("${a.b${c}.d}", ["c", "a"]),
        ("${a.b[${c}]}", ["c", "a.b"]),
        ("${${c}}", ["c"]),
        ("${.${c}}", ["c", "launch.args"]),
        ("${a", ["a"]),
        ("${}", []),
    ],
)
def test_references_of_a_text(text: object, found: list[str]) -> None:
    assert keys(text) == found


def test_only_a_plain_reference_must_be_there() -> None:
    text = "${a.b} ${oc.select:c.d} ${e.${f}}"
    certain = {each.key: each.certain for each in references_of(text, ("x",))}
    assert certain == {"a.b": True, "c.d": False, "f": True, "e": False}


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
    unused = uses_of(whole).unused
    if not unused or before == "no value":
        return
    path = data.draw(st.sampled_from(unused))
    changed = OmegaConf.create(whole)
    OmegaConf.update(changed, dotted(path), "changed", merge=False)
    assert _value(changed) == before


def test_what_is_used_through_others() -> None:
    config = yaml.safe_load(
        """
launch: {args: "${params}", env: {A: "${.B}", B: "${chain.a}"}}
hydra: {run: {dir: "out/${name}"}}
params: {lr: "${lrs.small}", more: [1, "${deep.x}"]}
lrs: {small: 1, big: 2}
deep: {x: 1}
name: n
chain: {a: "${chain.b}", b: "${far.away}", c: 1}
far: "${really}"
really: {away: 3, near: 4}
loop: {a: "${loop.b}", b: "${loop.a}"}
"""
    )
    uses = uses_of(config)
    # through a reference to a container there is no telling what of it counts
    assert {dotted(path) for path in uses.unused} == {"lrs.big", "chain.c", "loop.a", "loop.b"}
    assert {"params.more.1", "really.away", "really.near", "name", "deep.x"} <= uses.used
    assert {"params", "chain", "lrs"} <= uses.needed


def test_keys_that_are_made_up_use_all_that_they_may_be() -> None:
    made_up = {"launch": {"x": "${a.${b}}"}, "a": {"p": 1, "q": {"r": 2}}, "b": "p", "c": 3}
    assert uses_of(made_up).unused == (("c",),)
    anything = {"launch": {"x": "${.${b}}"}, "b": "p"}
    assert ("b",) in ReachedKeys(anything, ["launch"])
    assert uses_of({"x": 1, "launch": {"x": "${${b}}"}, "b": "x"}).unused == (("x",),)


def test_leaves_that_are_keys_of_other_types() -> None:
    config = {"launch": {"x": "${a.2} ${a.3.5}"}, "a": {2: {"z": 2}, 3: {5: 3}, 5: []}}
    assert uses_of(config).unused == (("a", 5),)
    assert dict(leaf_items(config["a"])) == {(2, "z"): 2, (3, 5): 3, (5,): []}


# ---- told, with places


class Composition:
    """Layers as Hydra lays them, without Hydra."""

    def __init__(self, *layers: tuple[str, str]) -> None:
        tree = OriginTree()
        self.config: dict[str, Any] = {}
        for file, text in layers:
            kind: Any = "schema" if "://" in file else "file"
            tree.lay("", yaml.safe_load(text), Layer(Origin(kind, file), lines_of(text)))
            merged: Any = OmegaConf.merge(OmegaConf.create(self.config), OmegaConf.create(text))
            self.config = OmegaConf.to_container(merged)  # type: ignore[assignment]
        self.origins = tree.origins(self.config)
        self.files = [file for file, _ in layers]

    def usage(self) -> KeyUsage:
        files = [file for file in self.files if "://" not in file]
        return usage_of(uses_of(self.config), files, self.origins, files)


def told(**compositions: Composition) -> list[str]:
    usages = {name: each.usage() for name, each in compositions.items()}
    return [
        f"{each.place} {each.said} [{' '.join(each.experiments)}]" for each in told_unused(usages)
    ]


NOTHING = "has no effect: nothing under launch refers to it"
LAUNCH = 'launch: {x: "${params.lr}"}\n'


def test_the_topmost_key_that_is_unused_as_a_whole_is_told() -> None:
    text = LAUNCH + "params:\n  lr: 1\n  sub:\n    a: 1\n    b: [2, 3]\n  c: 4\nmore: {a: 1}\n"
    assert told(a=Composition(("a.yaml", text))) == [
        f"a.yaml:4 params.sub: {NOTHING} [a]",
        f"a.yaml:7 params.c: {NOTHING} [a]",
        f"a.yaml:8 more: {NOTHING} [a]",
    ]


def test_a_file_that_others_share_is_blamed_for_what_none_of_them_uses() -> None:
    shared = ("s.yaml", "params: {lr: 1, unused: 2}\nextra: {a: 1}\n")
    a = Composition(shared, ("a.yaml", LAUNCH))
    b = Composition(shared, ("b.yaml", 'launch: {x: "${extra}"}\nparams: {lr: 3}\n'))
    assert told(a=a, b=b) == [
        f"s.yaml:1 params.unused: {NOTHING} [a b]",
        f"b.yaml:2 params: {NOTHING} [b]",
    ]
    everything = Composition(shared, ("c.yaml", 'launch: {x: "${params}"}\n'))
    assert told(a=a, c=everything) == [f"s.yaml:2 extra: {NOTHING} [a c]"]


def test_keys_of_the_schema_or_of_overrides_are_nobodys_fault() -> None:
    assert told(a=Composition(("structured://x", "db: {port: 1}\n"), ("a.yaml", LAUNCH))) == []


def test_what_was_probably_meant() -> None:
    text = """launch: {x: "${params.lr}", y: "${oc.select:params.epochs}"}
lauch: {nproc: 2}
params: {lrr: 1}
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
            f"a.yaml:3 params.lrr: {NOTHING}; did you mean 'params.lr'? launch.x "
            "refers to that [unused-key] [a]"
        ),
        (
            "a.yaml:4 default: is no key that lllaunch or Hydra knows; did you mean "
            "'defaults'? [unused-key] [a]"
        ),
        f"a.yaml:5 nproc: {NOTHING}; did you mean 'launch.nproc'? [unused-key] [a]",
        (
            f"a.yaml:6 lr: {NOTHING}; did you mean 'params.lr'? launch.x refers to "
            "that [unused-key] [a]"
        ),
    ]


def test_no_more_is_told_than_anybody_reads() -> None:
    text = LAUNCH + "".join(f"k{number}: {number}\n" for number in range(1_000))
    lines = told(a=Composition(("a.yaml", text)))
    assert len(lines) == MOST_ALIKE + 1
    assert lines[-1] == f"a.yaml has {1_000 - MOST_ALIKE} more keys without effect [unused-key] [a]"


def shadows(own: str, *layers: tuple[str, str]) -> list[str]:
    composition = Composition(*layers)
    found = shadowed(composition.config, composition.origins, own, "a")
    return [f"{each.place} {each.said}" for each in found]


def test_what_an_include_overrides_that_comes_later() -> None:
    own = ("a.yaml", "launch:\n  nproc: 2\n  args: [1]\n  env: {A: x}\n  role: same\n")
    later = ("b.yaml", "launch:\n  nproc: 4\n  args: [2, 3]\n  env: {B: y}\n")
    advice = "put _self_ last in the defaults list"
    assert shadows("a.yaml", own, later) == [
        f"a.yaml:2 launch.nproc: has no effect, b.yaml:2 overrides it; {advice} [shadowed]",
        f"a.yaml:3 launch.args: has no effect, b.yaml:3 overrides it; {advice} [shadowed]",
    ]
    # that is Hydra's normal way
    assert shadows("a.yaml", later, own) == []
    assert shadows("c.yaml", own, later) == []


@pytest.mark.parametrize(
    ("defaults", "may_be"),
    [
        ("[_self_, a]", True),
        ("[a, _self_@x, b]", True),
        ("[a, _self_]", False),
        ("[a, b]", False),
        ("[_self_]", False),
        ("3", False),
    ],
)
def test_whether_something_comes_after_what_a_config_says(defaults: str, may_be: bool) -> None:
    facts = read_facts(f"defaults: {defaults}\n", "a.yaml")
    assert may_be_shadowed(ConfigFile("a", "a.yaml", facts)) is may_be
