"""Composes configs as ``python -m lllaunch`` does, and runs nothing: for verbs that look at them.

Hydra's own functions do it, with the search path and the primary config of the app. Callbacks are
not made, logging is not set up, no file is written.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from hydra import version
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime, env_override, setup_globals, validate_config_path
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf, open_dict, read_write

from lllaunch.app import search_path
from lllaunch.app.boundary import message_of, noting_variables, reason_of, without_variables
from lllaunch.app.gate import expect_own_environment
from lllaunch.app.guarded_loader import GuardedLoader
from lllaunch.app.planning import Whereabouts, plan_job
from lllaunch.app.schema_store import install
from lllaunch.app.search_path import BASE, MODULE, PRIMARY
from lllaunch.app.sweeping.composing import Composer
from lllaunch.config.provenance import origins
from lllaunch.errors import LaunchError
from lllaunch.hydra_compat import Callbacks, create_automatic_config_search_path
from lllaunch.review.hydra_node import with_hydra

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lllaunch.config.origin import Origins
    from lllaunch.spec import LaunchSpec


@dataclass(eq=False)
class ComposeFailed(LaunchError):
    """Hydra cannot compose a config; ``message`` is its ``reason`` in lllaunch's words, if any."""

    reason: str
    message: str = ""

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
        found = {name: getattr(given, name) for name in cls._fields}
        return cls(**{**found, "overrides": tuple(given.overrides)})

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
    """Composes what one command line asks for; a context manager.

    Outside of it Hydra's global state is what it was. What Hydra cannot compose is a
    `ComposeFailed`.

    Raises:
        ComposeFailed: a directory that it names is not there.
    """

    def __init__(self, command: ConfigRequest) -> None:
        self.command = command
        self.config_name = command.config_name or PRIMARY
        self._left = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._left.enter_context(_state_put_back())
        try:
            self.loader = self._new_loader()
        except BaseException:
            self._left.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    def _new_loader(self) -> GuardedLoader:
        setup_globals()
        version.setbase(BASE)
        install()
        JobRuntime.instance().set("name", MODULE)
        command = self.command
        search_path.ConfDirectories.config_dir = command.config_dir
        Plugins.instance().register(search_path.ConfDirectories)
        path = search_path.config_path_of(command.config_path) or search_path.PACKAGED
        with composing():
            validate_config_path(path)
            found = create_automatic_config_search_path(None, MODULE, path)
            if command.config_dir is not None:
                directory = os.path.abspath(command.config_dir)
                if not os.path.isdir(directory):
                    raise ComposeFailed(f"--config-dir: there is no directory {directory!r}")
                anchor = SearchPathQuery(provider="schema")
                found.prepend("command-line", f"file://{directory}", anchor=anchor)
            return GuardedLoader.for_reviewers(found)

    def compose(self, overrides: Sequence[str] = ()) -> DictConfig:
        """Return the config of a run, whole; it is Hydra's config of this process."""
        every = [*self.command.overrides, *overrides]
        with composing():
            config = self.loader.load_configuration(self.config_name, every, RunMode.RUN)
            HydraConfig.instance().set_config(config)
            output_dir = str(OmegaConf.select(config, "hydra.run.dir"))
            node: Any = config.hydra.runtime
            with read_write(node), open_dict(node):
                node.output_dir = os.path.abspath(output_dir)
            HydraConfig.instance().set_config(config)
        return config

    def plan(self, config: DictConfig, *, entrypoint_required: bool = True) -> LaunchSpec:
        """Decides what the run of a config would be, on no machine in particular.

        Raises:
            ConfigError: something is wrong; it holds everything that is.
            ComposeFailed: ``hydra.job.env_set`` cannot be resolved.
        """
        expect_own_environment(config)
        runtime = config.hydra.runtime
        with composing():
            moves = OmegaConf.select(config, "hydra.job.chdir")
            env_set = dict(config.hydra.job.env_set)
        works_in = runtime.output_dir if moves else os.getcwd()
        where = Whereabouts(runtime.cwd, runtime.output_dir, works_in)
        with contextlib.ExitStack() as left:
            with composing():
                left.enter_context(env_override(env_set))
            spec = plan_job(
                config, where, None, here=False, entrypoint_required=entrypoint_required
            )
        return with_hydra(spec, config)

    def master(self) -> DictConfig:
        """Return what a sweep itself is composed to; it is Hydra's config of this process."""
        with composing():
            config = self.loader.load_configuration(
                self.config_name, list(self.command.overrides), RunMode.MULTIRUN
            )
            HydraConfig.instance().set_config(config)
        return config

    def composer(self, master: DictConfig) -> Composer:
        """Returns what composes the jobs of a sweep."""
        return Composer(HydraContext(self.loader, Callbacks()), master, None)

    def is_sweep(self) -> bool:
        """Return whether a sweep is asked for, by the command line or by the config."""
        if self.command.multirun:
            return True
        with composing():
            config = self.loader.load_configuration(
                *(self.config_name, list(self.command.overrides), RunMode.MULTIRUN),
                validate_sweep_overrides=False,
            )
            return bool(config.hydra.mode == RunMode.MULTIRUN)

    def origins(self, overrides: Sequence[str] = ()) -> Origins:
        """Return where the values of a composed config came from."""
        with composing():
            return origins(self.loader, self.config_name, [*self.command.overrides, *overrides])


@contextlib.contextmanager
def composing() -> Iterator[None]:
    """What Hydra raises in the block becomes a `ComposeFailed`; warnings are left out."""
    with noting_variables():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except LaunchError:
            raise
        except Exception as error:
            reason, message = reason_of(error), message_of(error)
            raise ComposeFailed(without_variables(reason), without_variables(message)) from error


@contextlib.contextmanager
def _state_put_back() -> Iterator[None]:
    known, runtime, base = HydraConfig.instance(), JobRuntime.instance(), version.VersionBase
    cfg, name, level = known.cfg, runtime.conf.get("name"), base.instance().version_base
    directory = search_path.ConfDirectories.config_dir
    try:
        yield
    finally:
        known.cfg = cfg
        runtime.set("name", name)
        base.instance().version_base = level
        search_path.ConfDirectories.config_dir = directory
