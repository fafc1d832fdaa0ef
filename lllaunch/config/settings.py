"""The settings of a launch node: each is read once, and what it came to is kept for the plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lllaunch.config.fields import Findings, Unfit, no_such_name, read_each
from lllaunch.config.schema import KEYS, PER_WORKER, UNPLANNED
from lllaunch.config.tree import BROKEN, Tree, Withheld, conceal, has_secrets, leaves, reveal
from lllaunch.macros import WORKER_NAMES, names_in


def read_call(tree: Tree, key: str, findings: Findings) -> tuple[list[Tree], dict[str, Tree]]:
    """Arguments of a function: a list is positional, a mapping is keywords.

    Args:
        tree: value of ``args``; None for no arguments.
        key: its key, for messages.
        findings: takes what is wrong.

    Returns:
        Positional and keyword arguments.
    """
    if isinstance(tree, list):
        return tree, {}
    if not _is_mapping_or_none(tree, key, findings):
        return [], {}
    for name in tree or {}:
        if not isinstance(name, str) or not name.isidentifier():
            unfit = Unfit("the name of an argument of a function")
            findings.add(f"{key}.{name}", name, unfit)
    return [], dict(tree or {})


def read_command_line(tree: Tree, key: str, findings: Findings) -> list[Tree]:
    """Arguments of a script, module or program.

    Args:
        tree: value of ``args``. A list is taken as it is. Of a mapping, ``key: value`` becomes
            ``--key value``, ``key: true`` becomes ``--key``, ``key: [a, b]`` becomes
            ``--key a b``, and null, false and an empty list nothing. A key that begins with ``-``
            is taken as it is.
        key: its key, for messages.
        findings: takes what is wrong.

    Returns:
        Texts, those that are secrets withheld.
    """
    if isinstance(tree, list):
        items = ((f"{key}[{index}]", item) for index, item in enumerate(tree))
        texts = [_text(item, where, findings) for where, item in items]
        return [text for text in texts if text is not None]
    if not _is_mapping_or_none(tree, key, findings):
        return []
    words: list[Tree] = []
    for name, value in (tree or {}).items():
        words += _option(name, value, f"{key}.{name}", findings)
    return words


def _is_mapping_or_none(tree: Tree, key: str, findings: Findings) -> bool:
    if tree is None or isinstance(tree, dict):
        return True
    findings.add(key, tree, Unfit("a list or a mapping of arguments"))
    return False


def _option(name: object, value: Tree, key: str, findings: Findings) -> list[Tree]:
    if not isinstance(name, str) or not name or any(c.isspace() or c in "=\0" for c in name):
        unfit = Unfit("the name of an option, text without blanks and '='", "quote it")
        findings.add(key, name, unfit)
        return []
    plain = reveal(value)
    if plain is None or plain is False or plain == []:
        return []
    flag = name if name.startswith("-") else f"--{name}"
    if plain is True:
        return [flag]
    items = [(key, value)]
    if isinstance(value, list):
        items = [(f"{key}[{index}]", item) for index, item in enumerate(value)]
    texts = [_text(item, where, findings) for where, item in items]
    return [flag, *(text for text in texts if text is not None)]


def _text(value: Tree, key: str, findings: Findings) -> Tree:
    text = findings.attempt(key, value, _as_text)
    return Withheld(text, value.source) if isinstance(value, Withheld) else text


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        raise Unfit("text or a number", "quote it, or leave it out")
    if isinstance(value, (dict, list)):
        raise Unfit("text or a number", "quote it")
    try:
        text = str(value)
    except ValueError:
        raise Unfit("a number of fewer digits", "quote it") from None
    if "\0" in text:
        raise Unfit("text without NUL characters")
    return text


def check_worker_names(tree: Tree, key: str, findings: Findings) -> None:
    """Notes each ``${worker:NAME}`` that has no such name."""
    for where, leaf in leaves(tree, key):
        for name in sorted(names_in(reveal(leaf), bare=False) - {*WORKER_NAMES}):
            findings.add(where, leaf, no_such_name(name))


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
