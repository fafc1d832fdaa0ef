"""Launch nodes for tests of what is made of them, and tables of mistakes in them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from lllaunch.config.nodes import HostContext
from lllaunch.config.plan import dump_yaml, plan_node
from lllaunch.config.resolve import resolve
from lllaunch.errors import ConfigError
from lllaunch.spec import LaunchSpec

PLACES = {"runtime_cwd": "/", "output_dir": "/out/day/time"}


def spec_of(launch: Any = None, root: dict[str, Any] | None = None, **more: Any) -> LaunchSpec:
    """What a run with this node is; it runs ``env`` if nothing else is said.

    Args:
        launch: the node.
        root: what stands beside it.
        more: options of `resolve`.
    """
    cfg = OmegaConf.create({"launch": {"entrypoint": "env", **(launch or {})}, **(root or {})})
    return resolve(cfg, HostContext(**{**PLACES, **more}))


def plan_text(spec: LaunchSpec) -> str:
    """The plan of a run as YAML."""
    return dump_yaml(plan_node(spec))


def read_back(text: str, **more: Any) -> LaunchSpec:
    """What a run with this config is, a plan for instance."""
    return resolve(OmegaConf.create(text), HostContext(**{**PLACES, **more}))


def complaints(launch: Any = None, root: dict[str, Any] | None = None, **more: Any) -> list[str]:
    """What is told of a node with mistakes, line by line."""
    with pytest.raises(ConfigError) as caught:
        spec_of(launch, root, **more)
    return str(caught.value).splitlines()


def mistakes(table: str) -> list[Any]:
    """The cases of a table: a node as YAML on one line, and below it, indented, what is told."""
    blocks = re.findall(r"^\S.*\n(?:    .*\n)+", table, re.MULTILINE)
    assert "".join(blocks) == table.lstrip("\n")
    cases = []
    for block in blocks:
        node, *told = block.splitlines()
        line = " ".join(part.strip() for part in told)
        cases.append(pytest.param(yaml.safe_load(node), line, id=node))
    return cases
