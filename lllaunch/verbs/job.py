"""``python -m lllaunch job DIR``: what a batch job calls on each of its nodes; not for people."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from lllaunch.app.batch import job_id, run_in_job, run_task
from lllaunch.errors import LaunchError
from lllaunch.spawner.forks import BATCH_JOB, NOTICE
from lllaunch.verbs.printing import Parser, complain

if TYPE_CHECKING:
    from collections.abc import Sequence

_DESCRIPTION = """\
Run, in a batch job, what was submitted from a directory."""


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    # until somebody acts on it: it ends who does not
    signal.signal(NOTICE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    parser = Parser("job", _DESCRIPTION)
    parser.add_argument("directory", metavar="DIR", help="absolute path of the run's directory")
    parser.add_argument(
        "--array", action="store_true", help="the directory is that of an array of runs"
    )
    given = parser.parse_args(argv)
    try:
        job = os.environ[BATCH_JOB] = job_id()
        return (run_task if given.array else run_in_job)(given.directory, job)
    except LaunchError as error:
        complain(str(error))
        return error.exit_code
