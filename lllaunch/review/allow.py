"""Holds a run against the allowlist of its project, ``conf/lllaunch.yaml``.

That is never composed: no override, no group and no defaults list can change it. It comes from the
top of the working tree, or LLLAUNCH_POLICY names it.

Judged is what things resolve to: the file behind a link, the module that defines a function, the
program on PATH. What cannot be told without importing it, or is an interpolation, is allowed only
by a pattern that is the very same text.

Python's `logging.config` calls factories, makes classes, and imports whatever a text of the form
``ext://`` names, anywhere in what it is given. That is Hydra's node, resolved, so that is judged.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lllaunch.cluster.address import parse_endpoint
from lllaunch.config.document import expect_record, parse, read_text, wrong
from lllaunch.config.fields import Findings
from lllaunch.config.locate import Objects, import_path, locate_main
from lllaunch.config.omegaconf_compat import interpolations, own_node, raw_value
from lllaunch.config.read import Reader, mentions_env, watching
from lllaunch.config.tree import DEEPEST, MOST_VALUES, conceal, show, written_key
from lllaunch.documents import Record
from lllaunch.errors import Diagnostic
from lllaunch.files import is_below
from lllaunch.hydra_compat import BASIC_LAUNCHER, BASIC_SWEEPER
from lllaunch.review.paths import POLICY_FILE, POLICY_VARIABLE
from lllaunch.spec import Entrypoint, LaunchSpec, rank_key
from lllaunch.text import shorten

if TYPE_CHECKING:
    from omegaconf import DictConfig


class Forms(NamedTuple):
    """What a pattern may fit."""

    names: tuple[str, ...] = ()
    file: str = ""  # path, relative to the tree if in it, else absolute; empty if there is none
    exact: str = ""  # a name that only the same text allows: what is there may be something else


def is_within(path: str, patterns: Iterable[str]) -> bool:
    """Whether a directory, or what is in it, fits one of some patterns."""
    return any(fits(each, path) or fits(each, f"{path}/") for each in patterns)


def fits(pattern: str, text: str) -> bool:
    """Whether a text fits a pattern; it always fits itself."""
    return pattern == text or fnmatchcase(text, pattern)


def fits_any(patterns: Iterable[str], forms: Forms) -> bool:
    """Whether one of the forms of something fits one of some patterns."""
    for each in patterns:
        of_files = not each.startswith("-m ") and ("/" in each or each.endswith(".py"))
        named = not of_files and any(fits(each, name) for name in forms.names)
        if named or (forms.exact and each == forms.exact):
            return True
        # a star that begins a pattern does not lead out of the tree
        here = forms.file and each.startswith("/") == forms.file.startswith("/")
        if (of_files or each == "*") and here and fits(each, forms.file):
            return True
    return False


class Policy(Record, frozen=True, forbid_unknown_fields=True):
    """What may be run: lists of patterns. What no pattern fits may not."""

    # functions (``package.module:name``), modules (``-m package.module``) and scripts (paths)
    entrypoints: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()  # names on PATH, or paths
    preload: tuple[str, ...] = ()
    callbacks: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()  # other targets
    searchpath: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # variables that are refused otherwise, such as ``PYTHONHASHSEED``
    # absolute paths outside of the tree where workers may work and write, and of log files outside
    # of the run's directory
    paths: tuple[str, ...] = ()
    # where nodes may meet (``launch.rdzv.endpoint``): names or addresses
    hosts: tuple[str, ...] = ()
    # lines that run in batch jobs (``cluster.setup``, ``cluster.teardown``), and words for srun and
    # sbatch (``cluster.srun_args``, ``cluster.additional_parameters``)
    cluster: tuple[str, ...] = ()
    file: str = POLICY_FILE


class _PolicyFile(Record, frozen=True, forbid_unknown_fields=True):
    allow: Policy


def read_policy(path: str) -> Policy:
    """Read a policy; raises a `ConfigError` if something is wrong with it."""
    return parse_policy(read_text(path), path)


def parse_policy(text: str, path: str) -> Policy:
    """Reads the text of a policy; `read_policy` tells what is raised."""
    document = parse(text, path)
    hint = "an allowlist is 'allow: {...}', a mapping of lists of patterns"
    policy = expect_record(document, _PolicyFile, path, "policy", hint).allow
    for place, each in enumerate(policy.paths):
        if not each.startswith("/"):
            line = document.lines.nearest(["allow", "paths", place])
            message = f"allow.paths: expected an absolute path, got {each!r}"
            hint = "those in the tree are allowed anyway"
            raise wrong(path, line, message, hint, code="policy")
    return replace(policy, file=path)


Path = tuple[Any, ...]

_LOGGING = ("job_logging", "hydra_logging")  # where Hydra keeps it

# the last two of handlers that are looked at only where a policy has allowed them
_MAKING = frozenset({"()", "class", "queue", "listener"})
# these write to files that are judged, and to the streams of this process
_HARMLESS_CLASSES = (
    *("logging.Formatter", "logging.StreamHandler", "logging.FileHandler", "logging.NullHandler"),
)
_ATTRIBUTES = "."  # of what was made: set after all else, such as the path of a file
_SCHEMES = ("ext://", "cfg://")
_STANDARD = re.compile(r"ext://sys\.std(out|err)")
# of the environment: what the config says cannot make it a name to import
_HARMLESS = re.compile(r"\$\{\s*oc\.env\s*:\s*\w+\s*(?:,[^{}:]*)?\}")


def made_by_logging(config: DictConfig) -> Iterator[tuple[Path, Any, bool]]:
    """Yield what logging is asked to import: where it stands, its text, and whether that is clear.

    It is not if it cannot be resolved, or if variables were read for it: workers may have others.
    """
    hydra = OmegaConf.select(config, "hydra")
    waiting: list[tuple[Path, Any, Any]]
    waiting = [(("hydra",), hydra, name) for name in reversed(_LOGGING) if name in (hydra or ())]
    left = MOST_VALUES
    while waiting:
        above, node, key = waiting.pop()
        path, left = (*above, key), left - 1
        value, told, clear = _resolved_at(node, key)
        if key == _ATTRIBUTES:
            yield path, None, False
        elif OmegaConf.is_config(value) and left > 0 and len(path) < DEEPEST:
            keys = range(len(value)) if OmegaConf.is_list(value) else list(value)
            waiting.extend((path, value, each) for each in reversed(keys))
        elif key in _MAKING:
            ours = value is None or (key == "class" and value in _HARMLESS_CLASSES)
            if not (clear and ours):
                yield path, told, clear
        elif OmegaConf.is_config(value) or isinstance(value, Exception):
            yield path, told, False
        elif str(value).startswith(_SCHEMES) and not _STANDARD.fullmatch(value):
            yield path, told, clear


def _resolved_at(node: Any, key: Any) -> tuple[Any, Any, bool]:
    """Return what is at a key, resolved; what to show of it; and whether that is clear."""
    raw = raw_value(own_node(node, key))
    try:
        with watching("oc.env") as reads:
            value = None if OmegaConf.is_missing(node, key) else node[key]
    except Exception as error:  # noqa: BLE001 - of a resolver, too
        return error, raw, False
    return value, raw if reads else value, not reads


_TARGET = "_target_"
_CALLBACKS = ("hydra", "callbacks")
_SEARCHPATH = ("hydra", "searchpath")
_MAKERS = re.compile(r"\boc\.(create|decode)\b")
# what was typed, for the record
_TYPED = (("hydra", "overrides", "hydra"), ("hydra", "overrides", "task"))
_DIRNAME = ("hydra", "job", "override_dirname")


class Requested(NamedTuple):
    """Something that a config asks for by its name."""

    path: tuple[Any, ...]
    value: Any  # what is asked for; where it was a plain reference to text elsewhere, that text
    lists: tuple[str, ...]  # names of the lists of a policy that may allow it
    clear: bool  # whether the value is what it says, and no interpolation

    @property
    def key(self) -> str:
        """The path, dotted, for a message."""
        return shorten(written_key(self.path))


def asked_for(whole: DictConfig) -> Iterator[Requested]:
    """Returns everything that a config asks for by name.

    That is each ``_target_``, wherever it is; callbacks and search path of Hydra; the factories and
    classes of its logging; and texts that make nodes with a ``_target_`` in them.
    """
    config: Any = OmegaConf.to_container(whole, resolve=False)
    for path, value in walk(config):
        lists = _lists_of(path, value)
        if not lists:
            continue
        told, clear = value, not (isinstance(value, str) and "${" in value)
        if path[-1] == _TARGET and not clear:
            _, told, clear = _resolved_at(functools.reduce(own_node, path[:-1], whole), _TARGET)
        yield Requested(path, told, lists, clear)
    for path, value, clear in made_by_logging(whole):
        yield Requested(path, value, ("targets",), clear)


def _lists_of(path: tuple[Any, ...], value: Any) -> tuple[str, ...]:
    if not path or value in (None, "???") or _is_record(path, value):
        return ()
    if path[-1] == _TARGET:
        if path[:2] != _CALLBACKS:
            return ("targets",)
        # hydra.callbacks.NAME._target_ is the callback; below it is what it is given
        return ("callbacks",) if len(path) == 4 else ("callbacks", "targets")
    if path[:2] == _CALLBACKS and len(path) in {2, 3} and isinstance(value, str):
        return ("callbacks",)  # the whole node comes from somewhere else
    if path[:2] == _SEARCHPATH and not isinstance(value, list):
        return ("searchpath",)
    return ("targets",) if _makes_nodes(value) else ()


def _is_record(path: tuple[Any, ...], value: Any) -> bool:
    return isinstance(value, str) and (path == _DIRNAME or (len(path) == 4 and path[:3] in _TYPED))


def _makes_nodes(value: Any) -> bool:
    """Whether a text may make a node that no walk over the config sees; of a variable it may."""
    if not isinstance(value, str) or "${" not in value:
        return False
    found = interpolations(value)
    if not found:  # too many to be looked at, or none that OmegaConf can read
        return _MAKERS.search(value) is not None
    for each in found:
        makes = each.resolver in {"oc.create", "oc.decode"}
        if makes and not (each.words and _HARMLESS.fullmatch(each.words[0])):
            return True
        if each.resolver is not None and each.made_up:
            return True
    return False


def walk(config: Mapping[Any, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value with its path; a container that stands in several places, once."""
    seen: set[int] = set()
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), config)]
    while waiting:
        path, value = waiting.pop()
        yield path, value
        if not isinstance(value, (Mapping, list, tuple)) or id(value) in seen:
            continue
        seen.add(id(value))
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        waiting.extend(reversed([((*path, key), item) for key, item in items]))


