"""The keys of the ``launch`` node, with their defaults; presets, and words that others would use.

The text below each field is what docs/reference/config.md says about it. Types are checked in
`lllaunch.config.resolve`, all together: for Hydra the node is an untyped mapping, since at a typed
one Hydra itself would stop at the first mistake, with a message of its own.

The presets are what ``watchdog: none``, ``report``, ``default`` and ``strict`` stand for; the docs
read them as well. None of them limits time or memory, which only the user can know. None is called
on, off, yes or no, which YAML takes for booleans.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lllaunch.spec import WatchdogPolicy

# What people who know torchrun would write, and other common guesses.
SYNONYMS = {
    "nproc_per_node": "nproc",
    "num_workers": "nproc",
    "world_size": "nproc",
    "script": "entrypoint",
    "program": "entrypoint",
    "command": "entrypoint",
    "cmd": "entrypoint",
    "module": "entrypoint",
    "function": "entrypoint",
    "arguments": "args",
    "kwargs": "args",
    "environment": "env",
    "workdir": "cwd",
    "working_dir": "cwd",
    "output_dir": "log_dir",
    "shutdown_timeout": "grace_period",
    "signals_to_handle": "signals",
    "log_line_prefix_template": "log_line_prefix",
    **dict.fromkeys(("num_nodes", "nodes", "n_nodes", "num_machines", "machines"), "nnodes"),
    **dict.fromkeys(("min_nodes", "max_nodes", "nnode"), "nnodes"),
    **dict.fromkeys(("machine_rank", "node_id", "nodeid", "node_index"), "node_rank"),
    **dict.fromkeys(("rendezvous", "rdvz"), "rdzv"),
    **dict.fromkeys(("rdzv_backend", "rendezvous_backend"), "rdzv.backend"),
    **dict.fromkeys(("rdzv_endpoint", "rendezvous_endpoint", "endpoint"), "rdzv.endpoint"),
    "rdzv_id": "rdzv.id",
    **dict.fromkeys(("rdzv_conf", "rdzv_configs"), "rdzv.conf"),
    **dict.fromkeys(("rdzv_timeout", "store_timeout"), "rdzv.timeout"),
    **dict.fromkeys(("join_timeout", "rdzv_join_timeout"), "rdzv.join_timeout"),
    **dict.fromkeys(("interface", "network_interface", "ifname"), "rdzv.interface"),
    "retries": "max_restarts",
    "restarts": "max_restarts",
    **dict.fromkeys(("timeout", "walltime", "wall_time", "max_time"), "watchdog.timeout"),
    **dict.fromkeys(("time_limit", "attempt_timeout", "deadline"), "watchdog.timeout"),
    "run_timeout": "watchdog.run_timeout",
    **dict.fromkeys(("stall", "stall_timeout", "hang", "hang_timeout"), "watchdog.stall"),
    **dict.fromkeys(("idle_timeout", "stall_after"), "watchdog.stall"),
    "stall_scope": "watchdog.stall_scope",
    **dict.fromkeys(("spin", "spin_timeout"), "watchdog.spin"),
    "silence": "watchdog.silence",
    "warmup": "watchdog.warmup",
    **dict.fromkeys(("heartbeat", "heartbeat_timeout"), "watchdog.heartbeat"),
    **dict.fromkeys(("memory", "memory_limit", "mem_limit", "max_memory"), "watchdog.memory"),
    **dict.fromkeys(("timers", "enable_timers"), "watchdog.timers"),
    **dict.fromkeys(("watch", "guard", "preset"), "watchdog"),
    **dict.fromkeys(("restart_on", "restart_policy", "restart_causes"), "restart.on"),
    **dict.fromkeys(("restart_delay", "backoff", "restart_backoff"), "restart.delay"),
    **dict.fromkeys(("max_delay", "max_backoff", "restart_max_delay"), "restart.max_delay"),
    **dict.fromkeys(("window", "restart_window"), "restart.window"),
    **dict.fromkeys(("reset_on", "restart_reset_on"), "restart.reset_on"),
    **dict.fromkeys(("max_without_progress", "no_progress"), "restart.max_without_progress"),
    **dict.fromkeys(("checkpoint", "checkpoint_dir", "ckpt"), "restart.checkpoint"),
    **dict.fromkeys(("gpu_wait", "gpu_memory_wait"), "restart.gpu_wait"),
    **dict.fromkeys(("min_free", "min_free_disk", "min_disk_space", "disk"), "min_disk"),
    **dict.fromkeys(("pre_flight", "health_check", "healthcheck", "precheck"), "preflight"),
    **dict.fromkeys(("gpus", "gpu", "num_gpus", "ngpus"), "resources.gpus_per_proc"),
    **dict.fromkeys(("gpus_per_proc", "gpus_per_worker"), "resources.gpus_per_proc"),
    **dict.fromkeys(("cpus", "cpu", "num_cpus", "cores"), "resources.cpus_per_proc"),
    **dict.fromkeys(("cpus_per_proc", "cpus_per_worker"), "resources.cpus_per_proc"),
    "cpus_per_task": "resources.cpus_per_proc",
    **dict.fromkeys(("resource", "requirements"), "resources"),
    **dict.fromkeys(("sampling", "sample_interval", "sampling_interval"), "samples"),
    **dict.fromkeys(("metrics_interval", "stats"), "samples"),
    **dict.fromkeys(("quiet", "silent"), "console.quiet"),
    **dict.fromkeys(("color", "colour", "colors", "colours"), "console.color"),
    **dict.fromkeys(("live", "progress_bar"), "console.live"),
}

_MEET = "several nodes meet at rdzv.endpoint (host:port)"
EXPLAINED = {
    "standalone": "a run has one node unless nnodes says otherwise: leave it out",
    **dict.fromkeys(
        ("master_port", "port"),
        f"{_MEET}; for the workers of one node the launcher chooses a free port for each attempt",
    ),
    "master_addr": f"{_MEET}; the workers of one node meet on this machine",
    "local_addr": "rdzv.interface names the network interface whose address this node has",
}
"""What torchrun has and a run here has not, with what to do instead."""


# Of a run whose config says nothing of it.
DEFAULT = "report"

PRESETS: dict[str, WatchdogPolicy] = {
    "none": WatchdogPolicy(),
    # ends nothing
    "report": WatchdogPolicy(stall=1800.0, spin=1800.0, report=frozenset({"stall", "spin"})),
    "default": WatchdogPolicy(
        timers=True, stall=1800.0, spin=1800.0, warmup=300.0, report=frozenset({"spin"})
    ),
    "strict": WatchdogPolicy(
        timers=True, stall=300.0, stall_scope="rank", spin=1800.0, warmup=300.0, heartbeat=300.0
    ),
}

PRESET_KEYS = ("launch.watchdog", "hydra.launcher.watchdog")
"""Keys where the name of a preset may stand for a mapping; overrides may change a part of it."""


Mask = int | str | bool | Mapping[int | str, Any] | None
Ranks = int | str
Duration = float | str
Size = int | str


@dataclass
class Launch:
    """One run: what to run, how many workers, where their output goes, how it ends."""

    entrypoint: str | None = None
    """What the workers run, told by its form: `package.module:callable` is a function, a path
    ending in `.py` is a script, `-m package.module` is a module, and anything else is a
    program, looked up on the workers' `PATH` unless it holds a slash. Relative paths start from
    the directory that the command was given in. Functions and modules are imported with that
    directory first on `sys.path`. The entrypoint is looked for before anything starts, without
    importing it.

    ```yaml
    launch:
      entrypoint: "-m json.tool"
      args: [--help]
    ```
    """

    args: Sequence[Any] | Mapping[str, Any] | None = None
    """Arguments. A list is positional. A mapping is keyword arguments of a function; for a
    script, module or program `key: value` becomes `--key value`, `key: true` becomes `--key`,
    `key: [a, b]` becomes `--key a b`, and null, false and an empty list become nothing. A key
    that begins with `-` is taken as it is written. On a command line true, false and null
    cannot stand alone in a list: quote them. Text may hold [`${worker:…}`](#workers-facts).

    ```yaml
    launch:
      entrypoint: echo
      args: {epochs: 3, amp: true, device: "cuda:${worker:local_rank}"}
    ```
    """

    nproc: int | str = 1
    """Number of workers. `cpu` is one for each CPU that the launcher may use, `gpu` one for
    each GPU that the workers may see (`CUDA_VISIBLE_DEVICES` is obeyed, from `env` or from the
    shell), and `auto` is `gpu` where there is a GPU, else `cpu`. Of several nodes each has so many;
    with `nnodes: auto` and no number here, as many as the environment says."""

    nnodes: int | str = 1
    """Number of nodes: a number; `"MIN:MAX"`, for a run that goes on with fewer and takes in more,
    in quotes, since YAML reads an unquoted `1:4` as the number 64; or `auto`. On each node the same
    command is given. The jobs of a sweep have one node.

    By hand, [`rdzv.endpoint`](#rdzv) says where the nodes meet. With `auto`, what is not said here
    comes [from the environment](#nodes-from-the-environment), setting by setting, where something
    has started a process on each node. A plan says `auto`, and nothing of what was found. A run
    that goes to a [cluster](cluster.md) asks for so many nodes, and is `auto` there.

    ```yaml
    launch:
      entrypoint: env
      nnodes: "1:4"
      rdzv: {endpoint: "host0:29500"}
    ```
    """

    node_rank: int | None = None
    """This node's number, from 0; each node has another one. Node 0 is the host of the rendezvous.
    Null is for nodes that get their numbers when they join, which `rdzv.backend: static` does not
    have. It is in no plan."""

    rdzv: Mapping[str, Any] | None = field(
        default_factory=lambda: {
            "backend": "c10d",
            "endpoint": None,
            "id": None,
            "conf": {},
            "interface": None,
            "timeout": "1m",
            "join_timeout": "10m",
        }
    )
    """How several nodes find each other, through torch's rendezvous.

    - `backend`: `c10d`, `etcd-v2`, or `static`, whose nodes and ranks are fixed
    - `endpoint`: where they meet, `host:port` or `[IPv6]:port`, the same for all nodes: the address
      of node 0, or of the etcd server; without a port 29400 for `c10d`, 29500 for `static`, 2379
      for `etcd-v2`
    - `id`: what the nodes of one run have in common, and no other run at that endpoint; it is the
      value of `TORCHELASTIC_RUN_ID` unless `run_id` is given
    - `conf`: further settings of torch's rendezvous, a mapping or text as torchrun has it
      (`"last_call_timeout=5,k=v"`); `timeout`, `read_timeout` and `join_timeout` among them are
      the two below
    - `interface`: the network interface whose address this node has, such as `ib0`; in no plan
    - `timeout`: how long an operation of the store may take
    - `join_timeout`: how long to wait until enough nodes have joined

    Times are [durations](#durations). Null is the default.

    ```yaml
    launch:
      entrypoint: env
      nnodes: 2
      node_rank: 0
      rdzv: {backend: static, endpoint: "host0:29500", interface: ib0, join_timeout: 30m}
    ```
    """

    role: str = "default"
    """Name of the worker group, in `ROLE_NAME` and in the prefix of shown lines."""

    start_method: str = "forkserver"
    """`forkserver`: workers are forked from a helper process that has imported the modules
    under `preload`, so that n workers pay for one import. `spawn`: each worker is a fresh
    interpreter, and `preload` is not used. Programs are executed either way."""

    preload: Sequence[str] | str = field(default_factory=list)
    """Modules to import once, before the workers are forked: a list, or text separated by
    commas.

    ```yaml
    launch:
      entrypoint: "-m json.tool"
      preload: [json, decimal]
    ```
    """

    cwd: str | None = None
    """Working directory of the workers. Null is the directory that the command was given in,
    which a relative path starts from as well."""

    env: Mapping[str, str | int] = field(default_factory=dict)
    """Variables for all workers, on top of the launcher's own environment. Values are text or
    whole numbers; anything else must be quoted, because YAML changes how it is written (`1.10`,
    `yes`). The variables that torchrun sets for workers, `TORCHELASTIC_*` and `LLLAUNCH_*` may
    not be set. Text may hold [`${worker:…}`](#workers-facts). For secrets see
    [below](#secrets)."""

    env_per_rank: Mapping[Ranks, Mapping[str, str | int]] = field(default_factory=dict)
    """Variables for some workers, stronger than `env`: by local rank, or by range of local
    ranks.

    ```yaml
    launch:
      entrypoint: env
      nproc: 4
      env_per_rank:
        0: {NCCL_DEBUG: INFO}
        1-3: {NCCL_DEBUG: WARN}
    ```
    """

    redirects: Mask = "all"
    """Streams that go to files `attempt_N/RANK/stdout.log` and `stderr.log`: a [mask](#masks).
    The default keeps everything, so that a failure report can show a worker's last lines.
    Without a file a stream goes where the launcher's own goes."""

    tee: Mask = "0:all"
    """Streams that are shown on the console as well: a [mask](#masks). A teed stream also goes
    to its file. The default shows rank 0, as one program would look; `tee: all` shows
    everybody, as torchrun does, with a prefix on each line."""

    local_ranks_filter: Sequence[Ranks] | Ranks | None = None
    """Local ranks whose teed lines reach the console: a list of ranks or ranges, or text such
    as `"0,2-3"`. Null is all of them."""

    duplicate_stdout_filters: Sequence[str] | str = field(default_factory=list)
    """Texts to look for in standard output: lines with one of them in it are also written to
    `filtered_stdout.log`. A list, or text separated by commas."""

    duplicate_stderr_filters: Sequence[str] | str = field(default_factory=list)
    """The same for standard error and `filtered_stderr.log`."""

    log_line_prefix: str | None = None
    """What stands before each shown line. Null is `[ROLE_NAME LOCAL_RANK]:` written together,
    such as `[default0]:`, and nothing where lines of only one worker can reach the console. May
    hold [`${worker:…}`](#workers-facts) and, as torchrun's template, the escaped `\\${rank}`.

    ```yaml
    launch:
      entrypoint: env
      log_line_prefix: "[${worker:hostname} ${worker:rank}/${worker:world_size}] "
    ```
    """

    collapse: bool | None = None
    """Whether a line that several workers write within 100 ms is shown as one, such as
    `[default 0-2,5]:ready`: of standard output and standard error each by themselves, and only on
    the console. Null is true, unless there is a `log_line_prefix`; where that has the number of a
    worker (`rank`, `local_rank`), `collapse: true` shows ranges for it."""

    log_dir: str | None = None
    """Directory of the run's files. Null is Hydra's output directory of the job. A relative
    path starts from the directory that the command was given in."""

    grace_period: Duration = "30s"
    """How long workers may take to end after the polite signal, before they are killed: a
    [duration](#durations). With 0 they are killed at once."""

    leftovers: Duration = "0.5s"
    """How long processes that the workers have left behind may take to end, when all workers have
    succeeded, before they are killed: a [duration](#durations). The run lasts as long; a signal
    ends the wait and changes nothing else. After a failure they have half a second."""

    signals: Sequence[str] | str = field(default_factory=lambda: ["SIGTERM", "SIGINT", "SIGHUP"])
    """Signals that the launcher handles and passes on to the workers: a list of names, or text
    separated by commas. SIGKILL and SIGSTOP cannot be handled; SIGCHLD is the launcher's own.
    SIGQUIT (Ctrl-\\) shows where all workers stand, and the run goes on, unless it is listed
    here: then it ends the run as the others do. To a sweep it shows that of all jobs that run.
    SIGUSR1 and SIGUSR2 go to the workers, and the run goes on, unless they are listed here. A
    worker that has no handler for them ends. In a batch job that lllaunch has submitted, SIGUSR2
    announces the end of the job, and workers get SIGTERM. What Slurm sends to a whole step reaches
    workers twice, from Slurm and from lllaunch."""

    watchdog: str | Mapping[str, Any] | bool | None = field(
        default_factory=lambda: {"preset": "report"}
    )
    """What the run is watched for: the name of a [preset](#watchdog-presets), or a mapping of what
    to change of one. When the watchdog finds something it writes the stacks of all workers to
    `attempt_N/RANK/stacks.txt`, ends the workers as a signal would, and leaves the rest to
    [`restart`](#restart). By default it only reports a stall or a spin, and the run goes on.

    - `preset`: the preset that the other keys change; `report` if it is left out
    - `timers`: whether to serve timers, those of `lllaunch.timer` and torch's file timers
    - `timeout`: how long an attempt may take
    - `run_timeout`: how long the run may take with all of its attempts
    - `stall`: how long workers may go without output, CPU use and heartbeat; at least 1 s
    - `stall_scope`: `group` (all workers must be idle) or `rank` (one idle worker is enough)
    - `silence`: how long all workers may go without any output, whatever else they do; at least 1 s
    - `spin`: how long workers may go without output and heartbeat, and with next to no I/O (less
      than 1 KiB/s), while all of them stand at the same lines of Python, however busy they are; at
      least 1 s. Left out, it is 30m, or `stall`
      if that is longer or null. It is only reported then, unless a `stall` of scope `rank` ends
    - `warmup`: how long, from the start of an attempt, idleness, silence and spinning do not count
    - `heartbeat`: how long a worker that has called `lllaunch.heartbeat()` may go without another
      call, whatever else it does; at least 1 s
    - `memory`: how much memory a worker may use, with all processes below it: anonymous and shared
      memory, not pages of files; a [size](#sizes), at least 1 MiB
    - `collectives`: whether workers that import torch.distributed can be asked which
      [collectives](../howto/find-a-hang.md#collectives) they have come to; true in every preset
    - `progress`: how often the workers must get further, as `lllaunch.progress()` says or their
      progress bars show; a time, or a mapping
      - `within`: how long they may go without; at least 1 s
      - `first_within`: the same for the first time, from the start of an attempt, imports included;
        null for as long as it takes
      - `pattern`: a regular expression that is searched in each line that they print: only what
        matches is progress then. Its named groups are numbers: the `step`, the `total`, or others
        to be shown; all but `total`, `epoch` and `epochs` must change within `within`. The first
        1024 characters of a line are searched, by the launcher itself, which waits for that:
        avoid nested repetition such as `(\\w+\\s*)*`, which may take hours for one line
      - `action`: `end` or `report`

      A number of `lllaunch.progress()` or of the pattern that becomes NaN or infinite counts, too;
      without `progress`, or in a bar, it is only said ([what is progress](../howto/progress.md)).

    Times are [durations](#durations). For a limit, null or false turns it off, also one of the
    preset's. `watchdog: false` is `none`. A limit may be written `{after: 30m, action: report}`:
    then it ends nothing. When it is reached, the stacks are taken, it is said once in an attempt,
    and the run goes on. Without `after` it is the preset's limit; `action: end` is the default.

    ```yaml
    launch:
      entrypoint: env
      watchdog: {preset: default, stall: 10m, timeout: 1h, memory: 8GiB}
    ```

    On a command line `launch.watchdog=strict` takes a preset, and `launch.watchdog.stall=10m`
    changes what the config says, also if that is the name of a preset. In a config file a mapping
    replaces the name that another file gave: write `watchdog: {preset: default}` there.

    ```yaml
    launch:
      entrypoint: env
      watchdog: strict
    ```
    """

    max_restarts: int = 0
    """How often a failed group of workers is started again. Beyond that, once in a run it is
    started again if the process that forks the workers was killed: nothing of the experiment's
    failed then."""

    restart: Mapping[Any, Any] | None = field(
        default_factory=lambda: {
            "delay": "0s",
            "max_delay": "5m",
            "window": None,
            "reset_on": None,
            "max_without_progress": None,
            "checkpoint": None,
            "gpu_wait": "1m",
        }
    )
    """What a group is started again for, as long as there are restarts left, how soon, and when
    trying again is no use.

    - `on`: [causes](#causes-of-a-restart), a list or text separated by commas; `all`, which is the
      default, or `none`
    - `delay`: a [duration](#durations) before the first restart; each later one waits twice as long
    - `max_delay`: the longest wait, not less than `delay`
    - `window`: for how long a restart counts: `max_restarts` is then the most in any such time;
      null for as long as the run goes on
    - `reset_on`: `progress`: an attempt that [made progress](#progress-of-an-attempt) gives all
      restarts back, and the wait is `delay` again; null: nothing does
    - `max_without_progress`: after so many failed attempts in a row without progress there is no
      other one, and the run ends with [exit code 7](exit-codes.md); null for no such end. Where
      nothing would have been started again anyway, by `on` or since no restart is left, it ends
      with the code of its failure; but for a batch job that continues an earlier one, which the
      queue would try again
    - `checkpoint`: a file or directory that changes when the training gets further, relative to the
      workers' directory (`${hydra:runtime.output_dir}/...` is in the run's own); null for none
    - `gpu_wait`: how long to wait, before a restart, until the processes of the attempt before hold
      no memory on the GPUs any more; 0 for not at all

    A failure that is not under `on` ends the run at once. Null is the default.

    ```yaml
    launch:
      entrypoint: env
      max_restarts: 5
      restart: {on: [hang, oom, signal], delay: 10s, max_delay: 2m}
    ```

    ```yaml
    launch:
      entrypoint: env
      max_restarts: 10
      restart:
        window: 6h
        reset_on: progress
        max_without_progress: 3
        checkpoint: checkpoints/latest.pt
    ```
    """

    min_disk: Size | None = None
    """How much space must be free where the run's files go before an attempt begins: a
    [size](#sizes). With less the run ends with an error that says what is free. Null for no such
    limit."""

    preflight: str | Sequence[str] | Mapping[str, Any] | None = None
    """A program that is run on each node before the workers of each attempt: a list of words, or
    text that is split into words as a shell would; or a mapping:

    - `command`: the list or text
    - `timeout`: how long it may take, a [duration](#durations); 5 minutes by default

    It is looked up as an entrypoint is, has the working directory and the environment of the node's
    first worker, and sees all GPUs of the run. What it writes goes to `attempt_N/preflight.log`.
    When it fails the workers are not started: that is the cause `preflight` of a
    [restart](#causes-of-a-restart).

    ```yaml
    launch:
      entrypoint: env
      preflight: [python, -c, "import json"]
    ```

    ```yaml
    launch:
      entrypoint: env
      preflight: {command: "df -h .", timeout: 30s}
    ```
    """

    resources: Mapping[str, int | None] | None = field(
        default_factory=lambda: {"gpus_per_proc": None, "cpus_per_proc": None}
    )
    """What each worker needs of the machine. A sweep runs as many jobs at the same time as have
    room by it, and shows each job the GPUs that it has [leased](sweep-config.md#leases); a single
    run takes no notice of it.

    - `gpus_per_proc`: number of GPUs; null is one where there are GPUs, else none
    - `cpus_per_proc`: number of CPU slots; null is none for a worker with GPUs, else one

    Null is the default.

    ```yaml
    launch:
      entrypoint: env
      nproc: 2
      resources: {gpus_per_proc: 1, cpus_per_proc: 4}
    ```
    """

    virtual_local_rank: bool = False
    """Every worker sees its own GPU only, as device 0, and has `LOCAL_RANK=0`."""

    samples: Duration | bool = "5s"
    """How often it is written down what each worker does, in
    [`samples.jsonl`](files.md#samplesjsonl) of the run's directory: a [duration](#durations) of at
    least 1 s, or false for never. What is read for it is read anyway where the run is watched. The
    file has about 1 MiB at most, however long the run takes."""

    run_id: str | None = None
    """Value of `TORCHELASTIC_RUN_ID`. Null makes one from the last two parts of the output
    directory."""

    console: Mapping[str, Any] | None = field(
        default_factory=lambda: {"live": None, "color": None, "quiet": False, "interval": "5m"}
    )
    """What the launcher shows [beside the workers' output](../howto/output.md#the-line-below). It
    is in no plan. Under `hydra.launcher` it says what a sweep shows, and is the default for its
    jobs' runs, which say nothing of this while the sweep does.

    - `live`: whether a line that stays below the output says how far the run is. Null: on a
      terminal that can show it, unless workers write to it directly or `quiet` is set. True: there
      also where workers do. False: never
    - `color`: `always` or `never`; null is as the terminal has them, and as `NO_COLOR` and
      `FORCE_COLOR` say
    - `quiet`: says nothing of a run in which all goes well: neither that an attempt begins nor that
      the run has succeeded. What else there is to say is said as ever: a restart, a signal, what
      the watchdog finds, a process that was left behind, and the report of a run that fails. Output
      of workers that is teed is theirs, and shown. `-q` on a command line does the same
    - `interval`: where there is no live line, how often a run that goes on says in a line how far
      it is, unless `quiet` is set: a [duration](#durations) of at least 1 s; null for never

    ```yaml
    launch:
      entrypoint: env
      console: {color: never, interval: 10m}
    ```
    """

    locked: bool | str = False
    """Whether only the reviewed plan may run: the one that `plan --lock` wrote to
    [`conf/locks/NAME.yaml`](locks-and-allowlists.md#locks). NAME is the experiment's, the choice of
    the group `exp`, or else the name of the primary config; instead of true it may stand here.
    What differs is refused, with exit code 5 and the difference, before anything starts; so is
    what the allowlist of the project does not have, or if there is none. `LLLAUNCH_LOCKED=1` in the
    environment does the same to every run and every job of a sweep, whatever stands here."""


KEYS: tuple[str, ...] = tuple(each.name for each in fields(Launch))

# Says how a run is begun, or what is said of it, and not what it is.
UNPLANNED = frozenset({"locked", "console"})

# Where ${worker:NAME} is replaced.
PER_WORKER = frozenset({"args", "env", "env_per_rank", "log_line_prefix"})


def field_docs() -> dict[str, str]:
    """Return the text below each field of `Launch`, which no program can see."""
    (tree,) = ast.parse(inspect.getsource(Launch)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        statement.target.id: inspect.cleandoc(ast.literal_eval(following.value))
        for statement, following in itertools.pairwise(tree.body)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(following, ast.Expr)
    }


def defaults() -> dict[str, Any]:
    """Return the defaults as plain data, made anew."""
    launch = Launch()
    return {key: getattr(launch, key) for key in KEYS}


def schema_node() -> DictConfig:
    """Return the node for Hydra's ConfigStore, made anew: what it is when nobody has set anything.

    It holds no defaults, so that what is set to a default can be told from what is not set. No leaf
    has a type, and it takes any key, with ``+`` or without: the reader says what is wrong.
    """
    # whoever replaces the name of a preset by a mapping is told
    node = {**dict.fromkeys(KEYS), "watchdog": {"preset": None}}
    return OmegaConf.create(node, flags={"struct": False})


def is_set(value: Any) -> bool:
    """Return whether the plain value of a setting says anything: null and ``{}`` do not."""
    return value is not None and value not in ({}, {"preset": None})
