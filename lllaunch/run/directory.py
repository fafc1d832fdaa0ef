"""The directory of a run: claimed by one launcher at a time, grown attempt by attempt.

Layout (docs/reference/files.md)::

    plan.yaml  events.jsonl  result.json  latest -> attempt_1
    attempt_0/0/  attempt_0/1/  attempt_1/0/ ...

Only the launcher makes directories; an attempt's directory is never deleted or used twice.
"""

from __future__ import annotations

import os
import re

from lllaunch.errors import Problem
from lllaunch.multiprocessing.layout import make_attempt_dir
from lllaunch.run.files import link_atomic, naming
from lllaunch.run.lock import HeldDirectory, lock_directory

LOCK_NAME = ".lllaunch.lock"
_ATTEMPT = re.compile(r"attempt_(\d+)")


class RunDirectory(HeldDirectory):
    """A run's directory, held by this launcher until `release`.

    The claim is a lock on a file in it (``flock``: the kernel drops it however the launcher ends),
    so that two runs can never mix their attempts; a later run in the same directory goes on with
    the next attempt number.

    Attributes:
        path: absolute path of the directory.
    """

    @classmethod
    def claim(cls, path: str) -> RunDirectory:
        """Makes the directory if need be and takes it for this launcher.

        Args:
            path: where the run's files go; relative paths count from the working directory.

        Raises:
            ConfigError: another live run holds it.
            OutputError: it cannot be made or written to.
        """
        path = os.path.abspath(path)
        return cls(path, lock_directory(path, LOCK_NAME, lambda holder: _in_use(path, holder)))

    def next_attempt(self) -> int:
        """Returns the number above all attempts that are there, 0 if there are none.

        Raises:
            OutputError: the directory cannot be read.
        """
        with naming(self.path):
            names = os.listdir(self.path)
        numbers = [int(match[1]) for name in names if (match := _ATTEMPT.fullmatch(name))]
        return max(numbers, default=-1) + 1

    def make_attempt(self, nproc: int) -> tuple[int, str]:
        """Makes the next attempt's directory with one directory for each local rank.

        ``latest`` points to it afterwards.

        Args:
            nproc: number of local ranks.

        Returns:
            its number and its absolute path.

        Raises:
            OutputError: names what could not be made, and the rank if it is a rank's.
        """
        path, number = make_attempt_dir(self.path, self.next_attempt(), nproc)
        link_atomic(self.file("latest"), os.path.basename(path))
        return number, path


def _in_use(path: str, holder: str) -> Problem:
    return Problem(
        key="launch.log_dir",
        value=repr(path),
        expected=f"is in use by another run{holder}",
        hint="wait for it, or choose another directory with hydra.run.dir=...",
    )
