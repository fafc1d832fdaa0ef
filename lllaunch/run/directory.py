"""The directory of a run: claimed by one launcher at a time, grown attempt by attempt.

Layout (docs/reference/files.md)::

    plan.yaml  events.jsonl  samples.jsonl  result.json  latest -> attempt_1
    attempt_0/0/  attempt_0/1/  attempt_1/0/ ...

Only the launcher makes directories; an attempt's directory is never deleted or used twice.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from typing import TYPE_CHECKING

from lllaunch.errors import ConfigError
from lllaunch.files import link_atomic, naming
from lllaunch.locks import HeldDirectory, lock_directory
from lllaunch.workers.log_files import make_attempt_dir

if TYPE_CHECKING:
    from collections.abc import Callable

LOCK_NAME = ".lllaunch.lock"
PLAN = "plan.yaml"
EVENTS = "events.jsonl"
SAMPLES = "samples.jsonl"
RESULT = "result.json"
SUBMISSION = "submission.jsonl"
"""What was submitted to a cluster (`lllaunch.run.submission`)."""
ATTEMPT = re.compile(r"attempt_(\d+)")
"""The name of an attempt's directory."""

_TRIES = 10


class RunDirectory(HeldDirectory):
    """A run's directory, held by this launcher until `release`.

    Two runs can never mix their attempts; a later run in the same directory goes on with the next
    attempt number.
    """

    made: tuple[str, ...] = ()
    """Directories that were made for it, the outermost first; its own is the last one."""

    @classmethod
    def claim(
        cls,
        path: str,
        patience: float = 0.0,
        say: Callable[[str], object] | None = None,
        *,
        alone: bool = False,
    ) -> RunDirectory:
        """Makes the directory if need be and takes it for this launcher.

        Arguments are as for `lock_directory`, which says what is raised, too; a
        relative path counts from the working directory.
        """
        path = os.path.abspath(path)
        made = _missing(path)
        with naming(path):
            lock = lock_directory(
                path, LOCK_NAME, "launch.log_dir", "run", patience, say, alone=alone
            )
        held = cls(path, lock)
        held.made = made
        return held

    @classmethod
    def claim_new(cls, path: str) -> RunDirectory:
        """Make a directory that is not there yet and take it for this launcher.

        If there is something of its name it gets ``-1``, ``-2``, ... appended.

        Raises:
            OutputError: it cannot be made or written to.
        """
        path = os.path.abspath(path)
        for number in itertools.count():
            candidate = f"{path}-{number}" if number else path
            made = _missing(candidate)
            if not _make(candidate):
                continue
            # refused if somebody who named it was faster
            with contextlib.suppress(ConfigError):
                held = cls.claim(candidate)
                held.made = made
                return held
        raise AssertionError("unreachable")

    def is_at(self, path: str) -> bool:
        """Return whether a path leads to this directory."""
        try:
            return os.path.samefile(self.path, path)
        except OSError:
            return False

    def discard(self) -> None:
        """Take away what was made to claim the directory, as far as nothing else is in it.

        For a run that is refused; idempotent, as `release` is, which it does, too.
        """
        if self.made:
            with contextlib.suppress(OSError):
                os.unlink(self.file(LOCK_NAME))
                for path in reversed(self.made):
                    os.rmdir(path)
        self.release()

    def next_attempt(self) -> int:
        """Returns the number above all attempts that are there, 0 if there are none."""
        with naming(self.path):
            names = os.listdir(self.path)
        numbers = [int(match[1]) for name in names if (match := ATTEMPT.fullmatch(name))]
        return max(numbers, default=-1) + 1

    def make_attempt(self, nproc: int, at_least: int = 0) -> tuple[int, str]:
        """Makes the next attempt's directory with one directory for each local rank.

        ``latest`` points to it afterwards. Its number is at least that of other nodes of the run.

        Raises:
            OutputError: names what could not be made, and the rank if it is a rank's.
        """
        first = max(at_least, self.next_attempt())
        path, number = make_attempt_dir(self.path, first, nproc)
        link_atomic(self.file("latest"), os.path.basename(path))
        return number, path


def forget_result(directory: str) -> None:
    """Take away the result.json of an earlier run in a directory, before another one starts there.

    So what is there afterwards is of the latter, whatever the clocks say.

    Raises:
        OutputError: it cannot be taken away.
    """
    path = os.path.join(directory, RESULT)
    with naming(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def free_space(path: str) -> tuple[str, int] | None:
    """Return where the file system of a directory is mounted, and the bytes that are free on it."""
    try:
        found = os.statvfs(path)
        mount = os.path.realpath(path)
        while not os.path.ismount(mount):
            mount = os.path.dirname(mount)
    except OSError:
        return None
    return mount, found.f_bavail * found.f_frsize


def _make(path: str) -> bool:
    """Make a directory and those above it; return False if there is something of its name."""
    with naming(path):
        for _ in range(_TRIES):
            # another launcher may just take away the one above it, which it has made
            with contextlib.suppress(FileNotFoundError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                try:
                    os.mkdir(path)
                except FileExistsError:
                    return False
                return True
        os.mkdir(path)
        return True


def _missing(path: str) -> tuple[str, ...]:
    """Return those of a directory and the ones above it that are not there, outermost first."""
    found: list[str] = []
    while not os.path.lexists(path):
        found.append(path)
        path = os.path.dirname(path)
    return tuple(reversed(found))
