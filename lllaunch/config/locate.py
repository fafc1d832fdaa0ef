"""Finds modules and functions, and what arguments they take, without importing anything.

``importlib.util.find_spec("a.b")`` runs ``a/__init__.py``; this does not. The top package is asked
of the finders, its submodules of the directories that it is searched in, and names are read from
the source. What cannot be told that way (a name made at run time, an extension module) is said to
be unknown, never missing.
"""

from __future__ import annotations

import ast
import copy
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from inspect import Parameter, Signature, signature
from typing import NamedTuple

from lllaunch.config.fields import did_you_mean

_KEYWORD = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def signature_of(function: ast.FunctionDef) -> Signature:
    """The signature of a function definition, with a stand-in for each default."""
    arguments = copy.deepcopy(function.args)
    for each in ast.walk(arguments):
        if isinstance(each, ast.arg):
            each.annotation = None
    nothing = ast.Constant(None)
    arguments.defaults = [nothing] * len(arguments.defaults)
    arguments.kw_defaults = [each and nothing for each in arguments.kw_defaults]
    alike = ast.fix_missing_locations(ast.Expression(ast.Lambda(arguments, nothing)))
    return signature(eval(compile(alike, "", "eval"), {}))  # noqa: S307 - nothing of it is theirs


def misfits(
    takes: Signature, args: Sequence[object], kwargs: Mapping[str, object], function: str
) -> Iterator[tuple[str, str, str]]:
    """Yield what is wrong with a call: the keyword (or empty), the problem, a hint."""
    parameters = takes.parameters.values()
    by_name = [each.name for each in parameters if each.kind in _KEYWORD]
    if all(each.kind is not Parameter.VAR_KEYWORD for each in parameters):
        for name in [name for name in kwargs if name not in by_name]:
            hint = did_you_mean(name, by_name)
            if name in takes.parameters:
                hint = "it is positional only: write 'args' as a list"
            yield name, f"{function} has no such argument", hint
        kwargs = {name: value for name, value in kwargs.items() if name in by_name}
    try:
        takes.bind(*args, **kwargs)
    except TypeError as error:
        yield "", f"{function}: {error}", ""


_CONSTANTS = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr)
# Calls that can bind names which nobody sees in the source.
_BINDERS = frozenset({"exec", "globals", "locals", "setattr", "vars"})
_NAMES = (ast.Name, ast.Attribute)
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


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
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        plain = {target: target.id for target in targets if isinstance(target, ast.Name)}
        for name in plain.values() or _names_bound_by(node):
            found.setdefault(name, []).append((node, None))
        waiting += reversed([each for each in below if each not in plain])
    return found


def _names_bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    # definitions, handlers of exceptions, patterns
    name = getattr(node, "rest", None) or getattr(node, "name", None)
    return [name] if isinstance(name, str) else []


_MOST_MODULES = 5000


class Located(NamedTuple):
    """Where a module or function is, as far as that is known without importing it."""

    file: str = ""
    # of a function that is defined once, without decorators; else None
    signature: Signature | None = None
    # what is wrong, as a sentence, with what is certainly missing or of no use
    problem: str = ""
    hint: str = ""


class _Unknown(Exception):
    """Something cannot be told without importing it."""

    answer = Located()


class _Missing(_Unknown):
    """Something is certainly not there, or of no use."""

    def __init__(self, problem: str, hint: str = "", file: str = "") -> None:
        super().__init__(problem)
        self.answer = Located(file, None, problem, hint)


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
        file = _source_of(_find(module, path))
        return Located(file, _look_up(file, qualname) if qualname else None)
    except _Unknown as error:
        return error.answer


def _look_up(file: str, qualname: str) -> Signature | None:
    """Look for a name in the source of a module, or in that of classes within it."""
    module = _parse(file)
    node: ast.AST | None = module
    dynamic = any(map(_is_unseen_binding, ast.walk(module)))
    prefix = ""
    for name in qualname.split("."):
        scope = node if isinstance(node, (ast.Module, ast.ClassDef)) else None
        bound = {} if scope is None else bindings_in(scope)
        if scope is None or name not in bound:
            if dynamic or scope is None:
                return None
            hint = did_you_mean(qualname, [f"{prefix}{other}" for other in bound])
            raise _Missing(f"{file!r} defines no {qualname!r}", hint, file)
        nodes = [each for each, _ in bound[name]]
        # the statement that binds it, if there is one only and it always runs
        node = nodes[0] if len(nodes) == 1 and nodes[0] in scope.body else None
        prefix += f"{name}."
        if isinstance(node, ast.ClassDef):
            # bases and decorators can add names
            dynamic = dynamic or bool(node.bases or node.keywords or node.decorator_list)
    unusable = ""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.decorator_list:
        if isinstance(node, ast.FunctionDef):
            return signature_of(node)
        unusable = "is a coroutine function, which nobody would await"
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, _CONSTANTS):
        unusable = "is a value, nothing that can be called"
    if unusable:
        raise _Missing(f"{qualname!r} in {file!r} {unusable}", "", file)
    return None


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


