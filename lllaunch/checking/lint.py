"""What is wrong with a tree without composing it: odd files, and keys that nothing uses.

Workers of ``python -m lllaunch`` get what ``launch`` says and nothing else of the config. So a
top-level key that nothing refers to has no effect, and is most likely a mistake. A file that
several experiments share is blamed only for what none of them uses. It counts that a key may be
used in some way, by a resolver of the user's as well.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lllaunch.checking.findings import MOST_ALIKE, WRONG, CheckedDiagnostic
from lllaunch.checking.tree import EXPERIMENTS, ConfigFile
from lllaunch.config.document import Sexagesimal
from lllaunch.config.interpolation import may_refer_to
from lllaunch.config.origins import Origin, Origins
from lllaunch.config.secrets import EXPOSED, exposed, not_secret
from lllaunch.config.tree import dotted, leaf_items
from lllaunch.launch_settings import KEYS
from lllaunch.secret_names import is_secret_name
from lllaunch.text import shorten

ROOTS = ("launch", "cluster", "hydra")
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


class KeyUsage(NamedTuple):
    """Which top-level keys one experiment uses, and where a file of the tree gives the others."""

    files: frozenset[str]
    used: frozenset[str]
    unused: tuple[Spot, ...] = ()


def unused_keys(config: Mapping[Any, Any]) -> frozenset[str]:
    """Return the top-level keys beside `ROOTS` that nothing outside of them refers to."""
    referred: set[str] = set()
    for name, node in config.items():
        for path, leaf in leaf_items(node, (name,)):
            tops = {key.partition(".")[0] for key in may_refer_to(leaf, path)}
            if "" in tops:
                return frozenset()  # made up: any key may be meant
            referred |= tops - {str(name)}
    return frozenset(map(str, config)) - referred - {*ROOTS}


def usage_of(
    config: Mapping[Any, Any],
    unused: frozenset[str],
    made_of: Iterable[str],
    origins: Origins,
    files: Iterable[str],
) -> KeyUsage:
    """Return which files give what an experiment does not use."""
    known = frozenset(files)
    spots = []
    for key in sorted(unused):
        origin = origins.of(dotted([key]))
        if origin is not None and origin.kind == "file" and origin.where in known:
            spots.append(Spot(origin.where, origin.line or 1, key))
    return KeyUsage(frozenset(made_of), frozenset(map(str, config)) - unused, tuple(spots))


def told_unused(usages: Mapping[str, KeyUsage]) -> Iterator[CheckedDiagnostic]:
    """Tells which top-level keys no experiment uses."""
    used = {(key, file) for usage in usages.values() for key in usage.used for file in usage.files}
    hit: dict[Spot, list[str]] = {}
    for name, usage in usages.items():
        for spot in usage.unused:
            if (spot.key, spot.file) not in used:
                hit.setdefault(spot, []).append(name)
    yield from _few(
        CheckedDiagnostic.at(
            0, "unused-key", spot.file, spot.line, spot.key, _message(spot.key), tuple(names)
        )
        for spot, names in sorted(hit.items())
    )


def _message(key: str) -> str:
    meant = difflib.get_close_matches(key.lower(), _MEANT, n=1, cutoff=_ALIKE)
    if meant:
        return f"is no key that lllaunch or Hydra knows; did you mean {meant[0]!r}?"
    text = "has no effect: nothing under launch refers to it"
    return f"{text}; did you mean 'launch.{key}'?" if key in KEYS else text


def may_be_shadowed(file: ConfigFile) -> bool:
    """Whether something that a config includes comes after what it says itself."""
    defaults = file.data.get("defaults")
    entries = defaults if isinstance(defaults, list) else []
    # without _self_ a config comes after all that it includes
    return any(str(each).partition("@")[0] == "_self_" for each in entries[:-1])


def shadowed(
    config: Mapping[Any, Any], origins: Origins, own: str, experiment: str
) -> Iterator[CheckedDiagnostic]:
    """Tells what an experiment's own file says in vain, since what it includes comes later."""
    yield from _few(_shadowed(config, origins, own, experiment))


