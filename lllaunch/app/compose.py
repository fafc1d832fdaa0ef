"""Composes configs as ``python -m lllaunch`` does, and runs nothing: for verbs that look at them.

Hydra's own functions do it, with the search path and the primary config of the app. Callbacks are
not made, logging is not set up, no file is written. What a command line would run comes of it: the
plan of a run, or of each job of a sweep.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra import version
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobRuntime, setup_globals, validate_config_path
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf, open_dict, read_write

from lllaunch.app.boundary import message_of, reason_of, without_variables
from lllaunch.app.gate import GuardedLoader, lock_name
from lllaunch.app.jobs import SweepJobs
from lllaunch.app.planning import (
    BASE,
    MODULE,
    PACKAGED,
    PRIMARY,
    as_written,
    config_path_of,
    given_overrides,
    install_app,
    job_name,
    locating,
    plan_job,
)
from lllaunch.app.sweeper import grid_of
from lllaunch.config.locate import import_path, locate, locate_main
from lllaunch.config.origins import Link, Origins, chain_of, origins
from lllaunch.config.plan import SOURCES, hash_of, portable_plan
from lllaunch.config.read import safe_source
from lllaunch.errors import ConfigError, Diagnostic, ExitCode, LaunchError
from lllaunch.hydra_compat import BASIC_SWEEPER, Callbacks, create_automatic_config_search_path
from lllaunch.review.allow import check, unlocked_variables
from lllaunch.review.paths import tree_top

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.review.allow import Policy
    from lllaunch.spec import LaunchSpec


@dataclass(eq=False)
class ComposeFailed(LaunchError):
    """A run cannot be composed; ``message`` is its ``reason`` in lllaunch's words, if any."""

    reason: str
    message: str = ""
    exit_code: int = ExitCode.ERROR

    def __str__(self) -> str:
        return self.message or self.reason


class ConfigRequest(NamedTuple):
    """What a command line says of the config; None where it leaves that to the app."""

    overrides: tuple[str, ...] = ()
    multirun: bool = False
    config_name: str | None = None
    config_path: str | None = None
    config_dir: str | None = None

    @classmethod
    def of(cls, given: argparse.Namespace) -> ConfigRequest:
        """Reads what a parser with `add_hydra_flags` has found."""
        overrides, *others = (getattr(given, name) for name in cls._fields)
        return cls(tuple(overrides), *others)

    @classmethod
    def parse(cls, words: Sequence[str]) -> ConfigRequest:
        """Read flags and overrides, such as those that a lock keeps, or raise ValueError."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        add_hydra_flags(parser)
        try:
            given, unknown = parser.parse_known_intermixed_args(list(words))
        except (argparse.ArgumentError, SystemExit) as error:
            raise ValueError(str(error)) from None
        if unknown:
            raise ValueError(f"unknown: {' '.join(unknown)}")
        return cls.of(given)

    @property
    def words(self) -> tuple[str, ...]:
        """The same as a command line."""
        flags = {
            "--config-path": self.config_path,
            "--config-dir": self.config_dir,
            "--config-name": self.config_name,
        }
        named = [word for flag, value in flags.items() if value for word in (flag, value)]
        return (*named, *(["-m"] if self.multirun else []), *self.overrides)


def add_hydra_flags(parser: argparse.ArgumentParser) -> None:
    """Lets a verb take what Hydra's own command line takes to choose a config."""
    group = parser.add_argument_group("what is composed, as in Hydra")
    group.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="such as +exp=resnet lr=1")
    group.add_argument("--multirun", "-m", action="store_true", help="plan a sweep")
    group.add_argument("--config-name", "-cn", metavar="NAME", help="the primary config")
    group.add_argument(
        "--config-path", "-cp", metavar="DIR", help="config directory, in place of conf"
    )
    group.add_argument("--config-dir", "-cd", metavar="DIR", help="searched first")


class Composition:
    """Composes what one command line asks for; Hydra's state in this process is then its own.

    What Hydra cannot compose is a `ComposeFailed`.
    """

    def __init__(self, command: ConfigRequest) -> None:
        self.command = command
        self.config_name = command.config_name or PRIMARY
        path, directory = config_path_of(command.config_path), command.config_dir
        if directory is not None and not os.path.isdir(directory):
            raise ComposeFailed(f"--config-dir: there is no directory {directory!r}")
        setup_globals()
        version.setbase(BASE)
        JobRuntime.instance().set("name", MODULE)
        install_app(directory)
        with composing():
            validate_config_path(path or PACKAGED)
            found = create_automatic_config_search_path(None, MODULE, path or PACKAGED)
            self.loader = GuardedLoader(found, reviewing=True)

    def load(self, mode: RunMode, overrides: Sequence[str] = (), **more: Any) -> DictConfig:
        """Return the config of a run or a sweep, with what the command line says and more."""
        every = [*self.command.overrides, *overrides]
        with composing():
            return self.loader.load_configuration(self.config_name, every, mode, **more)

    def compose(self, overrides: Sequence[str] = ()) -> DictConfig:
        """Return the config of a run, whole; it is Hydra's config of this process."""
        config = self.load(RunMode.RUN, overrides)
        with composing():
            HydraConfig.instance().set_config(config)
            output_dir = str(OmegaConf.select(config, "hydra.run.dir"))
            node: Any = config.hydra.runtime
            with read_write(node), open_dict(node):
                node.output_dir = os.path.abspath(output_dir)
            HydraConfig.instance().set_config(config)
        return config

    def plan(self, config: DictConfig, *, entrypoint_required: bool = True) -> LaunchSpec:
        """Decides what the run of a config would be, on no machine in particular."""
        with composing():
            return plan_job(config, None, here=False, entrypoint_required=entrypoint_required)

    def is_sweep(self) -> bool:
        """Return whether a sweep is asked for, by the command line or by the config."""
        if self.command.multirun:
            return True
        config = self.load(RunMode.MULTIRUN, validate_sweep_overrides=False)
        with composing():
            return bool(config.hydra.mode == RunMode.MULTIRUN)

    def origins(self, overrides: Sequence[str]) -> Origins:
        """Return where the values of a config that is composed with overrides came from."""
        with composing():
            return origins(self.loader, self.config_name, list(overrides))


