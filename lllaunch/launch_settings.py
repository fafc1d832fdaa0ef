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
    """The settings, in the order of docs/reference/config.md."""

    entrypoint = LaunchSetting(in_sweep=False, absent=ALWAYS_SAID)
    args = LaunchSetting(in_sweep=False, per_worker=True)
    nproc = LaunchSetting(default=1)
    nnodes = LaunchSetting(default=1, in_sweep=False)
    node_rank = LaunchSetting(in_sweep=False, neutral=True, absent=ALWAYS_SAID)
    rdzv = LaunchSetting(
        default={**_RDZV, "interface": None}, absent=_RDZV, in_sweep=False, neutral=True
    )
    role = LaunchSetting("Line", "default")
    start_method = LaunchSetting("Method", "forkserver")
    preload = LaunchSetting(default=[])
    cwd = LaunchSetting()
    env = LaunchSetting(default={}, per_worker=True)
    env_per_rank = LaunchSetting(default={}, per_worker=True)
    redirects = LaunchSetting(default="all", neutral=True)
    tee = LaunchSetting(default="0:all", neutral=True)
    local_ranks_filter = LaunchSetting(neutral=True)
    duplicate_stdout_filters = LaunchSetting("Texts", [], neutral=True)
    duplicate_stderr_filters = LaunchSetting("Texts", [], neutral=True)
    log_line_prefix = LaunchSetting("Prefix", neutral=True, per_worker=True)
    collapse = LaunchSetting("Flag", neutral=True)
    log_dir = LaunchSetting(in_sweep=False, neutral=True)
    grace_period = LaunchSetting("Duration", "30s", neutral=True)
    leftovers = LaunchSetting("Duration", "0.5s", neutral=True)
    not_secret = LaunchSetting("Keys", [], in_sweep=False, neutral=True)
    signals = LaunchSetting("Signals", ["SIGTERM", "SIGINT", "SIGHUP"], neutral=True)
    watchdog = LaunchSetting(
        "Watchdog", {"preset": "report"}, neutral=True, absent=_WATCHDOG_ABSENT
    )
    max_restarts = LaunchSetting("Count", 0, neutral=True)
    restart = LaunchSetting("Restart", _RESTART, absent={"on": "all", **_RESTART}, neutral=True)
    min_disk = LaunchSetting("Size", neutral=True)
    preflight = LaunchSetting(neutral=True)
    resources = LaunchSetting(
        "Resources", {"gpus_per_proc": None, "cpus_per_proc": None}, neutral=True
    )
    virtual_local_rank = LaunchSetting("Flag", False)
    samples = LaunchSetting("Interval", "5s", neutral=True)
    run_id = LaunchSetting(in_sweep=False, neutral=True, absent=ALWAYS_SAID)
    console = LaunchSetting(
        "Console",
        {"live": None, "color": None, "quiet": False, "interval": "5m"},
        planned=False,
        neutral=True,
    )
    locked = LaunchSetting("Lock", False, in_sweep=False, planned=False)


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
