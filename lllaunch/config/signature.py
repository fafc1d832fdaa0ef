"""Whether arguments fit a function that has been read but not imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from lllaunch.config.suggest import did_you_mean

_SOME_DEFAULT = object()


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
    """What is wrong with a call.

    Args:
        signature: of the function.
        args: positional arguments.
        kwargs: keyword arguments.
        function: its name, for the text.

    Yields:
        The keyword concerned (empty for the call as a whole), what is wrong, and a hint.
    """
    parameters = signature.parameters.values()
    kinds = {parameter.kind for parameter in parameters}
    positional = [p for p in parameters if p.kind <= Parameter.POSITIONAL_OR_KEYWORD]
    by_name = {p.name: p for p in parameters if _takes_keyword(p)}
    if len(args) > len(positional) and Parameter.VAR_POSITIONAL not in kinds:
        most = len(positional)
        yield "", f"expected at most {most} for {function}, got {len(args)}", ""
    taken = {parameter.name for parameter in positional[: len(args)]}
    for name in kwargs:
        if name in taken:
            yield name, f"{function} is given it twice", ""
        elif name not in by_name and Parameter.VAR_KEYWORD not in kinds:
            yield name, f"{function} has no such argument", _hint(name, positional, by_name)
    lacking = [p.name for p in parameters if _is_required(p) and p.name not in {*taken, *kwargs}]
    if lacking:
        names = ", ".join(repr(name) for name in lacking)
        yield "", f"{function} also requires {names}", ""


def _takes_keyword(parameter: Parameter) -> bool:
    return parameter.kind in {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}


def _is_required(parameter: Parameter) -> bool:
    optional = parameter.kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    return not optional and parameter.default is Parameter.empty


def _hint(name: str, positional: Sequence[Parameter], by_name: Mapping[str, object]) -> str:
    if name in {parameter.name for parameter in positional}:
        return "it is positional only: write 'args' as a list"
    return did_you_mean(name, by_name)