@contextlib.contextmanager
def composing() -> Iterator[None]:
    """What Hydra raises in the block becomes a `ComposeFailed`; warnings are left out."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except LaunchError:
        raise
    except Exception as error:
        reason, message = reason_of(error), message_of(error)
        raise ComposeFailed(without_variables(reason), without_variables(message)) from error


# Those whose jobs are known beforehand.
_SWEEPERS = ("hydra_plugins.lllaunch_launcher.sweeper.LllaunchSweeper", BASIC_SWEEPER)


@dataclass(frozen=True)
class Reviewed:
    """One run, as a command line would start it."""

    spec: LaunchSpec
    refused: list[Diagnostic]  # what the project does not allow of it
    unlocked: list[Diagnostic]  # what no lock has
    name: str  # what its lock is called; empty if nothing says
    job: str  # its overrides, if it is a job of a sweep
    directory: str  # where its files would go, as the config says it
    origins: Callable[[], Origins]

    @functools.cached_property
    def chain(self) -> Callable[[tuple[Any, ...]], tuple[Link, ...]]:
        """Says of the path of a value of its plan where that came from."""
        return functools.partial(chain_of, self.origins(), self.spec, sweeps=bool(self.job))

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
        return {"entrypoint": entry, "directories": directories}


def review_run(composed: Composition, policy: Policy | None = None) -> Reviewed:
    """Decides what a command line would run; what is wrong is a `ConfigError`."""
    config = composed.compose()
    with locating(composed.loader, config):
        spec = composed.plan(config)
    return _reviewed(composed, spec, config, policy)


def review_sweep(composed: Composition, policy: Policy | None = None) -> list[Reviewed]:
    """Decides what each job of a command line would run.

    What is wrong with the sweep is a `ConfigError`, with a job of it a `ComposeFailed`.
    """
    master = composed.load(RunMode.MULTIRUN)
    key = "hydra.sweeper._target_"
    with composing():
        HydraConfig.instance().set_config(master)
        target = OmegaConf.select(master, key)
        if target not in _SWEEPERS:
            message = "chooses its jobs while it runs: there is no list of them"
            hint = "show one job, without -m"
            raise ConfigError((Diagnostic("sweeper", key, repr(target), message, hint),))
        grid = grid_of(master, composed.loader, as_written(master.hydra.overrides.task))
    jobs = SweepJobs(HydraContext(composed.loader, Callbacks()), master)
    found: list[Reviewed] = []
    for number, overrides in enumerate(grid):
        try:
            with composing():
                job = jobs.compose(overrides, number)
                with locating(composed.loader, job):
                    spec = jobs.plan(job, here=False)
        except LaunchError as error:
            why = f"{job_name(overrides)}:\n{error}".replace("\n", "\n  ")
            raise ComposeFailed(why, exit_code=error.exit_code) from error
        found.append(_reviewed(composed, spec, job, policy, overrides))
    return found


def _reviewed(
    composed: Composition,
    spec: LaunchSpec,
    config: DictConfig,
    policy: Policy | None,
    overrides: Sequence[str] | None = None,
) -> Reviewed:
    """Return a run, or with overrides a job of a sweep."""
    raw: Any = OmegaConf.to_container(config, resolve=False)
    node, alone = raw["hydra"], overrides is None
    texts = [node["run"]["dir"]] if alone else [node["sweep"]["dir"], node["sweep"]["subdir"]]
    directory = "/".join(safe_source(str(text), "dir") for text in texts)
    job = job_name(overrides) if overrides is not None else ""
    refused = check(spec, config, policy, tree_top(os.getcwd()))
    unlocked, name = unlocked_variables(config), lock_name(spec, config)
    # takes as long as composing, and few are asked for it
    origins = functools.cache(functools.partial(composed.origins, given_overrides(config)))
    return Reviewed(spec, refused, unlocked, name, job, directory, origins)


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


def file_of(spec: LaunchSpec) -> str:
    """Returns the file that an entrypoint comes to, absolute; empty if it cannot be told."""
    entry = spec.entrypoint
    path = import_path(spec.cwd, spec.runtime_cwd, sys.path, spec.env.get("PYTHONPATH", ""))
    if entry.form == "script":
        return entry.name
    if entry.form == "program":
        where = spec.env.get("PATH") or os.environ.get("PATH") or os.defpath
        program = entry.name if "/" in entry.name else shutil.which(entry.name, path=where)
        return os.path.abspath(program) if program else ""
    main = entry.form == "module"
    found = locate_main(entry.name, path) if main else locate(entry.name, entry.qualname, path)
    return os.path.abspath(found.file) if found.file else ""
