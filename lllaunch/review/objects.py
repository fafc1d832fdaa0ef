"""Where a name is defined, told without importing anything.

``examples.train:os.system`` begins with an allowed module and runs something else: the module
imports ``os``. So names are followed through imports, stars and plain aliases to the module whose
source defines them. What cannot be told that way is said to be unknown, never guessed.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lllaunch.config.locate import NameStatus, locate

_MOST_FILES = 300
_MOST_HOPS = 40
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Definition(NamedTuple):
    """Where something is defined."""

    module: str
    qualname: str
    file: str


class _Unknown(Exception):
    """It cannot be told without importing."""


class _Missing(_Unknown):
    """The module certainly has no such name."""


class _Import(NamedTuple):
    module: str
    name: str  # within the module; empty for the module itself


class _Alias(NamedTuple):
    name: str  # dotted, in the same scope


class _Made:
    """A value made by a call."""


class _Unclear:
    """Bound in a way that is not followed."""


_Binding = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | _Import | _Alias | _Made
_Bindings = dict[str, list["_Binding | _Unclear"]]

_Seen = frozenset[tuple[str, str]]


class _Source(NamedTuple):
    module: str
    file: str
    bindings: _Bindings
    stars: list[str]


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
        found: list[Definition] = []
        for binding in bindings:
            found += self._follow(source, binding, first, rest, seen)
        return found

    def _follow(
        self,
        source: _Source,
        binding: _Binding | _Unclear,
        first: str,
        rest: str,
        seen: _Seen,
    ) -> list[Definition]:
        if isinstance(binding, _DEFS):
            if rest and not _defines(binding, rest):
                raise _Unknown
            return [Definition(source.module, _join(first, rest), source.file)]
        if isinstance(binding, _Made) and not rest:
            return [Definition(source.module, first, source.file)]
        if isinstance(binding, _Alias):
            return self._definitions(source.module, _join(binding.name, rest), seen)
        if isinstance(binding, _Import):
            qualname = _join(binding.name, rest)
            if binding.module == source.module and binding.name:
                # from . import name: its own submodule
                return self._submodule(binding.module, binding.name, rest, seen)
            if qualname:
                return self._definitions(binding.module, qualname, seen)
        raise _Unknown

    def _not_bound(self, source: _Source, first: str, rest: str, seen: _Seen) -> list[Definition]:
        clear = "__getattr__" not in source.bindings
        for star in reversed(source.stars):  # the last one wins
            try:
                return self._definitions(star, _join(first, rest), seen)
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
            return _Source(module, "", {}, [])
        try:
            with open(located.file, "rb") as file:
                tree = ast.parse(file.read(), located.file)
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        is_package = os.path.basename(located.file).startswith("__init__.")
        package = module if is_package else module.rpartition(".")[0]
        return _Source(module, located.file, *_bindings(tree, package))


def _join(first: str, rest: str) -> str:
    return f"{first}.{rest}" if first and rest else first or rest


def _defines(node: ast.AST, qualname: str) -> bool:
    """Whether a class has a function or class of its own by that name, and nothing else."""
    if not isinstance(node, ast.ClassDef):
        return False
    first, _, rest = qualname.partition(".")
    bindings = _bindings(node, "")[0].get(first, [])
    return bool(bindings) and all(
        isinstance(binding, _DEFS) and (not rest or _defines(binding, rest)) for binding in bindings
    )


def _bindings(scope: ast.Module | ast.ClassDef, package: str) -> tuple[_Bindings, list[str]]:
    """What a module or class binds, and which modules it takes everything from."""
    found: _Bindings = {}
    stars: list[str] = []
    for node in _nodes(scope):
        for name, binding in _bound_by(node, package):
            if name == "*" and isinstance(binding, _Import):
                stars.append(binding.module)
            else:
                found.setdefault(name, []).append(binding)
    for node in ast.walk(scope):
        if isinstance(node, ast.Global):
            for name in node.names:
                found.setdefault(name, []).append(_Unclear())
    return found, stars


def _nodes(scope: ast.Module | ast.ClassDef) -> Iterator[ast.AST]:
    """All nodes that belong to a scope, in no order that matters but that of its statements."""
    waiting: list[ast.AST] = list(reversed(scope.body))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*_SCOPES, *_DEFS)) and not _simple(node):
            waiting.extend(reversed(list(ast.iter_child_nodes(node))))


def _simple(node: ast.AST) -> bool:
    """Whether a statement binds names and does nothing else that is looked at."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) for target in node.targets)
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def _bound_by(node: ast.AST, package: str) -> Iterator[tuple[str, _Binding | _Unclear]]:
    if isinstance(node, _DEFS):
        yield node.name, node
    elif isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.partition(".")[0]
            yield (alias.asname or top), _Import(alias.name if alias.asname else top, "")
    elif isinstance(node, ast.ImportFrom):
        module = _absolute(node, package)
        for alias in node.names:
            name = "" if alias.name == "*" else alias.name
            yield (alias.asname or alias.name), _Import(module, name)
    elif _simple(node):
        yield from _assigned_by(node)
    else:
        yield from ((name, _Unclear()) for name in _names_bound_by(node))


def _assigned_by(node: ast.AST) -> Iterator[tuple[str, _Binding | _Unclear]]:
    assert isinstance(node, (ast.Assign, ast.AnnAssign))
    if node.value is None:
        return  # an annotation
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        assert isinstance(target, ast.Name)
        yield target.id, _assigned(node.value)


def _names_bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - node.level + 1])
    return _join(base, node.module or "")


def _assigned(value: ast.expr) -> _Binding | _Unclear:
    if isinstance(value, (ast.Call, ast.Lambda)):
        return _Made()
    names: list[str] = []
    node = value
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return _Alias(".".join([node.id, *reversed(names)]))
    return _Unclear()
