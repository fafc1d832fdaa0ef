"""Whether the file of a script or program is there and can be run."""

from __future__ import annotations

import os
from collections.abc import Iterator

from lllaunch.config.findings import Unfit
from lllaunch.config.suggest import did_you_mean, nearest
from lllaunch.spec import Entrypoint

_MOST_NAMES = 2000


def check_script(entrypoint: Entrypoint) -> None:
    """Looks for the file of a script.

    Raises:
        Unfit: it is not there, is no file, or cannot be read.
    """
    path = entrypoint.name
    if os.path.isdir(path):
        raise Unfit(message="is a directory, not a script")
    if not os.path.exists(path):
        message = f"does not exist in {_directory(entrypoint)}"
        raise Unfit(message=message, hint=_script_hint(entrypoint))
    if not os.path.isfile(path):
        raise Unfit(message="is not a file")
    if not os.access(path, os.R_OK):
        raise Unfit(message="cannot be read: permission denied")


def _directory(entrypoint: Entrypoint) -> str:
    # What stands before the text that the user wrote, which the message shows already.
    base = entrypoint.name.removesuffix(entrypoint.text)
    return repr(base.rstrip("/") or "/") if base and base != entrypoint.name else "this file system"


def _script_hint(entrypoint: Entrypoint) -> str:
    if " " in entrypoint.text:
        return "arguments go under 'args'"
    directory, name = os.path.split(entrypoint.name)
    scripts = (other for other in _names_in(directory) if other.endswith(".py"))
    return did_you_mean(name, scripts)


def check_program(entrypoint: Entrypoint, search_path: str, runtime_cwd: str) -> None:
    """Looks for a program.

    Args:
        entrypoint: a program; a name that holds a slash is a file, any other is searched for.
        search_path: ``PATH`` of the worker.
        runtime_cwd: where the user is, for hints.

    Raises:
        Unfit: it is not there or cannot be executed.
    """
    name = entrypoint.name
    if "/" in name:
        _check_executable(entrypoint)
        return
    found = [os.path.join(directory or ".", name) for directory in search_path.split(os.pathsep)]
    files = [path for path in found if os.path.isfile(path)]
    if any(os.access(path, os.X_OK) for path in files):
        return
    if files:
        hint, detail = f"chmod +x {files[0]}", f"found only {files[0]!r}"
        raise Unfit(message="is not executable", hint=hint, detail=detail)
    hint = _program_hint(name, search_path, runtime_cwd)
    raise Unfit(message="is not a program on PATH", hint=hint)


def _check_executable(entrypoint: Entrypoint) -> None:
    path = entrypoint.name
    if os.path.isdir(path):
        raise Unfit(message="is a directory, not a program")
    if not os.path.exists(path):
        directory, name = os.path.split(path)
        raise Unfit(message="does not exist", hint=did_you_mean(name, _names_in(directory)))
    if not os.access(path, os.X_OK):
        raise Unfit(message="is not executable", hint=f"chmod +x {entrypoint.text}")


def _program_hint(name: str, search_path: str, runtime_cwd: str) -> str:
    if " " in name:
        return "arguments go under 'args'"
    for candidate in (f"{name}.py", f"./{name}"):
        if os.path.isfile(os.path.join(runtime_cwd, candidate)):
            return f"did you mean {candidate!r}?"
    if "." in name and os.path.isfile(os.path.join(runtime_cwd, f"{name.replace('.', '/')}.py")):
        return f"did you mean '-m {name}'?"
    own = _own_files(runtime_cwd)
    programs = (
        other for directory in search_path.split(os.pathsep) for other in _names_in(directory)
    )
    near = nearest(name, (*own, *programs))
    return f"did you mean {own.get(near, near)!r}?" if near else ""


def _own_files(runtime_cwd: str) -> dict[str, str]:
    """Return the scripts and programs beside the user as entrypoints, by their names alone."""
    found = {}
    for name in _names_in(runtime_cwd):
        path = os.path.join(runtime_cwd, name)
        if name.endswith(".py"):
            found[name.removesuffix(".py")] = name
        elif os.access(path, os.X_OK) and os.path.isfile(path):
            found[name] = f"./{name}"
    return found


def _names_in(directory: str) -> Iterator[str]:
    try:
        with os.scandir(directory or ".") as entries:
            for number, entry in enumerate(entries):
                if number == _MOST_NAMES:
                    return
                yield entry.name
    except OSError:
        return
