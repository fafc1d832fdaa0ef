"""Where each value of a composed config came from.

Hydra forgets it while it composes. So its defaults list is read once more, by its own functions.
Each config and override in it is a layer; the value of a key is that of the last layer that has the
key. What comes out is compared with what Hydra composes: where it is not that, the origin is
unknown rather than wrong. See docs/design/provenance.md. Below, a plan is annotated with it.
"""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hydra.core.default_element import ResultDefault
from hydra.types import RunMode
from omegaconf import Container, OmegaConf

from lllaunch.config.document import NO_LINES, Lines, lines_of
from lllaunch.config.omegaconf_compat import keeps_defaults_list, references
from lllaunch.config.plan import dump_yaml
from lllaunch.config.schema import PRESET_KEYS, PRESET_NAMES
from lllaunch.config.tree import dotted, leaf_items, parts_of, shown_path
from lllaunch.hydra_compat import file_name, merged, read_defaults
from lllaunch.secret_names import redacted_overrides
from lllaunch.spec import LaunchSpec
from lllaunch.text import printable
from lllaunch.words import StyledText

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from hydra.plugins.config_source import ConfigResult

    from lllaunch.errors import Diagnostic
    from lllaunch.hydra_compat import ConfigLoaderImpl, DefaultsList, IConfigRepository

Kind = Literal["file", "package", "schema", "override", "hydra", "unknown"]

# What Hydra writes itself after it has composed, whatever configs and overrides say there.
_FILLED = (
    "hydra.overrides",
    "hydra.runtime",
    "hydra.job.override_dirname",
    "hydra.job.config_name",
)
# What it adds to: `hydra.job.env_copy`.
_ADDED = "hydra.job.env_set"
# What the user gives of what it fills in, in a run or in a sweep.
_GIVEN_BY = {"hydra.runtime.output_dir": ("hydra.run.dir", "hydra.sweep.dir")}
# Words that YAML reads as booleans, also where they are keys.
_BOOLEANS = {
    word: str(value)
    for value, words in ((True, "on yes true True"), (False, "off no false False"))
    for word in words.split()
}


@dataclass(frozen=True)
class Origin:
    """What gave a key of a composed config its text."""

    # ``file``: a config file; ``package``: one within a Python package; ``schema``: a config that a
    # program put into Hydra's ConfigStore, as lllaunch does with the defaults of ``launch``;
    # ``override``: the command line, or a job of a sweep; ``hydra``: Hydra's own configs, or what
    # it fills in; ``unknown``: it cannot be told
    kind: Kind
    # path of the file, relative if it is below the working directory; ``pkg://PACKAGE/...`` or
    # another URL; ``structured://NAME``; the override's text, without secrets; for what Hydra fills
    # in ``hydra``; empty if unknown
    where: str
    line: int | None = None  # of the key in the file, from 1; None where there is none
    group: str = ""
    # what else gave a value to that key and lost, weakest first; these have none
    overridden: tuple[Origin, ...] = ()

    @property
    def place(self) -> str:
        """File and line as editors and compilers write it: ``conf/exp/resnet.yaml:6``."""
        return self.where if self.line is None else f"{self.where}:{self.line}"


class Link(NamedTuple):
    """One step on the way from a key to what its value is made of."""

    key: str
    origin: Origin


class KeyOrigin(NamedTuple):
    """What is known of one key: where its text came from, and the keys that the text refers to."""

    origin: Origin
    references: tuple[str, ...] = ()
    whole: bool = False


UNKNOWN = Origin("unknown", "")
_BY_HYDRA = Origin("hydra", "hydra")


