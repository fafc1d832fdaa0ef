"""Finds modules and functions, and what arguments they take, without importing anything.

``importlib.util.find_spec("a.b")`` runs ``a/__init__.py``; this does not. The top package is asked
of the finders, its submodules of the directories that it is searched in, and names are read from
the source. What cannot be told that way (a name made at run time, an extension module) is said to
be unknown, never missing.
"""

from __future__ import annotations

import ast
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib.machinery import ModuleSpec, PathFinder
from inspect import Parameter, Signature
from typing import Any

from lllaunch.config.fields import did_you_mean

_SOME_DEFAULT = object()
_KEYWORD = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def signature_of(function: ast.FunctionDef) -> Signature:
    """The signature of a function definition, with a stand-in for each default."""
    arguments = function.args
    positional = [
        *((arg, Parameter.POSITIONAL_ONLY) for arg in arguments.posonlyargs),
        *((arg, Parameter.POSITIONAL_OR_KEYWORD) for arg in arguments.args),
    ]
    first_default = len(positional) - len(arguments.defaults)
    parameters = [
        _parameter(arg.arg, kind, has_default=index >= first_default)
        for index, (arg, kind) in enumerate(positional)
    ]
    if arguments.vararg:
        parameters.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        only = _parameter(arg.arg, Parameter.KEYWORD_ONLY, has_default=default is not None)
        parameters.append(only)
    if arguments.kwarg:
        parameters.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(parameters)


def _parameter(name: str, kind: Any, *, has_default: bool) -> Parameter:
    return Parameter(name, kind, default=_SOME_DEFAULT if has_default else Parameter.empty)


def misfits(
    signature: Signature, args: Sequence[object], kwargs: Mapping[str, object], function: str
) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a call: the keyword (or empty), the problem, a hint."""
    parameters = signature.parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    positional = [p for p in parameters if p.kind <= Parameter.POSITIONAL_OR_KEYWORD]
    by_name = {p.name: p for p in parameters if p.kind in _KEYWORD}
    if len(args) > len(positional) and Parameter.VAR_POSITIONAL not in kinds:
        most = len(positional)
        yield "", f"expected at most {most} for {function}, got {len(args)}", ""
    taken = {parameter.name for parameter in positional[: len(args)]}
    for name in kwargs:
        if name in taken:
            yield name, f"{function} is given it twice", ""
        elif name not in by_name and Parameter.VAR_KEYWORD not in kinds:
            hint = did_you_mean(name, by_name)
            if any(parameter.name == name for parameter in positional):
                hint = "it is positional only: write 'args' as a list"
            yield name, f"{function} has no such argument", hint
    required = dict.fromkeys(
        p.name for p in (*positional, *by_name.values()) if p.default is Parameter.empty
    )
    lacking = [name for name in required if name not in {*taken, *kwargs}]
    if lacking:
        names = ", ".join(repr(name) for name in lacking)
        yield "", f"{function} also requires {names}", ""


_CONSTANTS = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr)
# Calls that can bind names which nobody sees in the source.
_BINDERS = frozenset({"exec", "globals", "locals", "setattr", "vars"})
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Name:
    """What the source says about a name."""

    bound: bool = False
    signature: Signature | None = None  # if it is bound once, as a function without decorators
    unusable: str = ""  # why it certainly cannot be called, as a predicate, or an empty string
    dynamic: bool = False  # whether names may be bound that the source does not show
    others: tuple[str, ...] = field(default=())


Binding = tuple[ast.AST, ast.alias | None]
"""What binds a name: a definition, an assignment, an import with its alias, or something else."""


def bindings_in(scope: ast.Module | ast.ClassDef) -> dict[str, list[Binding]]:
    """Return what binds each name of a scope, in order; ``*`` is an import of all that there is."""
    found: dict[str, list[Binding]] = {}
    waiting: list[ast.AST] = list(reversed(scope.body))
    while waiting:
        node = waiting.pop()
        below = [] if isinstance(node, (*_SCOPES, *DEFINITIONS)) else ast.iter_child_nodes(node)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                whole = isinstance(node, ast.ImportFrom) or alias.asname
                name = alias.asname or (alias.name if whole else alias.name.partition(".")[0])
                found.setdefault(name, []).append((node, alias))
            continue
        targets = _plain_targets(node)
        if targets:
            assert isinstance(node, (ast.Assign, ast.AnnAssign))
            below = [] if node.value is None else [node.value]
        for name in targets or _names_bound_by(node):
            found.setdefault(name, []).append((node, None))
        waiting += reversed(list(below))
    return found


def _plain_targets(node: ast.AST) -> list[str]:
    """Return the names that an assignment binds, if it binds nothing else."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    else:
        return []
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names if len(names) == len(targets) else []


