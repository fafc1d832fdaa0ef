"""A worker of a user's own Hydra app: runs the script, becomes the job, calls the function.

A worker runs the script as Python would, up to the call that starts the app; there it runs the
app's function, and the script ends. What workers cannot find by module and name, such as a closure,
is called in forks of the job's launcher. docs/design/own-app.md says why.

The composed config travels with its interpolations, so that ``${oc.env:LOCAL_RANK}`` is resolved
where it means something. Each is resolved once in the launcher before, so that resolvers with a
cache, as ``${now:...}``, put values into the config's own, which travels with it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import io
import operator
import os
import pickle
import re
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime, configure_log, setup_globals
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from lllaunch.config.omegaconf_compat import root_of
from lllaunch.config.read import register_resolvers
from lllaunch.config.schema import schema_node
from lllaunch.config.tree import leaf_items
from lllaunch.errors import ConfigError, Diagnostic, NotPicklable, package_missing
from lllaunch.hydra_compat import ConfigLoaderImpl, ConfigSearchPathImpl, Hydra, watch_apps
from lllaunch.spawner.protocol import Forked, Function
from lllaunch.spawner.worker import execute_module, execute_script, library_directories
from lllaunch.spec import Entrypoint

if TYPE_CHECKING:
    from hydra.core.config_search_path import SearchPathElement


class UserScript(NamedTuple):
    """How this process was started, and so what workers run first; empty in a session."""

    path: str = ""  # absolute
    module: str = ""  # of ``python -m``


class AppReached(BaseException):
    """Ends the user's script in a worker: its app has been called, the rest is the launcher's."""


class _State:
    """Whether this process is a worker of a user's own app, and what it has still to do."""

    worker = False
    # called with the function of the app that ``reach`` finds
    task: Callable[[Callable[[Any], Any]], None] | None = None
    reach: Reach


def call_in_worker(function: Any, runs: bool = False) -> bool:
    """In a worker, where the user's script calls an app: runs what the worker is there for.

    `AppReached` then ends the script. Returns whether this is a worker, and another app than its
    own, whose call does nothing. One that its own function calls is a `RuntimeError`.

    ``runs``: the call starts jobs by a way of its own. Whoever has called that uses what it
    returns, so it ends the script in any case.
    """
    task, name = _State.task, getattr(function, "__name__", "main")
    if not _State.worker or (runs and task is None):
        return False
    if task is None:
        raise RuntimeError(
            f"{name}() was called without a config in a worker, which would launch workers from "
            f"workers; call {name}(cfg) to run the function itself"
        )
    # where it is called from an import of its own module, that is not complete yet
    own = _State.reach.layer() is function
    if own:
        task(function)
    if own or runs:
        raise AppReached
    return True


def started_as(main: ModuleType, needed: bool) -> UserScript:
    """Returns how a process was started; ``needed``: the function that workers run is in ``main``.

    If it is not, a library such as a test runner is not to run in workers; nor is a package's
    ``__main__.py``, which often has no guard.
    """
    spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = spec.name if spec is not None else ""
    libraries = (*library_directories(), os.path.join(sys.prefix, "bin", ""))
    of_library = path is not None and os.path.abspath(path).startswith(libraries)
    if not needed and (of_library or name.endswith(".__main__")):
        return UserScript()
    if name and name != "__main__":
        return UserScript(module=name)
    if path and os.path.isfile(path):
        return UserScript(path=os.path.abspath(path))
    return UserScript()


def original_arguments(script: UserScript, cwd: str) -> tuple[str, ...]:
    """Return ``sys.argv`` as it was before the script's code, which workers run again."""
    module = script.module.removesuffix(".__main__")
    for place, word in enumerate(sys.orig_argv):
        if module:
            begins = word == module and sys.orig_argv[place - 1] == "-m"
        else:
            begins = place > 0 and os.path.abspath(os.path.join(cwd, word)) == script.path
        if begins:
            return (sys.argv[0], *sys.orig_argv[place + 1 :])
    return tuple(sys.argv)


