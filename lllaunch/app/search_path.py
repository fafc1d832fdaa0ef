"""Where ``python -m lllaunch`` looks for configs: --config-dir, ./conf, then the package's own."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, ClassVar

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.plugins.search_path_plugin import SearchPathPlugin

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGED = "pkg://lllaunch.conf"

PRIMARY = "_lllaunch_app"
"""Name of the app's primary config: one that no user has."""

AGAIN = "_lllaunch_again"
"""Name of the primary config of a run that is repeated."""

MODULE = "lllaunch"
"""What Hydra names the app's job after, and finds relative paths from."""

BASE = "1.3"
"""Hydra's compatibility level of the app."""

DIRECTORY = "conf"
_PROVIDER = "lllaunch"
# Hydra's names for its own configs and for the place of the primary config
_HYDRA, _MAIN = "hydra", "main"


def config_dir_of(argv: Sequence[str]) -> str | None:
    """Returns the value of ``--config-dir`` among words for Hydra, None if there is none.

    Hydra reads it too, and puts the directory last; here it shall come first.
    """
    found = [value for flag, value in itertools.pairwise(argv) if flag in {"--config-dir", "-cd"}]
    return found[-1] if found else None


def config_path_of(path: str | None) -> str | None:
    """Return the value of ``--config-path`` for Hydra, which counts it from the app's own file.

    It was given from the working directory, if it exists there.
    """
    return os.path.abspath(path) if path and os.path.isdir(path) else path


def with_config_path(argv: Sequence[str]) -> list[str]:
    """Return words for Hydra with what it takes ``--config-path`` for."""
    words = list(argv)
    for index, (flag, value) in enumerate(itertools.pairwise(argv), start=1):
        if flag in {"--config-path", "-cp"}:
            words[index] = str(config_path_of(value))
    return words


class ConfDirectories(SearchPathPlugin):
    """Adds directories to the search path of the app that registered it, and of no other."""

    config_dir: ClassVar[str | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Puts --config-dir and ./conf before the package's configs; called by Hydra."""
        before_main = any(element.path == PACKAGED for element in search_path.get_path())
        if not before_main:
            # --config-path replaced the package: what it names precedes ./conf
            search_path.append(_PROVIDER, PACKAGED)
        conf = os.path.abspath(DIRECTORY)
        if os.path.isdir(conf):
            anchor = SearchPathQuery(_HYDRA if before_main else _MAIN)
            search_path.append(_PROVIDER, f"file://{conf}", anchor=anchor)
        # a directory that is not there is left to Hydra, which reports it
        if self.config_dir and os.path.isdir(self.config_dir):
            path = f"file://{os.path.abspath(self.config_dir)}"
            search_path.append("command-line", path, anchor=SearchPathQuery(_HYDRA))
