"""What must never be written: which leaves are secrets, and what stands for them.

Two kinds of leaves are: those whose text asks for the environment (``oc.env``), and those under a
name that has TOKEN, KEY, SECRET, PASSWORD or CREDENTIAL as a word of its own between underscores.
The latter must come from the environment, since Hydra writes what it composes to
``.hydra/config.yaml`` before anything of ours runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lllaunch.secret_names import is_secret_name

# A number under TOKEN or KEY is most likely a count; under these it is not.
_NEVER_COUNTED = frozenset({"SECRET", "PASSWORD", "CREDENTIAL"})
_ENV = re.compile(r"\$\{\s*oc\.env\s*:\s*([^,{}]+?)\s*(?:,\s*([^{}]*?)\s*)?\}")
_NOTHING = {"", "???", "null", "''", '""', "true", "false"}
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)
# <pad>, </s>, [MASK]: the special tokens of a text model, which are no secrets.
_VOCABULARY = re.compile(r"<[^<>]{1,40}>|\[\w{1,40}\]")
_NO_VARIABLE = re.compile(r"\W")


def source_for(name: str) -> str:
    """What stands for the literal value of a key: the variable that it should come from."""
    return f"${{oc.env:{_NO_VARIABLE.sub('_', name).upper()}}}"


def holds_env(raw: object) -> bool:
    """Whether a leaf's own text asks for the environment."""
    return isinstance(raw, str) and "oc.env" in raw


def is_literal(raw: object, name: str) -> bool:
    """Whether a leaf under a secret name holds the secret itself.

    Special tokens of text models are no secrets (``pad_token: <pad>``), nor are numbers and
    booleans (``num_key_value_heads: 8``), except for numbers under PASSWORD, SECRET or CREDENTIAL.
    """
    if isinstance(raw, str) and "${" in raw:
        return any(_is_secret_text(default, name) for _, default in _defaults(raw))
    if raw is None or isinstance(raw, bool):
        return False
    return _is_secret_text(str(raw), name)


def hides_literal(raw: object) -> bool:
    """Whether a variable with a secret name has a default: ``${oc.env:HF_TOKEN,abc}``."""
    return isinstance(raw, str) and any(
        is_secret_name(variable) and _is_secret_text(default, variable)
        for variable, default in _defaults(raw)
    )


def _defaults(raw: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in _ENV.finditer(raw) if match[2] is not None]


def _is_secret_text(text: str, name: str) -> bool:
    if text in _NOTHING or _VOCABULARY.fullmatch(text):
        return False
    return not _NUMBER.fullmatch(text) or not _NEVER_COUNTED.isdisjoint(name.upper().split("_"))


def literals(raw: Any, key: str = "", name: object = "") -> Iterator[tuple[str, str, str]]:
    """The secrets that a config holds itself.

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
        if isinstance(raw, str) and "${" in raw:
            yield from ((key, f"${{oc.env:{var}}}", text) for var, text in _defaults(raw))
        else:
            yield key, source_for(str(name)), str(raw)


def safe_source(raw: str, name: object) -> str:
    """A leaf's own text, which resolves to its value again, without the secrets in it."""
    return without_defaults(raw) if is_secret_name(name) or hides_literal(raw) else raw


def without_defaults(raw: str) -> str:
    """A leaf's text with the defaults of its variables left out."""
    return _ENV.sub(lambda match: f"${{oc.env:{match[1]}}}", raw)


def redact(cfg: DictConfig) -> dict[str, Any]:
    """A whole config as it may be written.

    Args:
        cfg: a composed config.

    Returns:
        Plain data, with its interpolations as they stand (so no value from the environment is in
        it) and with ``${oc.env:NAME}`` in place of literal secrets.
    """
    raw = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(raw, dict)
    return {str(key): _redacted(item, key) for key, item in raw.items()}


def _redacted(raw: Any, name: object) -> Any:
    if isinstance(raw, dict):
        return {key: _redacted(item, key) for key, item in raw.items()}
    if isinstance(raw, list):
        return [_redacted(item, name) for item in raw]
    if is_secret_name(name) and is_literal(raw, str(name)):
        return without_defaults(raw) if holds_env(raw) else source_for(str(name))
    return safe_source(raw, name) if isinstance(raw, str) else raw
