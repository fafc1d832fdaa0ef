"""``hydra.launcher.resume=DIR`` on a command line: what it stands for.

The sweep's directory is DIR. Where the command line names no job, it is that of the sweep itself,
which Hydra has left there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import yaml  # type: ignore[import-untyped]

from lllaunch.errors import ConfigError, Diagnostic
from lllaunch.files import read_bytes
from lllaunch.words import shown_path

KEY = "hydra.launcher.resume"
DIRECTORY = "hydra.sweep.dir"
MULTIRUN = "multirun.yaml"

# of a sweep on a cluster, whether this launcher stays
_DETACH = "cluster.detach"
_CONFIG_NAME, _CONFIG_DIR = ("--config-name", "-cn"), ("--config-dir", "-cd")
# Of the sweep that is resumed, the command line says these anew.
_SAID_ANEW = frozenset({KEY, DIRECTORY, "hydra.mode", "hydra.run.dir"})


def completed(argv: Sequence[str]) -> list[str]:
    """Return a command line that says where the sweep is that it resumes, and which jobs it has.

    The directory of a sweep holds the moment of its start in general, so it must be known before
    Hydra composes anything.
    """
    found = [text.partition("=")[2] for text in argv if _key(text) == KEY]
    if not found or found[-1] in {"", "null"}:
        return list(argv)
    words = [*argv]
    if not any(map(_names_a_job, argv)):
        options, overrides = _former(found[-1], argv)
        # together, since Hydra takes no option between two overrides
        first = next(at for at, word in enumerate(words) if _key(word) == KEY)
        words = [*options, *words[:first], *overrides, *words[first:]]
    stated = any(_key(text) == DIRECTORY for text in argv)
    return words if stated else [*words, f"{DIRECTORY}={found[-1]}"]


def command() -> str:
    """Return how this app was called, up to its overrides, as a shell takes it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None:
        return f"python -m {spec.name.removesuffix('.__main__')} -m"
    name = shown_path(os.path.abspath(sys.argv[0]), os.getcwd())
    return f"python {name} -m" if name.endswith(".py") else f"{os.path.basename(name)} -m"


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+")


def _names_a_job(word: str) -> bool:
    """Whether a word is an override that is not Hydra's own, nor about this launcher."""
    if word.startswith("-") or not (word.startswith("~") or "=" in word):
        return False
    if _key(word) == _DETACH:
        return False
    return not _key(word).startswith(("hydra.", "hydra/"))


def _former(directory: str, argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options and overrides that a sweep was begun with; none if they cannot be read."""
    try:
        # values of any type may be in it, and of none more than the text is needed
        text = read_bytes(os.path.join(directory, MULTIRUN))
        node = yaml.load(text, yaml.BaseLoader)["hydra"]  # noqa: S506 - it makes texts only
        overrides, name = node["overrides"], node["job"]["config_name"]
        words = [word for part in ("hydra", "task") for word in overrides[part]]
        sources = node["runtime"]["config_sources"]
        dirs = [each["path"] for each in sources if each["provider"] == "command-line"]
    except (OSError, ValueError, RecursionError, LookupError, TypeError, yaml.YAMLError):
        return [], []
    options = []
    if name not in {"", "null"} and not any(word.startswith(_CONFIG_NAME) for word in argv):
        options.append(f"--config-name={name}")
    if not any(word.startswith(_CONFIG_DIR) for word in argv):
        options += [f"--config-dir={path}" for path in dirs]
    return options, [word for word in words if _key(word) not in _SAID_ANEW]


def check(resume: str | None, sweep_dir: str, cwd: str) -> None:
    """Checks that the sweep that is resumed is the one that Hydra works on.

    Raises:
        ConfigError: they differ.
    """
    if resume is None:
        return
    theirs, ours = (os.path.realpath(os.path.join(cwd, path)) for path in (sweep_dir, resume))
    if theirs != ours:
        message = f"is not the sweep's directory ({sweep_dir})"
        problem = Diagnostic("resume", KEY, repr(resume), message, f"add {DIRECTORY}={resume}")
        raise ConfigError((problem,))
