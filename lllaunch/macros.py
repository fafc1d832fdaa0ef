r"""What is known only per worker: ``${worker:rank}`` and its kin, put in when it is prepared.

The text form is chosen so that it survives OmegaConf: the resolver named ``worker`` returns its
own text. torch's templates (``${rank}``, written ``\${rank}`` in YAML) are understood as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

WORKER_NAMES = (
    "role_name",
    "rank",
    "local_rank",
    "world_size",
    "local_world_size",
    "group_rank",
    "group_world_size",
    "role_rank",
    "role_world_size",
    "hostname",
    "restart_count",
    "attempt",
    "run_id",
    "master_addr",
    "master_port",
)

T = TypeVar("T")

_KNOWN = "|".join(WORKER_NAMES)
_WORKER = re.compile(rf"\$\{{worker:({_KNOWN})\}}")
_WORKER_OR_BARE = re.compile(rf"\$\{{(?:worker:)?({_KNOWN})\}}")
_BARE = re.compile(rf"\$\{{({_KNOWN})\}}")
_ANY_WORKER = re.compile(r"\$\{worker:([^{}]*)\}")


def substitute(value: T, facts: Mapping[str, str], *, bare: bool = True) -> T:
    """Put one worker's facts into the texts of a value (not into keys of dicts).

    A name without a fact stays as it is written. ``bare``: torch's ``${rank}`` counts too. Values
    from a config should say False: there ``${hostname}`` in a shell command is the shell's.
    """
    pattern = _WORKER_OR_BARE if bare else _WORKER

    def changed(text: str) -> str:
        return pattern.sub(lambda match: facts.get(match[1], match[0]), text)

    return cast("T", _mapped(value, changed))


def names_in(value: object, *, bare: bool = True) -> set[str]:
    """Return the names that a value asks for, misspelt ones included; ``bare`` as above."""
    found: set[str] = set()

    def noted(text: str) -> str:
        found.update(_ANY_WORKER.findall(text), _BARE.findall(text) if bare else ())
        return text

    _mapped(value, noted)
    return found


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value whose texts are changed, but for keys."""
    if isinstance(value, str):
        return change(value) if "${" in value else value
    if isinstance(value, dict):
        return {key: _mapped(item, change) for key, item in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_mapped(item, change) for item in value)
    return value
