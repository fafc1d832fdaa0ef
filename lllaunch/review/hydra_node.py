"""What Hydra's own node makes, and where it writes, with all interpolations resolved."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lllaunch.config.fields import Findings
from lllaunch.config.read import Reader, watching
from lllaunch.config.tree import conceal
from lllaunch.review.allow import NODES, asked_for, walk
from lllaunch.spec import Written

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.spec import LaunchSpec

IN_LOCKS = ("callbacks", *(name for _, name in NODES))
"""Parts of the node that are in a lock if they name anything that is made."""


def with_hydra(spec: LaunchSpec, config: DictConfig) -> LaunchSpec:
    """Return a run with what a reviewer has to know of Hydra's node.

    Raises:
        ConfigError: something in it cannot be resolved.
    """
    plain: Any = OmegaConf.to_container(config, resolve=False)
    named = {asked.path[1] for asked in asked_for(plain) if asked.path[0] == "hydra"}
    findings = Findings()
    made = Reader(findings).read_items(
        config.hydra, "hydra", [name for name in IN_LOCKS if name in named]
    )
    findings.raise_if_any()
    return replace(spec, hydra=conceal(made), written=written(config))


def written(config: DictConfig) -> tuple[Written, ...]:
    """Return what Hydra writes to, as far as Hydra itself can resolve it."""
    with watching("oc.env") as reads:
        found = [*_written(config)]
    return tuple(each._replace(hidden=bool(reads)) for each in found)


def _written(config: DictConfig) -> Iterator[Written]:
    run, sweep = _resolved(config, "run.dir"), _resolved(config, "sweep.dir")
    output = str(_resolved(config, "runtime.output_dir") or run or "")
    directories = {
        "run.dir": (run, ""),
        "sweep.dir": (sweep, ""),
        "sweep.subdir": (_resolved(config, "sweep.subdir"), sweep),
        "output_subdir": (_resolved(config, "output_subdir"), output),
        "runtime.output_dir": (output or None, ""),
    }
    for key, (path, above) in directories.items():
        if path is not None:
            whole = os.path.join(str(above or ""), str(path))
            yield Written(f"hydra.{key}", os.path.abspath(whole))
    for _, name in NODES:
        # as Hydra has changed to it by then
        base = output if name == "job_logging" and _resolved(config, "job.chdir") else ""
        for where, value in walk({"hydra": {name: _resolved(config, name)}}):
            if where[-1:] == ("filename",) and isinstance(value, (str, bytes, os.PathLike)):
                path = os.path.abspath(os.path.join(base, os.fsdecode(value)))
                yield Written(".".join(map(str, where)), path, output)


def _resolved(config: DictConfig, key: str) -> Any:
    try:
        value = OmegaConf.select(config, f"hydra.{key}")
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except (OmegaConfBaseException, RecursionError):
        return None
