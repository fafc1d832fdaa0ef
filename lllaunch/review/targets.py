"""What a config asks Hydra, Python's logging or the user's code to make, and where. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lllaunch.config.tree import shorten

_TARGET = "_target_"
_CALLBACKS = ("hydra", "callbacks")
_SEARCHPATH = ("hydra", "searchpath")
_LOGGING = (("hydra", "job_logging"), ("hydra", "hydra_logging"))
_LOGGING_KEYS = frozenset({"()", "class"})
# these make nodes, and may make one that no walk over the config sees; of a variable they may
_MAKERS = re.compile(r"\boc\.(create|decode)\s*:\s*(?!\s*\$\{\s*oc\.env\s*:[^{}]*\}\s*\})")
# the name of the resolver is made up, too
_UNNAMED = re.compile(r"\$\{[^:{}]*\$\{[^{}]*\}[^:{}]*:")
# what was typed, for the record
_RECORDS = (("hydra", "overrides"), ("hydra", "job", "override_dirname"))
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")
_MOST_HOPS = 10


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


def _lists_of(path: tuple[Any, ...], value: Any) -> tuple[str, ...]:
    if not path or value in (None, "???") or any(path[: len(own)] == own for own in _RECORDS):
        return ()
    if path[-1] == _TARGET:
        return _target_lists(path)
    if path[:2] == _CALLBACKS and len(path) in {2, 3} and isinstance(value, str):
        return ("callbacks",)  # the whole node comes from somewhere else
    if path[:2] == _SEARCHPATH and not isinstance(value, list):
        return ("searchpath",)
    logs = path[:2] in _LOGGING and _is_of_logging(path, value)
    return ("targets",) if logs or _makes_nodes(value) else ()


def _makes_nodes(value: Any) -> bool:
    if not isinstance(value, str) or "${" not in value:
        return False
    return bool(_MAKERS.search(value) or _UNNAMED.search(value))


def _target_lists(path: tuple[Any, ...]) -> tuple[str, ...]:
    if path[:2] != _CALLBACKS:
        return ("targets",)
    # hydra.callbacks.NAME._target_ is the callback; below it is what it is given
    return ("callbacks",) if len(path) == 4 else ("callbacks", "targets")


def _is_of_logging(path: tuple[Any, ...], value: Any) -> bool:
    if not isinstance(value, str):
        return bool(path[-1] == "()")
    if path[-1] in _LOGGING_KEYS:
        return not re.fullmatch(r"logging\.\w+", value)
    return value.startswith("ext://") and not re.fullmatch(r"ext://sys\.std(out|err)", value)


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
    for _ in range(_MOST_HOPS):
        match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return value
        found: Any = config
        for part in match[1].split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, str):
            return value
        value = found
    return value
