"""What a config asks Hydra, Python's logging or the user's code to make, and where. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lllaunch.config.tree import shorten
from lllaunch.review.logging_nodes import followed, made_by_logging

_TARGET = "_target_"
_CALLBACKS = ("hydra", "callbacks")
_SEARCHPATH = ("hydra", "searchpath")
# these make nodes, and may make one that no walk over the config sees; of a variable they may
_MAKERS = re.compile(r"\boc\.(create|decode)\s*:\s*(?!\s*\$\{\s*oc\.env\s*:[^{}]*\}\s*\})")
# what was typed, for the record
_TYPED = (("hydra", "overrides", "hydra"), ("hydra", "overrides", "task"))
_DIRNAME = ("hydra", "job", "override_dirname")
_INNERMOST = re.compile(r"\$\{[^${}]*\}")
_LONGEST_NAME = 10_000  # characters of an interpolation up to its colon


class Asked(NamedTuple):
    """Something that a config asks for by its name.

    Attributes:
        path: keys and places that lead to it.
        value: what is asked for; where it was a plain reference to text elsewhere, that text.
        lists: names of the lists of a policy that may allow it.
        clear: whether the value is what it says, and no interpolation.
    """

    path: tuple[Any, ...]
    value: Any
    lists: tuple[str, ...]
    clear: bool

    @property
    def key(self) -> str:
        """The path, dotted, for a message."""
        text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return shorten(text.removeprefix("."))


def asked_for(config: Mapping[Any, Any]) -> Iterator[Asked]:
    """Returns everything that a config asks for by name.

    That is each ``_target_``, wherever it is; callbacks and search path of Hydra; the factories and
    classes of its logging; and texts that make nodes with a ``_target_`` in them.

    Args:
        config: whole, plain data, unresolved.
    """
    for path, value in _walk(config):
        lists = _lists_of(path, value)
        if not lists:
            continue
        told = _referred(config, value) if path[-1] == _TARGET else value
        yield Asked(path, told, lists, not (isinstance(told, str) and "${" in told))
    for path, value, clear in made_by_logging(config):
        yield Asked(path, value, ("targets",), clear)


def made_by_hydra(config: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Returns the directories that Hydra makes before a run begins, with the keys that say so.

    Args:
        config: whole, plain data, unresolved. For an interpolation stands a name without a slash:
            what it comes to is not known here.
    """
    node = config.get("hydra")
    node = node if isinstance(node, Mapping) else {}
    for name in ("run", "sweep"):
        own = node.get(name)
        own = own if isinstance(own, Mapping) else {}
        directory = _plain_path(own.get("dir"))
        if directory:
            yield f"hydra.{name}.dir", directory
            within = {
                f"{name}.subdir": own.get("subdir"),
                "output_subdir": node.get("output_subdir"),
            }
            for key, below in within.items():
                path = _plain_path(below)
                if path:
                    yield f"hydra.{key}", f"{directory}/{path}" if path[0] != "/" else path


def _plain_path(text: Any) -> str:
    path = text if isinstance(text, str) and text != "???" else ""
    while (shorter := _INNERMOST.sub("_", path)) != path:
        path = shorter
    return path


def _lists_of(path: tuple[Any, ...], value: Any) -> tuple[str, ...]:
    if not path or value in (None, "???") or _is_record(path, value):
        return ()
    if path[-1] == _TARGET:
        return _target_lists(path)
    if path[:2] == _CALLBACKS and len(path) in {2, 3} and isinstance(value, str):
        return ("callbacks",)  # the whole node comes from somewhere else
    if path[:2] == _SEARCHPATH and not isinstance(value, list):
        return ("searchpath",)
    return ("targets",) if _makes_nodes(value) else ()


def _is_record(path: tuple[Any, ...], value: Any) -> bool:
    return isinstance(value, str) and (path == _DIRNAME or (len(path) == 4 and path[:3] in _TYPED))


def _makes_nodes(value: Any) -> bool:
    if not isinstance(value, str) or "${" not in value:
        return False
    return bool(_MAKERS.search(value)) or any(
        _is_unnamed(value, found.end()) for found in re.finditer(r"\$\{", value)
    )


def _is_unnamed(text: str, start: int) -> bool:
    """Whether the name of the resolver of an interpolation is an interpolation, too."""
    depth, made_up = 0, False
    for place in range(start, min(len(text), start + _LONGEST_NAME)):
        char = text[place]
        if char == "{":
            depth, made_up = depth + 1, True
        elif char == "}":
            depth -= 1
        if depth < 0 or (depth == 0 and char == ":"):
            return made_up and depth == 0
    return made_up


def _target_lists(path: tuple[Any, ...]) -> tuple[str, ...]:
    if path[:2] != _CALLBACKS:
        return ("targets",)
    # hydra.callbacks.NAME._target_ is the callback; below it is what it is given
    return ("callbacks",) if len(path) == 4 else ("callbacks", "targets")


def _walk(config: Mapping[Any, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
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


def _referred(config: Mapping[Any, Any], value: Any) -> Any:
    """The text that a value such as ``${model.cls}`` refers to; other values as they are."""
    if not isinstance(value, str):
        return value
    *_, last = (each for each in followed(config, value) if isinstance(each, str))
    return last
