"""What the ``launch`` node has, and what it comes to: a run as plain frozen data.

`config` makes that, and all below it reads it. Nothing here knows Hydra or OmegaConf. Text may
still hold ``${worker:rank}`` and its kin, which are known only per worker, and put in when it is
prepared.
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Mapping
from enum import IntFlag
from typing import Any, Literal, NamedTuple, TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import replace

from lllaunch.documents import Record
from lllaunch.text import write_range

T = TypeVar("T")

StallScope = Literal["group", "rank"]
RestartCause = Literal["failure", "signal", "oom", "hang", "timeout", "node", "preflight"]
RdzvBackend = Literal["static", "c10d", "etcd-v2"]

RDZV_BACKENDS: tuple[RdzvBackend, ...] = ("static", "c10d", "etcd-v2")

# torch's switch for timers; what a config says is all that a reviewed run does.
ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
# How many threads a worker computes with (OpenMP, and torch).
THREADS = "OMP_NUM_THREADS"
# Names the timers' FIFO to workers.
TIMER_FILE = "TORCHELASTIC_TIMER_FILE"

RESTART_CAUSES: tuple[RestartCause, ...] = (
    *("failure", "signal", "oom", "hang", "timeout"),
    *("node", "preflight"),
)


_MASK = re.compile(r"[0-3]", re.ASCII)
_MASKS = re.compile(r"\d+:[0-3](,\d+:[0-3])*", re.ASCII)


class Std(IntFlag):
    """Standard streams, as a mask: ``NONE`` 0, ``OUT`` 1, ``ERR`` 2, ``ALL`` 3.

    Names and values are those of ``torch.distributed.elastic.multiprocessing.Std``.
    """

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Reads torchrun's notation of ``--redirects`` and ``--tee``.

        That is one mask for all (``"0"`` to ``"3"``), or masks by local rank, separated by commas
        without spaces (``"0:3,1:0,12:1"``); unlike torch's it takes ranks of any number of digits.

        Raises:
            ValueError: the text is neither of the two.
        """
        if _MASK.fullmatch(vm):
            return cls(int(vm))
        if _MASKS.fullmatch(vm):
            pairs = (item.split(":") for item in vm.split(","))
            return {int(rank): cls(int(mask)) for rank, mask in pairs}
        raise ValueError(
            f"{vm!r} is not a mask of streams: expected a number from 0 to 3 for all ranks "
            "(as '3'), or numbers by local rank (as '0:3,1:0,12:1')"
        )


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Spells out a setting for every local rank: ``Std.NONE`` for those that it leaves out.

    Other ranks in the map are dropped.
    """
    if isinstance(val_or_map, Mapping):
        return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}
    return dict.fromkeys(range(local_world_size), Std(val_or_map))


class Discreet(Struct, frozen=True):
    """What may hold secrets: its repr shows none of its fields."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class ProgressLimit(Struct, frozen=True):
    """How often the workers of an attempt must show that they get further.

    ``pattern`` is searched in what they print, and its named groups are numbers; it is empty for
    what `lllaunch.progress` says and known progress bars show. Limits are seconds, ``first_within``
    from the start of an attempt.
    """

    pattern: str = ""
    within: float | None = None
    first_within: float | None = None

    @property
    def shortest(self) -> float | None:
        """The shorter of the two limits, seconds; None if there is none."""
        return min((each for each in (self.within, self.first_within) if each), default=None)


class WatchdogPolicy(Struct, frozen=True):
    """What the watchdog looks for, as ``launch.watchdog`` says; without arguments, nothing.

    Limits are seconds, ``memory`` is bytes; None is no limit. ``report`` names the limits that are
    only reported, with stacks and once in an attempt; for the others it ends the attempt. Where
    ``progress`` is set, a number that becomes NaN or infinite counts as a hang, too.
    """

    timers: bool = False
    timeout: float | None = None
    run_timeout: float | None = None
    stall: float | None = None
    stall_scope: StallScope = "group"
    silence: float | None = None
    spin: float | None = None
    warmup: float = 0.0
    heartbeat: float | None = None
    memory: int | None = None
    collectives: bool = True
    progress: ProgressLimit | None = None
    report: frozenset[str] = frozenset()

    @property
    def looks(self) -> bool:
        """Whether it looks for anything: `collectives` alone does not."""
        return replace(self, collectives=True) != WatchdogPolicy()


