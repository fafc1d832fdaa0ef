"""``cluster``, a root node of the config: where a run goes that is not run here.

Its keys are submitit's, which people's YAMLs hold, so that they can be moved by one line; what
lllaunch has of its own stands beside them. Of a user's own app a node of that name is ours only if
it says so, by its key ``backend``.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast, get_args

from omegaconf import DictConfig, OmegaConf

from lllaunch.config.fields import (
    Findings,
    Settings,
    did_you_mean,
    mapping_items,
    one_of,
    read_choice,
    read_count,
    read_flag,
    read_line,
    read_positive,
    read_text,
    read_word,
)
from lllaunch.config.nodes import AUTO, read_nnodes
from lllaunch.config.read import BACKEND, Reader, asks_for_cluster, node_of_cluster
from lllaunch.config.read import CLUSTER as KEY
from lllaunch.config.tree import BROKEN, Tree, Withheld, conceal, has_secrets, leaf_items, reveal
from lllaunch.config.values import parse_duration
from lllaunch.errors import Diagnostic, Unfit
from lllaunch.macros import names_in
from lllaunch.spec import Cluster, Path, Requeue, Snapshots

_OPTION = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_GPUS = re.compile(r"(?:[A-Za-z][\w.-]*:)?\d{1,6}(?:,[A-Za-z][\w.-]*:\d{1,6})*", re.ASCII)
_MEMORY = re.compile(r"\d{1,12}(?:\.\d+)?\s*(?:[KMGT]B?)?", re.ASCII | re.IGNORECASE)
_TIME = re.compile(r"\d+(?::\d\d?){0,2}|\d+-\d\d?(?::\d\d?){0,2}|UNLIMITED|INFINITE", re.ASCII)
_MINUTES = "a number of minutes, 1 or more, or a duration (2h, 1d12h)"
_LONGEST_DELAY = 65535  # seconds, as sbatch has it


def _read_gpus(value: object) -> int | str:
    if isinstance(value, str) and _GPUS.fullmatch(value) and not value.isdecimal():
        return value
    try:
        return read_count(value)
    except Unfit:
        raise Unfit("a number of GPUs (4), or of GPUs of a type ('a100:4')", code=KEY) from None


def _read_memory(value: object) -> int | str:
    if isinstance(value, str) and _MEMORY.fullmatch(value.strip()):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise Unfit("an amount of memory ('32G'; without a unit, MB)", code=KEY)


def _read_gigabytes(value: object) -> float:
    number = value
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
        number = float(value) if "." in value else int(value)
    real = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not real or not 0 < number < math.inf:  # type: ignore[operator]
        word = value.strip() if isinstance(value, str) else ""
        hint = f"did you mean mem: {word}?" if _MEMORY.fullmatch(word) else ""
        raise Unfit("a number of GB, more than 0", hint, code=KEY)
    return number  # type: ignore[return-value]


def _read_minutes(value: object) -> int:
    if isinstance(value, str) and _TIME.fullmatch(value.strip()) and not value.strip().isdecimal():
        raise Unfit(_MINUTES, f"for sbatch's own form: time: '{value.strip()}'", code=KEY)
    if isinstance(value, str) and not value.strip().isdecimal():
        try:
            return max(1, math.ceil(parse_duration(value, zero=False) / 60))
        except Unfit as unfit:
            raise Unfit(_MINUTES, unfit.hint, code=KEY) from None
    try:
        return read_positive(value.strip() if isinstance(value, str) else value)
    except Unfit:
        raise Unfit(_MINUTES, code=KEY) from None


def _read_time(value: object) -> int | str:
    if isinstance(value, str) and _TIME.fullmatch(value.strip()):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    try:
        parse_duration(value, zero=False)
        hint = f"write timeout_min: {value}" if isinstance(value, str) else ""
    except Unfit:
        hint = ""
    raise Unfit("a time as sbatch has it (minutes, '12:00:00', '1-12:00:00')", hint, code=KEY)


def _read_delay(value: object) -> int:
    try:
        seconds = math.ceil(parse_duration(value, zero=False))
    except Unfit as unfit:
        raise Unfit("a number of seconds, 1 or more", unfit.hint, code=KEY) from None
    if seconds > _LONGEST_DELAY:
        raise Unfit(f"a number of seconds, {_LONGEST_DELAY} at most", code=KEY)
    return seconds


def read_snapshot(value: object) -> Snapshots:
    """Read whether a run has a snapshot of the code; raises `Unfit` for another word."""
    if value is False:
        raise Unfit(one_of(SNAPSHOTS), "did you mean 'none'?", code="choice")
    return cast("Snapshots", read_choice(value, SNAPSHOTS))


SNAPSHOTS = get_args(Snapshots)


def _read_option(value: object) -> str:
    """Return the name of an option of sbatch as it has it."""
    option = value.replace("_", "-") if isinstance(value, str) else ""
    name = option.lstrip("-")
    if name in REFUSED:
        raise Unfit(message=f"cannot be given: {REFUSED[name]}", code=KEY)
    if option != name and _OPTION.fullmatch(name):
        raise Unfit("the name of an option of sbatch", f"write {name}", code=KEY)
    if not _OPTION.fullmatch(option):
        raise Unfit("the name of a long option of sbatch (reservation, mem-bind)", code=KEY)
    return option


def _read_parameter(value: object) -> Any:
    if value is True or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    if not isinstance(value, str):
        raise Unfit("text, a number, or true for an option without a value", code=KEY)
    return read_line(value)


_MEMORIES = ("mem", "mem_gb", "mem_per_gpu", "mem_per_cpu")


class _Setting(NamedTuple):
    option: str = ""  # what sbatch calls it
    read: Callable[[Any], Any] = read_word
    names: bool = False  # whether it may be a list, which sbatch takes with commas
    lines: str = ""  # what it is a list of


_EXCLUSIVE = ("user", "mcs", "topo")
_BY_NAME: Mapping[str, _Setting] = {
    "partition": _Setting("partition", names=True),
    "account": _Setting("account"),
    "qos": _Setting("qos", names=True),
    "gres": _Setting("gres"),
    "gpus_per_node": _Setting("gpus-per-node", _read_gpus),
    "cpus_per_task": _Setting("cpus-per-task", read_positive),
    "cpus_per_gpu": _Setting("cpus-per-gpu", read_positive),
    "mem": _Setting("mem", _read_memory),
    "mem_gb": _Setting("mem", _read_gigabytes),
    "mem_per_gpu": _Setting("mem-per-gpu", _read_memory),
    "mem_per_cpu": _Setting("mem-per-cpu", _read_memory),
    "timeout_min": _Setting("time", _read_minutes),
    "time": _Setting("time", _read_time),
    "constraint": _Setting("constraint", names=True),
    "exclude": _Setting("exclude", names=True),
    "nodelist": _Setting("nodelist", names=True),
    "comment": _Setting("comment"),
    "dependency": _Setting("dependency"),
    "exclusive": _Setting(
        "exclusive", lambda v: (v or None) if isinstance(v, bool) else read_choice(v, _EXCLUSIVE)
    ),
    "mail_type": _Setting("mail-type", names=True),
    "mail_user": _Setting("mail-user"),
    "wckey": _Setting("wckey"),
    "name": _Setting("job-name"),
    "setup": _Setting(lines="shell lines"),
    "setup_strict": _Setting(read=read_flag),
    "teardown": _Setting(lines="shell lines"),
    "srun_args": _Setting(lines="words for srun"),
    "additional_parameters": _Setting(),
}

SETTINGS = tuple(_BY_NAME)
"""What goes to the site as it is, under submitit's names."""

