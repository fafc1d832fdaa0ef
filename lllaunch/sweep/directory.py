"""The directory of a sweep: held by one launcher at a time, whether it starts or resumes the sweep.

docs/reference/sweep-files.md says what is in it.
"""

from __future__ import annotations

import os

from lllaunch.errors import Problem
from lllaunch.run.files import naming
from lllaunch.run.lock import HeldDirectory, lock_directory

# not the name of a run's: a job whose directory is the sweep's own takes that one
LOCK_NAME = ".lllaunch-sweep.lock"
JOURNAL = "sweep.jsonl"
SUMMARY = "sweep.json"

_LONGEST = 18  # digits; a number is a signed 64-bit one for most readers of JSON


class SweepDirectory(HeldDirectory):
    """A sweep's directory, held by this launcher until `release`.

    Processes forked from the launcher hold it with it. A job's process that keeps it open until it
    ends makes sure that nobody resumes a sweep of which something still runs.

    Attributes:
        path: absolute path of the directory.
    """

    @classmethod
    def claim(cls, path: str, key: str = "hydra.sweep.dir") -> SweepDirectory:
        """Makes the directory if need be and takes it for this launcher.

        Args:
            path: the sweep's directory; a relative path counts from the working directory.
            key: the key that named it, for the message of a refusal.

        Raises:
            ConfigError: another launcher runs a sweep in it.
            OutputError: it cannot be made or written to.
        """
        path = os.path.abspath(path)

        def in_use(holder: str) -> Problem:
            expected = f"is in use by another sweep{holder}"
            return Problem(key, repr(path), expected, "wait for it, or choose another directory")

        return cls(path, lock_directory(path, LOCK_NAME, in_use))

    def numbers(self) -> frozenset[int]:
        """Returns the numbers that entries of the directory have for a name.

        No new job gets one of these: with Hydra's default ``hydra.sweep.subdir`` it would run in
        the directory of something that the journal does not know.

        Raises:
            OutputError: the directory cannot be read.
        """
        with naming(self.path):
            names = os.listdir(self.path)
        return frozenset(
            int(name)
            for name in names
            if name.isascii() and name.isdecimal() and len(name) <= _LONGEST
        )
