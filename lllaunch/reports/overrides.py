"""The overrides of a run, as Hydra keeps them, without what must not be told."""

from __future__ import annotations

import re

from lllaunch.reports.fields import tidy
from lllaunch.secret_names import is_secret_name

_LONGEST = 64 * 1024  # bytes
_SET = re.compile(r"""(\w+)(["']?\s*[:=]\s*)(?!["']?\$\{)("[^"]*"|'[^']*'|[^,{}\[\]]+)""")


def read_overrides(path: str) -> tuple[str, ...]:
    """Returns the overrides of a run, without secrets; none if they are not known.

    Args:
        path: Hydra's file of them.
    """
    import yaml  # type: ignore[import-untyped] # noqa: PLC0415 - OmegaConf's, only here

    try:
        with open(path, "rb") as file:
            found = yaml.safe_load(file.read(_LONGEST))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return ()
    known = found if isinstance(found, list) else []
    return tuple(without_secrets(tidy(each)) for each in known if isinstance(each, str))


def without_secrets(override: str) -> str:
    """Returns an override without literals under names that say that they are secrets.

    Args:
        override: as it was written on a command line.
    """

    def hidden(match: re.Match[str]) -> str:
        return f"{match[1]}{match[2]}***" if is_secret_name(match[1]) else match[0]

    return _SET.sub(hidden, override)
