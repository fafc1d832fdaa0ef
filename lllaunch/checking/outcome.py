"""What a check comes to. Pure data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lllaunch.checking.findings import Found, exit_code, without


@dataclass(frozen=True)
class Checked:
    """One experiment.

    Attributes:
        name: of the experiment.
        file: its config, as the user would type it.
        command: overrides and flags that run it.
        plan_hash: of its plan; empty if it has none.
        locked: whether nothing but the reviewed plan of it may run.
    """

    name: str
    file: str
    command: tuple[str, ...]
    plan_hash: str = ""
    locked: bool = False


@dataclass(frozen=True)
class Outcome:
    """What was checked, and what was found.

    Attributes:
        directory: top of the tree, as the user would type it.
        experiments: in order of their names.
        locks: paths of the locks.
        files: paths of the other files.
        found: everything, by file and line.
    """

    directory: str
    experiments: tuple[Checked, ...]
    locks: tuple[str, ...]
    files: tuple[str, ...]
    found: tuple[Found, ...]

    def exit_code(self, *, strict: bool = False) -> int:
        """Returns what the verb ends with.

        Args:
            strict: whether warnings count.
        """
        return exit_code(self.found, strict=strict)

    def verdict(self) -> str:
        """Returns one line: ``12 experiments, 3 problems, 1 warning``."""
        count = len(self.experiments)
        problems = sum(bool(each.code) for each in self.found)
        warnings = len(self.found) - problems
        if not self.found:
            return f"{counted(count, 'experiment')}, no problems" if count else "no experiments"
        parts = [counted(count, "experiment")]
        parts += [counted(problems, "problem")] if problems else []
        parts += [counted(warnings, "warning")] if warnings else []
        return ", ".join(parts)

    def hiding(self, hide: Callable[[str], str]) -> Outcome:
        """Returns the same without the secrets that texts may hold.

        Args:
            hide: takes them out of a text.
        """
        experiments = tuple(
            replace(each, command=tuple(map(hide, each.command))) for each in self.experiments
        )
        return replace(self, experiments=experiments, found=tuple(without(self.found, hide)))


def counted(number: int, what: str) -> str:
    """Returns a number with its noun."""
    return f"{number} {what}{'' if number == 1 else 's'}"