def _names_bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, DEFINITIONS):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def look_up(module: ast.Module, qualname: str) -> Name:
    """Looks for a name."""
    scope: ast.Module | ast.ClassDef = module
    dynamic = any(_is_unseen_binding(node) for node in ast.walk(module))
    *classes, last = qualname.split(".")
    for name in classes:
        bound = bindings_in(scope)
        outer = _only_binding(scope, bound, name)
        if not isinstance(outer, ast.ClassDef):
            return Name(dynamic=dynamic or name in bound, others=tuple(bound))
        # Bases and decorators can add names.
        dynamic = dynamic or bool(outer.bases or outer.keywords or outer.decorator_list)
        scope = outer
    bound = bindings_in(scope)
    if last not in bound:
        prefix = "".join(f"{name}." for name in classes)
        others = tuple(f"{prefix}{other}" for other in bound)
        return Name(dynamic=dynamic, others=others)
    binding = _only_binding(scope, bound, last)
    if isinstance(binding, (ast.FunctionDef, ast.AsyncFunctionDef)) and not binding.decorator_list:
        if isinstance(binding, ast.AsyncFunctionDef):
            return Name(bound=True, unusable="is a coroutine function, which nobody would await")
        return Name(bound=True, signature=signature_of(binding))
    if isinstance(binding, (ast.Assign, ast.AnnAssign)) and isinstance(binding.value, _CONSTANTS):
        return Name(bound=True, unusable="is a value, nothing that can be called")
    return Name(bound=True)


def _only_binding(
    scope: ast.Module | ast.ClassDef, bound: Mapping[str, list[Binding]], name: str
) -> ast.AST | None:
    """The statement that binds a name, if there is one only and it always runs."""
    nodes = [node for node, _ in bound.get(name, [])]
    return nodes[0] if len(nodes) == 1 and nodes[0] in scope.body else None


def _is_unseen_binding(node: ast.AST) -> bool:
    if isinstance(node, ast.Global):
        return True
    if isinstance(node, ast.alias):
        return node.name == "*"
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return node.name == "__getattr__"
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _BINDERS
    # sys.modules[__name__] = something else
    return isinstance(node, ast.Attribute) and node.attr == "modules"


_MOST_MODULES = 5000


class NameStatus(Enum):
    """What can be said of a name."""

    FOUND = auto()
    MISSING = auto()
    UNKNOWN = auto()


@dataclass(frozen=True)
class Located:
    """Where a module or function is."""

    status: NameStatus  # found; certainly missing or unusable; or not to be told without importing
    file: str = ""
    # of a function that is defined once, without decorators; else None
    signature: Signature | None = None
    # for ``MISSING`` what is wrong, as a sentence; for ``UNKNOWN`` why it cannot be told
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True)
class _Module:
    name: str
    file: str = ""
    locations: tuple[str, ...] = field(default=())
    opaque: bool = False  # made by something that has no Python source


class _Undecided(Exception):
    """Carries the answer, where there is no module to go on with."""

    def __init__(self, located: Located) -> None:
        super().__init__(located)
        self.located = located


def import_path(
    cwd: str, runtime_cwd: str, sys_path: Iterable[str], added: str = ""
) -> tuple[str, ...]:
    """Return where workers look for modules, in their order.

    Their own directory is first, as for ``python -m``; then that of the command, and what
    ``launch.env.PYTHONPATH`` adds. What the launcher has of that is in its ``sys.path`` already.
    """
    entries = [os.path.join(cwd, entry) for entry in added.split(os.pathsep) if entry]
    return tuple(dict.fromkeys((cwd, runtime_cwd, *entries, *sys_path)))


