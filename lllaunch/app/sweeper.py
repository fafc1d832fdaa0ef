"""What `hydra_plugins.lllaunch_launcher.sweeper.LllaunchSweeper` does."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from lllaunch.app.boundary import AppEnded, refusing
from lllaunch.errors import ConfigError, Diagnostic, ExitCode, OutputError
from lllaunch.files import read_bytes
from lllaunch.words import RESUME

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override

    from hydra_plugins.lllaunch_launcher.launcher import LllaunchLauncher
    from hydra_plugins.lllaunch_launcher.sweeper import LllaunchSweeper


MULTIRUN = "multirun.yaml"
_SWEEP_DIR = "hydra.sweep.dir"

T = TypeVar("T")


class Lazy(Sequence[T]):
    """Items that are made when they are asked for: a sweep may have millions of jobs."""

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._make(place) for place in range(self._count)[index]]
        return self._make(range(self._count)[index])


def grid(dimensions: Sequence[Sequence[str]]) -> Lazy[list[str]]:
    """Return all combinations of one choice from each dimension, in the order of Hydra's.

    Raises `OverflowError` if there are more of them than Python counts.
    """
    count = math.prod(map(len, dimensions))
    if count > sys.maxsize:
        raise OverflowError(count)

    def combination(place: int) -> list[str]:
        chosen: list[str] = []
        for choices in reversed(dimensions):
            place, which = divmod(place, len(choices))
            chosen.append(choices[which])
        return chosen[::-1]

    return Lazy(count, combination)


def sweep(sweeper: LllaunchSweeper, arguments: Sequence[str]) -> Any:
    """Run all jobs of a command line with lllaunch's launcher; `SystemExit` if one has failed."""
    config, context = sweeper.config, sweeper.hydra_context
    launcher: LllaunchLauncher = sweeper.launcher  # type: ignore[assignment]
    assert config is not None
    assert context is not None
    with refusing():
        if sweeper.max_batch_size is not None:
            problem = Diagnostic(
                "overrides",
                "hydra.sweeper.max_batch_size",
                repr(sweeper.max_batch_size),
                "has no meaning here: a job starts as soon as there is room for it",
                "say with hydra.launcher.max_parallel how many may run at the same time",
            )
            raise ConfigError((problem,))
        jobs = grid_of(config, context.config_loader, arguments)
    launcher.on_begin = lambda resumed: _save(config, resumed)
    returns = launcher.launch(jobs, initial_job_idx=0)
    if launcher.exit_code != ExitCode.SUCCESS:
        # Hydra calls it only when nothing is raised, and this sweep has come to its end
        name = config.hydra.job.config_name
        context.callbacks.on_multirun_end(config=config, config_name=name)
        raise AppEnded(launcher.exit_code)
    return [returns]


def grid_of(config: DictConfig, loader: ConfigLoader, arguments: Sequence[str]) -> Lazy[list[str]]:
    """Return the jobs of a sweep, or raise `ConfigError` if an override gives no values."""
    # not `sweeper.params`, where Hydra has put values in the place of interpolations
    raw: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=False)
    params = [f"{key}={value}" for key, value in (raw.get("params") or {}).items()]
    parser = OverridesParser.create(config_loader=loader)
    try:
        return grid(_dimensions(parser.parse_overrides([*params, *arguments])))
    except OverflowError as error:
        message = f"ask for {error} jobs, expected {sys.maxsize} at most"
        raise ConfigError((Diagnostic("overrides", "", "the overrides", message),)) from None


def _dimensions(overrides: Sequence[Override]) -> list[list[str]]:
    """The choices that each override gives, in the order of the command line; the last one wins."""
    found: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for override in overrides:
        key = override.get_key_element()
        if override.is_delete() and "=" not in (override.input_line or ""):
            found[key] = [key]
            continue
        texts[key] = repr(override.get_value_string())
        if not override.is_sweep_override():
            found[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            found[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            assert override.value_type is not None
            kind = override.value_type.name.partition("_")[0].lower()
            message = f"is a sweep of a kind ({kind}) that gives no list of values"
            hint = "use choice(...) or range(...), or a sweeper that searches, such as Optuna's"
            text = override.get_value_string()
            raise ConfigError((Diagnostic("overrides", key, repr(text), message, hint),))
    empty = [key for key, choices in found.items() if not choices]
    if empty:
        message = "gives no value to sweep over"
        raise ConfigError(tuple(Diagnostic("overrides", key, texts[key], message) for key in empty))
    return list(found.values())


def _save(config: DictConfig, resumed: bool) -> None:
    """Leaves what the sweep was composed to in its directory; that of a resumed one stays."""
    directory = str(config.hydra.sweep.dir)
    path = os.path.join(directory, MULTIRUN)
    try:
        os.makedirs(directory, exist_ok=True)
        if not (resumed and os.path.exists(path)):
            OmegaConf.save(config, path)
    except OSError as error:
        raise OutputError(error.filename or path, error.strerror or str(error)) from error


# What ``hydra.launcher.resume=DIR`` on a command line stands for

# of a sweep on a cluster, whether this launcher stays
_DETACH = "cluster.detach"
_CONFIG_NAME, _CONFIG_DIR = ("--config-name", "-cn"), ("--config-dir", "-cd")
# Of the sweep that is resumed, the command line says these anew.
_SAID_ANEW = frozenset({RESUME, _SWEEP_DIR, "hydra.mode", "hydra.run.dir"})


def completed(argv: Sequence[str]) -> list[str]:
    """Return a command line that says where the sweep is that it resumes, and which jobs it has.

    The directory of a sweep holds the moment of its start in general, so it must be known before
    Hydra composes anything.
    """
    found = [text.partition("=")[2] for text in argv if _key(text) == RESUME]
    if not found or found[-1] in {"", "null"}:
        return list(argv)
    words = [*argv]
    if not any(map(_names_a_job, argv)):
        options, overrides = _former(found[-1], argv)
        # together, since Hydra takes no option between two overrides
        first = next(at for at, word in enumerate(words) if _key(word) == RESUME)
        words = [*options, *words[:first], *overrides, *words[first:]]
    stated = any(_key(text) == _SWEEP_DIR for text in argv)
    return words if stated else [*words, f"{_SWEEP_DIR}={found[-1]}"]


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
