"""From a composed config to a `LaunchSpec`: all is checked, and all that is wrong told at once.

Hydra composes the job's node over one in which nothing is set (`lllaunch.config.schema`), so what
is not null there somebody has set, to the default or not.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from lllaunch.config.cluster import ClusterNode, read_cluster, refuse_other
from lllaunch.config.command import (
    EntrypointCall,
    SearchPlace,
    check_preload,
    read_call_of,
    read_preflight,
    why_empty,
)
from lllaunch.config.fields import (
    Findings,
    Settings,
    known_items,
    read_directory,
    read_line,
    read_new_directory,
)
from lllaunch.config.kinds import KINDS, check_replaced, with_on
from lllaunch.config.locate import import_path
from lllaunch.config.nodes import NO_ID, HostContext, NodeSettings, read_nodes
from lllaunch.config.plan import default_run_id
from lllaunch.config.read import (
    CLUSTER,
    Reader,
    check_resolver,
    cluster_key,
    problems_with,
    register_resolvers,
)
from lllaunch.config.schema import EXPLAINED, SYNONYMS, defaults, is_set
from lllaunch.config.tree import BROKEN, Tree, Withheld, conceal, has_secrets, leaf_items, reveal
from lllaunch.config.values import (
    Mask,
    check_mask,
    check_within,
    count_cpus,
    count_gpus,
    joined,
    nproc_word,
    overlap,
    parse_mask,
    parse_nproc,
    parse_ranks,
)
from lllaunch.errors import Unfit
from lllaunch.spawner.interpreter import is_of_contract
from lllaunch.spec import (
    KEYS,
    LAUNCH_FIELDS,
    SETTINGS,
    THREADS,
    LaunchSpec,
    Nodes,
    Path,
    Preflight,
    Std,
    names_in,
    rank_key,
)
from lllaunch.text import write_range

if TYPE_CHECKING:
    from omegaconf import DictConfig


def read_env(tree: Tree, key: str, findings: Findings) -> dict[str, Tree]:
    """Read variables: text or whole numbers by name, sorted; secrets are withheld."""
    env = {}
    for name, value in findings.mapping(key, tree, "a mapping of variables (NAME: value)").items():
        where = f"{key}.{name}"
        known = findings.attempt(where, name, _name)
        text = findings.attempt(where, value, _text)
        if known is not None and text is not None:
            env[known] = Withheld(text, value.source) if isinstance(value, Withheld) else text
    return dict(sorted(env.items()))


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name or "=" in name or "\0" in name:
        raise Unfit("the name of a variable, text without '=' and NUL", code="variable")
    if is_of_contract(name):
        raise Unfit(
            "a variable that the launcher does not set for each worker",
            "leave it out",
            code="variable",
        )
    return name


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        hint = "quote it (in a shell NAME=\"'...'\"), or leave it out"
        raise Unfit("text", hint, code="variable")
    text = str(value)
    if "\0" in text:
        raise Unfit("text without NUL characters", code="variable")
    return text


def read_env_per_rank(
    tree: Tree, key: str, nproc: int | None, findings: Findings
) -> dict[range, dict[str, Tree]]:
    """Read variables by local ranks, in their order; ``nproc`` is None if it is not known."""
    env: list[tuple[range, dict[str, Tree]]] = []
    expected = "a mapping of local ranks to variables (0: {NAME: value})"
    for ranks, variables in findings.mapping(key, tree, expected).items():
        where = f"{key}.{ranks}"
        numbers = findings.attempt(where, ranks, partial(_ranks, nproc=nproc))
        own = read_env(variables, where, findings)
        env += [] if numbers is None else [(numbers, own)]
    shared = overlap([ranks for ranks, _ in env])
    if shared:
        first, second = (write_range(ranks) for ranks in shared)
        findings.add_about(
            key, f"expected each rank at most once, got {first} and {second}", code="ranks"
        )
    return dict(sorted(env, key=lambda item: item[0].start))


def _ranks(value: object, nproc: int | None) -> range:
    ranks = parse_ranks(value)
    if nproc is not None:
        check_within(ranks, nproc)
    return ranks


def _read_layers(reader: Reader, findings: Findings, key: str, outer: str = "") -> Settings:
    """Read all settings: those under ``key``, the weaker ones under ``outer``, the defaults.

    Raises:
        ConfigError: the launch node is not a mapping.
    """
    node = reader.read(key)
    if node is not None and not isinstance(node, dict):
        expected = "a mapping of settings (entrypoint, nproc, ...)"
        findings.add(key, node, Unfit(expected, code="type"))
        findings.raise_if_any()
    own = known_items(node or {}, key, KEYS, findings, SYNONYMS, EXPLAINED)
    weaker = reader.items(outer, LAUNCH_FIELDS) if outer else {}
    for where, items, names in ((key, own, KEYS), (outer, weaker, LAUNCH_FIELDS)):
        if items.keys() == set(names):
            # Hydra has composed it over the schema
            check_replaced(items["watchdog"], f"{where}.watchdog", findings)
    own, weaker = (
        {name: value for name, value in items.items() if is_set(reveal(value))}
        for items in (own, weaker)
    )
    tree = {**defaults(), **weaker, **own}
    tree["restart"] = with_on(tree["restart"])
    inherited = weaker.keys() - own.keys()
    keys = {name: f"{outer if name in inherited else key}.{name}" for name in KEYS}
    return Settings(tree, keys, findings, given=weaker.keys() | own.keys())


def _build(
    settings: Settings, around: HostContext, cluster: ClusterNode | None, root: Mapping[Any, Any]
) -> LaunchSpec:
    """Read all settings; the spec is of use only if nothing was found."""
    findings = settings.findings
    env = read_env(settings["env"], settings.key_of("env"), findings)
    nodes = read_nodes(settings, around)
    nproc = _read_nproc(settings, env, nodes, around)
    key = settings.key_of("env_per_rank")
    env_per_rank = read_env_per_rank(settings["env_per_rank"], key, nproc, findings)
    read_cwd = partial(read_directory, runtime_cwd=around.runtime_cwd, made=around.output_dir)
    cwd = settings.scalar("cwd", read_cwd, "")
    place = _place(cwd or around.runtime_cwd, env, env_per_rank, nproc, around)
    call = _read_call(settings, place, around, root, nproc)
    entrypoint = around.function or call.entrypoint
    preflight, preflight_command = read_preflight(settings, place)
    preload = settings.each("preload", lambda v: check_preload(v, place.sys_path, here=around.here))
    masks: dict[str, Mask] = {}
    for name in ("redirects", "tee"):
        mask = parse_mask(settings[name], settings.key_of(name), findings) or Mask()
        if nproc is not None:
            check_mask(mask, settings[name], settings.key_of(name), nproc, findings)
        masks[name] = mask
    files, tee = (mask.by_rank(nproc or 1) for mask in masks.values())
    read_log_dir = partial(read_new_directory, runtime_cwd=around.runtime_cwd)
    shown = settings.each("local_ranks_filter", partial(_ranks, nproc=nproc))
    derived_id = default_run_id(around.output_dir)
    run_id = settings.scalar("run_id", read_line, nodes.rdzv_id or derived_id)
    group = nodes.nodes
    if group is not None and not group.rdzv_id:
        # a name that was made from the directory is another one on each node
        group = replace(group, rdzv_id=run_id) if run_id not in (derived_id, NO_ID) else group
        run_id = group.rdzv_id or NO_ID
    # workers elsewhere import from the directory of the command, too
    workers_cwd = cwd or around.job_cwd or around.runtime_cwd
    derived_env: dict[str, str] = {}
    imports = preload or around.preload or entrypoint.form in {"function", "module"}
    if workers_cwd != around.runtime_cwd and imports:
        given = reveal(env.get("PYTHONPATH")) or around.environ.get("PYTHONPATH", "")
        paths = filter(None, (around.runtime_cwd, given))
        derived_env["PYTHONPATH"] = os.pathsep.join(paths)
    plain = _read_plain(settings, around)
    if plain["resources"] is not None and not {*around.environ, *env} & {THREADS}:
        threads = around.threads(nproc or 1, plain["resources"])
        derived_env |= {THREADS: str(threads)} if threads else {}
    passed = {
        "args": dict(call.kwargs) or list(call.args),
        "env": env,
        "env_per_rank": {rank_key(ranks): own for ranks, own in env_per_rank.items()},
        "preflight": {"command": preflight_command},
    }
    secrets = dict(_secrets_in(settings, passed))
    secrets.update({} if cluster is None else cluster.secrets)
    sources = {**nodes.sources, **{path: conceal(tree) for path, tree in secrets.items()}}
    # null: the config says nothing, and whatever starts the nodes may
    word = None if nodes.leaves_nproc else nproc_word(reveal(settings["nproc"]))
    if word != "":  # the machine decides, and plans are the same on all
        sources |= {("nproc",): word, **{(name,): mask.text for name, mask in masks.items()}}
    id_of_group = settings["rdzv"].get("id") if isinstance(settings["rdzv"], dict) else None
    if has_secrets(id_of_group) and not settings.is_given("run_id"):
        sources["run_id",] = conceal(id_of_group)
    return LaunchSpec(
        **plain,
        entrypoint=entrypoint,
        args=tuple(reveal(list(call.args))),
        arg_keys=call.arg_keys,
        kwargs=reveal(dict(call.kwargs)),
        nproc=nproc or 1,
        nodes=group,
        detected=nodes.detected,
        cwd=workers_cwd,
        # that of one job is none that the jobs of a sweep could share a spawner in
        spawner_cwd="" if cwd or not around.job_cwd else around.runtime_cwd,
        preload=preload,
        derived_preload=around.preload,
        derived_env=derived_env,
        preflight=preflight,
        env=reveal(env),
        env_per_rank={ranks: reveal(own) for ranks, own in env_per_rank.items()},
        output_dir=around.output_dir,
        runtime_cwd=around.runtime_cwd,
        cluster=None if cluster is None else cluster.cluster,
        run_id=run_id,
        log_dir=settings.scalar("log_dir", read_log_dir, around.output_dir),
        # what is shown is read from the file
        redirects={rank: Std(std | tee[rank]) for rank, std in files.items()},
        tee=tee,
        local_ranks_filter=None if settings["local_ranks_filter"] is None else joined(shown),
        sources=sources,
        withheld=tuple(_withheld(secrets, call, preflight)),
    )


def _read_plain(settings: Settings, around: HostContext) -> dict[str, Any]:
    """Read the settings that are what a row of `KINDS` makes of them."""
    plain: dict[str, Any] = {}
    for each in SETTINGS:
        name, kind = each.name, KINDS.get(each.kind)
        if kind is None:
            continue
        if kind.whole:
            plain[name] = kind.read(settings[name], settings.key_of(name), settings.findings)
        else:
            plain[name] = settings.scalar(name, kind.read, None)
    if around.quiet:
        plain["console"] = replace(plain["console"], quiet=True)
    if around.forked:
        message = "needs a function that workers can import"
        hint = "put the function at the top level of its module, or leave start_method out"
        if plain["start_method"] == "spawn":
            unfit = Unfit(message=message, hint=hint, code="start-method")
            settings.findings.add(settings.key_of("start_method"), "spawn", unfit)
        plain["start_method"] = "fork"
    return plain


_MAPPINGS = frozenset({"watchdog", "restart", "resources", "rdzv"})


def _secrets_in(settings: Settings, passed: Mapping[str, Tree]) -> Iterator[tuple[Path, Tree]]:
    """Yield the parts of settings that hold secrets, by path in a plan.

    What workers are ``passed`` is taken apart leaf by leaf, a mapping of settings by its keys,
    unless its preset is a secret: what that says is not written either.
    """
    for name in KEYS:
        tree = settings[name]
        if name in passed:
            leaves = leaf_items(passed[name], (name,))
            yield from (item for item in leaves if isinstance(item[1], Withheld))
        elif name in _MAPPINGS and isinstance(tree, dict) and not has_secrets(tree.get("preset")):
            yield from (((name, part), item) for part, item in tree.items() if has_secrets(item))
        elif has_secrets(tree):
            yield (name,), tree


def _withheld(
    secrets: Mapping[Path, Tree], call: EntrypointCall, preflight: Preflight | None
) -> Iterator[tuple[Path, str, str]]:
    """Yield which of them are in no setting of the launcher's own, as `LaunchSpec` has them."""
    for path, leaf in secrets.items():
        if path[0] not in {"args", "env", "env_per_rank", "preflight", CLUSTER}:
            continue
        words: Sequence[Any] = [leaf.value]
        if path == ("preflight", "command") and preflight is not None:
            # text that was taken apart: its own words are in its source
            words = [word for word in preflight.command if word not in leaf.source]
        if path[0] == "args" and call.arg_keys:
            path = ("args", *call.arg_keys[cast("int", path[1])], *path[2:])  # noqa: PLW2901
        yield from ((path, str(word), leaf.source) for word in words)


