"""``hydra.launcher``: what holds for all jobs of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from lllaunch.config.cluster import LAUNCHERS_KEYS, read_snapshot
from lllaunch.config.cluster import SYNONYMS as CLUSTER_SYNONYMS
from lllaunch.config.fields import (
    Findings,
    hinted,
    known_items,
    read_choice,
    read_count,
    read_each,
    read_flag,
    read_positive,
    read_text,
)
from lllaunch.config.kinds import CONSOLE, Kind, Node, read_fields
from lllaunch.config.read import Reader, register_resolvers
from lllaunch.config.schema import SYNONYMS as LAUNCH_SYNONYMS
from lllaunch.config.tree import BROKEN, Tree, reveal
from lllaunch.config.values import parse_duration
from lllaunch.errors import Unfit
from lllaunch.spec import LAUNCH_FIELDS, ConsolePolicy, Snapshots
from lllaunch.sweep.objective import DIRECTIONS, Direction
from lllaunch.sweep.schedule import Retries, SweepPolicy

SYNONYMS = {
    **LAUNCH_SYNONYMS,
    "n_jobs": "max_parallel",
    "array_parallelism": "max_parallel",
    "gpus_per_node": "gpus",
    "cpus_per_node": "cpus",
    "max_failures": "on_failure.max_failures",
    "timeout_min": "watchdog.timeout",
    "tasks_per_node": "nproc",
}

# For Hydra, which makes the launcher of them.
_HYDRAS = ("_target_", "_recursive_", "_convert_", "_partial_")
# Each job has its own.
_OF_JOBS = ("entrypoint", "args", "log_dir", "run_id")
# A sweep has one machine, unless it goes to a cluster.
_OF_SEVERAL = ("nnodes", "node_rank", "rdzv")
_FAILURE_FORMS = "continue, stop or {max_failures: 3}"


class SweepSettings(NamedTuple):
    """What holds for all jobs of a sweep, except their launch fields."""

    policy: SweepPolicy = SweepPolicy()
    # which GPUs may be leased, as `lllaunch.sweep.machine.find_machine` takes it: a number, names,
    # or None for all
    gpus: int | tuple[int | str, ...] | None = None
    cpus: int | tuple[int | str, ...] | None = None
    pin_cpus: bool = False
    # which of two objectives is better; None if that is not said here
    direction: Direction | None = None
    # directory of the sweep that this one goes on with, as written; None for a new one
    resume: str | None = None
    # whether the jobs run the code as it was when the sweep began. Of a cluster's sweep its own
    # setting says so
    snapshot: Snapshots = "none"
    console: ConsolePolicy = ConsolePolicy()


def sweep_settings(config: DictConfig, key: str = "hydra.launcher") -> SweepSettings:
    """Reads what holds for all jobs of a sweep.

    Launch fields in the node are not looked at: `lllaunch.config.resolve.resolve` reads them for
    each job.

    Raises:
        ConfigError: something is wrong; it holds everything that is.
    """
    register_resolvers()
    findings = Findings()
    names, synonyms = (*SWEEP, "cluster", *LAUNCH_FIELDS, *_HYDRAS), SYNONYMS
    node: Any = OmegaConf.select(config, key)
    submits = node.get("cluster") is not None
    if submits:
        names, synonyms = (*names, *LAUNCHERS_KEYS), {**SYNONYMS, **CLUSTER_SYNONYMS}
    # jobs on one machine are runs of one node
    explained = dict.fromkeys(
        _OF_SEVERAL, "start a run of several nodes by itself, without -m, or set cluster"
    )
    of_jobs = (*_OF_JOBS, *_OF_SEVERAL) if submits else _OF_JOBS
    explained |= {name: f"each job has its own: set launch.{name}" for name in of_jobs}
    known_items(dict.fromkeys(node), key, names, findings, synonyms, explained)
    values = read_fields(SWEEP, Reader(config, findings).items(key, SWEEP), key, findings)
    findings.raise_if_any([f"{key}.{name}" for name in SWEEP])
    values["max_failures"] = values.pop("on_failure", None)
    of_policy = {name: values.pop(name) for name in SweepPolicy._fields if name in values}
    return SweepSettings(SweepPolicy(**of_policy), **values)


_SLOTS = "a number (0, 1, 2, ...) or a list of which"


def _read_slot(value: object) -> int | str:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        raise Unfit("a number or a name", code="type")
    if value in {"all", "auto", "none"}:
        raise Unfit(_SLOTS, "null is all of them, 0 is none", code="number")
    return value


def _read_slots(tree: Tree, key: str, findings: Findings) -> Any:
    """Read how many of a kind of slots may be leased, or which ones."""
    plain = reveal(tree)
    if isinstance(plain, list) or (isinstance(plain, str) and not plain.isdecimal()):
        return read_each(tree, key, findings, _read_slot)
    return findings.attempt(key, tree, hinted(read_count, "", _SLOTS))


def _read_failures(tree: Tree, key: str, findings: Findings) -> int | None:
    """Read how many jobs may fail for good before nothing more is started."""
    if not isinstance(tree, dict):
        choose = partial(read_choice, choices=("continue", "stop"))
        word = findings.attempt(key, tree, hinted(choose, "", _FAILURE_FORMS))
        return 1 if word == "stop" else None
    items = known_items(tree, key, ("max_failures",), findings)
    read = hinted(read_positive, "write on_failure: continue for no limit")
    most = items.get("max_failures", BROKEN if tree else None)
    return findings.attempt(f"{key}.max_failures", most, read)


SWEEP: Mapping[str, Kind] = {
    "max_parallel": Kind(hinted(read_positive, "null is as many as have room")),
    "gpus": Kind(_read_slots, whole=True),
    "cpus": Kind(_read_slots, whole=True),
    "pin_cpus": Kind(read_flag),
    "on_failure": Kind(_read_failures, whole=True),
    # how often a job is tried again, by cause
    "retries": Node(
        Retries,
        dict.fromkeys(Retries._fields, Kind(read_count)),
        meant=lambda _: "say for what: {failure: 3}",
        of="causes to numbers",
    ).kind,
    "retry_delay": Kind(parse_duration),
    "direction": Kind(partial(read_choice, choices=DIRECTIONS)),
    "resume": Kind(read_text),
    "snapshot": Kind(read_snapshot),
    "console": CONSOLE.kind,
}
"""The settings of a sweep itself."""
