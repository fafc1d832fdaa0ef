"""What Python's logging is asked to make by Hydra's two logging nodes. Pure.

`logging.config` calls factories, makes classes, and imports whatever a text of the form ``ext://``
names, anywhere in what it is given. That is Hydra's node with all its references followed, so here
they are followed too: a node elsewhere in the config is looked at as if it stood in their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lllaunch.config.tree import value_at

Path = tuple[Any, ...]

NODES = (("hydra", "job_logging"), ("hydra", "hydra_logging"))
"""Where Hydra keeps them."""

# the last two of handlers that are looked at only where a policy has allowed them
_MAKING = frozenset({"()", "class", "queue", "listener"})
_SCHEMES = ("ext://", "cfg://")
_STANDARD = re.compile(r"ext://sys\.std(out|err)")
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")
# of the environment: what the config says cannot make it a name to import
_HARMLESS = re.compile(r"\$\{\s*oc\.env\s*:\s*\w+\s*(?:,[^{}:]*)?\}")
# a moment that begins with a digit, whatever follows
_MOMENT = re.compile(r"\$\{\s*now\s*:\s*%[YymdHMSj]")
# absolute paths, whatever the config says
_PATHS = frozenset({"hydra.runtime.output_dir", "hydra.runtime.cwd"})
_MOST_HOPS = 10
_MOST_VALUES = 20_000


def made_by_logging(config: Mapping[Any, Any]) -> Iterator[tuple[Path, Any, bool]]:
    """Returns what logging is asked to import.

    Args:
        config: whole, plain data, unresolved.

    Yields:
        Where it stands, its text (or what stands there instead of one), and whether that is what it
        says, rather than an interpolation that may come to anything.
    """
    left = _MOST_VALUES
    waiting: list[tuple[Path, Any, int]] = [(path, value_at(config, path), 0) for path in NODES]
    while waiting:
        path, value, hops = waiting.pop()
        left -= 1
        target = _referred(config, value)
        if isinstance(target, (Mapping, list)):
            if hops >= _MOST_HOPS or left < 0:
                yield path, value, False
                continue
            value, hops = target, hops + (target is not value)
        if isinstance(value, (Mapping, list)):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            waiting.extend(reversed([((*path, key), item, hops) for key, item in items]))
        elif path[-1] in _MAKING:
            clear = not (isinstance(target, str) and "${" in target)
            if not (clear and _is_of_logging(path[-1], target)):
                yield path, target, clear
        elif isinstance(value, str):
            yield from _imported(config, path, value)


def _is_of_logging(key: str, value: Any) -> bool:
    if key != "class" or value is None:
        return value is None
    return isinstance(value, str) and bool(re.fullmatch(r"logging\.\w+", value))


def _imported(config: Mapping[Any, Any], path: Path, text: str) -> Iterator[tuple[Path, Any, bool]]:
    known = _beginning(config, text)
    if known is None:
        yield path, text, False
    elif "${" not in known:
        if known.startswith(_SCHEMES) and not _STANDARD.fullmatch(known):
            yield path, known, True
    else:
        start = known.partition("${")[0]
        if any(start.startswith(scheme) or scheme.startswith(start) for scheme in _SCHEMES):
            yield path, text, False


def _beginning(config: Mapping[Any, Any], text: str) -> str | None:
    """A text whose first characters are plain, for as far as they matter; None if none can tell."""
    for _ in range(_MOST_HOPS):
        if _HARMLESS.fullmatch(text) or _MOMENT.match(text):
            return ""
        if not text.startswith("${"):
            return text
        found = _REFERENCE.match(text)
        if found is None:
            return None
        if found[1] in _PATHS:
            return "/"
        value = value_at(config, found[1].split("."))
        if value is None or isinstance(value, (Mapping, list)):
            return None
        text = f"{value}{text[found.end() :]}"
    return None


def followed(config: Mapping[Any, Any], value: Any) -> Iterator[Any]:
    """A value, what it refers to if it is a reference and nothing else, and so on.

    Args:
        config: whole, plain data, unresolved.
        value: in it.
    """
    yield value
    for _ in range(_MOST_HOPS):
        found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        value = None if found is None else value_at(config, found[1].split("."))
        if value is None:
            return
        yield value


def _referred(config: Mapping[Any, Any], value: Any) -> Any:
    """What a value comes to in the end."""
    *_, last = followed(config, value)
    return last
