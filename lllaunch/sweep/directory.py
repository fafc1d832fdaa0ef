"""The directory of a sweep: held by one launcher at a time, whether it starts or resumes the sweep.

docs/reference/sweep-files.md says what is in it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lllaunch.errors import Problem
from lllaunch.run.files import naming
from lllaunch.run.lock import lock_directory

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

# not the name of a run's: a job whose directory is the sweep's own takes that one
LOCK_NAME = ".lllaunch-sweep.lock"
JOURNAL = "sweep.jsonl"
SUMMARY = "sweep.json"

_LONGEST = 18  # digits; a number is a signed 64-bit one for most readers of JSON


class SweepDirectory:
    """A sweep's directory, held by this launcher until `release`.

    Processes forked from the launcher hold it with it. A job's process that keeps it open until it
    ends makes sure that nobody resumes a sweep of which something still runs.

    Attributes:
        path: absolute path of the directory.
    """

    def __init__(self, path: str, lock_fd: int | None) -> None:
        self.path = path
        self._lock_fd = lock_fd

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

    def file(self, name: str) -> str:
        """Returns the absolute path of a file of the sweep."""
        return os.path.join(self.path, name)

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

    def release(self) -> None:
        """Gives the directory back; idempotent."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
