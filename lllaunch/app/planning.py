"""From configs to the plan of a run, and the run: where configs are, what runs are called.

The ``launch`` node is put under every primary config, before the user's own values.
``--config-name`` replaces a primary config together with its defaults list, so the schema cannot
hang on ours. It hangs on Hydra's own root instead, which Hydra composes first for every primary
config: ``launch.nproc=2`` and ``-m launch.nproc=1,2`` need no ``+`` in any app, and whatever the
user's files say about ``launch`` wins over the schema's defaults.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import pickle
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hydra import version
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import env_override
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from msgspec.structs import replace
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lllaunch.config.omegaconf_compat import root_of
from lllaunch.config.read import register_resolvers
from lllaunch.config.schema import schema_node
from lllaunch.errors import ConfigError, Diagnostic, LaunchError, OutputError
from lllaunch.files import is_below
from lllaunch.hydra_compat import root_defaults, store_deferred
from lllaunch.secret_names import redacted_overrides
from lllaunch.words import RESUME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hydra.core.config_loader import ConfigLoader
    from omegaconf import ListConfig

    from lllaunch.app.own_worker import UserFunction
    from lllaunch.console.console import Console
    from lllaunch.run.repository import Snapshot
    from lllaunch.run.result import ReturnValue, RunResult
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


# What begins so lllaunch itself reads of the environment.
_OURS = "LLLAUNCH_"


def expect_own_environment(config: Any) -> None:
    """Raise `ConfigError` if a config sets what lllaunch itself reads of the environment.

    Hydra sets ``hydra.job.env_set`` before a run starts, and so could name another policy.
    """
    node: Any = OmegaConf.select(config, "hydra.job.env_set", throw_on_resolution_failure=False)
    names = [name for name in node or () if str(name).startswith(_OURS)]
    message = "may not be set by a config: lllaunch itself reads it"
    if names:
        keys = (f"hydra.job.env_set.{name}" for name in names)
        raise ConfigError(tuple(Diagnostic("reserved-variable", key, "", message) for key in keys))


def plan_job(
    cfg: DictConfig,
    user: UserFunction | None,
    *,
    here: bool = True,
    environ: Mapping[str, str] | None = None,
    **known: Any,
) -> LaunchSpec:
    """Decide what the run of a job is, or raise `ConfigError`; Hydra's config is that of the job.

    ``user`` is what the workers run instead of the configured entrypoint. ``here``: False for
    reviewers, on no machine in particular. ``environ``: what is set beside Hydra's variables. The
    other arguments are as for `lllaunch.config.nodes.HostContext`.
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
    expect_own_environment(root_of(hydra))
    with env_override(dict(hydra.job.env_set)):
        around = HostContext(
            runtime_cwd=cwd,
            output_dir=hydra.runtime.output_dir,
            job_cwd=job_cwd(hydra),
            searched=searched if conf in searched else [*searched, f"{conf} (not there)"],
            environ={**os.environ, **(environ or {})},
            here=here,
            **known,
        )
        spec = resolve(cfg, around)
    if here:
        return spec
    from lllaunch.review.allow import with_hydra  # noqa: PLC0415 - for reviewers

    return with_hydra(spec, root_of(hydra))


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


# Configs, and what runs and the words that compose them are called

PACKAGED = "pkg://lllaunch.conf"
PRIMARY, AGAIN = "_lllaunch_app", "_lllaunch_again"
"""Primary configs of the app, and of a run that is repeated: names that no user has."""

MODULE, BASE = "lllaunch", "1.3"
"""What Hydra names the app's job after and finds relative paths from; its compatibility level."""

DIRECTORY = "conf"
EXPERIMENTS = "exp"
"""The config group whose choice names a lock."""

_PROVIDER = "lllaunch"
# Hydra's names for its own configs and for the place of the primary config
_HYDRA, _MAIN = "hydra", "main"
_SCHEMA = "_lllaunch_schema"


def config_path_of(path: str | None) -> str | None:
    """Return the value of ``--config-path`` for Hydra, which counts it from the app's own file.

    It was given from the working directory, if it exists there.
    """
    return os.path.abspath(path) if path and os.path.isdir(path) else path


