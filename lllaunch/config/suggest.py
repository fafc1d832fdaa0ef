"""What was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A hint such as ``did you mean 'all'?``, or an empty string if nothing is near.

    Args:
        word: what was written; longer words than 100 characters are near to nothing.
        choices: what could have been written.
    """
    near = nearest(word, choices)
    return f"did you mean {near!r}?" if near else ""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return the nearest of all choices, or an empty string; as `did_you_mean` has it."""
    if len(word) > 100:
        return ""
    by_lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else ""


def one_of(words: Iterable[str]) -> str:
    """``a, b or c``."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last
