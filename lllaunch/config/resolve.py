"""From a composed config to a `LaunchSpec`: all is checked, and all that is wrong told at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lllaunch.config.build import build
from lllaunch.config.findings import Findings
from lllaunch.config.gpus import Nvml
from lllaunch.config.keys import known_items
from lllaunch.config.read import Reader, register_resolvers
from lllaunch.config.restart import with_on
from lllaunch.config.schema import KEYS, defaults
from lllaunch.config.secrets import literals
from lllaunch.config.settings import Settings
from lllaunch.config.surroundings import Surroundings
from lllaunch.config.synonyms import SYNONYMS
from lllaunch.config.tree import Tree
from lllaunch.config.watchdog import check_replaced
from lllaunch.errors import ConfigError, Problem
from lllaunch.spec import LaunchSpec

__all__ = ["register_resolvers", "resolve"]


def resolve(
    cfg: DictConfig,
    *,
    runtime_cwd: str,
    output_dir: str,
    key: str = "launch",
    searched: Sequence[str] = (),
    entrypoint_required: bool = True,
    environ: Mapping[str, str] | None = None,
    nvml: Nvml | None = None,
) -> LaunchSpec:
    """Decides what a run is.

    Args:
        cfg: the composed config. Below ``key`` it may lack any key: the schema's default holds.
        runtime_cwd: the directory that the command was given in; relative paths start there.
        output_dir: Hydra's output directory of the job.
        key: name of the launch node.
        searched: directories and packages that configs were looked for in, for a message.
        entrypoint_required: False where the workers run a function of the caller's own; then the
            config may name neither an entrypoint nor arguments, and ``LaunchSpec.entrypoint`` is
            empty.
        environ: the launcher's environment; None for the real one.
        nvml: stands in for the module ``pynvml``.

    Returns:
        The run, resolved.

    Raises:
        lllaunch.errors.ConfigError: something is wrong; it holds everything that is.
    """
    register_resolvers()
    findings = Findings()
    root, secrets = _plain(cfg)
    tree = _launch_node(cfg, key, Reader(findings, [text for _, _, text in secrets]), findings)
    around = Surroundings(
        runtime_cwd=os.path.abspath(runtime_cwd),
        output_dir=os.path.abspath(os.path.join(runtime_cwd, output_dir)),
        key=key,
        root=root,
        searched=tuple(searched),
        entrypoint_required=entrypoint_required,
        environ=dict(os.environ if environ is None else environ),
        sys_path=tuple(sys.path),
        nvml=nvml,
    )
    spec = build(Settings(tree, key, findings), around)
    _note_literals(secrets, findings)
    findings.raise_if_any([f"{key}.{name}" for name in KEYS])
    return spec


def _plain(cfg: DictConfig) -> tuple[dict[Any, Any], list[tuple[str, str, str]]]:
    """The whole config, unresolved, and the secrets that it holds itself."""
    try:
        root: Any = OmegaConf.to_container(cfg, resolve=False)
        own = {name: item for name, item in root.items() if name != "hydra"}
        return root, list(literals(own))
    except RecursionError:
        problem = Problem("the config", "", "is nested too deeply to be read")
        raise ConfigError((problem,)) from None


def _launch_node(cfg: DictConfig, key: str, reader: Reader, findings: Findings) -> dict[str, Tree]:
    """The schema's defaults with what the config says, key by key."""
    node = reader.read(cfg, key)
    tree = defaults()
    if node is None:
        return tree
    if not isinstance(node, dict):
        findings.add(key, node, "is not a mapping of settings (entrypoint, nproc, ...)")
        findings.raise_if_any()
    items = known_items(node, key, KEYS, SYNONYMS, findings, owner="lllaunch")
    if items.keys() == tree.keys():
        # Hydra has composed it over the schema.
        check_replaced(items["watchdog"], f"{key}.watchdog", findings)
    tree.update(items)
    return {**tree, "restart": with_on(tree["restart"])}


def _note_literals(secrets: Sequence[tuple[str, str, str]], findings: Findings) -> None:
    for where, source, _ in secrets:
        findings.add_about(
            where,
            "holds a literal where the name says secret",
            f"take it from the environment, as {source}, or name it otherwise",
        )
