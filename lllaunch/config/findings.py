"""How the parts of `lllaunch.config` tell what is wrong: one value at a time, or all together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from lllaunch.config.tree import BROKEN, Tree, has_secrets, reveal, shorten, show
from lllaunch.errors import ConfigError, Problem

T = TypeVar("T")

# More lines than this help nobody; what is left out is counted.
MOST_PROBLEMS = 50


class Unfit(ValueError):
    """A value is not what it should be.

    Attributes:
        expected: what was expected in its place, with the choices or an example (``"a duration (90,
            90s, ...)"``); empty where ``message`` says what is wrong. Never quotes the value.
        hint: what was probably meant, or an empty string. May quote parts of the value.
        detail: what exactly is wrong, or an empty string. May quote parts of the value.
        message: of a value that is of the right kind: what is wrong with it, the predicate of a
            sentence about it (``"does not exist"``), or an empty string. Never quotes it.
    """

    def __init__(
        self, expected: str = "", hint: str = "", detail: str = "", *, message: str = ""
    ) -> None:
        super().__init__(expected or message, hint, detail)
        self.expected = expected
        self.hint = hint
        self.detail = detail
        self.message = message


class Findings:
    """Collects problems, in the order in which they are found.

    Attributes:
        problems: the first `MOST_PROBLEMS` of them.
        count: how many there are.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.count = 0

    def add(self, key: str, value: Tree, unfit: Unfit) -> None:
        """Notes a problem with a value, unless it is broken: that has been noted already.

        Args:
            key: dotted key of the value.
            value: shown without its secrets.
            unfit: what is wrong with it; its hint and detail are left out if the value is secret.
        """
        if value is BROKEN:
            return
        detail, hint = ("", "") if has_secrets(value) else (unfit.detail, unfit.hint)
        message = f"{unfit.message}: {detail}" if unfit.message and detail else unfit.message
        if unfit.expected:
            hint = "; ".join(filter(None, (detail, hint)))
        self.note(Problem(key, show(value), message, hint, expected=unfit.expected))

    def add_about(self, key: str, message: str, hint: str = "") -> None:
        """Notes a problem with a key that has no value worth showing."""
        self.note(Problem(key, "", message, hint))

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
            self.add(key, value, unfit)
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

    def note(self, problem: Problem) -> None:
        """Notes a problem that shows no secrets."""
        self.count += 1
        if len(self.problems) < MOST_PROBLEMS:
            short = replace(
                problem,
                key=shorten(problem.key),
                message=shorten(problem.message),
                hint=shorten(problem.hint),
                expected=shorten(problem.expected),
            )
            self.problems.append(short)
