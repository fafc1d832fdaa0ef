"""The Hydra apps of lllaunch, and their jobs: from the composed config to the run's outcome.

`run` is the app behind ``python -m lllaunch``, `main` makes one of a user's own function.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import hydra
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import env_override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from lllaunch.app.boundary import JobFailed, Ledger, reason_of, tell_ci
from lllaunch.app.command_line import OWN_FLAGS, WrongUsage, prestarted, read
from lllaunch.app.gate import GuardedLoader, JobOf, admit, has_rules
from lllaunch.app.planning import (
    AGAIN,
    BASE,
    EXPERIMENTS,
    MODULE,
    PACKAGED,
    PRIMARY,
    as_file_name,
    experiment_name,
    hydra_words,
    install,
    install_app,
    is_of_a_moment,
    load,
    locating,
    perform,
    plain,
    plan_job,
    unlocked,
    without_hydra,
)
from lllaunch.app.sweeper import completed
from lllaunch.config.omegaconf_compat import root_of
from lllaunch.config.tree import value_at
from lllaunch.errors import ConfigError, Diagnostic, ExitCode, LaunchError, OutputError
from lllaunch.files import link_atomic, naming
from lllaunch.hydra_compat import Seam, keeping_lists
from lllaunch.locks import LOST_NODE_PATIENCE, PATIENCE
from lllaunch.results.index import remember
from lllaunch.run.directory import PLAN, SUBMISSION, RunDirectory
from lllaunch.secret_names import redacted_overrides
from lllaunch.words import RESUME

if TYPE_CHECKING:
    from hydra.core.utils import JobReturn

    from lllaunch.app.own_worker import UserFunction
    from lllaunch.hydra_compat import Callbacks
    from lllaunch.run.result import RunResult
    from lllaunch.run.submission import BatchJob
    from lllaunch.spawner.client import Spawner
    from lllaunch.spec import LaunchSpec, Nodes

R = TypeVar("R")
_UNSPECIFIED: Any = object()
_MARK = "__lllaunch__"


class Jobs:
    """Runs the jobs of one Hydra app, one after another, with one spawner.

    ``spawner`` was started early. ``function`` is what the workers run instead of the configured
    entrypoint, ``again`` the run that is repeated, and ``batch`` the batch job that this is.
    ``quiet``: nothing is said of what goes well, whatever the config says.
    """

    def __init__(
        self,
        spawner: Spawner | None,
        function: Callable[[Any], Any] | None = None,
        again: RerunRequest | None = None,
        batch: BatchJob | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        self.ledger = Ledger()
        self.at_end = contextlib.ExitStack()
        self.quiet = quiet
        self.spawner = spawner
        self.function = function
        self._again = again
        # claimed and decided before Hydra writes anything; the last one is the run's own
        self._claimed: list[RunDirectory] = []
        self._latest = "", ""  # a link, or none, and the directory that it is to lead to
        self._planned: LaunchSpec | None = None
        self._user: UserFunction | None = again.function if again else None
        self._batch = batch

    def run_app(self, app: Callable[[], object], task: Callable[..., object]) -> int | None:
        """Call the Hydra app whose jobs these are, and say why it ended; as `Ledger.run` does.

        ``task`` is its task function, by which a launcher finds these with `jobs_of`.
        """
        setattr(task, _MARK, self)
        own: dict[Seam, Callable[[Any], Any]] = {
            Seam.LOADER: lambda _: GuardedLoader,
            Seam.LISTS: keeping_lists,
            Seam.CALLBACKS: lambda make: functools.partial(self._begin, make),
            Seam.LOGGING: lambda configure: functools.partial(configure_late, configure),
            Seam.RUN_JOB: lambda run_job: functools.partial(self._run_named, run_job),
        }
        with self.at_end:
            return self.ledger.run(app, own)

    def _begin(self, make: Callable[..., Callbacks], config: DictConfig, *args: Any) -> Callbacks:
        """Decide all before Hydra makes its callbacks.

        What is refused has called nothing, and leaves nothing behind: Hydra writes ``.hydra`` when
        its callbacks have been called. The record of a run that is there already stays as it is,
        and a directory that was made for the refused one is taken away again. Only where callbacks
        might change what is to run, and nobody reviews that, the decision waits for them.
        """
        alone = config.hydra.mode == RunMode.RUN
        with locating(GlobalHydra.instance().config_loader(), config):
            try:
                if alone:
                    self._claim(config)
                if alone and (has_rules() or not config.hydra.callbacks):
                    with env_override(config.hydra.job.env_set):
                        self._planned = self._decide(without_hydra(config))
                    if not self._claimed[-1].is_at(self._planned.directory):
                        self._take(self._planned.directory)
            except BaseException:
                for directory in reversed(self._claimed):
                    directory.discard()
                raise
        return make(config, *args)

    def _run_named(self, run_job: Callable[..., JobReturn], **given: Any) -> JobReturn:
        """Run Hydra's only job, but what Hydra cannot write names the run's directory."""
        # an error of the job is in what it returns, others are of Hydra's own files
        with naming(self._latest[1]):
            return run_job(**given)

    def _claim(self, config: DictConfig) -> None:
        """Take the directory that a run's config names; of a name for the moment, a free one."""
        node: Any = config.hydra.run
        fresh = is_of_a_moment(node)
        HydraConfig.instance().set_config(config)
        name = str(node.dir)
        raw: Any = OmegaConf.to_container(node, resolve=False)
        # where names for moments begin: ``outputs`` by default
        above = os.path.abspath(os.path.dirname(str(raw["dir"]).partition("${")[0]))
        link = os.path.join(above, "latest") if fresh else ""
        nodes: Nodes | None = None
        count = OmegaConf.select(config, "launch.nnodes", throw_on_resolution_failure=False)
        if count not in (None, 1):
            from lllaunch.config.resolve import nodes_ahead  # noqa: PLC0415 - of several nodes only

            nodes = nodes_ahead(config, elsewhere=self._batch is None)
        if nodes is not None and nodes.rdzv_id and fresh:
            # that all nodes have in common, and no moment
            name, fresh = os.path.join(above, as_file_name(nodes.rdzv_id)), False
        path = self._take(name, new=True) if fresh else os.path.abspath(name)
        if nodes is not None:
            from lllaunch.spec import node_directory  # noqa: PLC0415 - of several nodes only

            # each has its own below the run's, which is nobody's alone
            self._take(os.path.join(path, node_directory(nodes.node_rank)))
        elif not fresh:
            self._take(name)
        self._latest = link, path
        # all nodes of a batch job see the run's directory, which is Hydra's there
        output_dir = path if self._batch is not None else self._claimed[-1].path
        suffix = output_dir[len(os.path.abspath(name)) :]
        runtime: Any = config.hydra.runtime
        with read_write(config.hydra), open_dict(node), open_dict(runtime):
            if suffix:
                node.dir = name.rstrip("/") + suffix
            runtime.output_dir = output_dir
        HydraConfig.instance().set_config(config)

    def _take(self, path: str, *, new: bool = False) -> str:
        """Hold a run's directory until the app is over; return its path.

        A ``new`` one gets another name if need be; of one that is there, workers that a killed
        launcher has left are waited for.
        """
        again = self._batch is not None and self._batch.continues
        directory = (
            RunDirectory.claim_new(path)
            if new
            else RunDirectory.claim(
                path,
                LOST_NODE_PATIENCE if again else PATIENCE,
                lambda text: print(f"lllaunch: {text}", file=sys.stderr),
                alone=again,
            )
        )
        self._claimed.append(self.at_end.enter_context(directory))
        return directory.path

    def _decide(self, cfg: DictConfig) -> LaunchSpec:
        """Decide what the run of a job is, or raise if it may not start."""
        node: Any = HydraConfig.get()
        resume = OmegaConf.select(node, "launcher.resume")
        if node.mode == RunMode.RUN and resume is not None:
            message = "is for sweeps, and this is a run"
            raise ConfigError((Diagnostic("resume", RESUME, repr(resume), message, "add -m"),))
        if self.function is not None:
            from lllaunch.app.own_worker import UserFunction  # noqa: PLC0415 - a plain run has none

            self._user = UserFunction.of(self.function, importable=True)
        spec = plan_job(
            *(cfg, self._user),
            users_own=self.function is None and self._user is not None,
            submitted=self._batch is not None,
            quiet=self.quiet,
        )
        if self._again is not None:
            from lllaunch.config.plan import expect_same  # noqa: PLC0415 - a plain run needs none

            expect_same(spec, self._again.plan, self._again.path)
        config = root_of(node)
        # one moment for both
        OmegaConf.copy_cache(cfg, config)
        overrides = None if self._batch is None else self._batch.overrides
        job = None if overrides is None else JobOf(overrides, config)
        admit(spec, config, job, users_own=self._user is not None)
        return spec

    def run(self, cfg: DictConfig) -> RunResult:
        """Run one job, for the task function; a `JobFailed` is of one that did not succeed.

        A signal ends with a SystemExit what it is a job of, as Ctrl-C ends any Hydra app.
        """
        try:
            with locating(GlobalHydra.instance().config_loader(), root_of(HydraConfig.get())):
                outcome = self._execute(cfg)
        except LaunchError as error:
            raise self.ledger.note(error) from error.__cause__
        if outcome.state == "signalled":
            raise SystemExit(outcome.exit_code)
        if outcome.exit_code:
            text = (
                f"lllaunch: the run in {outcome.directory} failed (exit code {outcome.exit_code})"
            )
            raise self.ledger.note(JobFailed(outcome.exit_code, text))
        return outcome

    def _execute(self, cfg: DictConfig) -> RunResult:
        # --cfg and --help say nothing
        from lllaunch.console.console import Console  # noqa: PLC0415
        from lllaunch.run.repository import BuildQuery  # noqa: PLC0415

        spec = self._planned or self._decide(cfg)
        link, path = self._latest
        if link and (os.path.islink(link) or not os.path.lexists(link)):
            # a convenience: what is in its way stays, and no run fails for it
            with contextlib.suppress(OutputError):
                link_atomic(link, os.path.relpath(path, os.path.dirname(link)))
        log_dir = spec.directory
        if self._batch is None and os.path.lexists(os.path.join(log_dir, SUBMISSION)):
            # of an earlier run in this directory
            from lllaunch.app.submitting import replace_submission  # noqa: PLC0415

            replace_submission(log_dir)
        if spec.cluster is not None and self._batch is None:
            from lllaunch.app.submitting import submit_run  # noqa: PLC0415 - for a cluster only

            node: Any = HydraConfig.get()
            name = experiment_name(root_of(node)) or str(node.job.name)
            return submit_run(spec, cfg, self._user, name, release=self.at_end.close)
        remember(
            log_dir if spec.nodes is None else os.path.dirname(log_dir),
            spec.runtime_cwd,
            os.environ,
        )
        single = HydraConfig.get().mode == RunMode.RUN
        snapshot = None if self._batch is None else self._batch.snapshot
        with contextlib.closing(BuildQuery(HydraConfig.get().runtime.cwd)) as query:
            outcome = perform(
                *(spec, cfg, self._user, Console(), self.spawner),
                build=functools.partial(query.of_run, spec, snapshot),
                directory=next((each for each in self._claimed if each.is_at(log_dir)), None),
                ended=self.ledger.over if single and self._batch is None else None,
                job=self._batch,
            )
        if self._batch is not None:
            self._batch.outcome, self._batch.ran = outcome, True
        tell_ci(outcome.directory)
        return outcome


