"""Finds modules and functions without importing anything.

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
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib.machinery import ModuleSpec, PathFinder
from inspect import Signature

from lllaunch.config.names import Name, look_up
from lllaunch.config.suggest import did_you_mean

_MOST_MODULES = 5000


class Status(Enum):
    """What can be said of a name."""

    FOUND = auto()
    MISSING = auto()
    UNKNOWN = auto()


@dataclass(frozen=True)
class Located:
    """Where a module or function is.

    Attributes:
        status: found; certainly missing or unusable; or not to be told without importing.
        file: source file, or an empty string.
        signature: of a function that is defined once, without decorators; else None.
        reason: for ``MISSING`` what is wrong, as a sentence; for ``UNKNOWN`` why it cannot be told.
        hint: what was probably meant, or an empty string.
    """

    status: Status
    file: str = ""
    signature: Signature | None = None
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


def locate(module: str, qualname: str, path: Sequence[str]) -> Located:
    """Finds a name in a module.

    Args:
        module: dotted name.
        qualname: dotted name within it; empty for the module itself.
        path: directories, as in ``sys.path``.

    Returns:
        What was found.
    """
    try:
        found = _find(module, path)
        if not qualname:
            return Located(Status.FOUND, found.file)
        name = look_up(_parse(found), qualname)
    except _Undecided as undecided:
        return undecided.located
    return _judge(found, qualname, name)


def locate_main(module: str, path: Sequence[str]) -> Located:
    """Finds what ``python -m module`` would run: for a package, its ``__main__``.

    Args:
        module: dotted name.
        path: directories, as in ``sys.path``.
    """
    try:
        found = _find(module, path)
        if not found.locations:
            return Located(Status.FOUND, found.file)
        main = _find_below(found, f"{module}.__main__")
        if main is None:
            reason = f"{module!r} is a package without a __main__ module"
            return Located(Status.MISSING, found.file, reason=reason)
        return Located(Status.FOUND, main.file)
    except _Undecided as undecided:
        return undecided.located


def _judge(found: _Module, qualname: str, name: Name) -> Located:
    if name.unusable:
        reason = f"{qualname!r} in {found.file!r} {name.unusable}"
        return Located(Status.MISSING, found.file, reason=reason)
    if name.bound:
        return Located(Status.FOUND, found.file, name.signature)
    if name.dynamic:
        return Located(Status.UNKNOWN, found.file, reason="its names are made at run time")
    reason = f"{found.file!r} defines no {qualname!r}"
    return Located(
        Status.MISSING, found.file, reason=reason, hint=did_you_mean(qualname, name.others)
    )


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
    return _Undecided(Located(Status.MISSING, file, reason=reason, hint=hint))


def _unknown(reason: str) -> _Undecided:
    return _Undecided(Located(Status.UNKNOWN, reason=reason))