class RestartPolicy(Struct, frozen=True):
    """What a failed group is started again for, and how soon, as ``launch.restart`` of the config.

    Times are seconds. ``window`` is None for as long as the run goes on. After
    ``max_without_progress`` failed attempts in a row that came no further the run ends, whatever
    restarts are left.
    """

    on: frozenset[RestartCause] = frozenset(RESTART_CAUSES)
    delay: float = 0.0
    max_delay: float = 300.0
    window: float | None = None
    reset_on: Literal["progress"] | None = None
    max_without_progress: int | None = None
    checkpoint: str | None = None
    gpu_wait: float = 60.0

    @property
    def looks_back(self) -> bool:
        """Whether it matters when restarts were, or how far attempts came."""
        settings = (self.window, self.reset_on, self.max_without_progress)
        return any(setting is not None for setting in settings)

    def wait(self, restart: int) -> float:
        """Seconds to wait before a restart, the first of which has the number 1."""
        # A large exponent would overflow long after the limit was reached.
        return min(self.max_delay, self.delay * 2.0 ** min(restart - 1, 60))


class Preflight(NamedTuple):
    """A program that is run on each node before the workers of an attempt, and seconds for it."""

    command: tuple[str, ...]
    timeout: float = 300.0

    def program(self, runtime_cwd: str) -> str:
        """Return the program: a path, or a name that is looked up on PATH."""
        name = self.command[0]
        return os.path.join(runtime_cwd, name) if "/" in name else name

    @property
    def text(self) -> str:
        """The command line, for people."""
        import shlex  # noqa: PLC0415 - most runs have none

        return shlex.join(self.command)


StartMethod = Literal["forkserver", "spawn", "fork"]
EntrypointForm = Literal["function", "script", "module", "program"]

Path = tuple[str | int, ...]
"""Of a value in the ``launch`` node: ``("args", 3)``, ``("env", "HF_TOKEN")``."""


class Entrypoint(Struct, frozen=True):
    """What the workers run."""

    form: EntrypointForm
    # dotted module (function, module), absolute path (script, program with a slash), or program to
    # be looked up on PATH
    name: str
    # as the user wrote it; its source where it came from the environment. Empty if the config names
    # none, in an app whose decorated function is what workers run
    text: str
    qualname: str = ""
    # whether it could be told without importing it that a function is there and takes its
    # arguments; if not, the spawner tries before anything is started
    decided: bool = False


class Nodes(Discreet, frozen=True):
    """The nodes of a run that has several; never fewer than ``min_nodes``, which is at least 1.

    ``node_rank`` is None for one that joins without a number, which ``c10d`` and ``etcd-v2`` give
    it. ``host`` is a name or an address, without brackets. ``rdzv_id`` is empty if nobody has given
    one. Times are seconds.
    """

    min_nodes: int
    max_nodes: int
    node_rank: int | None
    backend: RdzvBackend
    host: str
    port: int
    rdzv_id: str = ""
    # the certificate's key of etcd, for one
    conf: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    interface: str | None = None
    timeout: float = 60.0
    join_timeout: float = 600.0


Snapshots = Literal["git", "temporary", "none"]


class Requeue(Struct, frozen=True):
    """How often a cluster takes a run that it has ended back into its queue.

    After another job took its place, its time limit, or the loss of a node.
    """

    preempted: int = 20
    timeout: int = 20
    node_failure: int = 3