# These make nothing load or run anything: how much, on what, and what is said of it.
HARMLESS_VARIABLES = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("OMP_PROC_BIND", "OMP_PLACES", "TOKENIZERS_PARALLELISM"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING"),
    *("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"),
    *("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "GLOO_SOCKET_IFNAME"),
    *("TORCH_DISTRIBUTED_DEBUG", "TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES"),
    *("PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"),
    *("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "WANDB_MODE"),
)
OWN_TARGETS = {
    ("hydra", "launcher", "_target_"): (
        BASIC_LAUNCHER,
        "hydra_plugins.lllaunch_launcher.launcher.LllaunchLauncher",
    ),
    ("hydra", "sweeper", "_target_"): (
        BASIC_SWEEPER,
        "hydra_plugins.lllaunch_launcher.sweeper.LllaunchSweeper",
    ),
}
"""By their keys: Hydra's and lllaunch's own of the two classes that Hydra always makes."""


_HERE = ("localhost", "127.0.0.1", "::1")
NO_POLICY = Diagnostic(
    *("no-policy", "", "", "is not there, and a locked run needs it: it lists what may run"),
    f"write it, or name another file in {POLICY_VARIABLE}; to allow a script and a preload:\n"
    "    allow:\n      entrypoints: [train.py]\n      preload: [torch]",
    POLICY_FILE,
)
"""What is wrong with a locked run where no policy is."""


def variables_set(config: DictConfig) -> list[str]:
    """Return what ``hydra.job.env_set`` sets, without ``env_copy``, which workers have anyway."""
    node = OmegaConf.select(config, "hydra.job.env_set", throw_on_resolution_failure=False)
    env: Any = OmegaConf.to_container(node, resolve=False) if OmegaConf.is_dict(node) else {}
    return [name for name, value in env.items() if value != f"${{oc.env:{name}}}"]


def unlocked_variables(config: DictConfig) -> list[Diagnostic]:
    """Return which variables Hydra sets for a run; no lock has them."""
    message, hint = "is in no lock, and workers see it", "set it in launch.env"
    return [
        Diagnostic("unlocked-variable", f"hydra.job.env_set.{name}", "", message, hint)
        for name in variables_set(config)
    ]


def check(
    spec: LaunchSpec | None,
    config: DictConfig,
    policy: Policy | None,
    root: str,
    *,
    locked: bool = False,
    entrypoint: bool = True,
) -> list[Diagnostic]:
    """Return what the project does not allow of a run; exit code 5 as a `PlanRefused`.

    ``config`` is the whole composed config, Hydra's node included; without ``spec`` that alone is
    judged, before Hydra acts on it. Without a policy everything is allowed unless ``locked``: the
    run must be a reviewed one. ``entrypoint``: what the workers run is known, and judged.
    """
    if policy is None:
        return [NO_POLICY] if locked else []
    path: Iterable[str] = (os.getcwd(), *sys.path)
    if spec is not None:
        path = import_path(spec.cwd, spec.runtime_cwd, sys.path, spec.env.get("PYTHONPATH", ""))
    judge = _Judge(policy, root, path)
    if spec is not None:
        if entrypoint:
            judge.runs("launch.entrypoint", spec.entrypoint)
        judge.run(spec)
    judge.variables("hydra.job.env_set", variables_set(config))
    for each in asked_for(config):
        judge.expect(each)
    judge.written(written(config))
    return judge.problems


class _Judge:
    def __init__(self, policy: Policy, root: str, sys_path: Iterable[str]) -> None:
        self.problems: list[Diagnostic] = []
        self._policy = policy
        self._root = os.path.realpath(root)
        self._path = tuple(dict.fromkeys(sys_path))
        self._objects = Objects(self._path)

    def runs(self, key: str, entry: Entrypoint) -> None:
        name = "programs" if entry.form == "program" else "entrypoints"
        hidden = mentions_env(entry.text)
        self._judge(key, (name,), " ".join(entry.text.split()), self._forms(entry), hidden=hidden)

    def _judge(
        self, key: str, lists: Sequence[str], text: str, forms: Iterable[Forms], *, hidden: bool
    ) -> None:
        """Refuse a text one of whose forms no pattern of some lists allows."""
        patterns = [each for name in lists for each in getattr(self._policy, name)]
        first = next((each for each in forms if not fits_any(patterns, each)), None)
        if first is None:
            return
        name, wanted = lists[0], next(iter(first.names), first.file) or first.exact
        other = "" if hidden or wanted == text else f"is {shorten(wanted)!r}, which "
        message = f"{other}is not in allow.{name}"
        known = hidden or first.names or first.file
        if not known and any(fits(pattern, wanted) for pattern in patterns):
            why = _MADE_UP if "${" in text else "cannot be told without importing it"
            message = f"{why}, so only the same text in allow.{name} would do"
        self._refuse(key, text and repr(shorten(text)), message, name, "" if hidden else wanted)

    def run(self, spec: LaunchSpec) -> None:
        """Judge what runs beside the entrypoint, where, and with what.

        What comes from the environment is not shown.
        """
        if spec.preflight is not None:
            name, path = spec.preflight.command[0], ("preflight", "command")
            text = spec.sources.get((*path, 0), spec.sources.get(path, name))
            program = Entrypoint("program", spec.preflight.program(spec.runtime_cwd), str(text))
            self.runs("launch.preflight", program)
        for name, path_ in (("log_dir", spec.log_dir), ("cwd", spec.cwd)):
            if path_ != spec.output_dir:
                self.directory(f"launch.{name}", path_, hidden=(name,) in spec.sources)
        for module in spec.preload:
            if not module.startswith("lllaunch."):
                hidden = ("preload",) in spec.sources
                self.ask("launch.preload", "preload", module, hidden=hidden)
        per_rank = spec.env_per_rank.items()
        named = {f"launch.env_per_rank.{rank_key(ranks)}": env for ranks, env in per_rank}
        for key, env in {"launch.env": spec.env, **named}.items():
            self.variables(key, env)
        if spec.nodes is not None:
            # who answers there runs code here: what it stores is unpickled
            name = "rdzv.endpoint"
            found = [each.value for each in spec.detected if each.setting == name]
            known = {"", *_HERE, socket.gethostname(), *(parse_endpoint(each)[0] for each in found)}
            if spec.nodes.host not in known:
                hidden = ("rdzv", "endpoint") in spec.sources
                self.ask(f"launch.{name}", "hosts", spec.nodes.host, hidden=hidden)
        if spec.cluster is not None:
            self.cluster(spec.cluster.settings)

    def cluster(self, settings: Mapping[str, Any]) -> None:
        """Judge what runs in batch jobs beside the run, or says how."""
        asked = []
        for name in ("setup", "teardown", "srun_args"):
            lines = settings.get(name) or ()
            given = [lines] if isinstance(lines, str) else lines
            asked += [(name, str(line)) for line in given]
        for name, value in (settings.get("additional_parameters") or {}).items():
            text = f"--{name}" if value is True else f"--{name}={value}"
            asked.append((f"additional_parameters.{name}", text))
        for name, text in asked:
            # a star would take in whatever else stands on the line
            self.ask(f"cluster.{name}", "cluster", text, exact=True)

    def ask(
        self, key: str, name: str, value: str, *, hidden: bool = False, exact: bool = False
    ) -> None:
        """Refuse what no pattern of a list allows, or with ``exact`` no text."""
        patterns = getattr(self._policy, name)
        if value not in patterns and (exact or not any(fits(each, value) for each in patterns)):
            shown = "" if hidden or key.endswith(f".{value}") else repr(shorten(value))
            self._refuse(key, shown, f"is not in allow.{name}", name, "" if hidden else value)

    def _forms(self, entry: Entrypoint) -> list[Forms]:
        if entry.form == "program":
            if "/" in entry.name:
                return [Forms(file=self._place(entry.name))]
            found = shutil.which(entry.name, path=os.environ.get("PATH") or os.defpath)
            return [Forms((entry.name,), os.path.abspath(found) if found else "")]
        if entry.form == "script":
            return [Forms(file=self._place(entry.name))]
        if entry.form == "module":
            file = locate_main(entry.name, self._path).file
            place = self._place(file) if file else ""
            return [Forms((f"-m {entry.name}", entry.name), place)]
        if entry.name == "__main__":  # of the script that the user started
            path = getattr(sys.modules["__main__"], "__file__", None) or ""
            own = os.path.basename(path) == entry.text.partition(":")[0]
            return [Forms((entry.text,), self._place(path) if own else "")]
        exact = f"{entry.name}:{entry.qualname}"
        told = self._objects.function(entry.name, entry.qualname) if entry.name else ()
        forms = [Forms((f"{t.module}:{t.qualname}",), self._place(t.file), exact) for t in told]
        return forms or [Forms(exact=exact)]

    def directory(self, key: str, path: str, *, hidden: bool) -> None:
        place = self._place(path) if path else ""
        if place.startswith("/"):
            self._expect_path(key, path, place, "outside of the tree", hidden=hidden)

    def written(self, places: Iterable[Written]) -> None:
        judged: set[str] = set()
        for key, path, log_of, hidden in places:
            if log_of is None:
                if path not in judged:
                    self.directory(key, path, hidden=hidden)
                judged.add(path)
                continue
            real, own = os.path.realpath(path), os.path.realpath(log_of)
            # what it says is chosen freely: in the tree, too, it could be code
            if not (log_of and is_below(real, own) and real.endswith(".log")):
                what = "no .log file in the run's directory,"
                self._expect_path(key, path, real, what, hidden=hidden)

    def _expect_path(self, key: str, path: str, real: str, what: str, *, hidden: bool) -> None:
        if not is_within(real, self._policy.paths):
            shown, wanted = ("", "") if hidden else (repr(path), real)
            self._refuse(key, shown, f"is {what} and is not in allow.paths", "paths", wanted)

    def variables(self, key: str, env: Iterable[str]) -> None:
        for name in map(str, env):
            if name not in HARMLESS_VARIABLES:
                self.ask(f"{key}.{name}", "env", name)

    def expect(self, asked: Requested) -> None:
        value, name = asked.value, asked.lists[0]
        if not isinstance(value, str):
            self._refuse(asked.key, show(value), "is no text, which could be judged", name, "")
            return
        if value in OWN_TARGETS.get(asked.path, ()):
            return
        if not asked.clear:
            told = []
        elif name == "searchpath":
            scheme, separator, path = value.rpartition("://")
            told = [f"{scheme}{separator}{os.path.normpath(path)}"]
        else:
            # every way that it may be read; nothing if that cannot be told
            told = [f"{t.module}.{t.qualname}" for t in self._objects.dotted(value)]
        # patterns for these have slashes and are for no files
        forms = [Forms((each,), each if "/" in each else "", value) for each in told]
        forms = forms or [Forms(exact=value)]
        self._judge(asked.key, asked.lists, value, forms, hidden=False)

    def _place(self, path: str) -> str:
        """A path with its links resolved: relative if it is in the tree, else absolute."""
        real = os.path.realpath(path)
        inside = os.path.commonpath((real, self._root)) == self._root
        return os.path.relpath(real, self._root) if inside else real

    def _refuse(self, key: str, value: str, message: str, name: str, wanted: str) -> None:
        path = self._policy.file
        hint = f"to allow it, add {wanted!r} to allow.{name} in {path}" if wanted else ""
        self.problems.append(
            Diagnostic("not-allowed", shorten(key), value, shorten(message), shorten(hint))
        )


_MADE_UP = "is an interpolation, which may come to anything"


IN_LOCKS = ("callbacks", *_LOGGING)
"""Parts of the node that are in a lock if they name anything that is made."""


def with_hydra(spec: LaunchSpec, config: DictConfig) -> LaunchSpec:
    """Return a run with what a reviewer has to know of Hydra's node, or raise `ConfigError`."""
    named = {asked.path[1] for asked in asked_for(config) if asked.path[0] == "hydra"}
    findings = Findings()
    made = Reader(config, findings).items("hydra", [name for name in IN_LOCKS if name in named])
    findings.raise_if_any()
    return replace(spec, hydra=conceal(made))


class Written(NamedTuple):
    """Something that Hydra writes to."""

    key: str
    path: str
    # of a log file the run's directory, empty if that is not known; None of directories
    log_of: str | None = None
    hidden: bool = False  # whether variables were read for it, so that it must not be shown


_WRITTEN = ("run.dir", "sweep.dir", "sweep.subdir", "output_subdir", "runtime.output_dir")


def written(config: DictConfig) -> tuple[Written, ...]:
    """Return what Hydra writes to, as far as Hydra itself can resolve it."""
    found: list[Written] = []
    with watching("oc.env") as reads:
        paths = {key: _resolved(config, key) for key in _WRITTEN}
        output = str(paths["runtime.output_dir"] or paths["run.dir"] or "")
        paths["runtime.output_dir"] = output or None
        above = {"sweep.subdir": paths["sweep.dir"], "output_subdir": output}
        for key, path in paths.items():
            if path is not None:
                whole = os.path.abspath(os.path.join(str(above.get(key) or ""), str(path)))
                found.append(Written(f"hydra.{key}", whole))
        for name in _LOGGING:
            # as Hydra has changed to it by then
            base = output if name == "job_logging" and _resolved(config, "job.chdir") else ""
            for where, value in walk({"hydra": {name: _resolved(config, name)}}):
                if where[-1:] == ("filename",) and isinstance(value, (str, bytes, os.PathLike)):
                    file = os.path.abspath(os.path.join(base, os.fsdecode(value)))
                    found.append(Written(".".join(map(str, where)), file, output))
    return tuple(each._replace(hidden=bool(reads)) for each in found)


def _resolved(config: DictConfig, key: str) -> Any:
    try:
        value = OmegaConf.select(config, f"hydra.{key}")
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except (OmegaConfBaseException, RecursionError):
        return None