def jobs_of(task_function: Callable[..., object]) -> Jobs | None:
    """Return the jobs that a task function belongs to; None of a user's own."""
    return getattr(task_function, _MARK, None)


def configure_late(configure: Callable[[dict[str, Any]], None], conf: dict[str, Any]) -> None:
    """Set up logging, but log files are made by the first message that goes to them."""
    for handler in (conf.get("handlers") or {}).values():
        if handler.get("class") == "logging.FileHandler":
            handler.setdefault("delay", True)
    configure(conf)


def run(jobs: Jobs, config_name: str = PRIMARY) -> int:
    """Run the app of ``python -m lllaunch`` on ``sys.argv`` and return the exit code."""
    sys.argv[1:], directory = hydra_words(completed(sys.argv[1:]))
    install_app(directory)

    def task(cfg: DictConfig) -> object:
        # what there is by now stays: the first look at all of it took 18 ms
        gc.freeze()
        gc.enable()
        return plain(jobs.run(cfg).return_values.get(0))

    # Hydra names the job after the task's module, and finds relative paths from it
    task.__module__ = MODULE
    app = hydra.main(config_path=PACKAGED, config_name=config_name, version_base=BASE)(task)
    return jobs.run_app(app, task) or 0


class LaunchedMain(Generic[R]):
    """A function that `main` made into a Hydra app.

    Called without arguments it runs the app: Hydra composes the config from ``sys.argv``, and the
    function runs in ``launch.nproc`` workers. Called with a config it is the function itself.
    """

    def __init__(self, function: Callable[[Any], R], **hydra_arguments: Any) -> None:
        functools.update_wrapper(self, function)
        self.outcome: RunResult | None = None  # the result of the last run, None before the first
        self._function = function
        self._jobs: Jobs | None = None

        # Hydra finds the script and its configs through what the task function wraps
        @functools.wraps(function)
        def task(cfg: DictConfig) -> Any:
            assert self._jobs is not None
            self.outcome = None
            self.outcome = self._jobs.run(cfg)
            return load(self.outcome.return_values.get(0))

        self._task = task
        self._app = hydra.main(**hydra_arguments)(task)

    def __call__(self, cfg_passthrough: DictConfig | None = None) -> R | None:
        """Run the app, or the function itself with a config; `SystemExit` if the app failed."""
        if cfg_passthrough is not None:
            return self._function(cfg_passthrough)
        from lllaunch.app.own_worker import call_in_worker  # noqa: PLC0415 - a plain run needs none

        if call_in_worker(self._function):
            return None
        try:
            line = read(sys.argv[1:], own_app=True)
            sys.argv[1:] = completed(line.words)
            with prestarted(sys.argv[1:]) as spawner:
                install()
                self._jobs = Jobs(spawner, function=self._function, quiet=line.asks(*OWN_FLAGS))
                code = self._jobs.run_app(self._app, self._task)
        except WrongUsage as wrong:
            print(f"lllaunch: {wrong}", file=sys.stderr)
            code = ExitCode.CONFIG
        finally:
            if self._jobs is not None:
                self._jobs.ledger.restore()
            self._jobs = None
        if code is not None:
            sys.exit(code)
        return None

    def return_values(self) -> dict[int, Any]:
        """Return what the function returned in the last run, by rank; empty unless it succeeded."""
        found = {} if self.outcome is None else self.outcome.return_values
        return {rank: load(value) for rank, value in found.items()}


