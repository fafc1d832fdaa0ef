"""The overrides of a run, as Hydra keeps them, without what must not be told."""

from __future__ import annotations

import re

from lllaunch.reports.fields import tidy

_LONGEST = 64 * 1024  # bytes
# Names that say that a value is a secret, as everywhere in lllaunch.
_SECRET = {"TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL"}
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
        secret = not _SECRET.isdisjoint(match[1].upper().split("_"))
        return f"{match[1]}{match[2]}***" if secret else match[0]

    return _SET.sub(hidden, override)
