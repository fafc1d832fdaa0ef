"""``nnodes``, ``node_rank`` and ``rdzv``: how many nodes a run has, and how they find each other.

With ``nnodes: auto`` what the config does not say comes from the environment, setting by setting.
None of that is in a plan: there stands what the config says, so that it is the same on all nodes
and wherever it is reviewed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from msgspec import field

from lllaunch.cluster.address import (
    format_endpoint,
    format_nnodes,
    is_ipv6,
    parse_conf,
    parse_endpoint,
    parse_nnodes,
)
from lllaunch.config.fields import (
    Settings,
    did_you_mean,
    hinted,
    read_choice,
    read_count,
    read_word,
)
from lllaunch.config.kinds import Kind, Node
from lllaunch.config.tree import Tree, conceal, has_secrets, reveal
from lllaunch.config.values import format_duration, parse_duration
from lllaunch.errors import Unfit
from lllaunch.spec import (
    RDZV_BACKENDS,
    Detected,
    Discreet,
    Entrypoint,
    Launch,
    Nodes,
    Path,
    RdzvBackend,
    Resources,
)

AUTO: Final = "auto"
NO_ID = "none"
"""What a run of several nodes is called that nobody has given a name, as torchrun calls it."""
SYNONYMS = {
    "rdzv_backend": "backend",
    "rdzv_endpoint": "endpoint",
    "rdzv_id": "id",
    "rdzv_conf": "conf",
    "master_addr": "endpoint",
    "local_addr": "interface",
}

PORTS: Mapping[RdzvBackend, int] = {"static": 29500, "c10d": 29400, "etcd-v2": 2379}
"""Of an endpoint without one: torch's own, and for ``static`` that of torchrun's --master-port."""

_COUNT = "a number of nodes (1, 2, ... or auto, or '1:4' for 1 to 4 of them)"
_INTERFACE = re.compile(r"[^\s/:]{1,15}")
_ENDPOINT = "an endpoint (host:port)"
# Of torch's settings those that have a place of their own, and may stand there all the same: they
# are in the --rdzv-conf of everybody's torchrun.
_TIMEOUTS = {"timeout": "timeout", "read_timeout": "timeout", "join_timeout": "join_timeout"}

_TIMES = ("timeout", "join_timeout")

_Value = str | int | float | bool


class HostContext(Discreet, frozen=True, kw_only=True):
    """All that a run depends on beside the nodes of its config."""

    runtime_cwd: str = ""
    output_dir: str = ""
    # the dotted key of the job's node, and of one such as ``hydra.launcher`` whose settings named
    # in `LAUNCH_FIELDS` are weaker than that and stronger than the schema's defaults
    key: str = "launch"
    outer: str = ""
    # how many threads each worker has, by their number and what each needs; 0: as torchrun does it
    threads: Callable[[int, Resources], int] = lambda *_: 0
    job_cwd: str = ""  # where workers work if the config does not say it; empty for ``runtime_cwd``
    searched: Sequence[str] = ()  # directories and packages of configs, for a message
    # what workers run instead of the configured entrypoint, its modules, and whether workers can
    # only be forked with it
    function: Entrypoint | None = None
    preload: tuple[str, ...] = ()
    forked: bool = False
    entrypoint_required: bool = True  # False: an app's function is run, and the config names none
    # whether the app knows nothing of lllaunch. Then literals under names that say secret are
    # hidden, but refused in our own nodes only
    users_own: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    sys_path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    nvml: Any = None
    # False where nothing is to run: CPUs and GPUs are not counted, and where the number of workers
    # depends on them it is 1. Arguments and variables may ask for what the environment has not
    here: bool = True
    submitted: bool = False  # whether this is the job on the cluster that the run has become
    quiet: bool = False  # whatever the config says, nothing is said of what goes well


class NodeSettings(NamedTuple):
    """What a config says of nodes, and what was found where it leaves that to the environment."""

    nodes: Nodes | None = None  # of the run; None if it has one, or where that is not looked up
    detected: tuple[Detected, ...] = ()
    leaves_nproc: bool = False  # whether the number of workers is left to it, too
    nproc: int | str | None = None  # that number, or a word for it; None if nothing says
    rdzv_id: str = ""
    sources: Mapping[Path, Any] = {}


_Said = Mapping[str, Any]
"""What ``rdzv`` says, by the names of `RDZV`; the endpoint as a host and a port or None."""


def _nodes(counts: tuple[int, int], rank: int | None, said: _Said) -> Nodes:
    """Return the nodes of a run; without an endpoint they have no host."""
    backend = said.get("backend", RDZV_DEFAULTS["backend"])
    host, port = said.get("endpoint", ("", None))
    return Nodes(
        *counts,
        node_rank=rank,
        backend=backend,
        host=host,
        port=PORTS[backend] if port is None else port,
        rdzv_id=said.get("id", ""),
        conf=said.get("conf", {}),
        interface=said.get("interface"),
        **{name: said[name] for name in _TIMES if name in said},
    )


def read_nodes(settings: Settings, around: HostContext) -> NodeSettings:
    """Reads ``nnodes``, ``node_rank`` and ``rdzv``."""
    findings = settings.findings
    before = findings.count
    counts = settings.scalar("nnodes", read_nnodes, None)
    rank = settings.scalar("node_rank", read_count, None)
    said = _read_rdzv(settings)
    if counts is None or findings.count > before:
        return NodeSettings()
    sources = _sources(settings, said, rank, auto=counts == AUTO)
    found = NodeSettings(rdzv_id=said.get("id", ""), sources=sources)
    if counts != AUTO:
        return found._replace(nodes=_checked(settings, _nodes(counts, rank, said)))
    found = found._replace(leaves_nproc=not settings.is_given("nproc"))
    return _placed(settings, said, rank, found, around.environ) if around.here else found


def _placed(
    settings: Settings,
    said: _Said,
    rank: int | None,
    left: NodeSettings,
    environ: Mapping[str, str],
) -> NodeSettings:
    """Return what a config that leaves its nodes to the environment comes to here."""
    # of no use to a run on one machine
    from lllaunch.cluster.detect import detect  # noqa: PLC0415

    key, word = settings.key_of("nnodes"), settings["nnodes"]
    attempt = partial(settings.findings.attempt, key, word)
    placement = attempt(lambda _: detect(environ))
    given_conf = {} if placement is None or "conf" in said else placement.conf
    split = attempt(lambda _: _split(given_conf))
    if placement is None or split is None:
        return left
    conf, times = split
    # setting by setting, what the config says is stronger
    around = {
        **times,
        "backend": placement.backend,
        "endpoint": (placement.host, placement.port) if placement.host else None,
        "id": placement.rdzv_id or None,
        "conf": conf,
    }
    merged = {**{name: value for name, value in around.items() if value is not None}, **said}
    counts = placement.min_nodes, placement.max_nodes
    own_rank = placement.node_rank if rank is None else rank
    nodes = _checked(settings, _nodes(counts, own_rank, merged))
    if nodes is not None and nodes.node_rank is None and nodes.backend == "c10d":
        expected = "this node's number, as nothing in the environment says it"
        _refuse(settings, "node_rank", expected, "set it on each node; node 0 holds the rendezvous")
    given = {f"rdzv.{name}" for name in said}
    given |= {"node_rank"} if rank is not None else set()
    given |= set() if left.leaves_nproc else {"nproc"}
    detected = [
        each
        for each in placement.detected
        if each.setting not in given and (nodes is not None or each.setting in {"nnodes", "nproc"})
    ]
    rdzv_id = left.rdzv_id if nodes is None else nodes.rdzv_id
    return left._replace(
        nodes=nodes, detected=tuple(detected), nproc=placement.nproc, rdzv_id=rdzv_id
    )


def _checked(settings: Settings, nodes: Nodes) -> Nodes | None:
    """Return the nodes of a run, None if it has one; notes what does not go together."""
    most = nodes.max_nodes
    several = f"launch.nnodes is {format_nnodes(nodes.min_nodes, most)}"
    if nodes.node_rank is not None and nodes.node_rank >= most:
        numbers = "0" if most == 1 else f"a number from 0 to {most - 1}"
        hint = "set nnodes" if most == 1 else "the first node is 0"
        _refuse(settings, "node_rank", f"{numbers}, as {several}", hint)
    if most == 1:
        return None
    if not nodes.host:
        etcd = nodes.backend == "etcd-v2"
        which = "the etcd server" if etcd else "node 0, the same on all nodes"
        tree = _tree(settings)
        settings.findings.add(
            f"{settings.key_of('rdzv')}.endpoint",
            tree.get("endpoint") if isinstance(tree, dict) else tree,
            Unfit(f"{_ENDPOINT}, as {several}", f"give the address of {which}", code="endpoint"),
        )
    if nodes.backend == "static":
        static = "as launch.rdzv.backend is static"
        if nodes.min_nodes != most:
            _refuse(settings, "nnodes", f"one number, {static}", "use c10d for a range")
        if nodes.node_rank is None:
            numbers = f"a number from 0 to {most - 1}, {static}"
            _refuse(settings, "node_rank", numbers, "set it on each node")
    return nodes


def _refuse(settings: Settings, name: str, expected: str, hint: str) -> None:
    settings.findings.add(
        settings.key_of(name), settings[name], Unfit(expected, hint, code="nodes")
    )


def read_nnodes(value: object) -> Literal["auto"] | tuple[int, int]:
    """Read ``nnodes``: the least and the most, or ``auto``; raises `Unfit` for anything else."""
    word = value.strip().lower() if isinstance(value, str) else ""
    if word == AUTO:
        return AUTO
    return hinted(partial(parse_nnodes, expected=_COUNT), did_you_mean(word, [AUTO]))(value)


def _read_rdzv(settings: Settings) -> _Said:
    key, findings = settings.key_of("rdzv"), settings.findings
    values = Node(dict, RDZV, synonyms=SYNONYMS).values(_tree(settings), key, findings)
    if "conf" not in values:
        return values
    conf, times = values["conf"]
    return {**times, **values, "conf": conf}


def _tree(settings: Settings) -> Tree:
    """Return what somebody has set: what a default says the environment may say as well."""
    return settings["rdzv"] if settings.is_given("rdzv") else None


def _split(conf: Mapping[str, _Value]) -> tuple[dict[str, _Value], dict[str, float]]:
    """Return torch's settings without those that have a place of their own, and these."""
    rest = {name: value for name, value in conf.items() if name not in _TIMEOUTS}
    known = conf.items() - rest.items()
    return rest, {_TIMEOUTS[name]: _read_time(value) for name, value in known}


