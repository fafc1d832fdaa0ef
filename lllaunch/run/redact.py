"""Keeps secrets out of what is written: their values are replaced by where they come from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lllaunch.spec import LaunchSpec

# Replacing every 'a' or '1' of a report would hide more than it protects.
_SHORTEST = 4


class Redactor:
    """Replaces the values of secrets in text.

    Args:
        secrets: by value, the text that stands for it (``${oc.env:NAME}``).
    """

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        self._names = {
            value: name for value, name in (secrets or {}).items() if len(value) >= _SHORTEST
        }
        # the longest first: a secret may hold another one
        longest = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest))) if longest else None

    @classmethod
    def of(cls, spec: LaunchSpec) -> Redactor:
        """Returns the redactor for the secrets that a run gives to its workers."""
        return cls(dict(_values(spec)))

    def __call__(self, text: str) -> str:
        """Returns ``text`` without the values of secrets."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._names[found[0]], text)


def _values(spec: LaunchSpec) -> Iterator[tuple[str, str]]:
    yield from spec.hidden.items()
    for env in (spec.env, *spec.env_per_rank.values()):
        for name, stands_for in spec.secrets.items():
            if name in env:
                yield env[name], stands_for
