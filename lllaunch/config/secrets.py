"""What must never be written: which leaves are secrets, and what stands for them. Pure.

Two kinds of leaves are: those whose text asks for the environment (``oc.env``), and literals that
look like a secret (`lllaunch.secret_names.is_literal_secret`). The latter must come from the
environment, since Hydra writes overrides and configs to files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from lllaunch.config.omegaconf_compat import interpolations
from lllaunch.config.tree import value_at
from lllaunch.errors import Diagnostic
from lllaunch.secret_names import is_literal_secret, is_telling_name, source_for

# What may stand beside a variable in a header.
_SCHEME = re.compile(r"\s*(?:bearer|basic|token)\s+", re.IGNORECASE)
# their second argument may be the value
_WITH_DEFAULT = ("oc.env", "oc.select")
_OPENING = re.compile(r"(?<!\\)(?:\\\\)*\$\{")


def mentions_env(raw: object) -> TypeGuard[str]:
    """Return whether a leaf's text may ask for the environment, now or when it is read again."""
    return isinstance(raw, str) and "oc.env" in raw


def holds_env(raw: object) -> bool:
    """Return whether a leaf's own text asks for the environment.

    Within an interpolation escaped text counts, too: its resolver may read it.
    """
    if not mentions_env(raw) or "${" not in raw:
        return False
    found = interpolations(raw)
    if not found and _OPENING.search(raw):
        return True  # nobody can read it
    return any("oc.env" in raw[each.start : each.stop] for each in found)


def _literals_of(raw: str, name: object) -> Iterator[tuple[str, str]]:
    """Yield what should stand in place of a leaf's secrets, and these."""
    texts: list[tuple[object, str]] = [(name, text) for text in _beside(raw)]
    for each in interpolations(raw):
        if each.resolver not in _WITH_DEFAULT or len(each.words) < 2:
            continue
        variable, text = each.words[:2]
        if each.resolver == "oc.select":
            texts.append((name, text))
        elif is_literal_secret(text, variable) or is_literal_secret(text, name):
            yield f"${{oc.env:{variable}}}", text
    yield from ((source_for(str(key)), text) for key, text in texts if is_literal_secret(text, key))


def _beside(raw: str) -> Iterator[str]:
    """Yield the parts of a text that are no interpolation."""
    scheme = _SCHEME.match(raw) if "${" in raw else None
    place = scheme.end() if scheme else 0
    for each in interpolations(raw):
        if not each.depth:
            yield raw[place : each.start].strip()
            place = each.stop
    yield raw[place:].strip() if place else raw


def _texts(
    raw: Any, key: str, name: object, allowed: Collection[str]
) -> Iterator[tuple[str, object, str]]:
    """Yield the texts of unresolved data, but those below some keys: dotted key, name, text."""
    if key and key in allowed:
        return
    if isinstance(raw, dict):
        for own, item in raw.items():
            yield from _texts(item, f"{key}.{own}" if key else str(own), own, allowed)
    elif isinstance(raw, list):
        for index, item in enumerate(raw):
            yield from _texts(item, f"{key}[{index}]", name, allowed)
    elif isinstance(raw, str):
        yield key, name, raw


def literals(
    raw: Any, key: str = "", name: object = "", allowed: Collection[str] = ()
) -> Iterator[tuple[str, str, str]]:
    """Yield the secrets in unresolved data: dotted key, what should stand there, the secret."""
    for where, own, text in _texts(raw, key, name, allowed):
        yield from ((where, source, secret) for source, secret in _literals_of(text, own))


def not_secret(root: Mapping[Any, Any]) -> Collection[str]:
    """Return the dotted keys that a config, as plain data, says hold no secret."""
    keys = value_at(root, ["launch", "not_secret"])
    return [str(key) for key in keys] if isinstance(keys, list) else ()


def exposed(raw: Any, key: str = "", allowed: Collection[str] = ()) -> Iterator[str]:
    """Yield the dotted keys whose names say secret, and whose values anybody may read."""
    for where, name, text in _texts(raw, key, "", allowed):
        plain = text and "${" not in text and text != "???" and "[" not in where
        if plain and is_telling_name(name):
            yield where


EXPOSED = "a literal under a name that says secret is written to files as it is"
"""What is said of those."""


def problems_with(secrets: Iterable[tuple[str, str, str]]) -> list[Diagnostic]:
    """Return what is wrong with the secrets that `literals` found."""
    expected = "a secret to come from the environment"
    return [
        Diagnostic(
            *("secret", key, "a literal", ""),
            f"write {source}; if it is no secret, list {key} in launch.not_secret",
            expected=expected,
        )
        for key, source, _ in secrets
    ]


def safe_source(raw: str, name: object) -> str:
    """Return a leaf's own text, which resolves to its value again, without the secrets in it."""
    if any(is_literal_secret(text, name) for text in _beside(raw)):
        return source_for(str(name))
    return without_defaults(raw) if any(_literals_of(raw, name)) else raw


def without_defaults(raw: str) -> str:
    """Return a leaf's text with the defaults of its variables left out."""
    left = len(raw)
    for each in reversed(interpolations(raw)):
        if each.stop <= left and each.resolver in _WITH_DEFAULT:
            text = f"${{{each.resolver}:{each.words[0]}}}" if each.words else "${}"
            raw, left = raw[: each.start] + text + raw[each.stop :], each.start
    return raw
