"""What is run: the entrypoint and its arguments, ``preflight``; and whether it is there."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from inspect import Signature
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from lllaunch.config.fields import Findings, Settings, did_you_mean
from lllaunch.config.kinds import Kind, Node
from lllaunch.config.locate import locate, locate_main, misfits
from lllaunch.config.tree import BROKEN, Tree, Withheld, has_secrets, reveal
from lllaunch.config.values import format_duration, parse_duration
from lllaunch.errors import Code, Unfit
from lllaunch.secret_names import is_secret_name
from lllaunch.spec import Entrypoint, Path, Preflight

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_INTERPRETERS = re.compile(r"(python[\d.]*|torchrun)\s+")

_MODULE = "a module alone after -m (-m package.module)"

FORMS = "package.module:callable, a path ending in .py, -m package.module, or a program"


def is_dotted(text: str) -> bool:
    """Whether text is a dotted name, such as ``package.module``."""
    return _DOTTED.fullmatch(text) is not None


def parse_entrypoint(value: object, runtime_cwd: str) -> Entrypoint:
    """Return what an entrypoint is by its form, or raise `Unfit`; it need not exist."""
    if not isinstance(value, str):
        raise Unfit(f"an entrypoint ({FORMS})", "quote it", code="entrypoint")
    text = value.strip()
    if "\0" in text:
        raise Unfit("text without NUL characters", code="entrypoint")
    if text == "-m" or text.startswith("-m "):
        name = text[2:].strip()
        if is_dotted(name) and not name.endswith(".py"):
            return Entrypoint("module", name, text)
        hint = "give the arguments as 'args'" if " " in name else ""
        hint = f"write {name!r}, without -m" if name.endswith(".py") else hint
        raise Unfit(_MODULE, hint, code="entrypoint")
    if _INTERPRETERS.match(text):
        raise Unfit(
            "one file, module, function or program, not a command line",
            "name the script itself (Python is started for you) and give its arguments as 'args'",
            code="entrypoint",
        )
    if text.endswith(".py"):
        return Entrypoint("script", os.path.join(runtime_cwd, text), text)
    module, colon, qualname = text.partition(":")
    if module.endswith(".py") and is_dotted(qualname):
        hint = f"a function is named by its module, as 'package.module:{qualname}'"
        expected = "a script (path.py) or a function (package.module:callable)"
        raise Unfit(expected, hint, code="entrypoint")
    if not colon or "/" in text:
        name = os.path.join(runtime_cwd, text) if "/" in text else text
        return Entrypoint("program", name, text)
    if not is_dotted(module) or not is_dotted(qualname):
        raise Unfit("a function (package.module:callable, of dotted names)", code="entrypoint")
    if module == "__main__":
        hint = "name its module in place of __main__"
        raise Unfit("a function that workers can import", hint, code="entrypoint")
    return Entrypoint("function", module, text, qualname)


class SearchPlace(Struct, frozen=True):
    """Where things are looked for: ``search_paths`` is each ``PATH`` that some worker has."""

    runtime_cwd: str
    sys_path: tuple[str, ...] = ()
    search_paths: tuple[str, ...] = ()


_MOST_NAMES = 2000


def check_file(entrypoint: Entrypoint, code: Code = "entrypoint") -> None:
    """Raise `Unfit` if the file of a script or program is not there, or of no use."""
    path, form = entrypoint.name, entrypoint.form
    if os.path.isdir(path):
        raise Unfit(message=f"is a directory, not a {form}", code=code)
    if not os.path.exists(path):
        above, name = os.path.split(path)
        ending = ".py" if form == "script" else ""
        hint = did_you_mean(name, [each for each in _names_in(above) if each.endswith(ending)])
        hint = "arguments go under 'args'" if " " in entrypoint.text else hint
        base = path.removesuffix(entrypoint.text)
        where = repr(base.rstrip("/") or "/") if base not in ("", path) else "this file system"
        raise Unfit(message=f"does not exist in {where}", hint=hint, code=code)
    if not os.path.isfile(path):
        raise Unfit(message="is not a file", code=code)
    if form == "program" and not os.access(path, os.X_OK):
        hint = f"chmod +x {entrypoint.text}"
        raise Unfit(message="is not executable", hint=hint, code=code)
    if form == "script" and not os.access(path, os.R_OK):
        raise Unfit(message="cannot be read: permission denied", code=code)


def check_program(entrypoint: Entrypoint, place: SearchPlace, code: Code = "entrypoint") -> None:
    """Raise `Unfit` without such a file or, for a name without a slash, if a PATH lacks it."""
    name = entrypoint.name
    if "/" in name:
        check_file(entrypoint, code)
        return
    for path in place.search_paths:
        if shutil.which(name, path=path):
            continue
        file = shutil.which(name, os.F_OK, path)
        if file:
            hint, detail = f"chmod +x {file}", f"found only {file!r}"
            raise Unfit(message="is not executable", hint=hint, detail=detail, code=code)
        scripts = [each for each in _names_in(place.runtime_cwd) if each.endswith(".py")]
        programs = (each for directory in path.split(os.pathsep) for each in _names_in(directory))
        hint = did_you_mean(name, scripts) or did_you_mean(name, programs)
        hint = "arguments go under 'args'" if " " in name else hint
        raise Unfit(message="is not a program on PATH", hint=hint, code=code)


def _names_in(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory or ".") as entries:
            for number, entry in enumerate(entries):
                if number == _MOST_NAMES:
                    return
                yield entry.name
    except OSError:
        return


Word = tuple[Tree, Path]
"""A word of a command line, and the path below ``args`` of what it was made from."""


def read_command_line(
    tree: list[Tree] | dict[Any, Tree], key: str, findings: Findings, code: Code = "arguments"
) -> list[Word]:
    """Return the words of a script, module or program; texts that are secrets are withheld.

    A list is taken as it is. Of a mapping, ``key: value`` becomes ``--key value``, ``key: true``
    becomes ``--key``, ``key: [a, b]`` becomes ``--key a b``, and null, false and an empty list
    nothing. A key that begins with ``-`` is taken as it is.
    """
    if isinstance(tree, list):
        return [
            (_text(item, f"{key}[{index}]", findings, code), (index,))
            for index, item in enumerate(tree)
        ]
    words: list[Word] = []
    for name, value in tree.items():
        where, plain = f"{key}.{name}", reveal(value)
        if not isinstance(name, str) or not name or any(c.isspace() or c in "=\0" for c in name):
            expected = "the name of an option, text without blanks and '='"
            findings.add(where, name, Unfit(expected, "quote it", code=code))
            continue
        if plain is None or plain is False or plain == []:
            continue
        words.append((name if name.startswith("-") else f"--{name}", (name,)))
        if isinstance(value, list):
            below = read_command_line(value, where, findings, code)
            words += [(text, (name, *path)) for text, path in below]
        elif plain is not True:
            words.append((_text(value, where, findings, code), (name,)))
    return words


def _text(value: Tree, key: str, findings: Findings, code: Code) -> Tree:
    text = findings.attempt(key, value, lambda plain: _as_text(plain, code))
    return Withheld(text, value.source) if isinstance(value, Withheld) else text


def _as_text(value: Any, code: Code) -> str:
    if value is None or isinstance(value, (bool, dict, list)):
        raise Unfit("text or a number", "quote it", code=code)
    try:
        text = str(value)
    except ValueError:
        raise Unfit("a number of fewer digits", "quote it", code=code) from None
    if "\0" in text:
        raise Unfit("text without NUL characters", code=code)
    return text


NO_ENTRYPOINT = Entrypoint("function", "", "")


class EntrypointCall(Struct, frozen=True):
    """What the workers run, and with what; secrets withheld.

    ``entrypoint`` is `NO_ENTRYPOINT` if there is none or something is wrong with it. ``arg_keys``
    has, for each of ``args``, the path below ``args`` of what it was made from.
    """

    entrypoint: Entrypoint = NO_ENTRYPOINT
    args: tuple[Tree, ...] = ()
    arg_keys: tuple[Path, ...] = ()
    kwargs: Mapping[str, Tree] = field(default_factory=dict)


def read_call_of(
    entrypoint: Tree, args: Tree, place: SearchPlace, key: str, findings: Findings
) -> EntrypointCall:
    """Reads ``entrypoint`` and ``args`` and checks whether they can be run."""
    where, args_key = f"{key}.entrypoint", f"{key}.args"
    parsed = findings.attempt(
        where, entrypoint, lambda text: parse_entrypoint(text, place.runtime_cwd)
    )
    if parsed is None:
        return EntrypointCall()
    named = replace(parsed, text=entrypoint.source) if has_secrets(entrypoint) else parsed
    signature = findings.attempt(where, entrypoint, lambda _: _look_for(parsed, place))
    if args is BROKEN:
        return EntrypointCall(named)
    args = {} if args is None else args
    if not isinstance(args, (list, dict)):
        findings.add(args_key, args, Unfit("a list or a mapping of arguments", code="type"))
        return EntrypointCall(named)
    if parsed.form != "function":
        words = read_command_line(args, args_key, findings)
        texts, keys = (tuple(word[part] for word in words) for part in (0, 1))
        return EntrypointCall(named, texts, keys)
    positional, keywords = (args, {}) if isinstance(args, list) else ([], args)
    for name in keywords:
        if not isinstance(name, str) or not name.isidentifier():
            unfit = Unfit("the name of an argument of a function", code="arguments")
            findings.add(f"{args_key}.{name}", name, unfit)
    named = replace(named, decided=signature is not None)
    places = tuple((place,) for place in range(len(positional)))
    if signature is not None:
        for name, message, hint in misfits(signature, positional, keywords, named.text):
            where = f"{args_key}.{name}" if name else args_key
            findings.add_about(where, message, hint, code="arguments")
    return EntrypointCall(named, tuple(positional), places, keywords)


def _look_for(entrypoint: Entrypoint, place: SearchPlace) -> Signature | None:
    """Raise `Unfit` if it is certainly not there; return the signature of a function if known."""
    if entrypoint.form == "script":
        check_file(entrypoint)
        return None
    if entrypoint.form == "program":
        check_program(entrypoint, place)
        return None
    if entrypoint.form == "module":
        located = locate_main(entrypoint.name, place.sys_path)
    else:
        located = locate(entrypoint.name, entrypoint.qualname, place.sys_path)
    if located.problem:
        raise Unfit(
            message="cannot be run", hint=located.hint, detail=located.problem, code="entrypoint"
        )
    return located.signature


def check_preload(module: object, sys_path: Sequence[str], *, here: bool = True) -> str:
    """Return a module that can be preloaded here, as far as is known without importing it.

    Raises:
        Unfit: it cannot.
    """
    if not isinstance(module, str) or not is_dotted(module):
        raise Unfit("the name of a module (package.module)", code="preload")
    located = locate(module, "", sys_path)
    # plan and check run without the packages of workers: where torch is missing, others may be
    if located.problem and (here or find_spec("torch")):
        raise Unfit(
            message="cannot be imported", hint=located.hint, detail=located.problem, code="preload"
        )
    return module


def why_empty(root: Mapping[Any, Any], key: str, searched: Sequence[str]) -> Unfit:
    """Return what is wrong with an empty entrypoint."""
    expected = f"an entrypoint ({FORMS})"
    for name, value in root.items():
        if name != key and isinstance(value, dict) and key in value:
            hint = "put the line '# @package _global_' at the top of that config file"
            return Unfit(expected, hint, f"there is {name}.{key}", code="entrypoint")
    # what +exp=resnet becomes where there is no such group: a plain value
    plain = (
        name
        for name in ("exp", *root)
        if isinstance(name, str) and isinstance(root.get(name), str) and not is_secret_name(name)
        if re.fullmatch(r"[\w./-]{1,80}", root[name])
    )
    group = next(plain, None)
    if group is None:
        return Unfit(expected, code="entrypoint")
    looked = f" in {', '.join(searched)}" if searched else ""
    hint = f"'{group}={root[group]}' was taken for a plain value"
    return Unfit(expected, hint, f"there is no config group {group!r}{looked}", code="entrypoint")


_PREFLIGHT = "a program and its arguments ([nvidia-smi, -L]), or {command: [...], timeout: 5m}"


def _read_words(tree: Tree, key: str, findings: Findings) -> tuple[str, ...] | None:
    if not isinstance(tree, list) or not tree:
        return findings.attempt(key, tree, _split_words)
    before, words = findings.count, read_command_line(tree, key, findings, "preflight")
    return tuple(str(reveal(word)) for word, _ in words) if findings.count == before else None


def _split_words(value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise Unfit(_PREFLIGHT, code="preflight")
    import shlex  # noqa: PLC0415 - most runs have none

    if "\0" in value:
        raise Unfit("text without NUL characters", code="preflight")
    try:
        words = tuple(shlex.split(value))
    except ValueError as error:
        raise Unfit("a command line", "", str(error), code="preflight") from None
    if not words:
        raise Unfit(_PREFLIGHT, code="preflight")
    return words


PREFLIGHT = Node(
    Preflight,
    {
        "command": Kind(_read_words, list, whole=True),
        "timeout": Kind(partial(parse_duration, zero=False), format_duration),
    },
)


def read_preflight(settings: Settings, place: SearchPlace) -> tuple[Preflight | None, Tree]:
    """Read ``preflight``: what is run, or None, and its command as it was given."""
    tree, key, findings = settings["preflight"], settings.key_of("preflight"), settings.findings
    if reveal(tree) is None or tree is BROKEN:
        return None, None
    items, where = tree if isinstance(tree, dict) else {"command": tree}, f"{key}.command"
    before, command = findings.count, items.get("command")
    values = PREFLIGHT.values(items, key, findings)
    if command is None:
        findings.add(key, tree, Unfit(_PREFLIGHT, code="preflight"))
    if "command" not in values or findings.count > before:
        return None, None
    preflight = Preflight(**values)
    program = Entrypoint("program", preflight.program(place.runtime_cwd), preflight.command[0])
    first = command[0] if isinstance(command, list) else command
    findings.attempt(where, first, lambda _: check_program(program, place, "preflight"))
    return preflight, command
