"""Every private name of Hydra that lllaunch uses, and what it stands for.

Hydra may change these in any release; a test names them all, and looks that each is still there.
No other module uses one; OmegaConf's are in `lllaunch.config.omegaconf_compat`. What is imported
here every Hydra app has imported before its plugins.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

# what makes and calls the callbacks of a run
from hydra._internal.callbacks import Callbacks

# Hydra's config loader, which has no public constructor
from hydra._internal.config_loader_impl import ConfigLoaderImpl

# where a loader finds configs, and the interface of that
from hydra._internal.config_repository import (
    CachingConfigRepository,
    ConfigRepository,
    IConfigRepository,
)

# a search path that can be filled anew
from hydra._internal.config_search_path_impl import ConfigSearchPathImpl

# the defaults list: all configs, in the order of merging
from hydra._internal.defaults_list import (
    DefaultsList,
    Overrides,
    create_defaults_list,
)

# the state of an app, which `hydra.compose` uses
from hydra._internal.hydra import Hydra

# the search path of an app, with what plugins add to it
from hydra._internal.utils import create_automatic_config_search_path
from hydra.core.config_store import ConfigNode, ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.config_source import ConfigSource
from hydra.utils import instantiate
from omegaconf import OmegaConf

if TYPE_CHECKING:
    # the sweeper of grids
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.override_parser.types import Override
    from hydra.plugins.config_source import ConfigResult
    from omegaconf import DictConfig

__all__ = [
    "BasicSweeper",
    "Callbacks",
    "ConfigLoaderImpl",
    "ConfigSearchPathImpl",
    "DefaultsList",
    "Hydra",
    "IConfigRepository",
    "create_automatic_config_search_path",
]


def __getattr__(name: str) -> Any:
    # looking for plugins Hydra executes the modules of its own once more: then is the time
    if name == "BasicSweeper":
        return importlib.import_module(BASIC_SWEEPER.rpartition(".")[0]).BasicSweeper
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# What the configs of Hydra's own launcher and sweeper name as ``_target_``.
BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


# What Hydra looks up when it needs it


class Seam(Enum):
    """A global of one of Hydra's modules, in the place of which another object can stand."""

    LOADER = "hydra._internal.hydra", "ConfigLoaderImpl"  # the class of the config loader of an app
    # make the defaults list of a config
    LISTS = "hydra._internal.config_loader_impl", "create_defaults_list"
    # the class of what makes and calls the callbacks of a run or sweep
    CALLBACKS = "hydra._internal.hydra", "Callbacks"
    RUN_JOB = "hydra._internal.hydra", "run_job"  # run the only job of a run
    RUN_APP = "hydra.main", "_run_hydra"  # do what a command line asks for
    # the same, as other decorators than `hydra.main` find it
    RUN_OTHER_APP = "hydra._internal.utils", "_run_hydra"
    # call a function, print what it raises and exit
    REPORT = "hydra._internal.utils", "run_and_report"
    RETURN = "hydra.core.utils", "JobReturn"  # the class of what a job returns
    # make loggers and handlers of a config of Python's logging
    LOGGING = "hydra._internal.logging_config", "configure_logging"


@contextlib.contextmanager
def replaced(seams: Mapping[Seam, Callable[[Any], Any]]) -> Iterator[None]:
    """Let other objects stand in the place of Hydra's in the block.

    Each function makes the other object of Hydra's own.
    """
    with contextlib.ExitStack() as former:
        for seam, make in seams.items():
            owner, name = _owner(seam)
            own = getattr(owner, name)
            former.callback(setattr, owner, name, own)
            setattr(owner, name, make(own))
        yield


def _owner(seam: Seam) -> tuple[Any, str]:
    module, name = seam.value
    # the function hydra.main hides the module of that name
    return sys.modules.get(module) or importlib.import_module(module), name


