"""``cluster``, a root node of the config: where a run goes that is not run here.

Its keys are submitit's, which people's YAMLs hold, so that they can be moved by one line; what
lllaunch has of its own stands beside them. Of a user's own app a node of that name is ours only if
it says so, by its key ``backend``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast, get_args

from msgspec import structs

from lllaunch.config.fields import (
    Findings,
    Settings,
    did_you_mean,
    hinted,
    known_items,
    one_of,
    read_choice,
    read_count,
    read_each,
    read_flag,
    read_line,
    read_positive,
    read_text,
    read_word,
)
from lllaunch.config.kinds import Kind, Node, read_fields
from lllaunch.config.nodes import AUTO, read_nnodes
from lllaunch.config.read import BACKEND, Reader
from lllaunch.config.read import CLUSTER as KEY
from lllaunch.config.tree import (
    BROKEN,
    Tree,
    Withheld,
    conceal,
    has_secrets,
    leaf_items,
    reveal,
    written_key,
)
from lllaunch.config.values import parse_duration
from lllaunch.errors import Unfit
from lllaunch.spec import Cluster, Path, Requeue, Snapshots, names_in

_OPTION = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_GPUS = re.compile(r"(?:[A-Za-z][\w.-]*:)?\d{1,6}(?:,[A-Za-z][\w.-]*:\d{1,6})*", re.ASCII)
_MEMORY = re.compile(r"\d{1,12}(?:\.\d+)?\s*(?:[KMGT]B?)?", re.ASCII | re.IGNORECASE)
_TIME = re.compile(r"\d+(?::\d\d?){0,2}|\d+-\d\d?(?::\d\d?){0,2}|UNLIMITED|INFINITE", re.ASCII)
_MINUTES = "a number of minutes, 1 or more, or a duration (2h, 1d12h)"
_LONGEST_DELAY = 65535  # seconds, as sbatch has it


def _read_gpus(value: object) -> int | str:
    if isinstance(value, str) and _GPUS.fullmatch(value) and not value.isdecimal():
        return value
    expected = "a number of GPUs (4), or of GPUs of a type ('a100:4')"
    return hinted(read_count, "", expected)(value)


def _read_memory(value: object) -> int | str:
    if isinstance(value, str) and _MEMORY.fullmatch(value.strip()):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise Unfit("an amount of memory ('32G'; without a unit, MB)", code=KEY)


def _read_gigabytes(value: object) -> float:
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
        value = float(value) if "." in value else int(value)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(value, (int, float)) and number and 0 < value < math.inf:
        return value
    word = str(value).strip()
    hint = f"did you mean mem: {word}?" if not number and _MEMORY.fullmatch(word) else ""
    raise Unfit("a number of GB, more than 0", hint, code=KEY)


def _read_minutes(value: object) -> int:
    text = value.strip() if isinstance(value, str) else value
    if not isinstance(text, str) or text.isdecimal():
        return hinted(read_positive, "", _MINUTES)(text)
    if _TIME.fullmatch(text):
        raise Unfit(_MINUTES, f"for sbatch's own form: time: '{text}'", code=KEY)
    read = hinted(partial(parse_duration, zero=False), "", _MINUTES)
    return max(1, math.ceil(read(text) / 60))


def _read_time(value: object) -> int | str:
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, (int, str)) and _TIME.fullmatch(str(text)):
        return text
    expected = "a time as sbatch has it (minutes, '12:00:00', '1-12:00:00')"
    raise Unfit(expected, "timeout_min takes a duration", code=KEY)


def _read_delay(value: object) -> int:
    read = hinted(partial(parse_duration, zero=False), "", "a number of seconds, 1 or more")
    seconds = math.ceil(read(value))
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


def _read_each(tree: Tree, key: str, findings: Findings, what: str) -> list[str] | None:
    if not isinstance(tree, list):
        findings.add(key, tree, Unfit(f"a list of {what}", code=KEY))
        return None

    def read(value: object) -> str:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return read_text(str(value) if number else value)

    return [*read_each(tree, key, findings, read)] or None


def _read_additional(tree: Tree, key: str, findings: Findings) -> dict[str, Any] | None:
    found: dict[str, Any] = {}
    expected = "a mapping of options of sbatch"
    for name, item in findings.mapping(key, tree, expected, code=KEY).items():
        if _is_null(item) or reveal(item) is False:
            continue
        option = findings.attempt(f"{key}.{name}", name, _read_option)
        value = findings.attempt(f"{key}.{name}", item, _read_parameter)
        if option is not None and value is not None:
            found[option] = value
    return found or None


_WORD = Kind(read_word)
_MEMORY_OF = Kind(_read_memory)
_POSITIVE = Kind(read_positive)
_LINES = Kind(partial(_read_each, what="shell lines"), list, whole=True)
_EXCLUSIVE = ("user", "mcs", "topo")
# what may be a list, which sbatch takes with commas
_NAMES = ("partition", "qos", "constraint", "exclude", "nodelist", "mail_type")

_OPTIONS: Mapping[str, Kind] = {
    "partition": _WORD,
    "account": _WORD,
    "qos": _WORD,
    "gres": _WORD,
    "gpus_per_node": Kind(_read_gpus),
    "cpus_per_task": _POSITIVE,
    "cpus_per_gpu": _POSITIVE,
    "mem": _MEMORY_OF,
    "mem_gb": Kind(_read_gigabytes),
    "mem_per_gpu": _MEMORY_OF,
    "mem_per_cpu": _MEMORY_OF,
    "timeout_min": Kind(_read_minutes),
    "time": Kind(_read_time),
    "constraint": _WORD,
    "exclude": _WORD,
    "nodelist": _WORD,
    "comment": _WORD,
    "dependency": _WORD,
    "exclusive": Kind(lambda v: (v or None) if isinstance(v, bool) else read_choice(v, _EXCLUSIVE)),
    "mail_type": _WORD,
    "mail_user": _WORD,
    "wckey": _WORD,
    "name": _WORD,
}
_SETTINGS: Mapping[str, Kind] = {
    **_OPTIONS,
    "setup": _LINES,
    "setup_strict": Kind(read_flag),
    "teardown": _LINES,
    "srun_args": Kind(partial(_read_each, what="words for srun"), list, whole=True),
    "additional_parameters": Kind(_read_additional, dict, whole=True),
}
_REQUEUE_KEYS = tuple(each.name for each in structs.fields(Requeue))
_NEVER = f"write {{{', '.join(f'{name}: 0' for name in _REQUEUE_KEYS)}}}"
_REQUEUE = Node(
    Requeue,
    dict.fromkeys(_REQUEUE_KEYS, Kind(read_count)),
    meant=lambda value: _NEVER if value in (False, 0) else "",
    of="causes to numbers",
)
_OWN = Node(
    Cluster,
    {
        "nodes": _POSITIVE,
        "signal_delay_s": Kind(_read_delay),
        "requeue": Kind(_REQUEUE.values, _REQUEUE.write, whole=True),
        "array_parallelism": _POSITIVE,
        "pack": _POSITIVE,
        "snapshot": Kind(read_snapshot),
    },
)
# what no plan says
_UNPLANNED: Mapping[str, Kind] = {
    "max_num_timeout": Kind(read_count),
    "detach": Kind(read_flag),
    "poll_s": Kind(_read_delay),
}

SETTINGS = tuple(_SETTINGS)
"""What goes to the site as it is, under submitit's names."""

