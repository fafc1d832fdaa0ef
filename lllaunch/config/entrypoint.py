"""What the workers run: told by the form of the text."""

from __future__ import annotations

import os
import re

from lllaunch.config.findings import Unfit
from lllaunch.spec import Entrypoint

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_INTERPRETERS = re.compile(r"(python[\d.]*|torchrun)\s+")

_MODULE = "a module alone after -m (-m package.module)"
_ONE_FORM = "a script (path.py) or a function (package.module:callable)"

FORMS = "package.module:callable, a path ending in .py, -m package.module, or a program"


def is_dotted(text: str) -> bool:
    """Whether text is a dotted name, such as ``package.module``."""
    return _DOTTED.fullmatch(text) is not None


def parse_entrypoint(value: object, runtime_cwd: str) -> Entrypoint:
    """Tells what an entrypoint is.

    Args:
        value: ``package.module:callable`` is a function, a path ending in ``.py`` a script,
            ``-m package.module`` a module, anything else a program.
        runtime_cwd: directory that relative paths start from, absolute.

    Returns:
        The entrypoint. Whether it is there is not looked at.

    Raises:
        Unfit: it has none of the forms.
    """
    if not isinstance(value, str):
        raise Unfit(f"an entrypoint ({FORMS})", "quote it")
    text = value.strip()
    if "\0" in text:
        raise Unfit("text without NUL characters")
    if text == "-m" or text.startswith("-m "):
        return _module(text)
    if _INTERPRETERS.match(text):
        raise Unfit(
            "one file, module, function or program, not a command line",
            "name the script itself (Python is started for you) and give its arguments as 'args'",
        )
    if text.endswith(".py"):
        return Entrypoint("script", os.path.join(runtime_cwd, text), text)
    if ":" in text and "/" not in text:
        return _function(text)
    name = os.path.join(runtime_cwd, text) if "/" in text else text
    return Entrypoint("program", _not_a_file_and_name(name), text)


def _module(text: str) -> Entrypoint:
    name = text[2:].strip()
    if name.endswith(".py"):
        raise Unfit(_MODULE, f"write {name!r}, without -m")
    if is_dotted(name):
        return Entrypoint("module", name, text)
    if name and is_dotted(name.split()[0]):
        raise Unfit(_MODULE, "give the arguments as 'args'")
    raise Unfit(_MODULE)


def _function(text: str) -> Entrypoint:
    module, _, qualname = text.partition(":")
    if module.endswith(".py"):
        dotted = module[:-3]
        raise Unfit(
            _ONE_FORM,
            f"did you mean '{dotted}:{qualname}' or {module!r}?",
        )
    if not is_dotted(module) or not is_dotted(qualname):
        raise Unfit("a function (package.module:callable, of dotted names)")
    if module == "__main__":
        raise Unfit("a function that workers can import", "name its module in place of __main__")
    return Entrypoint("function", module, text, qualname)


def _not_a_file_and_name(path: str) -> str:
    head, colon, tail = path.rpartition(":")
    if colon and head.endswith(".py") and is_dotted(tail):
        raise Unfit(
            _ONE_FORM,
            f"a function is named by its module, as 'package.module:{tail}'",
        )
    return path