def watch_apps(called: Callable[[Any, bool], bool]) -> None:
    """Let a function see each call of a Hydra app in this process, for good.

    It gets the task function, None if it is not known, and whether that is to run at once: in
    `Hydra.run`, `Hydra.multirun` and what begins any job, not in what does what a command line asks
    for. If it returns True, the call does nothing.
    """

    def watch(owner: Any, name: str, runs: bool) -> None:
        original = getattr(owner, name)
        if hasattr(original, "__wrapped__"):
            return

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            # of Hydra, and its arguments: the config's name, the function, the overrides
            given = args[2] if runs and len(args) > 2 else None
            if called(kwargs.get("task_function", given), runs):
                return None
            return original(*args, **kwargs)

        setattr(owner, name, watched)

    for seam in (Seam.RUN_APP, Seam.RUN_OTHER_APP):
        # a script that has not imported hydra.main has no app that it would start
        if seam.value[0] in sys.modules:
            watch(*_owner(seam), False)
    # other libraries (hydra-zen) start jobs without `Hydra.run` and `Hydra.multirun`
    starts = {Hydra: ("run", "multirun"), Callbacks: ("on_run_start", "on_multirun_start")}
    for owner, names in starts.items():
        for name in names:
            watch(owner, name, True)


class _Deferred(ConfigNode):
    """A config of Hydra's store that is made when it is loaded.

    Every Hydra app of the machine stores those of the launcher, and copies its store each time it
    composes something.
    """

    def __init__(self, name: str, group: str | None, make: Callable[[], Any]) -> None:
        self.name, self.group, self._make = f"{name}.yaml", group, make

    def __deepcopy__(self, _: object) -> _Deferred:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # also for copy.copy, which the store calls to load it
        node = OmegaConf.structured(self._make())
        return ConfigNode, (self.name, node, self.group, None, "lllaunch")


def store_deferred(name: str, make: Callable[[], Any], group: str | None = None) -> None:
    """Store a config, or one of a group of Hydra's, that ``make`` returns when it is loaded."""
    repo = ConfigStore.instance().repo
    for part in group.split("/") if group else ():
        repo = repo.setdefault(part, {})
    repo[f"{name}.yaml"] = _Deferred(name, group, make)


def root_defaults() -> Any:
    """Return the defaults list of Hydra's own root config, which every config begins with."""
    return ConfigStore.instance().repo["hydra"]["config.yaml"].node.defaults


# Composing


class BoundedRepository(ConfigRepository):
    """Where a loader finds configs.

    ``look`` sees each search path before it is used, ``expect`` the path of each file before it is
    read. What groups and files come to is kept: jobs of a sweep, which are forks, differ mostly in
    values.
    """

    def __init__(
        self,
        search_path: ConfigSearchPath,
        expect: Callable[[str], None],
        look: Callable[[ConfigSearchPath], None],
    ) -> None:
        self.expect, self.look = expect, look
        super().__init__(search_path)

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        """Look in other places; called by Hydra."""
        self.look(config_search_path)
        super().initialize_sources(config_search_path)
        self._read: dict[str, ConfigResult | None] = {}
        self.lists: dict[Any, DefaultsList] = {}
        self.merged: dict[Any, DictConfig] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundedRepository:
        # Hydra copies it for each composing, and gives the copy a new list of sources at most.
        return copy.copy(self)

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Read a config, once for all that this process and its forks compose; called by Hydra."""
        if config_path not in self._read:
            source = self._find_object_source(config_path, ObjectType.CONFIG)
            if source is not None and source.scheme() == "file":
                self.expect(os.path.join(source.path, file_name(config_path)))
            self._read[config_path] = super().load_config(config_path)
        # Hydra changes what it gets
        return copy.deepcopy(self._read[config_path])


def keeping_lists(own: Callable[..., DefaultsList]) -> Callable[..., DefaultsList]:
    """Return what makes defaults lists, once for all command lines that differ in values alone."""

    def made(
        repo: CachingConfigRepository, config_name: str | None, overrides_list: Any, **rest: bool
    ) -> DefaultsList:
        values = Overrides(repo, overrides_list).config_overrides
        chosen = [each.input_line for each in overrides_list if each not in values]
        lists: dict[Any, DefaultsList] = getattr(repo.delegate, "lists", {})
        key = (config_name, *chosen, *rest.items())
        if key not in lists:
            lists[key] = own(
                repo=repo, config_name=config_name, overrides_list=overrides_list, **rest
            )
        return replace(lists[key], config_overrides=values)

    return made


class WatchedLoader(ConfigLoaderImpl):
    """Hydra's config loader, with a moment of composing that a subclass may use."""

    parsed: Sequence[Override] = ()
    """The overrides that were composed last."""
    primary: tuple[Any, str] = None, ""
    """Where the primary config is found, and its name."""

    def complete(self, config: DictConfig) -> None:
        """Change what the files come to, before overrides are applied."""

    def _process_config_searchpath(
        self, config_name: str | None, parsed_overrides: Any, repo: Any
    ) -> None:
        self.parsed, self.primary = parsed_overrides, (repo, config_name or "")
        super()._process_config_searchpath(config_name, parsed_overrides, repo)

    def _compose_config_from_defaults_list(self, defaults: Any, repo: Any) -> DictConfig:
        merged: dict[Any, DictConfig] = repo.delegate.merged
        key = tuple(map(repr, defaults))
        if key not in merged:
            config = super()._compose_config_from_defaults_list(defaults, repo)
            self.complete(config)
            merged[key] = config
        return copy.deepcopy(merged[key])


