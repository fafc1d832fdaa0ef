"""Takes the worker group of a configured run through its attempts, with `LocalElasticAgent`."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from lllaunch.agent.api import WorkerSpec
from lllaunch.agent.environ import WorkerPlace, contract
from lllaunch.agent.local_elastic_agent import LocalElasticAgent
from lllaunch.errors import ConfigError, Diagnostic, NotPicklable, PreloadFailed, SpawnerDied
from lllaunch.macros import WORKER_NAMES, substitute
from lllaunch.multiprocessing.logs import LogsDest, LogsSpecs, announce, destinations
from lllaunch.multiprocessing.signals import SignalException, SignalSource
from lllaunch.multiprocessing.std import Std, to_map
from lllaunch.policies import WatchdogPolicy
from lllaunch.spawner.client import Spawner
from lllaunch.spawner.dump import CRASH, CRASH_FILE
from lllaunch.spawner.environment import split
from lllaunch.spawner.protocol import Function, Module, PreloadBroken, Program, Script, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lllaunch.run.directory import RunDirectory
    from lllaunch.run.observer import Watcher
    from lllaunch.spawner.protocol import Forked
    from lllaunch.spec import LaunchSpec

    Targets = Callable[[Mapping[str, str]], Target | Forked]


def target_of(spec: LaunchSpec, facts: Mapping[str, str]) -> Target:
    """Returns what one worker runs.

    Args:
        spec: the run.
        facts: what is known of the worker (`lllaunch.macros.WORKER_NAMES`); stands for the
            ``${worker:...}`` in its arguments.

    Raises:
        NotPicklable: an argument of a function cannot be sent to the worker.
    """
    entrypoint = spec.entrypoint
    args = substitute(spec.args, facts, bare=False)
    if entrypoint.form == "function":
        call = _pickled(args, dict(substitute(spec.kwargs, facts, bare=False)), facts)
        return Function(entrypoint.name, entrypoint.qualname, call)
    argv = tuple(str(arg) for arg in args)
    if entrypoint.form == "script":
        # As it was written, where that means the same file: it is the script's sys.argv[0].
        same = os.path.join(spec.cwd, entrypoint.text) == entrypoint.name
        return Script(entrypoint.text if same else entrypoint.name, argv)
    if entrypoint.form == "module":
        return Module(entrypoint.name, argv)
    return Program(entrypoint.name, argv)


def _pickled(
    args: tuple[object, ...], kwargs: Mapping[str, object], facts: Mapping[str, str]
) -> bytes:
    try:
        return pickle.dumps((args, kwargs), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # pickle raises whatever the object's own methods raise
        what = f"an argument of worker {facts.get('rank', '?')}"
        raise NotPicklable(what, f"{type(error).__name__}: {error}") from error


def env_of(spec: LaunchSpec, facts: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of one worker: those of all, then those of its rank over them.

    Args:
        spec: the run.
        facts: what is known of the worker; ``local_rank`` chooses among ``env_per_rank``.
    """
    return dict(substitute(spec.env_of(int(facts["local_rank"])), facts, bare=False))


@dataclass(frozen=True)
class Attempt:
    """A new attempt's place, made before its workers start.

    Attributes:
        number: index of its directory.
        path: its directory, absolute.
        dest: the workers' files, by local rank.
        envs: the workers' variables, by local rank.
    """

    number: int
    path: str
    dest: LogsDest
    envs: Mapping[int, Mapping[str, str]]