def locate_main(module: str, path: Sequence[str]) -> Located:
    """Find what ``python -m module`` would run: for a package, its ``__main__``."""
    try:
        found = _find(module, path)
        if _places(found):
            main = _find_below(found, f"{module}.__main__")
            if main is None:
                problem = f"{module!r} is a package without a __main__ module"
                raise _Missing(problem, "", _source_of(found))
            found = main
        return Located(_source_of(found))
    except _Unknown as error:
        return error.answer


def _parse(path: str) -> ast.Module:
    if not path:
        raise _Unknown
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read(), path)
    except SyntaxError as error:
        where = f"line {error.lineno}: {error.msg}"
        raise _Missing(f"{path!r} is not valid Python, {where}", "", path) from None
    except (OSError, ValueError, RecursionError, MemoryError):
        raise _Unknown from None


def _find(name: str, path: Sequence[str]) -> ModuleSpec:
    top, *parts = name.split(".")
    module = _find_top(top, path)
    for part in parts:
        below = _find_below(module, f"{module.name}.{part}")
        if below is None:
            names = (info.name for info in _some_modules(_places(module)))
            reason = f"package {module.name!r} has no module {part!r}"
            if not _places(module):
                reason = f"{module.name!r} is no package: it has no module {part!r}"
            raise _Missing(reason, did_you_mean(part, names), _source_of(module))
        module = below
    return module


def _find_top(name: str, path: Sequence[str]) -> ModuleSpec:
    for finder in sys.meta_path:
        if finder is PathFinder:
            spec = _search(name, path)
        else:
            try:
                spec = finder.find_spec(name, None)
            except Exception:  # noqa: BLE001 - a finder is anybody's code
                raise _Unknown from None
        if spec is not None:
            return spec
    modules = (info.name for info in _some_modules(path))
    raise _Missing(f"there is no module {name!r}", did_you_mean(name, modules))


def _find_below(parent: ModuleSpec, name: str) -> ModuleSpec | None:
    spec = _search(name, _places(parent)) if _places(parent) else None
    if spec is not None:
        return spec
    source = _source_of(parent)
    if _makes_modules(source) if source else parent.loader is not None:
        raise _Unknown
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


def _source_of(spec: ModuleSpec) -> str:
    """Return the file of a module's Python source; empty if it has none."""
    file = spec.origin if spec.has_location and spec.origin else ""
    return file if file.endswith((".py", ".pyw")) and os.path.isfile(file) else ""


def _places(package: ModuleSpec) -> tuple[str, ...]:
    """Return where the modules of a package are; empty if it is none."""
    return tuple(package.submodule_search_locations or ())


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


_MOST_FILES = 300
_MOST_HOPS = 40


class Definition(NamedTuple):
    """Where something is defined."""

    module: str
    qualname: str
    file: str


_Seen = frozenset[tuple[str, str]]


class _Source(NamedTuple):
    module: str
    file: str = ""
    package: str = ""
    bindings: Mapping[str, list[Binding]] = {}

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that something is imported from."""
        try:
            return resolve_name("." * node.level + (node.module or ""), self.package)
        except ImportError:
            raise _Unknown from None


class Objects:
    """Tells where names are defined; each file is read once.

    ``examples.train:os.system`` begins with an allowed module and runs something else: the module
    imports ``os``. So names are followed through imports, stars and plain aliases to the module
    whose source defines them. What cannot be told that way is said to be unknown, never guessed.
    """

    def __init__(self, path: Sequence[str]) -> None:
        self._path = path
        self._sources: dict[str, _Source] = {}

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
            other = ast.unparse(node.value) if isinstance(node.value, _NAMES) else ""
            if other.replace(".", "").isidentifier():
                return self._definitions(source.module, _join(other, rest), seen)
        if isinstance(node, ast.ImportFrom) and alias is not None:
            module = source.absolute(node)
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
            module = source.absolute(star)
            try:
                return self._definitions(module, _join(first, rest), seen)
            except _Missing:
                continue
            except _Unknown:
                clear = False
                break
        try:
            return self._submodule(source.module, first, rest, seen)
        except _Unknown:
            if clear:
                raise
            raise _Unknown from None

    def _submodule(self, package: str, name: str, rest: str, seen: _Seen) -> list[Definition]:
        _find(f"{package}.{name}", self._path)
        if not rest:
            raise _Unknown
        return self._definitions(f"{package}.{name}", rest, seen)

    def _source(self, module: str) -> _Source:
        if module in self._sources:
            return self._sources[module]
        if len(self._sources) >= _MOST_FILES:
            raise _Unknown
        file = _source_of(_find(module, self._path))
        # a namespace package has no source, an extension module none that can be read; in neither
        # is anything bound but submodules
        source = _Source(module)
        if file:
            tree = _parse(file)
            bindings = bindings_in(tree)
            for node in ast.walk(tree):
                for name in node.names if isinstance(node, ast.Global) else ():
                    bindings.setdefault(name, []).append((node, None))
            is_package = os.path.basename(file).startswith("__init__.")
            package = module if is_package else module.rpartition(".")[0]
            source = _Source(module, file, package, bindings)
        self._sources[module] = source
        return source


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
