"""How the parts of `lllaunch.config` tell what is wrong: one value at a time, or all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lllaunch.config.tree import BROKEN, Tree, has_secrets, reveal, shorten, show
from lllaunch.errors import ConfigError, Problem

T = TypeVar("T")

# More lines than this help nobody; what is left out is counted.
MOST_PROBLEMS = 50


class Unfit(ValueError):
    """A value is not what it should be.

    Attributes:
        expected: what was expected, the predicate of a sentence about the value. Never quotes it.
        hint: what was probably meant, or an empty string. May quote parts of the value.
        detail: what exactly is wrong, or an empty string. May quote parts of the value.
    """

    def __init__(self, expected: str, hint: str = "", detail: str = "") -> None:
        super().__init__(expected, hint, detail)
        self.expected = expected
        self.hint = hint
        self.detail = detail


class Findings:
    """Collects problems, in the order in which they are found.

    Attributes:
        problems: the first `MOST_PROBLEMS` of them.
        count: how many there are.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.count = 0

    def add(self, key: str, value: Tree, expected: str, hint: str = "", detail: str = "") -> None:
        """Notes a problem with a value, unless it is broken: that has been noted already.

        Args:
            key: dotted key of the value.
            value: shown without its secrets.
            expected: as in `Unfit`, like the next two, which are left out if the value is secret.
            hint: as in `Unfit`.
            detail: as in `Unfit`.
        """
        if value is BROKEN:
            return
        if has_secrets(value):
            hint = detail = ""
        text = f"{expected}: {detail}" if detail else expected
        self._note(key, show(value), text, hint)

    def add_about(self, key: str, expected: str, hint: str = "") -> None:
        """Notes a problem with a key that has no value worth showing."""
        self._note(key, "", expected, hint)

    def attempt(self, key: str, value: Tree, read: Callable[[Any], T]) -> T | None:
        """Calls ``read`` with the plain value of ``value``.

        Returns:
            What ``read`` returned. None if it raised `Unfit`, which is noted, or if the value is
            broken; then it is not called.
        """
        if value is BROKEN:
            return None
        try:
            return read(reveal(value))
        except Unfit as unfit:
            self.add(key, value, unfit.expected, unfit.hint, unfit.detail)
            return None

    def raise_if_any(self, order: Sequence[str] = ()) -> None:
        """Ends the checks.

        Args:
            order: keys in the order in which problems with them and what is below them are told;
                the others follow as they were found.

        Raises:
            ConfigError: something was found.
        """
        if not self.problems:
            return
        places = {key: place for place, key in enumerate(order)}

        def place(problem: Problem) -> int:
            parts = problem.key.partition("[")[0].split(".")
            above = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
            return next((places[key] for key in above if key in places), len(places))

        left_out = self.count - len(self.problems)
        more = [Problem("and", "", f"{left_out} more problems")] if left_out else []
        raise ConfigError((*sorted(self.problems, key=place), *more))

    def _note(self, key: str, value: str, expected: str, hint: str) -> None:
        self.count += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(shorten(key), value, shorten(expected), shorten(hint)))
