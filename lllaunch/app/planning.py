"""From a job's composed config to its run, and the run: of one job, or of one in a sweep."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hydra import version
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from msgspec.structs import replace
from omegaconf import open_dict, read_write

from lllaunch.app.configs import DIRECTORY, given_overrides
from lllaunch.errors import Diagnostic, LaunchError, OutputError
from lllaunch.files import is_below

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

    from lllaunch.app.own_worker import UserFunction
    from lllaunch.console.console import Console
    from lllaunch.run.result import ReturnValue, RunResult
    from lllaunch.run.snapshot import Snapshot
    from lllaunch.spawner.client import Spawner
    from lllaunch.spec import LaunchSpec


def without_hydra(config: DictConfig) -> DictConfig:
    """Return a config without Hydra's node, as a task function gets it; a copy."""
    cfg = copy.deepcopy(config)
    with read_write(cfg), open_dict(cfg):
        del cfg["hydra"]
    return cfg


def job_cwd(hydra: Any) -> str:
    """Return where a job works, by Hydra's node: its output directory if it moves there."""
    moves = hydra.job.chdir
    if moves is None:
        # Hydra's rule
        moves = not version.base_at_least("1.2")
    return str(hydra.runtime.output_dir) if moves else os.getcwd()


@contextlib.contextmanager
def locating(loader: ConfigLoader, config: Any) -> Iterator[None]:
    """Let a `LaunchError` of the block name the files and lines of its problems, if it has some.

    To find them takes as long as composing; so it is done only then, and where it fails the error
    is what it was.
    """
    try:
        yield
    except LaunchError as error:
        problems: tuple[Diagnostic, ...] = getattr(error, "problems", ())
        if not all(problem.file for problem in problems):
            with contextlib.suppress(Exception):
                from lllaunch.config.origins import origins  # noqa: PLC0415 - if something is wrong

                # may be that of a sweep; of a run it composes the same
                own: Any = loader
                given, name = given_overrides(config), config.hydra.job.config_name
                found = origins(own, name, given, RunMode.MULTIRUN)
                error.problems = tuple(map(found.locate, problems))  # type: ignore[attr-defined]
        raise


def plan_job(cfg: DictConfig, user: UserFunction | None, **known: Any) -> LaunchSpec:
    """Decide what the run of a job is, or raise `ConfigError`; Hydra's config is that of the job.

    ``user`` is what the workers run instead of the configured entrypoint. The other arguments are
    as for `lllaunch.config.nodes.HostContext`.
    """
    # what only a run needs; --cfg and --help do without
    from lllaunch.config.nodes import HostContext  # noqa: PLC0415
    from lllaunch.config.resolve import resolve  # noqa: PLC0415

    hydra: Any = HydraConfig.get()
    cwd = hydra.runtime.cwd
    # where Hydra looked for the user's configs, in order
    sources = hydra.runtime.config_sources
    searched = [source.path for source in sources if source.schema == "file"]
    conf = os.path.join(cwd, DIRECTORY)
    if user is not None:
        known |= {"function": user.entrypoint, "preload": user.preload, "forked": user.forked}
    around = HostContext(
        runtime_cwd=cwd,
        output_dir=hydra.runtime.output_dir,
        job_cwd=job_cwd(hydra),
        searched=searched if conf in searched else [*searched, f"{conf} (not there)"],
        **known,
    )
    return resolve(cfg, around)


def perform(
    spec: LaunchSpec,
    cfg: DictConfig,
    user: UserFunction | None,
    console: Console,
    spawner: Spawner | None,
    **options: Any,
) -> RunResult:
    """Run a job that `plan_job` planned; its result is on the disk when this returns.

    The other arguments are as for `lllaunch.run.execute.Run`.
    """
    from lllaunch.config.plan import (  # noqa: PLC0415 - see `plan_job`
        group_plan,
        plan_config,
        plan_hash,
        portable_plan,
    )
    from lllaunch.run.execute import Run  # noqa: PLC0415

    shared_plan = None if spec.nodes is None else group_plan(portable_plan(spec))
    run = Run(
        spec,
        plan_text=plan_config(spec),
        plan_hash=plan_hash(spec),
        console=console,
        spawner=spawner,
        target=None if user is None else user.target(cfg),
        shared_plan=shared_plan,
        **options,
    )
    return run.execute()


def in_snapshot(spec: LaunchSpec, snapshot: Snapshot, environ: Mapping[str, str]) -> LaunchSpec:
    """Return a spec whose workers run the code of a snapshot."""

    def place(path: str) -> str:
        # the run's own directory may be in the repository, too
        return path if is_below(path, spec.output_dir) else snapshot.place(path)

    entrypoint, env = spec.entrypoint, dict(spec.derived_env)
    if os.path.isabs(entrypoint.name):
        entrypoint = replace(entrypoint, name=place(entrypoint.name))
    preflight = spec.preflight
    if preflight is not None and os.path.isabs(preflight.command[0]):
        command = (place(preflight.command[0]), *preflight.command[1:])
        preflight = preflight._replace(command=command)
    known = env.get("PYTHONPATH") or spec.env.get("PYTHONPATH") or environ.get("PYTHONPATH", "")
    # of an editable install, which leads to the code of now: first is what is looked in first
    moved = [place(each) for each in sys.path if each and place(each) != each]
    paths = [*moved, *map(place, filter(None, known.split(os.pathsep)))]
    if paths:
        env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return replace(
        spec,
        entrypoint=entrypoint,
        preflight=preflight,
        cwd=place(spec.cwd),
        spawner_cwd=place(spec.spawner_cwd) if spec.spawner_cwd else "",
        runtime_cwd=place(spec.runtime_cwd),
        derived_env=env,
    )


def plain(value: ReturnValue | None) -> Any:
    """Returns a worker's value if it is JSON and small, else None; unpickles nothing."""
    return json.loads(value.json) if value is not None and value.json is not None else None


def load(value: ReturnValue | None) -> Any:
    """Return a worker's value, unpickled where need be, or raise `OutputError`; None for none."""
    if value is None or value.json is not None:
        return plain(value)
    try:
        with open(value.path, "rb") as file:
            if os.path.splitext(value.path)[1] == ".json":
                return json.load(file)
            return pickle.load(file)  # noqa: S301 - written by a worker of this run
    except OSError as error:
        raise OutputError(value.path, error.strerror or str(error)) from error
    except Exception as error:  # whatever the classes' own code raises
        reason = f"the return value ({value.type_name}) cannot be loaded: "
        raise OutputError(value.path, f"{reason}{type(error).__name__}: {error}") from error
