"""What a check finds, told once however many experiments it hits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["error", "warning"]

WRONG = 2
"""Code of what is wrong with a config."""

REFUSED = 5
"""Code of what was not reviewed, or is not allowed."""

MOST_ALIKE = 20
"""Warnings of one kind in one file; the others are counted."""


@dataclass(frozen=True)
class Found:
    """One thing that a check has found.

    Attributes:
        code: 2 for what is wrong, 5 for what was not reviewed or is not allowed, 0 for a warning.
        file: path, as the user would type it.
        line: from 1; 0 where it is about the file as a whole.
        key: dotted key, or an empty string.
        message: what is to be said about it.
        experiments: names of those that it hits.
    """

    code: int
    file: str
    line: int
    key: str
    message: str
    experiments: tuple[str, ...] = ()

    @property
    def level(self) -> Level:
        """``warning``, or ``error`` for what changes the exit code."""
        return "error" if self.code else "warning"

    @property
    def place(self) -> str:
        """File and line as compilers write them."""
        return f"{self.file}:{self.line}" if self.line else self.file

    @property
    def said(self) -> str:
        """The message, with the key before it."""
        return f"{self.key}: {self.message}" if self.key else self.message


def merged(found: Iterable[Found]) -> list[Found]:
    """Returns what was found, each thing once with all experiments that it hits, in order."""
    experiments: dict[Found, dict[str, None]] = {}
    for each in found:
        alone = replace(each, experiments=())
        experiments.setdefault(alone, {}).update(dict.fromkeys(each.experiments))
    whole = [replace(each, experiments=tuple(names)) for each, names in experiments.items()]
    return sorted(whole, key=lambda each: (each.file, each.line, each.level))


def exit_code(found: Iterable[Found], *, strict: bool = False) -> int:
    """Returns the exit code: 2 if something is wrong, else 5 if something is refused, else 0.

    Args:
        found: everything.
        strict: whether warnings count as wrong.
    """
    codes = {WRONG if strict and not each.code else each.code for each in found}
    return next((code for code in (WRONG, REFUSED) if code in codes), 0)


def without(found: Iterable[Found], hide: Callable[[str], str]) -> list[Found]:
    """Returns what was found without the secrets that texts of it may hold."""
    return [replace(each, key=hide(each.key), message=hide(each.message)) for each in found]
