"""What comes out of OmegaConf: values, and which of them must not be written."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from lllaunch.config.fields import Findings
from lllaunch.config.nodes import HostContext
from lllaunch.config.read import Reader, register_resolvers
from lllaunch.config.resolve import resolve
from lllaunch.config.tree import BROKEN, conceal, reveal
from lllaunch.errors import ConfigError
from lllaunch.spec import KEYS
from tests.unit.launch_nodes import plan_text

SECRET = "hf_do_not_show_this"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    register_resolvers()
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("BROKEN_YAML", f"{{{SECRET}")
    monkeypatch.setenv("AS_MAPPING", f"{{A: {SECRET}, B: [{SECRET}]}}")
    monkeypatch.delenv("NOT_SET", raising=False)


def read(launch: Any, root: dict[str, Any] | None = None) -> tuple[Any, list[str]]:
    findings = Findings()
    cfg = OmegaConf.create({"launch": launch, **(root or {})})
    tree = Reader(cfg, findings).read("launch")
    return tree, [str(problem) for problem in findings.problems]


def test_containers_from_the_environment_are_withheld_leaf_by_leaf() -> None:
    tree, _ = read({"env": "${oc.decode:${oc.env:AS_MAPPING}}", "n": 1})
    assert reveal(tree)["env"] == {"A": SECRET, "B": [SECRET]}
    assert SECRET not in str(conceal(tree))
    assert SECRET not in str(tree)
    tree, _ = read({"env": "${common}"}, {"common": {"A": "${oc.env:HF_TOKEN}", "B": 1}})
    assert conceal(tree) == {"env": {"A": "${oc.env:HF_TOKEN}", "B": 1}}


def test_literals_elsewhere_are_withheld_where_they_are_used() -> None:
    cfg = OmegaConf.create({"launch": {"args": ["--key=${p.api_key}"]}, "p": {"api_key": SECRET}})
    tree = Reader(cfg, Findings()).read("launch")
    assert conceal(tree) == {"args": ["--key=${p.api_key}"]}


def test_every_leaf_that_cannot_be_read_is_told() -> None:
    tree, problems = read(
        {"a": "${nope}", "b": ["???", "${b}", 1], "c": "${oc.env:NOT_SET}", "d": {"e": "${m}"}},
        {"m": "???"},
    )
    no = "cannot be resolved:"
    missing = "MissingMandatoryValue while resolving interpolation: Missing mandatory value: m"
    assert problems == [
        f"launch.a: '${{nope}}' {no} Interpolation key 'nope' not found [interpolation]",
        "launch.b[0]: expected a value, got '???' [missing]",
        f"launch.b[1]: '${{b}}' {no} Interpolation key 'b' not found [interpolation]",
        f"launch.c: '${{oc.env:NOT_SET}}' {no} the variable NOT_SET is not set [interpolation]",
        f"launch.d.e: '${{m}}' {no} {missing} [interpolation]",
    ]
    assert tree["b"] == [BROKEN, BROKEN, 1]


def test_a_reason_that_could_quote_a_secret_is_not_told() -> None:
    _, problems = read({"a": "${oc.decode:${oc.env:BROKEN_YAML}}"})
    assert problems == [
        (
            "launch.a: '${oc.decode:${oc.env:BROKEN_YAML}}' cannot be resolved: its value is "
            "withheld here [interpolation]"
        )
    ]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "raw",
    [
        "${oc.env:HF_TOKEN}",
        "1-0:${oc.env:HF_TOKEN} x",
        "/${oc.env:HF_TOKEN}.py",
        "-m ${oc.env:HF_TOKEN}",
        "json:${oc.env:HF_TOKEN}",
        "${oc.decode:${oc.env:BROKEN_YAML}}",
        "${oc.decode:${oc.env:AS_MAPPING}}",
        "${params.api_key}",
        "${oc.env:NOT_SET,hf_do_not_show_this}",
    ],
)
def test_no_message_and_no_plan_holds_a_secret(key: str, raw: str) -> None:
    root = {"params": {"api_key": SECRET}} if "params" in raw else {}
    cfg = OmegaConf.create({"launch": {"entrypoint": "env", key: raw}, **root})
    try:
        spec = resolve(cfg, HostContext(runtime_cwd="/", output_dir="/out"))
    except ConfigError as error:
        text = str(error) + repr(error)
    else:
        text = plan_text(spec) + repr(spec.sources)
    text = text.replace(
        "${oc.env:NOT_SET,hf_do_not_show_this}", ""
    )  # the user's own text, no secret
    assert SECRET not in text
    assert "do_not_show" not in text
