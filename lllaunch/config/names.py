"""Which names a piece of Python source defines, read without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from inspect import Signature

from lllaunch.config.signature import signature_of

_CONSTANTS = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr)
# Calls that can bind names which nobody sees in the source.
_BINDERS = frozenset({"exec", "globals", "locals", "setattr", "vars"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Name:
    """What the source says about a name.

    Attributes:
        bound: whether something binds it.
        signature: if it is bound once, as a function without decorators.
        unusable: why it certainly cannot be called, as a predicate, or an empty string.
        dynamic: whether names may be bound that the source does not show.
        others: the names that are bound beside it.
    """

    bound: bool = False
    signature: Signature | None = None
    unusable: str = ""
    dynamic: bool = False
    others: tuple[str, ...] = field(default=())


def look_up(module: ast.Module, qualname: str) -> Name:
    """Looks for a name.

    Args:
        module: parsed source.
        qualname: dotted name of a function, or of one within a class.
    """
    body: Sequence[ast.stmt] = module.body
    dynamic = _binds_unseen(module)
    *classes, last = qualname.split(".")
    for name in classes:
        outer = _only_binding(body, name)
        if not isinstance(outer, ast.ClassDef):
            names = _bound(body)
            return Name(dynamic=dynamic or name in names, others=tuple(names))
        # Bases and decorators can add names.
        dynamic = dynamic or bool(outer.bases or outer.keywords or outer.decorator_list)
        body = outer.body
    bound = _bound(body)
    if last not in bound:
        prefix = "".join(f"{name}." for name in classes)
        others = tuple(f"{prefix}{other}" for other in bound)
        return Name(dynamic=dynamic, others=others)
    return _describe(_only_binding(body, last))


def _describe(binding: ast.stmt | None) -> Name:
    if isinstance(binding, (ast.FunctionDef, ast.AsyncFunctionDef)) and not binding.decorator_list:
        if isinstance(binding, ast.AsyncFunctionDef):
            return Name(bound=True, unusable="is a coroutine function, which nobody would await")
        return Name(bound=True, signature=signature_of(binding))
    if isinstance(binding, (ast.Assign, ast.AnnAssign)) and isinstance(binding.value, _CONSTANTS):
        return Name(bound=True, unusable="is a value, nothing that can be called")
    return Name(bound=True)


def _only_binding(body: Sequence[ast.stmt], name: str) -> ast.stmt | None:
    """The statement that binds a name, if there is one only and it always runs."""
    if _bound(body).get(name) != 1:
        return None
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if statement.name == name:
                return statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return statement
    return None


def _bound(body: Sequence[ast.stmt]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for statement in body:
        for node in _in_scope(statement):
            for name in _names_bound_by(node):
                counts[name] = counts.get(name, 0) + 1
    return counts


def _in_scope(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it that belongs to the same scope."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        if not isinstance(current, _SCOPES):
            waiting.extend(ast.iter_child_nodes(current))


def _names_bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.alias) and node.name != "*":
        yield node.asname or node.name.partition(".")[0]
    elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _binds_unseen(module: ast.Module) -> bool:
    return any(_is_unseen_binding(node) for node in ast.walk(module))


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
