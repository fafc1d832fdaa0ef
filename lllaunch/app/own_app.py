"""Whether a script is an app of the user's own, found out by reading it."""

from __future__ import annotations

import ast
import os

_LONGEST = 4 * 1024 * 1024  # bytes


def is_own_app(path: str) -> bool:
    """Return whether a script decorates a function with `lllaunch.main`; it is not imported."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LONGEST)
    except OSError:
        return False
    if b"lllaunch" not in data or b"main" not in data or not os.path.isfile(path):
        return False
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    names = _names_of_main(tree)
    return any(
        ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator) in names
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for decorator in node.decorator_list
    )


def _names_of_main(tree: ast.Module) -> set[str]:
    """Return what a module calls `lllaunch.main`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                f"{alias.asname or alias.name}.main"
                for alias in node.names
                if alias.name == "lllaunch"
            }
        elif isinstance(node, ast.ImportFrom) and node.module == "lllaunch" and not node.level:
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "main"}
    return names
