"""What a config is read in: all of the machine and the moment that decisions depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lllaunch.config.gpus import Nvml


@dataclass(frozen=True)
class Surroundings:
    """What a config is read in.

    Attributes:
        runtime_cwd: the directory that the command was given in, absolute.
        output_dir: Hydra's output directory, absolute.
        key: name of the launch node.
        root: the whole config as plain data, unresolved.
        searched: where configs were looked for.
        entrypoint_required: whether the config must say what to run, or must not.
        environ: the launcher's environment.
        sys_path: the launcher's ``sys.path``.
        nvml: stands in for ``pynvml``.
        here: whether the run would be on this machine, whose CPUs and GPUs are counted then.
    """

    runtime_cwd: str
    output_dir: str
    key: str = "launch"
    root: Mapping[Any, Any] = field(default_factory=dict, repr=False)
    searched: tuple[str, ...] = ()
    entrypoint_required: bool = True
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    sys_path: tuple[str, ...] = ()
    nvml: Nvml | None = None
    here: bool = True