_read_time = partial(parse_duration, zero=False)


def _read_interface(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    address = is_ipv6(text) or re.fullmatch(r"\d+(\.\d+){3}", text)
    if address or not _INTERFACE.fullmatch(text) or not text.isprintable():
        raise Unfit("the name of a network interface (ib0, eth0), not its address", code="nodes")
    return text


RDZV: Mapping[str, Kind] = {
    "backend": Kind(partial(read_choice, choices=RDZV_BACKENDS)),
    "endpoint": Kind(parse_endpoint, lambda where: format_endpoint(*where)),
    "id": Kind(read_word),
    "conf": Kind(lambda value: _split(parse_conf(value)), dict),
    "interface": Kind(_read_interface),
    "timeout": Kind(_read_time, format_duration),
    "join_timeout": Kind(_read_time, format_duration),
}


RDZV_DEFAULTS: Mapping[str, Any] = {name: Launch.rdzv.default[name] for name in RDZV}
"""What a plan has where nothing is said."""


def _sources(settings: Settings, said: _Said, rank: int | None, *, auto: bool) -> dict[Path, Any]:
    """Return what stands in a plan: what the config says, whatever it comes to on a machine."""
    tree = _tree(settings)
    items = tree if isinstance(tree, dict) else {}
    if "endpoint" in said and not auto:
        host, port = said["endpoint"]
        default = PORTS[said.get("backend", RDZV_DEFAULTS["backend"])]
        said = {**said, "endpoint": (host, default if port is None else port)}
    # null is what the environment may say: no default, which is what the config says
    written = dict.fromkeys(RDZV) if auto else dict(RDZV_DEFAULTS)
    written |= {name: RDZV[name].write(value) for name, value in said.items()}
    if has_secrets(items.get("conf")):
        # where these may stand as well
        written |= dict.fromkeys(name for name in _TIMES if reveal(items.get(name)) is None)
    written = {name: conceal(value) for name, value in written.items()}
    written |= {name: conceal(item) for name, item in items.items() if has_secrets(item)}
    if auto:
        return {("nnodes",): AUTO, ("node_rank",): rank, ("rdzv",): written}
    return {("rdzv",): written} if written != RDZV_DEFAULTS else {}
