"""The settings of the ``launch`` node: one table, from which all that knows them by name follows.

Of each: its kind, its default, whether it may stand under ``hydra.launcher``, and what it means to
plans and to the jobs of a sweep. What reads and writes it follows from its kind by
`lllaunch.config.kinds.KINDS`; kinds that are not there have code of their own. The text below each
is what docs/reference/config.md says about it.

Every Hydra app of the machine reads this when it starts: nothing is imported here that Hydra has
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_SAME = object()
ALWAYS_SAID = object()


class LaunchSetting:
    """What is known of one setting; its name and kind are those of the attribute that it is."""

    name: str
    kind: str

    def __init__(
        self,
        default: Any = None,
        *,
        absent: Any = _SAME,
        in_sweep: bool = True,
        planned: bool = True,
        neutral: bool = False,
        per_worker: bool = False,
    ) -> None:
        self.default = default
        # what a plan of format 2 means that does not name it, for ever; `ALWAYS_SAID` if each plan
        # does. It is what happened before there was the setting, so that plans, locks and
        # fingerprints stay what they were; a default that changes is named in plans from then on
        self.absent = default if absent is _SAME else absent
        # whether it may stand under ``hydra.launcher`` as well, for all jobs
        self.in_sweep = in_sweep
        # False where it says how a run is begun or what is said of it, not what it is
        self.planned = planned
        self.neutral = neutral  # whether a job with another value has the same outcome
        self.per_worker = per_worker  # whether ``${worker:NAME}`` is replaced in it

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.kind = owner.__annotations__[name].removesuffix(" | None")


# the annotations of `Launch` are types of what a config has, not of these
setting: Any = LaunchSetting

if TYPE_CHECKING:
    Ranks = int | str
    Mask = int | str | bool | Mapping[Ranks, Any] | None

    # Each has a row in `lllaunch.config.kinds.KINDS`.
    Console = Mapping[str, Any]
    Count = int
    Duration = float | str
    Flag = bool
    Interval = float | str | bool
    Keys = Sequence[str]
    Line = str
    Lock = bool | str
    Method = str
    Prefix = str
    Resources = Mapping[str, int | None]
    Restart = Mapping[Any, Any]
    Signals = Sequence[str] | str
    Size = int | str
    Texts = Sequence[str] | str
    Watchdog = str | Mapping[str, Any] | bool

_WATCHDOG_ABSENT = {
    "timers": False,
    "timeout": None,
    "run_timeout": None,
    "stall": {"after": "30m", "action": "report"},
    "stall_scope": "group",
    "silence": None,
    # beside these; in any other policy a plan names it
    "spin": {"after": "30m", "action": "report"},
    "warmup": "0s",
    "heartbeat": None,
    "memory": None,
    # only how a hang is explained: nobody was asked before
    "collectives": True,
    "progress": None,
}
_RESTART = {
    "delay": "0s",
    "max_delay": "5m",
    "window": None,
    "reset_on": None,
    "max_without_progress": None,
    "checkpoint": None,
    "gpu_wait": "1m",
}
_RDZV: Mapping[str, Any] = {
    "backend": "c10d",
    "endpoint": None,
    "id": None,
    "conf": {},
    "timeout": "1m",
    "join_timeout": "10m",
}


class Launch:
    """One run: what to run, how many workers, where their output goes, how it ends."""

    entrypoint: str | None = setting(in_sweep=False, absent=ALWAYS_SAID)
    """What the workers run. The form decides: `package.module:callable` is a function, a path that
    ends in `.py` a script, `-m package.module` a module, and anything else a program on the
    workers' `PATH`. Relative paths start in the directory of the command. Modules are looked for in
    the workers' directory first, then in that of the command. The entrypoint is checked before
    anything starts, without importing it.

    ```yaml
    launch:
      entrypoint: "-m json.tool"
      args: [--help]
    ```
    """

    args: Sequence[Any] | Mapping[str, Any] | None = setting(in_sweep=False, per_worker=True)
    """Arguments. A list is positional. A mapping is the keyword arguments of a function; for
    scripts, modules and programs `key: value` becomes `--key value`, `key: true` becomes `--key`,
    `key: [a, b]` becomes `--key a b`, and null, false and an empty list become nothing. A key that
    begins with `-` stays as it is. On a command line quote true, false and null in a list. Text may
    contain [`${worker:…}`](#workers-facts).

    ```yaml
    launch:
      entrypoint: echo
      args: {epochs: 3, amp: true, device: "cuda:${worker:local_rank}"}
    ```
    """

    nproc: int | str = setting(1)
    """Number of workers on a node. `cpu` is one for each usable CPU, `gpu` one for each GPU in
    `CUDA_VISIBLE_DEVICES`, and `auto` is `gpu` if there is a GPU, else `cpu`. With `nnodes: auto`
    and no number here, the environment decides."""

    nnodes: int | str = setting(1, in_sweep=False)
    """Number of nodes: a number, `"MIN:MAX"` in quotes for an elastic run, or `auto`. YAML reads an
    unquoted `1:4` as 64. Give the same command on each node. The jobs of a sweep have one node.

    By hand, nodes meet at [`rdzv.endpoint`](#rdzv). With `auto`, missing settings come [from the
    environment](#nodes-from-the-environment) if a scheduler started a process on each node. The
    plan says `auto` and nothing of what was found. A run on a [cluster](cluster.md) asks for this
    many nodes.

    ```yaml
    launch:
      entrypoint: env
      nnodes: "1:4"
      rdzv: {endpoint: "host0:29500"}
    ```
    """

    node_rank: int | None = setting(in_sweep=False, neutral=True, absent=ALWAYS_SAID)
    """Number of this node, from 0. Node 0 is the host of the rendezvous. Null lets nodes get their
    numbers when they join, except with `rdzv.backend: static`. It is not part of the plan."""

    rdzv: Mapping[str, Any] | None = setting(
        {**_RDZV, "interface": None}, absent=_RDZV, in_sweep=False, neutral=True
    )
    """How several nodes find each other, through torch's rendezvous.

    - `backend`: `c10d`, `etcd-v2`, or `static`, which fixes nodes and ranks
    - `endpoint`: where they meet, `host:port` or `[IPv6]:port`, the same for all: the address of
      node 0 or of the etcd server. The default port is 29400 for `c10d`, 29500 for `static`, 2379
      for `etcd-v2`
    - `id`: identifies the run at that endpoint; also `TORCHELASTIC_RUN_ID`, unless `run_id` is
      given
    - `conf`: further settings of torch's rendezvous, a mapping or torchrun's text
      (`"last_call_timeout=5,k=v"`); `timeout`, `read_timeout` and `join_timeout` in it set the two
      keys below
    - `interface`: network interface whose address this node uses, such as `ib0`, and gloo with it
      (`GLOO_SOCKET_IFNAME`); not part of the plan
    - `timeout`: limit for one operation of the store
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

    role: Line = setting("default")
    """Name of the worker group, in `ROLE_NAME` and in the prefix of shown lines."""

    start_method: Method = setting("forkserver")
    """`forkserver`: workers are forked from a helper process that has imported `preload`, so n
    workers pay for one import. `spawn`: each worker is a fresh interpreter, without `preload`.
    Programs are always executed."""

    preload: Sequence[str] | str = setting([])
    """Modules to import once, before the workers are forked: a list, or text with commas.

    ```yaml
    launch:
      entrypoint: "-m json.tool"
      preload: [json, decimal]
    ```
    """

    cwd: str | None = setting()
    """Working directory of the workers. Null is the directory of the command, where a relative path
    starts, too."""

    env: Mapping[str, str | int] = setting({}, per_worker=True)
    """Variables for all workers, added to the launcher's environment. Values are text or whole
    numbers; quote anything else, because YAML changes it (`1.10`, `yes`). torchrun's variables,
    `TORCHELASTIC_*` and `LLLAUNCH_*` cannot be set. Text may contain
    [`${worker:…}`](#workers-facts). See [secrets](#secrets)."""

    env_per_rank: Mapping[Ranks, Mapping[str, str | int]] = setting({}, per_worker=True)
    """Variables for some workers, by local rank or range. They override `env`.

    ```yaml
    launch:
      entrypoint: env
      nproc: 4
      env_per_rank:
        0: {NCCL_DEBUG: INFO}
        1-3: {NCCL_DEBUG: WARN}
    ```
    """

    redirects: Mask = setting("all", neutral=True)
    """Streams that go to files `attempt_N/RANK/stdout.log` and `stderr.log`: a [mask](#masks). The
    default keeps everything, so a report can show a worker's last lines. Without a file a stream
    goes where the launcher's goes."""

    tee: Mask = setting("0:all", neutral=True)
    """Streams that are also shown on the console: a [mask](#masks). A teed stream always has a
    file. The default shows rank 0; `tee: all` shows all workers, with a prefix on each line."""

    local_ranks_filter: Sequence[Ranks] | Ranks | None = setting(neutral=True)
    """Local ranks whose teed lines reach the console: a list of ranks or ranges, or text such as
    `"0,2-3"`. Null is all."""

    duplicate_stdout_filters: Texts = setting([], neutral=True)
    """Lines of standard output with one of these texts are also written to `filtered_stdout.log`. A
    list, or text with commas."""

    duplicate_stderr_filters: Texts = setting([], neutral=True)
    """The same for standard error and `filtered_stderr.log`."""

    log_line_prefix: Prefix | None = setting(neutral=True, per_worker=True)
    """Prefix of each shown line. Null is `[ROLE_NAME LOCAL_RANK]:` without the blank, such as
    `[default0]:`, and none if only one worker can reach the console. May contain
    [`${worker:…}`](#workers-facts), or torchrun's escaped `\\${rank}`.

    ```yaml
    launch:
      entrypoint: env
      log_line_prefix: "[${worker:hostname} ${worker:rank}/${worker:world_size}] "
    ```
    """

    collapse: Flag | None = setting(neutral=True)
    """Whether a line that several workers write within 100 ms is shown once, such as `[default
    0-2,5]:ready`, for each stream separately and only on the console. Null is true, unless there is
    a `log_line_prefix`. If that contains `rank` or `local_rank`, `collapse: true` shows ranges."""

    log_dir: str | None = setting(in_sweep=False, neutral=True)
    """Directory of the run's files. Null is Hydra's output directory. A relative path starts in the
    directory of the command."""

    grace_period: Duration = setting("30s", neutral=True)
    """How long workers may take to end after SIGTERM, before SIGKILL: a [duration](#durations).
    With 0 they are killed at once."""

    leftovers: Duration = setting("0.5s", neutral=True)
    """How long processes that outlive successful workers may take to end, before they are killed: a
    [duration](#durations). The run lasts as long. After a failure they have half a second."""

    not_secret: Keys = setting([], in_sweep=False, neutral=True)
    """Keys of the config, such as `params.checkpoint_id`, whose values look like
    [secrets](#secrets) and are none."""

    signals: Signals = setting(["SIGTERM", "SIGINT", "SIGHUP"], neutral=True)
    """Signals that the launcher handles and passes on to the workers: a list of names, or text with
    commas. SIGKILL, SIGSTOP and SIGCHLD are not allowed. SIGQUIT (Ctrl-\\) shows where all workers
    are, and the run continues, unless it is listed here. SIGUSR1 and SIGUSR2 go to the workers, and
    the run continues, unless they are listed here; a worker without a handler ends. In a batch job
    of lllaunch SIGUSR2 announces its end, and workers get SIGTERM. What Slurm sends to a whole step
    reaches workers twice."""

    watchdog: Watchdog | None = setting({"preset": "report"}, neutral=True, absent=_WATCHDOG_ABSENT)
    """What lllaunch watches for: the name of a [preset](#watchdog-presets), or a mapping that
    changes one. A finding makes lllaunch write the stacks of all workers to
    `attempt_N/RANK/stacks.txt`, end the workers, and leave the rest to [`restart`](#restart). By
    default it only reports a stall or a spin.

    - `preset`: the preset that the other keys change; default: `report`
    - `timers`: whether to serve timers of `lllaunch.timer` and torch's file timers
    - `timeout`: limit for an attempt
    - `run_timeout`: limit for the run with all attempts
    - `stall`: limit without output, CPU use and heartbeat; at least 1 s
    - `stall_scope`: `group` (all workers must be idle) or `rank` (one idle worker is enough)
    - `silence`: limit without any output; at least 1 s
    - `spin`: limit without output, heartbeat and I/O (less than 1 KiB/s), while all workers stay at
      the same lines of Python; at least 1 s. Default: 30m, or `stall` if that is longer or null. It
      only reports, unless a `stall` of scope `rank` ends
    - `warmup`: time at the start of an attempt in which idleness, silence and spinning do not count
    - `heartbeat`: limit between calls of `lllaunch.heartbeat()`, after the first; at least 1 s
    - `memory`: limit for a worker with all processes below it, anonymous and shared memory; a
      [size](#sizes), at least 1 MiB
    - `collectives`: whether workers can be asked for their
      [collectives](../howto/find-a-hang.md#collectives); true in every preset
    - `progress`: limit without [progress](../howto/progress.md); a time, or a mapping
        - `within`: the limit; at least 1 s
        - `first_within`: the limit for the first progress, imports included; null for none
        - `pattern`: a regular expression; only lines that match are progress. Named groups are
          numbers: `step`, `total`, or others. All except `total`, `epoch` and `epochs` must change
          within `within`. The launcher searches the first 1024 characters of each line, so avoid
          nested repetition such as `(\\w+\\s*)*`
        - `action`: `end` or `report`

    A number of `lllaunch.progress()` or of the pattern that becomes NaN or infinite is a finding,
    too. Without `progress`, or in a bar, it is only reported.

    Times are [durations](#durations). Null or false turns a limit off; `watchdog: false` is `none`.
    A limit may be `{after: 30m, action: report}`: it then takes the stacks, prints one message in
    an attempt, and the run continues. Without `after` it uses the preset's limit.

    ```yaml
    launch:
      entrypoint: env
      watchdog: {preset: default, stall: 10m, timeout: 1h, memory: 8GiB}
    ```

    On a command line `launch.watchdog=strict` takes a preset, and `launch.watchdog.stall=10m`
    changes one key, also of a preset. In a file a mapping replaces the name that another file gave:
    write `watchdog: {preset: default}` there.

    ```yaml
    launch:
      entrypoint: env
      watchdog: strict
    ```
    """

    max_restarts: Count = setting(0, neutral=True)
    """How often a failed group of workers is started again. If the process that forks the workers
    is killed, one further start is free."""

    restart: Restart | None = setting(_RESTART, absent={"on": "all", **_RESTART}, neutral=True)
    """What to restart for, how soon, and when to give up, while restarts are left.

    - `on`: [causes](#causes-of-a-restart), a list or text with commas; `all` (default) or `none`.
      Any other failure ends the run at once
    - `delay`: a [duration](#durations) before the first restart, doubled with each further one
    - `max_delay`: the longest delay, not less than `delay`
    - `window`: `max_restarts` then limits the restarts in any such time; null for the whole run
    - `reset_on`: `progress`: an attempt that [made progress](#progress-of-an-attempt) gives back
      all restarts and resets the delay; null for nothing
    - `max_without_progress`: so many failed attempts in a row without progress end the run with
      [exit code 7](exit-codes.md), in place of a restart; null for no limit
    - `checkpoint`: a file or directory that changes with progress, relative to the workers'
      directory; `${hydra:runtime.output_dir}/...` is in the run's own; null for none
    - `gpu_wait`: how long to wait before a restart until the last attempt's processes hold no GPU
      memory; 0 for not at all

    Null is the default.

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

    min_disk: Size | None = setting(neutral=True)
    """Free space that the file system of the run's files must have before an attempt begins: a
    [size](#sizes). With less the run ends with an error. Null for no limit."""

    preflight: str | Sequence[str] | Mapping[str, Any] | None = setting(neutral=True)
    """A program to run on each node before the workers of each attempt: a list of words, text that
    is split as a shell would, or a mapping:

    - `command`: the list or text
    - `timeout`: its limit, a [duration](#durations); 5 minutes by default

    It has the working directory and environment of the node's first worker, and sees all GPUs of
    the run. Its output goes to `attempt_N/preflight.log`. If it fails, the workers do not start:
    the cause `preflight` of a [restart](#causes-of-a-restart).

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

    resources: Resources | None = setting(
        {"gpus_per_proc": None, "cpus_per_proc": None}, neutral=True
    )
    """What each worker needs. A sweep runs as many jobs as fit, and shows each job the GPUs that it
    has [leased](sweep-config.md#leases). A single run ignores it.

    - `gpus_per_proc`: number of GPUs; null is 1 if there are GPUs, else 0
    - `cpus_per_proc`: number of CPU slots; null is 0 for a worker with GPUs, else 1

    Null is the default.

    ```yaml
    launch:
      entrypoint: env
      nproc: 2
      resources: {gpus_per_proc: 1, cpus_per_proc: 4}
    ```
    """

    virtual_local_rank: Flag = setting(False)
    """Whether every worker sees only its own GPU, as device 0, and has `LOCAL_RANK=0`."""

    samples: Interval = setting("5s", neutral=True)
    """How often to record what each worker does, in [`samples.jsonl`](files.md#samplesjsonl): a
    [duration](#durations) of at least 1 s, or false for never. The file never exceeds about 1
    MiB."""

    run_id: str | None = setting(in_sweep=False, neutral=True, absent=ALWAYS_SAID)
    """Value of `TORCHELASTIC_RUN_ID`. Null makes one from the end of the output directory."""

    console: Console | None = setting(
        {"live": None, "color": None, "quiet": False, "interval": "5m"}, planned=False, neutral=True
    )
    """What the launcher shows [beside the workers' output](../howto/output.md#the-live-line). It is
    not part of the plan. Under `hydra.launcher` it applies to the sweep and to its jobs.

    - `live`: whether a live line stays below the output. Null: on a terminal that can show it,
      unless workers write to it directly or `quiet` is set. True: there, too. False: never
    - `color`: `always` or `never`; null follows the terminal, `NO_COLOR` and `FORCE_COLOR`
    - `quiet`: print nothing of lllaunch while all goes well; `-q` on a command line does the same.
      Restarts, signals, findings and failure reports are still printed
    - `interval`: without a live line, how often to print the progress, unless `quiet` is set: a
      [duration](#durations) of at least 1 s; null for never

    ```yaml
    launch:
      entrypoint: env
      console: {color: never, interval: 10m}
    ```
    """

    locked: Lock = setting(False, in_sweep=False, planned=False)
    """Whether only the reviewed plan may run: the one in
    [`conf/locks/NAME.yaml`](locks-and-allowlists.md#locks). NAME is the choice of the group `exp`,
    or the name of the primary config, or the text given here in place of true. Anything else, and
    anything that the project's allowlist does not have, exits with 5 before it starts.
    `LLLAUNCH_LOCKED=1` does the same for every run and every job of a sweep."""


SETTINGS: tuple[LaunchSetting, ...] = tuple(
    each for each in vars(Launch).values() if isinstance(each, LaunchSetting)
)


def field_docs() -> dict[str, str]:
    """Return the text below each setting of `Launch`, which no program can see."""
    import ast  # noqa: PLC0415 - for documentation alone
    import inspect  # noqa: PLC0415
    import itertools  # noqa: PLC0415

    (tree,) = ast.parse(inspect.getsource(Launch)).body
    assert isinstance(tree, ast.ClassDef)
    return {
        statement.target.id: inspect.cleandoc(ast.literal_eval(following.value))
        for statement, following in itertools.pairwise(tree.body)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(following, ast.Expr)
    }


KEYS = tuple(each.name for each in SETTINGS)
LAUNCH_FIELDS = tuple(each.name for each in SETTINGS if each.in_sweep)
"""Keys that may stand under ``hydra.launcher`` as well, as defaults for all jobs."""

PLANNED = tuple(each.name for each in SETTINGS if each.planned)
NEUTRAL = frozenset(each.name for each in SETTINGS if each.neutral)
PER_WORKER = frozenset(each.name for each in SETTINGS if each.per_worker)
ABSENT: Mapping[str, Any] = {
    each.name: each.absent for each in SETTINGS if each.planned and each.absent is not ALWAYS_SAID
}
"""What a key that is not in a plan means, in plans of format 2."""