OPTIONS: Mapping[str, str] = {
    **{name: name.replace("_", "-") for name in _OPTIONS},
    "mem_gb": "mem",
    "timeout_min": "time",
    "name": "job-name",
}
"""Of the settings that are options of sbatch, what it calls them."""

OWN_KEYS = tuple(_OWN.fields)
"""What a plan says of a cluster beside `SETTINGS`, in its order."""

CLUSTER_KEYS = ("backend", *SETTINGS, *OWN_KEYS, *_UNPLANNED)
"""All keys that mean something here, each under the one name that docs give it."""

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

LAUNCHERS_KEYS = (*CLUSTER_KEYS[1:], "job_name", *_ONLY, *sorted(IGNORED - {"_target_"}))
"""What may stand in ``hydra.launcher`` beside ``cluster``."""

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

    ``nodes`` is None if it does not say how many; ``cluster`` is of one node then. ``secrets`` are
    by path in a plan.
    """

    cluster: Cluster
    nodes: int | None = None
    secrets: Mapping[Path, Withheld] = {}


def read_cluster(
    reader: Reader, key: str, settings: Settings, *, reviewed: bool = False
) -> ClusterNode:
    """Read the node at the key that `lllaunch.config.read.cluster_key` gives.

    ``hydra.launcher.cluster`` is a name or a mapping, and there may be submitit's keys beside it,
    so that a config of its launcher need not be changed but for the launcher's name.

    ``reviewed``: nothing is submitted, and variables that are not set are empty.
    """
    outer = key.removesuffix(KEY).rstrip(".")
    if reviewed:
        reader.unset += (f"{key}.", *(f"{outer}.{name}" for name in LAUNCHERS_KEYS if outer))
    own = reader.items(key, without=IGNORED)
    beside: dict[str, Tree] = {}
    items = own
    if outer:
        beside = {"backend": BACKEND, **reader.items(outer, LAUNCHERS_KEYS, IGNORED)}
        items = {**beside, **(own or {"backend": reader.items(outer, [KEY])[KEY]})}
    findings = _Reviewed() if reviewed else Findings()
    found = _with_nodes(_read(items, key, findings), settings, findings)
    for problem in findings.problems:
        name = problem.key.removeprefix(f"{KEY}.")
        first = re.split(r"[.\[]", name)[0]
        where = f"{outer}.{name}" if first in beside and first != "backend" else key
        where = f"{key}.{name}" if first in own else where
        settings.findings.note(replace(problem, key=where, code=KEY))
    return found


def refuse_other(reader: Reader, findings: Findings) -> None:
    """Note whatever else stands under the name of the node, where that is ours alone."""
    tree = reader.read(KEY)
    if tree is not None and tree is not BROKEN:
        hint = f"{_HOW}; or give the key another name"
        findings.add(KEY, tree, Unfit(f"a cluster (backend: {BACKEND}, ...)", hint, code=KEY))


class _Reviewed(Findings):
    """Of a node that is not acted on: what comes from variables that are not set fits."""

    def attempt(self, key: str, value: Tree, read: Callable[[Any], Any]) -> Any:
        if isinstance(value, Withheld) and value.value == "":
            return ""
        return super().attempt(key, value, read)


def _read(items: dict[str, Tree], key: str, findings: Findings) -> ClusterNode:
    items = {name: item for name, item in items.items() if not _is_null(item)}
    for path, leaf in leaf_items(items):
        if names_in(reveal(leaf)):
            message = "asks for a worker's fact, and no worker is there yet"
            findings.add(written_key((KEY, *path)), leaf, Unfit(message=message, code=KEY))
            items[path[0]] = BROKEN
    tree = items.pop("backend", None)
    if tree is not BROKEN and reveal(tree) != BACKEND:
        hint = did_you_mean(tree, [BACKEND]) if isinstance(tree, str) else _HOW
        findings.add(f"{KEY}.backend", tree, Unfit(repr(BACKEND), hint, code=KEY))
    for name, (only, hint) in _ONLY.items():
        tree = items.pop(name, None)
        # text: what ${oc.env:N} gives is always text
        if tree is not None and str(reveal(tree)).lower() != only:
            findings.add(f"{KEY}.{name}", tree, Unfit(only, hint, code=KEY))
    below = f"options of sbatch belong below {KEY}.additional_parameters"
    names = (*CLUSTER_KEYS, "job_name")
    items = known_items(items, KEY, names, findings, SYNONYMS, otherwise=below)
    _check_twice(items, findings)
    if "job_name" in items:
        items["name"] = items.pop("job_name")
    for name in _NAMES:
        if isinstance(items.get(name), list):
            items[name] = _with_commas(items[name])
    for name in ("setup", "teardown"):
        if name in items and not isinstance(items[name], (list, dict)):
            items[name] = [items[name]]
    settings = read_fields(_SETTINGS, items, KEY, findings)
    own = read_fields({**_OWN.fields, **_UNPLANNED}, items, KEY, findings)
    own = {name: value for name, value in own.items() if value != ""}
    causes = {name: count for name, count in own.pop("requeue", {}).items() if count != ""}
    if "max_num_timeout" in own:
        causes["timeout"] = own.pop("max_num_timeout")
    cluster = Cluster(settings, **own, requeue=Requeue(**causes), key=key)
    # sbatch's other forms are for sbatch to read
    limit = "time" if "time" in settings else "timeout_min"
    minutes = str(settings.get(limit, ""))
    if minutes.isdecimal() and cluster.signal_delay_s >= int(minutes) * 60:
        message = f"is not less than the time limit, {KEY}.{limit}"
        unfit = Unfit(message=message, hint="the run would end as it begins", code=KEY)
        delay = items.get("signal_delay_s", cluster.signal_delay_s)
        findings.add(f"{KEY}.signal_delay_s", delay, unfit)
    leaves = leaf_items(items)
    secrets = {_planned(path): leaf for path, leaf in leaves if isinstance(leaf, Withheld)}
    return ClusterNode(cluster, own.get("nodes"), secrets)


def _with_commas(names: list[Tree]) -> Tree:
    if BROKEN in names:
        return BROKEN
    text, written = (",".join(map(str, form(names))) for form in (reveal, conceal))
    return Withheld(text, written) if has_secrets(names) else text


def _planned(path: Path) -> Path:
    """Where a plan says what stands at a path below the node."""
    if path == ("max_num_timeout",):
        path = ("requeue", "timeout")
    if path[0] == "additional_parameters":
        path = (path[0], str(path[1]).replace("_", "-"), *path[2:])
    return (KEY, *path)


def _check_twice(items: Mapping[str, Tree], findings: Findings) -> None:
    aliases = {**OPTIONS, "job_name": "job-name", "max_num_timeout": "requeue.timeout"}
    given = [(name, aliases[name], item) for name, item in items.items() if name in aliases]
    for above, prefix in (("additional_parameters", ""), ("requeue", "requeue.")):
        below = items.get(above)
        for name, item in below.items() if isinstance(below, dict) else ():
            option = f"{prefix}{name}".replace("_", "-")
            given.append((f"{above}.{name}", option, item))
    said: dict[str, str] = {}
    for where, option, item in given:
        other = said.setdefault(option, where)
        if other != where and not _is_null(item):
            message = f"is said twice: {KEY}.{other} says it as well"
            unfit = Unfit(message=message, hint="leave one of them out", code=KEY)
            findings.add(f"{KEY}.{where}", item, unfit)


def _with_nodes(read: ClusterNode, settings: Settings, findings: Findings) -> ClusterNode:
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
        return read  # noted where it is read
    nodes, secrets = read.nodes or 1, read.secrets
    if given is not None and given != AUTO:
        least, nodes = given
        if least != nodes:
            expected = f"one number, as the run goes to a cluster ({KEY}.backend)"
            hint = "an allocation has as many nodes as it was asked for"
            settings.findings.add(key, tree, Unfit(expected, hint, code=KEY))
        elif read.nodes not in (None, nodes):
            message = f"is not {key}, which is {nodes}"
            unfit = Unfit(message=message, hint="leave one of them out", code=KEY)
            findings.add(f"{KEY}.nodes", read.nodes, unfit)
        elif isinstance(tree, Withheld):
            secrets = {**secrets, (KEY, "nodes"): tree}
    if given == AUTO or nodes > 1:
        settings.change("nnodes", AUTO)
    return ClusterNode(structs.replace(read.cluster, nodes=nodes), nodes, secrets)


def written_cluster(cluster: Cluster) -> dict[str, Any]:
    """All that a plan says of a cluster, in its order, as a config would say it.

    Settings that are left to the site are not in it, nor is what changes no run, as ``detach``.
    """
    settings = {
        name: kind.write(cluster.settings[name])
        for name, kind in _SETTINGS.items()
        if name in cluster.settings
    }
    return {"backend": BACKEND, **settings, **_OWN.write(cluster)}


CLUSTER_DEFAULTS: Mapping[str, Any] = _OWN.write(Cluster())
"""What a plan has where nothing is said."""


def _is_null(tree: Tree) -> bool:
    return tree is not BROKEN and reveal(tree) is None
