"""A command line as it may be written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lllaunch.config.secrets import is_literal, safe_source, source_for
from lllaunch.secret_names import is_secret_name

_LONGEST = 10_000  # characters of a value that is taken apart
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
    """Return overrides without the secrets that they hold.

    Args:
        overrides: Hydra's overrides (``+launch.env.HF_TOKEN=abc``), flags among them.

    Returns:
        The same with ``${oc.env:NAME}`` in place of literal secrets, also of those within a dict;
        where one there is a list or a dict itself, ``<redacted>`` stands for the whole value.
    """
    return tuple(_redacted(override) for override in overrides)


def literals_in(overrides: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the secrets that overrides hold themselves, as `lllaunch.config.secrets.literals` does.

    Args:
        overrides: Hydra's, without choices of config groups.
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
    others = _KEY_IN_VALUE.findall(within)
    if any(is_secret_name(_last(other)) for other in others):
        return f"{key}=<redacted>"
    if ":" in value and len(value) <= _LONGEST:
        value = _PAIR.sub(_redacted_pair, value)
    return f"{key}={_redacted_value(value, _last(key.lstrip('+~-')))}"


def _redacted_pair(pair: re.Match[str]) -> str:
    return f"{pair['key']}{_redacted_value(pair['value'], _last(pair['name']))}"


def _redacted_value(value: str, name: str) -> str:
    if "${" in value:
        return safe_source(value, name)
    return source_for(name) if is_secret_name(name) and _holds_literal(value, name) else value


def _holds_literal(value: str, name: str) -> bool:
    sweep = _SWEEP.fullmatch(value)
    if sweep is None and value[:1] in {"'", '"'}:
        return is_literal(value[1:-1], name)
    parts = (sweep[1] if sweep else value).split(",")
    return any(is_literal(part.strip(" '\"[]"), name) for part in parts)


def _last(key: str) -> str:
    return re.split(r"[./@]", key)[-1]
