"""Patterns of an allowlist, and what they are held against. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple


class Forms(NamedTuple):
    """What a pattern may fit.

    Attributes:
        names: dotted names, or that of a program.
        file: path, relative to the tree if in it, else absolute; empty if there is none.
        exact: a name that only the same text allows: what is there may be something else.
    """

    names: tuple[str, ...] = ()
    file: str = ""
    exact: str = ""


def is_within(path: str, patterns: Iterable[str]) -> bool:
    """Whether a directory, or what is in it, fits one of some patterns."""
    return any(fits(each, path) or fits(each, f"{path}/") for each in patterns)


def fits(pattern: str, text: str) -> bool:
    """Whether a text fits a pattern; it always fits itself."""
    return pattern == text or fnmatchcase(text, pattern)


def fits_any(patterns: Iterable[str], forms: Forms) -> bool:
    """Whether one of the forms of something fits one of some patterns."""
    return any(
        (forms.exact and each == forms.exact) or _fits_forms(each, forms) for each in patterns
    )


def _fits_forms(pattern: str, forms: Forms) -> bool:
    of_files = not pattern.startswith("-m ") and ("/" in pattern or pattern.endswith(".py"))
    if not of_files and any(fits(pattern, name) for name in forms.names):
        return True
    if not of_files and pattern != "*":
        return False
    # a star that begins a pattern does not lead out of the tree
    if not forms.file or pattern.startswith("/") != forms.file.startswith("/"):
        return False
    return fits(pattern, forms.file)
