"""Where the streams of an attempt's workers go: files by local rank, in a directory each."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from lllaunch.files import naming
from lllaunch.spec import Std

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


LOGS = ("stdout.log", "stderr.log")
"""Files of a worker's streams, in its directory."""
CONSOLE = ""
"""The path that stands for a stream that is not redirected."""


@dataclass
class LogsDest:
    """Paths of the files of one attempt, by local rank; names are torch's."""

    # file of each rank's stdout; an empty string for the console
    stdouts: dict[int, str] = field(default_factory=dict)
    # file of each rank's stderr; an empty string for the console
    stderrs: dict[int, str] = field(default_factory=dict)
    # files of those ranks whose stdout is shown as well
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    # files of those ranks whose stderr is shown as well
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""  # file for the lines of teed stdout that pass a filter
    filtered_stderr: str = ""  # file for the lines of teed stderr that pass a filter


def make_attempt_dir(run_dir: str, first: int, nprocs: int) -> tuple[str, int]:
    """Makes ``run_dir/attempt_N`` and a directory per rank in it.

    Raises:
        OutputError: a directory cannot be made.
    """
    for number in count(first):
        path = os.path.join(run_dir, f"attempt_{number}")
        with naming(path), contextlib.suppress(FileExistsError):
            os.mkdir(path)
            break
    for rank in range(nprocs):
        rank_dir = os.path.join(path, str(rank))
        with naming(rank_dir, rank):
            os.mkdir(rank_dir)
    return path, number


def destinations(
    attempt_dir: str,
    redirects: Mapping[int, Std],
    tee: Mapping[int, Std],
    local_ranks_filter: Collection[int] | None = None,
) -> LogsDest:
    """Says which stream goes where; makes nothing.

    ``attempt_dir``: directory of the attempt, or ``/dev/null``. ``local_ranks_filter``: ranks whose
    output is shown; None or empty for all. Of the others, streams that are not redirected are
    discarded.
    """
    nowhere = attempt_dir == os.devnull

    def path(*names: str) -> str:
        return os.devnull if nowhere else os.path.join(attempt_dir, *names)

    dest = LogsDest(
        filtered_stdout=path("filtered_stdout.log"), filtered_stderr=path("filtered_stderr.log")
    )
    for rank, mask in redirects.items():
        shown = not local_ranks_filter or rank in local_ranks_filter
        teed = tee.get(rank, Std.NONE)
        dest.error_files[rank] = path(str(rank), "error.json")
        for stream, name, files, tees in (
            (Std.OUT, LOGS[0], dest.stdouts, dest.tee_stdouts),
            (Std.ERR, LOGS[1], dest.stderrs, dest.tee_stderrs),
        ):
            if (mask | teed) & stream and not nowhere:
                files[rank] = path(str(rank), name)
            else:
                files[rank] = CONSOLE if shown else os.devnull
            if nowhere or (teed & stream and shown):
                tees[rank] = path(str(rank), name)
    return dest


def announce(envs: Mapping[int, dict[str, str]], attempt_dir: str) -> None:
    """Tells each worker, in its environment, where to write its error and its result.

    ``envs``: environment of each worker by local rank; changed in place. ``attempt_dir``: directory
    of the attempt, or ``/dev/null``; the variables are then empty.
    """
    for rank, env in envs.items():
        place = "" if attempt_dir == os.devnull else os.path.join(attempt_dir, str(rank), "")
        env["TORCHELASTIC_ERROR_FILE"] = place and f"{place}error.json"
        env["LLLAUNCH_RESULT_FILE"] = place and f"{place}return.json"