def main(
    config_path: str | None = _UNSPECIFIED,
    config_name: str | None = None,
    version_base: str | None = BASE,
) -> Callable[[Callable[[Any], R]], LaunchedMain[R]]:
    """Make a function a Hydra app that runs it in ``launch.nproc`` workers.

    It takes the arguments of `hydra.main`. The config is composed once, and every worker gets it.
    There is one output directory; rank 0 writes Hydra's job log, other ranks log in their own
    directories. The node ``launch`` exists whatever the primary config is. The Hydra job returns
    what rank 0 returned; `LaunchedMain.return_values` has the values of all ranks.

    Every worker runs the script as ``__main__`` up to the call of the function, which must be found
    by its name.
    """
    arguments: dict[str, Any] = {"config_name": config_name, "version_base": version_base}
    if config_path is not _UNSPECIFIED:
        arguments["config_path"] = config_path

    def decorate(function: Callable[[Any], R]) -> LaunchedMain[R]:
        return LaunchedMain(function, **arguments)

    return decorate


# A run again: its plan.yaml takes the place of what was composed for it. That is a config which
# comes to the same plan wherever the project is; the rest, and what of Hydra's node bears on the
# job (variables, working directory, logging, callbacks), is taken from ``.hydra``, if it is there.

_CONFIG, _HYDRA = ".hydra/config.yaml", ".hydra/hydra.yaml"
# What of Hydra's node bears on the job, and not on where and how it is started.
_KEPT = ("callbacks", "hydra_logging", "job_logging", "job.env_set", "job.chdir")
_OURS = "lllaunch.conf"


