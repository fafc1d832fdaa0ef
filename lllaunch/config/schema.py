"""The keys of the ``launch`` node, with their defaults.

The text below each field is what docs/reference/config.md says about it. Types are checked in
`lllaunch.config.resolve`, all together: for Hydra the node is an untyped mapping, since at a typed
one Hydra itself would stop at the first mistake, with a message of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

Mask = int | str | bool | Mapping[int | str, Any] | None
Ranks = int | str


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
    shell), and `auto` is `gpu` where there is a GPU, else `cpu`."""

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
    """What stands before each shown line; null is `[ROLE_NAME LOCAL_RANK]:` written together,
    such as `[default0]:`. May hold [`${worker:…}`](#workers-facts) and, as torchrun's template,
    the escaped `\\${rank}`.

    ```yaml
    launch:
      entrypoint: env
      log_line_prefix: "[${worker:hostname} ${worker:rank}/${worker:world_size}] "
    ```
    """

    log_dir: str | None = None
    """Directory of the run's files. Null is Hydra's output directory of the job. A relative
    path starts from the directory that the command was given in."""

    grace_period: float | str = "30s"
    """How long workers may take to end after the polite signal, before they are killed: a
    [duration](#durations). With 0 they are killed at once."""

    signals: Sequence[str] | str = field(
        default_factory=lambda: ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"]
    )
    """Signals that the launcher handles and passes on to the workers: a list of names, or text
    separated by commas. SIGKILL and SIGSTOP cannot be handled; SIGCHLD is the launcher's own."""

    max_restarts: int = 0
    """How often a failed group of workers is started again."""

    virtual_local_rank: bool = False
    """Every worker sees its own GPU only, as device 0, and has `LOCAL_RANK=0`."""

    run_id: str | None = None
    """Value of `TORCHELASTIC_RUN_ID`. Null makes one from the last two parts of the output
    directory."""


KEYS: tuple[str, ...] = tuple(each.name for each in fields(Launch))

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
    "rdzv_id": "run_id",
    "retries": "max_restarts",
    "restarts": "max_restarts",
}

# These may be null, which is their default or stands for nothing.
NULLABLE = frozenset(
    {
        *("entrypoint", "args", "preload", "cwd", "env", "env_per_rank", "redirects", "tee"),
        *("local_ranks_filter", "duplicate_stdout_filters", "duplicate_stderr_filters"),
        *("log_line_prefix", "log_dir", "run_id"),
    }
)

# Where ${worker:NAME} is replaced.
PER_WORKER = frozenset({"args", "env", "env_per_rank", "log_line_prefix"})


def schema_node() -> dict[str, Any]:
    """The defaults as plain data, for Hydra's ConfigStore: no leaf has a type."""
    defaults = Launch()
    return {key: getattr(defaults, key) for key in KEYS}