class Cluster(Discreet, frozen=True):
    """Where a run goes that is not run here: ``cluster`` of the config.

    ``settings`` are those of a batch job under submitit's names, as they were given; what is left
    to the site is not in it, and ``additional_parameters`` is a mapping of options of sbatch.
    ``signal_delay_s`` is seconds. ``detach`` is None for a launcher that leaves once the run is
    submitted if it has no terminal. ``poll_s`` is the longest time between two looks at the queue
    while jobs are followed, seconds.
    """

    # a comment may come from the environment
    settings: Mapping[str, Any] = field(default_factory=dict)
    nodes: int = 1
    signal_delay_s: int = 90
    requeue: Requeue = field(default_factory=Requeue)
    array_parallelism: int = 256
    pack: int = 1
    detach: bool | None = None
    snapshot: Snapshots = "git"
    poll_s: int = 10
    key: str = "cluster"  # where the config says it


class Detected(Record, frozen=True):
    """What ``nnodes: auto`` took from the environment."""

    setting: str  # which it stands for, as in the config: ``nnodes``, ``rdzv.endpoint``
    value: str  # as it is used
    variable: str  # whose value it was made from


class Resources(NamedTuple):
    """What each worker needs of a machine, in a sweep, which leases it.

    No number of GPUs is one where there are GPUs; no number of CPU slots is one where the worker
    needs no GPU, else none.
    """

    gpus_per_proc: int | None = None
    cpus_per_proc: int | None = None


class ConsolePolicy(Struct, frozen=True):
    """What is shown of a run or a sweep, beside the output of workers.

    None for ``live`` and ``color`` is what the terminal can do; ``interval`` is seconds between two
    lines that say how far a run is, where nothing is drawn, None for no such lines.
    """

    live: bool | None = None
    color: Literal["always", "never"] | None = None
    quiet: bool = False
    interval: float | None = 300.0


# The settings of the node: one table, from which all that knows them by name follows. What reads
# and writes one follows from its kind by `lllaunch.config.kinds.KINDS`; kinds that are not there
# have code of their own. What each means is in docs/reference/config.md.


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