class RerunRequest(NamedTuple):
    """What is to be run again."""

    path: str
    # plain data, ``launch`` with the node under it, and ``cluster`` if it went to one
    plan: Mapping[str, Any]
    config: Mapping[Any, Any]  # the primary config of the new run
    cwd: str  # where the first run was started; empty if nothing says
    function: UserFunction | None = None  # what workers call, if the plan does not say it


def read_again(directory: str, *, submitted: bool = False) -> RerunRequest:
    """Return what a run has left, or what was submitted from its directory, to be run there.

    A `ConfigError` if it has no plan, or a run again needs a user's own app.
    """
    from lllaunch.config.plan import config_of, read_plan  # noqa: PLC0415 - a plain run needs none

    path = os.path.join(directory, PLAN)
    plan = read_plan(path)
    rest, hydra = (_read(os.path.join(directory, name)) for name in (_CONFIG, _HYDRA))

    def former(key: str) -> Any:
        # anybody may have written it
        return value_at(hydra, ["hydra", *key.split(".")])

    if not submitted:
        _expect_ours(directory, former, plan["launch"])
    # what the run was called in review; the primary config of the new one has no name
    name = former(f"runtime.choices.{EXPERIMENTS}") or former("job.config_name")
    named = isinstance(name, str) and name not in {PRIMARY, AGAIN}
    kept: dict[str, Any] = {"runtime": {"choices": {EXPERIMENTS: name if named else None}}}
    for key in _KEPT:
        above, _, last = key.rpartition(".")
        if (value := former(key)) is not None:
            (kept.setdefault(above, {}) if above else kept)[last] = value
    locked = value_at(rest, ["launch", "locked"]) or False
    # what the plan does not say of it is no part of the run
    rest.pop("cluster", None)
    config, function = {**rest, **config_of(plan), "hydra": kept}, None
    config["launch"]["locked"] = locked
    if submitted:
        from lllaunch.app.batch import read_function  # noqa: PLC0415 - of batch jobs only

        function = read_function(directory)
        for key in ("entrypoint", "args") if function is not None else ():
            # the plan names a function of a user's own app
            config["launch"].pop(key, None)
        # what looks like an interpolation in it is none; what of Hydra's the submission has
        # written stays
        kept |= {"run": {"dir": directory.replace("${", "\\${")}, "output_subdir": None}
    return RerunRequest(path, plan, config, str(former("runtime.cwd") or ""), function)