def _shadowed(
    config: Mapping[Any, Any], origins: Origins, own: str, experiment: str
) -> Iterator[CheckedDiagnostic]:
    for key, origin in _leaf_origins(config, origins):
        if origin.kind not in _GIVEN_BY_CONFIGS or origin.where == own:
            continue
        lost = [each for each in origin.overridden if each.kind == "file" and each.where == own]
        if lost:
            message = (
                f"has no effect, {origin.place} overrides it; put _self_ last in the defaults list"
            )
            yield CheckedDiagnostic.at(
                0, "shadowed", own, lost[-1].line or 1, key, message, (experiment,)
            )


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


def _few(found: Iterable[CheckedDiagnostic]) -> Iterator[CheckedDiagnostic]:
    """As many as somebody may read of each file; the others are counted."""
    by_file: dict[str, list[CheckedDiagnostic]] = {}
    for each in found:
        by_file.setdefault(each.file, []).append(each)
    for file, some in by_file.items():
        yield from some[:MOST_ALIKE]
        more = some[MOST_ALIKE:]
        if more:
            names = tuple(dict.fromkeys(name for each in more for name in each.experiments))
            message = f"has {len(more)} more keys without effect"
            yield CheckedDiagnostic.at(0, more[0].code, file, 0, "", message, names)


# Here a number of base 60 can only be something else that was not quoted.
_NEVER_NUMBERS = (
    *("launch.tee", "launch.redirects", "launch.grace_period", "launch.local_ranks_filter"),
    *("launch.watchdog", "launch.restart", "launch.nnodes", "launch.rdzv"),
)


def lint(file: ConfigFile) -> Iterator[CheckedDiagnostic]:
    """Tells what is wrong with a file."""
    yield from misplaced(file)
    for key in exposed(file.data, file.package, not_secret(file.data)):
        line = file.line_of(*key.removeprefix(f"{file.package}.").split("."))
        yield CheckedDiagnostic.at(0, "secret", file.path, line, key, EXPOSED)
    for number, each in enumerate(file.facts.sexagesimals):
        if number == MOST_ALIKE:
            more = len(file.facts.sexagesimals) - MOST_ALIKE
            message = f"has {more} more numbers of base 60: quote them"
            yield CheckedDiagnostic.at(0, "base-60", file.path, 0, "", message)
            return
        yield _sexagesimal(file, each)


def _sexagesimal(file: ConfigFile, each: Sexagesimal) -> CheckedDiagnostic:
    key = dotted([*file.package.split("."), *each.path] if file.package else each.path)
    never = any(_is_in(key, name) for name in _NEVER_NUMBERS)
    if any(map(is_secret_name, each.path)):
        message = "YAML reads it as a number of base 60: quote it"
    else:
        text, number = shorten(each.text, 40), shorten(repr(each.number), 40)
        message = f"YAML reads {text} as {number}: quote it"
    code = WRONG if never else 0
    return CheckedDiagnostic.at(code, "base-60", file.path, each.line, shorten(key), message)


def _is_in(key: str, name: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def misplaced(file: ConfigFile) -> Iterator[CheckedDiagnostic]:
    """Tells if a file is put elsewhere than its text seems to say."""
    if file.facts.late:
        message = "comes too late: '# @package' has to stand before anything else, comments too"
        yield CheckedDiagnostic.at(WRONG, "package", file.path, file.facts.late, "", message)
        return
    if not file.name.startswith(f"{EXPERIMENTS}/"):
        return
    if not isinstance(file.facts.data, (dict, type(None))):
        message = "is no mapping of keys to values"
        yield CheckedDiagnostic.at(WRONG, "type", file.path, 1, "", message)
    elif file.facts.package is None and "launch" in file.data:
        message = (
            f"is put under {file.package}, where nothing reads it; "
            "begin the file with '# @package _global_'"
        )
        line = file.line_of("launch")
        yield CheckedDiagnostic.at(WRONG, "package", file.path, line, "launch", message)


def superseded(
    found: Iterable[CheckedDiagnostic], by: Iterable[CheckedDiagnostic]
) -> list[CheckedDiagnostic]:
    """Leaves out what says again, in other words, what the text of a file shows."""
    known: dict[tuple[str, int], list[str]] = {}
    for each in by:
        if each.exit_code:
            known.setdefault((each.file, each.line), []).append(each.key)
    return [
        each
        for each in found
        if not any(_is_in(key, each.key) for key in known.get((each.file, each.line), ()))
    ]