def _read_nproc(
    settings: Settings, env: Mapping[str, Tree], nodes: NodeSettings, around: HostContext
) -> int | None:
    name = "CUDA_VISIBLE_DEVICES"
    visible = reveal(env[name]) if name in env else around.environ.get(name)

    def gpus() -> int:
        return count_gpus(visible, around.nvml, around.environ)

    def read(value: object) -> int | None:
        if nproc_word(value) and not around.here:
            return None
        return parse_nproc(value, cpus=count_cpus, gpus=gpus)

    if not nodes.leaves_nproc:
        return settings.scalar("nproc", read, None)
    if nodes.nproc is None:
        return 1 if around.here else None
    return settings.findings.attempt(settings.key_of("nproc"), nodes.nproc, read)


def _place(
    cwd: str,
    variables: dict[str, Tree],
    per_rank: dict[range, dict[str, Tree]],
    nproc: int | None,
    around: HostContext,
) -> SearchPlace:
    env = reveal(variables)
    common = {"PATH": os.defpath, **around.environ, **env}["PATH"]
    paths = {reveal(own.get("PATH", common)) for own in per_rank.values()}
    if sum(map(len, per_rank)) < (nproc or 1):
        paths.add(common)
    return SearchPlace(
        runtime_cwd=around.runtime_cwd,
        sys_path=import_path(cwd, around.runtime_cwd, around.sys_path, env.get("PYTHONPATH", "")),
        search_paths=tuple(path for path in sorted(paths) if not names_in(path)),
    )


