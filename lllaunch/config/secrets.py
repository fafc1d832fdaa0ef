"""What must never be written: which leaves are secrets, and what stands for them. Pure.

Two kinds of leaves are: those whose text asks for the environment (``oc.env``), and those under a
name that says secret (`lllaunch.secret_names`). The latter must come from the environment, since
Hydra writes overrides and configs to files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeGuard

from lllaunch.errors import Diagnostic
from lllaunch.secret_names import is_never_counted, is_plain_key, is_secret_name

_ENV = re.compile(r"\$\{\s*oc\.env\s*:\s*([^,{}]+?)\s*(?:,\s*([^{}]*?)\s*)?\}")
_SELECT = re.compile(r"\$\{\s*oc\.select\s*:\s*([^,{}]+?)\s*,\s*([^{}]*?)\s*\}")
_INNERMOST = re.compile(r"\$\{[^${}]*\}")
# What may stand beside a variable in a header.
_SCHEME = re.compile(r"\s*(?:bearer|basic|token)\s+", re.IGNORECASE)
_DEEPEST = 20  # interpolations within each other
_FEWEST = 4  # letters and digits: less is a separator, or a version
_NOTHING = {"", "???", "null", "''", '""', "true", "false"}
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
# <pad>, </s>, [MASK]: the special tokens of a text model, which are no secrets.
_VOCABULARY = re.compile(r"<[^<>]{1,40}>|\[\w{1,40}\]")
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


def is_literal(raw: object, name: str) -> bool:
    """Return whether a leaf under a secret name holds the secret itself, or a part of it.

    Special tokens of text models are no secrets (``pad_token: <pad>``), nor are numbers and
    booleans (``num_key_value_heads: 8``), except for numbers under PASSWORD, SECRET or CREDENTIAL.
    """
    if raw is None or isinstance(raw, bool):
        return False
    if isinstance(raw, str) and "${" in raw:
        return any(_is_secret_text(text, name) for text in _literal_parts(raw))
    return _is_secret_text(str(raw), name)


def hides_literal(raw: object) -> bool:
    """Return whether a secret variable has a default: ``${oc.env:HF_TOKEN,abc}``."""
    return isinstance(raw, str) and any(
        is_secret_name(variable) and _is_secret_text(default, variable)
        for variable, default in _defaults(raw)
    )


def _defaults(raw: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in _ENV.finditer(raw) if match[2] is not None]


def _literal_parts(raw: str) -> Iterator[str]:
    """What a text with interpolations says itself: defaults, and what stands beside them."""
    yield from (default for _, default in _defaults(raw))
    yield from _other_parts(raw)


def _other_parts(raw: str) -> Iterator[str]:
    yield from (match[2] for match in _SELECT.finditer(raw))
    yield from _beside(raw)


def _beside(raw: str) -> Iterator[str]:
    text = _SCHEME.sub("", raw, count=1)
    for _ in range(_DEEPEST):
        text, found = _INNERMOST.subn("\0", text)
        if not found:
            break
    for part in text.split("\0"):
        if sum(map(str.isalnum, part)) >= _FEWEST:
            yield part.strip()


def _is_secret_text(text: str, name: str) -> bool:
    if text in _NOTHING or _VOCABULARY.fullmatch(text) or is_plain_key(text, name):
        return False
    return not _NUMBER.fullmatch(text) or is_never_counted(name)


def literals(raw: Any, key: str = "", name: object = "") -> Iterator[tuple[str, str, str]]:
    """Yield the secrets that a config holds itself.

    Args:
        raw: a config as plain data, unresolved.
        key: dotted key of ``raw``.
        name: last part of it.

    Yields:
        Dotted key, what should stand there instead, and the secret text.
    """
    if isinstance(raw, dict):
        for own, item in raw.items():
            yield from literals(item, f"{key}.{own}" if key else str(own), own)
    elif isinstance(raw, list):
        for index, item in enumerate(raw):
            yield from literals(item, f"{key}[{index}]", name)
    elif (is_secret_name(name) and is_literal(raw, str(name))) or hides_literal(raw):
        yield from ((key, source, text) for source, text in _literals_of(raw, name))


def problems_with(secrets: Iterable[tuple[str, str, str]]) -> list[Diagnostic]:
    """Return what is wrong with the secrets that `literals` found."""
    expected = "a secret to come from the environment"
    return [
        Diagnostic(
            "secret",
            key,
            "a literal",
            "",
            f"write {source}, or give the key another name",
            expected=expected,
        )
        for key, source, _ in secrets
    ]


def _literals_of(raw: Any, name: object) -> Iterator[tuple[str, str]]:
    if not isinstance(raw, str) or "${" not in raw:
        yield source_for(str(name)), str(raw)
        return
    yield from ((f"${{oc.env:{variable}}}", text) for variable, text in _defaults(raw))
    if is_secret_name(name):
        yield from ((source_for(str(name)), text) for text in _other_parts(raw))


def safe_source(raw: str, name: object) -> str:
    """Return a leaf's own text, which resolves to its value again, without the secrets in it."""
    if is_secret_name(name) and any(_is_secret_text(text, str(name)) for text in _beside(raw)):
        return source_for(str(name))
    return without_defaults(raw) if is_secret_name(name) or hides_literal(raw) else raw


def without_defaults(raw: str) -> str:
    """Return a leaf's text with the defaults of its variables left out."""
    text = _ENV.sub(lambda match: f"${{oc.env:{match[1]}}}", raw)
    return _SELECT.sub(lambda match: f"${{oc.select:{match[1]}}}", text)


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
    """Yield the secrets that overrides hold themselves, as `literals` does.

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
