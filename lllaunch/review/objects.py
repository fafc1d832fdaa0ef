"""Where a name is defined, told without importing anything.

``examples.train:os.system`` begins with an allowed module and runs something else: the module
imports ``os``. So names are followed through imports, stars and plain aliases to the module whose
source defines them. What cannot be told that way is said to be unknown, never guessed.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lllaunch.config.locate import DEFINITIONS, Binding, NameStatus, bindings_in, locate

_MOST_FILES = 300
_MOST_HOPS = 40


class Definition(NamedTuple):
    """Where something is defined."""

    module: str
    qualname: str
    file: str


class _Unknown(Exception):
    """It cannot be told without importing."""


class _Missing(_Unknown):
    """The module certainly has no such name."""


_Seen = frozenset[tuple[str, str]]


class _Source(NamedTuple):
    module: str
    file: str = ""
    package: str = ""
    bindings: Mapping[str, list[Binding]] = {}


class Objects:
    """Looks for names in source files; each file is read once."""

    def __init__(self, path: Sequence[str]) -> None:
        self._path = path
        self._sources: dict[str, _Source | None] = {}

    def function(self, module: str, qualname: str) -> tuple[Definition, ...]:
        """Returns where ``module:qualname`` is defined: every place where it may be.

        Nothing if that cannot be told without importing it.
        """
        try:
            found = self._definitions(module, qualname, frozenset())
        except (_Unknown, RecursionError):
            return ()
        return tuple(dict.fromkeys(found))

    def dotted(self, name: str) -> tuple[Definition, ...]:
        """The same for a dotted name, which Hydra looks up from its first part on."""
        module, _, rest = name.partition(".")
        return self.function(module, rest) if rest else ()

    def _definitions(self, module: str, qualname: str, seen: _Seen) -> list[Definition]:
        if (module, qualname) in seen or len(seen) > _MOST_HOPS:
            raise _Unknown
        seen |= {(module, qualname)}
        source = self._source(module)
        first, _, rest = qualname.partition(".")
        bindings = source.bindings.get(first)
        if bindings is None:
            return self._not_bound(source, first, rest, seen)
        return [
            each
            for node, alias in bindings
            for each in self._follow(source, node, alias, first, rest, seen)
        ]

    def _follow(
        self,
        source: _Source,
        node: ast.AST,
        alias: ast.alias | None,
        first: str,
        rest: str,
        seen: _Seen,
    ) -> list[Definition]:
        if isinstance(node, DEFINITIONS):
            if rest and not _defines(node, rest):
                raise _Unknown
            return [Definition(source.module, _join(first, rest), source.file)]
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            if isinstance(node.value, (ast.Call, ast.Lambda)) and not rest:
                # a value made by a call
                return [Definition(source.module, first, source.file)]
            other = _dotted_name(node.value)
            if other:
                return self._definitions(source.module, _join(other, rest), seen)
        if isinstance(node, ast.ImportFrom) and alias is not None:
            module = _absolute(node, source.package)
            if module == source.module:
                # from . import name: its own submodule
                return self._submodule(module, alias.name, rest, seen)
            return self._definitions(module, _join(alias.name, rest), seen)
        if isinstance(node, ast.Import) and alias is not None and rest:
            module = alias.name if alias.asname else first
            return self._definitions(module, rest, seen)
        raise _Unknown

    def _not_bound(self, source: _Source, first: str, rest: str, seen: _Seen) -> list[Definition]:
        clear = "__getattr__" not in source.bindings
        for star, _ in reversed(source.bindings.get("*", [])):  # the last one wins
            assert isinstance(star, ast.ImportFrom)
            module = _absolute(star, source.package)
            try:
                return self._definitions(module, _join(first, rest), seen)
            except _Missing:
                continue
            except _Unknown:
                clear = False
                break
        try:
            return self._submodule(source.module, first, rest, seen)
        except _Missing:
            if clear:
                raise
            raise _Unknown from None

    def _submodule(self, package: str, name: str, rest: str, seen: _Seen) -> list[Definition]:
        located = locate(f"{package}.{name}", "", self._path)
        if located.status is NameStatus.MISSING:
            raise _Missing
        if located.status is not NameStatus.FOUND or not rest:
            raise _Unknown
        return self._definitions(f"{package}.{name}", rest, seen)

    def _source(self, module: str) -> _Source:
        if module not in self._sources:
            if len(self._sources) >= _MOST_FILES:
                raise _Unknown
            self._sources[module] = self._read(module)
        source = self._sources[module]
        if source is None:
            raise _Unknown
        return source

    def _read(self, module: str) -> _Source | None:
        located = locate(module, "", self._path)
        if located.status is not NameStatus.FOUND:
            return None
        if not located.file:
            # a namespace package has no source, an extension module none that can be read; in
            # neither is anything bound but submodules
            return _Source(module)
        try:
            with open(located.file, "rb") as file:
                tree = ast.parse(file.read(), located.file)
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        is_package = os.path.basename(located.file).startswith("__init__.")
        package = module if is_package else module.rpartition(".")[0]
        bindings = bindings_in(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                for name in node.names:
                    bindings.setdefault(name, []).append((node, None))
        return _Source(module, located.file, package, bindings)


def _join(first: str, rest: str) -> str:
    return f"{first}.{rest}" if first and rest else first or rest


def _defines(node: ast.AST, qualname: str) -> bool:
    """Whether a class has a function or class of its own by that name, and nothing else."""
    if not isinstance(node, ast.ClassDef):
        return False
    first, _, rest = qualname.partition(".")
    bindings = bindings_in(node).get(first, [])
    return bool(bindings) and all(
        isinstance(binding, DEFINITIONS) and (not rest or _defines(binding, rest))
        for binding, _ in bindings
    )


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return _join(base, node.module or "")


def _dotted_name(value: ast.expr | None) -> str:
    """Return a name or a chain of attributes as text; empty for anything else."""
    if isinstance(value, ast.Attribute):
        before = _dotted_name(value.value)
        return before and f"{before}.{value.attr}"
    return value.id if isinstance(value, ast.Name) else ""