def locate(module: str, qualname: str, path: Sequence[str]) -> Located:
    """Find a dotted name in a module; with an empty one, the module itself."""
    try:
        found = _find(module, path)
        if not qualname:
            return Located(NameStatus.FOUND, found.file)
        name = look_up(_parse(found), qualname)
    except _Undecided as undecided:
        return undecided.located
    if name.unusable:
        reason = f"{qualname!r} in {found.file!r} {name.unusable}"
        return Located(NameStatus.MISSING, found.file, reason=reason)
    if name.bound:
        return Located(NameStatus.FOUND, found.file, name.signature)
    if name.dynamic:
        return Located(NameStatus.UNKNOWN, found.file, reason="its names are made at run time")
    reason = f"{found.file!r} defines no {qualname!r}"
    return Located(
        NameStatus.MISSING, found.file, reason=reason, hint=did_you_mean(qualname, name.others)
    )


def locate_main(module: str, path: Sequence[str]) -> Located:
    """Find what ``python -m module`` would run: for a package, its ``__main__``."""
    try:
        found = _find(module, path)
        if not found.locations:
            return Located(NameStatus.FOUND, found.file)
        main = _find_below(found, f"{module}.__main__")
        if main is None:
            reason = f"{module!r} is a package without a __main__ module"
            return Located(NameStatus.MISSING, found.file, reason=reason)
        return Located(NameStatus.FOUND, main.file)
    except _Undecided as undecided:
        return undecided.located


def _parse(found: _Module) -> ast.Module:
    if not found.file:
        raise _unknown("it has no Python source")
    try:
        with open(found.file, "rb") as file:
            return ast.parse(file.read(), found.file)
    except SyntaxError as error:
        where = f"line {error.lineno}: {error.msg}"
        raise _missing(f"{found.file!r} is not valid Python, {where}", file=found.file) from None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise _unknown(f"{found.file!r} cannot be read: {error}") from None


def _find(name: str, path: Sequence[str]) -> _Module:
    top, *parts = name.split(".")
    module = _find_top(top, path)
    for part in parts:
        below = _find_below(module, f"{module.name}.{part}")
        if below is None:
            names = (info.name for info in _some_modules(module.locations))
            reason = f"package {module.name!r} has no module {part!r}"
            if not module.locations:
                reason = f"{module.name!r} is no package: it has no module {part!r}"
            raise _missing(reason, did_you_mean(part, names), module.file)
        module = below
    return module


def _find_top(name: str, path: Sequence[str]) -> _Module:
    for finder in sys.meta_path:
        if finder is PathFinder:
            spec = _search(name, path)
        else:
            try:
                spec = finder.find_spec(name, None)
            except Exception as error:  # noqa: BLE001 - a finder is anybody's code
                raise _unknown(f"a finder failed on it: {error!r}") from None
        if spec is not None:
            return _module(name, spec)
    modules = (info.name for info in _some_modules(path))
    raise _missing(f"there is no module {name!r}", did_you_mean(name, modules))


def _find_below(parent: _Module, name: str) -> _Module | None:
    spec = _search(name, parent.locations) if parent.locations else None
    if spec is not None:
        return _module(name, spec)
    if parent.opaque or (parent.file and _makes_modules(parent.file)):
        raise _unknown(f"{parent.name!r} may have modules that no file shows")
    return None


def _search(name: str, path: Sequence[str]) -> ModuleSpec | None:
    # What PathFinder does, except that it asks for the imported parent of a namespace package.
    portions: list[str] = []
    for entry in path:
        finder = pkgutil.get_importer(entry)
        spec = finder.find_spec(name) if finder is not None else None
        if spec is None:
            continue
        if spec.loader is not None:
            return spec
        portions += spec.submodule_search_locations or []
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _module(name: str, spec: ModuleSpec) -> _Module:
    source = spec.origin if spec.has_location and spec.origin else ""
    if not source.endswith((".py", ".pyw")) or not os.path.isfile(source):
        source = ""
    locations = spec.submodule_search_locations
    opaque = not source and spec.loader is not None
    return _Module(name, source, tuple(locations) if locations is not None else (), opaque)


def _makes_modules(file: str) -> bool:
    try:
        with open(file, "rb") as source:
            text = source.read()
    except OSError:
        return True
    return b"__path__" in text or b"sys.modules" in text


def _some_modules(path: Sequence[str]) -> list[pkgutil.ModuleInfo]:
    modules = pkgutil.iter_modules(list(path))
    return [info for info, _ in zip(modules, range(_MOST_MODULES), strict=False)]


def _missing(reason: str, hint: str = "", file: str = "") -> _Undecided:
    return _Undecided(Located(NameStatus.MISSING, file, reason=reason, hint=hint))


def _unknown(reason: str) -> _Undecided:
    return _Undecided(Located(NameStatus.UNKNOWN, reason=reason))
