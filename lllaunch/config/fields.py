"""How fields are read: what is expected, what was meant, and all that is wrong together.

What reads a value raises `Unfit` for anything else.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from lllaunch.config.tree import (
    BROKEN,
    Tree,
    has_secrets,
    leaf_items,
    part_of,
    reveal,
    show,
    written_key,
)
from lllaunch.errors import Code, ConfigError, Diagnostic, Unfit
from lllaunch.spec import KEYS, PER_WORKER, WORKER_NAMES, names_in
from lllaunch.text import shorten


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A hint such as ``did you mean 'all'?``, or an empty string if nothing is near.

    Nothing is near a word of more than 100 characters.
    """
    by_lower = {choice.lower(): choice for choice in choices} if len(word) <= 100 else {}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    near = near or [choice for choice in by_lower if choice.startswith(word.lower())]
    return f"did you mean {by_lower[near[0]]!r}?" if near else ""


def one_of(words: Iterable[str]) -> str:
    """``a, b or c``."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


T = TypeVar("T")

# More lines than this help nobody; what is left out is counted.
MOST_PROBLEMS = 50


class Findings:
    """Collects problems in order: the first `MOST_PROBLEMS` of them, and how many there are."""

    def __init__(self) -> None:
        self.problems: list[Diagnostic] = []
        self.count = 0

    def add(self, key: str, value: Tree, unfit: Unfit) -> None:
        """Notes a problem with a value, unless it is broken: that has been noted already.

        The value is shown without its secrets; hint and detail are left out if it is secret.
        """
        if value is not BROKEN:
            self.note(unfit.at(key, show(value), secret=has_secrets(value)))

    def add_about(self, key: str, message: str, hint: str = "", *, code: Code) -> None:
        """Notes a problem with a key that has no value worth showing."""
        self.note(Diagnostic(code, key, "", message, hint))

    def mapping(
        self, key: str, tree: Tree, expected: str, hint: str = "", code: Code = "type"
    ) -> dict[Any, Tree]:
        """Return a mapping; nothing for null, or what is noted to be something else."""
        if isinstance(tree, dict):
            return tree
        if tree is not None:
            self.add(key, tree, Unfit(expected, hint, code=code))
        return {}

    def attempt(self, key: str, value: Tree, read: Callable[[Any], T]) -> T | None:
        """Calls ``read`` with the plain value of ``value``.

        None if that raised `Unfit`, which is noted, or if the value is broken; then it is not
        called.
        """
        if value is BROKEN:
            return None
        try:
            return read(reveal(value))
        except Unfit as unfit:
            self.add(key, value, unfit)
            return None

    def raise_if_any(self, order: Sequence[str] = ()) -> None:
        """Raise a `ConfigError` if something was found; keys of ``order`` come first."""
        if not self.problems:
            return
        places = {key: place for place, key in enumerate(order)}

        def place(problem: Diagnostic) -> int:
            parts = problem.key.partition("[")[0].split(".")
            above = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
            return next((places[key] for key in above if key in places), len(places))

        left_out = self.count - len(self.problems)
        more = [Diagnostic("more", "and", "", f"{left_out} more problems")] if left_out else []
        raise ConfigError((*sorted(self.problems, key=place), *more))

    def note(self, problem: Diagnostic) -> None:
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


def hinted(read: Callable[[Any], T], hint: str, expected: str = "") -> Callable[[Any], T]:
    """Return a reader that gives a hint where the other one has none.

    With ``expected`` it says so what it expects.
    """

    def read_with_hint(value: Any) -> T:
        try:
            return read(value)
        except Unfit as unfit:
            parts = expected or unfit.expected, unfit.hint or hint, unfit.detail
            raise Unfit(*parts, message=unfit.message, code=unfit.code) from None

    return read_with_hint


def known_items(
    node: Mapping[Any, Tree],
    key: str,
    names: Collection[str],
    findings: Findings,
    synonyms: Mapping[str, str] = {},
    explained: Mapping[str, str] = {},
    otherwise: str = "",
) -> dict[str, Tree]:
    """Return the items of a mapping that are settings; the others are problems.

    ``explained`` says, for names that exist elsewhere but not here, what to do instead, and
    ``otherwise`` for those that are like none.
    """
    unknown = [name for name in node if name not in names]
    # looking for what was meant takes time
    for name in unknown[:MOST_PROBLEMS]:
        word = str(name).lower().replace("-", "_")
        known = word if word in names else synonyms.get(word)
        known = known or (f"launch.{word}" if word in KEYS and key != "launch" else "")
        hint = f"did you mean {known!r}?" if known else did_you_mean(word, names)
        hint = explained.get(str(name)) or hint or otherwise
        findings.add_about(f"{key}.{name}", "unknown setting", hint, code="unknown-key")
    findings.count += len(unknown[MOST_PROBLEMS:])
    return {name: item for name, item in node.items() if name in names}


_REFUSED_SIGNALS = {
    signal.SIGKILL: "no process can handle it",
    signal.SIGSTOP: "no process can handle it",
    signal.SIGCHLD: "by it the system tells the launcher of its own children",
}
_SIGNAL = "the name of a signal (SIGTERM, SIGINT, ...)"
_BARE_NAME = re.compile(r"\$\{(\w+)\}", re.ASCII)
_MOST_RESTARTS = 1_000_000


def read_text(value: object) -> str:
    """Read text that is not empty."""
    if not isinstance(value, str):
        raise Unfit(
            "text", "quote it" if isinstance(value, (bool, int, float)) else "", code="text"
        )
    if not value.strip():
        raise Unfit("text that is not empty", code="text")
    if "\0" in value:
        raise Unfit("text without NUL characters", code="text")
    return value


def read_line(value: object) -> str:
    """Read text on one line."""
    text = read_text(value)
    if not text.isprintable():
        raise Unfit("one line of printable characters", code="text")
    return text


def read_word(value: object) -> str:
    """Read text on one line, or a whole number as text: jobs and accounts may have numbers."""
    number = isinstance(value, int) and not isinstance(value, bool)
    return read_line(str(value) if number else value)


def read_locked(value: object) -> bool | str:
    """Read true, false, or the name of a lock."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise Unfit("true, false or the name of a lock", code="choice")
    return read_line(value)


