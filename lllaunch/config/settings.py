"""The settings of a launch node, by name, and the arguments of what the workers run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from lllaunch.config.fields import Findings, no_such_name, read_each
from lllaunch.config.tree import BROKEN, Tree, Withheld, leaves, reveal
from lllaunch.errors import Code, Unfit
from lllaunch.launch_settings import KEYS, PER_WORKER
from lllaunch.macros import WORKER_NAMES, names_in
from lllaunch.spec import Path


def read_call(tree: Tree, key: str, findings: Findings) -> tuple[list[Tree], dict[str, Tree]]:
    """Return positional and keyword arguments of a function: a list or a mapping."""
    if isinstance(tree, list):
        return tree, {}
    if not _is_mapping_or_none(tree, key, findings):
        return [], {}
    for name in tree or {}:
        if not isinstance(name, str) or not name.isidentifier():
            unfit = Unfit("the name of an argument of a function", code="arguments")
            findings.add(f"{key}.{name}", name, unfit)
    return [], dict(tree or {})


Word = tuple[Tree, Path]
"""A word of a command line, and the path below ``args`` of what it was made from."""


def read_command_line(
    tree: Tree, key: str, findings: Findings, code: Code = "arguments"
) -> list[Word]:
    """Return the words of a script, module or program; texts that are secrets are withheld.

    A list is taken as it is. Of a mapping, ``key: value`` becomes ``--key value``, ``key: true``
    becomes ``--key``, ``key: [a, b]`` becomes ``--key a b``, and null, false and an empty list
    nothing. A key that begins with ``-`` is taken as it is.
    """
    if isinstance(tree, list):
        return _words(tree, (), key, findings, code)
    if not _is_mapping_or_none(tree, key, findings):
        return []
    words: list[Word] = []
    for name, value in (tree or {}).items():
        words += _option(name, value, f"{key}.{name}", findings)
    return words


def _is_mapping_or_none(tree: Tree, key: str, findings: Findings) -> bool:
    if tree is None or isinstance(tree, dict):
        return True
    findings.add(key, tree, Unfit("a list or a mapping of arguments", code="type"))
    return False


def _option(name: object, value: Tree, key: str, findings: Findings) -> list[Word]:
    if not isinstance(name, str) or not name or any(c.isspace() or c in "=\0" for c in name):
        unfit = Unfit(
            "the name of an option, text without blanks and '='", "quote it", code="arguments"
        )
        findings.add(key, name, unfit)
        return []
    plain = reveal(value)
    if plain is None or plain is False or plain == []:
        return []
    flag: Word = (name if name.startswith("-") else f"--{name}", (name,))
    if plain is True:
        return [flag]
    if isinstance(value, list):
        return [flag, *_words(value, (name,), key, findings)]
    text = _text(value, key, findings)
    return [flag] if text is None else [flag, (text, (name,))]


def _words(
    items: list[Tree], path: Path, key: str, findings: Findings, code: Code = "arguments"
) -> list[Word]:
    texts = [_text(item, f"{key}[{index}]", findings, code) for index, item in enumerate(items)]
    return [(text, (*path, index)) for index, text in enumerate(texts) if text is not None]


def _text(value: Tree, key: str, findings: Findings, code: Code = "arguments") -> Tree:
    text = findings.attempt(key, value, lambda plain: _as_text(plain, code))
    return Withheld(text, value.source) if isinstance(value, Withheld) else text


def _as_text(value: Any, code: Code) -> str:
    if value is None or isinstance(value, bool):
        raise Unfit("text or a number", "quote it, or leave it out", code=code)
    if isinstance(value, (dict, list)):
        raise Unfit("text or a number", "quote it", code=code)
    try:
        text = str(value)
    except ValueError:
        raise Unfit("a number of fewer digits", "quote it", code=code) from None
    if "\0" in text:
        raise Unfit("text without NUL characters", code=code)
    return text


T = TypeVar("T")


class Settings:
    """Reads settings by name; ``given`` are those that somebody has set, to the default or not."""

    def __init__(
        self,
        tree: Mapping[str, Tree],
        keys: Mapping[str, str],
        findings: Findings,
        given: Collection[str] = (),
    ) -> None:
        self.findings = findings
        self._tree = dict(tree)
        self._keys = keys
        self._given = frozenset(given)
        for name in KEYS:
            self._check_worker_names(name)

    def __getitem__(self, name: str) -> Tree:
        return self._tree[name]

    def is_given(self, name: str) -> bool:
        """Whether somebody has set it."""
        return name in self._given

    def key_of(self, name: str) -> str:
        """The dotted key of a setting."""
        return self._keys[name]

    def scalar(self, name: str, read: Callable[[Any], T], default: T) -> T:
        """Read a setting that is one value; ``default`` is for null and what is wrong."""
        tree = self._tree[name]
        plain = reveal(tree)
        if plain is None:
            value: T | None = default
        else:
            value = self.findings.attempt(self.key_of(name), tree, read)
        return default if value is None else value

    def each(self, name: str, read: Callable[[object], T]) -> tuple[T, ...]:
        """Reads a setting that is a list."""
        return read_each(self._tree[name], self.key_of(name), self.findings, read)

    def with_value(self, name: str, value: Tree) -> Settings:
        """Return the same settings with another value of one."""
        other = copy.copy(self)
        other._tree = {**self._tree, name: value}
        return other

    def _check_worker_names(self, name: str) -> None:
        tree, key = self._tree[name], self.key_of(name)
        for where, leaf in leaves(tree, key):
            names = names_in(reveal(leaf), bare=False)
            if name in PER_WORKER:
                for each in sorted(names - {*WORKER_NAMES}):
                    self.findings.add(where, leaf, no_such_name(each))
            elif names:
                message = "asks for a worker's fact where all workers have one value"
                hint = f"only {', '.join(sorted(PER_WORKER))} may have ${{worker:...}}"
                self.findings.add(
                    where, leaf, Unfit(message=message, hint=hint, code="worker-variable")
                )
                self._tree[name] = BROKEN