OPTIONS: Mapping[str, str] = {name: each.option for name, each in _BY_NAME.items() if each.option}
"""Of the settings that are options of sbatch, what it calls them."""

OWN_KEYS = ("nodes", "signal_delay_s", "requeue", "array_parallelism", "pack", "snapshot")
"""What a plan says of a cluster beside `SETTINGS`, in its order."""

IGNORED = frozenset({"submitit_folder", "stderr_to_stdout", "python", "_target_"})
"""What stands in people's YAMLs for submitit and means nothing here; it is not read."""

_ONE_TASK = "launch.nproc=N: lllaunch starts the workers of a node from one task"
# Accepted with the one value that is what happens anyway, here with what is said of another.
_ONLY: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("tasks_per_node", "ntasks_per_node", "ntasks", "num_tasks"), ("1", _ONE_TASK)),
    "gpus_per_task": (
        "null",
        "set cluster.gpus_per_node: with this one workers do not see each other's GPUs",
    ),
    "use_srun": ("true", "srun starts lllaunch on each node"),
}
_KNOWN = ("backend", *SETTINGS, *OWN_KEYS, "max_num_timeout", "detach", "job_name", *_ONLY)
_REQUEUE_KEYS = tuple(each.name for each in dataclasses.fields(Requeue))
CLUSTER_KEYS = ("backend", *SETTINGS, *OWN_KEYS, "max_num_timeout", "detach")
"""All keys that mean something here, each under the one name that docs give it."""

