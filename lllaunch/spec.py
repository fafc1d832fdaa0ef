"""The resolved description of one run: plain frozen data, made by `config`, read by all below it.

Nothing here knows Hydra or OmegaConf. Text may still hold ``${worker:NAME}``; `lllaunch.macros`
replaces it per worker.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from lllaunch.policies import RestartPolicy, WatchdogPolicy
from lllaunch.std import Std

StartMethod = Literal["forkserver", "spawn"]
EntrypointForm = Literal["function", "script", "module", "program"]


@dataclass(frozen=True)
class Entrypoint:
    """What the workers run.

    Attributes:
        form: one of ``function``, ``script``, ``module``, ``program``.
        name: dotted module (function, module), absolute path (script, program with a slash), or
            program to be looked up on PATH.
        qualname: name within the module, for functions; else an empty string.
        decided: whether it could be told without importing it that a function is there and takes
            its arguments; if not, the spawner tries before anything is started.
        text: as the user wrote it; its source where it came from the environment. Empty if the
            config names none, in an app whose decorated function is what workers run.
    """

    form: EntrypointForm
    name: str
    text: str
    qualname: str = ""
    decided: bool = False


class Resources(NamedTuple):
    """What each worker needs of a machine, in a sweep, which leases it.

    Attributes:
        gpus_per_proc: number of GPUs; None for one where there are GPUs.
        cpus_per_proc: number of CPU slots; None for one where the worker needs no GPU, else none.
    """

    gpus_per_proc: int | None = None
    cpus_per_proc: int | None = None


@dataclass(frozen=True)
class LaunchSpec:
    """One run, resolved: all that the launcher decides from.

    Its repr leaves out the fields that may hold secrets.

    Attributes:
        entrypoint: what the workers run.
        args: positional arguments. For scripts, modules and programs, text ready for a command
            line (a mapping in the config has become ``--key value``); for functions, any plain
            data.
        kwargs: keyword arguments of a function; empty for the other forms.
        nproc: number of workers on this node, at least 1.
        role: name of the worker group, ``default`` unless set.
        start_method: ``forkserver`` or ``spawn``.
        preload: modules that the spawner imports before it forks.
        cwd: working directory of the workers, absolute.
        spawner_cwd: that of the preloads, absolute; empty for the workers'. Runs that have it in
            common can share a spawner.
        env: variables set for every worker, on top of the launcher's.
        env_per_rank: the same per local rank, stronger than ``env``.
        secrets: names of variables in ``env`` and ``env_per_rank`` whose values are never
            written, each with the text that stands for it (``${oc.env:NAME}``).
        hidden: values of arguments that are secrets, and so are replaced wherever they turn up,
            each with the text that stands for it.
        redirects: streams that go to files, by local rank, every rank listed; includes ``tee``.
        tee: streams that are shown as well, by local rank, every rank listed.
        local_ranks_filter: ranks whose output reaches the console; None for all.
        duplicate_stdout_filters: lines of teed stdout holding one of these go to
            ``filtered_stdout.log`` as well.
        duplicate_stderr_filters: the same for stderr.
        log_line_prefix: template of the prefix of teed lines; None for ``[<role><local_rank>]:``.
        log_dir: directory of the run, absolute.
        grace_period: seconds between the polite signal and SIGKILL.
        signals: signals that the launcher handles and forwards.
        watchdog: what the run is watched for.
        max_restarts: how often a failed worker group is started again.
        restart: what for, and how soon.
        resources: what each worker needs of the machine; only sweeps ask.
        virtual_local_rank: every worker sees its own GPU as device 0 and LOCAL_RANK=0.
        run_id: value of TORCHELASTIC_RUN_ID.
        locked: whether only a reviewed plan may run; the name of its lock, if it has another one
            than the experiment.
        output_dir: Hydra's output directory of the job, absolute.
        runtime_cwd: the directory that the command was given in, absolute.
        redacted: the plan as it may be written: the ``launch`` node, canonical and without secrets.
    """

    entrypoint: Entrypoint
    nproc: int
    log_dir: str
    cwd: str
    args: tuple[Any, ...] = field(default=(), repr=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    role: str = "default"
    start_method: StartMethod = "forkserver"
    preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    env_per_rank: Mapping[int, Mapping[str, str]] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict)
    hidden: Mapping[str, str] = field(default_factory=dict, repr=False)
    redirects: Mapping[int, Std] = field(default_factory=dict)
    tee: Mapping[int, Std] = field(default_factory=dict)
    local_ranks_filter: frozenset[int] | None = None
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    log_line_prefix: str | None = None
    grace_period: float = 30.0
    signals: tuple[signal.Signals, ...] = (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
    )
    watchdog: WatchdogPolicy = field(default_factory=WatchdogPolicy)
    max_restarts: int = 0
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    resources: Resources = field(default_factory=Resources)
    virtual_local_rank: bool = False
    run_id: str = ""
    locked: bool | str = False
    output_dir: str = ""
    runtime_cwd: str = ""
    spawner_cwd: str = ""
    redacted: Mapping[str, Any] = field(default_factory=dict)