class RunLogs(LogsSpecs):
    """Files in ``<run directory>/attempt_<N>/<local rank>/``; each `reify` makes the next attempt.

    Args:
        directory: the run's directory, claimed.
        redirects: streams that go to files, for all ranks or by local rank.
        tee: streams that go to files and are shown, for all ranks or by local rank.
        local_ranks_filter: ranks whose output is shown; None or an empty set for all.
        on_attempt: told of every attempt that was made.
    """

    def __init__(
        self,
        directory: RunDirectory,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
        on_attempt: Callable[[Attempt], None] | None = None,
    ) -> None:
        super().__init__(directory.path, redirects, tee, local_ranks_filter)
        self._directory = directory
        self._on_attempt = on_attempt

    @property
    def root_log_dir(self) -> str:
        """The run's directory."""
        return self._directory.path

    @property
    def next_attempt(self) -> int:
        """Number of the attempt that the next `reify` makes.

        Raises:
            OutputError: the run's directory cannot be read.
        """
        return self._directory.next_attempt()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Makes the next attempt's directories; ``latest`` points to it.

        Args:
            envs: environment of each worker, for local ranks 0 to n-1.
                TORCHELASTIC_ERROR_FILE and LLLAUNCH_RESULT_FILE are set in each.

        Returns:
            The paths.

        Raises:
            OutputError: a directory cannot be made; names it, and the rank that it is for.
        """
        number, path = self._directory.make_attempt(len(envs))
        announce(envs, path)
        for rank, env in envs.items():
            env[CRASH_FILE] = f"{path}/{rank}/{CRASH}"
        dest = destinations(
            path,
            to_map(self._redirects, len(envs)),
            to_map(self._tee, len(envs)),
            self._local_ranks_filter,
        )
        if self._on_attempt is not None:
            self._on_attempt(Attempt(number, path, dest, envs))
        return dest


# Of a watched run, seconds.
_LONGEST_CHECK = 60.0

_WORKER = re.compile(rf"\$\{{worker:({'|'.join(WORKER_NAMES)})\}}")


def run_group(
    spec: LaunchSpec,
    directory: RunDirectory,
    watcher: Watcher,
    signals: SignalSource,
    spawner: Spawner | None = None,
    targets: Targets | None = None,
) -> int | None:
    """Runs all attempts; what became of them is known to the watcher afterwards.

    Args:
        spec: the run.
        directory: its directory, claimed.
        watcher: sees every fact and decision.
        signals: takes note of signals to this process.
        spawner: the spawner to use; it stays open. None: one of the run's own, for all attempts.
        targets: what a worker runs, from its facts, instead of the entrypoint.

    Returns:
        the signal to the launcher that ended the run, or None.

    Raises:
        ConfigError: the function is not there, or its arguments do not fit; nothing was started.
        PreloadFailed: a preload failed before anything was started.
        OutputError: a directory or file cannot be made.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        if spawner is None:
            spawner = stack.enter_context(Spawner())
        # a launcher that is killed leaves workers for a moment: nobody else shall have it then
        spawner.hold(directory.locks)
        stack.callback(spawner.hold, ())
        try:
            if targets is None:
                _check(spec, spawner, watcher, signals)
            _agent(spec, directory, watcher, signals, spawner, targets, began).run(spec.role)
        except SignalException as error:
            return int(error.sigval)
        except KeyboardInterrupt:
            return int(signal.SIGINT)
        except SpawnerDied:
            # The watcher saw it: it is the root cause of the last attempt.
            return None
        return None


def _agent(
    spec: LaunchSpec,
    directory: RunDirectory,
    watcher: Watcher,
    signals: SignalSource,
    spawner: Spawner,
    targets: Targets | None,
    began: float,
) -> LocalElasticAgent:
    logs = RunLogs(
        directory,
        dict(spec.redirects),
        dict(spec.tee),
        None if spec.local_ranks_filter is None else {*chain(*spec.local_ranks_filter)},
        on_attempt=watcher.begin,
    )

    def numbered(facts: Mapping[str, str]) -> dict[str, str]:
        # the agent counts its own attempts; the directory may hold those of a former run
        return {**facts, "attempt": str(logs.next_attempt)}

    make = targets or (lambda facts: target_of(spec, facts))
    return LocalElasticAgent(
        _worker_spec(spec),
        logs,
        start_method=spec.start_method,
        log_line_prefix_template=_template(spec.log_line_prefix),
        shutdown_timeout=spec.grace_period,
        spawner=spawner,
        observer=watcher.observe,
        targets=lambda facts: make(numbered(facts)),
        env=lambda facts: env_of(spec, numbered(facts)),
        preload=spec.imports,
        cwd=spec.cwd,
        spawner_cwd=spec.spawner_cwd or None,
        run_id=spec.run_id,
        signals=signals,
        watchdog=spec.watchdog,
        restart=spec.restart,
        fault=watcher.fault,
        run_began=began,
        hide=watcher.recorder.hide,
    )


