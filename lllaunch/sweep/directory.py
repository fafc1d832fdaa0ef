"""The directory of a sweep: held by one launcher at a time, whether it starts or resumes the sweep.

docs/reference/sweep-files.md says what is in it.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from lllaunch.locks import HeldDirectory, lock_directory
from lllaunch.run.directory import EVENTS, PLAN, RESULT, SUBMISSION
from lllaunch.run.files import naming

if TYPE_CHECKING:
    from collections.abc import Callable

# not the name of a run's: a job whose directory is the sweep's own takes that one
LOCK_NAME = ".lllaunch-sweep.lock"
JOURNAL = "sweep.jsonl"
SUMMARY = "sweep.json"
ARRAYS = "submitted"
"""Where the directories of what went to a cluster are."""

_TRACES = frozenset({RESULT, EVENTS, SUBMISSION})
_LONGEST = 18  # digits; a number is a signed 64-bit one for most readers of JSON


class SweepDirectory(HeldDirectory):
    """A sweep's directory, held by this launcher until `release`.

    Processes forked from the launcher hold it with it. A job's process that keeps it open until it
    ends makes sure that nobody resumes a sweep of which something still runs.
    """

    @classmethod
    def claim(
        cls,
        path: str,
        key: str = "hydra.sweep.dir",
        patience: float = 0.0,
        say: Callable[[str], object] | None = None,
    ) -> SweepDirectory:
        """Makes the directory if need be and takes it for this launcher.

        ``patience``: how long to wait for the jobs of a launcher that has ended, seconds. A
        launcher that lives is not waited for.

        Raises:
            ConfigError: another launcher runs a sweep in it, or jobs of one that has ended do.
            OutputError: it cannot be made, written to, or locked.
        """
        path = os.path.abspath(path)
        with naming(path):
            return cls(path, lock_directory(path, LOCK_NAME, key, "sweep", patience, say))

    def set_aside(self) -> str | None:
        """Makes room for a new sweep: the journal of one that is here gets a number in its name.

        Raises:
            OutputError: it cannot be renamed.
        """
        if not os.path.lexists(self.file(JOURNAL)):
            return None
        number = 1
        while os.path.lexists(self.file(_numbered(JOURNAL, number))):
            number += 1
        with naming(self.path):
            # first, so that a journal that is here always has the summary that is
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.file(SUMMARY), self.file(_numbered(SUMMARY, number)))
            os.rename(self.file(JOURNAL), self.file(_numbered(JOURNAL, number)))
        return self.file(_numbered(JOURNAL, number))

    def numbers(self) -> frozenset[int]:
        """Returns the numbers that entries of the directory have for a name.

        No new job gets one of these: with Hydra's default ``hydra.sweep.subdir`` it would run in
        the directory of something that the journal does not know. Where a job was only made ready
        for a cluster nothing has run.

        Raises:
            OutputError: the directory cannot be read.
        """
        with naming(self.path):
            names = os.listdir(self.path)
        return frozenset(
            int(name)
            for name in names
            if name.isascii()
            and name.isdecimal()
            and len(name) <= _LONGEST
            and not (ARRAYS in names and self._is_only_ready(name))
        )

    def _is_only_ready(self, name: str) -> bool:
        try:
            names = os.listdir(os.path.join(self.path, name))
        except OSError:
            return False
        return PLAN in names and not any(
            each in _TRACES or each.startswith("attempt_") for each in names
        )


def _numbered(name: str, number: int) -> str:
    stem, extension = os.path.splitext(name)
    return f"{stem}.{number}{extension}"
