"""The entrypoint together with its arguments: told apart, looked for, and tried on for size."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lllaunch.config.args import read_call, read_command_line
from lllaunch.config.entrypoint import FORMS, is_dotted, parse_entrypoint
from lllaunch.config.findings import Findings, Unfit
from lllaunch.config.locate import Located, Status, locate, locate_main
from lllaunch.config.lookup import check_program, check_script
from lllaunch.config.signature import misfits
from lllaunch.config.suggest import did_you_mean, one_of
from lllaunch.config.tree import BROKEN, Tree, has_secrets
from lllaunch.secret_names import is_secret_name
from lllaunch.spec import Entrypoint

NO_ENTRYPOINT = Entrypoint("function", "", "")


@dataclass(frozen=True)
class Place:
    """Where things are looked for.

    Attributes:
        runtime_cwd: the directory that the command was given in, absolute.
        sys_path: where workers import from.
        search_paths: each ``PATH`` that some worker has.
    """

    runtime_cwd: str
    sys_path: tuple[str, ...] = ()
    search_paths: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """What the workers run, and with what.

    Attributes:
        entrypoint: `NO_ENTRYPOINT` if there is none or something is wrong with it.
        args: positional arguments, secrets withheld.
        kwargs: keyword arguments, secrets withheld.
    """

    entrypoint: Entrypoint = NO_ENTRYPOINT
    args: tuple[Tree, ...] = ()
    kwargs: Mapping[str, Tree] = field(default_factory=dict)

    def written_args(self) -> Tree:
        """The arguments as a plan has them: keywords sorted, since their order means nothing."""
        return _sorted(dict(self.kwargs)) if self.kwargs else list(self.args) or None


def _sorted(value: Tree) -> Tree:
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: (type(item[0]).__name__, str(item[0])))
        return {key: _sorted(item) for key, item in items}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def read_call_of(entrypoint: Tree, args: Tree, place: Place, key: str, findings: Findings) -> Call:
    """Reads ``entrypoint`` and ``args`` and checks whether they can be run.

    Args:
        entrypoint: value of ``entrypoint``, not empty.
        args: value of ``args``; None for none.
        place: where things are looked for.
        key: dotted key of the node that holds both.
        findings: takes what is wrong.
    """
    where, args_key = f"{key}.entrypoint", f"{key}.args"
    parsed = findings.attempt(
        where, entrypoint, lambda text: parse_entrypoint(text, place.runtime_cwd)
    )
    if parsed is None:
        return Call()
    named = replace(parsed, text=entrypoint.source) if has_secrets(entrypoint) else parsed
    located = findings.attempt(where, entrypoint, lambda _: _look_for(parsed, place))
    if args is BROKEN:
        return Call(named)
    if parsed.form != "function":
        return Call(named, tuple(read_command_line(args, args_key, findings)))
    positional, keywords = read_call(args, args_key, findings)
    named = replace(named, decided=located is not None and located.signature is not None)
    call = Call(named, tuple(positional), keywords)
    _check_fit(located, call, args_key, findings)
    return call


def _look_for(entrypoint: Entrypoint, place: Place) -> Located:
    if entrypoint.form == "script":
        check_script(entrypoint)
    elif entrypoint.form == "module":
        return _found(locate_main(entrypoint.name, place.sys_path))
    elif entrypoint.form == "function":
        return _found(locate(entrypoint.name, entrypoint.qualname, place.sys_path))
    else:
        for search_path in place.search_paths:
            check_program(entrypoint, search_path, place.runtime_cwd)
    return Located(Status.FOUND, entrypoint.name)


def _found(located: Located) -> Located:
    if located.status is Status.MISSING:
        raise Unfit(message="cannot be run", hint=located.hint, detail=located.reason)
    return located


def _check_fit(located: Located | None, call: Call, key: str, findings: Findings) -> None:
    if located is None or located.signature is None:
        return
    name = call.entrypoint.text
    for keyword, message, hint in misfits(located.signature, call.args, call.kwargs, name):
        findings.add_about(f"{key}.{keyword}" if keyword else key, message, hint)


def check_preload(module: object, sys_path: Sequence[str]) -> str:
    """A module that can be preloaded, as far as that can be told without importing it.

    Raises:
        Unfit: it cannot.
    """
    if not isinstance(module, str) or not is_dotted(module):
        raise Unfit("the name of a module (package.module)")
    located = locate(module, "", sys_path)
    if located.status is Status.MISSING:
        raise Unfit(message="cannot be imported", hint=located.hint, detail=located.reason)
    return module


def why_empty(root: Mapping[Any, Any], key: str, searched: Sequence[str]) -> Unfit:
    """Says why there may be no entrypoint.

    Args:
        root: the whole config, unresolved.
        key: name of the launch node.
        searched: directories and packages that configs were looked for in.

    Returns:
        What is wrong with an empty entrypoint.
    """
    expected = f"an entrypoint ({FORMS})"
    for name, value in root.items():
        if name != key and isinstance(value, dict) and key in value:
            hint = "put the line '# @package _global_' at the top of that config file"
            return Unfit(expected, hint, f"there is {name}.{key}")
    groups = [name for name, value in root.items() if _may_be_group(name, value)]
    if not groups:
        return Unfit(expected)
    groups.sort(key=lambda name: name != "exp")
    choices = one_of([repr(name) for name in groups[:3]])
    looked = f" in {', '.join(searched)}" if searched else ""
    meant = f"{groups[0]}={root[groups[0]]}"
    near = _near_group(groups[0], str(root[groups[0]]), searched)
    hint = near or f"{meant!r} was taken for a plain value"
    return Unfit(expected, hint, f"there is no config group {choices}{looked}")


def _near_group(name: str, choice: str, searched: Sequence[str]) -> str:
    """Return a hint at a group with a similar name that has a config of that name."""
    groups = {
        entry
        for directory in searched
        if os.path.isdir(directory)
        for entry in os.listdir(directory)
        if os.path.isfile(os.path.join(directory, entry, f"{choice}.yaml"))
    }
    hint = did_you_mean(name, sorted(groups))
    return re.sub("'(.*)'", rf"+\1={choice}", hint)


def _may_be_group(name: object, value: object) -> bool:
    # What +exp=resnet becomes where there is no such group: a plain value.
    plain = isinstance(value, str) and re.fullmatch(r"[\w./-]{1,80}", value)
    return bool(plain) and isinstance(name, str) and not is_secret_name(name)