def _worker_spec(spec: LaunchSpec) -> WorkerSpec:
    return WorkerSpec(
        role=spec.role,
        local_world_size=spec.nproc,
        entrypoint=spec.entrypoint.text or spec.entrypoint.name,
        max_restarts=spec.max_restarts,
        duplicate_stdout_filters=list(spec.duplicate_stdout_filters) or None,
        duplicate_stderr_filters=list(spec.duplicate_stderr_filters) or None,
        virtual_local_rank=spec.virtual_local_rank,
    )


def _template(prefix: str | None) -> str | None:
    """Returns a prefix in the agent's form, `string.Template` with ``${rank}``."""
    if prefix is None:
        return None
    parts = _WORKER.split(prefix)
    # text and names alternate; a dollar of the user's own stays one
    return "".join(
        f"${{{part}}}" if index % 2 else part.replace("$", "$$") for index, part in enumerate(parts)
    )


def spawner_environment(spec: LaunchSpec) -> dict[str, str]:
    """Returns the environment that the run asks its spawner for.

    Runs whose spawners have the same, the same working directory and the same preloads can share
    one.
    """
    envs = {rank: worker_environment(spec, rank) for rank in range(spec.nproc)}
    return split(os.environ, envs).base


# The last check of a function


def _check(spec: LaunchSpec, spawner: Spawner, watcher: Watcher, signals: SignalSource) -> None:
    """Lets the spawner import the function and bind its arguments, before any attempt is made."""
    if spec.entrypoint.form != "function" or spec.entrypoint.decided:
        return
    envs = {rank: worker_environment(spec, rank) for rank in range(spec.nproc)}
    # what the workers' own start will ask for, so that the preloads are paid for once
    divided = split(os.environ, envs)
    target = target_of(spec, _place(spec, 0).facts())
    assert isinstance(target, Function)
    with signals.raising():
        spawner.configure(divided.base, spec.spawner_cwd or spec.cwd, spec.imports)
        problem = spawner.check_function(
            target.module,
            target.qualname,
            target.call,
            env=divided.own[0],
            cwd=spec.cwd,
            seconds=patience(spec.watchdog),
        )
    for fact in spawner.dispatch():
        watcher.observe(fact)
        if isinstance(fact, PreloadBroken):
            raise PreloadFailed(fact.module, fact.reason, fact.traceback)
    # More than a line is the traceback of code that failed while it was imported: no matter of
    # the config, and its attempt will show it whole.
    if problem and "\n" not in problem:
        found = Diagnostic(
            "entrypoint",
            "launch.entrypoint",
            repr(spec.entrypoint.text),
            f"cannot be run: {problem}",
        )
        raise ConfigError((found,))


def patience(policy: WatchdogPolicy) -> float | None:
    """How long to wait for imports before an attempt: one that hangs is the attempt's to show.

    Args:
        policy: of the run.

    Returns:
        seconds; None for as long as they take, where the run is not watched.
    """
    names = {"stall", "timeout", "run_timeout"} - policy.report
    known = [limit for name in names if (limit := getattr(policy, name)) is not None]
    watched = known or policy.timers or policy.heartbeat is not None or policy.memory is not None
    return min([_LONGEST_CHECK, *known]) if watched else None


def _place(spec: LaunchSpec, rank: int) -> WorkerPlace:
    """Where a worker will stand, as far as that is known before the attempt."""
    size = spec.nproc
    return WorkerPlace(
        local_rank=rank,
        rank=rank,
        group_rank=0,
        role_rank=rank,
        role_name=spec.role,
        local_world_size=size,
        world_size=size,
        group_world_size=1,
        role_world_size=size,
        master_addr="",
        master_port=0,
        restart_count=0,
        max_restarts=spec.max_restarts,
        run_id=spec.run_id,
    )


def worker_environment(spec: LaunchSpec, rank: int) -> dict[str, str]:
    """Returns the variables that a worker gets on top of the launcher's own.

    Args:
        spec: the run.
        rank: local rank of the worker.
    """
    place = _place(spec, rank)
    return contract(place, os.environ) | env_of(spec, place.facts())