class Origins:
    """The origins of all keys of one composed config. Holds no values.

    By dotted key, as `dotted` writes it.
    """

    def __init__(self, entries: Mapping[str, KeyOrigin]) -> None:
        self._entries = entries

    def keys(self) -> Iterator[str]:
        """All keys, of containers and of leaves, those within lists among them."""
        return iter(self._entries)

    def of(self, key: str) -> Origin | None:
        """Where the text of a key came from.

        ``a[0]`` and ``a.0`` are the same element. For a mapping it is the last config or override
        that wrote to the mapping as such. Below a reference (``args: ${params}``) it is the origin
        of the reference. None if the config has no such key.
        """
        name = dotted([key])
        if any(_is_below(name, filled) for filled in _FILLED):
            return _BY_HYDRA
        found = self._origin_of(name)
        if found is not None:
            return found[1].origin
        return _BY_HYDRA if _is_below(name, _ADDED) else None

    def chain(self, key: str) -> tuple[Link, ...]:
        """The origin of a key and of all that its text refers to, directly or not.

        The key itself is first (or the reference that it is below), then what that refers to, each
        key once. Empty if the config has no such key. References whose key depends on another value
        (``${a.${b}}``) are not followed.
        """
        links: dict[str, Link] = {}
        waiting = [dotted([key])]
        while waiting:
            name = waiting.pop(0)
            origin = self.of(name)
            if origin is None:
                continue
            found = self._origin_of(name)
            at = found[0] if found else name
            # also ends what refers to itself
            if at in links:
                continue
            links[at] = Link(at, origin)
            if found is not None:
                rest = name[len(at) :] if found[1].whole else ""
                waiting.extend(f"{target}{rest}" for target in found[1].references)
        return tuple(links.values())

    def stands_in(self, key: str) -> Origin | None:
        """The file that a key stands in, or else what it is in, or what that refers to.

        The config need not have the key. None if the command line gave it, nobody did, or that is
        not known.
        """
        every = map(self._stands_in, _GIVEN_BY.get(key, (key,)))
        found = [origin for origin in every if origin is not None]
        return found[0] if len(found) == 1 else None

    def _stands_in(self, key: str) -> Origin | None:
        parts = parts_of(key)
        for end in range(len(parts), 0, -1):
            for link in self.chain(".".join(parts[:end])):
                if link.origin.kind in {"file", "package"}:
                    return link.origin
                if link.origin.kind == "override":
                    return None
            if parts[0] in {"launch", "hydra"} and self.of(key) is not None:
                break  # a default: nobody wrote it anywhere
        return None

    def locate(self, problem: Diagnostic) -> Diagnostic:
        """Return a problem with the file and line that its key stands in, if it names no file."""
        origin = None if problem.file else self.stands_in(problem.key)
        if origin is None:
            return problem
        return replace(problem, file=origin.where, line=origin.line or 0)

    def _origin_of(self, name: str) -> tuple[str, KeyOrigin] | None:
        """The entry of a key, or the reference above it."""
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            at = self._name(parts[:end])
            if at is not None:
                entry = self._entries[at]
                return (at, entry) if end == len(parts) or entry.whole else None
        return None

    def _name(self, parts: list[str]) -> str | None:
        plain = ".".join(parts)
        if plain in self._entries:
            return plain
        as_yaml = ".".join(_BOOLEANS.get(part, part) for part in parts)
        return as_yaml if as_yaml in self._entries else None


