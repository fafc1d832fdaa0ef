"""Where values of a composed config came from, as far as one can tell. Needs no OmegaConf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from lllaunch.errors import Diagnostic

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
# A reference to another key: ${a.b}, ${.a}, ${a[0]}, ${hydra:a.b}, ${oc.select:a.b,default}
_REFERENCE = re.compile(
    r"(?P<escapes>\\*)\$\{\s*(?:(?P<resolver>hydra|oc\.select)\s*:\s*)?"
    r"(?P<key>\.*[^\s.${}:,'\"][^\s${}:,'\"]*)\s*(?:,[^{}]*)?\}"
)
_INDEX = re.compile(r"\[([^\[\]]*)\]")


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
        name = _normal(key)
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
        waiting = [_normal(key)]
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


def dotted(path: Sequence[object]) -> str:
    """The dotted key of a path, with the indices of lists as numbers: ``a.0.b``."""
    return _normal(".".join(map(str, path)))


def parts_of(key: str) -> list[str]:
    """The parts of a dotted key: ``a[b].c`` has three."""
    return _normal(key).split(".") if key else []


def references(text: object, path: Sequence[object]) -> tuple[tuple[str, ...], bool]:
    """Return the keys that a leaf's text refers to, and whether the text is one reference only."""
    if not isinstance(text, str) or "${" not in text:
        return (), False
    found = [match for match in _REFERENCE.finditer(text) if len(match["escapes"]) % 2 == 0]
    keys = [_absolute(match, path) for match in found]
    whole = len(found) == 1 and found[0][0] == text.strip() and keys[0] is not None
    return tuple(dict.fromkeys(key for key in keys if key is not None)), whole


def _absolute(match: re.Match[str], path: Sequence[object]) -> str | None:
    key = match["key"]
    name = key.lstrip(".")
    if match["resolver"] == "hydra":
        return f"hydra.{_normal(name)}"
    dots = len(key) - len(name)
    if dots > len(path):
        return None
    return dotted([*path[: len(path) - dots], name]) if dots else _normal(name)


def _is_below(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name[len(prefix) : len(prefix) + 1] in {"", "."}


def _normal(key: str) -> str:
    return _INDEX.sub(r".\1", key).lstrip(".") if "[" in key else key
