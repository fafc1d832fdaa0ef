"""Keys that nothing refers to, and values that never count. Pure.

Workers of ``python -m lllaunch`` get what ``launch`` says and nothing else of the config. So what
``launch`` and ``hydra`` do not refer to has no effect, and is most likely a mistake. A file that
several experiments share is blamed only for what none of them uses.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lllaunch.checking.files import ConfigFile
from lllaunch.checking.findings import MOST_ALIKE, Found
from lllaunch.checking.references import Reached
from lllaunch.config.origin import Origin, Origins, dotted
from lllaunch.config.schema import KEYS
from lllaunch.config.suggest import did_you_mean
from lllaunch.config.tree import leaf_items

ROOTS = ("launch", "hydra")
"""Top-level keys that count by themselves."""

_MEANT = (*ROOTS, "defaults")
# so few letters differ that nothing else can be meant
_ALIKE = 0.75
_GIVEN_BY_CONFIGS = frozenset({"file", "package", "schema"})


class Spot(NamedTuple):
    """A key at its place in a file."""

    file: str
    line: int
    key: str


class Uses(NamedTuple):
    """Which values of an experiment are used.

    Attributes:
        used: keys of leaves that something refers to.
        unused: paths of the others.
        needed: keys that hold something which is used, or is asked for and not there.
        missing: keys that are asked for but not there, each with a key that needs it.
    """

    used: frozenset[str]
    unused: tuple[tuple[Any, ...], ...]
    needed: frozenset[str]
    missing: Mapping[str, str]


class Usage(NamedTuple):
    """What one experiment makes of the values that a tree's files give it.

    Attributes:
        uses: by their keys.
        files: that it is made of.
        unused: the values that nothing refers to, each with the keys above it of the same file.
    """

    uses: Uses
    files: frozenset[str]
    unused: Mapping[Spot, tuple[Spot, ...]]


def uses_of(config: Mapping[Any, Any]) -> Uses:
    """Tells what an experiment uses of the values beside ``launch`` and ``hydra``.

    Args:
        config: as it is composed, plain data, unresolved.
    """
    reached = Reached(config, ROOTS)
    used: set[str] = set()
    needed: set[str] = set()
    unused = []
    for name, node in config.items():
        for path, _ in leaf_items(node, (name,)) if name not in ROOTS else ():
            if path in reached:
                key = dotted(path)
                used.add(key)
                needed.update(_above(key))
            else:
                unused.append(path)
    # what is asked for below a key in vain is one misspelling, not a whole that is not used
    needed.update(above for key in reached.missing for above in _above(key))
    return Uses(frozenset(used), tuple(unused), frozenset(needed), reached.missing)


def usage_of(
    uses: Uses, made_of: Iterable[str], origins: Origins | None, files: Iterable[str]
) -> Usage:
    """Tells which files say what an experiment does not use.

    Args:
        uses: of the experiment.
        made_of: files that it is made of.
        origins: of its values; None if it uses all of them.
        files: of the tree.
    """
    known = frozenset(files)
    unused: dict[Spot, tuple[Spot, ...]] = {}
    for path in uses.unused:
        if origins is None:
            break
        spot = _spot(path, origins, known)
        if spot is not None:
            above = (_spot(path[:end], origins, known) for end in range(1, len(path)))
            unused[spot] = tuple(each for each in above if each and each.file == spot.file)
    return Usage(uses, frozenset(made_of), unused)


def _spot(path: tuple[Any, ...], origins: Origins, files: frozenset[str]) -> Spot | None:
    key = dotted(path)
    origin = origins.of(key)
    if origin is None or origin.kind != "file" or origin.where not in files:
        return None
    return Spot(origin.where, origin.line or 1, key)


def told_unused(usages: Mapping[str, Usage]) -> Iterator[Found]:
    """Tells what no experiment uses, the key above where all that it holds is unused.

    Args:
        usages: by the names of the experiments.
    """
    used: dict[str, set[str]] = {}
    busy: dict[str, set[str]] = {}
    for usage in usages.values():
        for key in usage.uses.used:
            used.setdefault(key, set()).update(usage.files)
        for key in usage.uses.needed:
            busy.setdefault(key, set()).update(usage.files)
    hit: dict[Spot, dict[str, None]] = {}
    for name, usage in usages.items():
        for spot, above in usage.unused.items():
            if spot.file in used.get(spot.key, ()):
                continue
            free = (
                each
                for each in above
                if each.key not in usage.uses.needed and each.file not in busy.get(each.key, ())
            )
            hit.setdefault(next(free, spot), {})[name] = None
    found = []
    for spot, names in hit.items():
        missing = {key: by for name in names for key, by in usages[name].uses.missing.items()}
        message = _message(spot.key, missing)
        found.append(Found(0, spot.file, spot.line, spot.key, message, tuple(names)))
    yield from _few(found)


def _above(key: str) -> tuple[str, ...]:
    parts = key.split(".")
    return tuple(".".join(parts[:end]) for end in range(1, len(parts)))


def _message(key: str, missing: Mapping[str, str]) -> str:
    top, _, rest = key.partition(".")
    name = key.rpartition(".")[2]
    meant = difflib.get_close_matches(top.lower(), _MEANT, n=1, cutoff=_ALIKE)
    if meant and not rest:
        return f"is no key that lllaunch or Hydra knows; did you mean {meant[0]!r}?"
    text = "has no effect: nothing under launch refers to it"
    similar = did_you_mean(key, missing) or _named_alike(name, missing)
    if similar:
        asked = similar.partition("'")[2].partition("'")[0]
        return f"{text}; {similar} {missing[asked]} refers to that" if asked in missing else text
    if not rest and top in KEYS:
        return f"{text}; did you mean 'launch.{top}'?"
    return text


def _named_alike(name: str, missing: Mapping[str, str]) -> str:
    same = next((key for key in missing if key.rpartition(".")[2] == name), None)
    return f"did you mean {same!r}?" if same else ""


def may_be_shadowed(file: ConfigFile) -> bool:
    """Whether something that a config includes comes after what it says itself.

    Args:
        file: of the config.
    """
    defaults = file.data.get("defaults")
    entries = defaults if isinstance(defaults, list) else []
    # without _self_ a config comes after all that it includes
    return any(str(each).partition("@")[0] == "_self_" for each in entries[:-1])


def shadowed(
    config: Mapping[Any, Any], origins: Origins, own: str, experiment: str
) -> Iterator[Found]:
    """Tells what an experiment's own file says in vain, since what it includes comes later.

    Args:
        config: as it is composed, plain data, unresolved.
        origins: of its values.
        own: path of the experiment's file.
        experiment: its name.
    """
    yield from _few(_shadowed(config, origins, own, experiment))


def _shadowed(
    config: Mapping[Any, Any], origins: Origins, own: str, experiment: str
) -> Iterator[Found]:
    for key, origin in _leaf_origins(config, origins):
        if origin.kind not in _GIVEN_BY_CONFIGS or origin.where == own:
            continue
        lost = [each for each in origin.overridden if each.kind == "file" and each.where == own]
        if lost:
            message = (
                f"has no effect, {origin.place} overrides it; put _self_ last in the defaults list"
            )
            yield Found(0, own, lost[-1].line or 1, key, message, (experiment,))


def _leaf_origins(config: Mapping[Any, Any], origins: Origins) -> Iterator[tuple[str, Origin]]:
    """The origins of all values; a list is one value."""
    waiting: list[tuple[tuple[Any, ...], Any]] = [((), config)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, Mapping):
            waiting += reversed([((*path, key), item) for key, item in node.items()])
            continue
        key = dotted(path)
        origin = origins.of(key)
        if origin is not None:
            yield key, origin


def _few(found: Iterable[Found]) -> Iterator[Found]:
    """As many as somebody may read of each file; the others are counted."""
    by_file: dict[str, list[Found]] = {}
    for each in found:
        by_file.setdefault(each.file, []).append(each)
    for file, some in by_file.items():
        yield from some[:MOST_ALIKE]
        more = some[MOST_ALIKE:]
        if more:
            names = tuple(dict.fromkeys(name for each in more for name in each.experiments))
            yield Found(0, file, 0, "", f"has {len(more)} more keys without effect", names)