def _read_call(
    settings: Settings,
    place: SearchPlace,
    around: HostContext,
    root: Mapping[Any, Any],
    nproc: int | None,
) -> EntrypointCall:
    entrypoint, findings = settings["entrypoint"], settings.findings
    if around.function is not None or not around.entrypoint_required:
        for name in ("entrypoint", "args"):
            value = settings[name]
            if reveal(value) not in (None, "", [], {}):
                message = "is not used here: what the workers run is the decorated function"
                unfit = Unfit(message=message, hint="leave it out", code="own-app")
                findings.add(settings.key_of(name), value, unfit)
        return EntrypointCall()
    call = EntrypointCall()
    if reveal(entrypoint) in (None, ""):
        unfit = why_empty(root, around.key, around.searched)
        findings.add(settings.key_of("entrypoint"), entrypoint, unfit)
    elif entrypoint is not BROKEN:
        call = read_call_of(entrypoint, settings["args"], place, around.key, findings)
        if call.entrypoint.form == "script" and is_own_app(call.entrypoint.name):
            # each worker would be a launcher
            message = "is an lllaunch.main app, which launches its workers itself"
            workers = [] if nproc in (None, 1) else [f"launch.nproc={nproc}"]
            words = ["python", call.entrypoint.text, *workers, *map(conceal, call.args)]
            hint = f"\n  run: {shlex.join(map(str, words))}"
            unfit = Unfit(message=message, hint=hint, code="own-app")
            findings.add(settings.key_of("entrypoint"), entrypoint, unfit)
    return call