class LaunchSpec(Discreet, frozen=True):
    """One run, resolved: all that the launcher decides from.

    Fields that the config has, too, are explained in docs/reference/config.md; here all are
    decided: times are seconds, sizes bytes, paths absolute, and None is no limit.
    """

    entrypoint: Entrypoint
    nproc: int
    log_dir: str
    cwd: str
    # positional arguments. For scripts, modules and programs, text ready for a command line (a
    # mapping in the config has become ``--key value``); for functions, any plain data
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    role: str = "default"
    # also ``fork`` for a function that workers cannot import, which are forked from the process
    # that has it
    start_method: StartMethod = "forkserver"
    preload: tuple[str, ...] = ()
    # what the spawner imports after ``preload``, since the kind of the run asks for it; in no plan
    derived_preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    # variables of some workers by their local ranks, stronger than both. Ranges may reach beyond
    # ``nproc`` where the machine decides on it
    env_per_rank: Mapping[range, Mapping[str, str]] = field(default_factory=dict)
    # variables that follow from the rest and from where it runs, stronger than ``env``; in no plan
    derived_env: Mapping[str, str] = field(default_factory=dict)
    # streams that go to files, by local rank, every rank listed; includes ``tee``
    redirects: Mapping[int, Std] = field(default_factory=dict)
    # streams that are shown as well, by local rank, every rank listed
    tee: Mapping[int, Std] = field(default_factory=dict)
    local_ranks_filter: tuple[range, ...] | None = None
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    log_line_prefix: str | None = None
    collapse: bool | None = None
    grace_period: float = 30.0
    leftovers: float = 0.5
    not_secret: tuple[str, ...] = ()
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    watchdog: WatchdogPolicy = field(default_factory=WatchdogPolicy)
    max_restarts: int = 0
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    min_disk: int | None = None
    # its arguments may come from the environment
    preflight: Preflight | None = None
    resources: Resources = field(default_factory=Resources)
    virtual_local_rank: bool = False
    run_id: str = ""
    console: ConsolePolicy = field(default_factory=ConsolePolicy)
    samples: float | None = None
    locked: bool | str = False
    output_dir: str = ""
    runtime_cwd: str = ""
    # that of the preloads, absolute; empty for the workers'. Runs that have it in common can share
    # a spawner
    spawner_cwd: str = ""
    # by path in the plan, what stands there in place of a value: of one that must not be written
    # the text that it comes from (``${oc.env:NAME}``), and of one that the machine decides on what
    # the config says
    sources: Mapping[Path, Any] = field(default_factory=dict)
    # what must not be written of what workers and batch jobs are given: path in the config, value,
    # and the text that it comes from
    withheld: tuple[tuple[Path, str, str], ...] = ()
    nodes: Nodes | None = None
    detected: tuple[Detected, ...] = ()
    cluster: Cluster | None = None
    # of each of ``args``, the path below ``launch.args`` of what it was made from; empty for
    # keyword arguments
    arg_keys: tuple[Path, ...] = ()
    # what Hydra makes by the names in its own node, redacted; it is in no plan but a lock's, and
    # only known where plans are reviewed
    hydra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def directory(self) -> str:
        """Where the files of the run go, or of its part on this node, if it has several."""
        name = "" if self.nodes is None else node_directory(self.nodes.node_rank)
        # Hydra's own may be the node's already
        hydras = self.log_dir == self.output_dir and os.path.basename(self.output_dir) == name
        return self.log_dir if hydras or not name else os.path.join(self.log_dir, name)

    @property
    def imports(self) -> tuple[str, ...]:
        """All modules that the spawner imports before it forks."""
        return (*self.preload, *self.derived_preload)

    def config_path(self, path: Path) -> Path:
        """Return the path in the config of what a value of the plan was made from."""
        place = path[1] if path[0] == "args" and len(path) > 1 else None
        if not self.arg_keys or not isinstance(place, int):
            return path
        return ("args", *self.arg_keys[place], *path[2:])

    def env_of(self, local_rank: int) -> dict[str, str]:
        """Return all variables of one worker, on top of the launcher's."""
        own = (env for ranks, env in self.env_per_rank.items() if local_rank in ranks)
        return {**self.env, **self.derived_env, **next(own, {})}


def node_directory(node_rank: int | None) -> str:
    """Return what the directory of a node is called within the run's."""
    return f"node_{socket.gethostname() if node_rank is None else node_rank}"


def rank_key(ranks: range) -> int | str:
    """Return how a plan names local ranks: ``3`` or ``"1-7"``."""
    return ranks.start if len(ranks) == 1 else write_range(ranks)


# What is known only per worker. The text form is chosen so that it survives OmegaConf: the resolver
# named ``worker`` returns its own text.

WORKER_NAMES = (
    *("role_name", "rank", "local_rank", "world_size", "local_world_size"),
    *("group_rank", "group_world_size", "role_rank", "role_world_size"),
    *("hostname", "restart_count", "attempt", "run_id", "master_addr", "master_port"),
)

_WORKER = re.compile(r"\$\{worker:([^{}]*)\}")


def substitute(value: T, facts: Mapping[str, str]) -> T:
    """Put one worker's facts into the texts of a value (not into keys of dicts).

    A name without a fact stays as it is written, as ``${hostname}`` does, which may be a shell's.
    """

    def changed(text: str) -> str:
        return _WORKER.sub(lambda match: facts.get(match[1], match[0]), text)

    return cast("T", _mapped(value, changed))


def names_in(value: object) -> set[str]:
    """Return the names that a value asks for, misspelt ones included."""
    found: set[str] = set()

    def noted(text: str) -> str:
        found.update(_WORKER.findall(text))
        return text

    _mapped(value, noted)
    return found


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value whose texts are changed, but for keys."""
    if isinstance(value, str):
        return change(value) if "${" in value else value
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_mapped(item, change) for item in value)
    return value
