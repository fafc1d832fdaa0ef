"""Which names say that what they name is a secret, everywhere in lllaunch."""

from __future__ import annotations

_WORDS = frozenset({"TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIAL"})


def is_secret_name(name: object) -> bool:
    """Whether a name has one of these words as a word of its own, between underscores."""
    return isinstance(name, str) and not _WORDS.isdisjoint(name.upper().split("_"))
