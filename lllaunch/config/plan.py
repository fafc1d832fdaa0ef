"""What was decided, as text for people and as a hash for programs. Needs no OmegaConf."""

from __future__ import annotations

import copy
import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

from lllaunch.cluster.address import format_nnodes
from lllaunch.config.cluster import CLUSTER_DEFAULTS, CLUSTER_KEYS, written_cluster
from lllaunch.config.command import PREFLIGHT
from lllaunch.config.document import parse, read_text
from lllaunch.config.kinds import KINDS, with_spin
from lllaunch.config.nodes import NO_ID, RDZV_DEFAULTS
from lllaunch.config.tree import conceal
from lllaunch.config.values import write_mask
from lllaunch.documents import differences, text_lines
from lllaunch.errors import ConfigError, Diagnostic, ExitCode, LaunchError
from lllaunch.spec import ABSENT, PLANNED, SETTINGS, LaunchSpec, rank_key
from lllaunch.sweep.fingerprint import aliases, identity

_FLOAT = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.[\d_]+)(?:[eE][-+]?\d+)?$")


class PlanDumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes what OmegaConf would read as a number, which is more than PyYAML would.

    It escapes all that is not seen: PyYAML reads some line breaks back as others.
    """

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        """Anchors and aliases are hard to read and depend on object identity."""
        return True


def _represent_text(dumper: Any, text: str) -> Any:
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


PlanDumper.add_representer(str, _represent_text)
PlanDumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def plan_config(spec: LaunchSpec) -> str:
    """The plan of a run as a config that comes to the same plan wherever the project is, as YAML.

    It holds what differs from the defaults. Directories of the run and of the user stand as
    interpolations.
    """
    return dump_yaml(essential(portable_plan(spec, SOURCES)))


def read_plan(path: str) -> dict[str, Any]:
    """Read what `plan_config` wrote; a `ConfigError` if it is no plan."""
    plan = parse(read_text(path), path).data
    shaped = isinstance(plan, dict) and isinstance(plan.get("launch"), dict)
    if not shaped or not isinstance(plan.get("cluster", {}), dict):
        raise ConfigError((Diagnostic("plan", path, "", "is no plan (launch: {...})"),))
    return cast("dict[str, Any]", plan)


def config_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config that a plan is.

    What it does not name is what it was then, whatever the defaults are now.
    """
    config = complete(plan, SOURCES)
    if "cluster" in config:
        config["cluster"] = {**dict.fromkeys(CLUSTER_KEYS), **config["cluster"]}
    return config


def expect_same(spec: LaunchSpec, plan: Mapping[str, Any], path: str) -> None:
    """Raise a `LaunchError` unless a run is what was read from its plan.yaml."""
    changes = differences(complete(plan, SOURCES), portable_plan(spec, SOURCES))
    if changes:
        lines = [f"the plan comes to another one than {path} now:"]
        lines += [f"  {line}" for line in text_lines(changes)]
        raise LaunchError("\n".join(lines), ExitCode.REFUSED)


def plan_hash(spec: LaunchSpec) -> str:
    """The identity of a plan: the same for the same experiment in another place.

    SHA-256, in hexadecimal, of what differs from the defaults, with the run's own directory and the
    user's directory taken out, and with a ``run_id`` that was made from them.
    """
    return hash_of(portable_plan(spec))


def hash_of(plan: Mapping[str, Any]) -> str:
    """Return the hash of a plan that `portable_plan` made, or of a sweep's.

    It is of the plan's canonical JSON, so that neither the layout of a file nor the order of keys
    matters, and of what differs from the defaults, so that a new key changes none.
    """
    return identity(essential(plan))


class PathAliases(NamedTuple):
    """What stands in a plan for directories that differ from place to place."""

    output_dir: str
    cwd: str


MARKS = PathAliases("<output_dir>", "<cwd>")
"""For plans that are compared."""

SOURCES = PathAliases("${hydra:runtime.output_dir}", "${hydra:runtime.cwd}")
"""For plans that are read back as configs."""