def run_in_script(
    script: UserScript, reach: Reach, action: Callable[[Callable[[Any], Any]], Any]
) -> Any:
    """Run the user's script in this worker, and an action where it calls its app, or at its end.

    Returns what the action returned.
    """
    # what the function returned or raised, which the script's own code must not see
    verdict: list[tuple[Any, BaseException | None]] = []

    def task(function: Callable[[Any], Any] | None = None) -> None:
        _State.task = None
        try:
            verdict.append((action(function or reach.find()), None))
        except BaseException as error:  # noqa: BLE001 - raised below
            verdict.append((None, error))

    _State.worker, _State.task, _State.reach = True, task, reach
    # for the calls of plain Hydra apps
    watch_apps(call_in_worker)
    try:
        if script.module:
            execute_module(script.module)
        elif script.path:
            execute_script(script.path)
    except AppReached:
        # what stands below the call runs in the launcher, after all workers
        pass
    except SystemExit as end:
        if not verdict and end.code not in {None, 0}:
            raise
    except BaseException:
        # the function's own verdict is what counts, if there is one
        if not verdict:
            raise
    finally:
        _State.task = None
    if not verdict:
        task()
    value, error = verdict[0]
    if error is not None:
        raise error
    return value


class Reach(NamedTuple):
    """How workers find a function."""

    module: str
    qualname: str
    depth: int = 0  # decorators around it: so often `__wrapped__` is taken

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Reach | None:
        """Return how workers find a function; None if they do not: a closure, an object."""
        module = getattr(function, "__module__", None)
        qualname = getattr(function, "__qualname__", None)
        if module not in sys.modules or not isinstance(qualname, str):
            return None
        found = cls(module, qualname)
        while (layer := found.layer()) is not None and layer is not function:
            found = found._replace(depth=found.depth + 1)
        return None if layer is None else found

    def layer(self) -> Any:
        """Return what is there now; None if nothing is."""
        found: Any = importlib.import_module(self.module)
        for part in [*self.qualname.split("."), *["__wrapped__"] * self.depth]:
            found = getattr(found, part, None)
        return found

    def find(self) -> Callable[[Any], Any]:
        """Return the function, or raise `ConfigError`."""
        found = self.layer()
        if not callable(found):
            raise self.missing()
        return found  # type: ignore[no-any-return]

    def missing(self) -> ConfigError:
        """Return the error that says that workers cannot find the function."""
        name, message = f"{self.module}:{self.qualname}", "is not what workers find under that name"
        hint = "decorate a function at the top level of its module, outside of any condition"
        return ConfigError((Diagnostic("own-app", "lllaunch.main", name, message, hint),))


# a resolver's call without another interpolation in its arguments
_CALL = re.compile(r"\$\{[^${}:]+:[^${}]*\}")


def settle(cfg: DictConfig) -> None:
    """Resolves every interpolation once, for the caches; what only workers can resolve is left."""
    for path, text in _interpolated(OmegaConf.to_container(cfg, resolve=False)):
        node: Any = functools.reduce(operator.getitem, path[:-1], cfg)
        # a part that only workers can resolve hides the others: these are tried alone, too
        alone = [
            (OmegaConf.create({"call": call}, parent=node), "call") for call in _CALL.findall(text)
        ]
        for owner, name in [(node, path[-1]), *alone]:
            # resolvers are the user's code; the worker meets it again
            with contextlib.suppress(Exception):
                owner[name]


def _interpolated(plain: Any) -> list[tuple[tuple[Any, ...], str]]:
    """All texts with an interpolation, with their paths."""
    every = leaf_items(plain)
    return [(path, text) for path, text in every if isinstance(text, str) and "${" in text]


class _WorkerHydra(Hydra):
    """Hydra's state of a worker, for `hydra.compose`; loads nothing before that is called."""

    def __init__(self, name: str, search_path: list[SearchPathElement]) -> None:
        self._search_path = search_path
        setup_globals()
        JobRuntime.instance().set("name", name)

    @functools.cached_property
    def config_loader(self) -> ConfigLoaderImpl:  # type: ignore[override]
        """Finds configs where the app does."""
        # looks for plugins, which sources of configs are
        Plugins.instance()
        search_path = ConfigSearchPathImpl()
        search_path.config_search_path = list(self._search_path)
        return ConfigLoaderImpl(config_search_path=search_path)


