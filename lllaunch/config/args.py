"""``args``: a list or a mapping, for a function or for a command line."""

from __future__ import annotations

from typing import Any

from lllaunch.config.fields import no_such_name
from lllaunch.config.findings import Findings, Unfit
from lllaunch.config.tree import Tree, Withheld, leaves, reveal
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
