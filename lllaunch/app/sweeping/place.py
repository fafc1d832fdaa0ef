"""The directory of a sweep: where its config says, or beside it if that is another sweep's."""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf, open_dict, read_write

from lllaunch import __version__
from lllaunch.app.naming import is_of_a_moment
from lllaunch.config.whole import redacted_overrides
from lllaunch.errors import ConfigError
from lllaunch.records.find import remember
from lllaunch.sweep.directory import JOURNAL
from lllaunch.sweep.session import SweepSession

if TYPE_CHECKING:
    from omegaconf import DictConfig, ListConfig

# So many sweeps may begin in one directory in the same second.
_MOST = 100


def begin_session(config: DictConfig, resume: bool, *, moves: bool) -> SweepSession:
    """Takes the sweep's directory.

    Hydra names directories after the second. Of sweeps that begin in the same one, the first gets
    that name and the others get it with a number, if they may.

    Args:
        config: what the sweep was composed to; it says afterwards where the sweep is.
        resume: whether the sweep that is there is gone on with.
        moves: whether the sweeper lets the launcher choose another name.

    Raises:
        ConfigError, OutputError: as `SweepSession.begin` has it.
    """
    stated = os.path.join(config.hydra.runtime.cwd, str(config.hydra.sweep.dir))
    if resume or not moves or not is_of_a_moment(config.hydra.sweep):
        return _begin(config, stated, resume)
    for number in itertools.count():
        place = f"{stated}-{number}" if number else stated
        if os.path.lexists(os.path.join(place, JOURNAL)) and number < _MOST:
            continue
        try:
            session = _begin(config, place, resume)
        except ConfigError:
            # another launcher was faster
            if number >= _MOST:
                raise
            continue
        if number:
            node: Any = config.hydra.sweep
            with read_write(node), open_dict(node):
                node.dir = f"{node.dir}-{number}"
        return session
    raise AssertionError("unreachable")


def _begin(config: DictConfig, place: str, resume: bool) -> SweepSession:
    session = SweepSession.begin(
        place,
        command=redacted_overrides(_raw(config.hydra.overrides.task)),
        version=__version__,
        resume=resume,
        say=lambda text: print(f"lllaunch: {text}", file=sys.stderr),
    )
    remember(session.path, config.hydra.runtime.cwd, os.environ)
    return session


def _raw(texts: ListConfig) -> list[str]:
    """Returns overrides as they were written: their interpolations are not this config's."""
    found: Any = OmegaConf.to_container(texts, resolve=False)
    return list(map(str, found))