def pack(cfg: DictConfig) -> bytes:
    """Return a job's config and Hydra's own, as bytes for `unpack`, or raise `NotPicklable`."""
    # Hydra's node hangs under the whole config of the job, its interpolations reach into it
    node: Any = HydraConfig.get()
    whole = root_of(node)
    settle(whole)
    settle(cfg)
    app = GlobalHydra.instance().hydra
    state = {
        "job": cfg,
        "whole": whole,
        "name": JobRuntime.instance().get("name"),
        "search_path": None if app is None else app.config_loader.get_search_path().get_path(),
    }
    # classes that were made in a function, and what caches hold, only cloudpickle sends
    with contextlib.suppress(Exception):  # it runs code of the config's classes
        return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
    # seldom needed: imported in 10 ms
    try:
        import cloudpickle  # noqa: PLC0415
    except ModuleNotFoundError:
        raise package_missing("cloudpickle", "a config that pickle cannot send") from None

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            # by itself it would take all of __main__ by value, which the workers have as well
            named = isinstance(obj, (type, FunctionType))
            if named and Reach.of(obj) == Reach(obj.__module__, obj.__qualname__):
                return NotImplemented
            return super().reducer_override(obj)

    buffer = io.BytesIO()
    try:
        Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(state)
    except Exception as error:
        raise NotPicklable("the config", f"{type(error).__name__}: {error}") from error
    return buffer.getvalue()


def unpack(data: bytes) -> DictConfig:
    """Sets Hydra's state in this process as it was where `pack` was called."""
    setup_globals()
    register_resolvers()
    state = pickle.loads(data)  # noqa: S301 - made by `pack`
    GlobalHydra.instance().clear()
    if state["search_path"] is not None:
        GlobalHydra.instance().initialize(_WorkerHydra(state["name"], state["search_path"]))
    JobRuntime.instance().set("name", state["name"])
    HydraConfig.instance().set_config(state["whole"])
    job: DictConfig = state["job"]
    return job


def run(
    script: UserScript,
    function: Reach,
    config: bytes,
    argv: Sequence[str],
    command: Sequence[str],
    path: Sequence[str],
    cwd: str,
) -> Any:
    """Runs a user's script and function in this worker; called by the spawner.

    ``config`` is made by `pack`, and not unpickled before the script has come to its app: it may
    hold classes of that, and resolvers. The others are as in the launcher's process.
    """
    sys.argv[:] = argv
    sys.orig_argv[:] = command
    sys.path[:] = path
    jobs = os.getcwd()
    os.chdir(cwd)

    def task(function: Callable[[Any], Any]) -> Any:
        os.chdir(jobs)
        return run_in_worker(function, unpack(config))

    return run_in_script(script, function, task)


def run_in_worker(function: Callable[[Any], Any], cfg: DictConfig) -> Any:
    """Runs a function with its config in this worker, where Hydra's state is that of the job."""
    _configure_logging()
    # the node ``launch`` is taken out, unless a config of the user's has or reads one
    plain: Any = OmegaConf.to_container(cfg, resolve=False)
    overrides = HydraConfig.get().overrides.task
    given = {word.lstrip("+~").partition("=")[0].replace("/", ".") for word in overrides}
    read = any("launch" in text for _, text in _interpolated(plain))
    if not read and not _says_more(plain.get("launch"), schema_node(), "launch", given):
        with read_write(cfg), open_dict(cfg):
            cfg.pop("launch", None)
    return function(cfg)


def _says_more(node: Any, default: Any, key: str, given: Container[str]) -> bool:
    """Whether a node says more than its default and the command line."""
    if key in given or node == default:
        return False
    if not isinstance(node, dict):
        return True
    defaults = default if isinstance(default, Mapping) else {}
    return any(
        _says_more(item, defaults.get(name), f"{key}.{name}", given) for name, item in node.items()
    )


