"""``nnodes``, ``node_rank`` and ``rdzv``: how many nodes a run has, and how they find each other.

With ``nnodes: auto`` what the config does not say comes from the environment, setting by setting.
None of that is in a plan: there stands what the config says, so that it is the same on all nodes
and wherever it is reviewed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from omegaconf import DictConfig, OmegaConf

from lllaunch.cluster.values import (
    format_endpoint,
    format_nnodes,
    is_ipv6,
    parse_conf,
    parse_endpoint,
    parse_nnodes,
)
from lllaunch.config.fields import (
    Findings,
    Settings,
    did_you_mean,
    mapping_items,
    read_choice,
    read_count,
    read_word,
)
from lllaunch.config.kinds import Kind, read_fields
from lllaunch.config.read import Reader
from lllaunch.config.schema import defaults
from lllaunch.config.tree import Tree, conceal, has_secrets, reveal
from lllaunch.config.values import HostContext, format_duration, parse_duration
from lllaunch.errors import Unfit
from lllaunch.launch_settings import KEYS
from lllaunch.spec import RDZV_BACKENDS, Detected, Nodes, Path, RdzvBackend

if TYPE_CHECKING:
    from lllaunch.cluster.detect import Placement

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
    "read_timeout": "timeout",
    "nnodes": "launch.nnodes",
    "node_rank": "launch.node_rank",
}
_EXPLAINED = dict.fromkeys(("port", "master_port"), "it is a part of endpoint: host:port")

PORTS: Mapping[RdzvBackend, int] = {"static": 29500, "c10d": 29400, "etcd-v2": 2379}
"""Of an endpoint without one: torch's own, and for ``static`` that of torchrun's --master-port."""

_DEFAULTS = Nodes(1, 2, None, "c10d", "", 0)
_COUNT = "a number of nodes (1, 2, ... or auto, or '1:4' for 1 to 4 of them)"
_INTERFACE = re.compile(r"[^\s/:]{1,15}")
_ENDPOINT = "an endpoint (host:port)"
# Of torch's settings those that have a place of their own, and may stand there all the same: they
# are in the --rdzv-conf of everybody's torchrun.
_TIMEOUTS = {"timeout": "timeout", "read_timeout": "timeout", "join_timeout": "join_timeout"}

_TIMES = ("timeout", "join_timeout")

_Value = str | int | float | bool


class NodeSettings(NamedTuple):
    """What a config says of nodes, and what was found where it leaves that to the environment."""

    nodes: Nodes | None = None  # of the run; None if it has one, or where that is not looked up
    detected: tuple[Detected, ...] = ()
    leaves_nproc: bool = False  # whether the number of workers is left to it, too
    nproc: int | str | None = None  # that number, or a word for it; None if nothing says
    rdzv_id: str = ""
    sources: Mapping[Path, Any] = {}


class _Rdzv(NamedTuple):
    """What ``rdzv`` says; None where it says nothing."""

    backend: RdzvBackend | None = None
    endpoint: tuple[str, int | None] | None = None
    id: str | None = None
    conf: Mapping[str, _Value] | None = None
    interface: str | None = None
    timeout: float | None = None
    join_timeout: float | None = None

    def beside(self, placement: Placement) -> _Rdzv:
        """Return what it and the environment say together: it is stronger, setting by setting."""
        conf, times = _split(placement.conf) if self.conf is None else (self.conf, {})
        host = placement.host
        more: dict[str, Any] = {n: times.get(n) for n in _TIMES if getattr(self, n) is None}
        return self._replace(
            backend=self.backend or placement.backend,
            endpoint=self.endpoint or ((host, placement.port) if host else None),
            id=self.id or placement.rdzv_id or None,
            conf=conf,
            **more,
        )

    def nodes(self, counts: tuple[int, int], rank: int | None) -> Nodes:
        """Return the nodes of a run; without an endpoint they have no host."""
        backend = self.backend or _DEFAULTS.backend
        host, port = self.endpoint or ("", None)
        times = {name: getattr(self, name) for name in _TIMES}
        return Nodes(
            *counts,
            node_rank=rank,
            backend=backend,
            host=host,
            port=PORTS[backend] if port is None else port,
            rdzv_id=self.id or "",
            conf=self.conf or {},
            interface=self.interface,
            **{name: seconds for name, seconds in times.items() if seconds is not None},
        )


def read_nodes(settings: Settings, around: HostContext) -> NodeSettings:
    """Reads ``nnodes``, ``node_rank`` and ``rdzv``."""
    findings = settings.findings
    before = findings.count
    counts = settings.scalar("nnodes", read_nnodes, None)
    rank = settings.scalar("node_rank", read_count, None)
    rdzv = _read_rdzv(settings)
    if counts is None or findings.count > before:
        return NodeSettings()
    sources = _sources(settings, rdzv, rank, auto=counts == AUTO)
    if counts != AUTO:
        nodes = _checked(settings, rdzv.nodes(counts, rank))
        return NodeSettings(nodes, rdzv_id=rdzv.id or "", sources=sources)
    left = NodeSettings(
        leaves_nproc=not settings.is_given("nproc"), rdzv_id=rdzv.id or "", sources=sources
    )
    if not around.here:
        return left
    return _placed(settings, rdzv, rank, left, around.environ)


def nodes_ahead(cfg: DictConfig, environ: Mapping[str, str], key: str = "launch") -> Nodes | None:
    """Read the nodes of a run alone, before it has a directory.

    None if it has one node, or if something is wrong, which is reported when all is read.
    """
    findings = Findings()
    settings = _settings_of(cfg, key, ("nnodes", "node_rank", "rdzv"), findings)
    around = HostContext("", "", key, {}, environ=environ)
    found = read_nodes(settings, around).nodes
    return None if findings.count else found


def count_ahead(
    cfg: DictConfig, findings: Findings, key: str = "launch"
) -> Literal["auto"] | tuple[int, int] | None:
    """Return the least and the most of ``nnodes``, or ``auto``; None if it is wrong."""
    return _settings_of(cfg, key, ("nnodes",), findings).scalar("nnodes", read_nnodes, None)


def _settings_of(cfg: DictConfig, key: str, names: tuple[str, ...], findings: Findings) -> Settings:
    items = Reader(findings).read_items(OmegaConf.select(cfg, key), key, names)
    keys = {name: f"{key}.{name}" for name in KEYS}
    # a key that is null is one that nobody has set
    given = {name: item for name, item in items.items() if item is not None}
    return Settings({**defaults(), **given}, keys, findings, given)


def _placed(
    settings: Settings,
    rdzv: _Rdzv,
    rank: int | None,
    left: NodeSettings,
    environ: Mapping[str, str],
) -> NodeSettings:
    """Return what a config that leaves its nodes to the environment comes to here."""
    # of no use to a run on one machine
    from lllaunch.cluster.detect import detect  # noqa: PLC0415

    key, word = settings.key_of("nnodes"), settings["nnodes"]
    placement = settings.findings.attempt(key, word, lambda _: detect(environ))
    if placement is None:
        return left
    try:
        merged = rdzv.beside(placement)
    except Unfit as unfit:
        wrong = unfit.expected and f"expected {unfit.expected}"
        detail = f"PET_RDZV_CONF: {wrong or unfit.message}"
        message = "cannot be told from the environment"
        settings.findings.add(key, word, Unfit(message=message, detail=detail, code="nodes"))
        return left
    counts = placement.min_nodes, placement.max_nodes
    nodes = _checked(settings, merged.nodes(counts, placement.node_rank if rank is None else rank))
    if nodes is not None and nodes.node_rank is None and nodes.backend == "c10d":
        expected = "this node's number, as nothing in the environment says it"
        _refuse(settings, "node_rank", expected, "set it on each node; node 0 holds the rendezvous")
    given = {f"rdzv.{name}" for name, value in rdzv._asdict().items() if value is not None}
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
    try:
        return parse_nnodes(value)
    except Unfit as unfit:
        if isinstance(value, str) and word.isalpha():
            raise Unfit(_COUNT, did_you_mean(word, [AUTO]), code="nodes") from None
        general = unfit.expected.startswith("a number of nodes (")
        expected = _COUNT if general else unfit.expected
        raise Unfit(expected, unfit.hint, unfit.detail, code=unfit.code) from None


def _read_rdzv(settings: Settings) -> _Rdzv:
    tree, key, findings = _tree(settings), settings.key_of("rdzv"), settings.findings
    items = mapping_items(*(tree, key, RDZV, SYNONYMS, findings), hint=_meant, explained=_EXPLAINED)
    values = read_fields(RDZV, items, key, findings)
    if values.get("conf") is None:
        return _Rdzv(**values)
    conf, times = values["conf"]
    for name, seconds in times.items():
        if values.get(name, seconds) != seconds:
            message = f"says another {name} than {key}.{name}"
            unfit = Unfit(message=message, hint="leave one of them out", code="nodes")
            findings.add(f"{key}.conf", items["conf"], unfit)
    return _Rdzv(**{**times, **values, "conf": conf})


def _tree(settings: Settings) -> Tree:
    """Return what somebody has set: what a default says the environment may say as well."""
    return settings["rdzv"] if settings.is_given("rdzv") else None


def _meant(value: object) -> str:
    if not isinstance(value, str):
        return ""
    name = "backend" if value in RDZV_BACKENDS else "endpoint"
    return f"did you mean {{{name}: {value}}}?"


def _split(conf: Mapping[str, _Value]) -> tuple[dict[str, _Value], dict[str, float]]:
    """Return torch's settings without those that have a place of their own, and these."""
    rest: dict[str, _Value] = {}
    times: dict[str, float] = {}
    for name, value in conf.items():
        if name not in _TIMEOUTS:
            rest[name] = value
            continue
        seconds = _read_time(value)
        if times.setdefault(_TIMEOUTS[name], seconds) != seconds:
            raise Unfit(message="says two timeouts", hint="leave one of them out", code="nodes")
    return rest, times


