"""From a composed config to a `LaunchSpec`: all is checked, and all that is wrong told at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lllaunch.config.build import build
from lllaunch.config.expansion import MOST_STEPS, endless
from lllaunch.config.findings import Findings
from lllaunch.config.gpus import Nvml
from lllaunch.config.layers import Layers
from lllaunch.config.read import Reader, register_resolvers
from lllaunch.config.secrets import literals, problems_with
from lllaunch.config.settings import Settings
from lllaunch.config.surroundings import Surroundings
from lllaunch.config.tree import shorten, value_at
from lllaunch.errors import ConfigError, Problem
from lllaunch.spec import LaunchSpec

__all__ = ["register_resolvers", "resolve"]

_MOST_ENDLESS = 5  # the others refer to one of them, most likely

# Settings that take any text.
_TEXTS = ("args", "env")  # and env_per_rank


def resolve(
    cfg: DictConfig,
    *,
    runtime_cwd: str,
    output_dir: str,
    key: str = "launch",
    outer: str | None = None,
    searched: Sequence[str] = (),
    entrypoint_required: bool = True,
    users_own: bool = False,
    environ: Mapping[str, str] | None = None,
    nvml: Nvml | None = None,
    here: bool = True,
) -> LaunchSpec:
    """Decides what a run is.

    Args:
        cfg: the composed config. Below ``key`` it may lack any key: the schema's default holds.
        runtime_cwd: the directory that the command was given in; relative paths start there.
        output_dir: Hydra's output directory of the job.
        key: name of the launch node.
        outer: dotted key of a node of the config, such as ``hydra.launcher``, whose settings named
            in `lllaunch.config.launcher_schema.LAUNCH_FIELDS` are weaker than those under ``key``
            and stronger than the schema's defaults; null there is nothing. A value under ``key``
            that Hydra may have composed from the schema, since it equals the default, is weaker
            still, unless an override of the job names its key.
        searched: directories and packages that configs were looked for in, for a message.
        entrypoint_required: False where the workers run a function of the caller's own; then the
            config may name neither an entrypoint nor arguments, and ``LaunchSpec.entrypoint`` is
            empty.
        users_own: whether the config is that of a Hydra app that knows nothing of lllaunch. Then
            literals under names that say secret are hidden, but refused in our own nodes only.
        environ: the launcher's environment; None for the real one.
        nvml: stands in for the module ``pynvml``.
        here: False where nothing is to run: CPUs and GPUs are not counted, and where the number of
            workers depends on them, ``LaunchSpec.nproc`` is 1. Arguments and variables may ask for
            what is not set in the environment.

    Returns:
        The run, resolved.

    Raises:
        lllaunch.errors.ConfigError: something is wrong; it holds everything that is.
    """
    register_resolvers()
    findings = Findings()
    root, secrets = _plain(cfg, outer)
    # where nothing is to run, secrets need not be there
    unset = [] if here else [f"{node}.{name}" for node in (key, outer) if node for name in _TEXTS]
    reader = Reader(findings, [text for _, _, text in secrets], unset)
    tree, keys = Layers(key, outer).read(cfg, reader, findings)
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
        here=here,
    )
    spec = build(Settings(tree, keys, findings), around)
    ours = tuple(f"{node}." for node in (key, outer) if node) if users_own else ("",)
    for problem in problems_with(each for each in secrets if each[0].startswith(ours)):
        findings.note(problem)
    findings.raise_if_any(list(keys.values()))
    return spec


def _plain(cfg: DictConfig, outer: str | None) -> tuple[dict[Any, Any], list[tuple[str, str, str]]]:
    """The whole config, unresolved, and the secrets that it holds itself."""
    try:
        root: Any = OmegaConf.to_container(cfg, resolve=False)
        own = {name: item for name, item in root.items() if name != "hydra"}
        _expect_an_end(own)
        found = list(literals(own))
    except RecursionError:
        problem = Problem("", "the config", "is nested too deeply to be read")
        raise ConfigError((problem,)) from None
    if outer is not None:
        found += literals(value_at(root, outer.split(".")), outer)
    return root, found


def _expect_an_end(root: Mapping[Any, Any]) -> None:
    """Raises if values come to too much: resolving them would take hours, or all memory."""
    message = f"it comes to more than {MOST_STEPS} references"
    problems = [Problem(shorten(key), "", message) for key in endless(root)]
    if problems:
        raise ConfigError(tuple(problems[:_MOST_ENDLESS]))
