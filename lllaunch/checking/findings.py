"""What is found wrong, and what came of each experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from lllaunch.errors import Code, Diagnostic

Level = Literal["error", "warning"]

WRONG = 2
"""Code of what is wrong with a config."""

REFUSED = 5
"""Code of what was not reviewed, or is not allowed."""

MOST_ALIKE = 20
"""Warnings of one kind in one file; the others are counted."""


@dataclass(frozen=True)
class CheckedDiagnostic(Diagnostic):
    """One thing that a check has found.

    ``exit_code`` is 2 for what is wrong, 5 for what was not reviewed or is not allowed, 0 for a
    warning; ``experiments`` are those that it hits.
    """

    exit_code: int = WRONG
    experiments: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, diagnostic: Diagnostic, exit_code: int, experiments: tuple[str, ...] = ()
    ) -> CheckedDiagnostic:
        """Return a diagnostic as one of a check."""
        known: dict[str, Any] = {
            each.name: getattr(diagnostic, each.name) for each in fields(Diagnostic)
        }
        return cls(**known, exit_code=exit_code, experiments=experiments)

    @classmethod
    def at(
        cls,
        exit_code: int,
        code: Code,
        file: str,
        line: int,
        key: str,
        message: str,
        experiments: tuple[str, ...] = (),
    ) -> CheckedDiagnostic:
        """Return what is wrong at a line of a file."""
        return cls.of(Diagnostic(code, key, "", message, "", file, line), exit_code, experiments)

    @property
    def level(self) -> Level:
        """``warning``, or ``error`` for what changes the exit code."""
        return "error" if self.exit_code else "warning"


def merged(found: Iterable[CheckedDiagnostic]) -> list[CheckedDiagnostic]:
    """Returns what was found, each thing once with all experiments that it hits, in order."""
    experiments: dict[CheckedDiagnostic, dict[str, None]] = {}
    for each in found:
        alone = replace(each, experiments=())
        experiments.setdefault(alone, {}).update(dict.fromkeys(each.experiments))
    whole = [replace(each, experiments=tuple(names)) for each, names in experiments.items()]
    return sorted(whole, key=lambda each: (each.file, each.line, each.level))


def exit_code(found: Iterable[CheckedDiagnostic], *, strict: bool = False) -> int:
    """Returns the exit code: 2 if something is wrong, else 5 if something is refused, else 0."""
    codes = {WRONG if strict and not each.exit_code else each.exit_code for each in found}
    return next((code for code in (WRONG, REFUSED) if code in codes), 0)


def without(
    found: Iterable[CheckedDiagnostic], hide: Callable[[str], str]
) -> list[CheckedDiagnostic]:
    """Returns what was found without the secrets that texts of it may hold."""

    def hidden(each: CheckedDiagnostic) -> CheckedDiagnostic:
        names = ("key", "value", "message", "hint", "expected")
        texts: dict[str, Any] = {name: hide(getattr(each, name)) for name in names}
        return replace(each, **texts)

    return [hidden(each) for each in found]


@dataclass(frozen=True)
class Checked:
    """One experiment; ``plan_hash`` is empty if it has no plan."""

    name: str
    file: str
    command: tuple[str, ...]
    plan_hash: str = ""
    locked: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was checked, and everything that was found, by file and line."""

    directory: str
    experiments: tuple[Checked, ...]
    locks: tuple[str, ...]
    files: tuple[str, ...]
    found: tuple[CheckedDiagnostic, ...]

    def exit_code(self, *, strict: bool = False) -> int:
        """Returns what the verb ends with."""
        return exit_code(self.found, strict=strict)

    def verdict(self) -> str:
        """Returns one line: ``12 experiments, 3 problems, 1 warning``."""
        count = len(self.experiments)
        problems = sum(bool(each.exit_code) for each in self.found)
        warnings = len(self.found) - problems
        if not self.found:
            return f"{counted(count, 'experiment')}, no problems" if count else "no experiments"
        parts = [counted(count, "experiment")]
        parts += [counted(problems, "problem")] if problems else []
        parts += [counted(warnings, "warning")] if warnings else []
        return ", ".join(parts)

    def hiding(self, hide: Callable[[str], str]) -> Outcome:
        """Returns the same without the secrets that texts may hold."""
        experiments = tuple(
            replace(each, command=tuple(map(hide, each.command))) for each in self.experiments
        )
        return replace(self, experiments=experiments, found=tuple(without(self.found, hide)))


def counted(number: int, what: str) -> str:
    """Returns a number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"