SYNONYMS = dict.fromkeys(("gpus", "num_gpus"), "gpus_per_node") | {"nnodes": "nodes"}

_BY_TASKS = "a job has one task on each node; launch.nproc says how many workers it starts there"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("output", "error", "open-mode"),
        "lllaunch sets it: what a job writes is in the run's directory",
    ),
    "input": "lllaunch sets it: a job reads nothing",
    "chdir": "lllaunch sets it: by its working directory a job is found again",
    "array": "lllaunch sets it: a sweep (-m) is an array; see cluster.array_parallelism",
    **dict.fromkeys(("requeue", "no-requeue"), "lllaunch sets it; see cluster.requeue"),
    "signal": "lllaunch sets it; see cluster.signal_delay_s",
    "job-name": "it has a key of its own: cluster.name",
    "nodes": "it has a key of its own: cluster.nodes",
    **dict.fromkeys(("ntasks", "ntasks-per-node", "ntasks-per-core"), _BY_TASKS),
    **dict.fromkeys(("ntasks-per-gpu", "ntasks-per-socket"), _BY_TASKS),
    "gpus-per-task": "it hides the GPUs of a node from each other; use cluster.gpus_per_node",
    **dict.fromkeys(("wait", "parsable", "quiet", "verbose"), "lllaunch talks to sbatch itself"),
    **dict.fromkeys(("test-only", "wrap", "help", "usage", "version"), "no job would be submitted"),
    **dict.fromkeys(("command", "folder", "map-count"), "submitit uses it internally"),
}
"""Options that cannot be given, and why; those of sbatch, and names within submitit."""

_HOW = f"write {KEY}={BACKEND}, or +{KEY}={BACKEND} where no config has chosen one yet"


class ClusterNode(NamedTuple):
    """What a config says of a cluster.

    ``nodes`` is None if it does not say how many; ``cluster`` is of one node then. ``sources`` are
    as in `lllaunch.spec.LaunchSpec`.
    """

    cluster: Cluster
    nodes: int | None = None
    sources: Mapping[Path, Any] = {}


