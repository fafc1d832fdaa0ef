"""What `hydra_plugins.lllaunch_launcher.sweeper.LllaunchSweeper` does."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from lllaunch.app.boundary import AppEnded, refusing
from lllaunch.app.sweeping.resume import MULTIRUN
from lllaunch.errors import ConfigError, Diagnostic, OutputError
from lllaunch.exit_codes import ExitCode

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from hydra.core.override_parser.types import Override

    from hydra_plugins.lllaunch_launcher.launcher import LllaunchLauncher
    from hydra_plugins.lllaunch_launcher.sweeper import LllaunchSweeper


class Grid(Sequence[Sequence[str]]):
    """All combinations of one choice from each dimension; the last varies fastest, as in Hydra.

    Raises:
        OverflowError: there are more of them than Python counts.
    """

    def __init__(self, dimensions: Sequence[Sequence[str]]) -> None:
        self.dimensions = [list(choices) for choices in dimensions]
        self._len = math.prod(len(choices) for choices in self.dimensions)
        if self._len > sys.maxsize:
            raise OverflowError(self._len)

    def __len__(self) -> int:
        return self._len

    @overload
    def __getitem__(self, index: int) -> list[str]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[str]]: ...
    def __getitem__(self, index: int | slice) -> list[str] | list[list[str]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._len))]
        place = index + self._len if index < 0 else index
        if not 0 <= place < self._len:
            raise IndexError(index)
        chosen: list[str] = []
        for choices in reversed(self.dimensions):
            place, which = divmod(place, len(choices))
            chosen.append(choices[which])
        return chosen[::-1]


def sweep(sweeper: LllaunchSweeper, arguments: Sequence[str]) -> Any:
    """Runs all jobs of a command line with lllaunch's launcher.

    Raises:
        SystemExit: not all jobs succeeded, or nothing was started.
    """
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
        grid = grid_of(config, context.config_loader, arguments)
    launcher.on_begin = lambda resumed: _save(config, resumed)
    returns = launcher.launch(grid, initial_job_idx=0)
    if launcher.exit_code != ExitCode.SUCCESS:
        # Hydra calls it only when nothing is raised, and this sweep has come to its end
        name = config.hydra.job.config_name
        context.callbacks.on_multirun_end(config=config, config_name=name)
        raise AppEnded(launcher.exit_code)
    return [returns]


def grid_of(config: DictConfig, loader: ConfigLoader, arguments: Sequence[str]) -> Grid:
    """Returns the jobs of a sweep.

    Raises:
        ConfigError: an override gives no values.
    """
    # not `sweeper.params`, where Hydra has put values in the place of interpolations
    raw: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=False)
    params = [f"{key}={value}" for key, value in (raw.get("params") or {}).items()]
    parser = OverridesParser.create(config_loader=loader)
    try:
        return Grid(_dimensions(parser.parse_overrides([*params, *arguments])))
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
