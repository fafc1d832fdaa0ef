"""The settings of the ``launch`` node: one table, from which all that knows them by name follows.

Of each: its kind, its default, whether it may stand under ``hydra.launcher``, and what it means to
plans and to the jobs of a sweep. What reads and writes it follows from its kind by
`lllaunch.config.kinds.KINDS`; kinds that are not there have code of their own. What each means is
in docs/reference/config.md.

Every Hydra app of the machine reads this when it starts: nothing is imported here that Hydra has
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


_SAME = object()
ALWAYS_SAID = object()


class LaunchSetting(NamedTuple):
    """What is known of one setting."""

    # a row of `lllaunch.config.kinds.KINDS`; empty if it has code of its own
    kind: str = ""
    default: Any = None
    # what a plan of format 2 means that does not name it, for ever; `ALWAYS_SAID` if each plan
    # does. It is what happened before there was the setting, so that plans, locks and fingerprints
    # stay what they were; a default that changes is named in plans from then on
    absent: Any = _SAME
    in_sweep: bool = True  # whether it may stand under ``hydra.launcher`` as well, for all jobs
    planned: bool = True  # False where it says how a run is begun or what is said of it
    neutral: bool = False  # whether a job with another value has the same outcome
    per_worker: bool = False  # whether ``${worker:NAME}`` is replaced in it
    name: str = ""  # that of the attribute that it is


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

    entrypoint = LaunchSetting(in_sweep=False, absent=ALWAYS_SAID)
    """What the workers run: a function, a script, a module or a program."""

    args = LaunchSetting(in_sweep=False, per_worker=True)
    """Its arguments: a list, or a mapping of keyword arguments or options."""

    nproc = LaunchSetting(default=1)
    """Number of workers on a node, or `auto`, `cpu`, `gpu`."""

    nnodes = LaunchSetting(default=1, in_sweep=False)
    """Number of nodes, `"MIN:MAX"` for an elastic run, or `auto`."""

    node_rank = LaunchSetting(in_sweep=False, neutral=True, absent=ALWAYS_SAID)
    """Number of this node, from 0."""

    rdzv = LaunchSetting(
        default={**_RDZV, "interface": None}, absent=_RDZV, in_sweep=False, neutral=True
    )
    """How several nodes find each other, through torch's rendezvous."""

    role = LaunchSetting("Line", "default")
    """Name of the worker group, in `ROLE_NAME` and in the prefix of shown lines."""

    start_method = LaunchSetting("Method", "forkserver")
    """`forkserver`: workers are forked from a process that has imported `preload`; `spawn`."""

    preload = LaunchSetting(default=[])
    """Modules to import once, before the workers are forked."""

    cwd = LaunchSetting()
    """Working directory of the workers."""

    env = LaunchSetting(default={}, per_worker=True)
    """Variables for all workers, added to the launcher's environment."""

    env_per_rank = LaunchSetting(default={}, per_worker=True)
    """Variables for some workers, by local rank or range."""

    redirects = LaunchSetting(default="all", neutral=True)
    """Streams that go to files."""

    tee = LaunchSetting(default="0:all", neutral=True)
    """Streams that are also shown on the console."""

    local_ranks_filter = LaunchSetting(neutral=True)
    """Local ranks whose teed lines reach the console."""

    duplicate_stdout_filters = LaunchSetting("Texts", [], neutral=True)
    """Texts whose lines are also written to `filtered_stdout.log`."""

    duplicate_stderr_filters = LaunchSetting("Texts", [], neutral=True)
    """The same for standard error and `filtered_stderr.log`."""

    log_line_prefix = LaunchSetting("Prefix", neutral=True, per_worker=True)
    """Prefix of each shown line."""

    collapse = LaunchSetting("Flag", neutral=True)
    """Whether a line that several workers write at about the same time is shown once."""

    log_dir = LaunchSetting(in_sweep=False, neutral=True)
    """Directory of the run's files."""

    grace_period = LaunchSetting("Duration", "30s", neutral=True)
    """How long workers may take to end after SIGTERM, before SIGKILL."""

    leftovers = LaunchSetting("Duration", "0.5s", neutral=True)
    """How long processes that outlive successful workers may take to end."""

    not_secret = LaunchSetting("Keys", [], in_sweep=False, neutral=True)
    """Keys of the config whose values look like secrets and are none."""

    signals = LaunchSetting("Signals", ["SIGTERM", "SIGINT", "SIGHUP"], neutral=True)
    """Signals that the launcher handles and passes on to the workers."""

    watchdog = LaunchSetting(
        "Watchdog", {"preset": "report"}, neutral=True, absent=_WATCHDOG_ABSENT
    )
    """What is watched for: the name of a preset, or a mapping that changes one."""

    max_restarts = LaunchSetting("Count", 0, neutral=True)
    """How often a failed group of workers is started again."""

    restart = LaunchSetting("Restart", _RESTART, absent={"on": "all", **_RESTART}, neutral=True)
    """What to restart for, how soon, and when to give up."""

    min_disk = LaunchSetting("Size", neutral=True)
    """Free space that the run's file system must have before an attempt begins."""

    preflight = LaunchSetting(neutral=True)
    """A program to run on each node before the workers of each attempt."""

    resources = LaunchSetting(
        "Resources", {"gpus_per_proc": None, "cpus_per_proc": None}, neutral=True
    )
    """What each worker needs, for the leases of a sweep."""

    virtual_local_rank = LaunchSetting("Flag", False)
    """Whether every worker sees only its own GPU, as device 0."""

    samples = LaunchSetting("Interval", "5s", neutral=True)
    """How often to record what each worker does."""

    run_id = LaunchSetting(in_sweep=False, neutral=True, absent=ALWAYS_SAID)
    """Value of `TORCHELASTIC_RUN_ID`."""

    console = LaunchSetting(
        "Console",
        {"live": None, "color": None, "quiet": False, "interval": "5m"},
        planned=False,
        neutral=True,
    )
    """What the launcher shows beside the workers' output."""

    locked = LaunchSetting("Lock", False, in_sweep=False, planned=False)
    """Whether only the reviewed plan may run."""


SETTINGS: tuple[LaunchSetting, ...] = tuple(
    each._replace(name=name, absent=each.default if each.absent is _SAME else each.absent)
    for name, each in vars(Launch).items()
    if isinstance(each, LaunchSetting)
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