def launchers_cluster(node: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what ``hydra.launcher`` says of a cluster, as the root node would; None if nothing.

    With ``cluster``, a name or a mapping, there may be submitit's keys beside it, so that a config
    of its launcher need not be changed but for the launcher's name. References to other values
    stay: what they come to may be a secret.
    """
    given = _as_written(node)
    try:
        cluster: Any = node.get(KEY)
    except Exception:  # noqa: BLE001 - as in `node_of_cluster`
        cluster = given[KEY]
    if cluster is None:
        return None
    word = cluster if isinstance(cluster, str) else given[KEY]
    named = _as_written(cluster) if isinstance(cluster, Mapping) else {"backend": word}
    beside = {name: given[name] for name in LAUNCHERS_KEYS if given.get(name) is not None}
    return {"backend": BACKEND, **beside, **named}


def _as_written(node: Mapping[str, Any]) -> dict[str, Any]:
    plain: Any = OmegaConf.to_container(node) if isinstance(node, DictConfig) else node
    return dict(plain)


def of_launcher(problem: Diagnostic, node: Mapping[str, Any], key: str) -> Diagnostic:
    """Return a problem with what `launchers_cluster` gave, under keys of ``hydra.launcher``."""
    cluster = node.get(KEY)
    within = frozenset(cluster if isinstance(cluster, Mapping) else ())

    def name(match: re.Match[str]) -> str:
        word = match["name"]
        if word is None or (word == "backend" and word not in within):
            return f"{key}.{KEY}"
        below = word in within or (bool(within - {"backend"}) and word not in node)
        return f"{key}.{KEY}.{word}" if below else f"{key}.{word}"

    texts = (problem.message, problem.hint, problem.expected)
    message, hint, expected = (_DOTTED.sub(name, text) for text in texts)
    where = _OWN_KEY.sub(name, problem.key)
    return replace(problem, key=where, message=message, hint=hint, expected=expected)


_OWN_KEY = re.compile(rf"^{KEY}(?:\.(?P<name>\w+))?(?![\w])")
_DOTTED = re.compile(rf"(?<![\w.]){KEY}\.(?P<name>[a-z]\w*)")

LAUNCHERS_KEYS = (*(name for name in _KNOWN if name != "backend"), *sorted(IGNORED - {"_target_"}))
"""What may stand in ``hydra.launcher`` beside ``cluster``."""


def read_cluster(
    cfg: DictConfig,
    reader: Reader,
    findings: Findings,
    *,
    strict: bool,
    reviewed: bool = False,
    users_own: bool = False,
) -> ClusterNode | None:
    """Read ``cluster``; None if the run is one of this machine.

    ``strict``: the name is ours alone, so that whatever else stands there is a mistake.
    ``reviewed``: nothing is submitted, and variables that are not set are empty. ``users_own`` is
    as for `asks_for_cluster`.
    """
    if not asks_for_cluster(cfg, users_own=users_own):
        tree = reader.read(cfg, KEY) if strict else None
        if tree is not None and tree is not BROKEN:
            hint = f"{_HOW}; or give the key another name"
            findings.add(KEY, tree, Unfit(f"a cluster (backend: {BACKEND}, ...)", hint, code=KEY))
        return None
    node = node_of_cluster(cfg)
    assert node is not None
    own = Findings()
    names: list[Any] = [name for name in node if name not in IGNORED]
    reading = _Reading(reader.read_items(node, KEY, names), own, reviewed=reviewed)
    found = reading.read()
    for problem in own.problems:
        findings.note(replace(problem, code=KEY))
    return found


def with_nodes(read: ClusterNode, settings: Settings) -> tuple[ClusterNode, Settings]:
    """Decide how many nodes a run has that goes to a cluster.

    ``launch.nnodes: 4`` and ``cluster.nodes: 4`` both ask for them; once the job has them, they
    are what ``launch.nnodes: auto`` finds.
    """
    tree, key = settings["nnodes"], settings.key_of("nnodes")
    if settings.is_given("node_rank"):
        message = f"is of one node, and a cluster numbers its nodes ({KEY}.backend)"
        unfit = Unfit(message=message, hint="leave it out", code=KEY)
        settings.findings.add(settings.key_of("node_rank"), settings["node_rank"], unfit)
    try:
        given = read_nnodes(reveal(tree)) if settings.is_given("nnodes") else None
    except Unfit:
        return read, settings  # noted where it is read
    if given is None or given == AUTO:
        nodes, sources = read.nodes or 1, read.sources
    else:
        least, nodes = given
        sources = read.sources
        if least != nodes:
            expected = f"one number, as the run goes to a cluster ({KEY}.backend)"
            hint = "an allocation has as many nodes as it was asked for"
            settings.findings.add(key, tree, Unfit(expected, hint, code=KEY))
        elif read.nodes not in (None, nodes):
            message = f"is not {key}, which is {nodes}"
            unfit = Unfit(message=message, hint="leave one of them out", code=KEY)
            settings.findings.add(f"{KEY}.nodes", read.nodes, unfit)
        elif has_secrets(tree):
            sources = {**sources, (KEY, "nodes"): conceal(tree)}
    if given == AUTO or nodes > 1:
        settings = settings.with_value("nnodes", AUTO)
    return ClusterNode(replace(read.cluster, nodes=nodes), nodes, sources), settings


def written_cluster(cluster: Cluster) -> dict[str, Any]:
    """All that a plan says of a cluster, in its order, as a config would say it.

    Settings that are left to the site are not in it, nor is ``detach``, which changes no run.
    """
    return {
        "backend": BACKEND,
        **{
            name: copy.deepcopy(cluster.settings[name])
            for name in SETTINGS
            if name in cluster.settings
        },
        "nodes": cluster.nodes,
        "signal_delay_s": cluster.signal_delay,
        "requeue": {name: getattr(cluster.requeue, name) for name in _REQUEUE_KEYS},
        "array_parallelism": cluster.array_parallelism,
        "pack": cluster.pack,
        "snapshot": cluster.snapshot,
    }


_DEFAULTS = Cluster()
CLUSTER_DEFAULTS: Mapping[str, Any] = {
    name: value for name, value in written_cluster(_DEFAULTS).items() if name != "backend"
}
"""What a plan has where nothing is said."""


class _Reading:
    """Reads the keys of the node."""

    def __init__(self, items: dict[str, Tree], findings: Findings, *, reviewed: bool) -> None:
        self._findings = findings
        self._reviewed = reviewed
        self._items = {name: item for name, item in items.items() if not _is_null(item)}
        self._sources: dict[Path, Any] = {}
        for path, leaf in leaf_items(self._items):
            if names_in(reveal(leaf), bare=False):
                message = "asks for a worker's fact, and no worker is there yet"
                self._add(_dotted(path), leaf, Unfit(message=message, code=KEY))
                self._items[path[0]] = BROKEN

    def read(self) -> ClusterNode:
        """Read all of them."""
        tree = self._items.pop("backend", None)
        if tree is not BROKEN and reveal(tree) != BACKEND:
            hint = did_you_mean(tree, [BACKEND]) if isinstance(tree, str) else _HOW
            self._add("backend", tree, Unfit(repr(BACKEND), hint, code=KEY))
        for name in [name for name in self._items if name not in _KNOWN]:
            meant = SYNONYMS.get(name, "")
            hint = f"did you mean {meant!r}?" if meant else did_you_mean(name, CLUSTER_KEYS)
            hint = hint or f"options of sbatch belong below {KEY}.additional_parameters"
            self._findings.add_about(f"{KEY}.{name}", "unknown setting", hint, code=KEY)
            del self._items[name]
        for name, (only, hint) in _ONLY.items():
            tree = self._items.pop(name, None)
            # text: what ${oc.env:N} gives is always text
            if tree is not None and str(reveal(tree)).lower() != only:
                self._add(name, tree, Unfit(only, hint, code=KEY))
        job_name = self._items.pop("job_name", None)
        if job_name is not None:
            if "name" in self._items:
                self._add("job_name", job_name, _twice("name"))
            self._items["name"] = job_name
        settings: dict[str, Any] = {}
        for name in SETTINGS:
            if name in self._items:
                value = self._setting(name)
                settings.update({} if value is None else {name: value})
        self._check_twice(settings)
        own = {
            "nodes": self._own("nodes", read_positive),
            "signal_delay": self._own("signal_delay_s", _read_delay),
            "requeue": self._requeue(),
            "array_parallelism": self._own("array_parallelism", read_positive),
            "pack": self._own("pack", read_positive),
            "detach": self._own("detach", read_flag),
            "snapshot": self._own("snapshot", read_snapshot),
        }
        given = {name: value for name, value in own.items() if value is not None}
        self._check_delay(settings, own["signal_delay"] or _DEFAULTS.signal_delay)
        return ClusterNode(Cluster(settings, **given), own["nodes"], self._sources)

    def _add(self, name: str, tree: Tree, unfit: Unfit) -> None:
        self._findings.add(f"{KEY}.{name}", tree, unfit)

    def _setting(self, name: str) -> Any:
        setting, tree = _BY_NAME[name], self._items[name]
        if name == "additional_parameters":
            return self._additional(name, tree)
        if setting.lines:
            return self._lines(name, tree, setting.lines)
        if setting.names and isinstance(tree, list):
            if BROKEN in tree:
                return None
            text = ",".join(map(str, reveal(tree)))
            written = ",".join(map(str, conceal(tree)))
            tree = Withheld(text, written) if has_secrets(tree) else text
        return self._value((name,), tree, setting.read)

    def _value(self, path: Path, tree: Tree, read: Callable[[Any], Any], where: str = "") -> Any:
        """Return what a tree comes to, and note its source if it must not be written."""
        place = (KEY, *path)
        if has_secrets(tree):
            self._sources[place] = conceal(tree)
        if self._is_unset(tree):
            return ""
        return self._findings.attempt(where or _dotted(place), tree, read)

    def _is_unset(self, tree: Tree) -> bool:
        return self._reviewed and isinstance(tree, Withheld) and tree.value == ""

    def _own(self, name: str, read: Callable[[Any], Any]) -> Any:
        tree = self._items.get(name)
        if tree is None:
            return None
        value = self._value((name,), tree, read)
        return None if self._is_unset(tree) else value

    def _lines(self, name: str, tree: Tree, what: str) -> list[str] | None:
        trees = tree if isinstance(tree, list) else [tree]
        if isinstance(tree, dict) or (name == "srun_args" and not isinstance(tree, list)):
            self._add(name, tree, Unfit(f"a list of {what}", code=KEY))
            return None

        def read(value: object) -> str:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return read_text(str(value) if number else value)

        values = [self._value((name, index), each, read) for index, each in enumerate(trees)]
        return [value for value in values if value is not None] or None

    def _additional(self, name: str, tree: Tree) -> dict[str, Any] | None:
        if not isinstance(tree, dict):
            if tree is not BROKEN:
                self._add(name, tree, Unfit("a mapping of options of sbatch", code=KEY))
            return None
        found: dict[str, Any] = {}
        for key, item in tree.items():
            if _is_null(item) or reveal(item) is False:
                continue
            where = f"{name}.{key}"
            option = self._findings.attempt(f"{KEY}.{where}", key, _read_option)
            if option in found:
                self._add(where, item, _twice(f"{name}.{option}"))
            elif option is not None:
                value = self._value((name, option), item, _read_parameter, f"{KEY}.{where}")
                found.update({} if value is None else {option: value})
        return found or None

    def _check_twice(self, settings: dict[str, Any]) -> None:
        for names in (_MEMORIES, ("timeout_min", "time")):
            first, *others = [name for name in names if name in settings] or [""]
            for name in others:
                message = f"stands beside {KEY}.{first}"
                unfit = Unfit(message=message, hint="sbatch takes one of them", code=KEY)
                self._add(name, self._items[name], unfit)
        by_option = {OPTIONS[name]: name for name in settings if name in OPTIONS}
        for option, value in settings.get("additional_parameters", {}).items():
            if option in by_option:
                where = f"additional_parameters.{option}"
                source = self._sources.get((KEY, "additional_parameters", option))
                tree = value if source is None else Withheld(value, source)
                self._add(where, tree, _twice(by_option[option]))

    def _check_delay(self, settings: Mapping[str, Any], delay: int) -> None:
        """See to it that a run is told of its end after its beginning."""
        name = next((name for name in ("timeout_min", "time") if name in settings), "")
        minutes = str(settings.get(name, ""))
        # sbatch's other forms are for sbatch to read
        if minutes.isdecimal() and delay >= int(minutes) * 60:
            message = f"is not less than the time limit, {KEY}.{name}"
            unfit = Unfit(message=message, hint="the run would end as it begins", code=KEY)
            self._add("signal_delay_s", self._items.get("signal_delay_s", delay), unfit)

    def _requeue(self) -> Requeue:
        tree, off = self._items.get("requeue"), ", ".join(f"{name}: 0" for name in _REQUEUE_KEYS)
        items = mapping_items(
            *(tree, f"{KEY}.requeue", _REQUEUE_KEYS, {}, self._findings),
            of="causes to numbers",
            hint=lambda value: f"write {{{off}}}" if value in (False, 0) else "",
        )
        counts_by_cause = {
            name: self._value(("requeue", name), item, read_count)
            for name, item in items.items()
            if not _is_null(item)
        }
        timeouts = self._items.get("max_num_timeout")
        if timeouts is not None and "timeout" in counts_by_cause:
            self._add("max_num_timeout", timeouts, _twice("requeue.timeout"))
        elif timeouts is not None:
            where = f"{KEY}.max_num_timeout"
            path = ("requeue", "timeout")
            counts_by_cause["timeout"] = self._value(path, timeouts, read_count, where)
        known = {name: count for name, count in counts_by_cause.items() if isinstance(count, int)}
        return Requeue(**known)


def _is_null(tree: Tree) -> bool:
    return tree is not BROKEN and reveal(tree) is None


def _dotted(path: tuple[Any, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _twice(other: str) -> Unfit:
    message = f"is said twice: {KEY}.{other} says it as well"
    return Unfit(message=message, hint="leave one of them out", code=KEY)