def _is_below(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name[len(prefix) : len(prefix) + 1] in {"", "."}


_MISSING = "???"
_NOTHING = object()  # what a key has that no layer gives, or that an override takes out


class Layer(NamedTuple):
    """What one config or override gives: plain and unresolved data, below the keys in ``rest``."""

    origin: Origin
    value: Any
    lines: Lines = NO_LINES
    rest: tuple[str, ...] = ()
    replaces: bool = False  # whether ``???`` counts

    def at(self, key: object) -> Layer | None:
        """What it gives to a key of a mapping or an index of a list; None if nothing."""
        if self.rest:
            same = self.rest[0] == str(key)
            return self._replace(rest=self.rest[1:]) if same else None
        items: Any = self.value
        if isinstance(items, list):
            items = dict(enumerate(items))
        if not isinstance(items, dict) or key not in items:
            return None
        return Layer(self.origin, items[key], self.lines.below(key))


def origins_of(layers: Iterable[Layer], composed: Any) -> Origins:
    """Return what is known of each key of a config that was composed of layers, weakest first."""
    entries: dict[str, KeyOrigin] = {}
    _collect(list(layers), composed, (), entries)
    entries.pop("", None)
    return Origins(entries)


def _collect(
    layers: list[Layer], composed: Any, path: tuple[object, ...], entries: dict[str, KeyOrigin]
) -> None:
    """Note what is known of a key and all below; ``layers`` are those that may give it a value."""
    key = dotted(path)
    value, marks, within = _put_together(layers, key)
    origin = UNKNOWN
    if not _is_alike(value, composed):
        within = []
    elif marks and key not in entries:  # else one of two with that dotted name has a dot in itself
        *before, last = marks
        origin = replace(last, overridden=tuple(before)) if before else last
    entries[key] = KeyOrigin(origin, *references(composed, path))
    items: Any = enumerate(composed) if isinstance(composed, list) else ()
    for name, item in composed.items() if isinstance(composed, dict) else items:
        below = [found for layer in within if (found := layer.at(name)) is not None]
        _collect(below, item, (*path, name), entries)


def _put_together(layers: list[Layer], key: str) -> tuple[Any, list[Origin], list[Layer]]:
    """What layers come to at a key, who has given it a value, and who gives to what is in it.

    Of a mapping the value is an empty one.
    """
    value: Any = _NOTHING
    marks: list[Origin] = []
    within: list[Layer] = []
    for layer in layers:
        given, lines = layer.value, layer.lines
        of_preset = key in PRESET_KEYS and layer.origin.kind != "override"
        if layer.rest:
            if not isinstance(value, (dict, list)):
                value, within = {}, []
                marks.append(layer.origin)
            within.append(layer)
            continue
        if of_preset and isinstance(given, str) and given in PRESET_NAMES:
            given, lines = {"preset": given}, Lines(lines.line, {"preset": lines})
        if given is _NOTHING:
            value, marks, within = _NOTHING, [], []
        elif given == _MISSING and marks and not layer.replaces:
            continue
        elif not isinstance(given, dict):
            value, within = given, [layer]
        elif isinstance(value, dict) and within and not given:
            continue  # an empty mapping changes nothing in another one
        else:
            before = within if isinstance(value, dict) else []
            value, within = {}, [*before, layer._replace(value=given, lines=lines)]
        if given is not _NOTHING:
            marks.append(replace(layer.origin, line=lines.line))
    return value, marks, within


def _is_alike(given: Any, composed: Any) -> bool:
    """Whether a value is what was composed, perhaps converted to the type of its node."""
    if isinstance(composed, list):
        return isinstance(given, list) and len(given) == len(composed)
    if isinstance(composed, dict) or isinstance(given, (dict, list)):
        return isinstance(given, dict) and isinstance(composed, dict)
    if isinstance(composed, Enum):
        return str(given).rpartition(".")[2] == composed.name or given == composed.value
    return given == composed or (given is not None and str(given) == str(composed))


def origins(
    loader: ConfigLoaderImpl,
    config_name: str | None,
    overrides: Sequence[str],
    run_mode: RunMode = RunMode.RUN,
) -> Origins:
    """Tells where the values of a config came from.

    Composes once more, which takes about as long as the first time; reads config files and changes
    nothing. It imports no more than composing does.

    ``overrides`` are those of the command line; for a job of a sweep with those of the job, as
    `ConfigLoaderImpl.load_sweep_config` puts them together. Under MULTIRUN what is swept keeps its
    other origin.

    Raises:
        HydraException, OmegaConfBaseException: the config cannot be composed.
    """
    with warnings.catch_warnings():
        # whoever composed the config has seen them
        warnings.simplefilter("ignore")
        sweep = run_mode == RunMode.MULTIRUN
        found, repo = read_defaults(loader, config_name, overrides, sweep=sweep)
        # before Hydra merges: its merging changes configs that it has loaded
        layers = [*_layers(repo, _with_groups(found))]
        layers += map(_layer_of, found.config_overrides)
        cfg = merged(loader, found, repo)
    return origins_of(layers, _plain(cfg))


def origins_of_one(repo: IConfigRepository, name: str) -> Origins:
    """Tells where the values of a single config came from, before anything is composed.

    Raises:
        HydraException, OmegaConfBaseException: it is not there, or cannot be read.
    """
    layers = _layers(repo, [(ResultDefault(config_path=name, package=""), "")])
    loaded = repo.load_config(name)
    return origins_of(layers, _content(loaded.config) if loaded is not None else {})


def _with_groups(found: DefaultsList) -> Iterator[tuple[ResultDefault, str]]:
    """Yield each config with the nearest choice of a group that brought it."""
    choices = {
        f"{key.partition('@')[0]}/{name}": f"{key}={name}"
        for key, name in found.overrides.known_choices.items()
    }
    parents = {each.config_path: each.parent for each in found.defaults}
    for each in found.defaults:
        path = each.config_path
        if each.override_key:
            yield each, f"{each.override_key}={str(path).rpartition('/')[2]}"
            continue
        while path is not None and path not in choices:
            path = each.parent if path == each.config_path else parents.get(path)
        yield each, choices.get(path or "", "")


def _layers(
    repo: IConfigRepository, defaults: Iterable[tuple[ResultDefault, str]]
) -> Iterator[Layer]:
    """Read the configs of a defaults list once more."""
    # by name alone, as the repository keeps them
    known: dict[str, Lines] = {}
    for default, group in defaults:
        path = default.config_path
        loaded = repo.load_config(path) if path is not None else None
        if path is None or loaded is None:
            continue
        package = default.package if default.package is not None else loaded.header["package"]
        lines = NO_LINES
        if loaded.path.startswith(("file://", "pkg://")):
            if path not in known:
                known[path] = _lines_in(loaded, path)
            lines = known[path]
        rest = tuple(parts_of(package or ""))
        yield Layer(_origin(loaded, path, group), _content(loaded.config), lines, rest)


def _lines_in(loaded: ConfigResult, path: str) -> Lines:
    scheme, _, place = loaded.path.partition("://")
    directory: Any = resources.files(place) if scheme == "pkg" else pathlib.Path(place)
    try:
        return lines_of(directory.joinpath(file_name(path)).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return NO_LINES


def _origin(loaded: ConfigResult, path: str, group: str) -> Origin:
    scheme, _, place = loaded.path.partition("://")
    kind: Kind = "package" if scheme == "pkg" else "schema" if scheme == "structured" else "file"
    if loaded.provider == "hydra":
        kind = "hydra"
    if scheme == "structured":
        return Origin(kind, f"{scheme}://{path}", group=group)
    name = file_name(path)
    if scheme != "file":
        return Origin(kind, f"{loaded.path}/{name}", group=group)
    return Origin(kind, shown_path(os.path.join(place, name)), group=group)


def _content(config: Container) -> Any:
    content = _plain(config)
    if isinstance(content, dict) and keeps_defaults_list(config):
        # a dataclass keeps its defaults list until all is merged
        content.pop("defaults", None)
    return content


def _plain(config: Container) -> Any:
    return OmegaConf.to_container(config, resolve=False)


def _layer_of(override: Override) -> Layer:
    rest = tuple(parts_of(override.key_or_group))
    if override.is_delete():
        return Layer(UNKNOWN, _NOTHING, rest=rest)
    (text,) = redacted_overrides([override.input_line or override.get_key_element()])
    return Layer(Origin("override", text), override.value(), rest=rest, replaces=True)


Path = tuple[Any, ...]
Row = tuple[StyledText, ...]

_MOST = 200  # characters of a comment
_COLUMN = 40  # where comments begin, behind lines that are not longer
_LAUNCHER = ("hydra", "launcher")
_CLUSTER = "cluster"
_PACKAGED = "pkg://lllaunch.conf/cluster/slurm.yaml"
# What stands in a plan under one key and may stand in a config under another.
_SAID_BY: Mapping[Path, tuple[Path, ...]] = {
    (_CLUSTER, "nodes"): (("launch", "nnodes"),),
    (_CLUSTER, "requeue", "timeout"): ((_CLUSTER, "max_num_timeout"),),
    (_CLUSTER, "name"): ((_CLUSTER, "job_name"),),
}


def annotated(plan: Mapping[str, Any], comment: Callable[[Path], str]) -> list[Row]:
    """Return plain data as YAML, with a comment (which may be empty) behind each value."""
    text = dump_yaml(plan)
    rows: list[Row] = [(StyledText(line),) for line in text.splitlines()]
    found = lines_of(text)
    for path, _ in leaf_items(plan):
        number, said = found.nearest(path) if found.items else 0, comment(path)
        if number and said:
            (line,) = rows[number - 1]
            blanks = " " * max(0, _COLUMN - len(line.text))
            rows[number - 1] = line, StyledText(f"{blanks}  # {printable(said, _MOST)}", "faint")
    return rows


def comment_rows(title: str, facts: Iterable[tuple[str, str]]) -> list[Row]:
    """Return a block of comments: a title, and below it the facts that have a text."""
    told = [(name, text) for name, text in facts if text]
    width = max((len(name) for name, _ in told), default=0)
    rows = [f"#   {name:<{width}}  {printable(text, _MOST)}" for name, text in told]
    return [(StyledText(text, "faint"),) for text in (f"# {title}", *rows)]


def chain_of(
    origins: Origins, spec: LaunchSpec, path: Path, *, sweeps: bool = False
) -> tuple[Link, ...]:
    """Return the origin of a value of a plan, and of what that refers to.

    ``sweeps``: ``hydra.launcher`` has defaults, too.
    """
    others: tuple[Path, ...] = ()
    if path[0] == _CLUSTER:
        # another key may have said it
        others = (path, *_SAID_BY.get(path, ()))
        if path[1:2] == ("additional_parameters",) and len(path) == 3:
            name = str(path[2])
            others = (path, (_CLUSTER, name), (_CLUSTER, name.replace("-", "_")))
    for other in others:
        found = origins.chain(".".join(map(str, other)))
        if found and found[0].origin.where != _PACKAGED and not _is_default(found):
            return found
    if path[0] == "launch":
        path = (*path[:1], *spec.config_path(path[1:]))
    own = _longest(origins, path, 2)
    if sweeps and path[0] == "launch" and len(path) > 1 and _is_default(own):
        weaker = _longest(origins, (*_LAUNCHER, *path[1:]), 3)
        if weaker and weaker[0].origin.kind not in {"schema", "hydra"}:
            return weaker
    return own


def _longest(origins: Origins, path: Path, least: int) -> tuple[Link, ...]:
    """The chain of a path, or of what it is within."""
    while len(path) >= least:
        found = origins.chain(".".join(map(str, path)))
        if found:
            return found
        preset = (*path[:2], "preset")
        if path[1:2] == ("watchdog",) and path != preset and len(path) == 3:
            found = origins.chain(".".join(preset))
            if found and not _is_default(found):
                return found
        path = path[:-1]
    return ()


def origin_text(chain: Sequence[Link]) -> str:
    """Returns an origin for people: ``conf/exp/a.yaml:7 (exp=a) <- params.lr: override ...``."""
    if not chain:
        return ""
    first, *rest = chain
    texts = [_place(first.origin)]
    # what Hydra fills in came from nowhere else
    rest = [link for link in rest if link.origin.kind != "hydra"]
    texts += [f"{link.key}: {_place(link.origin)}" for link in rest]
    return " <- ".join(text for text in texts if text)


def origin_json(chain: Sequence[Link]) -> list[dict[str, Any]]:
    """Returns an origin for programs: an object for each link."""
    return [{"key": link.key, **_json(link.origin)} for link in chain]


def _json(origin: Origin) -> dict[str, Any]:
    return {
        "kind": origin.kind,
        "where": origin.where,
        "line": origin.line,
        "group": origin.group or None,
        "overridden": [_json(loser) for loser in origin.overridden],
    }


def _place(origin: Origin) -> str:
    if origin.kind == "schema":
        return "default"
    if origin.kind == "unknown":
        return "unknown"
    prefix = "override " if origin.kind == "override" else ""
    # conf/exp/a.yaml says exp=a already
    told = os.path.splitext(origin.where)[0].endswith(origin.group.replace("=", "/"))
    group = f" ({origin.group})" if origin.group and not told else ""
    # what a schema or a preset says is there to be overridden
    losers = [loser.place for loser in origin.overridden if loser.kind in {"file", "override"}]
    over = f", over {', '.join(losers)}" if losers else ""
    return f"{prefix}{origin.place}{group}{over}"


def _is_default(chain: Sequence[Link]) -> bool:
    return not chain or chain[0].origin.kind == "schema"
