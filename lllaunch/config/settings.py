"""The settings of a launch node: each is read once, and what it came to is kept for the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lllaunch.config.args import check_worker_names
from lllaunch.config.fields import read_each
from lllaunch.config.findings import Findings, Unfit
from lllaunch.config.schema import KEYS, PER_WORKER, UNPLANNED
from lllaunch.config.tree import BROKEN, Tree, conceal, has_secrets, leaves, reveal
from lllaunch.macros import names_in

T = TypeVar("T")


class Settings:
    """Reads settings by name.

    Args:
        tree: value of each key of the schema.
        keys: the dotted key that each of them stands under.
        findings: takes what is wrong.
    """

    def __init__(
        self, tree: Mapping[str, Tree], keys: Mapping[str, str], findings: Findings
    ) -> None:
        self.findings = findings
        self._tree = dict(tree)
        self._keys = keys
        self._plan: dict[str, Any] = {}
        for name in KEYS:
            self._check_worker_names(name)

    def __getitem__(self, name: str) -> Tree:
        return self._tree[name]

    def key_of(self, name: str) -> str:
        """The dotted key of a setting."""
        return self._keys[name]

    def plan(self) -> dict[str, Any]:
        """What has been decided, without secrets, in the order of the schema."""
        return {name: self._plan.get(name) for name in KEYS if name not in UNPLANNED}

    def decide(self, name: str, tree: Tree) -> None:
        """Keeps what a setting came to; of a value with secrets, what was written."""
        written = self._tree[name]
        self._plan[name] = conceal(written if has_secrets(written) else tree)

    def decide_parts(self, name: str, tree: Tree) -> None:
        """Keeps what a setting came to, whose secrets are marked leaf by leaf."""
        self._plan[name] = conceal(tree)

    def scalar(
        self,
        name: str,
        read: Callable[[Any], T],
        default: T,
        write: Callable[[T], Any] = lambda value: value,
    ) -> T:
        """Reads a setting that is one value.

        Args:
            name: of the setting.
            read: reads the value; raises `Unfit`.
            default: what it is if it is null, and where it is wrong.
            write: turns it into what a plan says.
        """
        tree = self._tree[name]
        plain = reveal(tree)
        if plain is None:
            value: T | None = default
        else:
            value = self.findings.attempt(self.key_of(name), tree, read)
        value = default if value is None else value
        self.decide(name, write(value))
        return value

    def each(
        self, name: str, read: Callable[[object], T], write: Callable[[T], Any] = str
    ) -> tuple[T, ...]:
        """Reads a setting that is a list.

        Args:
            name: of the setting.
            read: reads one element; raises `Unfit`.
            write: turns an element into what a plan says.
        """
        values = read_each(self._tree[name], self.key_of(name), self.findings, read)
        self.decide(name, [write(value) for value in values])
        return values

    def _check_worker_names(self, name: str) -> None:
        tree, key = self._tree[name], self.key_of(name)
        if name in PER_WORKER:
            check_worker_names(tree, key, self.findings)
            return
        for where, leaf in leaves(tree, key):
            if names_in(reveal(leaf), bare=False):
                message = "asks for a worker's fact where all workers have one value"
                hint = f"only {', '.join(sorted(PER_WORKER))} may have ${{worker:...}}"
                self.findings.add(where, leaf, Unfit(message=message, hint=hint))
                self._tree[name] = BROKEN