def is_own_app(path: str) -> bool:
    """Return whether a script decorates a function with `lllaunch.main`, by its text."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LONGEST_SCRIPT)
    except OSError:
        return False
    imported = re.search(rb"^from lllaunch import [^#\n]*\bmain\b", data, re.MULTILINE)
    decorator = rb"^\s*@(lllaunch\.)?main\b" if imported else rb"^\s*@lllaunch\.main\b"
    return re.search(decorator, data, re.MULTILINE) is not None


_LONGEST_SCRIPT = 4 * 1024 * 1024  # bytes


# Settings that take any text.
_TEXTS = ("args", "env")  # and env_per_rank


def resolve(cfg: DictConfig, around: HostContext) -> LaunchSpec:
    """Decide what a run is; a missing key of the job's node has the schema's default.

    A run that goes to a cluster (its root node ``cluster``) is not to run here, unless this is the
    job that it has become.

    Raises:
        lllaunch.errors.ConfigError: something is wrong; it holds everything that is.
    """
    register_resolvers()
    check_resolver()
    findings = Findings()
    key, outer, users_own = around.key, around.outer, around.users_own
    asked = cluster_key(cfg, users_own=users_own, outer=outer)
    reviewed = around.submitted or not around.here
    here = around.here and (around.submitted or not asked)
    # where nothing is to run, secrets need not be there
    unset = [] if here else [f"{node}.{name}" for node in (key, outer) if node for name in _TEXTS]
    reader = Reader(cfg, findings, outer, unset=unset)
    settings = _read_layers(reader, findings, key, outer)
    cluster: ClusterNode | None = None
    if asked:
        cluster = read_cluster(reader, asked, settings, reviewed=reviewed)
    elif around.function is None and around.entrypoint_required and not users_own:
        # of an app of the user's own it may be anything
        refuse_other(reader, findings)
    spec = _build(settings, replace(around, here=here), cluster, reader.root)
    ours = tuple(f"{node}." for node in (key, outer, asked) if node) if users_own else ("",)
    for problem in problems_with(each for each in reader.secrets if each[0].startswith(ours)):
        findings.note(problem)
    findings.raise_if_any([*(settings.key_of(name) for name in KEYS), CLUSTER])
    return spec


def nodes_ahead(cfg: DictConfig, *, elsewhere: bool = False) -> Nodes | None:
    """Read the nodes of a run alone, before it has a directory.

    None if it has one node, or if something is wrong, which is reported when all is read.
    ``elsewhere``: a run that goes to a cluster has its nodes there.
    """
    if elsewhere and cluster_key(cfg):
        return None
    findings = Findings()
    settings = _read_layers(Reader(cfg, findings), findings, "launch")
    nodes = read_nodes(settings, HostContext()).nodes
    return None if findings.count else nodes