def portable_plan(spec: LaunchSpec, places: PathAliases = MARKS) -> dict[str, Any]:
    """Returns a plan without what differs from place to place.

    Nor what is another one on each node: ``node_rank``, ``rdzv.interface`` (unless all nodes are
    given it by a cluster), and a ``run_id`` that was made from the run's directory or from
    ``rdzv.id``.
    """
    plan = plan_node(spec)
    launch = plan["launch"]
    launch.pop("node_rank")
    if spec.cluster is None or launch["rdzv"].get("interface") is None:
        launch["rdzv"].pop("interface", None)
    # a name that follows from the rest
    known = {default_run_id(spec.output_dir), launch["rdzv"]["id"]}
    known |= {NO_ID} if spec.nodes is not None else set()
    known |= {each.value for each in spec.detected if each.setting == "rdzv.id"}
    if launch["run_id"] in known:
        launch.pop("run_id")
    named = (spec.runtime_cwd, places.cwd), (spec.output_dir, places.output_dir)
    portable: dict[str, Any] = _elsewhere(plan, aliases(named))
    return portable


_OWN = (
    *("nproc", "log_dir", "run_id", "redirects", "tee", "local_ranks_filter", "collapse"),
    "samples",
)


def group_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the nodes of a run must have in common, of a portable plan.

    Its `essential` part without what each node may have of its own: the number of workers and how
    they are named by their ranks, where their output goes and what is shown of it. Without the
    endpoint, too: nodes that compare their plans have met, by whatever name.
    """
    launch = essential(plan)["launch"]
    common = {name: value for name, value in launch.items() if name not in _OWN}
    rdzv = {name: value for name, value in common.pop("rdzv", {}).items() if name != "endpoint"}
    return {"launch": {**common, **({"rdzv": rdzv} if rdzv else {})}}


def essential(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan without what is the default.

    The plan of a run or, under ``jobs``, of the jobs of a sweep, with `MARKS` or `SOURCES` for
    directories; complete, or essential already.
    """

    def short(name: str, node: Mapping[str, Any]) -> dict[str, Any]:
        return _without(node, _defaults_of(node) if name == "launch" else CLUSTER_DEFAULTS)

    return _each_node(plan, short)


def complete(plan: Mapping[str, Any], places: PathAliases | None = None) -> dict[str, Any]:
    """Return a plan with all keys, in the order of the schema; the inverse of `essential`.

    Of ``cluster`` it has all keys but those that are left to the site.

    ``places`` is what stands in it for directories, `MARKS` if None.
    """

    def completed(name: str, node: Mapping[str, Any]) -> dict[str, Any]:
        if name == "launch":
            return _with(node, _defaults_of(node, places or MARKS))
        known = _with(node, CLUSTER_DEFAULTS)
        settings = {name: node[name] for name in node if name not in CLUSTER_DEFAULTS}
        return {**settings, **{name: known[name] for name in CLUSTER_DEFAULTS}}

    return _each_node(plan, completed)


