"""Readers of single values, which raise `Unfit`, and of lists, which note each bad element."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable
from typing import TypeVar

from lllaunch.config.findings import Findings, Unfit
from lllaunch.config.suggest import did_you_mean, one_of
from lllaunch.config.tree import Tree, Withheld, reveal
from lllaunch.macros import WORKER_NAMES

T = TypeVar("T")

_REFUSED_SIGNALS = {
    signal.SIGKILL: "no process can handle it",
    signal.SIGSTOP: "no process can handle it",
    signal.SIGCHLD: "by it the system tells the launcher of its own children",
}
_SIGNAL = "the name of a signal (SIGTERM, SIGINT, ...)"
_BARE_NAME = re.compile(r"\$\{(\w+)\}", re.ASCII)
_MOST_RESTARTS = 1_000_000
UNLOCKED: bool | str = False
"""What `read_locked` makes of nothing."""


def read_text(value: object) -> str:
    """Text that is not empty.

    Raises:
        Unfit: it is anything else.
    """
    if not isinstance(value, str):
        raise Unfit("text", "quote it" if isinstance(value, (bool, int, float)) else "")
    if not value.strip():
        raise Unfit("text that is not empty")
    if "\0" in value:
        raise Unfit("text without NUL characters")
    return value


def read_line(value: object) -> str:
    """Text on one line.

    Raises:
        Unfit: it is anything else.
    """
    text = read_text(value)
    if not text.isprintable():
        raise Unfit("one line of printable characters")
    return text


def read_locked(value: object) -> bool | str:
    """True, false, or the name of a lock.

    Raises:
        Unfit: it is anything else.
    """
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise Unfit("true, false or the name of a lock")
    return read_line(value)


def read_flag(value: object) -> bool:
    """True or false.

    Raises:
        Unfit: it is anything else.
    """
    if not isinstance(value, bool):
        quoted = isinstance(value, str) and value.lower() in {"true", "false"}
        raise Unfit("true or false", "write it without quotes" if quoted else "")
    return value


def read_count(value: object) -> int:
    """A whole number, 0 or more.

    Raises:
        Unfit: it is anything else.
    """
    # Text: what ${oc.env:N} gives is always text.
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Unfit("a whole number, 0 or more")
    if value > _MOST_RESTARTS:
        raise Unfit(f"a whole number, {_MOST_RESTARTS} at most")
    return value


def read_choice(value: object, choices: Iterable[str], synonyms: dict[str, str]) -> str:
    """One of some words.

    Raises:
        Unfit: it is anything else.
    """
    words = list(choices)
    if isinstance(value, str) and value in words:
        return value
    hint = ""
    if isinstance(value, str):
        hint = synonyms.get(value.lower(), "") or did_you_mean(value, words)
    raise Unfit(one_of(words), hint)


def read_signal(value: object) -> signal.Signals:
    """A signal by name, with or without SIG.

    Raises:
        Unfit: it is no signal, or none that can be handled.
    """
    names = [each.name for each in signal.Signals]
    if not isinstance(value, str):
        raise Unfit(_SIGNAL)
    word = value.strip().upper()
    word = word if word.startswith("SIG") else f"SIG{word}"
    if word not in names:
        raise Unfit(_SIGNAL, did_you_mean(word, names))
    signum = signal.Signals[word]
    if signum in _REFUSED_SIGNALS:
        raise Unfit("a signal that the launcher can handle", _REFUSED_SIGNALS[signum])
    return signum


def read_each(
    tree: Tree, key: str, findings: Findings, read: Callable[[object], T]
) -> tuple[T, ...]:
    """Reads the elements of a list, or of text separated by commas.

    Args:
        tree: the value; None for an empty list.
        key: its key, for messages.
        findings: takes what is wrong, by element.
        read: reads one element.

    Returns:
        What was read, without what is wrong.
    """
    plain = reveal(tree)
    if plain is None:
        return ()
    if isinstance(plain, dict):
        findings.add(key, tree, Unfit("a list"))
        return ()
    if isinstance(tree, list):
        elements = [(f"{key}[{index}]", item) for index, item in enumerate(tree)]
    elif isinstance(plain, str):
        elements = [(key, _part(word, tree)) for word in plain.split(",") if plain.strip()]
    else:
        elements = [(key, tree)]
    values = [findings.attempt(where, item, read) for where, item in elements]
    return tuple(value for value in values if value is not None)


def _part(word: str, tree: Tree) -> Tree:
    return Withheld(word.strip(), tree.source) if isinstance(tree, Withheld) else word.strip()


def read_prefix(value: object) -> str:
    """A template of the prefix of shown lines; torch's ``${rank}`` becomes ``${worker:rank}``.

    Raises:
        Unfit: it is no text, or asks for a fact that there is not.
    """
    if value == "":
        return ""
    text = read_line(value)
    for name in sorted({*_BARE_NAME.findall(text)} - {*WORKER_NAMES}):
        raise no_such_name(name)
    return _BARE_NAME.sub(r"${worker:\1}", text)


def no_such_name(name: str) -> Unfit:
    """Return what is wrong with text that has ``${worker:NAME}`` for a name that there is not."""
    hint = did_you_mean(name, WORKER_NAMES) or f"there are {', '.join(WORKER_NAMES)}"
    expected = "${worker:NAME} with the name of a fact (rank, local_rank, hostname, ...)"
    return Unfit(expected, hint, f"there is no {name!r}")


def read_directory(value: object, runtime_cwd: str, made: str = "") -> str:
    """A directory that is there.

    Args:
        value: relative to ``runtime_cwd``.
        runtime_cwd: absolute.
        made: one that will be there when it is needed, absolute.

    Raises:
        Unfit: it is not.
    """
    path = os.path.normpath(os.path.join(runtime_cwd, read_text(value)))
    if os.path.isdir(path) or (path == made and not os.path.lexists(path)):
        return path
    raise Unfit("a directory" if os.path.exists(path) else "a directory that exists")


def read_new_directory(value: object, runtime_cwd: str) -> str:
    """A directory that is there or can be made.

    Raises:
        Unfit: something else bears its name, or one of its parents'.
    """
    path = os.path.normpath(os.path.join(runtime_cwd, read_text(value)))
    existing = path
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if os.path.isdir(existing):
        return path
    raise Unfit("a directory that exists or can be made", "", f"{existing!r} is not a directory")