def hydra_words(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Return words for Hydra with what it takes ``--config-path`` for, and ``--config-dir``.

    Hydra itself would search that directory last.
    """
    words, directory = list(argv), None
    for index, (flag, value) in enumerate(itertools.pairwise(argv), start=1):
        if flag in {"--config-path", "-cp"}:
            words[index] = str(config_path_of(value))
        elif flag in {"--config-dir", "-cd"}:
            directory = value
    return words, directory


class ConfDirectories(SearchPathPlugin):
    """Adds directories to the search path of the app that registered it, and of no other."""

    config_dir: ClassVar[str | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Puts --config-dir and ./conf before the package's configs; called by Hydra."""
        before_main = any(element.path == PACKAGED for element in search_path.get_path())
        if not before_main:
            # --config-path replaced the package: what it names precedes ./conf
            search_path.append(_PROVIDER, PACKAGED)
        conf = os.path.abspath(DIRECTORY)
        if os.path.isdir(conf):
            anchor = SearchPathQuery(_HYDRA if before_main else _MAIN)
            search_path.append(_PROVIDER, f"file://{conf}", anchor=anchor)
        # a directory that is not there is left to Hydra, which reports it
        if self.config_dir and os.path.isdir(self.config_dir):
            path = f"file://{os.path.abspath(self.config_dir)}"
            search_path.append("command-line", path, anchor=SearchPathQuery(_HYDRA))


def install() -> None:
    """Stores the schema, makes Hydra's root name it, and teaches OmegaConf ``${worker:...}``.

    The launcher and the sweeper of the app are lllaunch's from then on, if none is chosen.
    Idempotent.
    """
    register_resolvers()
    store_deferred(_SCHEMA, lambda: {"launch": schema_node()})
    # What is stored now, not a fresh HydraConf: another library may have added to it. In place:
    # loading and storing would copy it twice, which takes 8 ms.
    entry, defaults = f"/{_SCHEMA}@_global_", root_defaults()
    if entry in defaults:
        return
    defaults.append(entry)
    for each in defaults:
        # unless the command line or a primary config names another one
        for group in ("launcher", "sweeper"):
            if isinstance(each, DictConfig) and each.get(group) == "basic":
                each[group] = "lllaunch"


def install_app(config_dir: str | None) -> None:
    """Do the same for ``python -m lllaunch``, and put its directories on the search path."""
    install()
    ConfDirectories.config_dir = config_dir
    Plugins.instance().register(ConfDirectories)


def experiment_name(config: DictConfig) -> str:
    """Return a run's name in review: its choice of `EXPERIMENTS`, its primary config, or empty."""
    choices: Any = OmegaConf.select(config, "hydra.runtime.choices")
    choice = choices.get(EXPERIMENTS) if isinstance(choices, DictConfig) else None
    if isinstance(choice, str) and choice:
        return choice
    name = OmegaConf.select(config, "hydra.job.config_name")
    return "" if name in {None, PRIMARY, AGAIN} else str(name)


def is_of_a_moment(node: DictConfig) -> bool:
    """Return whether a directory is named after the moment, and so is to be a new one."""
    raw: Any = OmegaConf.to_container(node, resolve=False)
    return "${now:" in str(raw["dir"])


def as_file_name(text: str) -> str:
    """Return a text as the name of one file or directory."""
    return re.sub(r"[^\w.-]", "_", text).lstrip(".") or "run"


def job_name(overrides: Sequence[str]) -> str:
    """Returns what the lock of a sweep calls a job."""
    return shlex.join(redacted_overrides(overrides))


def words_of(config: DictConfig) -> tuple[str, ...]:
    """Returns flags and overrides that compose a config again, without secrets and locks."""
    node: Any = config.hydra
    name = node.job.config_name
    flags = [] if name in {None, PRIMARY, AGAIN} else ["--config-name", str(name)]
    for source in node.runtime.config_sources:
        if source.provider == "command-line" and source.schema == "file":
            path = os.path.relpath(source.path, node.runtime.cwd)
            flags[:0] = ["--config-dir", path] if path != DIRECTORY else []
    return (*dict.fromkeys(flags), *unlocked(redacted_overrides(given_overrides(config))))


def as_written(overrides: ListConfig) -> list[str]:
    """Returns overrides with their interpolations, which a config that holds them would resolve."""
    found: Any = OmegaConf.to_container(overrides, resolve=False)
    return list(map(str, found))


def given_overrides(config: DictConfig) -> list[str]:
    """Return the overrides that a config was composed with: those of Hydra's node, then others."""
    node: Any = config.hydra.overrides
    return [*as_written(node.hydra), *as_written(node.task)]


def unlocked(overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Returns overrides without those that do not bear on the plan: whether and where it runs."""
    keys = ("launch.locked", "hydra.mode", RESUME)
    return tuple(
        text
        for text in overrides
        if text.lstrip("+~").partition("=")[0] not in keys
        and not text.lstrip("+~").startswith(("hydra.run.", "hydra.sweep."))
    )
