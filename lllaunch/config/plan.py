"""What was decided, as text for people and as a hash for programs. Needs no OmegaConf."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from lllaunch.config.tree import escape
from lllaunch.spec import LaunchSpec

_FLOAT = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.[\d_]+)(?:[eE][-+]?\d+)?$")


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes what OmegaConf would read as a number, which is more than PyYAML would."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        """Anchors and aliases are hard to read and depend on object identity."""
        return True


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def plan_text(spec: LaunchSpec) -> str:
    """The plan of a run as YAML: the ``launch`` node, decided and redacted.

    Keys have a fixed order and there is nothing of the moment in it, so that the same spec always
    gives the same text.
    """
    return _dump(plan_node(spec))


def plan_hash(spec: LaunchSpec) -> str:
    """The identity of a plan: the same for the same experiment in another place.

    Returns:
        SHA-256, in hexadecimal, of the plan with the run's own directory and the user's directory
        taken out, and with a ``run_id`` that was made from them.
    """
    launch = plan_node(spec)["launch"]
    if spec.run_id == default_run_id(spec.output_dir):
        del launch["run_id"]
    text = _dump({"launch": _elsewhere(launch, _places(spec))})
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


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


def _places(spec: LaunchSpec) -> list[tuple[re.Pattern[str], str]]:
    # The output directory is usually within the user's, so it goes first.
    named = ((spec.output_dir, "<output_dir>"), (spec.runtime_cwd, "<cwd>"))
    return [
        (re.compile(rf"{re.escape(path)}(?![\w.-])"), name)
        for path, name in named
        if path.strip("/")
    ]


def _elsewhere(value: Any, places: list[tuple[re.Pattern[str], str]]) -> Any:
    if isinstance(value, dict):
        return {key: _elsewhere(item, places) for key, item in value.items()}
    if isinstance(value, list):
        return [_elsewhere(item, places) for item in value]
    if isinstance(value, str):
        for pattern, name in places:
            value = pattern.sub(name, value)
    return value


def _dump(plan: dict[str, Any]) -> str:
    text: str = yaml.dump(
        plan,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=1_000_000,
    )
    return text