def read_flag(value: object) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        quoted = isinstance(value, str) and value.lower() in {"true", "false"}
        raise Unfit("true or false", "write it without quotes" if quoted else "", code="choice")
    return value


def read_count(value: object, least: int = 0) -> int:
    """Read a whole number."""
    # Text: what ${oc.env:N} gives is always text.
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Unfit(f"a whole number, {least} or more", code="number")
    if value > _MOST_RESTARTS:
        raise Unfit(f"a whole number, {_MOST_RESTARTS} at most", code="number")
    return value


read_positive = partial(read_count, least=1)


def read_choice(value: object, choices: Iterable[str]) -> str:
    """Read one of some words."""
    words = list(choices)
    if isinstance(value, str) and value in words:
        return value
    hint = did_you_mean(value, words) if isinstance(value, str) else ""
    raise Unfit(one_of(words), hint, code="choice")


def read_signal(value: object) -> signal.Signals:
    """Read a signal that can be handled by its name, with or without SIG."""
    names = [each.name for each in signal.Signals]
    if not isinstance(value, str):
        raise Unfit(_SIGNAL, code="signal")
    word = value.strip().upper()
    word = word if word.startswith("SIG") else f"SIG{word}"
    if word not in names:
        raise Unfit(_SIGNAL, did_you_mean(word, names), code="signal")
    signum = signal.Signals[word]
    if signum in _REFUSED_SIGNALS:
        raise Unfit(
            "a signal that the launcher can handle", _REFUSED_SIGNALS[signum], code="signal"
        )
    return signum


def read_each(
    tree: Tree, key: str, findings: Findings, read: Callable[[object], T]
) -> tuple[T, ...]:
    """Reads the elements of a list, or of text separated by commas.

    What is wrong is left out.
    """
    plain = reveal(tree)
    if plain is None:
        return ()
    if isinstance(plain, dict):
        findings.add(key, tree, Unfit("a list", code="type"))
        return ()
    if isinstance(tree, list):
        elements = [(f"{key}[{index}]", item) for index, item in enumerate(tree)]
    elif isinstance(plain, str):
        elements = [(key, part_of(word, tree)) for word in plain.split(",") if plain.strip()]
    else:
        elements = [(key, tree)]
    values = [findings.attempt(where, item, read) for where, item in elements]
    return tuple(value for value in values if value is not None)


def read_prefix(value: object) -> str:
    """Read the prefix of shown lines; torch's ``${rank}`` becomes ``${worker:rank}``."""
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
    return Unfit(expected, hint, f"there is no {name!r}", code="worker-variable")


def read_directory(value: object, runtime_cwd: str, made: str = "") -> str:
    """Read an existing directory; ``made`` is one that will exist when it is needed."""
    path = os.path.normpath(os.path.join(runtime_cwd, read_text(value)))
    if os.path.isdir(path) or (path == made and not os.path.lexists(path)):
        return path
    expected = "a directory" if os.path.exists(path) else "a directory that exists"
    raise Unfit(expected, code="directory")


def read_new_directory(value: object, runtime_cwd: str) -> str:
    """Read a directory that exists or can be made."""
    path = os.path.normpath(os.path.join(runtime_cwd, read_text(value)))
    existing = path
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    if os.path.isdir(existing):
        return path
    detail = f"{existing!r} is not a directory"
    raise Unfit("a directory that exists or can be made", detail=detail, code="directory")


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
        if reveal(tree) is None:
            return default
        value = self.findings.attempt(self.key_of(name), tree, read)
        return default if value is None else value

    def each(self, name: str, read: Callable[[object], T]) -> tuple[T, ...]:
        """Reads a setting that is a list."""
        return read_each(self._tree[name], self.key_of(name), self.findings, read)

    def change(self, name: str, value: Tree) -> None:
        """Give one another value."""
        self._tree[name] = value

    def _check_worker_names(self, name: str) -> None:
        tree, key = self._tree[name], self.key_of(name)
        for path, leaf in leaf_items(tree):
            where, names = written_key((key, *path)), names_in(reveal(leaf))
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
