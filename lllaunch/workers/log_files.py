"""Where the streams of an attempt's workers go: files by local rank, in a directory each."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lllaunch.errors import OutputError
from lllaunch.spec import Std

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


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
    number = first
    while True:
        path = os.path.join(run_dir, f"attempt_{number}")
        try:
            os.mkdir(path)
        except FileExistsError:
            number += 1
            continue
        except OSError as error:
            raise OutputError(path, error.strerror or str(error)) from error
        break
    for rank in range(nprocs):
        rank_dir = os.path.join(path, str(rank))
        try:
            os.mkdir(rank_dir)
        except OSError as error:
            raise OutputError(rank_dir, error.strerror or str(error), rank) from error
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
    if attempt_dir == os.devnull:
        return _discarded(redirects, local_ranks_filter)
    dest = LogsDest(
        filtered_stdout=os.path.join(attempt_dir, "filtered_stdout.log"),
        filtered_stderr=os.path.join(attempt_dir, "filtered_stderr.log"),
    )
    for rank, mask in redirects.items():
        rank_dir = os.path.join(attempt_dir, str(rank))
        shown = not local_ranks_filter or rank in local_ranks_filter
        teed = tee.get(rank, Std.NONE)
        dest.error_files[rank] = os.path.join(rank_dir, "error.json")
        for stream, name, files, tees in (
            (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
            (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs),
        ):
            if (mask | teed) & stream:
                files[rank] = os.path.join(rank_dir, name)
            else:
                files[rank] = CONSOLE if shown else os.devnull
            if teed & stream and shown:
                tees[rank] = files[rank]
    return dest


def _discarded(ranks: Collection[int], local_ranks_filter: Collection[int] | None) -> LogsDest:
    """With ``/dev/null`` for a log directory there are no files; as in torch."""
    shown = {
        rank: CONSOLE if not local_ranks_filter or rank in local_ranks_filter else os.devnull
        for rank in ranks
    }
    nowhere = dict.fromkeys(ranks, os.devnull)
    return LogsDest(
        shown, dict(shown), nowhere, dict(nowhere), dict(nowhere), os.devnull, os.devnull
    )


def announce(envs: Mapping[int, dict[str, str]], attempt_dir: str) -> None:
    """Tells each worker, in its environment, where to write its error and its result.

    ``envs``: environment of each worker by local rank; changed in place. ``attempt_dir``: directory
    of the attempt, or ``/dev/null``; the variables are then empty.
    """
    for rank, env in envs.items():
        for variable, name in (
            ("TORCHELASTIC_ERROR_FILE", "error.json"),
            ("LLLAUNCH_RESULT_FILE", "return.json"),
        ):
            nowhere = attempt_dir == os.devnull
            env[variable] = "" if nowhere else os.path.join(attempt_dir, str(rank), name)
