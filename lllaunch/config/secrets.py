"""What must never be written: which leaves are secrets, and what stands for them. Pure.

Two kinds of leaves are: those whose text asks for the environment (``oc.env``), and literals that
look like a secret (`lllaunch.secret_names.is_literal_secret`). The latter must come from the
environment, since Hydra writes overrides and configs to files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from lllaunch.config.tree import value_at
from lllaunch.errors import Diagnostic
from lllaunch.secret_names import is_literal_secret, is_secret_name, is_telling_name

_ENV = re.compile(r"\$\{\s*oc\.env\s*:\s*([^,{}]+?)\s*(?:,\s*([^{}]*?)\s*)?\}")
_SELECT = re.compile(r"\$\{\s*oc\.select\s*:\s*([^,{}]+?)\s*,\s*([^{}]*?)\s*\}")
_INNERMOST = re.compile(r"\$\{[^${}]*\}")
# What may stand beside a variable in a header.
_SCHEME = re.compile(r"\s*(?:bearer|basic|token)\s+", re.IGNORECASE)
_DEEPEST = 20  # interpolations within each other
_NO_VARIABLE = re.compile(r"\W")


def source_for(name: str) -> str:
    """Return what stands for the literal value of a key: the variable it should come from."""
    return f"${{oc.env:{_NO_VARIABLE.sub('_', name).upper()}}}"


_TOKENS = re.compile(r"(\\*)\$\{|\}|oc\.env")
# What a brace may stand in or behind without being one.
_QUOTING = re.compile(r"""['"]|\\\}""")


def mentions_env(raw: object) -> TypeGuard[str]:
    """Return whether a leaf's text may ask for the environment, now or when it is read again."""
    return isinstance(raw, str) and "oc.env" in raw


def holds_env(raw: object) -> bool:
    """Return whether a leaf's own text asks for the environment.

    An interpolation is text where an odd number of backslashes stands before it, but not within
    another one, whose resolver may read it.
    """
    if not mentions_env(raw):
        return False
    if _QUOTING.search(raw):
        return True
    depth = 0
    for found in _TOKENS.finditer(raw):
        if found[0] == "oc.env":
            if depth:
                return True
        elif found[0] == "}":
            depth = max(0, depth - 1)
        elif depth or len(found[1]) % 2 == 0:
            depth += 1
    return False


def _literals_of(raw: str, name: object) -> Iterator[tuple[str, str]]:
    """Yield what should stand in place of a leaf's secrets, and these."""
    if "${" not in raw:
        parts: list[tuple[object, str]] = [(name, raw)]
    else:
        parts = [(name, match[2]) for match in _SELECT.finditer(raw)]
        parts += [(name, text) for text in _beside(raw)]
        for match in _ENV.finditer(raw):
            variable, text = match[1], match[2] or ""
            if is_literal_secret(text, variable) or is_literal_secret(text, name):
                yield f"${{oc.env:{variable}}}", text
    yield from ((source_for(str(key)), text) for key, text in parts if is_literal_secret(text, key))


def _beside(raw: str) -> Iterator[str]:
    text = _SCHEME.sub("", raw, count=1)
    for _ in range(_DEEPEST):
        text, found = _INNERMOST.subn("\0", text)
        if not found:
            break
    for part in text.split("\0"):
        yield part.strip()


def literals(
    raw: Any, key: str = "", name: object = "", allowed: Collection[str] = ()
) -> Iterator[tuple[str, str, str]]:
    """Yield the secrets in unresolved data: dotted key, what should stand there, the secret."""
    if key and key in allowed:
        return
    if isinstance(raw, dict):
        for own, item in raw.items():
            yield from literals(item, f"{key}.{own}" if key else str(own), own, allowed)
    elif isinstance(raw, list):
        for index, item in enumerate(raw):
            yield from literals(item, f"{key}[{index}]", name, allowed)
    elif isinstance(raw, str):
        yield from ((key, source, text) for source, text in _literals_of(raw, name))


def not_secret(root: Mapping[Any, Any]) -> Collection[str]:
    """Return the dotted keys that a config, as plain data, says hold no secret."""
    keys = value_at(root, ["launch", "not_secret"])
    return [str(key) for key in keys] if isinstance(keys, list) else ()


def exposed(raw: Any, key: str = "", allowed: Collection[str] = ()) -> Iterator[str]:
    """Yield the dotted keys whose names say secret, and whose values anybody may read."""
    if isinstance(raw, dict):
        for own, item in raw.items():
            where = f"{key}.{own}" if key else str(own)
            if where in allowed:
                continue
            plain = isinstance(item, str) and item and "${" not in item and item != "???"
            if plain and is_telling_name(own):
                yield where
            else:
                yield from exposed(item, where, allowed)


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
    text = _ENV.sub(lambda match: f"${{oc.env:{match[1]}}}", raw)
    return _SELECT.sub(lambda match: f"${{oc.select:{match[1]}}}", text)


_LONGEST = 10_000  # characters of a value that is taken apart
_WORDS = re.compile(r"[^\s,{}\[\]:'\"]+")
_KEY_IN_VALUE = re.compile(r"""(?<![\w.-])([\w.-]+)["']?\s*:""")
# As Hydra writes the interpolations of a job's overrides: $\{oc.env\:NAME\}.
_ESCAPED = re.compile(r"\\([{}:,()\[\]=\s])")
# What a sweep takes its values from.
_SWEEP = re.compile(r"(?:choice|range|interval|shuffle|sort|tag)\((.*)\)")
# A key of a dict in an override, and a value that is one word, a text, or an interpolation.
_PAIR = re.compile(
    r"""(?P<key>(?<![\w.-])(["']?)(?P<name>[\w.-]+)\2\s*:\s*)"""
    r"""(?P<value>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?:\$\{[^{}]*\}|[^\s,{}\[\]'"$])+)"""
    r"""(?=\s*(?:[,}]|$))"""
)


def redacted_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Return Hydra's overrides with ``${oc.env:NAME}`` in place of the literal secrets in them.

    Within a dict, too; where a value there is a list or a dict itself, ``<redacted>`` stands for
    the whole value.
    """
    return tuple(_redacted(override) for override in overrides)


def literals_in(overrides: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the secrets that overrides hold themselves, as `literals` does.

    Choices of config groups are not looked at.
    """
    for override in overrides:
        if _redacted(override) != override:
            key, _, value = override.partition("=")
            path = key.lstrip("+~")
            yield path, source_for(_last(path)), value


def _redacted(override: str) -> str:
    key, equals, value = override.partition("=")
    if not equals:
        return override
    plain = _ESCAPED.sub(r"\1", value) if "$\\{" in value else value
    redacted = _redacted_setting(key, plain)
    return override if redacted == f"{key}={plain}" else redacted


def _redacted_setting(key: str, value: str) -> str:
    within = "" if ":" not in value else value if len(value) > _LONGEST else _PAIR.sub("", value)
    named = any(is_secret_name(_last(other)) for other in _KEY_IN_VALUE.findall(within))
    if named and any(is_literal_secret(word, "token") for word in _WORDS.findall(value)):
        return f"{key}=<redacted>"
    if ":" in value and len(value) <= _LONGEST:
        value = _PAIR.sub(
            lambda pair: f"{pair['key']}{_redacted_value(pair['value'], _last(pair['name']))}",
            value,
        )
    return f"{key}={_redacted_value(value, _last(key.lstrip('+~-')))}"


def _redacted_value(value: str, name: str) -> str:
    if "${" in value:
        return safe_source(value, name)
    sweep = _SWEEP.fullmatch(value)
    parts = (sweep[1] if sweep else value).split(",")
    secret = any(is_literal_secret(part.strip(" '\"[]"), name) for part in parts)
    return source_for(name) if secret else value


def _last(key: str) -> str:
    return re.split(r"[./@]", key)[-1]
