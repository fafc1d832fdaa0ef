"""What is wrong with a tree without composing it: odd files, and keys that nothing uses.

Workers of ``python -m lllaunch`` get what ``launch`` says and nothing else of the config. So what
``launch`` and ``hydra`` do not refer to has no effect, and is most likely a mistake. A file that
several experiments share is blamed only for what none of them uses. It counts that a key may be
used in some way, by a resolver of the user's as well, while `lllaunch.config.origin.references`
knows references to one key each.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lllaunch.checking.findings import MOST_ALIKE, WRONG, CheckedDiagnostic
from lllaunch.checking.tree import EXPERIMENTS, ConfigFile, Sexagesimal
from lllaunch.config.fields import did_you_mean
from lllaunch.config.origin import Origin, Origins, dotted, parts_of
from lllaunch.config.schema import KEYS
from lllaunch.config.tree import leaf_items, shorten
from lllaunch.secret_names import is_secret_name

# Their arguments are no keys.
_NO_KEYS = frozenset({"worker", "oc.env", "now", "oc.deprecated"})
_OPENING = re.compile(r"(\\*)\$\{")
_KEY = re.compile(r"\.*[^\s.,:{}'\"\[\]$][^\s,:{}'\"$]*")


class Reference(NamedTuple):
    """A key that a text refers to, or the beginning of one that is made up.

    Attributes:
        key: dotted key; all below it is meant as well.
        certain: whether the text cannot be resolved if there is no such key.
    """

    key: str
    certain: bool


def references_of(text: object, path: Sequence[object]) -> tuple[Reference, ...]:
    """Returns all that a leaf's text may refer to.

    Args:
        text: the text; anything else refers to nothing.
        path: where it stands, for relative references.
    """
    if not isinstance(text, str) or "${" not in text:
        return ()
    return tuple(dict.fromkeys(_in_text(text, tuple(path))))


def _in_text(text: str, path: tuple[object, ...]) -> Iterator[Reference]:
    position = 0
    while (found := _OPENING.search(text, position)) is not None:
        position = found.end()
        if len(found[1]) % 2:
            continue
        end = _closing(text, position)
        yield from _in_braces(text[position:end], path)
        position = end


def _closing(text: str, start: int) -> int:
    """Where the brace ends that is open at ``start``."""
    depth = 1
    for index in range(start, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if not depth:
                return index
    return len(text)


def _in_braces(text: str, path: tuple[object, ...]) -> Iterator[Reference]:
    yield from _in_text(text, path)
    head, colon, rest = text.partition(":")
    if colon and "${" not in head and "{" not in head:
        resolver = head.strip()
        if resolver in _NO_KEYS:
            return
        for argument in _arguments(rest):
            key = _absolute(argument, path)
            if key is not None and resolver == "hydra":
                yield Reference(f"hydra.{key}", certain=False)
            elif key is not None:
                yield Reference(key, certain=False)
        return
    key = _absolute(text, path)
    if key is not None:
        yield Reference(key, certain="${" not in text)


def _arguments(text: str) -> Iterator[str]:
    """The arguments of a resolver, quoted ones without their quotes."""
    depth, start = 0, 0
    for index, char in enumerate(f"{text},"):
        depth += (char in "{[") - (char in "}]")
        if char == "," and depth <= 0:
            yield text[start:index].strip().strip("'\"")
            start = index + 1


def _absolute(text: str, path: tuple[object, ...]) -> str | None:
    """The key that a text is; of one that is made up, what of it is certain."""
    text = text.strip()
    fixed, made_up, _ = text.partition("${")
    if made_up:
        # `a.b${x}` may be any key of a
        fixed = re.sub(r"[^.\[]*$", "", fixed).rstrip("[")
        if set(fixed) != {"."}:
            fixed = fixed.rstrip(".")
    if not fixed or set(fixed) == {"."}:
        dots = len(fixed)
        return dotted(path[: max(0, len(path) - dots)]) if made_up and dots else None
    if not _KEY.fullmatch(fixed):
        return None
    name = fixed.lstrip(".")
    dots = len(fixed) - len(name)
    if dots > len(path):
        return None
    return dotted([*path[: len(path) - dots], name]) if dots else dotted([name])


class ReachedKeys:
    """Which keys of a config something refers to: what counts, or what that refers to.

    Args:
        config: a composed config, plain data, unresolved.
        roots: top-level keys that count.

    Attributes:
        missing: keys that are referred to but are not there, each with a key that needs it.
        everything: whether some reference may be to any key at all.
    """

    def __init__(self, config: Mapping[Any, Any], roots: Sequence[str]) -> None:
        self.missing: dict[str, str] = {}
        self.everything = False
        self._config = config
        self._used: set[tuple[str, ...]] = set()
        self._asked: set[str] = set()
        waiting: list[tuple[tuple[Any, ...], Any]] = [
            ((name,), config[name]) for name in roots if name in config
        ]
        while waiting:
            path, node = waiting.pop()
            for leaf_path, leaf in leaf_items(node, path):
                for each in references_of(leaf, leaf_path):
                    waiting += self._found(each, leaf_path)

    def __contains__(self, path: Sequence[object]) -> bool:
        parts = tuple(map(str, path))
        return self.everything or any(
            parts[:length] in self._used for length in range(1, len(parts) + 1)
        )

    def _found(
        self, reference: Reference, source: tuple[Any, ...]
    ) -> list[tuple[tuple[Any, ...], Any]]:
        """What a reference leads to, the first time."""
        if reference.key in self._asked:
            return []
        self._asked.add(reference.key)
        if not reference.key:
            self.everything = True
            return []
        node: Any = self._config
        path: list[Any] = []
        for part in parts_of(reference.key):
            key = child_key(node, part)
            if key is None:
                break
            node = node[key]
            path.append(key)
        there = len(path) == len(parts_of(reference.key))
        # through a reference to a container there is no telling here
        if not there and reference.certain and not isinstance(node, str):
            self.missing.setdefault(reference.key, dotted(source))
        if not path or (not there and isinstance(node, (dict, list))):
            return []
        self._used.add(tuple(map(str, path)))
        return [(tuple(path), node)]


def child_key(node: Any, part: str) -> Any:
    """The key or index of a node that a part of a dotted key names, None if there is none."""
    if isinstance(node, list):
        return int(part) if part.isdecimal() and int(part) < len(node) else None
    if not isinstance(node, Mapping):
        return None
    if part in node:
        return part
    return next((key for key in node if not isinstance(key, str) and str(key) == part), None)


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


class KeyUsage(NamedTuple):
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
    reached = ReachedKeys(config, ROOTS)
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
) -> KeyUsage:
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
    return KeyUsage(uses, frozenset(made_of), unused)


def _spot(path: tuple[Any, ...], origins: Origins, files: frozenset[str]) -> Spot | None:
    key = dotted(path)
    origin = origins.of(key)
    if origin is None or origin.kind != "file" or origin.where not in files:
        return None
    return Spot(origin.where, origin.line or 1, key)


def told_unused(usages: Mapping[str, KeyUsage]) -> Iterator[CheckedDiagnostic]:
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
        found.append(
            CheckedDiagnostic.at(
                0, "unused-key", spot.file, spot.line, spot.key, message, tuple(names)
            )
        )
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
) -> Iterator[CheckedDiagnostic]:
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
    *("launch.watchdog", "launch.restart"),
)


def lint(file: ConfigFile) -> Iterator[CheckedDiagnostic]:
    """Tells what is wrong with a file.

    Args:
        file: of a tree of configs.
    """
    yield from misplaced(file)
    for number, each in enumerate(file.facts.sexagesimals):
        if number == MOST_ALIKE:
            more = len(file.facts.sexagesimals) - MOST_ALIKE
            message = f"has {more} more numbers of base 60: quote them"
            yield CheckedDiagnostic.at(0, "base-60", file.path, 0, "", message)
            return
        yield _told(file, each)


def _told(file: ConfigFile, each: Sexagesimal) -> CheckedDiagnostic:
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
    """Leaves out what says again, in other words, what the text of a file shows.

    Args:
        found: what was found otherwise.
        by: what `lint` found.
    """
    known: dict[tuple[str, int], list[str]] = {}
    for each in by:
        if each.exit_code:
            known.setdefault((each.file, each.line), []).append(each.key)
    return [
        each
        for each in found
        if not any(_is_in(key, each.key) for key in known.get((each.file, each.line), ()))
    ]
