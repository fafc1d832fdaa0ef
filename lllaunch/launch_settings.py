"""The settings of the ``launch`` node: one table, from which all that knows them by name follows.

Of each: its kind, its default, whether it may stand under ``hydra.launcher``, and what it means to
plans and to the jobs of a sweep. What reads and writes it follows from its kind by
`lllaunch.config.kinds.KINDS`; kinds that are not there have code of their own. What each means is
in docs/reference/config.md.

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
    """What the workers run: a function, a script, a module or a program."""

    args: Sequence[Any] | Mapping[str, Any] | None = setting(in_sweep=False, per_worker=True)
    """Its arguments: a list, or a mapping of keyword arguments or options."""

    nproc: int | str = setting(1)
    """Number of workers on a node, or `auto`, `cpu`, `gpu`."""

    nnodes: int | str = setting(1, in_sweep=False)
    """Number of nodes, `"MIN:MAX"` for an elastic run, or `auto`."""

    node_rank: int | None = setting(in_sweep=False, neutral=True, absent=ALWAYS_SAID)
    """Number of this node, from 0."""

    rdzv: Mapping[str, Any] | None = setting(
        {**_RDZV, "interface": None}, absent=_RDZV, in_sweep=False, neutral=True
    )
    """How several nodes find each other, through torch's rendezvous."""

    role: Line = setting("default")
    """Name of the worker group, in `ROLE_NAME` and in the prefix of shown lines."""

    start_method: Method = setting("forkserver")
    """`forkserver`: workers are forked from a process that has imported `preload`; `spawn`."""

    preload: Sequence[str] | str = setting([])
    """Modules to import once, before the workers are forked."""

    cwd: str | None = setting()
    """Working directory of the workers."""

    env: Mapping[str, str | int] = setting({}, per_worker=True)
    """Variables for all workers, added to the launcher's environment."""

    env_per_rank: Mapping[Ranks, Mapping[str, str | int]] = setting({}, per_worker=True)
    """Variables for some workers, by local rank or range."""

    redirects: Mask = setting("all", neutral=True)
    """Streams that go to files."""

    tee: Mask = setting("0:all", neutral=True)
    """Streams that are also shown on the console."""

    local_ranks_filter: Sequence[Ranks] | Ranks | None = setting(neutral=True)
    """Local ranks whose teed lines reach the console."""

    duplicate_stdout_filters: Texts = setting([], neutral=True)
    """Texts whose lines are also written to `filtered_stdout.log`."""

    duplicate_stderr_filters: Texts = setting([], neutral=True)
    """The same for standard error and `filtered_stderr.log`."""

    log_line_prefix: Prefix | None = setting(neutral=True, per_worker=True)
    """Prefix of each shown line."""

    collapse: Flag | None = setting(neutral=True)
    """Whether a line that several workers write at about the same time is shown once."""

    log_dir: str | None = setting(in_sweep=False, neutral=True)
    """Directory of the run's files."""

    grace_period: Duration = setting("30s", neutral=True)
    """How long workers may take to end after SIGTERM, before SIGKILL."""

    leftovers: Duration = setting("0.5s", neutral=True)
    """How long processes that outlive successful workers may take to end."""

    not_secret: Keys = setting([], in_sweep=False, neutral=True)
    """Keys of the config whose values look like secrets and are none."""

    signals: Signals = setting(["SIGTERM", "SIGINT", "SIGHUP"], neutral=True)
    """Signals that the launcher handles and passes on to the workers."""

    watchdog: Watchdog | None = setting({"preset": "report"}, neutral=True, absent=_WATCHDOG_ABSENT)
    """What is watched for: the name of a preset, or a mapping that changes one."""

    max_restarts: Count = setting(0, neutral=True)
    """How often a failed group of workers is started again."""

    restart: Restart | None = setting(_RESTART, absent={"on": "all", **_RESTART}, neutral=True)
    """What to restart for, how soon, and when to give up."""

    min_disk: Size | None = setting(neutral=True)
    """Free space that the run's file system must have before an attempt begins."""

    preflight: str | Sequence[str] | Mapping[str, Any] | None = setting(neutral=True)
    """A program to run on each node before the workers of each attempt."""

    resources: Resources | None = setting(
        {"gpus_per_proc": None, "cpus_per_proc": None}, neutral=True
    )
    """What each worker needs, for the leases of a sweep."""

    virtual_local_rank: Flag = setting(False)
    """Whether every worker sees only its own GPU, as device 0."""

    samples: Interval = setting("5s", neutral=True)
    """How often to record what each worker does."""

    run_id: str | None = setting(in_sweep=False, neutral=True, absent=ALWAYS_SAID)
    """Value of `TORCHELASTIC_RUN_ID`."""

    console: Console | None = setting(
        {"live": None, "color": None, "quiet": False, "interval": "5m"}, planned=False, neutral=True
    )
    """What the launcher shows beside the workers' output."""

    locked: Lock = setting(False, in_sweep=False, planned=False)
    """Whether only the reviewed plan may run."""


SETTINGS: tuple[LaunchSetting, ...] = tuple(
    each for each in vars(Launch).values() if isinstance(each, LaunchSetting)
)


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