def _configure_logging() -> None:
    """Sets up logging as Hydra does for a job; ranks but 0 write in their own directories."""
    hydra = HydraConfig.get()
    app: Any = OmegaConf.to_container(hydra.hydra_logging, resolve=True)
    job: Any = OmegaConf.to_container(hydra.job_logging, resolve=True)
    if job.get("root") is None:
        # without logging of its own (``none``) the job has Hydra's
        job = copy.deepcopy(app)
    # Hydra's own logging comes first: levels that the job's leaves out are those that it has set.
    app["handlers"] = {name: {"class": "logging.NullHandler"} for name in app.get("handlers") or {}}
    configure_log(OmegaConf.create(app), hydra.verbose)
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    first, has_directory = os.environ.get("RANK") == "0", error_file not in {"", os.devnull}
    for handler in (job.get("handlers") or {}).values():
        if first and "mode" in handler:
            handler["mode"] = "a"
        elif has_directory and not first and isinstance(handler.get("filename"), str):
            directory = os.path.dirname(error_file)
            handler["filename"] = moved(handler["filename"], hydra.runtime.output_dir, directory)
    configure_log(OmegaConf.create(job), hydra.verbose)


def moved(file: str, output_dir: str, directory: str) -> str:
    """Return where a log file of the job goes for one worker, and make its directory."""
    within = os.path.relpath(os.path.abspath(file), output_dir)
    if within.startswith(os.pardir):
        within = os.path.basename(file)
    path = os.path.join(directory, within)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


class UserFunction(NamedTuple):
    """A function that workers run instead of the configured entrypoint, and how they come by it."""

    entrypoint: Entrypoint  # what the run's messages and its plan call it
    # with its arguments, in a batch job, where there is no process of the script
    function: Callable[[Any], Any] | Function
    reach: Reach | None = None  # None if they are forked from the process that has it
    script: UserScript = UserScript()
    # says where a file or directory of the code is that the workers run
    place: Callable[[str], str] = str

    @classmethod
    def of(cls, function: Callable[[Any], Any], *, importable: bool = False) -> UserFunction:
        """A function that workers import if they can, or must; else they are forked with it."""
        reach = Reach.of(function)
        # a name for messages, of what cannot be found by it
        kind: Any = function if hasattr(function, "__qualname__") else type(function)
        name = getattr(kind, "__qualname__", "task").replace(os.sep, ".")
        module, qualname, _ = named = reach or Reach(kind.__module__ or "__main__", name)
        if reach is None and importable:
            raise named.missing()
        in_main = reach is not None and module == "__main__"
        main = sys.modules["__main__"]
        script = started_as(main, needed=in_main)
        # read from standard input: there is nothing that workers could import
        reach = None if in_main and script == UserScript() else reach
        where = script.module or os.path.basename(script.path) if module == "__main__" else module
        entrypoint = Entrypoint("function", module, f"{where}:{qualname}", qualname)
        return cls(entrypoint, function, reach, script)

    @property
    def forked(self) -> bool:
        """Whether workers are forked from the process that has the function."""
        return self.reach is None and not isinstance(self.function, Function)

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules that every worker needs."""
        return () if self.forked else (__name__,)

    def target(self, cfg: DictConfig) -> Function | Forked:
        """Return what each worker runs, or raise `NotPicklable`; Hydra's config is the job's."""
        if isinstance(self.function, Function):
            return self.function
        if self.reach is None:
            return Forked(run_in_worker, (self.function, cfg))
        cwd, path = HydraConfig.get().runtime.cwd, self.script.path
        arguments = {
            "script": self.script._replace(path=path and self.place(path)),
            "function": self.reach,
            "config": pack(cfg),
            "argv": original_arguments(self.script, cwd),
            "command": sys.orig_argv,
            "path": [self.place(each) if each else each for each in sys.path],
            "cwd": self.place(cwd),
        }
        call = pickle.dumps(((), arguments), pickle.HIGHEST_PROTOCOL)
        return Function(__name__, run.__name__, call)
