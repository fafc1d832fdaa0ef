"""What Hydra would say with a traceback, not at all, or never, said in a line.

Hydra reads config files as they are: aliases within aliases fill the memory, and errors of YAML,
the file system and Python's logging end its app with a traceback.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import hydra._internal.utils as hydra_utils
import hydra.core.utils as hydra_core
import yaml  # type: ignore[import-untyped]  # PyYAML ships no types
from hydra._internal.config_repository import ConfigRepository
from hydra.core.object_type import ObjectType
from hydra.errors import CompactHydraException, ConfigCompositionException
from omegaconf.errors import OmegaConfBaseException

from lllaunch.app.ending import JobEnded, QuietReturn, wants_full_errors
from lllaunch.app.reasons import reason_of
from lllaunch.app.variables import noting_variables, without_variables
from lllaunch.errors import LaunchError
from lllaunch.units import visible

if TYPE_CHECKING:
    from hydra.plugins.config_source import ConfigResult

MOST_VALUES = 200_000
"""Values in a config file, those that aliases stand for counted each time."""

_TOLD = (OmegaConfBaseException, OSError, ValueError, LookupError, yaml.YAMLError)


class BoundedRepository(ConfigRepository):
    """Hydra's, but a file whose aliases come to too much is not read."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Reads a config; called by Hydra.

        Raises:
            ConfigCompositionException: its file comes to too much.
        """
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is not None and source.scheme() == "file":
            name = source._normalize_file_name(config_path)
            _expect_bounded(os.path.join(source.path, name))
        return super().load_config(config_path)


def _expect_bounded(path: str) -> None:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return  # Hydra says why
    if b"&" not in data or b"*" not in data:
        return
    with contextlib.suppress(yaml.YAMLError, UnicodeError):
        line = _too_much(data)
        if line:
            text = f"{path}:{line}: its aliases come to more than {MOST_VALUES} values"
            raise ConfigCompositionException(visible(text))


def _too_much(data: bytes) -> int:
    """The line where the values of a file become too many, 0 if they do not."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    sizes: dict[str, int] = {}
    count = 0
    opened: list[tuple[str | None, int]] = []
    for event in yaml.parse(data, Loader=loader):
        before = count
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            count += sizes.get(anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            count += 1
            sizes[anchor or ""] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            count += 1
            opened.append((anchor, before))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            sizes[anchor or ""] = count - before
        if count > MOST_VALUES:
            return int(event.start_mark.line) + 1
    return 0


@contextlib.contextmanager
def composing_readably() -> Iterator[None]:
    """Errors of composing in the block are such that Hydra tells, in characters that are seen.

    Raises:
        ConfigCompositionException: as said.
    """
    with noting_variables():
        try:
            yield
        except (LaunchError, JobEnded):
            raise
        except RecursionError:
            reason = "the config is nested too deeply, or refers to itself"
            raise ConfigCompositionException(reason) from None
        except (CompactHydraException, *_TOLD) as error:
            reason = reason_of(error)
            told = visible(without_variables(reason))
            if isinstance(error, CompactHydraException) and told == reason:
                raise
            raise ConfigCompositionException(told) from None


@contextlib.contextmanager
def reporting_readably() -> Iterator[None]:
    """In the block Hydra apps raise why they end, in a line; Hydra prints nothing of its own.

    What is neither ours nor comes of composing it still reports as it does.
    """
    known, returns = hydra_utils.run_and_report, hydra_core.JobReturn

    def run_and_report(func: Callable[[], Any]) -> Any:
        if wants_full_errors():
            return func()
        ended: list[CompactHydraException] = []

        def told() -> Any:
            try:
                with composing_readably():
                    return func()
            except CompactHydraException as error:
                ended.append(error)

        value = known(told)
        for error in ended:
            raise error
        return value

    hydra_utils.run_and_report = run_and_report
    hydra_core.JobReturn = QuietReturn  # type: ignore[misc]
    try:
        # what is said after the app has ended, too
        with noting_variables():
            yield
    finally:
        hydra_utils.run_and_report, hydra_core.JobReturn = known, returns  # type: ignore[misc]
