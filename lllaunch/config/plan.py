"""What was decided, as text for people and as a hash for programs. Needs no OmegaConf."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from lllaunch.config.tree import escape
from lllaunch.spec import LaunchSpec

_FLOAT = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.[\d_]+)(?:[eE][-+]?\d+)?$")


class PlanDumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes what OmegaConf would read as a number, which is more than PyYAML would."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        """Anchors and aliases are hard to read and depend on object identity."""
        return True


PlanDumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def plan_text(spec: LaunchSpec) -> str:
    """The plan of a run as YAML: the ``launch`` node, decided and redacted.

    Keys have a fixed order and there is nothing of the moment in it, so that the same spec always
    gives the same text.
    """
    return dump_yaml(plan_node(spec))


def plan_config(spec: LaunchSpec) -> str:
    """The plan of a run as a config that comes to the same plan wherever the project is, as YAML.

    Directories of the run and of the user stand as interpolations.
    """
    return dump_yaml(portable_plan(spec, SOURCES))


def plan_hash(spec: LaunchSpec) -> str:
    """The identity of a plan: the same for the same experiment in another place.

    Returns:
        SHA-256, in hexadecimal, of the plan with the run's own directory and the user's directory
        taken out, and with a ``run_id`` that was made from them.
    """
    return hash_of(portable_plan(spec))


def hash_of(plan: Mapping[str, Any]) -> str:
    """Returns the hash of a plan that `portable_plan` made."""
    return hashlib.sha256(dump_yaml(plan).encode("utf-8", "surrogateescape")).hexdigest()


class Places(NamedTuple):
    """What stands in a plan for directories that differ from place to place.

    Attributes:
        output_dir: for the run's own directory.
        cwd: for the directory that the command was given in.
    """

    output_dir: str
    cwd: str


MARKS = Places("<output_dir>", "<cwd>")
"""For plans that are compared."""

SOURCES = Places("${hydra:runtime.output_dir}", "${hydra:runtime.cwd}")
"""For plans that are read back as configs."""


def portable_plan(spec: LaunchSpec, places: Places = MARKS) -> dict[str, Any]:
    """Returns a plan without what differs from place to place.

    Args:
        spec: the run.
        places: what stands for directories.

    Returns:
        What `plan_node` does, without a ``run_id`` that was made from the run's directory.
    """
    launch = plan_node(spec)["launch"]
    if spec.run_id == default_run_id(spec.output_dir):
        launch.pop("run_id", None)
    # The output directory is usually within the user's, so it goes first.
    named = ((spec.output_dir, places.output_dir), (spec.runtime_cwd, places.cwd))
    patterns = [
        (re.compile(rf"(\\*){re.escape(path)}(?![\w.-])"), name)
        for path, name in named
        if path.strip("/")
    ]
    return {"launch": _elsewhere(launch, patterns)}


def plan_node(spec: LaunchSpec) -> dict[str, Any]:
    """The plan of a run as plain data, made anew.

    Returns:
        Under ``launch`` that node, decided and redacted, with its entrypoint.
    """
    entrypoint = spec.redacted.get("entrypoint") or escape(spec.entrypoint.text) or None
    return {"launch": {**spec.redacted, "entrypoint": entrypoint}}


def default_run_id(output_dir: str) -> str:
    """A run's name, made from the last two parts of its output directory."""
    parts = [part for part in output_dir.split("/") if part][-2:]
    return re.sub(r"[^\w.-]", "_", "-".join(parts)) or "run"


def _elsewhere(value: Any, places: list[tuple[re.Pattern[str], str]]) -> Any:
    if isinstance(value, dict):
        return {key: _elsewhere(item, places) for key, item in value.items()}
    if isinstance(value, list):
        return [_elsewhere(item, places) for item in value]
    if isinstance(value, str):
        for pattern, name in places:
            value = pattern.sub(functools.partial(_named, name), value)
    return value


def _named(name: str, found: re.Match[str]) -> str:
    # a backslash before an interpolation would make plain text of it
    return found[1] * (2 if name.startswith("$") else 1) + name


def dump_yaml(plan: Mapping[str, Any], dumper: Any = None) -> str:
    """Returns plain data as YAML in a fixed layout.

    Args:
        plan: the data.
        dumper: of PyYAML; None for `PlanDumper`.
    """
    text: str = yaml.dump(
        plan,
        Dumper=dumper or PlanDumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=1_000_000,
    )
    return text
