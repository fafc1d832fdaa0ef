"""What a command line would run, for a reviewer: the plan of a run, or of each job of a sweep."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.types import RunMode
from omegaconf import OmegaConf

from lllaunch.app.composed import Composition, composing
from lllaunch.app.naming import as_written, experiment_name, job_name
from lllaunch.app.planning import locating
from lllaunch.app.sweeping.sweeper import grid_of
from lllaunch.config.locate import Located, locate, locate_main
from lllaunch.config.origin import Origins
from lllaunch.config.plan import SOURCES, hash_of, portable_plan
from lllaunch.config.provenance import origins
from lllaunch.config.secrets import safe_source
from lllaunch.errors import ConfigError, Diagnostic, LaunchError
from lllaunch.hydra_compat import BASIC_SWEEPER
from lllaunch.review.annotated import OriginAnnotator, streams_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.spec import LaunchSpec

_SWEEPERS = (
    "hydra_plugins.lllaunch_launcher.sweeper.LllaunchSweeper",
    BASIC_SWEEPER,
)


@dataclass(frozen=True)
class Reviewed:
    """One run, as a command line would start it."""

    spec: LaunchSpec
    config: Mapping[Any, Any]  # that it was decided from: whole, plain data, unresolved
    name: str  # what its lock is called; empty if nothing says
    job: str  # its overrides, if it is a job of a sweep
    directory: str  # where its files would go, as the config says it
    told: OriginAnnotator
    origins: Callable[[], Origins]

    @functools.cached_property
    def plan(self) -> dict[str, Any]:
        """Its plan, as it is compared."""
        return portable_plan(self.spec)

    @functools.cached_property
    def plan_hash(self) -> str:
        """Identifies the plan."""
        return hash_of(self.plan)

    @property
    def readable(self) -> dict[str, Any]:
        """Its plan as a config that comes to the same plan again."""
        return portable_plan(self.spec, SOURCES)

    @functools.cached_property
    def resolved(self) -> dict[str, Any]:
        """What follows from the plan and is the same wherever the project is."""
        launch = self.plan["launch"]
        entry: dict[str, Any] = {"form": self.spec.entrypoint.form}
        file = os.path.relpath(file_of(self.spec) or os.sep, self.spec.runtime_cwd)
        if not file.startswith(os.pardir):
            entry["file"] = file
        directories = {"output": self.directory, "log": launch["log_dir"], "cwd": launch["cwd"]}
        return {"entrypoint": entry, "streams": streams_of(launch), "directories": directories}


@dataclass(eq=False)
class JobsRefused(LaunchError):
    """Some jobs of a sweep cannot run: why, by job, and the exit code of the first."""

    reasons: Mapping[str, str]
    exit_code: int  # type: ignore[misc]

    def __str__(self) -> str:
        lines = []
        for job, reason in self.reasons.items():
            lines += [f"{job}:", *(f"  {line}" for line in reason.splitlines())]
        return "\n".join(lines)


def review_run(composed: Composition) -> Reviewed:
    """Decides what a command line would run.

    Raises:
        ConfigError: something is wrong; it holds everything that is.
        ComposeFailed: Hydra cannot compose it.
    """
    config = composed.compose()
    with locating(composed.loader, config):
        spec = composed.plan(config)
    raw: Any = OmegaConf.to_container(config, resolve=False)
    origins = composed.origins()
    told, name = OriginAnnotator(origins, spec), name_of(spec, config)
    return Reviewed(spec, raw, name, "", _directory(raw, "run"), told, lambda: origins)


def review_sweep(composed: Composition) -> list[Reviewed]:
    """Decides what each job of a command line would run.

    Raises:
        ConfigError: something is wrong with the sweep.
        JobsRefused: something is wrong with some of its jobs.
        ComposeFailed: Hydra cannot compose the sweep.
    """
    master = composed.master()
    target = OmegaConf.select(master, "hydra.sweeper._target_")
    if target not in _SWEEPERS:
        problem = Diagnostic(
            "sweeper",
            "hydra.sweeper._target_",
            repr(target),
            "chooses its jobs while it runs: there is no list of them",
            "show one job, without -m",
        )
        raise ConfigError((problem,))
    with composing():
        grid = grid_of(master, composed.loader, as_written(master.hydra.overrides.task))
    composer = composed.composer(master)
    found: list[Reviewed] = []
    reasons: dict[str, str] = {}
    code = 0
    for number, overrides in enumerate(grid):
        try:
            with composing():
                job = composer.compose(overrides, number)
                with locating(composed.loader, job.whole):
                    spec = composer.plan(job, here=False)
        except LaunchError as error:
            reasons[job_name(overrides)] = str(error)
            code = code or error.exit_code
            continue
        raw: Any = OmegaConf.to_container(job.whole, resolve=False)
        # the first one is shown whole, the others by what differs
        origins = functools.cache(functools.partial(_origins, composed, master, overrides))
        told = OriginAnnotator(Origins({}) if found else origins(), spec, sweeps=True)
        name, place = name_of(spec, job.whole), _directory(raw, "sweep")
        found.append(Reviewed(spec, raw, name, job_name(overrides), place, told, origins))
    if reasons:
        raise JobsRefused(reasons, code)
    return found


def _origins(composed: Composition, master: DictConfig, overrides: Sequence[str]) -> Origins:
    every = [*as_written(master.hydra.overrides.hydra), *overrides]
    with composing():
        return origins(composed.loader, composed.config_name, every, RunMode.RUN)


def located(
    runs: Iterable[Reviewed], find: Callable[[Reviewed], Iterable[Diagnostic]]
) -> tuple[Diagnostic, ...]:
    """Return the problems of runs, each once, with the files and lines that they stand in."""
    found: dict[Diagnostic, Diagnostic] = {}
    for run in runs:
        for problem in find(run):
            if problem in found:
                continue  # to find out where takes as long as composing
            found[problem] = problem
            with contextlib.suppress(Exception):
                found[problem] = run.origins().locate(problem)
    return tuple(found.values())


def name_of(spec: LaunchSpec, config: DictConfig) -> str:
    """Returns what the lock of a run is called."""
    return spec.locked if isinstance(spec.locked, str) else experiment_name(config)


def _directory(raw: Mapping[Any, Any], kind: str) -> str:
    """The output directory as the config says it, which is another one each time."""
    node = raw["hydra"][kind]
    texts = [node["dir"], node["subdir"]] if kind == "sweep" else [node["dir"]]
    return "/".join(safe_source(str(text), "dir") for text in texts)


def file_of(spec: LaunchSpec) -> str:
    """Returns the file that an entrypoint comes to, absolute; empty if it cannot be told."""
    entry = spec.entrypoint
    path = (spec.runtime_cwd, spec.cwd, *sys.path)
    if entry.form == "script":
        return entry.name
    if entry.form == "program":
        where = spec.env.get("PATH") or os.environ.get("PATH") or os.defpath
        found = entry.name if "/" in entry.name else shutil.which(entry.name, path=where)
        return os.path.abspath(found) if found else ""
    located: Located = (
        locate_main(entry.name, path)
        if entry.form == "module"
        else locate(entry.name, entry.qualname, path)
    )
    return os.path.abspath(located.file) if located.file else ""