def _each_node(
    plan: Mapping[str, Any], change: Callable[[str, Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    if "jobs" in plan:
        return {"jobs": {name: _each_node(job, change) for name, job in plan["jobs"].items()}}
    changed = {"launch": change("launch", plan["launch"])}
    if "cluster" in plan:
        changed["cluster"] = change("cluster", plan["cluster"])
    return changed | ({"hydra": plan["hydra"]} if "hydra" in plan else {})


def _defaults_of(launch: Mapping[str, Any], places: PathAliases | None = None) -> dict[str, Any]:
    """The defaults where some keys are set; without places, with those that stand there."""
    one = launch.get("nproc", 1) == 1
    cwd, log_dir = launch.get("cwd"), launch.get("log_dir")
    if places is None:
        places = SOURCES if SOURCES.cwd == cwd or SOURCES.output_dir == log_dir else MARKS
    watchdog = dict(ABSENT["watchdog"])
    given = launch.get("watchdog")
    if isinstance(given, Mapping) and _without(given, watchdog).keys() - {"spin"}:
        # it follows from the others where a config does not name it
        watchdog["spin"] = _NO_DEFAULT
    return {
        **ABSENT,
        "cwd": places.cwd,
        "log_dir": places.output_dir,
        "watchdog": watchdog,
        # as masks are written where one rank is all ranks
        "tee": "all" if one else ABSENT["tee"],
    }


def _without(node: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.items():
        default = defaults.get(key, _NO_DEFAULT)
        if isinstance(value, Mapping) and isinstance(default, Mapping) and default:
            # no deeper: a limit of the watchdog is one value, though it may be a mapping
            parts = {
                name: part
                for name, part in value.items()
                if not _is(part, default.get(name, _NO_DEFAULT))
            }
            found.update({key: parts} if parts else {})
        elif not _is(value, default):
            found[key] = value
    return found


def _is(value: object, default: object) -> bool:
    return value == default and type(value) is type(default)


def _with(node: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    known = {**dict.fromkeys(("entrypoint", *defaults)), **defaults, **node}
    for key, default in defaults.items():
        # what a preset says that comes from the environment is in no plan, and would be undone
        if isinstance(known[key], Mapping) and isinstance(default, Mapping):
            parts = known[key] if "preset" in known[key] else {**default, **known[key]}
            known[key] = {name: part for name, part in parts.items() if part is not _NO_DEFAULT}
    return known


_NO_DEFAULT = object()


def plan_node(spec: LaunchSpec) -> dict[str, Any]:
    """The plan of a run as plain data, made anew.

    Under ``launch`` that node, decided and redacted, in the order of the schema; under ``cluster``
    what is said of that, if the run goes to one; and under ``hydra`` what that makes by name, where
    it is reviewed.
    """
    shown = spec.local_ranks_filter
    nodes = spec.nodes
    node: dict[str, Any] = {
        "entrypoint": spec.entrypoint.text or None,
        # the order of keywords means nothing
        "args": _sorted(spec.kwargs) if spec.kwargs else list(spec.args) or None,
        "nnodes": 1 if nodes is None else format_nnodes(nodes.min_nodes, nodes.max_nodes),
        "node_rank": None if nodes is None else nodes.node_rank,
        "rdzv": RDZV_DEFAULTS,
        "preload": list(spec.preload),
        "env_per_rank": {rank_key(ranks): env for ranks, env in spec.env_per_rank.items()},
        "redirects": write_mask(spec.redirects),
        "tee": write_mask(spec.tee),
        "local_ranks_filter": None if shown is None else [rank_key(ranks) for ranks in shown],
        "preflight": spec.preflight and PREFLIGHT.write(spec.preflight),
    }
    for each in SETTINGS:
        if each.name not in node:
            value = getattr(spec, each.name)
            node[each.name] = KINDS[each.kind].write(value) if each.kind in KINDS else value
    sourced = any(path[:2] == ("watchdog", "stall") for path in spec.sources)
    if sourced and spec.watchdog == with_spin(spec.watchdog):
        # what follows from a value that must not be written must not be, either
        node["watchdog"].pop("spin")
    plan: dict[str, Any] = {"launch": {name: conceal(node[name]) for name in PLANNED}}
    if spec.cluster is not None:
        plan["cluster"] = conceal(written_cluster(spec.cluster))
    if spec.hydra:
        plan["hydra"] = dict(spec.hydra)
    for path, source in spec.sources.items():
        *above, last = path if path[0] == "cluster" else ("launch", *path)
        # some of these are put into others
        own = copy.deepcopy(source)
        functools.reduce(operator.getitem, above, cast("Any", plan))[last] = own
    return plan


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: (type(item[0]).__name__, str(item[0])))
        return {key: _sorted(item) for key, item in items}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def default_run_id(output_dir: str) -> str:
    """A run's name, made from the last two parts of its output directory."""
    parts = [part for part in output_dir.split("/") if part][-2:]
    return re.sub(r"[^\w.-]", "_", "-".join(parts)) or "run"


def _elsewhere(value: Any, alias: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _elsewhere(item, alias) for key, item in value.items()}
    if isinstance(value, list):
        return [_elsewhere(item, alias) for item in value]
    return alias(value) if isinstance(value, str) else value


def dump_yaml(plan: Mapping[str, Any]) -> str:
    """Returns plain data as YAML in a fixed layout."""
    text: str = yaml.dump(
        plan,
        Dumper=PlanDumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=1_000_000,
    )
    return text