_read_time = partial(parse_duration, zero=False)


def _read_interface(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if is_ipv6(text) or re.fullmatch(r"\d+(\.\d+){3}", text):
        hint = "name the interface, not its address"
        raise Unfit("the name of a network interface (ib0, eth0)", hint, code="nodes")
    if not _INTERFACE.fullmatch(text) or not text.isprintable():
        raise Unfit("the name of a network interface (ib0, eth0)", code="nodes")
    return text


RDZV: Mapping[str, Kind] = {
    "backend": Kind(partial(read_choice, choices=RDZV_BACKENDS)),
    "endpoint": Kind(parse_endpoint),
    "id": Kind(read_word),
    "conf": Kind(lambda value: _split(parse_conf(value))),
    "interface": Kind(_read_interface),
    "timeout": Kind(_read_time),
    "join_timeout": Kind(_read_time),
}


def written_rdzv(nodes: Nodes) -> dict[str, Any]:
    """All settings of the rendezvous of some nodes, in their order, as a config would say them."""
    return {
        "backend": nodes.backend,
        "endpoint": format_endpoint(nodes.host, nodes.port) if nodes.host else None,
        "id": nodes.rdzv_id or None,
        "conf": dict(nodes.conf),
        "interface": nodes.interface,
        "timeout": format_duration(nodes.timeout),
        "join_timeout": format_duration(nodes.join_timeout),
    }


RDZV_DEFAULTS: Mapping[str, Any] = written_rdzv(_DEFAULTS)
"""What a plan has where nothing is said."""


def _sources(settings: Settings, rdzv: _Rdzv, rank: int | None, *, auto: bool) -> dict[Path, Any]:
    """Return what stands in a plan: what the config says, whatever it comes to on a machine."""
    written = written_rdzv(rdzv.nodes((1, 2), None))
    tree = _tree(settings)
    items = tree if isinstance(tree, dict) else {}
    if auto:
        # null is what the environment may say: no default, which is what the config says
        written |= dict.fromkeys(name for name in RDZV if getattr(rdzv, name) is None)
        if rdzv.endpoint is not None:
            # its port may depend on the backend
            written["endpoint"] = format_endpoint(*rdzv.endpoint)
    if has_secrets(items.get("conf")):
        # where these may stand as well
        written |= dict.fromkeys(name for name in _TIMES if reveal(items.get(name)) is None)
    written = {name: conceal(value) for name, value in written.items()}
    written |= {name: conceal(item) for name, item in items.items() if has_secrets(item)}
    if auto:
        return {("nnodes",): AUTO, ("node_rank",): rank, ("rdzv",): written}
    return {("rdzv",): written} if written != RDZV_DEFAULTS else {}