def read_defaults(
    loader: ConfigLoaderImpl, config_name: str | None, overrides: Sequence[str], *, sweep: bool
) -> tuple[DefaultsList, IConfigRepository]:
    """Return what a loader would compose, and where it finds it; a ``sweep`` may lack configs."""
    parsed, repo = loader._parse_overrides_and_create_caching_repo(config_name, list(overrides))
    return create_defaults_list(
        repo, config_name, parsed, prepend_hydra=True, skip_missing=sweep
    ), repo


def merged(loader: ConfigLoaderImpl, found: DefaultsList, repo: Any) -> DictConfig:
    """Return what the files of a defaults list and the overrides of values come to."""
    config = loader._compose_config_from_defaults_list(found.defaults, repo)
    OmegaConf.set_struct(config, True)
    OmegaConf.set_readonly(config.hydra, False)
    loader._apply_overrides_to_config(found.config_overrides, config)
    return config


def file_name(config_path: str) -> str:
    """Return the name of a config with its extension."""
    return ConfigSource._normalize_file_name(config_path)


class QuietReturn(JobReturn):
    """What became of a job: Hydra's own, but reading the value of a failed one prints nothing."""

    @property
    def return_value(self) -> Any:
        """What the task function returned, or raise what it raised."""
        if self.status is JobStatus.FAILED:
            raise self._return_value
        return super().return_value

    @return_value.setter
    def return_value(self, value: Any) -> None:
        self._return_value = value

    def __reduce__(self) -> tuple[Any, ...]:
        # a file that a callback of Hydra's pickles is to load where lllaunch is not installed
        return instantiate, ({"_target_": "hydra.core.utils.JobReturn"},), self.__dict__


# What messages say that exceptions do not


class HydraMessage:
    """Patterns of parts of Hydra's and OmegaConf's messages, for `re.search`."""

    INCLUDED_BY = r"In '([^']+)': "  # the config whose defaults list names what is missing
    # the key that an interpolation names and the config does not have
    NO_KEY = r"Interpolation key '([^']+)' not found"
    NO_CONFIG = r"Could not (?:find|load) '([^']+)'"  # a config that is not there
    # what there is in its group, each in a line
    FULL_KEY = r"full_key: (\S+)(?:\s+object_type=\S+)?"
    # a config leaves a choice or a value to whoever uses it
    INCOMPLETE = r"You must specify|Missing mandatory value"