def run_again(
    again: RerunRequest,
    spawner: Spawner | None,
    batch: BatchJob | None = None,
    *,
    quiet: bool = False,
) -> int:
    """Run it, with the overrides of ``sys.argv``, and return the exit code."""
    try:
        ConfigStore.instance().store(AGAIN, dict(again.config), provider="lllaunch")
    except (OmegaConfBaseException, RecursionError) as error:
        message = f"or what is beside it is no config: {reason_of(error)}"
        raise ConfigError((Diagnostic("plan", again.path, "", message),)) from None
    return run(Jobs(spawner, again=again, batch=batch, quiet=quiet), AGAIN)


def _read(path: str) -> Any:
    if not os.path.lexists(path):
        return {}
    from lllaunch.config.document import parse, read_text  # noqa: PLC0415 - as above

    text = read_text(path)
    # OmegaConf writes paths and bytes with tags, which its own reader knows
    parse(text, path, as_hydra=True)
    try:
        data: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        message = f"cannot be read: {reason_of(error)}"
        raise ConfigError((Diagnostic("plan", path, "", message),)) from None
    return data if isinstance(data, dict) else {}


def _expect_ours(directory: str, former: Callable[[str], Any], launch: Mapping[Any, Any]) -> None:
    """Raises if a run was of a user's own app, whose function no plan can name."""
    sources = former("runtime.config_sources")
    given = sources if isinstance(sources, list) else []
    paths = [source.get("path") for source in given if isinstance(source, dict)]
    if not paths or _OURS in paths:
        return
    # how the plan calls the function: train.py:main, package.module:main
    script = str(launch.get("entrypoint", "")).rpartition(":")[0]
    words = ["python", script] if script.endswith(".py") else ["python", "-m", script]
    texts = [str(text) for kind in ("hydra", "task") for text in former(f"overrides.{kind}") or ()]
    command = shlex.join([*words, *unlocked(redacted_overrides(texts))])
    message = f"was run by an app of its own, {str(former('job.name'))!r}"
    hint = f"\n  to run it again: {command}"
    raise ConfigError((Diagnostic("own-app", "RUN", repr(directory), message, hint),))
